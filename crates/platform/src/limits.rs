//! A tenant's limits, from its profile: rates of device messages, numbers of entities, monthly quotas. Tenants
//! without limits are in no table, so unset limits cost nothing.
//!
//! A rate is `capacity:seconds`, or several separated by commas. Each is a token bucket that starts full and refills
//! evenly.

use std::fmt;

use serde_json::Value as Json;

use crate::ids::{EntityType, named_enum};
use crate::usage::UsageCounter;

/// Default share of a quota at which the state is WARNING.
const WARN_AT: f64 = 0.8;

/// Upper limits of a rate's capacity and seconds, so that a bucket's contents fit 64 bits.
const CAPACITY_MAX: u64 = 1_000_000_000;
const SECONDS_MAX: u64 = 31_536_000;

/// An invalid value in a profile's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError {
    pub key: String,
    pub problem: String,
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.problem)
    }
}

impl std::error::Error for LimitError {}

/// A capacity per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bandwidth {
    capacity: u64,
    per_ms: u64,
}

/// A rate limit. All of its bandwidths apply at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit(Box<[Bandwidth]>);

impl RateLimit {
    /// Parses for example `"100:1,2000:60"`. An empty text means no limit.
    pub fn parse(text: &str) -> Result<Option<RateLimit>, String> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        let bandwidth = |part: &str| {
            let (capacity, seconds) = part.split_once(':')?;
            let capacity = capacity
                .trim()
                .parse()
                .ok()
                .filter(|n| (1..=CAPACITY_MAX).contains(n))?;
            let seconds = seconds.trim().parse().ok().filter(|n| (1..=SECONDS_MAX).contains(n))?;
            Some(Bandwidth {
                capacity,
                per_ms: seconds * 1000,
            })
        };
        let all: Option<Box<[Bandwidth]>> = text.split(',').map(bandwidth).collect();
        all.map(|all| Some(RateLimit(all)))
            .ok_or_else(|| format!("\"{text}\": expected capacity:seconds, such as \"100:1,2000:60\""))
    }
}

impl fmt::Display for RateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, b) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{}:{}", b.capacity, b.per_ms / 1000)?;
        }
        Ok(())
    }
}

/// Remaining tokens of each bandwidth. A token counts as `per_ms` units, so that a refill after any number of
/// milliseconds needs no rounding.
#[derive(Clone, Debug)]
pub struct Bucket {
    left: Box<[u64]>,
    at_ms: i64,
}

impl Bucket {
    pub fn new(limit: &RateLimit, now_ms: i64) -> Bucket {
        Bucket {
            left: limit.0.iter().map(|b| b.capacity * b.per_ms).collect(),
            at_ms: now_ms,
        }
    }

    fn fill(&mut self, limit: &RateLimit, now_ms: i64) {
        let elapsed_ms = u64::try_from(now_ms.saturating_sub(self.at_ms)).unwrap_or(0);
        self.at_ms = self.at_ms.max(now_ms);
        for (left, b) in self.left.iter_mut().zip(&limit.0) {
            let more = b.capacity.saturating_mul(elapsed_ms);
            *left = left.saturating_add(more).min(b.capacity * b.per_ms);
        }
    }

    /// Takes all tokens or none.
    pub fn take(&mut self, limit: &RateLimit, count: u64, now_ms: i64) -> bool {
        self.fill(limit, now_ms);
        let needed = |b: &Bandwidth| count.saturating_mul(b.per_ms);
        let has_enough = self.left.iter().zip(&limit.0).all(|(left, b)| *left >= needed(b));
        if has_enough {
            for (left, b) in self.left.iter_mut().zip(&limit.0) {
                *left -= needed(b);
            }
        }
        has_enough
    }

    /// Whether the bucket is full, like a new one. A full bucket can be dropped.
    pub fn is_full(&mut self, limit: &RateLimit, now_ms: i64) -> bool {
        self.fill(limit, now_ms);
        self.left
            .iter()
            .zip(&limit.0)
            .all(|(left, b)| *left == b.capacity * b.per_ms)
    }
}

/// Rate limits of device messages. Messages with telemetry or attributes are limited by the number of messages and of
/// values. `messages` limits all other messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransportRates {
    pub messages: Option<RateLimit>,
    pub telemetry_messages: Option<RateLimit>,
    pub telemetry_points: Option<RateLimit>,
}

impl TransportRates {
    fn parse(configuration: &Json, level: &str) -> Result<TransportRates, LimitError> {
        let rate = |what: &str| rate(configuration, &format!("transport{level}{what}RateLimit"));
        Ok(TransportRates {
            messages: rate("Msg")?,
            telemetry_messages: rate("TelemetryMsg")?,
            telemetry_points: rate("TelemetryDataPoints")?,
        })
    }

    pub fn is_unlimited(&self) -> bool {
        *self == TransportRates::default()
    }
}

