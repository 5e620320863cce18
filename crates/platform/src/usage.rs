//! Counts the usage of tenants per month and per hour: messages, values, rule nodes, scripts and alarms. The counts
//! follow ThingsBoard.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use serde_json::{Value as Json, json};

use crate::ids::{TenantId, Uuid, named_enum};

const HOUR_MS: i64 = 3_600_000;

named_enum! {
    /// A counter of a tenant. Its name is the key of the monthly count; the hourly one has the suffix `Hourly`.
    pub enum UsageCounter {
        /// Device messages.
        TransportMessages "transportMsgCount",
        /// Values in device messages.
        TransportPoints "transportDataPointsCount",
        /// Stored values, weighted by their time to live in days.
        StoredPoints "storageDataPointsCount",
        RuleNodes "ruleEngineExecutionCount",
        Scripts "jsExecutionCount",
        CreatedAlarms "createdAlarmsCount",
    }
}

impl UsageCounter {
    /// Key of the limit in the time series of the usage state.
    pub fn limit_key(self) -> String {
        self.name().replace("Count", "Limit")
    }

    /// Key of the limit in a tenant profile.
    pub fn maximum_key(self) -> &'static str {
        match self {
            UsageCounter::TransportMessages => "maxTransportMessages",
            UsageCounter::TransportPoints => "maxTransportDataPoints",
            UsageCounter::StoredPoints => "maxDPStorageDays",
            UsageCounter::RuleNodes => "maxREExecutions",
            UsageCounter::Scripts => "maxJSExecutions",
            UsageCounter::CreatedAlarms => "maxCreatedAlarms",
        }
    }
}

/// A point of the tenant's usage. Its time is the start of the counted month or hour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsagePoint {
    pub tenant: TenantId,
    pub key: String,
    pub ts_ms: i64,
    pub value: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UsageCounts {
    month_ms: i64,
    hour_ms: i64,
    month: [u64; 6],
    hour: [u64; 6],
    /// Changed since the last report.
    is_changed: bool,
    /// Changed since it was saved.
    is_unsaved: bool,
}

#[derive(Debug, Default)]
pub struct ApiUsage {
    tenants: hashbrown::HashMap<TenantId, UsageCounts, foldhash::fast::RandomState>,
    /// The device counts that [`Usage::report_devices`] returned last.
    devices: hashbrown::HashMap<TenantId, DeviceCounts, foldhash::fast::RandomState>,
}

/// Device counts of a tenant, and the hour of their report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DeviceCounts {
    hour_ms: i64,
    active: u64,
    inactive: u64,
}

impl ApiUsage {
    pub fn add(&mut self, tenant: TenantId, counter: UsageCounter, count: u64, now_ms: i64) {
        if count == 0 {
            return;
        }
        let counts = self.tenants.entry(tenant).or_default();
        counts.reset_past_periods(now_ms);
        counts.month[counter as usize] += count;
        counts.hour[counter as usize] += count;
        (counts.is_changed, counts.is_unsaved) = (true, true);
    }

    /// The count of this month.
    pub fn get(&self, tenant: TenantId, counter: UsageCounter) -> u64 {
        self.tenants
            .get(&tenant)
            .map_or(0, |counts| counts.month[counter as usize])
    }

    /// Resets counts of past months and hours, also for tenants without messages.
    pub fn reset_past_periods(&mut self, now_ms: i64) {
        for counts in self.tenants.values_mut() {
            let before = (counts.hour_ms, counts.month_ms);
            counts.reset_past_periods(now_ms);
            let is_new = before != (counts.hour_ms, counts.month_ms);
            counts.is_changed |= is_new;
            counts.is_unsaved |= is_new;
        }
    }

