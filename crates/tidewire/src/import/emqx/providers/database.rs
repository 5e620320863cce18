//! Tables of PostgreSQL and MySQL, and hashes of Redis.

use auth::TemplateUse;
use toml::Value;

use super::super::draft::{Draft, host_and_port};
use crate::import::settings::Setting;

const POSTGRESQL_PORT: u16 = 5432;
const MYSQL_PORT: u16 = 3306;
const REDIS_PORT: u16 = 6379;

const ITERATIONS_MAX: u64 = 2_000_000;
const KEY_BYTES_MAX: u64 = 128;
const POOL: &str = "tidewire connects again by itself, and prepares its statement";

pub fn postgresql<'a>(key: &str, from: &Setting<'a>, template_use: TemplateUse) -> Result<Draft<'a>, String> {
    let mut draft = Draft::new(key, from, template_use);
    draft.server(POSTGRESQL_PORT)?;
    draft.required("username")?;
    sql(&mut draft)?;
    for setting in ["application_name", "disable_prepared_statements", "prepare_statement"] {
        from.get(setting).refuse(POOL);
    }
    Ok(draft)
}

pub fn mysql<'a>(key: &str, from: &Setting<'a>, template_use: TemplateUse) -> Result<Draft<'a>, String> {
    let mut draft = Draft::new(key, from, template_use);
    draft.server(MYSQL_PORT)?;
    if draft.optional("username")?.is_none() {
        draft.set("user", "root");
    }
    sql(&mut draft)?;
    draft.timeout("query_timeout")?;
    Ok(draft)
}

fn sql(draft: &mut Draft<'_>) -> Result<(), String> {
    draft.required("database")?;
    draft.text("database", "database")?;
    draft.text("username", "user")?;
    draft.secret("password", "password")?;
    draft.pool_size()?;
    if !draft.required("query")?.contains("${") {
        return Err("its query has no placeholder".to_owned());
    }
    draft.template("query", "query")?;
    draft.tls()?;
    draft.from.get("auto_reconnect").refuse(POOL);
    Ok(())
}

pub fn redis<'a>(key: &str, from: &Setting<'a>, template_use: TemplateUse) -> Result<Draft<'a>, String> {
    let mut draft = Draft::new(key, from, template_use);
    let kind = match draft.optional("redis_type")?.unwrap_or("single") {
        kind @ ("single" | "cluster" | "sentinel") => kind,
        _ => return Err("its redis_type is unknown".to_owned()),
    };
    draft.put(&from.get("redis_type"), "redis_type", kind);
    let servers = from.get(if kind == "single" { "server" } else { "servers" });
    let addresses = addresses(&servers, REDIS_PORT)?;
    draft.put(&servers, "servers", addresses);
    if kind == "sentinel" {
        draft.required("sentinel")?;
        draft.text("sentinel", "sentinel_master")?;
        draft.text("sentinel_username", "sentinel_user")?;
        draft.secret("sentinel_password", "sentinel_password")?;
    }
    draft.text("username", "user")?;
    draft.secret("password", "password")?;
    let database = from.get("database");
    match kind {
        "cluster" => database.imported("as in tidewire"),
        _ => draft.number(&database, "database", 0, u64::from(u32::MAX))?,
    }
    command(&draft, template_use)?;
    draft.template("cmd", "cmd")?;
    draft.tls()?;
    from.get("pool_size")
        .refuse("tidewire sends all commands over one connection");
    from.get("auto_reconnect").refuse(POOL);
    Ok(draft)
}

/// A list, or a text with commas.
pub fn addresses(setting: &Setting<'_>, default_port: u16) -> Result<Vec<Value>, String> {
    let mut addresses = Vec::new();
    for item in setting.items() {
        let text = item.text().ok_or("its servers are not text")?;
        for server in text.split(',').filter(|server| !server.trim().is_empty()) {
            let (host, port) = host_and_port(server, default_port)?;
            let address = match host.contains(':') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            };
            addresses.push(Value::from(address));
        }
    }
    match addresses.is_empty() {
        true => Err("its server is missing".to_owned()),
        false => Ok(addresses),
    }
}

fn command(draft: &Draft<'_>, template_use: TemplateUse) -> Result<(), String> {
    let command = draft.required("cmd")?;
    let name = command
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .to_ascii_uppercase();
    let known: &[&str] = match template_use {
        TemplateUse::Login => &["HMGET", "HGET", "HGETALL"],
        _ => &["HGETALL"],
    };
    if !known.contains(&name.as_str()) {
        return Err(format!("its command is not {}", known.join(" or ")));
    }
    if template_use != TemplateUse::Login && !command.contains("${") {
        return Err("the key of its command has no placeholder".to_owned());
    }
    let mode = draft.from.get("compatibility_mode");
    if mode.exists() && !mode.is("disabled") {
        return Err("its compatibility_mode has no counterpart".to_owned());
    }
    mode.imported("as in tidewire");
    Ok(())
}

/// Copies how passwords are hashed. The defaults are those of EMQX.
pub fn password_hash(draft: &mut Draft<'_>) -> Result<(), String> {
    let algorithm = draft.from.get("password_hash_algorithm");
    if algorithm.exists() && !algorithm.is_object() {
        return Err("its password_hash_algorithm is not an object".to_owned());
    }
    let name = algorithm.get("name");
    let salt = algorithm.get("salt_position");
    let kind = match name.text() {
        Some(kind) => kind,
        None if !name.exists() => "sha256",
        None => return Err("the name of its password_hash_algorithm is not text".to_owned()),
    };
    match kind {
        "plain" | "md5" | "sha" | "sha256" | "sha512" => {
            let position = match salt.text() {
                None if !salt.exists() => "prefix",
                Some(position @ ("prefix" | "suffix" | "disable")) => position,
                _ => return Err("its salt_position is unknown".to_owned()),
            };
            draft.put(&salt, "salt_position", position);
        }
        "bcrypt" => algorithm.get("salt_rounds").imported("as in tidewire"),
        "pbkdf2" => {
            let function = algorithm.get("mac_fun");
            let name = match function.text() {
                Some(name @ ("sha" | "sha224" | "sha256" | "sha384" | "sha512")) => name,
                _ => return Err("its mac_fun is missing, or tidewire does not have it".to_owned()),
            };
            draft.put(&function, "mac_fun", name);
            let iterations = algorithm.get("iterations");
            if !iterations.exists() {
                return Err("the iterations of pbkdf2 are missing".to_owned());
            }
            draft.number(&iterations, "iterations", 1, ITERATIONS_MAX)?;
            draft.number(&algorithm.get("dk_length"), "dk_length", 1, KEY_BYTES_MAX)?;
        }
        _ => return Err(format!("tidewire has no password hashes of type {kind}")),
    }
    draft.put(&name, "password_hash_algorithm", kind);
    Ok(())
}
