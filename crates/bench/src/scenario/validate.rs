//! The checks that types cannot make: whether the values fit together, and whether MQTT allows what a scenario sends.

use std::collections::HashSet;

use mqtt::{SharedFilter, validate_filter, validate_topic_name};

use crate::load::{random_bound, random_length};

use super::{ClientGroup, Fleet, GroupPresence, Payload, PublishSpec, Scenario, SubscribeSpec, ToKafka};

/// About three years, far below the range of nanoseconds in 64 bits.
const SECONDS_MAX: f64 = 1e8;
/// The largest packet has a remaining length of 268,435,455 bytes, of which the topic needs some [MQTT-1.5.5-1].
pub const PAYLOAD_BYTES_MAX: u32 = 268_000_000;
/// Most bytes of a client id, topic or filter: strings have a length of two bytes.
const STRING_BYTES_MAX: usize = u16::MAX as usize;
const RATE_MAX: f64 = 1e9;

/// Paths like "group.0.publish.rate", each with its error.
type InvalidFields = Vec<(String, String)>;

pub fn check(scenario: &Scenario) -> InvalidFields {
    let mut wrong = InvalidFields::new();
    let mut report = |key: &str, message: &str| wrong.push((key.into(), message.into()));
    if scenario.name.is_empty() {
        report("name", "a scenario must have a name");
    }
    if !(0.0..=SECONDS_MAX).contains(&scenario.duration_s) {
        report("duration_s", "expected seconds from 0 to 100000000");
    }
    if !(0.0..=SECONDS_MAX).contains(&scenario.warm_up_s) {
        report("warm_up_s", "expected seconds from 0 to 100000000");
    }
    if !(0.0..=SECONDS_MAX).contains(&scenario.drain_s) {
        report("drain_s", "expected seconds from 0 to 100000000");
    }
    if !(0.0..=RATE_MAX).contains(&scenario.connect_rate) {
        report(
            "connect_rate",
            "expected connects per second, 0 for as fast as possible",
        );
    }
    if scenario.connecting_max == 0 {
        report(
            "connecting_max",
            "expected at least 1; otherwise no client could connect",
        );
    }
    if scenario.group.is_empty() {
        report("group", "expected at least one group of clients");
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

fn check_kafka(kafka: &ToKafka, wrong: &mut InvalidFields) {
    for (key, text) in [("sql", &kafka.sql), ("kafka_topic", &kafka.kafka_topic)] {
        if text.is_empty() {
            wrong.push((format!("kafka.{key}"), "must not be empty".into()));
        }
    }
    if kafka.partitions == 0 {
        wrong.push(("kafka.partitions".into(), "expected at least 1".into()));
    }
}

fn check_fleet(scenario: &Scenario, fleet: &Fleet, wrong: &mut InvalidFields) {
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
                "a device must have a user name, which is its access token and its name".into(),
            ));
        }
    }
}

fn check_names(scenario: &Scenario, wrong: &mut InvalidFields) {
    let mut names = HashSet::new();
    for (index, group) in scenario.group.iter().enumerate() {
        let message = if group.name.is_empty() {
            "a group must have a name"
        } else if group.name.contains(['.', '=', '*', '/', '+', '#', ' ', '\0']) {
            "a group name must not contain . = * / + # or a space, because topics and --set use it"
        } else if !names.insert(&group.name) {
            "another group has this name"
        } else {
            continue;
        };
        wrong.push((format!("group.{index}.name"), message.into()));
    }
    check_identities(scenario, wrong);
}

/// Checks that client ids are unique: two clients with the same id would take the session over from each other all the
/// time.
fn check_identities(scenario: &Scenario, wrong: &mut InvalidFields) {
    let mut patterns: Vec<(&str, std::ops::Range<u64>)> = Vec::new();
    for (index, group) in scenario.group.iter().enumerate() {
        let first = u64::from(group.start_number);
        let numbers = first..first + u64::from(group.clients);
        let id = group.client_id.as_str();
        let has_number = letters(id).any(|letter| letter == 'i');
        let mut report = |message: String| wrong.push((format!("group.{index}.client_id"), message));
        if !id.is_empty() && !has_number && group.clients > 1 {
            report(format!(
                "{} clients have the same client id; add %i to it",
                group.clients
            ));
        }
        if id.is_empty() || letters(id).any(|letter| letter == 'g') {
            continue;
        }
        let overlaps = |(other, range): &(&str, std::ops::Range<u64>)| {
            *other == id && (!has_number || (range.start < numbers.end && numbers.start < range.end))
        };
        if patterns.iter().any(overlaps) {
            report("clients of another group have the same client id; add %g to it or set start_number".into());
        }
        patterns.push((id, numbers));
    }
}