    /// Returns the points that changed since the last report. A point with the same time replaces the earlier one.
    pub fn report(&mut self) -> Vec<UsagePoint> {
        let mut points = Vec::new();
        for (tenant, counts) in self.tenants.iter_mut().filter(|(_, counts)| counts.is_changed) {
            counts.is_changed = false;
            for counter in UsageCounter::ALL {
                let point = |key: String, ts_ms, value| UsagePoint {
                    tenant: *tenant,
                    key,
                    ts_ms,
                    value,
                };
                let key = counter.name();
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

    /// Returns the numbers of active and inactive devices that differ from the last report in this hour.
    pub fn report_devices(
        &mut self,
        counts: impl IntoIterator<Item = (TenantId, u64, u64)>,
        now_ms: i64,
    ) -> Vec<UsagePoint> {
        let mut now = UsageCounts::default();
        now.reset_past_periods(now_ms);
        let mut points = Vec::new();
        for (tenant, active, inactive) in counts {
            let reported = DeviceCounts {
                hour_ms: now.hour_ms,
                active,
                inactive,
            };
            if self.devices.insert(tenant, reported) == Some(reported) {
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

    /// Returns the counts to save for the next start, of tenants whose counts changed since [`ApiUsage::saved`].
    pub fn unsaved(&self) -> impl Iterator<Item = (Uuid, Vec<u8>)> + '_ {
        let unsaved = self.tenants.iter().filter(|(_, counts)| counts.is_unsaved);
        unsaved.map(|(tenant, counts)| {
            let json = json!({"month": counts.month_ms, "hour": counts.hour_ms, "monthly": counts.month, "hourly": counts.hour});
            (tenant.0, json.to_string().into_bytes())
        })
    }

    /// Marks everything as saved.
    pub fn saved(&mut self) {
        self.tenants.values_mut().for_each(|counts| counts.is_unsaved = false);
    }

    /// Restores saved counts. Counts that cannot be decoded start at zero.
    pub fn restore(&mut self, tenant: Uuid, bytes: &[u8]) {
        let Ok(json) = serde_json::from_slice::<Json>(bytes) else {
            return;
        };
        let all = |name: &str| std::array::from_fn(|index| json[name][index].as_u64().unwrap_or(0));
        let counts = UsageCounts {
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

impl UsageCounts {
    /// Resets the counts when a new month or hour begins.
    fn reset_past_periods(&mut self, now_ms: i64) {
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

/// The start of the month in UTC.
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
    fn device_counts_are_reported_on_change_and_hourly() {
        let mut usage = ApiUsage::default();
        let tenant = TenantId(Uuid([1; 16]));
        let hour = 1_700_000_000_000 / HOUR_MS * HOUR_MS;
        let mut report = |active, now_ms| {
            let points = usage.report_devices([(tenant, active, 5)], now_ms);
            let points = points.into_iter().map(|point| (point.key, point.ts_ms, point.value));
            points
                .filter(|(key, ..)| key == "activeDevicesCountHourly")
                .collect::<Vec<_>>()
        };
        let point = |ts_ms, value| vec![("activeDevicesCountHourly".to_owned(), ts_ms, value)];
        assert_eq!(report(1, hour), point(hour, 1));
        assert_eq!(report(1, hour + 60_000), Vec::new());
        assert_eq!(report(2, hour + 120_000), point(hour, 2));
        assert_eq!(report(2, hour + HOUR_MS), point(hour + HOUR_MS, 2));
    }

    #[test]
    fn counts_are_kept_per_month_and_hour() {
        let mut usage = ApiUsage::default();
        usage.add(TENANT, UsageCounter::TransportMessages, 5, LATE - HOUR_MS);
        usage.add(TENANT, UsageCounter::TransportMessages, 3, LATE);
        let find = |points: &[UsagePoint], key: &str| {
            let point = points.iter().find(|point| point.key == key).unwrap();
            (point.ts_ms, point.value)
        };
        let points = usage.report();
        // 2024-02-01 and 2024-02-29, 23:00.
        assert_eq!(find(&points, "transportMsgCount"), (1_706_745_600_000, 8));
        assert_eq!(find(&points, "transportMsgCountHourly"), (1_709_247_600_000, 3));
        assert!(usage.report().is_empty());
        usage.add(TENANT, UsageCounter::TransportMessages, 1, LATE + HOUR_MS);
        let points = usage.report();
        assert_eq!(find(&points, "transportMsgCount"), (1_709_251_200_000, 1));
    }

    #[test]
    fn counts_survive_a_restart() {
        let mut usage = ApiUsage::default();
        usage.add(TENANT, UsageCounter::StoredPoints, 7, LATE);
        let states: Vec<_> = usage.unsaved().collect();
        usage.saved();
        assert_eq!(usage.unsaved().count(), 0);
        let mut restarted = ApiUsage::default();
        restarted.restore(states[0].0, &states[0].1);
        restarted.add(TENANT, UsageCounter::StoredPoints, 1, LATE + 1);
        assert_eq!(restarted.get(TENANT, UsageCounter::StoredPoints), 8);
    }
}
