//! Activity of a device: times of its last connect, activity, disconnect and inactivity. The record takes 48 bytes in
//! memory and 41 bytes on disk. It is saved periodically, not with every message.
//!
//! A time only grows, so that messages that arrive out of order do not set it back. If the clock was set back, a stored
//! time can be in the future. The next event then replaces it; otherwise the device would seem silent until that time.

use serde_json::{Value as Json, json};
use timeseries::PointValue;

/// ThingsBoard's server attributes for these values.
pub const KEYS: [&str; 6] = [
    "active",
    "lastConnectTime",
    "lastActivityTime",
    "lastDisconnectTime",
    "inactivityAlarmTime",
    "inactivityTimeout",
];

/// Server attribute with which a user sets the inactivity timeout of a device, in milliseconds.
pub const TIMEOUT_KEY: &str = "inactivityTimeout";

/// Times in milliseconds since 1970; 0 means never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    pub is_active: bool,
    pub last_connect_ms: i64,
    pub last_activity_ms: i64,
    pub last_disconnect_ms: i64,
    pub inactivity_alarm_ms: i64,
    /// 0 uses the platform's default.
    pub timeout_ms: i64,
}

/// Events for rule chains.
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

/// A stored time that is further ahead of the clock was recorded before the clock was set back.
const AHEAD_MAX_MS: i64 = 60_000;

/// Whether the time of an event replaces a stored one. `clock_ms` is the present time, or `None` during a replay: its
/// events are old.
fn replaces(at_ms: i64, stored_ms: i64, clock_ms: Option<i64>) -> bool {
    let is_ahead = clock_ms.is_some_and(|now_ms| stored_ms > now_ms.saturating_add(AHEAD_MAX_MS));
    at_ms > stored_ms || (is_ahead && at_ms < stored_ms)
}

impl Activity {
    /// Records a connect. Ignores it if it is not newer than the last known one, unless that is ahead of the clock.
    /// `clock_ms` is `None` during a replay.
    pub fn connected(&mut self, at_ms: i64, clock_ms: Option<i64>) -> Option<ActivityEvent> {
        if !replaces(at_ms, self.last_connect_ms, clock_ms) {
            return None;
        }
        self.last_connect_ms = at_ms;
        Some(ActivityEvent::Connected)
    }

    /// Like [`Activity::connected`].
    pub fn disconnected(&mut self, at_ms: i64, clock_ms: Option<i64>) -> Option<ActivityEvent> {
        if !replaces(at_ms, self.last_disconnect_ms, clock_ms) {
            return None;
        }
        self.last_disconnect_ms = at_ms;
        Some(ActivityEvent::Disconnected)
    }

