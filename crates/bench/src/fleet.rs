//! A scenario whose clients are devices of a platform: makes them over ThingsBoard's REST interface before the run, as its load tool
//! does, and counts afterwards what is stored, over the same interface.
//!
//! What is counted is points: of each device the values of each key since the run began, and what the platform says that the tenant used
//! meanwhile. Both have to be what publishers saw acknowledged (at QoS 0: what they sent), times the keys of a message.

mod rest;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::load::{Names, expand};
use crate::result::{FleetResult, RunResult, Verdict};
use crate::scenario::{Fleet, Scenario};
pub use rest::Access;
use rest::Session;

/// Requests at the same time, as the load tool has it.
const REQUESTS: usize = 4;
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// No run is longer.
const END_MS: u64 = 400 * 86_400_000;

/// The devices of a run, from before its first message to the count of its points.
pub struct Devices {
    access: Access,
    fleet: Fleet,
    drain: Duration,
    ids: Vec<String>,
    began_ms: u64,
    /// Points that the tenant had used this month.
    used_before: Option<u64>,
}

impl Devices {
    /// All are there when it returns; those that were there before are used as they are.
    pub fn make(scenario: &Scenario, fleet: &Fleet, access: &Access, run: u16) -> Result<Devices, String> {
        let session = access.log_in()?;
        let profile = profile_id(&session, fleet)?;
        let names = names(scenario, run);
        let ids = each(&names, |name| device_id(&session, name, &profile))?;
        Ok(Devices {
            access: access.clone(),
            fleet: fleet.clone(),
            drain: Duration::from_secs_f64(scenario.drain_s),
            ids,
            began_ms: now_ms(),
            used_before: used(&session),
        })
    }

    /// Waits until everything is stored that was acknowledged, or nothing more comes, and adds the count to the result.
    pub fn conclude(self, result: &mut RunResult) -> Result<(), String> {
        let session = self.access.log_in()?;
        let keys = self.fleet.keys.split(',').count() as u64;
        let totals = &result.totals;
        let kept = match is_acknowledged(&result.scenario) {
            true => totals.acknowledged - totals.refused.min(totals.acknowledged),
            false => totals.published,
        };
        let expected = kept * keys;
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

    /// Points of all devices since the run began.
    fn count(&self, session: &Session) -> Result<u64, String> {
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

    /// As the tenant's usage since the run began.
    fn counted(&self, session: &Session) -> Option<u64> {
        used(session)?.checked_sub(self.used_before?)
    }

    /// That were made since the run began.
    fn alarms(&self, session: &Session) -> Result<u64, String> {
        let path = format!("/api/alarms?pageSize=1&page=0&startTime={}", self.began_ms);
        Ok(session.get(&path)?["totalElements"].as_u64().unwrap_or(0))
    }
}

/// Points of devices, this month. ThingsBoard says it since 3.5.
fn used(session: &Session) -> Option<u64> {
    session.get("/api/usage").ok()?["transportDataPoints"].as_u64()
}

/// `{"key":[{"ts":…,"value":"42"}],…}`: one interval per key.
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

/// What devices are called, which is their access token too: the user names of all clients.
fn names(scenario: &Scenario, run: u16) -> Vec<String> {
    let mut names = Vec::new();
    for group in &scenario.group {
        let Some(pattern) = &group.user_name else { continue };
        for index in 0..u64::from(group.clients) {
            names.push(expand(
                pattern,
                &Names {
                    number: u64::from(group.start_number) + index,
                    group: &group.name,
                    run,
                    ..Names::default()
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

/// Does it for all, some at a time, and gives the results in order.
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

fn device_id(session: &Session, name: &str, profile: &str) -> Result<String, String> {
    let device = json!({
        "name": name,
        "type": "device",
        "deviceProfileId": {"entityType": "DEVICE_PROFILE", "id": profile},
    });
    let made = session.post(&format!("/api/device?accessToken={name}"), &device);
    let device = match made {
        // Of another run.
        Err(error) if error.contains("already exists") => {
            session.get(&format!("/api/tenant/devices?deviceName={name}"))?
        }
        made => made?,
    };
    id_of(&device)
}

fn id_of(entity: &Value) -> Result<String, String> {
    let id = entity["id"]["id"].as_str().map(str::to_owned);
    id.ok_or_else(|| format!("the platform gives an entity without an identifier: {entity}"))
}

fn profile_id(session: &Session, fleet: &Fleet) -> Result<String, String> {
    let name = &profile_name(fleet);
    let all = session.get(&format!("/api/deviceProfiles?pageSize=1000&page=0&textSearch={name}"))?;
    let found = all["data"].as_array().into_iter().flatten();
    if let Some(profile) = found.into_iter().find(|profile| profile["name"] == name.as_str()) {
        return id_of(profile);
    }
    id_of(&session.post("/api/deviceProfile", &profile(fleet))?)
}

/// A profile that is there is used as it is.
fn profile_name(fleet: &Fleet) -> String {
    match fleet.alarms_clear {
        true => format!("{}_CLEARING", fleet.profile),
        false => fleet.profile.clone(),
    }
}

/// That of the load tool; its alarms never clear, unless the scenario says so.
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

fn verdict(found: &FleetResult, most: u64) -> Verdict {
    let FleetResult {
        expected_points: expected,
        stored_points: stored,
        counted_points: counted,
        ..
    } = *found;
    let lost = expected.saturating_sub(stored);
    let more = stored.saturating_sub(expected);
    let all = expected..=most.max(expected);
    let said = counted
        .map(|counted| format!(", {counted} counted as usage"))
        .unwrap_or_default();
    Verdict {
        rule: "the platform has what was acknowledged".into(),
        found: format!("{expected} points acknowledged, {stored} stored{said}: {lost} lost, {more} more"),
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
    fn counts_are_added_over_keys_and_intervals() {
        let answer = json!({"a": [{"ts": 1, "value": "40"}], "b": [{"ts": 1, "value": 2}], "c": []});
        assert_eq!((counted(&answer), counted(&json!({}))), (42, 0));
    }

    #[test]
    fn what_is_stored_is_judged_by_what_was_acknowledged_and_published() {
        for (expected, stored, counted, most, is_met, said) in [
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
            assert!(verdict.is_met == is_met && verdict.found.contains(said), "{verdict:?}");
        }
    }

    #[test]
    fn all_are_done_in_order_and_an_error_ends_it() {
        let all: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let done = each(&all, |one| Ok(one.to_owned()));
        assert_eq!(done.as_ref(), Ok(&all));
        let failed = each(&all, |one| if one == "50" { Err("no".to_owned()) } else { Ok(()) });
        assert_eq!(failed, Err("no".to_owned()));
    }
}
