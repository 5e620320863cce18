//! API keys: `X-Authorization: ApiKey tb_…` acts as the key's user, until it expires or is disabled.

use axum::Json;
use platform::Page;
use platform::ids::{ApiKeyId, Uuid};
use platform::model::{ApiKey, User};
use platform::repository::Selection;
use serde_json::Value;

use super::call::{Call, Verb};
use super::failure::Failure;
use super::info::fields;
use super::lists::PageQuery;
use super::operation::{Body, NoQuery, Outcome, Raw, delete, get, post, put};
use crate::endpoint::Endpoint;
use crate::guard::Who;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/apiKey", "save_api_key", Who::ANY, save)
            .says(
                "Create or change an API key",
                "Of oneself, or of a user that one administers. Only the answer to a new one has its value.",
            )
            .returns_json("The key; `value` is what to send as `X-Authorization: ApiKey <value>`."),
        get("/api/apiKeys/{userId}", "get_api_keys", Who::ANY, list)
            .says(
                "List a user's API keys",
                "Without their values, which nobody knows any more.",
            )
            .returns_json("A page of keys."),
        put("/api/apiKey/{id}/description", "describe_api_key", Who::ANY, describe)
            .says("Change an API key's description", "The body is the text.")
            .returns_json("The key."),
        put(
            "/api/apiKey/{id}/enabled/{enabledValue}",
            "enable_api_key",
            Who::ANY,
            enable,
        )
        .says("Enable or disable an API key", "Holds at once.")
        .returns_json("The key."),
        delete("/api/apiKey/{id}", "delete_api_key", Who::ANY, remove)
            .says("Delete an API key", "Holds at once.")
            .returns_empty("Deleted."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("API keys")).collect()
}

/// Without its hash.
fn shown(key: &ApiKey) -> Value {
    let mut fields = fields(key);
    fields.remove("valueHash");
    Value::Object(fields)
}

/// A user's keys are the matter of the user and of whoever may change the user.
fn check_user(call: &Call, key: &ApiKey) -> Result<(), Failure> {
    if call.person.is_node_admin() {
        return Err(Failure::bad_request(
            "An administrator of the node has no API keys: create a user",
        ));
    }
    if call.person.id == key.user_id {
        return Ok(());
    }
    call.entity::<User>(key.user_id.0, Verb::Write).map(drop)
}

fn save(call: &Call, (): (), _: NoQuery, Body(mut key): Body<ApiKey>) -> Outcome<Value> {
    if let Some(id) = key.id {
        let stored: ApiKey = call.entities().get(id.0)?;
        check_user(call, &stored)?;
    }
    check_user(call, &key)?;
    let user: User = call.entities().get(key.user_id.0)?;
    (key.tenant_id, key.value_hash) = (user.tenant_id, None);
    let (saved, value) = call.entities().save_api_key(key, call.now_ms)?;
    let mut answer = shown(&saved);
    if let Some(value) = value {
        answer["value"] = value.into();
    }
    Ok(Json(answer))
}

fn list(call: &Call, user: Uuid, query: PageQuery, (): ()) -> Outcome<Page<Value>> {
    call.entity::<User>(user, Verb::Read)?;
    let key = ApiKey {
        user_id: platform::ids::UserId(user),
        ..ApiKey::default()
    };
    check_user(call, &key)?;
    let selection = Selection {
        parent: Some(user),
        ..Selection::default()
    };
    let page = call.entities().page::<ApiKey>(&selection, &query.page_link()?)?;
    Ok(Json(page.try_map(|key| Ok::<_, Failure>(shown(&key)))?))
}

fn change(call: &Call, id: Uuid, change: impl FnOnce(&mut ApiKey)) -> Outcome<Value> {
    let mut key: ApiKey = call.entities().get(id)?;
    check_user(call, &key)?;
    change(&mut key);
    let (saved, _) = call.entities().save_api_key(key, call.now_ms)?;
    Ok(Json(shown(&saved)))
}

fn describe(call: &Call, id: Uuid, _: NoQuery, Raw(text): Raw) -> Outcome<Value> {
    let text = String::from_utf8(text).map_err(|_| Failure::bad_request("The description is not UTF-8"))?;
    // A JSON string, or the text itself.
    let text = serde_json::from_str(&text).unwrap_or(text);
    change(call, id, |key| key.description = Some(text))
}

fn enable(call: &Call, (id, enabled): (Uuid, String), _: NoQuery, (): ()) -> Outcome<Value> {
    let enabled = match enabled.as_str() {
        "true" => true,
        "false" => false,
        other => return Err(Failure::bad_request(format!("Invalid boolean value [{other}]"))),
    };
    change(call, id, |key| key.enabled = enabled)
}

fn remove(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    let key: ApiKey = call.entities().get(id)?;
    check_user(call, &key)?;
    Ok(call.entities().delete_api_key(ApiKeyId(id))?)
}
