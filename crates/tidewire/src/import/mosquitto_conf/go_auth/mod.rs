//! The plug-in mosquitto-go-auth, which asks other systems about users and topics.
//!
//! Its backends are alternatives: a client is admitted, and an action is allowed, if one of them says so. So a backend
//! that is left out only narrows access. Actions that no backend allows are denied.

mod backends;
mod files;
mod query;

use std::collections::{BTreeMap, BTreeSet};

use auth::{AccessAction, AccessRule};
use toml::Value;

use super::{Conf, ConfLine, Sections};
use crate::import::access::ALL_TOPICS;
use crate::import::report::Outcome;
use crate::import::setup::Setup;

/// Beginnings of options that Mosquitto passes to plug-ins.
const PREFIXES: [&str; 2] = ["auth_opt_", "plugin_opt_"];

/// Backends, and the prefixes of their options.
const BACKENDS: [(&str, &str); 12] = [
    ("postgres", "pg"),
    ("jwt", "jwt"),
    ("redis", "redis"),
    ("http", "http"),
    ("files", "files"),
    ("mysql", "mysql"),
    ("sqlite", "sqlite"),
    ("mongo", "mongo"),
    ("plugin", "plugin"),
    ("grpc", "grpc"),
    ("js", "js"),
    ("ldap", "ldap"),
];

/// Options of the whole plug-in that are not imported, by their beginnings.
const OTHERS: [(&str, &str); 7] = [
    (
        "cache",
        "each provider has a cache of its own: cache_allowed, cache_denied",
    ),
    (
        "auth_",
        "each provider has a cache of its own: cache_allowed, cache_denied",
    ),
    ("acl_", "cache_ttl of each source says how long rules are stored"),
    ("log_", "set log.level and log.file"),
    (
        "retry_count",
        "a failed question is not repeated: the client connects again",
    ),
    ("exhaust_backend_first", "it has no effect on decisions"),
    ("prefixes", "check_prefix is off"),
];

/// Returns the name of an option of a plug-in, without its prefix.
pub fn option_name(key: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| key.strip_prefix(prefix))
}

/// The options of the plug-in by their names. The last line with a name counts.
pub struct Options<'c, 'l, 'a> {
    conf: &'c Conf<'c>,
    by_name: BTreeMap<&'a str, &'l ConfLine<'a>>,
    /// Lines that a later one replaces.
    replaced: Vec<&'l ConfLine<'a>>,
}

impl<'c, 'l, 'a> Options<'c, 'l, 'a> {
    pub fn new(conf: &'c Conf<'c>, found: &'l Sections<'a>) -> Options<'c, 'l, 'a> {
        let mut options = Options {
            conf,
            by_name: BTreeMap::new(),
            replaced: Vec::new(),
        };
        for line in found.global.iter().chain(found.listeners.iter().flatten()) {
            if let Some(name) = option_name(line.key) {
                options.replaced.extend(options.by_name.insert(name, line));
            }
        }
        options
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.by_name.get(name).map(|line| line.value)
    }

    fn required(&self, name: &str) -> Result<&'a str, String> {
        let value = self.get(name).filter(|value| !value.is_empty());
        value.ok_or_else(|| format!("the option {name} is missing"))
    }

    fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.trim() == "true")
    }

    fn note(&self, name: &str, outcome: Outcome) {
        if let Some(line) = self.by_name.get(name) {
            self.conf.add(line, outcome);
        }
    }

    /// Returns the backends in their order, with the prefixes of their options.
    fn backends(&self) -> Result<Vec<(&'static str, &'static str)>, String> {
        let names = self.get("backends").unwrap_or_default().replace(' ', "");
        let known = |name: &str| {
            let known = BACKENDS.iter().find(|(known, _)| *known == name);
            known
                .copied()
                .ok_or_else(|| format!("it has the unknown backend {name:?}"))
        };
        match names.is_empty() {
            true => Err("the option backends is missing".to_owned()),
            false => names.split(',').map(known).collect(),
        }
    }

    /// Returns whether a backend does a check: `user`, `acl` or `superuser`.
    fn has_check(&self, prefix: &str, check: &str) -> bool {
        if check == "superuser" && self.is_true("disable_superuser") {
            return false;
        }
        match self.get(&format!("{prefix}_register")) {
            Some(checks) => checks.split(',').any(|one| one.trim() == check),
            None => true,
        }
    }

    /// Returns why the plug-in cannot be imported. Then the import denies everything.
    pub fn problem(&self, found: &Sections<'_>, other: Option<&str>) -> Option<String> {
        if let Some(other) = other {
            return Some(format!("mosquitto-go-auth cannot be imported together with {other}"));
        }
        if found.is_per_listener() {
            return Some("mosquitto-go-auth cannot be imported with per_listener_settings".to_owned());
        }
        for option in ["check_prefix", "use_clientid_as_username"] {
            if self.is_true(option) {
                return Some(format!("mosquitto-go-auth cannot be imported with {option}"));
            }
        }
        let backends = self.backends();
        backends
            .err()
            .map(|problem| format!("mosquitto-go-auth cannot be imported: {problem}"))
    }

    /// Notes that nothing is imported.
    pub fn refuse_all(&self, because: &str) {
        for line in self.by_name.values().chain(&self.replaced) {
            self.conf.refuse(line, because);
        }
    }
}

