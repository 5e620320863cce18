//! Users and access rules of NanoMQ.

use auth::{AccessAction, Password, PasswordHash, Permission};

use crate::import::access::{ALL_TOPICS, Clients, ForeignRule, ForeignTopic, PacketCondition};
use crate::import::settings::Setting;
use crate::import::setup::Setup;

const CLOSED: &str = "NanoMQ asks the HTTP server of auth.http_auth, which could deny it";

pub fn import(auth: &Setting<'_>, setup: &mut Setup) {
    let http = auth.get("http_auth");
    let asks_users = http.get("auth_req").exists();
    let asks_access = http.get("acl_req").exists();
    users(auth, asks_users, setup);
    let acl = auth.get("acl");
    for rule in acl.get("rules").items() {
        add(&rule, asks_access, setup);
    }
    let no_match = auth.get("no_match");
    let is_allowed = !no_match.is("deny");
    match is_allowed && asks_access {
        true => no_match.changed("access.no_match", &format!("deny, because {CLOSED}")),
        false => no_match.imported("access.no_match"),
    }
    let decision = if is_allowed && !asks_access { "allow" } else { "deny" };
    setup.set("access.no_match", &no_match.path, decision);
    // Without rules, `no_match` has no effect.
    if decision == "deny" && !setup.has_rules() {
        let rule = ForeignRule {
            permission: Permission::Deny,
            clients: Ok(Clients::all()),
            packets: Ok(vec![PacketCondition::default()]),
            topics: all_topics(),
        };
        let _ = rule.add(setup);
    }
    let deny_action = auth.get("deny_action");
    match deny_action.is("disconnect") {
        true => deny_action.refuse("a rejected packet never disconnects the client"),
        false => deny_action.imported("as in tidewire"),
    }
    auth.get("cache")
        .refuse("tidewire evaluates the rules of a session once, when it connects");
    http.refuse("tidewire does not authenticate or authorize clients over HTTP");
}

fn users(auth: &Setting<'_>, asks_http: bool, setup: &mut Setup) {
    for (name, password) in auth.get("password").entries() {
        let text = password.text().unwrap_or_default();
        let hash = PasswordHash::create(&Password::new(text.as_bytes().to_vec())).map_err(|error| error.to_string());
        match hash.and_then(|hash| setup.add_user(name, hash, false)) {
            Ok(()) => password.changed("passwords", "the password is hashed with Argon2id"),
            Err(because) => password.refuse(&because),
        }
    }
    let allow = auth.get("allow_anonymous");
    let is_open = allow.flag(true) && !asks_http;
    match is_open {
        true => {
            setup.set("access.anonymous", &allow.path, "always");
            setup.set("access.unknown_users", &allow.path, "anonymous");
            allow.changed(
                "access.anonymous",
                "users with a password need it; NanoMQ admits them without",
            );
        }
        false => {
            setup.set("access.anonymous", &allow.path, "never");
            match allow.flag(true) {
                true => allow.changed(
                    "access.anonymous",
                    "never, because NanoMQ asks the HTTP server of auth.http_auth",
                ),
                false => allow.imported("access.anonymous"),
            }
        }
    }
}

fn all_topics() -> Vec<Result<String, ForeignTopic>> {
    ALL_TOPICS.iter().map(|topic| Ok((*topic).to_owned())).collect()
}

fn add(rule: &Setting<'_>, is_closed: bool, setup: &mut Setup) {
    let permission = match rule.get("permit").text() {
        Some("allow") => Permission::Allow,
        Some("deny") => Permission::Deny,
        _ => {
            rule.refuse("it neither allows nor denies");
            return;
        }
    };
    if is_closed && permission == Permission::Allow {
        rule.refuse(CLOSED);
        return;
    }
    let action = match rule.get("action").text() {
        Some("publish") => Ok(AccessAction::Publish),
        Some("subscribe") => Ok(AccessAction::Subscribe),
        None | Some("pubsub") => Ok(AccessAction::All),
        Some(_) => Err("its action is unknown".to_owned()),
    };
    let topics = rule.get("topics");
    let foreign = ForeignRule {
        permission,
        clients: clients(rule),
        packets: action.map(|action| vec![PacketCondition::of(action)]),
        topics: match topics.exists() {
            true => topics.items().iter().map(topic).collect(),
            false => all_topics(),
        },
    };
    match foreign.add(setup) {
        Ok(None) => rule.imported("access.rules"),
        Ok(Some(because)) => rule.changed("access.rules", &because),
        Err(because) => rule.refuse(&because),
    }
}

fn clients(rule: &Setting<'_>) -> Result<Clients, String> {
    let mut result = Clients::all();
    for (key, value) in rule.entries() {
        let condition = match key {
            "permit" | "action" | "topics" => continue,
            "and" => {
                let mut all = Clients::all();
                for part in value.items() {
                    all = all.and(&clients(&part)?)?;
                }
                all
            }
            "or" => {
                let mut any = Clients::none();
                for part in value.items() {
                    any = any.or(clients(&part)?)?;
                }
                any
            }
            key => single(key, value.text().ok_or("its condition cannot be read")?)?,
        };
        result = result.and(&condition)?;
    }
    Ok(result)
}

/// `#` means all users or client ids.
fn single(key: &str, value: &str) -> Result<Clients, String> {
    match (key, value) {
        ("username" | "clientid", "#") => Ok(Clients::all()),
        ("username", name) => Ok(Clients::user(name)),
        ("clientid", id) => Ok(Clients::client(id)),
        ("ipaddr", address) => Ok(Clients::addresses(vec![address.to_owned()])),
        (key, _) => Err(format!("tidewire has no condition {key}")),
    }
}

/// A topic behind `@` is compared literally, after its placeholders are filled in.
fn topic(topic: &Setting<'_>) -> Result<String, ForeignTopic> {
    let text = topic.text().unwrap_or_default();
    match text.strip_prefix('@') {
        None => Ok(text.to_owned()),
        Some(literal) if !literal.contains("${") => Ok(format!("eq {literal}")),
        Some(literal) => Err(ForeignTopic {
            wider: literal.to_owned(),
            because: "a literal topic has no placeholders".to_owned(),
        }),
    }
}