fn check_group(group: &ClientGroup, wrong: &mut InvalidFields) {
    let mut report = |key: &str, message: String| wrong.push((key.into(), message));
    if group.clients == 0 {
        report("clients", "expected at least 1".into());
    }
    if !(3..=5).contains(&group.version) {
        report(
            "version",
            format!("expected 3, 4 or 5 (MQTT 3.1, 3.1.1, 5.0), not {}", group.version),
        );
    }
    if group.start_number.checked_add(group.clients).is_none() {
        report(
            "start_number",
            "the last client's number would be above 4294967295".into(),
        );
    }
    check_pattern("client_id", &group.client_id, "igr", &mut report);
    if group.client_id.is_empty() && !group.clean_start && group.version < 5 {
        // [MQTT-3.1.3-7]
        report(
            "client_id",
            "a persistent session needs a client id; set clean_start or a client_id".into(),
        );
    }
    if let Some(user_name) = &group.user_name {
        check_pattern("user_name", user_name, "icgr{", &mut report);
        if user_name.contains("%c") && group.client_id.contains("%u") {
            report("user_name", "client id and user name contain each other".into());
        }
    }
    if group.password.is_some() && group.user_name.is_none() && group.version < 5 {
        // [MQTT-3.1.2-22]
        report("password", "MQTT 3.1.1 allows a password only with a user name".into());
    }
    if group.session_expiry_s > 0 && group.version < 5 {
        report(
            "session_expiry_s",
            format!(
                "MQTT 5 only, and `version` is {}; use clean_start = false",
                group.version
            ),
        );
    }
    check_presence(group, &mut report);
    for (index, subscribe) in group.subscribe.iter().enumerate() {
        check_subscribe(group, index, subscribe, &mut report);
    }
    if let Some(publish) = &group.publish {
        check_publish(group, publish, &mut report);
    }
}

fn check_presence(group: &ClientGroup, report: &mut impl FnMut(&str, String)) {
    if let Some(cycle) = &group.cycle {
        if !(0.0..=SECONDS_MAX).contains(&cycle.stay_s) {
            report("cycle.stay_s", "expected seconds from 0".into());
        }
        if group.presence != GroupPresence::Always {
            report(
                "presence",
                "clients that come and go all the time (`cycle`) must have the presence \"always\"".into(),
            );
        }
        if group.publish.is_some() {
            report(
                "publish",
                "clients that come and go all the time (`cycle`) cannot publish".into(),
            );
        }
    } else if group.presence != GroupPresence::Always && group.publish.is_some() {
        report(
            "publish",
            "clients that are absent while others publish cannot publish".into(),
        );
    }
    if group.presence == GroupPresence::AwayWhilePublishing {
        let keeps = !group.clean_start && (group.version < 5 || group.session_expiry_s > 0);
        if !keeps {
            let missing = if group.clean_start {
                "clean_start = false"
            } else {
                "session_expiry_s"
            };
            report(
                "presence",
                format!("absent clients receive nothing without a session; set {missing}"),
            );
        }
    }
    if let Some(stall) = &group.stall {
        if !(0.0..=SECONDS_MAX).contains(&stall.after_s) || !(0.0..=SECONDS_MAX).contains(&stall.for_s) {
            report("stall", "expected seconds from 0".into());
        }
        if group.subscribe.is_empty() {
            report("stall", "only a group that subscribes can stop reading".into());
        }
    }
}

fn check_subscribe(
    group: &ClientGroup,
    index: usize,
    subscribe: &SubscribeSpec,
    report: &mut impl FnMut(&str, String),
) {
    let key = format!("subscribe.{index}.filter");
    check_pattern(&key, &subscribe.filter, "icugr", report);
    let filter = sample(&subscribe.filter, group);
    match SharedFilter::parse(&filter) {
        Err(error) => report(&key, error.to_string()),
        Ok(shared) => {
            if let Err(error) = validate_filter(shared.map_or(filter.as_str(), |shared| shared.filter)) {
                report(&key, error.to_string());
            }
        }
    }
    let is_repeated = group.subscribe[..index]
        .iter()
        .any(|other| other.filter == subscribe.filter);
    if is_repeated {
        report(&key, "the group has this subscription twice".into());
    }
    check_qos(&format!("subscribe.{index}.qos"), subscribe.qos, report);
}

