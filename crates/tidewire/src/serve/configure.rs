//! Changes of the configuration through the API: which keys can be changed, which effect a change has, and the file
//! `runtime.toml`, which is written before a change takes effect. A change is checked as the complete configuration
//! that results from it, together with the files on disk.

mod access_options;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use api::{ConfigAdmin, ConfigChangeError, ConfigChanges, ConfigDifference, ConfigValue};

use super::backups::NodeBackups;
use super::providers::check_access;
use super::reload::Reloader;
use super::restart::RestartRequest;
use crate::config::address::overlap;
use crate::config::files::chain;
use crate::config::key::OptionKey;
use crate::config::option::{Apply, Kind, OptionDef};
use crate::config::schema::{self, SchemaLookup};
use crate::config::{
    Config, ConfigDiagnostic, EffectiveOption, LoadedConfig, RUNTIME_FILE, RuntimeText, ValueOrigin, raw, runtime,
};

pub struct ConfigChanger {
    reloader: Arc<Reloader>,
    backups: Arc<NodeBackups>,
    restart: RestartRequest,
}

/// A valid change.
struct PlannedChange {
    document: toml::Table,
    loaded: LoadedConfig,
    differences: Vec<ConfigDifference>,
}

impl ConfigChanger {
    pub fn new(reloader: Arc<Reloader>, backups: Arc<NodeBackups>, restart: RestartRequest) -> ConfigChanger {
        ConfigChanger {
            reloader,
            backups,
            restart,
        }
    }

    /// Returns the present configuration, and the contents of `runtime.toml`.
    fn load(&self) -> Result<(LoadedConfig, toml::Table), ConfigChangeError> {
        let invalid = |found: Vec<ConfigDiagnostic>| files(join_diagnostics(&found));
        let runtime = self.reloader.read_runtime_file().map_err(invalid)?;
        let text = runtime.text.clone();
        let loaded = self.reloader.load_with(runtime).map_err(invalid)?;
        let document = text.parse();
        let document =
            document.map_err(|error: toml::de::Error| files(format!("{RUNTIME_FILE}: {}", chain(&error))))?;
        Ok((loaded, document))
    }

    /// Returns the configuration after the change.
    fn load_with(&self, document: &toml::Table, changes: &ConfigChanges) -> Result<LoadedConfig, ConfigChangeError> {
        let runtime = RuntimeText {
            path: self.reloader.data_dir().join(RUNTIME_FILE),
            text: document.to_string(),
        };
        self.reloader.load_with(runtime).map_err(|found| {
            let is_of_change = |one: &ConfigDiagnostic| one.key.as_ref().is_some_and(|key| changes.contains_key(key));
            let (own, others): (Vec<_>, Vec<_>) = found.into_iter().partition(is_of_change);
            if own.is_empty() {
                // The configuration was valid before, so the change causes the error.
                return rejected(changes, join_diagnostics(&others));
            }
            let error = |one: ConfigDiagnostic| (one.key.unwrap_or_default(), one.message);
            ConfigChangeError::Rejected(own.into_iter().map(error).collect())
        })
    }

    fn check_listeners(&self, loaded: &LoadedConfig) -> Result<(), (String, String)> {
        let started = &self.reloader.started().config;
        check_listeners(&loaded.config, started, &self.reloader.listeners())
    }

    fn prepare(&self, changes: &ConfigChanges) -> Result<PlannedChange, ConfigChangeError> {
        let (present, mut document) = self.load()?;
        let mut errors = Vec::new();
        for (text, value) in changes {
            match change(&present, text, value.as_deref()) {
                Err(reason) => errors.push((text.clone(), reason)),
                Ok((key, None)) => drop(runtime::remove(&mut document, &key.0)),
                Ok((key, Some(value))) => {
                    runtime::set(&mut document, &key, value).map_err(|e| files(chain(&e)))?;
                }
            }
        }
        if !errors.is_empty() {
            return Err(ConfigChangeError::Rejected(errors));
        }
        let loaded = self.load_with(&document, changes)?;
        self.reloader
            .check(&loaded)
            .map_err(|reason| rejected(changes, reason))?;
        if changes.keys().any(|key| is_of_listener(key)) {
            self.check_listeners(&loaded)
                .map_err(|(key, reason)| match changes.contains_key(&key) {
                    true => ConfigChangeError::Rejected(vec![(key, reason)]),
                    false => rejected(changes, format!("{key}: {reason}")),
                })?;
        }
        let differences = differences(&self.reloader.applied_options(), &loaded.effective, changes);
        Ok(PlannedChange {
            document,
            loaded,
            differences,
        })
    }
}

impl ConfigAdmin for ConfigChanger {
    fn plan(&self, changes: &ConfigChanges) -> Result<Vec<ConfigDifference>, ConfigChangeError> {
        let changes = normalize_keys(changes)?;
        let _one_at_a_time = self.reloader.lock();
        Ok(self.prepare(&changes)?.differences)
    }

