//! Options of access in `mosquitto.conf`: anonymous clients, passwords, access rules and plugins.
//!
//! They may stand in a listener. tidewire has one set for all listeners, so where listeners differ, the narrowest
//! applies: clients of one listener must not get the access of another.

use auth::{AccessAction, AccessRule, Permission, Users, parse_mosquitto_acl};

use super::dynamic_security::{self, connect_rule};
use super::go_auth;
use super::listener;
use super::{CONFIG_BYTES_MAX, Conf, ConfLine, NO_FLAG, Sections, flag, last, read_bounded};
use crate::config::files::chain;
use crate::import::access::ALL_TOPICS;
use crate::import::report::Outcome;
use crate::import::setup::Setup;

const ACCESS: [&str; 13] = [
    "allow_anonymous",
    "listener_allow_anonymous",
    "password_file",
    "acl_file",
    "clientid_prefixes",
    "use_username_as_clientid",
    "plugin",
    "auth_plugin",
    "global_plugin",
    "plugin_load",
    "plugin_use",
    "plugin_opt_config_file",
    "auth_opt_config_file",
];

/// Returns whether an option, wherever it stands, is about access.
pub fn is_access(key: &str) -> bool {
    ACCESS.contains(&key) || go_auth::option_name(key).is_some()
}

const PLUGINS: [&str; 5] = ["plugin", "auth_plugin", "global_plugin", "plugin_load", "plugin_use"];

/// Plugins that decide nothing about access, by their file names.
const WITHOUT_ACCESS: [&str; 2] = ["persist_sqlite", "sparkplug_aware"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Plugin {
    DynamicSecurity,
    /// mosquitto-go-auth.
    GoAuth,
    WithoutAccess,
    /// It could deny access.
    Unknown,
}

const REPLACE_FIRST_RULE: &str =
    "As it could deny access, the first rule denies all topics: replace it in access.rules";

/// Options that name the users of a listener.
const USERS: [&str; 3] = ["password_file", "plugin_opt_config_file", "auth_opt_config_file"];

/// Options that open a listener besides `listener`.
const DEFAULT_LISTENER: [&str; 3] = ["port", "bind_address", "bind_interface"];

pub fn import(conf: &Conf<'_>, found: &Sections<'_>, setup: &mut Setup) -> Result<(), String> {
    let all = found.global.iter().chain(found.listeners.iter().flatten());
    let lines: Vec<&ConfLine<'_>> = all.filter(|line| ACCESS.contains(&line.key)).collect();
    let of = |key: &str| -> Vec<&ConfLine<'_>> { lines.iter().copied().filter(|line| line.key == key).collect() };
    let has_plugin = |kind| {
        let mut plugins = lines.iter().filter(|line| PLUGINS.contains(&line.key));
        plugins.any(|line| plugin(line, &lines) == kind)
    };
    let go_auth = go_auth::Options::new(conf, found);
    let is_go_auth = has_plugin(Plugin::GoAuth);
    let plugins = lines
        .iter()
        .filter(|line| PLUGINS.contains(&line.key) && line.key != "plugin_load");
    let plugins = plugins.filter(|line| plugin(line, &lines) != Plugin::WithoutAccess);
    // Mosquitto asks all of them, and its files.
    let other = match plugins.count() {
        0 | 1 => ["password_file", "acl_file"]
            .into_iter()
            .find(|key| !of(key).is_empty()),
        _ => Some("another line of a plug-in"),
    };
    let go_auth_problem = go_auth.problem(found, other).filter(|_| is_go_auth);
    // It comes before all other rules, which could allow what the plugin or the missing file denies.
    if has_plugin(Plugin::Unknown) || go_auth_problem.is_some() || !found.unread.is_empty() {
        setup.add_rule(AccessRule::deny(AccessAction::All, &ALL_TOPICS))?;
    }
    if let (Some(line), true) = (of("password_file").first(), has_plugin(Plugin::DynamicSecurity)) {
        let because =
            "the users of password_file and of dynamic security cannot be imported together: remove one of them first";
        return Err(conf.failure(line, because));
    }
    let is_anonymous = anonymous(
        conf,
        found,
        &of("allow_anonymous"),
        &of("listener_allow_anonymous"),
        is_go_auth,
    );
    let differences = different_users(found, &of("password_file"));
    passwords(conf, &of("password_file"), differences.as_deref(), setup)?;
    if let (Some(line), true) = (of("acl_file").first(), has_plugin(Plugin::DynamicSecurity)) {
        let because =
            "the rules of acl_file and of dynamic security cannot be imported together: remove one of them first";
        return Err(conf.failure(line, because));
    }
    acl(conf, &of("acl_file"), setup)?;
    let client_ids = client_ids(conf, &of("clientid_prefixes"), &of("use_username_as_clientid"))?;
    let security = Security {
        is_anonymous,
        client_ids: client_ids.as_deref(),
        differences: differences.as_deref(),
        go_auth_problem: go_auth_problem.as_deref(),
    };
    let has_bound = security.import(conf, &lines, setup)?;
    if let (Some(pattern), false) = (&client_ids, has_bound) {
        setup.add_rule(connect_rule(Permission::Allow, None, pattern))?;
    }
    match &go_auth_problem {
        Some(problem) => go_auth.refuse_all(problem),
        None if is_go_auth => go_auth::import(&go_auth, setup)?,
        None => go_auth.refuse_all("its plugin is not supported"),
    }
    let anonymous = if is_anonymous { "always" } else { "never" };
    setup.set("access.anonymous", "allow_anonymous", anonymous);
    setup.set("access.session_owner", "", "any");
    Ok(())
}

/// Returns what a plugin decides. `plugin_use` names a plugin that a line `plugin_load NAME FILE` loads.
fn plugin(line: &ConfLine<'_>, lines: &[&ConfLine<'_>]) -> Plugin {
    let is_named = |load: &&&ConfLine<'_>| load.value.split_whitespace().next() == Some(line.value);
    let file = match line.key {
        "plugin_use" => {
            let mut loads = lines.iter().filter(|line| line.key == "plugin_load");
            loads.find(is_named).map_or("", |load| load.value)
        }
        _ => line.value,
    };
    let name = file.rsplit('/').next().unwrap_or_default();
    match name.contains("dynamic_security") {
        true => Plugin::DynamicSecurity,
        false if name.contains("go-auth") => Plugin::GoAuth,
        false if WITHOUT_ACCESS.iter().any(|known| name.contains(known)) => Plugin::WithoutAccess,
        false => Plugin::Unknown,
    }
}

