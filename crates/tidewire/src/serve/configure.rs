//! Changes of the configuration over the API: which keys they may be of, what they would do, and that they are written to `runtime.toml`
//! before they are taken over. A change is checked as the whole configuration that it leads to, with everything else as it is on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use api::{ConfigAdmin, ConfigChanges, ConfigDifference, ConfigError, ConfigValue};

use super::backups::Backups;
use super::reload::Reloader;
use super::restart::Restart;
use super::translate;
use crate::config::address::overlap;
use crate::config::files::chain;
use crate::config::key::Key;
use crate::config::option::{Apply, Kind, OptionDef};
use crate::config::schema::{self, Lookup};
use crate::config::{self, Diagnostic, Effective, Loaded, Origin, Sources, raw, runtime};

pub struct Configure {
    reloader: Arc<Reloader>,
    backups: Arc<Backups>,
    restart: Restart,
}

/// A change that is good.
struct Planned {
    document: toml::Table,
    loaded: Loaded,
    differences: Vec<ConfigDifference>,
}

impl Configure {
    pub fn new(reloader: Arc<Reloader>, backups: Arc<Backups>, restart: Restart) -> Configure {
        Configure {
            reloader,
            backups,
            restart,
        }
    }

    fn check_listeners(&self, loaded: &Loaded) -> Result<(), (String, String)> {
        let started = &self.reloader.started().config;
        check_listeners(&loaded.config, started, &self.reloader.listeners())
    }

    fn prepare(&self, changes: &ConfigChanges) -> Result<Planned, ConfigError> {
        let (sources, data_dir) = (self.reloader.sources(), self.reloader.data_dir());
        let present = config::load(sources).map_err(|found| files(in_one_line(&found)))?;
        let mut document =
            runtime::read(data_dir).map_err(|e| files(format!("{}: {}", raw::RUNTIME_FILE, chain(&e))))?;
        let mut errors = Vec::new();
        for (text, value) in changes {
            match change(&present, text, value.as_deref()) {
                Err(because) => errors.push((text.clone(), because)),
                Ok((key, None)) => drop(runtime::remove(&mut document, &key.0)),
                Ok((key, Some(value))) => {
                    runtime::set(&mut document, &key, value).map_err(|e| files(chain(&e)))?;
                }
            }
        }
        if !errors.is_empty() {
            return Err(ConfigError::Rejected(errors));
        }
        let loaded = load_with(sources, &document, changes)?;
        self.reloader
            .check(&loaded)
            .map_err(|because| rejected(changes, because))?;
        if changes.keys().any(|key| is_of_listener(key)) {
            self.check_listeners(&loaded)
                .map_err(|(key, because)| match changes.contains_key(&key) {
                    true => ConfigError::Rejected(vec![(key, because)]),
                    false => rejected(changes, format!("{key}: {because}")),
                })?;
        }
        let differences = differences(&self.reloader.in_force(), &loaded.effective, changes);
        Ok(Planned {
            document,
            loaded,
            differences,
        })
    }
}

impl ConfigAdmin for Configure {
    fn plan(&self, changes: &ConfigChanges) -> Result<Vec<ConfigDifference>, ConfigError> {
        let changes = in_one_spelling(changes)?;
        let _one_at_a_time = self.reloader.lock();
        Ok(self.prepare(&changes)?.differences)
    }

    fn apply(
        &self,
        changes: &ConfigChanges,
        tell: &dyn Fn(Vec<ConfigValue>),
    ) -> Result<Vec<ConfigDifference>, ConfigError> {
        let changes = in_one_spelling(changes)?;
        let _one_at_a_time = self.reloader.lock();
        let planned = self.prepare(&changes)?;
        let storage = |e: std::io::Error| ConfigError::Storage { because: chain(&e) };
        runtime::write(self.reloader.data_dir(), &planned.document).map_err(storage)?;
        let failures = self
            .reloader
            .take_over(planned.loaded)
            .map_err(|because| ConfigError::Workers { because })?;
        tell(self.reloader.shown());
        if failures.is_empty() {
            return Ok(planned.differences);
        }
        let because = failures.join("; ");
        Err(ConfigError::Workers { because })
    }

    fn restart(&self) -> Result<(), ConfigError> {
        let _one_at_a_time = self.reloader.lock();
        self.backups
            .check_restart()
            .map_err(|because| ConfigError::Busy { because })?;
        let loaded = config::load(self.reloader.sources()).map_err(|found| files(in_one_line(&found)))?;
        self.reloader.check(&loaded).map_err(files)?;
        self.check_listeners(&loaded)
            .map_err(|(key, because)| files(format!("{key}: {because}")))?;
        tracing::warn!("starting anew, as asked over the API");
        self.restart.ask().map_err(files)
    }
}

fn files(because: String) -> ConfigError {
    ConfigError::Files { because }
}

