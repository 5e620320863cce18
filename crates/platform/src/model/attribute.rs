//! Attributes: named values of an entity without a history.

use serde::{Deserialize, Serialize};
use timeseries::PointValue;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AttributeScope {
    /// Set by the device.
    ClientScope,
    /// Set by the platform, visible to the device.
    SharedScope,
    /// Not visible to the device.
    ServerScope,
}

impl AttributeScope {
    pub const ALL: [AttributeScope; 3] = [
        AttributeScope::ClientScope,
        AttributeScope::SharedScope,
        AttributeScope::ServerScope,
    ];

    pub fn name(self) -> &'static str {
        match self {
            AttributeScope::ClientScope => "CLIENT_SCOPE",
            AttributeScope::SharedScope => "SHARED_SCOPE",
            AttributeScope::ServerScope => "SERVER_SCOPE",
        }
    }

    pub fn parse(text: &str) -> Option<AttributeScope> {
        AttributeScope::ALL.into_iter().find(|scope| scope.name() == text)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Attribute {
    pub key: String,
    pub value: PointValue,
    pub last_update_ms: i64,
}

impl Attribute {
    /// Approximate size in memory when stored.
    pub fn weight(&self) -> usize {
        let text = match &self.value {
            PointValue::String(text) | PointValue::Json(text) => text.len(),
            _ => 0,
        };
        128 + self.key.len() + text
    }
}