fn rate(configuration: &Json, key: &str) -> Result<Option<RateLimit>, LimitError> {
    let refused = |problem| LimitError {
        key: key.to_owned(),
        problem,
    };
    match &configuration[key] {
        Json::Null => Ok(None),
        Json::String(text) => RateLimit::parse(text).map_err(refused),
        other => Err(refused(format!("{other}: expected a string such as \"100:1,2000:60\""))),
    }
}

named_enum! {
    /// Whether a tenant may use a feature.
    #[derive(Default)]
    pub enum ApiState {
        #[default]
        Enabled "ENABLED",
        /// Enabled, but the quota is almost used up.
        Warning "WARNING",
        Disabled "DISABLED",
    }
}

/// A feature that is turned off when a monthly counter reaches its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiFeature {
    Transport,
    Storage,
    RuleEngine,
    Scripts,
    Alarms,
}

impl ApiFeature {
    pub const ALL: [ApiFeature; 5] = [
        ApiFeature::Transport,
        ApiFeature::Storage,
        ApiFeature::RuleEngine,
        ApiFeature::Scripts,
        ApiFeature::Alarms,
    ];

    /// Key in the time series of the tenant's usage state.
    pub fn key(self) -> &'static str {
        match self {
            ApiFeature::Transport => "transportApiState",
            ApiFeature::Storage => "dbApiState",
            ApiFeature::RuleEngine => "ruleEngineApiState",
            ApiFeature::Scripts => "jsExecutionApiState",
            ApiFeature::Alarms => "alarmApiState",
        }
    }

    fn counters(self) -> &'static [UsageCounter] {
        match self {
            ApiFeature::Transport => &[UsageCounter::TransportMessages, UsageCounter::TransportPoints],
            ApiFeature::Storage => &[UsageCounter::StoredPoints],
            ApiFeature::RuleEngine => &[UsageCounter::RuleNodes],
            ApiFeature::Scripts => &[UsageCounter::Scripts],
            ApiFeature::Alarms => &[UsageCounter::CreatedAlarms],
        }
    }
}

/// Entity types with a limit per tenant.
pub const LIMITED_ENTITIES: [(EntityType, &str); 6] = [
    (EntityType::Device, "maxDevices"),
    (EntityType::Asset, "maxAssets"),
    (EntityType::Customer, "maxCustomers"),
    (EntityType::User, "maxUsers"),
    (EntityType::Dashboard, "maxDashboards"),
    (EntityType::RuleChain, "maxRuleChains"),
];

/// WebSocket limits per tenant, customer and user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketLimits {
    pub tenant: u64,
    pub customer: u64,
    pub user: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantLimits {
    pub tenant: TransportRates,
    pub device: TransportRates,
    /// Rates of REST requests of the whole tenant, and of each customer.
    pub rest_of_tenant: Option<RateLimit>,
    pub rest_of_customer: Option<RateLimit>,
    /// Concurrent WebSockets; 0 is no limit.
    pub sockets: SocketLimits,
    /// By index of [`LIMITED_ENTITIES`]; 0 is no limit.
    entities: [u64; LIMITED_ENTITIES.len()],
    /// By [`UsageCounter`]; 0 is no limit.
    monthly: [u64; UsageCounter::ALL.len()],
    warn_at: f64,
}

impl TenantLimits {
    /// Parses `profileData.configuration` of a tenant profile.
    pub fn parse(configuration: &Json) -> Result<TenantLimits, LimitError> {
        let number = |key: &str| match &configuration[key] {
            Json::Null => Ok(0),
            value => value.as_u64().ok_or_else(|| LimitError {
                key: key.to_owned(),
                problem: format!("{value}: expected a whole number (0: no limit)"),
            }),
        };
        let mut limits = TenantLimits {
            tenant: TransportRates::parse(configuration, "Tenant")?,
            device: TransportRates::parse(configuration, "Device")?,
            rest_of_tenant: rate(configuration, "tenantServerRestLimitsConfiguration")?,
            rest_of_customer: rate(configuration, "customerServerRestLimitsConfiguration")?,
            sockets: SocketLimits {
                tenant: number("maxWsSessionsPerTenant")?,
                customer: number("maxWsSessionsPerCustomer")?,
                user: number("maxWsSessionsPerRegularUser")?,
            },
            warn_at: WARN_AT,
            ..TenantLimits::default()
        };
        for (limit, (_, key)) in limits.entities.iter_mut().zip(LIMITED_ENTITIES) {
            *limit = number(key)?;
        }
        for (limit, counter) in limits.monthly.iter_mut().zip(UsageCounter::ALL) {
            *limit = number(counter.maximum_key())?;
        }
        match &configuration["warnThreshold"] {
            Json::Null => {}
            value => match value.as_f64().filter(|share| (0.0..=1.0).contains(share)) {
                Some(share) if share > 0.0 => limits.warn_at = share,
                Some(_) => {}
                None => {
                    return Err(LimitError {
                        key: "warnThreshold".to_owned(),
                        problem: format!("{value}: expected a number from 0 to 1"),
                    });
                }
            },
        }
        Ok(limits)
    }