fn check_qos(key: &str, qos: u8, report: &mut impl FnMut(&str, String)) {
    if qos > 2 {
        report(key, format!("expected 0, 1 or 2, not {qos}"));
    }
}

fn check_publish(group: &ClientGroup, publish: &PublishSpec, report: &mut impl FnMut(&str, String)) {
    check_pattern("publish.topic", &publish.topic, "icugrs{", report);
    if let Err(error) = validate_topic_name(&sample(&publish.topic, group)) {
        report("publish.topic", error.to_string());
    }
    check_qos("publish.qos", publish.qos, report);
    if let Some(rate) = publish.rate.filter(|rate| !(*rate > 0.0 && *rate <= RATE_MAX)) {
        report(
            "publish.rate",
            format!("expected messages per second above 0, not {rate}; for the closed model omit it"),
        );
    }
    if !(0.0..=60.0).contains(&publish.burst_s) {
        report(
            "publish.burst_s",
            format!("expected seconds from 0 (evenly spread) to 60, not {}", publish.burst_s),
        );
    } else if publish.burst_s > 0.0 && publish.rate.is_none() {
        report("publish.burst_s", "the closed model has no schedule; set `rate`".into());
    }
    if publish.qos > 0 && publish.window == 0 {
        report(
            "publish.window",
            "QoS 1 and 2 need a window of at least 1 unacknowledged message".into(),
        );
    }
    if publish.qos > 0 && publish.window > STRING_BYTES_MAX as u32 {
        // [MQTT-2.2.1-2]
        report(
            "publish.window",
            "expected at most 65535, the number of packet identifiers".into(),
        );
    }
    match &publish.payload {
        Payload::Bytes(bytes) if *bytes > PAYLOAD_BYTES_MAX => {
            report(
                "publish.payload.bytes",
                format!("{bytes} bytes do not fit in an MQTT packet of at most 268435455 bytes"),
            );
        }
        Payload::Template(text) => check_template(text, report),
        Payload::Bytes(_) | Payload::SmartMeter => {}
    }
}

/// Checks the placeholders `${…}` of a template.
fn check_template(text: &str, report: &mut impl FnMut(&str, String)) {
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
            report("publish.payload.template", "`${` without `}`".into());
            return;
        };
        if !is_placeholder(name, &NAMES) {
            let hint = super::diagnostic::did_you_mean(name, NAMES);
            report(
                "publish.payload.template",
                format!("unknown `${{{name}}}`{hint}; known are {}", NAMES.join(", ")),
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

/// Returns the letters after percent signs, without `%%`.
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

fn check_pattern(key: &str, pattern: &str, known: &str, report: &mut impl FnMut(&str, String)) {
    for letter in letters(pattern).filter(|letter| !known.contains(*letter)) {
        let name = |letter| match letter {
            ' ' => "a single %".into(),
            '{' => "%{rand:N}".into(),
            letter => format!("%{letter}"),
        };
        let known: Vec<String> = known.chars().map(name).collect();
        let what = name(letter);
        report(
            key,
            format!("unknown variable {what}; known are {} and %%", known.join(", ")),
        );
    }
    if known.contains('{') && random_parts(pattern).any(|name| random_bound(name).is_none()) {
        report(key, "expected %{rand:N} with a number N from 1 to 4294967295".into());
    }
    if pattern.len() > STRING_BYTES_MAX {
        report(key, "longer than 65535 bytes".into());
    }
}

/// Returns the texts between the braces of each `%{…}`.
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

/// Returns an example of what a pattern expands to, for the rules of topics.
fn sample(pattern: &str, group: &ClientGroup) -> String {
    let mut text = pattern.to_owned();
    // Two passes, because a user name may contain the client id.
    for _ in 0..2 {
        text = text
            .replace("%u", group.user_name.as_deref().unwrap_or_default())
            .replace("%c", &group.client_id);
    }
    text.replace("%g", &group.name).replace(['%'], "")
}