    fn apply(
        &self,
        changes: &ConfigChanges,
        tell: &dyn Fn(Vec<ConfigValue>),
    ) -> Result<Vec<ConfigDifference>, ConfigChangeError> {
        let changes = normalize_keys(changes)?;
        let _one_at_a_time = self.reloader.lock();
        let planned = self.prepare(&changes)?;
        let storage = |e: std::io::Error| ConfigChangeError::Storage { reason: chain(&e) };
        runtime::write(self.reloader.data_dir(), &planned.document).map_err(storage)?;
        let failures = self
            .reloader
            .apply(planned.loaded)
            .map_err(|reason| ConfigChangeError::Workers { reason })?;
        tell(self.reloader.shown());
        if failures.is_empty() {
            return Ok(planned.differences);
        }
        let reason = failures.join("; ");
        Err(ConfigChangeError::Workers { reason })
    }

    fn check_access_options(&self, options: &str) -> Result<Vec<(String, String)>, ConfigChangeError> {
        let (new, changes) = access_options::parse(options)?;
        let one_at_a_time = self.reloader.lock();
        // The options are for the file, but no run-time change can set one of them.
        let (_, mut document) = self.load()?;
        // Nothing is written. The files that the options name may be slow.
        drop(one_at_a_time);
        access_options::merge(&mut document, new);
        let loaded = self.load_with(&document, &changes)?;
        let unnamed = |reason: String| ConfigChangeError::Rejected(vec![(String::new(), reason)]);
        self.reloader.check(&loaded).map_err(unnamed)?;
        check_access(&loaded.config).map_err(unnamed)?;
        let is_overridden = |one: &&EffectiveOption| {
            changes.contains_key(&one.key.to_string()) && !matches!(one.origin, ValueOrigin::Runtime { .. })
        };
        let overridden = loaded.effective.iter().filter(is_overridden);
        Ok(overridden
            .map(|one| (one.key.to_string(), one.origin.to_string()))
            .collect())
    }

    fn restart(&self) -> Result<(), ConfigChangeError> {
        let _one_at_a_time = self.reloader.lock();
        self.backups
            .check_restart()
            .map_err(|reason| ConfigChangeError::Busy { reason })?;
        let loaded = self.reloader.load_for_start();
        let loaded = loaded.map_err(|found| files(join_diagnostics(&found)))?;
        self.reloader.check(&loaded).map_err(files)?;
        self.check_listeners(&loaded)
            .map_err(|(key, reason)| files(format!("{key}: {reason}")))?;
        tracing::warn!("restarting, requested through the API");
        self.restart.request().map_err(files)
    }
}

fn files(reason: String) -> ConfigChangeError {
    ConfigChangeError::Files { reason }
}

/// Returns one value of the configuration as the API shows it.
pub fn value(value: &EffectiveOption) -> ConfigValue {
    ConfigValue {
        key: value.key.to_string(),
        value: value.value.to_string(),
        origin: value.origin.to_string(),
        is_default: value.origin == ValueOrigin::Default,
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
        fixed_reason: fixed_reason(value),
        is_runtime: matches!(value.origin, ValueOrigin::Runtime { .. }),
        value_in_force: None,
    }
}

/// The API can change options of listeners although they need a restart: they are tested before, and cannot lock out
/// the console.
fn is_of_listener(key: &str) -> bool {
    key.starts_with("listeners.")
}

/// An option of a new listener.
fn of_new_listener(key: &OptionKey) -> Option<&'static OptionDef> {
    match schema::lookup(&key.words()) {
        SchemaLookup::Option(def) if is_of_listener(&key.to_string()) => Some(def),
        _ => None,
    }
}

/// Checks whether the next start could listen on the addresses, as far as that is known now. Returns the key of the
/// conflict, and why.
fn check_listeners(config: &Config, started: &Config, running: &[net::ListenerInfo]) -> Result<(), (String, String)> {
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
        let failed = |reason: String| (key.clone(), reason);
        let address = bind.resolve(&key).map_err(failed)?;
        if let Some((_, other)) = tried.iter().find(|(taken, _)| is_same_address(*taken, address)) {
            return Err(failed(format!("{address} is already used by `{other}`")));
        }
        // An address of this server will be free. The remaining test is whether the machine has the address.
        let is_own = is_listened_on || own.iter().any(|own| is_same_address(*own, address));
        let free = if is_own {
            SocketAddr::new(address.ip(), 0)
        } else {
            address
        };
        TcpListener::bind(free).map_err(|error| failed(format!("cannot listen on {address}: {error}")))?;
        tried.push((address, key));
    }
    Ok(())
}

fn is_same_address(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() != 0 && one.port() == other.port() && overlap(one.ip(), other.ip())
}

/// Returns all values of an option. An empty list means that there are others, for example `"off"` or any duration.
fn all_choices(kind: &Kind) -> Vec<String> {
    match (kind.has_all_choices)() {
        true => (kind.choices)().into_iter().map(str::to_owned).collect(),
        false => Vec::new(),
    }
}

/// Returns why the API cannot change an option. Paths are excluded, because an administrator of the console does not
/// own the files of the machine.
fn fixed_reason(value: &EffectiveOption) -> Option<String> {
    match value.origin.is_pinned() {
        true => Some(format!("it is pinned by {}", value.origin)),
        false => not_editable_reason(&value.key, value.def).map(str::to_owned),
    }
}

