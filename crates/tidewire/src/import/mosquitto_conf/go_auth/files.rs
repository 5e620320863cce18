//! The backend `files`: passwords and access rules.

use std::collections::HashMap;
use std::path::Path;

use auth::{AccessAction, AccessRule, PasswordHash, Permission};
use base64ct::{Base64, Base64Unpadded, Encoding};

use super::backends::hasher;
use super::{Allowed, Options};
use crate::import::access::ALL_TOPICS;
use crate::import::report::Outcome;
use crate::import::setup::Setup;
use crate::import::{CONFIG_BYTES_MAX, read_bounded};

const PASSWORDS: &str = "files_password_path";
const RULES: &str = "files_acl_path";

/// Without access rules, the backend allows everything if it is the only one.
pub fn import(
    options: &Options<'_, '_, '_>,
    is_alone: bool,
    providers: &mut Vec<&'static str>,
    allowed: &mut Allowed,
    setup: &mut Setup,
) -> Result<(), String> {
    let passwords = options.get(PASSWORDS).filter(|path| !path.is_empty());
    let mut names = None;
    if let Some(path) = passwords {
        let text = read(options, path)?;
        let is_checked = options.has_check("files", "user");
        names = Some(users(options, path, &text, is_checked, setup));
        if is_checked {
            providers.push("users");
        }
        options.note(PASSWORDS, Outcome::Imported("passwords".to_owned()));
        for name in ["files_hasher", "hasher"] {
            options.note(name, Outcome::Imported("passwords".to_owned()));
        }
    }
    if !options.has_check("files", "acl") {
        return Ok(());
    }
    match options.get(RULES).filter(|path| !path.is_empty()) {
        None => allowed.everything |= is_alone,
        Some(path) => {
            let text = read(options, path)?;
            allowed.rules.extend(rules(options, path, &text, names.as_deref())?);
            options.note(RULES, Outcome::Imported("access.rules".to_owned()));
        }
    }
    Ok(())
}

fn read(options: &Options<'_, '_, '_>, path: &str) -> Result<String, String> {
    let path = options.conf.path(path);
    let bytes = read_bounded(&path, CONFIG_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|_| format!("{}: the file is not UTF-8", path.display()))
}

fn file_name(path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'))
}

/// Returns the name and the hash of a line.
fn user_of(line: &str) -> Option<(&str, &str)> {
    line.split_once(':').filter(|(_, hash)| !hash.contains(':'))
}

/// Imports the users and returns the names of the file.
fn users(options: &Options<'_, '_, '_>, path: &str, text: &str, is_checked: bool, setup: &mut Setup) -> Vec<String> {
    let file = file_name(path);
    let is_utf8_salt = ["files_hasher_salt_encoding", "hasher_salt_encoding"]
        .iter()
        .any(|name| options.get(name) == Some("utf-8"));
    let mut names = Vec::new();
    let users = lines(text).filter_map(|(line, entry)| Some((user_of(entry)?.0, line)));
    let last: HashMap<&str, usize> = users.collect();
    for (line, entry) in lines(text) {
        let add = |item: &str, outcome| options.conf.report.add(&file, line, item, outcome);
        let refuse = |because: &str| Outcome::NotSupported {
            because: because.to_owned(),
        };
        let Some((name, hash)) = user_of(entry) else {
            add("user", refuse("the line is not a name and a hash"));
            continue;
        };
        let item = format!("user {name}");
        if last.get(name) != Some(&line) {
            add(&item, refuse("a later line of the user replaces it"));
            continue;
        }
        names.push(name.to_owned());
        if !is_checked {
            add(&item, refuse("the backend files checks no users"));
            continue;
        }
        let hash = password_hash(hash, hasher(options, "files"), is_utf8_salt);
        match hash.and_then(|hash| setup.add_user(name, hash, false)) {
            Ok(()) => add(&item, Outcome::Imported("passwords".to_owned())),
            Err(because) => add(
                &item,
                refuse(&format!("{because}: set a new password with tidewire passwd")),
            ),
        }
    }
    names
}

/// Returns a hash of the plug-in as a hash of a password file.
fn password_hash(hash: &str, hasher: &str, is_utf8_salt: bool) -> Result<PasswordHash, String> {
    let invalid = || "its password hash is invalid".to_owned();
    let text = match hasher {
        "argon2id" => hash.to_owned(),
        "bcrypt" => return Err("the password file does not support hashes of type bcrypt".to_owned()),
        _ => {
            let parts: Vec<&str> = hash.split('$').filter(|part| !part.is_empty()).collect();
            let ["PBKDF2", digest @ ("sha256" | "sha512"), iterations, salt, key] = parts.as_slice() else {
                return Err(invalid());
            };
            let salt = match is_utf8_salt {
                true => salt.as_bytes().to_vec(),
                false => Base64::decode_vec(salt).map_err(|_| invalid())?,
            };
            let key = Base64::decode_vec(key).map_err(|_| invalid())?;
            let (salt, length) = (Base64Unpadded::encode_string(&salt), key.len());
            let key = Base64Unpadded::encode_string(&key);
            format!("$pbkdf2-{digest}$i={iterations},l={length}${salt}${key}")
        }
    };
    PasswordHash::parse(&text).map_err(|error| error.to_string())
}

