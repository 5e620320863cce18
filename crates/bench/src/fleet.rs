//! A scenario whose clients are devices of a platform: creates the devices over ThingsBoard's REST interface before the
//! run, as ThingsBoard's load tool does, and counts the stored points over the same interface after the run.
//!
//! Two counts are compared: the stored values of each key of each device since the run began, and the points that the
//! platform counts as usage of the tenant. Both must equal the acknowledged publishes (at QoS 0: the sent ones) times
//! the keys of a message.

mod rest;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::load::{PatternValues, expand};
use crate::result::{FleetResult, RunResult, ThresholdVerdict};
use crate::scenario::{Fleet, Scenario};
pub use rest::PlatformLogin;
use rest::RestSession;

/// Concurrent requests: the value of the load tool.
const REQUESTS: usize = 4;
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// End of the counted time range, after the start of the run: longer than any run.
const END_MS: u64 = 400 * 86_400_000;

/// The devices of a run: created before its first message, concluded with the count of their points.
pub struct RunDevices {
    access: PlatformLogin,
    fleet: Fleet,
    drain: Duration,
    ids: Vec<String>,
    began_ms: u64,
    /// Points of this month's usage of the tenant before the run.
    used_before: Option<u64>,
}

impl RunDevices {
    /// Creates the devices; devices that exist already are used as they are.
    pub fn make(scenario: &Scenario, fleet: &Fleet, access: &PlatformLogin, run: u16) -> Result<RunDevices, String> {
        let session = access.log_in()?;
        let profile = profile_id(&session, fleet)?;
        let names = names(scenario, run);
        let ids = each(&names, |name| device_id(&session, name, &profile))?;
        Ok(RunDevices {
            access: access.clone(),
            fleet: fleet.clone(),
            drain: Duration::from_secs_f64(scenario.drain_s),
            ids,
            began_ms: now_ms(),
            used_before: used(&session),
        })
    }

    /// Waits until all expected points are stored, or no more arrive, and adds the count to the result.
    pub fn conclude(self, result: &mut RunResult) -> Result<(), String> {
        let session = self.access.log_in()?;
        let keys = self.fleet.keys.split(',').count() as u64;
        let totals = &result.totals;
        let expected_messages = match is_acknowledged(&result.scenario) {
            true => totals.acknowledged - totals.refused.min(totals.acknowledged),
            false => totals.published,
        };
        let expected = expected_messages * keys;
        let started = Instant::now();
        let (mut stored, mut changed) = (self.count(&session)?, Instant::now());
        let mut counted = self.counted(&session);
        while (stored < expected || counted.is_some_and(|counted| counted < expected)) && changed.elapsed() < self.drain
        {
            thread::sleep(LOOK_EVERY);
            let now = (self.count(&session)?, self.counted(&session));
            if now != (stored, counted) {
                ((stored, counted), changed) = (now, Instant::now());
            }
        }
        let found = FleetResult {
            devices: self.ids.len() as u64,
            expected_points: expected,
            stored_points: stored,
            counted_points: counted,
            all_there_s: (stored >= expected).then(|| started.elapsed().as_secs_f64()),
            alarms: self.alarms(&session)?,
        };
        result.verdicts.push(verdict(&found, totals.published * keys));
        result.fleet = Some(found);
        Ok(())
    }

    /// Returns the stored points of all devices since the run began.
    fn count(&self, session: &RestSession) -> Result<u64, String> {
        let counts = each(&self.ids, |id| {
            let (start, end) = (self.began_ms, self.began_ms + END_MS);
            let path = format!(
                "/api/plugins/telemetry/DEVICE/{id}/values/timeseries?keys={}&startTs={start}&endTs={end}&interval={END_MS}&agg=COUNT",
                self.fleet.keys
            );
            let answer = session.get(&path)?;
            Ok(counted(&answer))
        })?;
        Ok(counts.iter().sum())
    }