    /// Whether nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        self.tenant.is_unlimited()
            && self.device.is_unlimited()
            && self.rest_of_tenant.is_none()
            && self.rest_of_customer.is_none()
            && self.sockets == SocketLimits::default()
            && self.entities.iter().chain(&self.monthly).all(|limit| *limit == 0)
    }

    /// Whether each device message must be checked.
    pub fn has_transport_limits(&self) -> bool {
        let is_monthly = [UsageCounter::TransportMessages, UsageCounter::TransportPoints]
            .into_iter()
            .any(|counter| self.monthly(counter) > 0);
        is_monthly || !self.tenant.is_unlimited() || !self.device.is_unlimited()
    }

    /// 0 is no limit.
    pub fn entities(&self, kind: EntityType) -> u64 {
        let at = LIMITED_ENTITIES.iter().position(|(limited, _)| *limited == kind);
        at.map_or(0, |at| self.entities[at])
    }

    /// 0 is no limit.
    pub fn monthly(&self, counter: UsageCounter) -> u64 {
        self.monthly[counter as usize]
    }

    /// The worst state of the feature's counters.
    pub fn state(&self, feature: ApiFeature, used: impl Fn(UsageCounter) -> u64) -> ApiState {
        let of = |counter: &UsageCounter| match self.monthly(*counter) {
            0 => ApiState::Enabled,
            limit => {
                let used = used(*counter);
                if used >= limit {
                    ApiState::Disabled
                } else if used as f64 >= (limit as f64 * self.warn_at).floor() {
                    ApiState::Warning
                } else {
                    ApiState::Enabled
                }
            }
        };
        feature.counters().iter().map(of).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_rates_apply_and_refill_evenly() {
        let limit = RateLimit::parse("2:1, 5:60").unwrap().unwrap();
        let mut bucket = Bucket::new(&limit, 0);
        assert!(bucket.take(&limit, 2, 0));
        assert!(!bucket.take(&limit, 1, 499));
        assert!(bucket.take(&limit, 1, 500));
        assert!(bucket.take(&limit, 2, 2_000));
        // The five tokens of the minute are used up. The next one is available twelve seconds after the first.
        assert!(!bucket.take(&limit, 1, 9_000));
        assert!(bucket.take(&limit, 1, 12_000));
        assert!(!bucket.is_full(&limit, 60_000));
        assert!(bucket.is_full(&limit, 75_000));
        // More than the capacity is rejected, and takes no tokens.
        assert!(!bucket.take(&limit, 3, 75_000));
        assert!(bucket.is_full(&limit, 75_000));
        // A clock that steps back adds no tokens.
        assert!(bucket.take(&limit, 2, 75_000));
        assert!(!bucket.take(&limit, 1, 10_000));
    }

    #[test]
    fn invalid_rates_are_rejected() {
        for text in ["", "  "] {
            assert_eq!(RateLimit::parse(text), Ok(None));
        }
        for text in ["100", "0:1", "1:0", "a:1", "1:1,", "-1:1", "1:1:1", "99999999999:1"] {
            let problem = RateLimit::parse(text).unwrap_err();
            assert!(problem.contains("expected capacity:seconds"), "{text}: {problem}");
        }
    }

    #[test]
    fn invalid_configuration_is_reported_by_its_key() {
        let none = TenantLimits::parse(&crate::model::default_tenant_profile_data()["configuration"]).unwrap();
        assert!(none.is_unlimited() && !none.has_transport_limits());
        let limits =
            TenantLimits::parse(&json!({"maxDevices": 3, "maxCreatedAlarms": 10, "warnThreshold": 0.5})).unwrap();
        assert!(!limits.is_unlimited() && !limits.has_transport_limits());
        assert_eq!(limits.entities(EntityType::Device), 3);
        assert_eq!(limits.entities(EntityType::Alarm), 0);
        let state = |used| limits.state(ApiFeature::Alarms, |_| used);
        assert_eq!(
            [0, 4, 5, 9].map(state),
            [
                ApiState::Enabled,
                ApiState::Enabled,
                ApiState::Warning,
                ApiState::Warning
            ]
        );
        assert_eq!([10, 11].map(state), [ApiState::Disabled; 2]);
        assert_eq!(limits.state(ApiFeature::Transport, |_| 1_000), ApiState::Enabled);
        for (bad, key) in [
            (json!({"maxDevices": -1}), "maxDevices"),
            (json!({"maxJSExecutions": "many"}), "maxJSExecutions"),
            (json!({"warnThreshold": 2}), "warnThreshold"),
            (
                json!({"transportDeviceMsgRateLimit": "fast"}),
                "transportDeviceMsgRateLimit",
            ),
            (
                json!({"transportTenantTelemetryDataPointsRateLimit": 5}),
                "transportTenantTelemetryDataPointsRateLimit",
            ),
        ] {
            assert_eq!(TenantLimits::parse(&bad).unwrap_err().key, key);
        }
    }
}