/// The access that a line of the access file defines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    ReadWrite,
    Deny,
}

/// Returns the rules of an access file: those that deny, then those that allow, as the plug-in checks them. The first
/// lines `topic` and all lines `pattern` are for all clients. `names` are the users of the password file: lines of
/// others have no effect.
fn rules(
    options: &Options<'_, '_, '_>,
    path: &str,
    text: &str,
    names: Option<&[String]>,
) -> Result<Vec<AccessRule>, String> {
    let file = file_name(path);
    let (mut denied, mut allowed) = (Vec::new(), Vec::new());
    let mut user: Option<&str> = None;
    for (line, entry) in lines(text) {
        let entry = entry.trim();
        let failed = |because: &str| format!("{file}:{line}: {because}");
        let note = |outcome| options.conf.report.add(&file, line, entry, outcome);
        let imported = || Outcome::Imported("access.rules".to_owned());
        let refuse = |because: &str| Outcome::NotSupported {
            because: because.to_owned(),
        };
        let (word, rest) = entry.split_once(char::is_whitespace).unwrap_or((entry, ""));
        let rest = rest.trim();
        match word {
            "user" if !rest.is_empty() => {
                user = Some(rest);
                note(imported());
                continue;
            }
            "topic" | "pattern" if !rest.is_empty() => {}
            _ => return Err(failed("it is not a line of an access file")),
        }
        let (access, topic) = match rest.split_once(char::is_whitespace) {
            None => (Some(Access::ReadWrite), rest),
            Some(("read", topic)) => (Some(Access::Read), topic.trim()),
            Some(("write", topic)) => (Some(Access::Write), topic.trim()),
            Some(("readwrite", topic)) => (Some(Access::ReadWrite), topic.trim()),
            Some(("deny", topic)) => (Some(Access::Deny), topic.trim()),
            Some(("subscribe", _)) => (None, ""),
            Some(_) => return Err(failed("its access is unknown")),
        };
        let Some(access) = access else {
            note(refuse("without read, a client that subscribes receives nothing"));
            continue;
        };
        let owner = user.filter(|_| word == "topic");
        if owner.is_some_and(|owner| names.is_some_and(|names| names.iter().all(|name| name != owner))) {
            note(refuse("the password file does not contain the user"));
            continue;
        }
        let has_placeholder = topic.contains("%c") || topic.contains("%u");
        let is_special = topic.starts_with("eq ") || topic.contains("${") || owner.is_some() && has_placeholder;
        match (access, is_special) {
            (Access::Deny, true) => return Err(failed("its topic has another meaning in tidewire")),
            (_, true) => note(refuse("its topic has another meaning in tidewire")),
            (_, false) => {
                note(imported());
                add(access, topic, owner, &mut denied, &mut allowed);
            }
        }
    }
    denied.extend(allowed);
    Ok(denied)
}

fn add(access: Access, topic: &str, owner: Option<&str>, denied: &mut Vec<AccessRule>, allowed: &mut Vec<AccessRule>) {
    let users = owner.map(|owner| vec![owner.to_owned()]);
    let rule = |permission, action, topic: &str| AccessRule {
        permission,
        users: users.clone(),
        action,
        topics: vec![topic.to_owned()],
        ..AccessRule::default()
    };
    let action = match access {
        Access::Deny => {
            let mut rule = rule(Permission::Deny, AccessAction::All, topic);
            // A wildcard at the beginning includes topics of the server in the plug-in.
            match topic.strip_prefix('+') {
                Some(rest) => rule.topics.push(format!("$SYS{rest}")),
                None if topic == "#" => rule.topics = ALL_TOPICS.map(str::to_owned).to_vec(),
                None => {}
            }
            denied.push(rule);
            return;
        }
        Access::Read => AccessAction::Subscribe,
        Access::Write => AccessAction::Publish,
        Access::ReadWrite => AccessAction::All,
    };
    // The plug-in allows no subscription to `#` with `read`.
    if access == Access::Read && topic == "#" {
        allowed.push(rule(Permission::Deny, action, "eq #"));
    }
    allowed.push(rule(Permission::Allow, action, topic));
}
