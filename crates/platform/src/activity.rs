//! Whether a device is active: when it was connected, last heard and lost. A machine per device, 48 bytes in memory and
//! 41 on disk; it is kept now and then, not with every message.

use serde_json::{Value as Json, json};
use timeseries::Value;

/// What ThingsBoard calls the values, as server attributes.
pub const KEYS: [&str; 6] = [
    "active",
    "lastConnectTime",
    "lastActivityTime",
    "lastDisconnectTime",
    "inactivityAlarmTime",
    "inactivityTimeout",
];

/// Attribute that a user sets, in milliseconds, in place of the default.
pub const TIMEOUT_KEY: &str = "inactivityTimeout";

/// Times in milliseconds since 1970; 0: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    pub is_active: bool,
    pub last_connect_ms: i64,
    pub last_activity_ms: i64,
    pub last_disconnect_ms: i64,
    pub inactivity_alarm_ms: i64,
    /// 0: the default of the platform.
    pub timeout_ms: i64,
}

/// What rule chains are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivityEvent {
    Connected,
    Disconnected,
    Active,
    Inactive,
}

impl ActivityEvent {
    pub fn message_type(self) -> &'static str {
        match self {
            ActivityEvent::Connected => "CONNECT_EVENT",
            ActivityEvent::Disconnected => "DISCONNECT_EVENT",
            ActivityEvent::Active => "ACTIVITY_EVENT",
            ActivityEvent::Inactive => "INACTIVITY_EVENT",
        }
    }
}

const BYTES: usize = 41;

impl Activity {
    /// An older connection than the known one is no news.
    pub fn connected(&mut self, at_ms: i64) -> Option<ActivityEvent> {
        if at_ms <= self.last_connect_ms {
            return None;
        }
        self.last_connect_ms = at_ms;
        Some(ActivityEvent::Connected)
    }

    pub fn disconnected(&mut self, at_ms: i64) -> Option<ActivityEvent> {
        if at_ms <= self.last_disconnect_ms {
            return None;
        }
        self.last_disconnect_ms = at_ms;
        Some(ActivityEvent::Disconnected)
    }

    /// The device said something.
    pub fn heard(&mut self, at_ms: i64) -> Option<ActivityEvent> {
        if at_ms <= self.last_activity_ms {
            return None;
        }
        self.last_activity_ms = at_ms;
        if self.is_active {
            return None;
        }
        self.is_active = true;
        self.inactivity_alarm_ms = 0;
        Some(ActivityEvent::Active)
    }

    /// Once for each silence.
    pub fn check(&mut self, now_ms: i64, default_timeout_ms: i64) -> Option<ActivityEvent> {
        let timeout_ms = self.timeout_ms(default_timeout_ms);
        if !self.is_active || now_ms < self.last_activity_ms.saturating_add(timeout_ms) {
            return None;
        }
        self.is_active = false;
        self.inactivity_alarm_ms = now_ms;
        Some(ActivityEvent::Inactive)
    }

    /// As a silence: it was made long ago, and nothing was ever heard of it.
    pub fn missed(&mut self, created_ms: i64, now_ms: i64, default_timeout_ms: i64) -> Option<ActivityEvent> {
        let is_new = self.last_activity_ms == 0 && self.inactivity_alarm_ms == 0;
        if !is_new || now_ms < created_ms.saturating_add(self.timeout_ms(default_timeout_ms)) {
            return None;
        }
        self.inactivity_alarm_ms = now_ms;
        Some(ActivityEvent::Inactive)
    }

    fn timeout_ms(&self, default_ms: i64) -> i64 {
        match self.timeout_ms {
            0 => default_ms,
            own => own,
        }
    }

    /// The body of an event.
    pub fn json(&self, event: ActivityEvent, default_timeout_ms: i64) -> Json {
        let mut body = json!({
            "active": self.is_active,
            "lastConnectTime": self.last_connect_ms,
            "lastActivityTime": self.last_activity_ms,
            "lastDisconnectTime": self.last_disconnect_ms,
            "lastInactivityAlarmTime": self.inactivity_alarm_ms,
            "inactivityTimeout": self.timeout_ms(default_timeout_ms),
        });
        if event == ActivityEvent::Connected
            && let Some(members) = body.as_object_mut()
        {
            members.remove("active");
        }
        body
    }

