//! What no type says: whether a scenario makes sense, and whether MQTT permits what it wants to send.

use std::collections::HashSet;

use mqtt::{SharedFilter, validate_filter, validate_topic_name};

use crate::load::{random_bound, random_length};

use super::{Fleet, Group, Payload, Presence, Publish, Scenario, Subscribe, ToKafka};

/// A day less than three years; beyond, nanoseconds since the start would need care.
const SECONDS_MAX: f64 = 1e8;
/// The largest packet has a remaining length of 268,435,455 bytes, of which the topic needs some [MQTT-1.5.5-1].
pub const PAYLOAD_BYTES_MAX: u32 = 268_000_000;
/// Bytes of a client id, topic or filter: strings have two bytes for their length.
const STRING_BYTES_MAX: usize = u16::MAX as usize;
const RATE_MAX: f64 = 1e9;

/// Paths like "group.0.publish.rate", and what is wrong there.
type Wrong = Vec<(String, String)>;

pub fn check(scenario: &Scenario) -> Wrong {
    let mut wrong = Wrong::new();
    let mut say = |key: &str, message: &str| wrong.push((key.into(), message.into()));
    if scenario.name.is_empty() {
        say("name", "a scenario has a name");
    }
    if !(0.0..=SECONDS_MAX).contains(&scenario.duration_s) {
        say("duration_s", "expected seconds from 0 to 100000000");
    }
    if !(0.0..=SECONDS_MAX).contains(&scenario.warm_up_s) {
        say("warm_up_s", "expected seconds from 0 to 100000000");
    }
    if !(0.0..=SECONDS_MAX).contains(&scenario.drain_s) {
        say("drain_s", "expected seconds from 0 to 100000000");
    }
    if !(0.0..=RATE_MAX).contains(&scenario.connect_rate) {
        say(
            "connect_rate",
            "expected connects per second, 0 for as fast as possible",
        );
    }
    if scenario.connecting_max == 0 {
        say("connecting_max", "expected at least 1: otherwise nobody could connect");
    }
    if scenario.group.is_empty() {
        say("group", "there are no groups of clients");
    }
    if let Some(kafka) = &scenario.kafka {
        check_kafka(kafka, &mut wrong);
    }
    if let Some(fleet) = &scenario.platform {
        check_fleet(scenario, fleet, &mut wrong);
    }
    check_names(scenario, &mut wrong);
    for (index, group) in scenario.group.iter().enumerate() {
        let mut within = Vec::new();
        check_group(group, &mut within);
        wrong.extend(
            within
                .into_iter()
                .map(|(key, message)| (format!("group.{index}.{key}"), message)),
        );
    }
    wrong
}

fn check_kafka(kafka: &ToKafka, wrong: &mut Wrong) {
    for (key, text) in [("sql", &kafka.sql), ("kafka_topic", &kafka.kafka_topic)] {
        if text.is_empty() {
            wrong.push((format!("kafka.{key}"), "is empty".into()));
        }
    }
    if kafka.partitions == 0 {
        wrong.push(("kafka.partitions".into(), "expected at least 1".into()));
    }
}

fn check_fleet(scenario: &Scenario, fleet: &Fleet, wrong: &mut Wrong) {
    for (key, text) in [("profile", &fleet.profile), ("keys", &fleet.keys)] {
        let is_plain = |char: char| char.is_ascii_alphanumeric() || "_-,".contains(char);
        if text.is_empty() || !text.chars().all(is_plain) {
            wrong.push((format!("platform.{key}"), "expected letters, digits, - and _".into()));
        }
    }
    for (index, group) in scenario.group.iter().enumerate() {
        if group.user_name.is_none() {
            wrong.push((
                format!("group.{index}.user_name"),
                "a device has a user name: its access token and its name".into(),
            ));
        }
    }
}

fn check_names(scenario: &Scenario, wrong: &mut Wrong) {
    let mut names = HashSet::new();
    for (index, group) in scenario.group.iter().enumerate() {
        let message = if group.name.is_empty() {
            "a group has a name"
        } else if group.name.contains(['.', '=', '*', '/', '+', '#', ' ', '\0']) {
            "a name has none of . = * / + # and no space: it is used in topics and by --set"
        } else if !names.insert(&group.name) {
            "another group has this name"
        } else {
            continue;
        };
        wrong.push((format!("group.{index}.name"), message.into()));
    }
    check_identities(scenario, wrong);
}

/// Two clients with one client id would take the session from each other all the time.
fn check_identities(scenario: &Scenario, wrong: &mut Wrong) {
    let mut patterns: Vec<(&str, std::ops::Range<u64>)> = Vec::new();
    for (index, group) in scenario.group.iter().enumerate() {
        let first = u64::from(group.start_number);
        let numbers = first..first + u64::from(group.clients);
        let id = group.client_id.as_str();
        let has_number = letters(id).any(|letter| letter == 'i');
        let mut say = |message: String| wrong.push((format!("group.{index}.client_id"), message));
        if !id.is_empty() && !has_number && group.clients > 1 {
            say(format!("{} clients would share it; put %i into it", group.clients));
        }
        if id.is_empty() || letters(id).any(|letter| letter == 'g') {
            continue;
        }
        let overlaps = |(other, range): &(&str, std::ops::Range<u64>)| {
            *other == id && (!has_number || (range.start < numbers.end && numbers.start < range.end))
        };
        if patterns.iter().any(overlaps) {
            say("another group's clients have the same; put %g into it or set start_number".into());
        }
        patterns.push((id, numbers));
    }
}

