//! Whether something outside can be reached, as an operator sees it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthState {
    Connected,
    #[default]
    Connecting,
    Disconnected,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Health {
    pub state: HealthState,
    /// When it came into this state.
    pub since_unix_ms: u64,
    /// What last went wrong, also when it goes well now.
    pub last_error: Option<String>,
    pub last_error_unix_ms: Option<u64>,
}

/// Shared by whoever finds out and whoever asks.
#[derive(Clone, Debug, Default)]
pub struct HealthCell {
    health: Arc<Mutex<Health>>,
    /// Of a source: the log hears when it goes away and when it is back. Of an action its pump tells.
    source: Option<Arc<str>>,
}

impl HealthCell {
    pub fn new() -> HealthCell {
        let cell = HealthCell::default();
        cell.with(|health| health.since_unix_ms = unix_ms());
        cell
    }

    pub fn of_source(id: &str) -> HealthCell {
        HealthCell {
            source: Some(id.into()),
            ..HealthCell::new()
        }
    }

    pub fn get(&self) -> Health {
        self.with(|health| health.clone())
    }

    pub fn connecting(&self) {
        self.with(|health| {
            health.become_state(HealthState::Connecting);
        });
    }

    pub fn connected(&self) {
        let was = self.with(|health| health.become_state(HealthState::Connected));
        if let Some(source) = &self.source
            && was == HealthState::Disconnected
        {
            tracing::info!(source = &**source, "where the source takes from is back");
        }
    }

    /// `error` is shown to operators: no secret in it.
    pub fn disconnected(&self, error: impl Into<String>) {
        let reason = error.into();
        let was = self.with(|health| {
            health.tell(reason.clone());
            health.become_state(HealthState::Disconnected)
        });
        if let Some(source) = &self.source
            && was != HealthState::Disconnected
        {
            tracing::warn!(
                source = &**source,
                reason,
                "where the source takes from is away; it is tried again"
            );
        }
    }

    /// The connection was ended, and nothing is wrong.
    pub fn disconnected_by_order(&self) {
        self.with(|health| {
            health.become_state(HealthState::Disconnected);
        });
    }

    /// Something went wrong that says nothing of the connection.
    pub fn error(&self, error: impl Into<String>) {
        self.with(|health| health.tell(error.into()));
    }

    fn with<T>(&self, change: impl FnOnce(&mut Health) -> T) -> T {
        change(&mut self.health.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Health {
    /// Returns the state of before.
    fn become_state(&mut self, state: HealthState) -> HealthState {
        if self.state != state {
            self.since_unix_ms = unix_ms();
        }
        std::mem::replace(&mut self.state, state)
    }

    fn tell(&mut self, error: String) {
        self.last_error = Some(error);
        self.last_error_unix_ms = Some(unix_ms());
    }
}

pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}
