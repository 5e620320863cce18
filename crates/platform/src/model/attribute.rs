//! Attributes: named values of an entity without a history.

use serde::{Deserialize, Serialize};
use timeseries::PointValue;

use crate::ids::named_enum;

named_enum! {
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "SCREAMING_SNAKE_CASE")]
    pub enum AttributeScope {
        /// Set by the device.
        ClientScope "CLIENT_SCOPE",
        /// Set by the platform, visible to the device.
        SharedScope "SHARED_SCOPE",
        /// Not visible to the device.
        ServerScope "SERVER_SCOPE",
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
