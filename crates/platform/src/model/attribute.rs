//! Attributes: named values of an entity without a history.

use serde::{Deserialize, Serialize};
use timeseries::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Scope {
    /// Set by the device.
    ClientScope,
    /// Set by the platform, seen by the device.
    SharedScope,
    /// Never seen by the device.
    ServerScope,
}

impl Scope {
    pub const ALL: [Scope; 3] = [Scope::ClientScope, Scope::SharedScope, Scope::ServerScope];

    pub fn name(self) -> &'static str {
        match self {
            Scope::ClientScope => "CLIENT_SCOPE",
            Scope::SharedScope => "SHARED_SCOPE",
            Scope::ServerScope => "SERVER_SCOPE",
        }
    }

    pub fn parse(text: &str) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| scope.name() == text)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    pub key: String,
    pub value: Value,
    pub last_update_ms: i64,
}

impl Attribute {
    /// In memory, about, when it is kept.
    pub fn weight(&self) -> usize {
        let text = match &self.value {
            Value::String(text) | Value::Json(text) => text.len(),
            _ => 0,
        };
        128 + self.key.len() + text
    }
}
