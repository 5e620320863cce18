//! What each tenant uses: messages, values, rule nodes, scripts, alarms; per month and per hour, as ThingsBoard counts.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde_json::{Value as Json, json};

use crate::ids::{TenantId, Uuid};

const HOUR_MS: i64 = 3_600_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    /// Messages of devices.
    TransportMessages,
    /// Values in them.
    TransportPoints,
    /// Values that were stored, by their time to live in days.
    StoredPoints,
    RuleNodes,
    Scripts,
    CreatedAlarms,
}

impl Counter {
    pub const ALL: [Counter; 6] = [
        Counter::TransportMessages,
        Counter::TransportPoints,
        Counter::StoredPoints,
        Counter::RuleNodes,
        Counter::Scripts,
        Counter::CreatedAlarms,
    ];

    /// The key of the month; that of the hour has `Hourly` behind it.
    pub fn key(self) -> &'static str {
        match self {
            Counter::TransportMessages => "transportMsgCount",
            Counter::TransportPoints => "transportDataPointsCount",
            Counter::StoredPoints => "storageDataPointsCount",
            Counter::RuleNodes => "ruleEngineExecutionCount",
            Counter::Scripts => "jsExecutionCount",
            Counter::CreatedAlarms => "createdAlarmsCount",
        }
    }
}

impl Counter {
    /// Of the limit, among the time series of the usage state.
    pub fn limit_key(self) -> &'static str {
        match self {
            Counter::TransportMessages => "transportMsgLimit",
            Counter::TransportPoints => "transportDataPointsLimit",
            Counter::StoredPoints => "storageDataPointsLimit",
            Counter::RuleNodes => "ruleEngineExecutionLimit",
            Counter::Scripts => "jsExecutionLimit",
            Counter::CreatedAlarms => "createdAlarmsLimit",
        }
    }

    /// Of the limit, in a tenant profile.
    pub fn maximum_key(self) -> &'static str {
        match self {
            Counter::TransportMessages => "maxTransportMessages",
            Counter::TransportPoints => "maxTransportDataPoints",
            Counter::StoredPoints => "maxDPStorageDays",
            Counter::RuleNodes => "maxREExecutions",
            Counter::Scripts => "maxJSExecutions",
            Counter::CreatedAlarms => "maxCreatedAlarms",
        }
    }
}

/// A point of the tenant's usage: its time is the beginning of the month or hour that it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsagePoint {
    pub tenant: TenantId,
    pub key: String,
    pub ts_ms: i64,
    pub value: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    month_ms: i64,
    hour_ms: i64,
    month: [u64; 6],
    hour: [u64; 6],
    /// Since the last report.
    is_changed: bool,
    /// Since it was kept.
    is_unsaved: bool,
}

#[derive(Debug, Default)]
pub struct Usage {
    tenants: hashbrown::HashMap<TenantId, Counts, foldhash::fast::RandomState>,
    /// As they were told last.
    devices: hashbrown::HashMap<TenantId, DeviceCounts, foldhash::fast::RandomState>,
}

/// Of a tenant, at some time of an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DeviceCounts {
    hour_ms: i64,
    active: u64,
    inactive: u64,
}

impl Usage {
    pub fn add(&mut self, tenant: TenantId, counter: Counter, count: u64, now_ms: i64) {
        if count == 0 {
            return;
        }
        let counts = self.tenants.entry(tenant).or_default();
        counts.roll(now_ms);
        counts.month[counter as usize] += count;
        counts.hour[counter as usize] += count;
        (counts.is_changed, counts.is_unsaved) = (true, true);
    }

    /// Of this month.
    pub fn get(&self, tenant: TenantId, counter: Counter) -> u64 {
        self.tenants
            .get(&tenant)
            .map_or(0, |counts| counts.month[counter as usize])
    }

    /// Counts of a month that is over are none of this one, also of a tenant that may do nothing any more.
    pub fn roll(&mut self, now_ms: i64) {
        for counts in self.tenants.values_mut() {
            let before = (counts.hour_ms, counts.month_ms);
            counts.roll(now_ms);
            let is_new = before != (counts.hour_ms, counts.month_ms);
            counts.is_changed |= is_new;
            counts.is_unsaved |= is_new;
        }
    }

    /// What changed since the last report; saving a point again replaces it.
    pub fn report(&mut self) -> Vec<UsagePoint> {
        let mut points = Vec::new();
        for (tenant, counts) in self.tenants.iter_mut().filter(|(_, counts)| counts.is_changed) {
            counts.is_changed = false;
            for counter in Counter::ALL {
                let point = |key: String, ts_ms, value| UsagePoint {
                    tenant: *tenant,
                    key,
                    ts_ms,
                    value,
                };
                let key = counter.key();
                points.push(point(key.to_owned(), counts.month_ms, counts.month[counter as usize]));
                points.push(point(
                    format!("{key}Hourly"),
                    counts.hour_ms,
                    counts.hour[counter as usize],
                ));
            }
        }
        points
    }

    /// How many devices are active and how many are not, where that is not as it was told in this hour.
    pub fn report_devices(
        &mut self,
        counts: impl IntoIterator<Item = (TenantId, u64, u64)>,
        now_ms: i64,
    ) -> Vec<UsagePoint> {
        let mut now = Counts::default();
        now.roll(now_ms);
        let mut points = Vec::new();
        for (tenant, active, inactive) in counts {
            let told = DeviceCounts {
                hour_ms: now.hour_ms,
                active,
                inactive,
            };
            if self.devices.insert(tenant, told) == Some(told) {
                continue;
            }
            for (key, value) in [("activeDevicesCount", active), ("inactiveDevicesCount", inactive)] {
                for (key, ts_ms) in [(key.to_owned(), now.month_ms), (format!("{key}Hourly"), now.hour_ms)] {
                    points.push(UsagePoint {
                        tenant,
                        key,
                        ts_ms,
                        value,
                    });
                }
            }
        }
        points
    }