    /// A server attribute by its name; what never was is not there. That it is not silent is something that was as soon as it was heard.
    pub fn attribute(&self, key: &str) -> Option<Value> {
        let time = |at_ms: i64| (at_ms != 0).then_some(Value::Long(at_ms));
        match key {
            "active" => Some(Value::Bool(self.is_active)),
            "lastConnectTime" => time(self.last_connect_ms),
            "lastActivityTime" => time(self.last_activity_ms),
            "lastDisconnectTime" => time(self.last_disconnect_ms),
            "inactivityAlarmTime" if self.last_activity_ms != 0 => Some(Value::Long(self.inactivity_alarm_ms)),
            "inactivityAlarmTime" => time(self.inactivity_alarm_ms),
            _ => None,
        }
    }

    /// When attributes were last as they had not been; of a device that nobody has heard of, when it was made.
    pub fn changed_ms(&self, created_ms: i64) -> i64 {
        let times = [
            self.last_connect_ms,
            self.last_activity_ms,
            self.last_disconnect_ms,
            self.inactivity_alarm_ms,
        ];
        times.into_iter().fold(created_ms, i64::max)
    }

    pub fn to_bytes(self) -> Vec<u8> {
        let times = [
            self.last_connect_ms,
            self.last_activity_ms,
            self.last_disconnect_ms,
            self.inactivity_alarm_ms,
            self.timeout_ms,
        ];
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.push(u8::from(self.is_active));
        times.iter().for_each(|time| bytes.extend(time.to_le_bytes()));
        bytes
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Activity> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let time = |index: usize| {
            let mut time = [0; 8];
            time.copy_from_slice(&bytes[1 + index * 8..9 + index * 8]);
            i64::from_le_bytes(time)
        };
        Some(Activity {
            is_active: bytes[0] != 0,
            last_connect_ms: time(0),
            last_activity_ms: time(1),
            last_disconnect_ms: time(2),
            inactivity_alarm_ms: time(3),
            timeout_ms: time(4),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: i64 = 600_000;

    #[test]
    fn a_device_becomes_active_and_inactive_once() {
        let mut activity = Activity::default();
        assert_eq!(activity.check(1_000_000, DEFAULT), None);
        assert_eq!(activity.connected(1000), Some(ActivityEvent::Connected));
        assert_eq!(activity.connected(1000), None);
        assert_eq!(activity.heard(2000), Some(ActivityEvent::Active));
        assert_eq!(activity.heard(3000), None);
        assert_eq!(activity.check(602_999, DEFAULT), None);
        assert_eq!(activity.check(603_000, DEFAULT), Some(ActivityEvent::Inactive));
        assert_eq!(activity.check(700_000, DEFAULT), None);
        assert_eq!(activity.disconnected(700_000), Some(ActivityEvent::Disconnected));
        assert_eq!(activity.heard(800_000), Some(ActivityEvent::Active));
        assert_eq!(activity.inactivity_alarm_ms, 0);
    }

    #[test]
    fn a_timeout_of_its_own_counts() {
        let mut activity = Activity {
            timeout_ms: 10,
            ..Activity::default()
        };
        activity.heard(1000);
        assert_eq!(activity.check(1009, DEFAULT), None);
        assert_eq!(activity.check(1010, DEFAULT), Some(ActivityEvent::Inactive));
        assert_eq!(activity.json(ActivityEvent::Inactive, DEFAULT)["inactivityTimeout"], 10);
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let mut activity = Activity::default();
        activity.connected(1);
        activity.heard(2);
        assert_eq!(Activity::from_bytes(&activity.to_bytes()), Some(activity));
        assert_eq!(Activity::from_bytes(b"damaged"), None);
        assert_eq!(activity.attribute("active"), Some(Value::Bool(true)));
        assert_eq!(activity.attribute("lastDisconnectTime"), None);
        assert!(activity.json(ActivityEvent::Connected, DEFAULT).get("active").is_none());
    }
}
