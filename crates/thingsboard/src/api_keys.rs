//! API keys: a request with `X-Authorization: ApiKey tb_…` acts as the key's user, until the key expires or is
//! disabled.

use axum::Json;
use platform::PageData;
use platform::ids::{ApiKeyId, Uuid};
use platform::model::{ApiKey, User};
use platform::repository::Selection;
use serde_json::Value;

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::info::fields;
use super::lists::PageQuery;
use super::operation::{HandlerResult, JsonBody, NoQuery, RawBody, delete, get, post, put};
use crate::services::Endpoint;

pub fn endpoints() -> Vec<Endpoint> {
    let all =
        vec![
        post("/api/apiKey", "save_api_key", Authorities::ANY, save)
            .describe(
                "Create or change an API key",
                "A key of your own, or of a user whose role is below yours. Only the answer to a new key contains its value. The key \
                 is deleted with its user and with the users who issued it.",
            )
            .returns_json("The key; send `value` as `X-Authorization: ApiKey <value>`."),
        get("/api/apiKeys/{userId}", "get_api_keys", Authorities::ANY, list)
            .describe("List a user's API keys", "Without their values, which are not stored.")
            .returns_json("A page of keys."),
        put("/api/apiKey/{id}/description", "describe_api_key", Authorities::ANY, describe)
            .describe("Change an API key's description", "The body is the new description.")
            .returns_json("The key."),
        put(
            "/api/apiKey/{id}/enabled/{enabledValue}",
            "enable_api_key",
            Authorities::ANY,
            enable,
        )
        .describe("Enable or disable an API key", "Takes effect at once.")
        .returns_json("The key."),
        delete("/api/apiKey/{id}", "delete_api_key", Authorities::ANY, remove)
            .describe("Delete an API key", "Takes effect at once.")
            .returns_empty("Deleted."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("API keys")).collect()
}

/// Returns the key's JSON without its hash.
pub fn without_hash(key: &ApiKey) -> Value {
    let mut fields = fields(key);
    fields.remove("valueHash");
    Value::Object(fields)
}

/// The user of a key can manage it, and so can users with write access to this user.
fn check_user(call: &ApiCall, key: &ApiKey) -> Result<(), ThingsboardError> {
    if call.principal.is_node_admin() {
        return Err(ThingsboardError::bad_request(
            "An administrator of the node has no API keys: create a user",
        ));
    }
    if call.principal.id == key.user_id {
        return Ok(());
    }
    call.entity::<User>(key.user_id.0, Verb::Write).map(drop)
}

fn save(call: &ApiCall, (): (), _: NoQuery, JsonBody(mut key): JsonBody<ApiKey>) -> HandlerResult<Value> {
    if let Some(id) = key.id {
        let stored: ApiKey = call.entities().get(id.0)?;
        check_user(call, &stored)?;
    }
    check_user(call, &key)?;
    let user: User = call.entities().get(key.user_id.0)?;
    let is_own = call.principal.id == key.user_id;
    if key.id.is_none() && !is_own && !call.principal.administers(&user) {
        return Err(ThingsboardError::permission());
    }
    key.issuers = match is_own {
        true => call.principal.issuers.clone(),
        false => call.principal.issuers_with_self(),
    };
    (key.tenant_id, key.value_hash) = (user.tenant_id, None);
    let (saved, value) = call.entities().save_api_key(key, call.now_ms)?;
    let mut answer = without_hash(&saved);
    if let Some(value) = value {
        answer["value"] = value.into();
    }
    Ok(Json(answer))
}

fn list(call: &ApiCall, user: Uuid, query: PageQuery, (): ()) -> HandlerResult<PageData<Value>> {
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
    Ok(Json(page.try_map(|key| Ok::<_, ThingsboardError>(without_hash(&key)))?))
}

fn change(call: &ApiCall, id: Uuid, change: impl FnOnce(&mut ApiKey)) -> HandlerResult<Value> {
    let mut key: ApiKey = call.entities().get(id)?;
    check_user(call, &key)?;
    change(&mut key);
    let (saved, _) = call.entities().save_api_key(key, call.now_ms)?;
    Ok(Json(without_hash(&saved)))
}

fn describe(call: &ApiCall, id: Uuid, _: NoQuery, RawBody(text): RawBody) -> HandlerResult<Value> {
    let text = String::from_utf8(text).map_err(|_| ThingsboardError::bad_request("The description is not UTF-8"))?;
    // Accepts a JSON string or plain text.
    let text = serde_json::from_str(&text).unwrap_or(text);
    change(call, id, |key| key.description = Some(text))
}

fn enable(call: &ApiCall, (id, enabled): (Uuid, String), _: NoQuery, (): ()) -> HandlerResult<Value> {
    let enabled = match enabled.as_str() {
        "true" => true,
        "false" => false,
        other => {
            return Err(ThingsboardError::bad_request(format!(
                "Invalid boolean value [{other}]"
            )));
        }
    };
    change(call, id, |key| key.enabled = enabled)
}

fn remove(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    let key: ApiKey = call.entities().get(id)?;
    check_user(call, &key)?;
    Ok(call.entities().delete_api_key(ApiKeyId(id))?)
}