/// One value of the configuration as the API shows it.
pub fn value(value: &Effective) -> ConfigValue {
    ConfigValue {
        key: value.key.to_string(),
        value: value.value.to_string(),
        origin: value.origin.to_string(),
        is_default: value.origin == Origin::Default,
        is_pinned: value.origin.is_pinned(),
        needs_restart: value.def.apply == Apply::Restart,
        description: value
            .def
            .doc
            .iter()
            .map(|line| line.trim())
            .collect::<Vec<_>>()
            .join(" "),
        type_name: (value.def.kind.type_name)(),
        choices: all_choices(&value.def.kind),
        fixed_because: fixed_because(value),
        is_runtime: matches!(value.origin, Origin::Runtime { .. }),
        until_restart: None,
    }
}

/// Of what waits for a restart, those of listeners are changed here: they are tried before, and what they lock out is never the console.
fn is_of_listener(key: &str) -> bool {
    key.starts_with("listeners.")
}

/// An option of a listener that is not there yet.
fn of_new_listener(key: &Key) -> Option<&'static OptionDef> {
    match schema::lookup(&key.words()) {
        Lookup::Option(def) if is_of_listener(&key.to_string()) => Some(def),
        _ => None,
    }
}

/// Whether the next start could listen there, as far as can be told now: the key that stands in the way, and why.
fn check_listeners(
    config: &config::Config,
    started: &config::Config,
    running: &[net::ListenerInfo],
) -> Result<(), (String, String)> {
    let own = running.iter().filter(|one| !one.is_handed_over).map(|one| one.address);
    let own: Vec<SocketAddr> = own.collect();
    let api = [
        ("api.bind", config.api_bind(), started.api_bind()),
        ("platform.bind", config.platform_bind(), started.platform_bind()),
    ];
    let api = api
        .into_iter()
        .filter_map(|(key, bind, before)| Some((key.to_owned(), bind?, bind == before)));
    let listeners = config.listeners.iter();
    let listeners = listeners.map(|one| (format!("listeners.{}.bind", one.label()), &one.options.bind, false));
    let mut tried: Vec<(SocketAddr, String)> = Vec::new();
    for (key, bind, is_listened_on) in api.chain(listeners) {
        let failed = |because: String| (key.clone(), because);
        let address = translate::bind_address(&key, bind).map_err(failed)?;
        if let Some((_, other)) = tried.iter().find(|(taken, _)| is_same_place(*taken, address)) {
            return Err(failed(format!("{address} is taken by `{other}`")));
        }
        // What this server listens on itself will be free; what is left to try is whether this machine has the address.
        let is_own = is_listened_on || own.iter().any(|own| is_same_place(*own, address));
        let free = if is_own {
            SocketAddr::new(address.ip(), 0)
        } else {
            address
        };
        TcpListener::bind(free).map_err(|error| failed(format!("{address} cannot be listened on: {error}")))?;
        tried.push((address, key));
    }
    Ok(())
}

fn is_same_place(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() != 0 && one.port() == other.port() && overlap(one.ip(), other.ip())
}

/// Every value that there is; empty where there are others, too: `"off"` beside any duration.
fn all_choices(kind: &Kind) -> Vec<String> {
    match (kind.has_all_choices)() {
        true => (kind.choices)().into_iter().map(str::to_owned).collect(),
        false => Vec::new(),
    }
}

/// What the API leaves to the files. A path is among it: whoever is an administrator of the console is not the owner of the machine's files.
fn fixed_because(value: &Effective) -> Option<String> {
    match value.origin.is_pinned() {
        true => Some(format!("it is pinned by {}", value.origin)),
        false => not_here_because(&value.key, value.def).map(str::to_owned),
    }
}

fn not_here_because(key: &Key, def: &OptionDef) -> Option<&'static str> {
    let type_name = (def.kind.type_name)();
    if def.apply == Apply::Restart && !is_of_listener(&key.to_string()) {
        Some("it is read at the start only: change it in the file and start the server again")
    } else if def.kind.is_secret {
        Some("it is a secret, and stands in the file or in the environment")
    } else if type_name == "path" {
        Some("it names a file of the server")
    } else if type_name.contains("table") {
        Some("it has a page of its own")
    } else if def.is_map_entry() {
        Some("it is set in the configuration file")
    } else {
        None
    }
}

/// Each key as the reference spells it: `mqtt."max_qos"` is `mqtt.max_qos`. What is no key stays as it is, to be refused under its name.
fn in_one_spelling(changes: &ConfigChanges) -> Result<ConfigChanges, ConfigError> {
    let mut all = ConfigChanges::new();
    for (text, value) in changes {
        let key = Key::parse(text).map_or_else(|| text.clone(), |key| key.to_string());
        if all.insert(key, value.clone()).is_some() {
            let because = "is there twice, in two spellings".to_owned();
            return Err(ConfigError::Rejected(vec![(text.clone(), because)]));
        }
    }
    Ok(all)
}

