//! SIGHUP and changes through the API: applies what can change at run time, and names what needs a restart.
//!
//! All errors are found before anything changes: an invalid configuration leaves the running one untouched. After
//! that, a part can fail only if a worker does not respond; the result names that part.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use broker::ShardConfig;

use super::access::{ConfiguredAccess, NodeAccess};
use super::certificates::{self, LoadedCertificate, NodeCertificates};
use super::configure;
use super::http::Http;
use super::translate;
use crate::config::option::Apply;
use crate::config::{self, ConfigDiagnostic, ConfigSources, EffectiveOption, LoadedConfig, RuntimeText, ValueOrigin};
use crate::logging::LogFile;
use crate::stores;

/// Maximum time to wait for the workers.
const WORKERS_TIMEOUT: Duration = Duration::from_secs(10);

/// The running components that a configuration is applied to.
pub struct Reloader {
    sources: ConfigSources,
    /// The configuration at the start.
    started: LoadedConfig,
    net: net::ServerHandle,
    access: Arc<NodeAccess>,
    certificates: Arc<NodeCertificates>,
    engine: integration::Engine,
    /// The configuration that was applied last.
    applied: Mutex<Vec<EffectiveOption>>,
}

/// A new configuration, validated as far as possible.
struct PreparedReload {
    certificates: Vec<LoadedCertificate>,
    access: ConfiguredAccess,
    shard: Arc<ShardConfig>,
}

impl Reloader {
    pub fn new(
        sources: &ConfigSources,
        started: &LoadedConfig,
        net: net::ServerHandle,
        access: Arc<NodeAccess>,
        certificates: Arc<NodeCertificates>,
        engine: integration::Engine,
    ) -> Reloader {
        Reloader {
            sources: sources.clone(),
            started: started.clone(),
            net,
            access,
            certificates,
            engine,
            applied: Mutex::new(started.effective.clone()),
        }
    }

    /// Reads the configuration, with `runtime.toml` of the data directory in use. The files may name another directory
    /// for the next start.
    pub fn load(&self) -> Result<LoadedConfig, Vec<ConfigDiagnostic>> {
        self.load_with(self.read_runtime_file()?)
    }

    /// Reads the configuration, with a new text of `runtime.toml` instead of the one on disk.
    pub fn load_with(&self, runtime: RuntimeText) -> Result<LoadedConfig, Vec<ConfigDiagnostic>> {
        config::load(&ConfigSources {
            runtime: Some(runtime),
            ..self.sources.clone()
        })
    }

    /// Reads the configuration as the next start does.
    pub fn load_for_start(&self) -> Result<LoadedConfig, Vec<ConfigDiagnostic>> {
        let loaded = config::load(&self.sources);
        // Other errors may be a consequence of a missing file.
        stores::read_runtime_file(&config::data_dir(&self.sources)).map_err(|missing| vec![missing])?;
        loaded
    }

    pub fn read_runtime_file(&self) -> Result<RuntimeText, Vec<ConfigDiagnostic>> {
        stores::read_runtime_file(self.data_dir()).map_err(|diagnostic| vec![diagnostic])
    }

    pub fn data_dir(&self) -> &Path {
        &self.started.config.data_dir
    }

    pub fn applied_options(&self) -> Vec<EffectiveOption> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same for the console, including the current values of options that need a restart.
    pub fn shown(&self) -> Vec<api::ConfigValue> {
        let started: BTreeMap<_, _> = self.started.effective.iter().map(|one| (&one.key, one)).collect();
        let in_force = self.applied_options();
        let shown = in_force.iter().map(|one| {
            let before = started.get(&one.key).filter(|before| before.value != one.value);
            let before = before.filter(|_| one.def.apply == Apply::Restart);
            api::ConfigValue {
                value_in_force: before.map(|before| before.value.to_string()),
                ..configure::value(one)
            }
        });
        shown.collect()
    }

    pub fn started(&self) -> &LoadedConfig {
        &self.started
    }

    pub fn listeners(&self) -> Vec<net::ListenerInfo> {
        self.net.listeners()
    }