/// The options that a backend becomes. They are set if all of them are valid.
pub struct Target {
    /// Section of the options.
    key: &'static str,
    /// Name in `access.providers` or `access.sources`.
    kind: &'static str,
    options: Vec<(&'static str, Value)>,
    secrets: Vec<(&'static str, Value)>,
    /// Options of the plug-in with their outcomes.
    rows: Vec<(String, Outcome)>,
}

impl Target {
    fn new(key: &'static str, kind: &'static str) -> Target {
        Target {
            key,
            kind,
            options: Vec::new(),
            secrets: Vec::new(),
            rows: Vec::new(),
        }
    }

    fn set(&mut self, option: &'static str, value: impl Into<Value>) {
        self.options.push((option, value.into()));
    }

    fn used(&mut self, name: impl Into<String>, option: &str) {
        let to = format!("{}.{option}", self.key);
        self.rows.push((name.into(), Outcome::Imported(to)));
    }

    fn changed(&mut self, name: impl Into<String>, option: &str, because: &str) {
        let (to, because) = (format!("{}.{option}", self.key), because.to_owned());
        self.rows.push((name.into(), Outcome::Changed { to, because }));
    }

    fn put(&mut self, name: impl Into<String>, option: &'static str, value: impl Into<Value>) {
        self.set(option, value);
        self.used(name, option);
    }

    fn secret(&mut self, name: impl Into<String>, option: &'static str, value: impl Into<Value>) {
        self.secrets.push((option, value.into()));
        self.used(name, option);
    }

    fn install(self, options: &Options<'_, '_, '_>, setup: &mut Setup) {
        for (option, value) in self.options {
            setup.set(&format!("{}.{option}", self.key), "auth_opt_backends", value);
        }
        for (option, value) in self.secrets {
            setup.set_secret(&format!("{}.{option}", self.key), "auth_opt_backends", value);
        }
        for (name, outcome) in self.rows {
            options.note(&name, outcome);
        }
    }
}

/// The access that the backends allow.
#[derive(Default)]
struct Allowed {
    /// A backend without rules allows everything.
    everything: bool,
    rules: Vec<AccessRule>,
    sources: Vec<&'static str>,
}

/// Imports the backends. Notes the outcome of each option.
pub fn import(options: &Options<'_, '_, '_>, setup: &mut Setup) -> Result<(), String> {
    let backends = options.backends()?;
    let mut providers: Vec<&'static str> = Vec::new();
    let mut allowed = Allowed::default();
    let mut seen = BTreeSet::new();
    for (backend, prefix) in backends.iter().copied() {
        if !seen.insert(backend) {
            continue;
        }
        if backend == "files" {
            files::import(options, backends.len() == 1, &mut providers, &mut allowed, setup)?;
        } else if let Err(because) = self::backend(options, (backend, prefix), &mut providers, &mut allowed, setup) {
            refuse_backend(
                options,
                prefix,
                &format!("{because}. The backend {backend} is left out"),
            );
        }
        refuse_backend(options, prefix, "tidewire has no such option");
        options.note(
            &format!("{prefix}_register"),
            Outcome::Imported("access.providers".to_owned()),
        );
    }
    if !providers.is_empty() && providers != ["users"] {
        setup.set("access.providers", "auth_opt_backends", providers);
    }
    options.note("backends", Outcome::Imported("access.providers".to_owned()));
    access(allowed, setup)?;
    finish(options);
    Ok(())
}

/// Sets the rules and the sources. The first ones that allow an action decide.
fn access(allowed: Allowed, setup: &mut Setup) -> Result<(), String> {
    let mut sources = Vec::new();
    if allowed.everything {
        setup.add_rule(AccessRule::allow(AccessAction::All, &ALL_TOPICS))?;
        sources.push("rules");
    } else {
        if !allowed.rules.is_empty() {
            sources.push("rules");
            setup.add_rules(allowed.rules)?;
        }
        sources.extend(allowed.sources);
    }
    setup.set("access.no_match", "auth_opt_backends", "deny");
    match sources.as_slice() {
        // Without rules and other sources, `no_match` has no effect.
        [] => setup.add_rule(AccessRule::deny(AccessAction::All, &ALL_TOPICS))?,
        ["rules"] => {}
        _ => setup.set("access.sources", "auth_opt_backends", sources.clone()),
    }
    Ok(())
}

fn backend(
    options: &Options<'_, '_, '_>,
    (backend, prefix): (&str, &str),
    providers: &mut Vec<&'static str>,
    allowed: &mut Allowed,
    setup: &mut Setup,
) -> Result<(), String> {
    let mut is_used = false;
    let mut problem = None;
    if options.has_check(prefix, "user") {
        match backends::provider(options, backend) {
            Ok(target) => {
                providers.push(target.kind);
                target.install(options, setup);
                is_used = true;
            }
            Err(because) => problem = Some(because),
        }
    }
    if options.has_check(prefix, "acl") {
        match backends::source(options, backend) {
            Ok(None) => allowed.everything = true,
            Ok(Some(target)) => {
                allowed.sources.push(target.kind);
                target.install(options, setup);
                is_used = true;
            }
            Err(because) => {
                refuse_acl(options, prefix, &because);
                problem.get_or_insert(because);
            }
        }
    }
    match (is_used, problem) {
        (false, Some(because)) => Err(because),
        _ => Ok(()),
    }
}

/// Notes the options about topics. Actions that no other backend allows are denied.
fn refuse_acl(options: &Options<'_, '_, '_>, prefix: &str, because: &str) {
    for name in [
        "aclquery",
        "aclcheck_uri",
        "acl_topic_pattern_attribute",
        "acl_acc_attribute",
        "acl_path",
    ] {
        let because = format!("{because}. Its topics are denied: write rules for them to access.rules");
        options.note(&format!("{prefix}_{name}"), Outcome::NotSupported { because });
    }
}

fn refuse_backend(options: &Options<'_, '_, '_>, prefix: &str, because: &str) {
    let begin = format!("{prefix}_");
    for (name, line) in &options.by_name {
        if name.starts_with(&begin) && !name.ends_with("_register") {
            options.conf.refuse(line, because);
        }
    }
}

/// Notes the options of the whole plug-in, of other backends, and lines that are replaced.
fn finish(options: &Options<'_, '_, '_>) {
    for line in &options.replaced {
        options.conf.refuse(line, "a later line replaces it");
    }
    for option in [
        "check_prefix",
        "strip_prefix",
        "use_clientid_as_username",
        "disable_superuser",
    ] {
        options.note(option, Outcome::Imported("as in tidewire".to_owned()));
    }
    for (name, line) in &options.by_name {
        let other = OTHERS.iter().find(|(begin, _)| name.starts_with(begin));
        let backend = BACKENDS.iter().find(|(_, prefix)| {
            let rest = name.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.starts_with('_'))
        });
        let because = match (other, backend) {
            (Some((_, because)), _) => (*because).to_owned(),
            (None, Some((backend, _))) => format!("the backend {backend} is not in auth_opt_backends"),
            (None, None) if name.starts_with("hasher") => {
                "the hashes contain it, or their backend is left out".to_owned()
            }
            (None, None) => "tidewire has no such option".to_owned(),
        };
        options.conf.refuse(line, &because);
    }
}

#[cfg(test)]
mod tests;