/// The key and what will stand in `runtime.toml`.
fn change(present: &Loaded, text: &str, value: Option<&str>) -> Result<(Key, Option<toml::Value>), String> {
    let key = Key::parse(text).ok_or("is no key: expected words with dots between them, such as `mqtt.max_qos`")?;
    let known = present.effective.iter().find(|value| value.key == key);
    let new = || of_new_listener(&key).filter(|_| value.is_some());
    let (def, fixed) = match known {
        Some(known) => (known.def, fixed_because(known)),
        None => {
            let def = new().ok_or("there is no such value: GET /api/v1/configuration lists all")?;
            (def, not_here_because(&key, def).map(str::to_owned))
        }
    };
    if let Some(because) = fixed {
        return Err(format!("cannot be changed here: {because}"));
    }
    let value = match value {
        Some(value) => Some((def.kind.normalize)(def, &raw::text_to_raw(value))?),
        None => None,
    };
    Ok((key, value))
}

/// The configuration as it will be.
fn load_with(sources: &Sources, document: &toml::Table, changes: &ConfigChanges) -> Result<Loaded, ConfigError> {
    let sources = Sources {
        runtime: Some(document.to_string()),
        ..sources.clone()
    };
    config::load(&sources).map_err(|found| {
        let is_of_change = |one: &Diagnostic| one.key.as_ref().is_some_and(|key| changes.contains_key(key));
        let (own, others): (Vec<_>, Vec<_>) = found.into_iter().partition(is_of_change);
        if own.is_empty() {
            // It was good before, so that the change has made it so.
            return rejected(changes, in_one_line(&others));
        }
        let error = |one: Diagnostic| (one.key.unwrap_or_default(), one.message);
        ConfigError::Rejected(own.into_iter().map(error).collect())
    })
}

fn rejected(changes: &ConfigChanges, because: String) -> ConfigError {
    let first = changes.keys().next().cloned().unwrap_or_default();
    ConfigError::Rejected(vec![(first, because)])
}

fn in_one_line(found: &[Diagnostic]) -> String {
    let all: Vec<String> = found.iter().map(Diagnostic::to_string).collect();
    all.join("; ")
}

/// In the order of the reference; what is not there any more comes last. Defaults that come and go with a listener are none.
fn differences(before: &[Effective], after: &[Effective], changes: &ConfigChanges) -> Vec<ConfigDifference> {
    let old: BTreeMap<&Key, &Effective> = before.iter().map(|value| (&value.key, value)).collect();
    let new: BTreeSet<&Key> = after.iter().map(|value| &value.key).collect();
    let shown = |value: &Effective| value.value.to_string();
    let difference = |key: &Key, before: Option<&Effective>, after: Option<&Effective>| {
        let either = after.or(before)?;
        let key = key.to_string();
        Some(ConfigDifference {
            is_asked_for: changes.contains_key(&key),
            key,
            before: before.map(shown),
            after: after.map(shown),
            origin: after.map_or_else(|| "default".to_owned(), |value| value.origin.to_string()),
            needs_restart: either.def.apply == Apply::Restart,
        })
    };
    // What else is in `runtime.toml` was put in force by whoever wrote it there: access rules.
    let is_known =
        |one: &Effective| matches!(one.origin, Origin::Runtime { .. }) && !changes.contains_key(&one.key.to_string());
    let is_other = |one: &&Effective| {
        let is_changed = |before: &&Effective| before.value != one.value;
        old.get(&one.key).map_or(one.origin != Origin::Default, is_changed) && !is_known(one)
    };
    let changed = after.iter().filter(is_other);
    let changed = changed.filter_map(|one| difference(&one.key, old.get(&one.key).copied(), Some(one)));
    let gone = before
        .iter()
        .filter(|one| !new.contains(&one.key) && one.origin != Origin::Default);
    changed
        .chain(gone.filter_map(|one| difference(&one.key, Some(one), None)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::value::{Limit, Switch, Unset};

    #[test]
    fn only_all_the_choices_there_are_are_offered() {
        assert_eq!(all_choices(&Kind::of::<Limit<u32>>()), Vec::<String>::new());
        assert_eq!(all_choices(&Kind::of::<Switch<u16>>()), Vec::<String>::new());
        assert_eq!(all_choices(&Kind::of::<Unset<String>>()), Vec::<String>::new());
        assert_eq!(all_choices(&Kind::of::<mqtt::QoS>()), ["0", "1", "2"]);
        assert_eq!(all_choices(&Kind::of::<Switch<mqtt::QoS>>()), ["0", "1", "2", "off"]);
    }

    #[test]
    fn a_key_has_one_spelling_and_is_there_once() {
        let of = |keys: &[&str]| {
            keys.iter()
                .map(|key| ((*key).to_owned(), None))
                .collect::<ConfigChanges>()
        };
        let keys = in_one_spelling(&of(&["mqtt.\"max_qos\"", "a b."])).expect("two keys");
        assert!(keys.contains_key("mqtt.max_qos"), "{keys:?}");
        assert!(in_one_spelling(&of(&["mqtt.\"max_qos\"", "mqtt.max_qos"])).is_err());
    }
}