    /// Returns the points counted as usage of the tenant since the run began.
    fn counted(&self, session: &RestSession) -> Option<u64> {
        used(session)?.checked_sub(self.used_before?)
    }

    /// Returns the number of alarms created since the run began.
    fn alarms(&self, session: &RestSession) -> Result<u64, String> {
        let path = format!("/api/alarms?pageSize=1&page=0&startTime={}", self.began_ms);
        Ok(session.get(&path)?["totalElements"].as_u64().unwrap_or(0))
    }
}

/// Returns the points of devices in this month's usage. ThingsBoard reports them since version 3.5.
fn used(session: &RestSession) -> Option<u64> {
    session.get("/api/usage").ok()?["transportDataPoints"].as_u64()
}

/// Sums the counts of an answer `{"key":[{"ts":…,"value":"42"}],…}`: one interval per key.
fn counted(answer: &Value) -> u64 {
    let keys = answer.as_object().into_iter().flatten();
    let intervals = keys.filter_map(|(_, intervals)| intervals.as_array()).flatten();
    intervals
        .filter_map(|interval| match &interval["value"] {
            Value::String(text) => text.parse().ok(),
            value => value.as_u64(),
        })
        .sum()
}

/// Returns the names of the devices, which are also their access tokens: the user names of all clients.
fn names(scenario: &Scenario, run: u16) -> Vec<String> {
    let mut names = Vec::new();
    for group in &scenario.group {
        let Some(pattern) = &group.user_name else { continue };
        for index in 0..u64::from(group.clients) {
            names.push(expand(
                pattern,
                &PatternValues {
                    number: u64::from(group.start_number) + index,
                    group: &group.name,
                    run,
                    ..PatternValues::default()
                },
            ));
        }
    }
    names
}

fn is_acknowledged(scenario: &Scenario) -> bool {
    let mut publishes = scenario.group.iter().filter_map(|group| group.publish.as_ref());
    publishes.all(|publish| publish.qos > 0)
}

/// Calls `act` for all, some at a time, and returns the results in order.
fn each<R: Send>(all: &[String], act: impl Fn(&str) -> Result<R, String> + Sync) -> Result<Vec<R>, String> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(all.len()));
    let work = || -> Result<(), String> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(one) = all.get(index) else { return Ok(()) };
            let result = act(one)?;
            let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            done.push((index, result));
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..REQUESTS).map(|_| scope.spawn(work)).collect();
        let mut ends = workers.into_iter().map(|worker| worker.join());
        ends.try_for_each(|end| end.unwrap_or_else(|_| Err("a worker failed".into())))
    })?;
    let mut done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

fn device_id(session: &RestSession, name: &str, profile: &str) -> Result<String, String> {
    let device = json!({
        "name": name,
        "type": "device",
        "deviceProfileId": {"entityType": "DEVICE_PROFILE", "id": profile},
    });
    let made = session.post(&format!("/api/device?accessToken={name}"), &device);
    let device = match made {
        // A device of an earlier run.
        Err(error) if error.contains("already exists") => {
            session.get(&format!("/api/tenant/devices?deviceName={name}"))?
        }
        made => made?,
    };
    id_of(&device)
}

fn id_of(entity: &Value) -> Result<String, String> {
    let id = entity["id"]["id"].as_str().map(str::to_owned);
    id.ok_or_else(|| format!("the platform sent an entity without an id: {entity}"))
}

fn profile_id(session: &RestSession, fleet: &Fleet) -> Result<String, String> {
    let name = &profile_name(fleet);
    let all = session.get(&format!("/api/deviceProfiles?pageSize=1000&page=0&textSearch={name}"))?;
    let found = all["data"].as_array().into_iter().flatten();
    if let Some(profile) = found.into_iter().find(|profile| profile["name"] == name.as_str()) {
        return id_of(profile);
    }
    id_of(&session.post("/api/deviceProfile", &profile(fleet))?)
}

