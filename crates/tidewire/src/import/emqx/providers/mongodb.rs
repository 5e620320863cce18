//! Collections of MongoDB with clients or with access rules.

use auth::TemplateUse;
use serde_json::Value as Json;
use toml::Value;

use super::super::draft::Draft;
use super::database::addresses;
use crate::import::report::Outcome;
use crate::import::settings::Setting;

const PORT: u16 = 27017;

/// An authenticator.
pub fn authenticator<'a>(from: &Setting<'a>) -> Result<Draft<'a>, String> {
    let mut draft = connection("access.mongodb", from, TemplateUse::Login)?;
    if !filter(&mut draft)?.contains("${") {
        return Err("its filter has no placeholder".to_owned());
    }
    for field in ["password_hash_field", "salt_field", "is_superuser_field"] {
        if from.get(field).is("") {
            return Err(format!("its {field} is empty"));
        }
        if draft.optional(field)?.is_some() {
            draft.text(field, field)?;
        }
    }
    Ok(draft)
}

/// A source of access rules.
pub fn source<'a>(key: &str, from: &Setting<'a>) -> Result<Draft<'a>, String> {
    let mut draft = connection(key, from, TemplateUse::Rules)?;
    filter(&mut draft)?;
    let (limit, skip) = (from.get("limit"), from.get("skip"));
    if skip.exists() && skip.number() != Some(0) {
        return Err("it skips documents".to_owned());
    }
    // A client with more rules than that is rejected in tidewire.
    if limit.exists() && limit.number().is_none_or(|limit| limit < 1000) {
        return Err("its limit could leave out rules".to_owned());
    }
    for setting in [limit, skip] {
        setting.imported("as in tidewire");
    }
    // EMQX reverses the order of the database, which is usually the one of insertion.
    draft.set("sort", vec![Value::from("-_id")]);
    from.get("sort").note_missing(Outcome::Changed {
        to: draft.to("sort"),
        because: "the newest document comes first, as usual in EMQX: check the order if rules of a client overlap"
            .to_owned(),
    });
    Ok(draft)
}

fn connection<'a>(key: &str, from: &Setting<'a>, template_use: TemplateUse) -> Result<Draft<'a>, String> {
    let mut draft = Draft::new(key, from, template_use);
    let kind = match draft.required("mongo_type")? {
        kind @ ("single" | "rs" | "sharded") => kind,
        _ => return Err("its mongo_type is unknown".to_owned()),
    };
    draft.put(&from.get("mongo_type"), "mongo_type", kind);
    let record = from.get("srv_record");
    if record.flag(false)? {
        return Err("tidewire does not resolve srv_record: write the addresses into servers".to_owned());
    }
    record.imported("as in tidewire");
    let legacy = from.get("use_legacy_protocol");
    if legacy.is("true") {
        return Err("tidewire needs MongoDB 3.6, without use_legacy_protocol".to_owned());
    }
    legacy.imported("as in tidewire");
    let servers = from.get(if kind == "single" { "server" } else { "servers" });
    draft.put(&servers, "servers", addresses(&servers, PORT)?);
    if kind == "rs" {
        draft.required("replica_set_name")?;
        draft.text("replica_set_name", "replica_set_name")?;
        match draft.optional("r_mode")?.unwrap_or("master") {
            mode @ ("master" | "slave_ok") => draft.put(&from.get("r_mode"), "r_mode", mode),
            _ => return Err("its r_mode is unknown".to_owned()),
        }
    }
    for option in ["database", "collection"] {
        draft.required(option)?;
        draft.text(option, option)?;
    }
    match (draft.optional("username")?, draft.optional("password")?) {
        (Some(_), None) | (None, Some(_)) => {
            return Err("its username or password is missing".to_owned());
        }
        _ => {
            draft.text("username", "user")?;
            draft.secret("password", "password")?;
        }
    }
    if draft.optional("auth_source")?.is_some() {
        draft.text("auth_source", "auth_source")?;
    }
    draft.pool_size()?;
    draft.tls()?;
    for setting in ["w_mode", "topology", "auto_reconnect"] {
        from.get(setting)
            .refuse("tidewire only reads, and connects again by itself");
    }
    Ok(draft)
}

/// Copies the filter and returns its JSON.
fn filter(draft: &mut Draft<'_>) -> Result<String, String> {
    let setting = draft.from.get("filter");
    if setting.exists() && !setting.is_object() {
        return Err("its filter is not an object".to_owned());
    }
    let filter = match setting.json() {
        Json::Null => Json::Object(serde_json::Map::new()),
        filter => filter,
    };
    check_texts(draft, &filter)?;
    let text = filter.to_string();
    #[cfg(feature = "mongodb")]
    auth_providers::mongodb::check_filter(&text).map_err(|problem| format!("its {problem}"))?;
    draft.put(&setting, "filter", text.as_str());
    Ok(text)
}

/// Checks the placeholders of all values.
fn check_texts(draft: &Draft<'_>, value: &Json) -> Result<(), String> {
    match value {
        Json::String(text) => draft.check_template("filter", text),
        Json::Array(values) => values.iter().try_for_each(|value| check_texts(draft, value)),
        Json::Object(fields) => fields.values().try_for_each(|value| check_texts(draft, value)),
        _ => Ok(()),
    }
}