/// Imports the lines about plugins.
struct Security<'a> {
    is_anonymous: bool,
    /// Pattern of the client ids that clients may have.
    client_ids: Option<&'a str>,
    /// Why users cannot be imported.
    differences: Option<&'a str>,
    /// Why mosquitto-go-auth cannot be imported.
    go_auth_problem: Option<&'a str>,
}

impl Security<'_> {
    /// Returns whether there are rules for client ids then.
    fn import(&self, conf: &Conf<'_>, lines: &[&ConfLine<'_>], setup: &mut Setup) -> Result<bool, String> {
        let mut security = None;
        let mut config: Option<&str> = None;
        let mut has_bound = false;
        for line in lines {
            match line.key {
                key if PLUGINS.contains(&key) => match plugin(line, lines) {
                    Plugin::DynamicSecurity => {
                        security = Some(*line);
                        conf.imported(line, "access.rules");
                    }
                    Plugin::GoAuth => match self.go_auth_problem {
                        Some(problem) => conf.refuse(line, &format!("{problem}. {REPLACE_FIRST_RULE}")),
                        None => conf.imported(line, "access.providers"),
                    },
                    Plugin::WithoutAccess => conf.refuse(line, "tidewire has no plugins"),
                    Plugin::Unknown => {
                        conf.refuse(line, &format!("tidewire has no plugins. {REPLACE_FIRST_RULE}"));
                    }
                },
                "plugin_opt_config_file" | "auth_opt_config_file" if security.is_some() => {
                    if let Some(because) = self.differences {
                        return Err(conf.failure(line, because));
                    }
                    match config.replace(line.value) {
                        None => has_bound = self.file(conf, line, setup)?,
                        Some(other) if other == line.value => {}
                        Some(_) => {
                            let because =
                                "tidewire has the same users on all listeners: merge the files of the plugin first";
                            return Err(conf.failure(line, because));
                        }
                    }
                    conf.imported(line, "access.rules");
                }
                "plugin_opt_config_file" | "auth_opt_config_file" => conf.refuse(line, "its plugin is not supported"),
                _ => {}
            }
        }
        match (security, config) {
            (Some(line), None) => Err(conf.failure(
                line,
                "the line plugin_opt_config_file of dynamic security is missing behind it",
            )),
            _ => Ok(has_bound),
        }
    }

    fn file(&self, conf: &Conf<'_>, line: &ConfLine<'_>, setup: &mut Setup) -> Result<bool, String> {
        let path = conf.path(line.value);
        dynamic_security::import(&path, conf.report, self.is_anonymous, self.client_ids, setup)
    }
}

