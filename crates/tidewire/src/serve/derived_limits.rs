//! Limits that follow from the memory of the process or from other options: the defaults of options that are not set,
//! and the shares of a user and of a client.

use broker::DELAYED_BYTES_MAX;
use broker::owners::{OwnerLimits, ShareLimits};

use crate::config::Config;
use crate::config::options::server::DurabilityPolicy;
use crate::process_limits;

/// Memory per session of a user.
const BYTES_PER_SESSION: u64 = 8 * 1024;
/// Part of the memory for the client ids and wills of a user.
const SESSION_BYTES_PART: u64 = 32;
/// Part of the memory for all retained messages.
const RETAINED_PART: u64 = 4;
/// Part of the memory for a client id, and its bounds.
const CLIENT_ID_PART: u64 = 256 * 1024;
const CLIENT_ID_BYTES: std::ops::RangeInclusive<u64> = 1024..=65_535;
/// Part of the memory for a will, and its bounds.
const WILL_PART: u64 = 16 * 1024;
const WILL_BYTES: std::ops::RangeInclusive<u64> = 4096..=1024 * 1024;

/// Limits that the options leave to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DerivedLimits {
    /// `u64::MAX` if the memory is unknown.
    memory_bytes: u64,
}

impl DerivedLimits {
    /// Uses the memory that the process may use: that of the machine, of its control group, or of its address space.
    pub fn of_process() -> DerivedLimits {
        let memory_bytes = process_limits::memory_bytes().unwrap_or(u64::MAX);
        DerivedLimits { memory_bytes }
    }

    pub fn client_id_bytes(self, config: &Config) -> usize {
        let derived = clamp(self.memory_bytes / CLIENT_ID_PART, CLIENT_ID_BYTES);
        config.mqtt.max_client_id_length.0.map_or(derived as usize, usize::from)
    }

    pub fn will_bytes(self, config: &Config) -> usize {
        let derived = clamp(self.memory_bytes / WILL_PART, WILL_BYTES);
        config.mqtt.max_will_size.0.map_or(derived, |size| size.0) as usize
    }

    /// Returns the limit of all retained messages; `u64::MAX` for none.
    pub fn retained_bytes(self, config: &Config) -> u64 {
        match config.retained.max_bytes.0 {
            Some(limit) => limit.0.map_or(u64::MAX, |size| size.0),
            None => self.part(RETAINED_PART),
        }
    }

    /// Returns the limits of a user and of a client.
    pub fn shares(self, config: &Config, workers: u16) -> ShareLimits {
        let limits = &config.limits;
        let sessions = match limits.max_sessions_per_user.0 {
            Some(limit) => limit.0.unwrap_or(u64::MAX),
            None => self.part(BYTES_PER_SESSION),
        };
        let session_bytes = match limits.max_session_bytes_per_user.0 {
            Some(limit) => limit.0.map_or(u64::MAX, |size| size.0),
            None => self.part(SESSION_BYTES_PART),
        };
        let user = OwnerLimits {
            sessions,
            session_bytes,
            subscriptions: limits.max_subscriptions_per_user.0.unwrap_or(u64::MAX),
            queued_bytes: limits.max_queued_bytes_per_user.0.map_or(u64::MAX, |size| size.0),
            ..self.messages(config, workers, limits.user_share)
        };
        // A client has one session.
        let client = self.messages(config, workers, limits.client_share);
        ShareLimits { user, client }
    }

    /// Returns `percent` of the limits of messages.
    fn messages(self, config: &Config, workers: u16, percent: u8) -> OwnerLimits {
        let share = |limit: u64| share(limit, percent);
        let journal_bytes = match config.durability.policy {
            DurabilityPolicy::Memory => u64::MAX,
            DurabilityPolicy::Fsync | DurabilityPolicy::Os => config.durability.max_bytes.0,
        };
        OwnerLimits {
            retained_messages: share(config.retained.max_messages.0.unwrap_or(u64::MAX)),
            retained_bytes: share(self.retained_bytes(config)),
            delayed_messages: share(config.mqtt.max_delayed_messages.0.map_or(u64::MAX, u64::from)),
            delayed_bytes: share(DELAYED_BYTES_MAX as u64 * u64::from(workers)),
            journal_bytes: share(journal_bytes),
            ..OwnerLimits::NONE
        }
    }

    fn part(self, part: u64) -> u64 {
        match self.memory_bytes {
            u64::MAX => u64::MAX,
            bytes => bytes / part,
        }
    }
}

fn clamp(bytes: u64, range: std::ops::RangeInclusive<u64>) -> u64 {
    bytes.clamp(*range.start(), *range.end())
}

/// Returns a percentage of a limit, at least 1. No limit has no shares.
fn share(limit: u64, percent: u8) -> u64 {
    match (limit, percent) {
        (0 | u64::MAX, _) | (_, 100) => limit,
        _ => (u128::from(limit) * u128::from(percent) / 100).max(1) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, ConfigSources};

    const MIB: u64 = 1024 * 1024;
    const GIB: u64 = 1024 * MIB;

    fn of(memory_bytes: u64) -> DerivedLimits {
        DerivedLimits { memory_bytes }
    }

    fn default_config() -> Config {
        let sources = ConfigSources::default();
        config::load(&sources).expect("the defaults are valid").config
    }

    #[test]
    fn defaults_follow_the_memory() {
        let config = default_config();
        let sizes = |memory_bytes| {
            let limits = of(memory_bytes);
            let user = limits.shares(&config, 2).user;
            let retained = (limits.retained_bytes(&config) / MIB, user.retained_bytes / MIB);
            let sessions = (user.sessions, user.session_bytes / MIB);
            let one = (limits.client_id_bytes(&config), limits.will_bytes(&config));
            (retained, sessions, one)
        };
        assert_eq!(sizes(GIB), ((256, 64), (131_072, 32), (4096, 65_536)));
        assert_eq!(sizes(64 * MIB), ((16, 4), (8192, 2), (1024, 4096)));
        assert_eq!(
            sizes(64 * GIB),
            ((16_384, 4096), (8_388_608, 2048), (65_535, 1024 * 1024))
        );
        let unknown = of(u64::MAX).shares(&config, 2).user;
        assert_eq!((unknown.sessions, unknown.retained_bytes), (u64::MAX, u64::MAX));
    }

    #[test]
    fn queues_of_a_user_have_no_limit_by_default() {
        let queued_bytes = |set: Vec<String>| {
            let sources = ConfigSources {
                set,
                ..ConfigSources::default()
            };
            let config = config::load(&sources).expect("the options are valid").config;
            of(GIB).shares(&config, 2).user.queued_bytes
        };
        assert_eq!(queued_bytes(Vec::new()), u64::MAX);
        let set = "limits.max_queued_bytes_per_user=1MiB".to_owned();
        assert_eq!(queued_bytes(vec![set]), MIB);
    }

    #[test]
    fn shares_are_parts_of_the_limits_of_the_node() {
        let config = default_config();
        let shares = of(GIB).shares(&config, 2);
        let delayed = (shares.user.delayed_messages, shares.user.delayed_bytes);
        assert_eq!(delayed, (25_000, 32 * MIB));
        assert_eq!(shares.user.journal_bytes, 4 * GIB);
        assert_eq!(shares.user.retained_messages, u64::MAX, "there is no limit of the node");
        assert_eq!(shares.client.delayed_messages, 25_000);
        assert_eq!(shares.client.sessions, u64::MAX);
        assert_eq!([share(3, 25), share(0, 25), share(7, 100)], [1, 0, 7]);
    }
}
