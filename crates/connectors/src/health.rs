//! Health of a connection to an external system, as the console shows it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ConnectionState")]
pub enum HealthState {
    Connected,
    #[default]
    Connecting,
    Disconnected,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ConnectionHealth")]
pub struct ConnectionHealth {
    pub state: HealthState,
    /// When the current state began, in Unix milliseconds.
    pub since_unix_ms: u64,
    /// The last error. It stays after recovery.
    pub last_error: Option<String>,
    pub last_error_unix_ms: Option<u64>,
}

/// Health shared between the task that observes the connection and its readers. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct HealthCell {
    health: Arc<Mutex<ConnectionHealth>>,
    /// Set for a source: the cell then logs when the connection is lost and restored. For an action, the pump logs it.
    source: Option<Arc<str>>,
}

impl HealthCell {
    pub fn new() -> HealthCell {
        let cell = HealthCell::default();
        cell.with(|health| health.since_unix_ms = unix_ms());
        cell
    }

    pub fn for_source(id: &str) -> HealthCell {
        HealthCell {
            source: Some(id.into()),
            ..HealthCell::new()
        }
    }

    pub fn get(&self) -> ConnectionHealth {
        self.with(|health| health.clone())
    }

    pub fn connecting(&self) {
        self.with(|health| {
            health.set_state(HealthState::Connecting);
        });
    }

    pub fn connected(&self) {
        let was = self.with(|health| health.set_state(HealthState::Connected));
        if let Some(source) = &self.source
            && was == HealthState::Disconnected
        {
            tracing::info!(source = &**source, "connection of the source restored");
        }
    }

    /// Sets the state. Operators see `error`; it must not contain secrets.
    pub fn disconnected(&self, error: impl Into<String>) {
        let reason = error.into();
        let was = self.with(|health| {
            health.set_error(reason.clone());
            health.set_state(HealthState::Disconnected)
        });
        if let Some(source) = &self.source
            && was != HealthState::Disconnected
        {
            tracing::warn!(source = &**source, reason, "connection of the source lost, retrying");
        }
    }

    /// Sets the state after the connection was closed on request.
    pub fn disconnected_on_request(&self) {
        self.with(|health| {
            health.set_state(HealthState::Disconnected);
        });
    }

    /// Records an error that does not change the connection state.
    pub fn error(&self, error: impl Into<String>) {
        self.with(|health| health.set_error(error.into()));
    }

    fn with<T>(&self, change: impl FnOnce(&mut ConnectionHealth) -> T) -> T {
        change(&mut self.health.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ConnectionHealth {
    /// Sets the state and returns the previous one.
    fn set_state(&mut self, state: HealthState) -> HealthState {
        if self.state != state {
            self.since_unix_ms = unix_ms();
        }
        std::mem::replace(&mut self.state, state)
    }

    fn set_error(&mut self, error: String) {
        self.last_error = Some(error);
        self.last_error_unix_ms = Some(unix_ms());
    }
}

pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}
