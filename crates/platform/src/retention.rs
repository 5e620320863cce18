//! How long a tenant's data is stored, according to its profile.

use serde_json::Value as Json;

use crate::limits::LimitError;

pub const DAY_MS: u64 = 86_400_000;

/// A hundred years. Longer times are rejected, because 0 means forever.
const DAYS_MAX: u64 = 36_500;

/// Times to live in days. 0 means that data never expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimesToLive {
    /// For telemetry. `None` if the profile does not set it.
    pub storage: Option<u32>,
    pub alarms: u32,
    pub rpcs: u32,
}

impl TimesToLive {
    /// Parses `profileData.configuration` of a tenant profile.
    pub fn parse(configuration: &Json) -> Result<TimesToLive, LimitError> {
        let days = |key: &str| match &configuration[key] {
            Json::Null => Ok(None),
            value => match value.as_u64().filter(|days| *days <= DAYS_MAX) {
                Some(days) => Ok(Some(days as u32)),
                None => Err(LimitError {
                    key: key.to_owned(),
                    problem: format!("{value}: expected days, a whole number up to {DAYS_MAX} (0: forever)"),
                }),
            },
        };
        Ok(TimesToLive {
            storage: days("defaultStorageTtlDays")?,
            alarms: days("alarmsTtlDays")?.unwrap_or(0),
            rpcs: days("rpcTtlDays")?.unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn invalid_days_are_reported_by_their_key() {
        assert_eq!(TimesToLive::parse(&Json::Null), Ok(TimesToLive::default()));
        let all = json!({"defaultStorageTtlDays": 0, "alarmsTtlDays": 3, "rpcTtlDays": 36_500});
        let read = TimesToLive::parse(&all).unwrap();
        assert_eq!((read.storage, read.alarms, read.rpcs), (Some(0), 3, 36_500));
        for key in ["defaultStorageTtlDays", "alarmsTtlDays", "rpcTtlDays"] {
            for bad in [json!(-1), json!(1.5), json!("7"), json!(36_501)] {
                let error = TimesToLive::parse(&json!({key: bad})).unwrap_err();
                assert_eq!(error.key, key);
                assert!(error.problem.contains("expected days"), "{error}");
            }
        }
    }
}