/// Returns the name of the device profile. An existing profile of this name is used as it is.
fn profile_name(fleet: &Fleet) -> String {
    match fleet.alarms_clear {
        true => format!("{}_CLEARING", fleet.profile),
        false => fleet.profile.clone(),
    }
}

/// Returns the device profile of the load tool; its alarms never clear, unless the scenario asks for it.
fn profile(fleet: &Fleet) -> Value {
    let battery = |operation: &str, than: u32| {
        json!({
            "key": {"type": "TIME_SERIES", "key": "batteryLevel"},
            "valueType": "NUMERIC",
            "predicate": {"type": "NUMERIC", "operation": operation, "value": {"defaultValue": than}},
        })
    };
    let rule = |conditions: Vec<Value>| json!({"condition": {"condition": conditions, "spec": {"type": "SIMPLE"}}});
    let clear = match fleet.alarms_clear {
        true => rule(vec![battery("GREATER", 20)]),
        false => rule(vec![battery("GREATER", 20), battery("EQUAL", 0)]),
    };
    json!({
        "name": profile_name(fleet),
        "type": "DEFAULT",
        "transportType": "DEFAULT",
        "provisionType": "DISABLED",
        "profileData": {
            "configuration": {"type": "DEFAULT"},
            "transportConfiguration": {"type": "DEFAULT"},
            "provisionConfiguration": {"type": "DISABLED", "provisionDeviceSecret": null},
            "alarms": [{
                "id": "battery-low",
                "alarmType": "battery low",
                "createRules": {"CRITICAL": rule(vec![battery("LESS_OR_EQUAL", 20)])},
                "clearRule": clear,
                "propagate": false,
            }],
        },
    })
}

fn verdict(found: &FleetResult, most: u64) -> ThresholdVerdict {
    let FleetResult {
        expected_points: expected,
        stored_points: stored,
        counted_points: counted,
        ..
    } = *found;
    let lost = expected.saturating_sub(stored);
    let more = stored.saturating_sub(expected);
    let all = expected..=most.max(expected);
    let usage = counted
        .map(|counted| format!(", {counted} counted as usage"))
        .unwrap_or_default();
    ThresholdVerdict {
        rule: "the platform has the acknowledged points".into(),
        found: format!("{expected} points acknowledged, {stored} stored{usage}: {lost} lost, {more} more"),
        is_met: all.contains(&stored) && counted.is_none_or(|counted| all.contains(&counted)),
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_sums_keys_and_intervals() {
        let answer = json!({"a": [{"ts": 1, "value": "40"}], "b": [{"ts": 1, "value": 2}], "c": []});
        assert_eq!((counted(&answer), counted(&json!({}))), (42, 0));
    }

    #[test]
    fn verdict_compares_with_acknowledged_and_published() {
        for (expected, stored, counted, most, is_met, usage) in [
            (30, 30, None, 30, true, "0 lost, 0 more"),
            (30, 30, Some(30), 30, true, "30 counted as usage: 0 lost"),
            (30, 30, Some(27), 30, false, "27 counted as usage: 0 lost"),
            (30, 27, Some(30), 30, false, "3 lost, 0 more"),
            (30, 33, Some(33), 33, true, "0 lost, 3 more"),
            (30, 36, None, 33, false, "0 lost, 6 more"),
        ] {
            let found = FleetResult {
                expected_points: expected,
                stored_points: stored,
                counted_points: counted,
                ..FleetResult::default()
            };
            let verdict = verdict(&found, most);
            assert!(verdict.is_met == is_met && verdict.found.contains(usage), "{verdict:?}");
        }
    }

    #[test]
    fn each_returns_results_in_order_or_first_error() {
        let all: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let done = each(&all, |one| Ok(one.to_owned()));
        assert_eq!(done.as_ref(), Ok(&all));
        let failed = each(&all, |one| if one == "50" { Err("no".to_owned()) } else { Ok(()) });
        assert_eq!(failed, Err("no".to_owned()));
    }
}
