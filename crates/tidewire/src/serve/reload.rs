//! SIGHUP and changes over the API: takes over what can change while running, and names what cannot.
//!
//! Everything that can be wrong is found before anything changes: a configuration with a mistake leaves the running one
//! as it was. Afterwards only a worker that does not answer can stop a part of it, which is said.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use broker::ShardConfig;

use super::access::{Configured, NodeAccess};
use super::certificates::{self, Certificates, Fresh};
use super::configure;
use super::http::Http;
use super::translate;
use crate::config::option::Apply;
use crate::config::{self, Effective, Loaded, Origin, Sources};
use crate::logging::LogFile;

/// How long it waits for the workers.
const WORKERS_TIMEOUT: Duration = Duration::from_secs(10);

/// What is running, and what of it takes over a configuration.
pub struct Reloader {
    sources: Sources,
    /// What it was started with.
    started: Loaded,
    net: net::Handle,
    access: Arc<NodeAccess>,
    certificates: Arc<Certificates>,
    engine: integration::Engine,
    /// As it was taken over last.
    in_force: Mutex<Vec<Effective>>,
}

/// A new configuration that is good, as far as it can be told beforehand.
struct Prepared {
    certificates: Vec<Fresh>,
    access: Configured,
    shard: Arc<ShardConfig>,
}

impl Reloader {
    pub fn new(
        sources: &Sources,
        started: &Loaded,
        net: net::Handle,
        access: Arc<NodeAccess>,
        certificates: Arc<Certificates>,
        engine: integration::Engine,
    ) -> Reloader {
        Reloader {
            sources: sources.clone(),
            started: started.clone(),
            net,
            access,
            certificates,
            engine,
            in_force: Mutex::new(started.effective.clone()),
        }
    }

    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    pub fn data_dir(&self) -> &Path {
        &self.started.config.data_dir
    }

    pub fn in_force(&self) -> Vec<Effective> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same for the console, with what a value that waits for a restart will replace.
    pub fn shown(&self) -> Vec<api::ConfigValue> {
        let started: BTreeMap<_, _> = self.started.effective.iter().map(|one| (&one.key, one)).collect();
        let in_force = self.in_force();
        let shown = in_force.iter().map(|one| {
            let before = started.get(&one.key).filter(|before| before.value != one.value);
            let before = before.filter(|_| one.def.apply == Apply::Restart);
            api::ConfigValue {
                until_restart: before.map(|before| before.value.to_string()),
                ..configure::value(one)
            }
        });
        shown.collect()
    }

    pub fn started(&self) -> &Loaded {
        &self.started
    }

    pub fn listeners(&self) -> Vec<net::ListenerInfo> {
        self.net.listeners()
    }

    /// Held from reading a configuration until it is taken over. A change of the access rules holds it, too: they stand in the same file.
    pub fn lock(&self) -> MutexGuard<'_, ()> {
        self.access.lock_runtime_file()
    }

    /// SIGHUP.
    pub fn reload(&self, http: &Http, log_file: Option<&LogFile>) {
        if let Some(Err(because)) = log_file.map(LogFile::reopen) {
            tracing::error!(because, "the log goes on in the file that was open");
        }
        let _one_at_a_time = self.lock();
        let loaded = match config::load(&self.sources) {
            Ok(loaded) => loaded,
            Err(diagnostics) => {
                for diagnostic in diagnostics {
                    tracing::error!(%diagnostic, "the configuration was not reloaded; nothing has changed");
                }
                return;
            }
        };
        match self.take_over(loaded) {
            Err(because) => tracing::error!(because, "the configuration was not reloaded; nothing has changed"),
            Ok(failures) => {
                http.set_configuration(self.shown());
                for because in &failures {
                    tracing::error!(because, "the configuration was reloaded in part");
                }
                if failures.is_empty() {
                    tracing::info!(
                        "configuration reloaded: users, access rules, limits, certificates, rules and connectors"
                    );
                }
            }
        }
    }

    /// Why it cannot be taken over, as far as that can be told beforehand.
    pub fn check(&self, loaded: &Loaded) -> Result<(), String> {
        self.prepare(loaded).map(drop)
    }

    /// `Err`: nothing has changed. Otherwise what has not been taken over; each part is better in force than not.
    pub fn take_over(&self, loaded: Loaded) -> Result<Vec<String>, String> {
        let Prepared {
            certificates,
            access,
            shard,
        } = self.prepare(&loaded)?;
        for what in waits_for_restart(&self.started, &loaded) {
            tracing::warn!("{what} waits for a restart");
        }
        let mut done = vec![self.access.apply(access)];
        let limits = self
            .net
            .call_all(WORKERS_TIMEOUT, move |s, _| s.reconfigure(shard.clone()));
        done.push(
            limits
                .map(drop)
                .map_err(|e| format!("not every worker has the new limits: {e}")),
        );
        done.extend(self.certificates.take_over(certificates).into_iter().map(Err));
        self.engine.declare(loaded.declared);
        *self.in_force.lock().unwrap_or_else(PoisonError::into_inner) = loaded.effective;
        Ok(done.into_iter().filter_map(Result::err).collect())
    }

    fn prepare(&self, loaded: &Loaded) -> Result<Prepared, String> {
        Ok(Prepared {
            certificates: certificates::read(&loaded.config)?,
            access: Configured::new(loaded)?,
            shard: Arc::new(translate::shard_config(&loaded.config, self.net.shards())),
        })
    }
}

/// What differs between two configurations and is not taken over, in words.
fn waits_for_restart(running: &Loaded, new: &Loaded) -> Vec<String> {
    let labels = |loaded: &Loaded| -> BTreeSet<String> {
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

/// Those that are read at the start only. Of listeners only those that the other configuration has, too.
fn values<'a>(loaded: &'a Loaded, others: &BTreeSet<String>) -> BTreeMap<String, &'a Effective> {
    let is_compared = |value: &&Effective| match value.key.words()[..] {
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

fn is_change(before: Option<&&Effective>, after: Option<&&Effective>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => before.value != after.value,
        (one, other) => one.or(other).is_some_and(|value| value.origin != Origin::Default),
    }
}