fn not_editable_reason(key: &OptionKey, def: &OptionDef) -> Option<&'static str> {
    let type_name = (def.kind.type_name)();
    if def.apply == Apply::Restart && !is_of_listener(&key.to_string()) {
        Some("it takes effect at the start only: change it in the file and restart the server")
    } else if def.kind.is_secret {
        Some("it is a secret: set it in the file or in the environment")
    } else if type_name == "path" {
        Some("it names a file of the server")
    } else if type_name.contains("table") {
        Some("it has an endpoint of its own")
    } else if def.is_map_entry() {
        Some("it is set in the configuration file")
    } else {
        None
    }
}

/// Spells each key as the reference does: `mqtt."max_qos"` becomes `mqtt.max_qos`. An invalid key stays as it is and
/// is rejected under its name.
fn normalize_keys(changes: &ConfigChanges) -> Result<ConfigChanges, ConfigChangeError> {
    let mut all = ConfigChanges::new();
    for (text, value) in changes {
        let key = OptionKey::parse(text).map_or_else(|| text.clone(), |key| key.to_string());
        if all.insert(key, value.clone()).is_some() {
            let reason = "is given twice, in two spellings".to_owned();
            return Err(ConfigChangeError::Rejected(vec![(text.clone(), reason)]));
        }
    }
    Ok(all)
}

/// Returns the key and the value for `runtime.toml`.
fn change(present: &LoadedConfig, text: &str, value: Option<&str>) -> Result<(OptionKey, Option<toml::Value>), String> {
    let key = OptionKey::parse(text).ok_or("is not a key: expected words separated by dots, such as `mqtt.max_qos`")?;
    let known = present.effective.iter().find(|value| value.key == key);
    let new = || of_new_listener(&key).filter(|_| value.is_some());
    let (def, fixed) = match known {
        Some(known) => (known.def, fixed_reason(known)),
        None => {
            let def = new().ok_or("unknown key: GET /api/v1/configuration lists all keys")?;
            (def, not_editable_reason(&key, def).map(str::to_owned))
        }
    };
    if let Some(reason) = fixed {
        return Err(format!("cannot be changed here: {reason}"));
    }
    let value = match value {
        Some(value) => Some((def.kind.normalize)(def, &raw::text_to_raw(value))?),
        None => None,
    };
    Ok((key, value))
}

fn rejected(changes: &ConfigChanges, reason: String) -> ConfigChangeError {
    let first = changes.keys().next().cloned().unwrap_or_default();
    ConfigChangeError::Rejected(vec![(first, reason)])
}

fn join_diagnostics(found: &[ConfigDiagnostic]) -> String {
    let all: Vec<String> = found.iter().map(ConfigDiagnostic::to_string).collect();
    all.join("; ")
}

/// Returns the values in the order of the reference; removed ones come last. Defaults that appear and disappear with a
/// listener do not count.
fn differences(
    before: &[EffectiveOption],
    after: &[EffectiveOption],
    changes: &ConfigChanges,
) -> Vec<ConfigDifference> {
    let old: BTreeMap<&OptionKey, &EffectiveOption> = before.iter().map(|value| (&value.key, value)).collect();
    let new: BTreeSet<&OptionKey> = after.iter().map(|value| &value.key).collect();
    let shown = |value: &EffectiveOption| value.value.to_string();
    let difference = |key: &OptionKey, before: Option<&EffectiveOption>, after: Option<&EffectiveOption>| {
        let either = after.or(before)?;
        let key = key.to_string();
        Some(ConfigDifference {
            is_requested: changes.contains_key(&key),
            key,
            before: before.map(shown),
            after: after.map(shown),
            origin: after.map_or_else(|| "default".to_owned(), |value| value.origin.to_string()),
            needs_restart: either.def.apply == Apply::Restart,
        })
    };
    // Other contents of `runtime.toml`, such as access rules, took effect when they were written.
    let is_known = |one: &EffectiveOption| {
        matches!(one.origin, ValueOrigin::Runtime { .. }) && !changes.contains_key(&one.key.to_string())
    };
    let is_other = |one: &&EffectiveOption| {
        let is_changed = |before: &&EffectiveOption| before.value != one.value;
        old.get(&one.key).map_or(one.origin != ValueOrigin::Default, is_changed) && !is_known(one)
    };
    let changed = after.iter().filter(is_other);
    let changed = changed.filter_map(|one| difference(&one.key, old.get(&one.key).copied(), Some(one)));
    let gone = before
        .iter()
        .filter(|one| !new.contains(&one.key) && one.origin != ValueOrigin::Default);
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
        let keys = normalize_keys(&of(&["mqtt.\"max_qos\"", "a b."])).expect("two keys");
        assert!(keys.contains_key("mqtt.max_qos"), "{keys:?}");
        assert!(normalize_keys(&of(&["mqtt.\"max_qos\"", "mqtt.max_qos"])).is_err());
    }
}