fn check_group(group: &Group, wrong: &mut Wrong) {
    let mut say = |key: &str, message: String| wrong.push((key.into(), message));
    if group.clients == 0 {
        say("clients", "expected at least 1".into());
    }
    if !(3..=5).contains(&group.version) {
        say(
            "version",
            format!("expected 3, 4 or 5 (MQTT 3.1, 3.1.1, 5.0), not {}", group.version),
        );
    }
    if group.start_number.checked_add(group.clients).is_none() {
        say(
            "start_number",
            "the last client's number would be above 4294967295".into(),
        );
    }
    check_pattern("client_id", &group.client_id, "igr", &mut say);
    if group.client_id.is_empty() && !group.clean_start && group.version < 5 {
        // [MQTT-3.1.3-7]
        say(
            "client_id",
            "without a client id there is no session to keep; set clean_start or a client_id".into(),
        );
    }
    if let Some(user_name) = &group.user_name {
        check_pattern("user_name", user_name, "icgr{", &mut say);
        if user_name.contains("%c") && group.client_id.contains("%u") {
            say("user_name", "client id and user name contain each other".into());
        }
    }
    if group.password.is_some() && group.user_name.is_none() && group.version < 5 {
        // [MQTT-3.1.2-22]
        say("password", "MQTT 3.1.1 has no password without a user name".into());
    }
    if group.session_expiry_s > 0 && group.version < 5 {
        say(
            "session_expiry_s",
            format!(
                "MQTT 5 only, and `version` is {}; use clean_start = false",
                group.version
            ),
        );
    }
    check_presence(group, &mut say);
    for (index, subscribe) in group.subscribe.iter().enumerate() {
        check_subscribe(group, index, subscribe, &mut say);
    }
    if let Some(publish) = &group.publish {
        check_publish(group, publish, &mut say);
    }
}

fn check_presence(group: &Group, say: &mut impl FnMut(&str, String)) {
    if let Some(cycle) = &group.cycle {
        if !(0.0..=SECONDS_MAX).contains(&cycle.stay_s) {
            say("cycle.stay_s", "expected seconds from 0".into());
        }
        if group.presence != Presence::Always {
            say(
                "presence",
                "clients that come and go all the time (`cycle`) are neither away nor late".into(),
            );
        }
        if group.publish.is_some() {
            say(
                "publish",
                "clients that come and go all the time (`cycle`) do not publish".into(),
            );
        }
    } else if group.presence != Presence::Always && group.publish.is_some() {
        say(
            "publish",
            "who is not there while others publish does not publish".into(),
        );
    }
    if group.presence == Presence::AwayWhilePublishing {
        let keeps = !group.clean_start && (group.version < 5 || group.session_expiry_s > 0);
        if !keeps {
            let missing = if group.clean_start {
                "clean_start = false"
            } else {
                "session_expiry_s"
            };
            say(
                "presence",
                format!("nothing waits for who is away without a session: set {missing}"),
            );
        }
    }
    if let Some(stall) = &group.stall {
        if !(0.0..=SECONDS_MAX).contains(&stall.after_s) || !(0.0..=SECONDS_MAX).contains(&stall.for_s) {
            say("stall", "expected seconds from 0".into());
        }
        if group.subscribe.is_empty() {
            say(
                "stall",
                "a group that subscribes to nothing has nothing to stop reading".into(),
            );
        }
    }
}

fn check_subscribe(group: &Group, index: usize, subscribe: &Subscribe, say: &mut impl FnMut(&str, String)) {
    let key = format!("subscribe.{index}.filter");
    check_pattern(&key, &subscribe.filter, "icugr", say);
    let filter = sample(&subscribe.filter, group);
    match SharedFilter::parse(&filter) {
        Err(error) => say(&key, error.to_string()),
        Ok(shared) => {
            if let Err(error) = validate_filter(shared.map_or(filter.as_str(), |shared| shared.filter)) {
                say(&key, error.to_string());
            }
        }
    }
    let is_repeated = group.subscribe[..index]
        .iter()
        .any(|other| other.filter == subscribe.filter);
    if is_repeated {
        say(&key, "the group subscribes to this twice".into());
    }
    check_qos(&format!("subscribe.{index}.qos"), subscribe.qos, say);
}

fn check_qos(key: &str, qos: u8, say: &mut impl FnMut(&str, String)) {
    if qos > 2 {
        say(key, format!("expected 0, 1 or 2, not {qos}"));
    }
}