    /// Records that the device sent something. Returns an event if the device was inactive. The times are as for
    /// [`Activity::connected`].
    pub fn record(&mut self, at_ms: i64, clock_ms: Option<i64>) -> Option<ActivityEvent> {
        if !replaces(at_ms, self.last_activity_ms, clock_ms) {
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

    /// Reports inactivity once, when the timeout has passed since the last activity.
    pub fn check(&mut self, now_ms: i64, default_timeout_ms: i64) -> Option<ActivityEvent> {
        let timeout_ms = self.timeout_ms(default_timeout_ms);
        if !self.is_active || now_ms < self.last_activity_ms.saturating_add(timeout_ms) {
            return None;
        }
        self.is_active = false;
        self.inactivity_alarm_ms = now_ms;
        Some(ActivityEvent::Inactive)
    }

    /// Reports inactivity once for a device that never sent anything, when the timeout has passed since its creation.
    pub fn first_inactivity(&mut self, created_ms: i64, now_ms: i64, default_timeout_ms: i64) -> Option<ActivityEvent> {
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

    /// The message body of an event.
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

    /// Returns a server attribute by name, or `None` for a time that has not occurred yet. After the first activity,
    /// the inactivity alarm time always has a value: 0 while the device is active.
    pub fn attribute(&self, key: &str) -> Option<PointValue> {
        let time = |at_ms: i64| (at_ms != 0).then_some(PointValue::Long(at_ms));
        match key {
            "active" => Some(PointValue::Bool(self.is_active)),
            "lastConnectTime" => time(self.last_connect_ms),
            "lastActivityTime" => time(self.last_activity_ms),
            "lastDisconnectTime" => time(self.last_disconnect_ms),
            "inactivityAlarmTime" if self.last_activity_ms != 0 => Some(PointValue::Long(self.inactivity_alarm_ms)),
            "inactivityAlarmTime" => time(self.inactivity_alarm_ms),
            _ => None,
        }
    }

    /// Time of the last change of these attributes; the creation time for a device that never sent anything.
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
    fn activity_changes_are_reported_once() {
        let mut activity = Activity::default();
        assert_eq!(activity.check(1_000_000, DEFAULT), None);
        assert_eq!(activity.connected(1000, None), Some(ActivityEvent::Connected));
        assert_eq!(activity.connected(1000, None), None);
        assert_eq!(activity.record(2000, None), Some(ActivityEvent::Active));
        assert_eq!(activity.record(3000, None), None);
        assert_eq!(activity.check(602_999, DEFAULT), None);
        assert_eq!(activity.check(603_000, DEFAULT), Some(ActivityEvent::Inactive));
        assert_eq!(activity.check(700_000, DEFAULT), None);
        assert_eq!(activity.disconnected(700_000, None), Some(ActivityEvent::Disconnected));
        assert_eq!(activity.record(800_000, None), Some(ActivityEvent::Active));
        assert_eq!(activity.inactivity_alarm_ms, 0);
    }

    #[test]
    fn time_ahead_of_the_clock_is_replaced() {
        let (ahead, now) = (10_000_000, 1_000_000);
        let mut activity = Activity::default();
        activity.connected(ahead, Some(ahead));
        activity.record(ahead, Some(ahead));
        activity.disconnected(ahead, Some(ahead));
        let before = activity;
        // A replay, and clocks that differ little.
        for clock in [None, Some(ahead - AHEAD_MAX_MS)] {
            assert_eq!(activity.connected(now, clock), None);
            assert_eq!(activity.record(now, clock), None);
            assert_eq!(activity.disconnected(now, clock), None);
        }
        // The check does not change times: the clock may be wrong for a while.
        assert_eq!(activity.check(now, DEFAULT), None);
        assert_eq!(activity, before);
        assert_eq!(activity.connected(now, Some(now)), Some(ActivityEvent::Connected));
        assert_eq!(activity.record(now, Some(now)), None, "the device is active already");
        assert_eq!(activity.disconnected(now, Some(now)), Some(ActivityEvent::Disconnected));
        let times = [
            activity.last_connect_ms,
            activity.last_activity_ms,
            activity.last_disconnect_ms,
        ];
        assert_eq!(times, [now; 3]);
        assert_eq!(activity.connected(now, Some(now)), None);
        assert_eq!(activity.check(now + DEFAULT, DEFAULT), Some(ActivityEvent::Inactive));
    }

    #[test]
    fn own_timeout_replaces_the_default() {
        let mut activity = Activity {
            timeout_ms: 10,
            ..Activity::default()
        };
        activity.record(1000, None);
        assert_eq!(activity.check(1009, DEFAULT), None);
        assert_eq!(activity.check(1010, DEFAULT), Some(ActivityEvent::Inactive));
        assert_eq!(activity.json(ActivityEvent::Inactive, DEFAULT)["inactivityTimeout"], 10);
    }

    #[test]
    fn activity_survives_write_and_read() {
        let mut activity = Activity::default();
        activity.connected(1, None);
        activity.record(2, None);
        assert_eq!(Activity::from_bytes(&activity.to_bytes()), Some(activity));
        assert_eq!(Activity::from_bytes(b"damaged"), None);
        assert_eq!(activity.attribute("active"), Some(PointValue::Bool(true)));
        assert_eq!(activity.attribute("lastDisconnectTime"), None);
        assert!(activity.json(ActivityEvent::Connected, DEFAULT).get("active").is_none());
    }
}