    /// Held from reading a configuration until it is applied. Changes of access rules hold it as well, because they
    /// are in the same file.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.access.lock_runtime_file()
    }

    /// Handles SIGHUP.
    pub fn reload(&self, http: &Http, log_file: Option<&LogFile>) {
        if let Some(Err(reason)) = log_file.map(LogFile::reopen) {
            tracing::error!(reason, "cannot reopen the log file; logging continues in the open file");
        }
        let _one_at_a_time = self.lock();
        let loaded = match self.load() {
            Ok(loaded) => loaded,
            Err(diagnostics) => {
                for diagnostic in diagnostics {
                    tracing::error!(%diagnostic, "the configuration was not reloaded; nothing has changed");
                }
                return;
            }
        };
        match self.apply(loaded) {
            Err(reason) => tracing::error!(reason, "the configuration was not reloaded; nothing has changed"),
            Ok(failures) => {
                http.set_configuration(self.shown());
                for reason in &failures {
                    tracing::error!(reason, "the configuration was reloaded in part");
                }
                if failures.is_empty() {
                    tracing::info!(
                        "configuration reloaded: users, access rules, limits, certificates, rules and connectors"
                    );
                }
            }
        }
    }

    /// Why the configuration cannot be applied, as far as that is known beforehand.
    pub fn check(&self, loaded: &LoadedConfig) -> Result<(), String> {
        self.prepare(loaded).map(drop)
    }

    /// `Err` means that nothing has changed. Otherwise returns the parts that could not be applied; the others are in
    /// use.
    pub fn apply(&self, loaded: LoadedConfig) -> Result<Vec<String>, String> {
        let PreparedReload {
            certificates,
            access,
            shard,
        } = self.prepare(&loaded)?;
        for what in waits_for_restart(&self.started, &loaded) {
            tracing::warn!("{what} takes effect after a restart");
        }
        let mut done = vec![self.access.apply(access)];
        self.engine
            .set_slow_rule_threshold(loaded.config.integration.slow_rule_threshold.0);
        let limits = self
            .net
            .call_all(WORKERS_TIMEOUT, move |s, now| s.reconfigure(now, shard.clone()));
        done.push(
            limits
                .map(drop)
                .map_err(|e| format!("cannot pass the new limits to every worker: {e}")),
        );
        done.extend(self.certificates.apply(certificates).into_iter().map(Err));
        self.certificates.set_managed_sources(&loaded.config);
        self.engine.declare(loaded.declared);
        *self.applied.lock().unwrap_or_else(PoisonError::into_inner) = loaded.effective;
        Ok(done.into_iter().filter_map(Result::err).collect())
    }

    fn prepare(&self, loaded: &LoadedConfig) -> Result<PreparedReload, String> {
        Ok(PreparedReload {
            certificates: certificates::read(&loaded.config)?,
            access: ConfiguredAccess::new(loaded, self.access.has_other_sources())?,
            shard: Arc::new(translate::shard_config(
                &loaded.config,
                self.net.shards(),
                &self.started.config.listeners,
            )),
        })
    }
}

/// Describes the differences between two configurations that need a restart.
fn waits_for_restart(running: &LoadedConfig, new: &LoadedConfig) -> Vec<String> {
    let labels = |loaded: &LoadedConfig| -> BTreeSet<String> {
        let listeners = loaded.config.listeners.iter();
        listeners.map(|listener| listener.label()).collect()
    };
    let (before, after) = (labels(running), labels(new));
    let added = after
        .difference(&before)
        .map(|label| format!("the new listener {label}"));
    let removed = before
        .difference(&after)
        .map(|label| format!("the end of listener {label}"));
    let (old_values, new_values) = (values(running, &after), values(new, &before));
    let keys: BTreeSet<&String> = old_values.keys().chain(new_values.keys()).collect();
    let changed = keys
        .into_iter()
        .filter(|key| is_change(old_values.get(*key), new_values.get(*key)))
        .map(|key| format!("the new value of {key}"));
    added.chain(removed).chain(changed).collect()
}

/// Returns options that take effect only at the start. Of listeners, only those that exist in both configurations.
fn values<'a>(loaded: &'a LoadedConfig, others: &BTreeSet<String>) -> BTreeMap<String, &'a EffectiveOption> {
    let is_compared = |value: &&EffectiveOption| match value.key.words()[..] {
        ["listeners", kind, name, ..] => {
            let label = format!("{kind}.{name}");
            others.contains(&label) && loaded.config.listeners.iter().any(|l| l.label() == label)
        }
        _ => true,
    };
    let values = loaded
        .effective
        .iter()
        .filter(|value| value.def.apply == Apply::Restart);
    values
        .filter(is_compared)
        .map(|value| (value.key.to_string(), value))
        .collect()
}

fn is_change(before: Option<&&EffectiveOption>, after: Option<&&EffectiveOption>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => before.value != after.value,
        (one, other) => one.or(other).is_some_and(|value| value.origin != ValueOrigin::Default),
    }
}