fn check_publish(group: &Group, publish: &Publish, say: &mut impl FnMut(&str, String)) {
    check_pattern("publish.topic", &publish.topic, "icugrs{", say);
    if let Err(error) = validate_topic_name(&sample(&publish.topic, group)) {
        say("publish.topic", error.to_string());
    }
    check_qos("publish.qos", publish.qos, say);
    if let Some(rate) = publish.rate.filter(|rate| !(*rate > 0.0 && *rate <= RATE_MAX)) {
        say(
            "publish.rate",
            format!("expected messages per second above 0, not {rate}; without a rate it is the closed model"),
        );
    }
    if !(0.0..=60.0).contains(&publish.burst_s) {
        say(
            "publish.burst_s",
            format!("expected seconds from 0 (evenly spread) to 60, not {}", publish.burst_s),
        );
    } else if publish.burst_s > 0.0 && publish.rate.is_none() {
        say(
            "publish.burst_s",
            "the closed model has no schedule: give a `rate`".into(),
        );
    }
    if publish.qos > 0 && publish.window == 0 {
        say(
            "publish.window",
            "QoS 1 and 2 need a window of at least 1 unacknowledged message".into(),
        );
    }
    if publish.qos > 0 && publish.window > STRING_BYTES_MAX as u32 {
        // [MQTT-2.2.1-2]
        say(
            "publish.window",
            "there are 65535 packet identifiers, so there cannot be more unacknowledged messages".into(),
        );
    }
    match &publish.payload {
        Payload::Bytes(bytes) if *bytes > PAYLOAD_BYTES_MAX => {
            say(
                "publish.payload.bytes",
                format!("MQTT packets have up to 268435455 bytes; {bytes} do not fit"),
            );
        }
        Payload::Template(text) => check_template(text, say),
        Payload::Bytes(_) | Payload::SmartMeter => {}
    }
}

/// `${…}` of a template.
fn check_template(text: &str, say: &mut impl FnMut(&str, String)) {
    const NAMES: [&str; 9] = [
        "counter",
        "walk",
        "bool",
        "float",
        "int:LOW:HIGH",
        "random:BYTES",
        "timestamp_ms",
        "client",
        "truth",
    ];
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once("${") {
        let Some((name, after)) = behind.split_once('}') else {
            say("publish.payload.template", "`${` without its `}`".into());
            return;
        };
        if !is_placeholder(name, &NAMES) {
            let hint = super::diagnostic::did_you_mean(name, NAMES);
            say(
                "publish.payload.template",
                format!("unknown `${{{name}}}`{hint}; there are {}", NAMES.join(", ")),
            );
        }
        rest = after;
    }
}

fn is_placeholder(name: &str, names: &[&str]) -> bool {
    if name.starts_with("random:") {
        return random_length(name).is_some();
    }
    let Some(bounds) = name.strip_prefix("int:") else {
        return names.contains(&name);
    };
    let bounds = bounds
        .split_once(':')
        .map(|(low, high)| (low.parse::<i64>(), high.parse::<i64>()));
    matches!(bounds, Some((Ok(low), Ok(high))) if low <= high)
}

/// The letters behind percent signs, `%%` left out.
pub fn letters(pattern: &str) -> impl Iterator<Item = char> {
    let mut rest = pattern.chars();
    std::iter::from_fn(move || {
        loop {
            if rest.next()? == '%' {
                match rest.next() {
                    Some('%') => {}
                    other => return Some(other.unwrap_or(' ')),
                }
            }
        }
    })
}

fn check_pattern(key: &str, pattern: &str, known: &str, say: &mut impl FnMut(&str, String)) {
    for letter in letters(pattern).filter(|letter| !known.contains(*letter)) {
        let name = |letter| match letter {
            ' ' => "a single %".into(),
            '{' => "%{rand:N}".into(),
            letter => format!("%{letter}"),
        };
        let known: Vec<String> = known.chars().map(name).collect();
        let what = name(letter);
        say(
            key,
            format!("{what} stands for nothing here; there are {} and %%", known.join(", ")),
        );
    }
    if known.contains('{') && random_parts(pattern).any(|name| random_bound(name).is_none()) {
        say(key, "expected %{rand:N} with a number N from 1 to 4294967295".into());
    }
    if pattern.len() > STRING_BYTES_MAX {
        say(key, "longer than 65535 bytes".into());
    }
}

/// What stands between the braces of each `%{…}`.
fn random_parts(pattern: &str) -> impl Iterator<Item = &str> {
    let mut rest = pattern;
    std::iter::from_fn(move || {
        loop {
            let (_, behind) = rest.split_once('%')?;
            if let Some(name) = behind.strip_prefix('{') {
                let (name, after) = name.split_once('}').unwrap_or((name, ""));
                rest = after;
                return Some(name);
            }
            rest = behind.strip_prefix('%').unwrap_or(behind);
        }
    })
}

/// What a pattern may become, as far as the rules of topics care.
fn sample(pattern: &str, group: &Group) -> String {
    let mut text = pattern.to_owned();
    // A user name may contain the client id, and a client id nothing that has patterns again but numbers.
    for _ in 0..2 {
        text = text
            .replace("%u", group.user_name.as_deref().unwrap_or_default())
            .replace("%c", &group.client_id);
    }
    text.replace("%g", &group.name).replace(['%'], "")
}