    /// For the next start, by tenant: what changed since [`Usage::saved`].
    pub fn unsaved(&self) -> impl Iterator<Item = (Uuid, Vec<u8>)> + '_ {
        let unsaved = self.tenants.iter().filter(|(_, counts)| counts.is_unsaved);
        unsaved.map(|(tenant, counts)| {
            let json = json!({"month": counts.month_ms, "hour": counts.hour_ms, "monthly": counts.month, "hourly": counts.hour});
            (tenant.0, json.to_string().into_bytes())
        })
    }

    /// All that was unsaved is kept.
    pub fn saved(&mut self) {
        self.tenants.values_mut().for_each(|counts| counts.is_unsaved = false);
    }

    /// What cannot be read begins at zero.
    pub fn restore(&mut self, tenant: Uuid, bytes: &[u8]) {
        let Ok(json) = serde_json::from_slice::<Json>(bytes) else {
            return;
        };
        let all = |name: &str| std::array::from_fn(|index| json[name][index].as_u64().unwrap_or(0));
        let counts = Counts {
            month_ms: json["month"].as_i64().unwrap_or(0),
            hour_ms: json["hour"].as_i64().unwrap_or(0),
            month: all("monthly"),
            hour: all("hourly"),
            is_changed: false,
            is_unsaved: false,
        };
        self.tenants.insert(TenantId(tenant), counts);
    }
}

impl Counts {
    /// A new month or hour begins at zero.
    fn roll(&mut self, now_ms: i64) {
        if now_ms < self.hour_ms + HOUR_MS && self.hour_ms != 0 {
            return;
        }
        self.hour_ms = now_ms.div_euclid(HOUR_MS) * HOUR_MS;
        self.hour = [0; 6];
        let month_ms = month_start(now_ms);
        if month_ms != self.month_ms {
            self.month_ms = month_ms;
            self.month = [0; 6];
        }
    }
}

/// In UTC.
fn month_start(now_ms: i64) -> i64 {
    let Ok(now) = Timestamp::from_millisecond(now_ms) else {
        return 0;
    };
    let date: Date = now.to_zoned(TimeZone::UTC).date();
    let first = date.checked_sub(i64::from(date.day() - 1).days());
    let first = first.and_then(|first| first.to_zoned(TimeZone::UTC));
    first.map_or(0, |first| first.timestamp().as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2024-02-29, 23:30 UTC.
    const LATE: i64 = 1_709_249_400_000;
    const TENANT: TenantId = TenantId(Uuid([1; 16]));

    #[test]
    fn counts_of_devices_are_told_when_they_change_and_in_each_hour() {
        let mut usage = Usage::default();
        let tenant = TenantId(Uuid([1; 16]));
        let hour = 1_700_000_000_000 / HOUR_MS * HOUR_MS;
        let mut told = |active, now_ms| {
            let points = usage.report_devices([(tenant, active, 5)], now_ms);
            let points = points.into_iter().map(|point| (point.key, point.ts_ms, point.value));
            points
                .filter(|(key, ..)| key == "activeDevicesCountHourly")
                .collect::<Vec<_>>()
        };
        let point = |ts_ms, value| vec![("activeDevicesCountHourly".to_owned(), ts_ms, value)];
        assert_eq!(told(1, hour), point(hour, 1));
        assert_eq!(told(1, hour + 60_000), Vec::new());
        assert_eq!(told(2, hour + 120_000), point(hour, 2));
        assert_eq!(told(2, hour + HOUR_MS), point(hour + HOUR_MS, 2));
    }

    #[test]
    fn counts_are_of_the_month_and_of_the_hour() {
        let mut usage = Usage::default();
        usage.add(TENANT, Counter::TransportMessages, 5, LATE - HOUR_MS);
        usage.add(TENANT, Counter::TransportMessages, 3, LATE);
        let find = |points: &[UsagePoint], key: &str| {
            let point = points.iter().find(|point| point.key == key).unwrap();
            (point.ts_ms, point.value)
        };
        let points = usage.report();
        // 2024-02-01 and 2024-02-29, 23:00.
        assert_eq!(find(&points, "transportMsgCount"), (1_706_745_600_000, 8));
        assert_eq!(find(&points, "transportMsgCountHourly"), (1_709_247_600_000, 3));
        assert!(usage.report().is_empty());
        usage.add(TENANT, Counter::TransportMessages, 1, LATE + HOUR_MS);
        let points = usage.report();
        assert_eq!(find(&points, "transportMsgCount"), (1_709_251_200_000, 1));
    }

    #[test]
    fn counts_survive_a_restart() {
        let mut usage = Usage::default();
        usage.add(TENANT, Counter::StoredPoints, 7, LATE);
        let states: Vec<_> = usage.unsaved().collect();
        usage.saved();
        assert_eq!(usage.unsaved().count(), 0);
        let mut restarted = Usage::default();
        restarted.restore(states[0].0, &states[0].1);
        restarted.add(TENANT, Counter::StoredPoints, 1, LATE + 1);
        assert_eq!(restarted.get(TENANT, Counter::StoredPoints), 8);
    }
}