/// Returns the pattern of the client ids that clients may have, as a rule has it.
fn client_ids(
    conf: &Conf<'_>,
    prefixes: &[&ConfLine<'_>],
    from_names: &[&ConfLine<'_>],
) -> Result<Option<String>, String> {
    let mut found: Option<(&ConfLine<'_>, String)> = None;
    for line in prefixes.iter().chain(from_names) {
        let pattern = match line.key {
            "clientid_prefixes" if line.value.is_empty() || dynamic_security::has_special_meaning(line.value) => {
                let because =
                    "the prefix has a special meaning in access rules: write a rule with action = \"connect\" instead";
                return Err(conf.failure(line, because));
            }
            "clientid_prefixes" => {
                conf.imported(line, "access.rules");
                format!("{}*", line.value)
            }
            _ if flag(line.value) == Some(false) => {
                conf.imported(line, "as in tidewire");
                continue;
            }
            _ => {
                conf.changed(
                    line,
                    "access.rules",
                    "clients have to connect with their user name as client id; Mosquitto replaces the id",
                );
                "%u".to_owned()
            }
        };
        match &found {
            None => found = Some((*line, pattern)),
            Some((_, other)) if *other == pattern => {}
            Some((first, _)) => {
                let because = format!(
                    "it cannot be imported together with line {}: remove one of them",
                    first.line
                );
                return Err(conf.failure(line, &because));
            }
        }
    }
    Ok(found.map(|(_, pattern)| pattern))
}

/// Returns whether anonymous clients may connect at all listeners. `own` has the lines that are for one listener.
fn anonymous(
    conf: &Conf<'_>,
    found: &Sections<'_>,
    lines: &[&ConfLine<'_>],
    own: &[&ConfLine<'_>],
    is_go_auth: bool,
) -> bool {
    // Mosquitto 2 admits anonymous clients by default only if nothing opens a listener.
    let is_local = found.unread.is_empty()
        && found.listeners.is_empty()
        && !found.global.iter().any(|line| DEFAULT_LISTENER.contains(&line.key));
    let named =
        listener::names_users(&found.global) || found.listeners.iter().any(|lines| listener::names_users(lines));
    let is_anonymous = match (found.is_per_listener(), lines) {
        _ if named || is_go_auth => false,
        (true, _) => found.listeners.iter().all(|listener| admits_anonymous(listener)),
        (false, lines) => {
            let for_all = match lines {
                [] => is_local,
                lines => lines.iter().all(|line| flag(line.value) == Some(true)),
            };
            let admits = |lines: &[ConfLine<'_>]| match last(lines, "listener_allow_anonymous") {
                Some(line) => flag(line.value) == Some(true),
                None => for_all,
            };
            match found.listeners.as_slice() {
                [] => for_all && admits(&found.global),
                listeners => listeners.iter().all(|lines| admits(lines)),
            }
        }
    };
    for line in lines.iter().chain(own) {
        match flag(line.value) {
            None => conf.refuse(line, &format!("{NO_FLAG}: anonymous clients are rejected")),
            Some(true) if named => conf.changed(
                line,
                "access.anonymous",
                "never, because Mosquitto takes user names from client certificates; to open it, set this option",
            ),
            Some(true) if is_go_auth => conf.changed(
                line,
                "access.anonymous",
                "never, because mosquitto-go-auth allows nothing to clients without a user name",
            ),
            Some(true) if !is_anonymous => conf.changed(
                line,
                "access.anonymous",
                "never, because it is the same on all listeners, and one of them rejects anonymous clients",
            ),
            Some(_) => conf.imported(line, "access.anonymous"),
        }
    }
    is_anonymous
}

fn admits_anonymous(listener: &[ConfLine<'_>]) -> bool {
    let is_own = |line: &&ConfLine<'_>| matches!(line.key, "allow_anonymous" | "listener_allow_anonymous");
    let line = listener.iter().rev().find(is_own);
    line.is_some_and(|line| flag(line.value) == Some(true))
}

/// Returns why users cannot be imported: clients could connect at a listener that does not know them.
fn different_users(found: &Sections<'_>, passwords: &[&ConfLine<'_>]) -> Option<String> {
    let first = passwords.first();
    let other = first.and_then(|first| passwords.iter().find(|line| line.value != first.value));
    if let (Some(first), Some(other)) = (first, other) {
        return Some(format!(
            "tidewire has the same users on all listeners, and lines {} and {} name different files: merge them first",
            first.line, other.line
        ));
    }
    if !found.is_per_listener() {
        return None;
    }
    let users = |lines: &[ConfLine<'_>]| USERS.map(|key| last(lines, key).map(|line| line.value.to_owned()));
    // A listener that admits everybody has no users that it could reject.
    let is_closed = |lines: &&Vec<ConfLine<'_>>| users(lines) != [None, None, None] || !admits_anonymous(lines);
    let mut closed = found.listeners.iter().filter(is_closed);
    // Options before the first listener are for the default listener only.
    // A global plugin is for all listeners.
    let is_global = last(&found.global, "global_plugin").is_some() && passwords.is_empty();
    let begin = Some(users(&found.global)).filter(|users| *users != [None, None, None] && !is_global);
    let expected = begin.or_else(|| closed.clone().next().map(|lines| users(lines)))?;
    let other = closed.find(|lines| users(lines) != expected)?;
    Some(format!(
        "tidewire has the same users on all listeners, and with per_listener_settings the listener of line {} has \
         other users: give all listeners the same files first",
        other[0].line
    ))
}

fn passwords(
    conf: &Conf<'_>,
    lines: &[&ConfLine<'_>],
    differences: Option<&str>,
    setup: &mut Setup,
) -> Result<(), String> {
    let Some(first) = lines.first() else { return Ok(()) };
    if let Some(because) = differences {
        lines.iter().for_each(|line| conf.refuse(line, because));
        return Ok(());
    }
    let users = Users::load(&conf.path(first.value)).map_err(|error| chain(&error))?;
    let added = setup.add_users(&users);
    for line in lines {
        match &added {
            Ok(()) => conf.imported(line, "passwords"),
            Err(because) => conf.refuse(line, because),
        }
    }
    Ok(())
}

fn acl(conf: &Conf<'_>, lines: &[&ConfLine<'_>], setup: &mut Setup) -> Result<(), String> {
    let Some(first) = lines.first() else { return Ok(()) };
    if let Some(other) = lines.iter().find(|line| line.value != first.value) {
        let because = "tidewire has the same access rules on all listeners: merge the files of acl_file first";
        return Err(conf.failure(other, because));
    }
    acl_file(conf, first, setup)?;
    lines.iter().for_each(|line| conf.imported(line, "access.acl_file"));
    Ok(())
}

fn acl_file(conf: &Conf<'_>, line: &ConfLine<'_>, setup: &mut Setup) -> Result<(), String> {
    let path = conf.path(line.value);
    let bytes = read_bounded(&path, CONFIG_BYTES_MAX)?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{}: the file is not UTF-8", path.display()))?;
    let rules = parse_mosquitto_acl(&path, &text).map_err(|errors| chain(&errors))?;
    setup.note_acl_file(&rules);
    let name = path
        .file_name()
        .map_or_else(|| "acl".into(), |name| name.to_string_lossy());
    for (at, rule) in text.lines().enumerate() {
        let rule = rule.trim();
        if !rule.is_empty() && !rule.starts_with('#') {
            conf.report
                .add(&name, at + 1, rule, Outcome::Imported("access.acl_file".to_owned()));
        }
    }
    let copy = setup.file("acl", text);
    setup.set("access.acl_file", &line.item, copy);
    setup.set("access.partial_subscription", &line.item, "filter");
    Ok(())
}
