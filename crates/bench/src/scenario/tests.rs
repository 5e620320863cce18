//! Scenarios as text: which are accepted, and the messages about mistakes.

use super::document::{Document, to_toml};
use super::{Payload, Scenario, diagnostic, presets};

const GOOD: &str = r#"
name = "good"

[[group]]
name = "subscribers"
clients = 10
subscribe = [{ filter = "a/%r/+", qos = 1 }]

[[group]]
name = "publishers"
clients = 5

[group.publish]
topic = "a/%r/%i"
qos = 1
window = 10
"#;

fn resolve(text: &str) -> Result<Scenario, String> {
    let document = Document::of_text("test.toml", text).map_err(|wrong| diagnostic::lines(&wrong))?;
    document.resolve().map_err(|wrong| diagnostic::lines(&wrong))
}

/// Replaces a part of `GOOD` and checks the message.
#[test]
fn mistake_is_reported_with_place_and_key() {
    let table = [
        (
            "clients = 10",
            "cleints = 10",
            "test.toml:6: `subscribers.cleints`: unknown key; did you mean `clients`?",
        ),
        (
            "clients = 10",
            "clients = \"ten\"",
            "test.toml:6: `subscribers.clients`: expected a whole number from 0 to 4294967295, not the text \"ten\"",
        ),
        (
            "clients = 10",
            "clients = -1",
            "test.toml:6: `subscribers.clients`: expected a whole number from 0 to 4294967295, not -1",
        ),
        (
            "clients = 10",
            "clients = 0",
            "test.toml:6: `subscribers.clients`: expected at least 1",
        ),
        (
            "clients = 10",
            "version = 2",
            "test.toml:6: `subscribers.version`: expected 3, 4 or 5 (MQTT 3.1, 3.1.1, 5.0), not 2",
        ),
        (
            "clients = 10",
            "session_expiry_s = 2",
            "test.toml:6: `subscribers.session_expiry_s`: MQTT 5 only, and `version` is 4; use clean_start = false",
        ),
        (
            "clients = 10",
            "clients = 2\nclient_id = \"x\"",
            "test.toml:7: `subscribers.client_id`: 2 clients have the same client id; add %i to it",
        ),
        (
            "clients = 10",
            "client_id = \"%x-%i\"",
            "test.toml:6: `subscribers.client_id`: unknown variable %x; known are %i, %g, %r and %%",
        ),
        (
            "clients = 10",
            "presence = \"away\"",
            "test.toml:6: `subscribers.presence`: expected one of \"always\", \"after-publishing\", \"away-while-publishing\", not the text \"away\"",
        ),
        (
            "clients = 10",
            "presence = \"away-while-publishing\"",
            "test.toml:6: `subscribers.presence`: absent clients receive nothing without a session; set clean_start = false",
        ),
        (
            "a/%r/+",
            "a/#/b",
            "test.toml:7: `subscribers.subscribe.0.filter`: # in the topic filter is not alone in its last level",
        ),
        (
            "a/%r/+",
            "$share/x+/b",
            "test.toml:7: `subscribers.subscribe.0.filter`: shared subscription is not of the form $share/<name without + #>/<filter>",
        ),
        (
            "a/%r/+",
            "$share/x/b+",
            "test.toml:7: `subscribers.subscribe.0.filter`: + in the topic filter is not alone in its level",
        ),
        (
            "qos = 1 }",
            "qos = 3 }",
            "test.toml:7: `subscribers.subscribe.0.qos`: expected 0, 1 or 2, not 3",
        ),
        (
            "\"a/%r/%i\"",
            "\"a/+\"",
            "test.toml:14: `publishers.publish.topic`: topic name contains a wildcard (+ or #)",
        ),
        (
            "\"a/%r/%i\"",
            "\"\"",
            "test.toml:14: `publishers.publish.topic`: topic name is empty",
        ),
        (
            "\"a/%r/%i\"",
            "\"%s%{rand:0}\"",
            "test.toml:14: `publishers.publish.topic`: expected %{rand:N} with a number N from 1 to 4294967295",
        ),
        (
            "window = 10",
            "window = 0",
            "test.toml:16: `publishers.publish.window`: QoS 1 and 2 need a window of at least 1 unacknowledged message",
        ),
        (
            "window = 10",
            "window = 70000",
            "test.toml:16: `publishers.publish.window`: expected at most 65535, the number of packet identifiers",
        ),
        (
            "window = 10",
            "window = 1\nrate = 0",
            "test.toml:17: `publishers.publish.rate`: expected messages per second above 0, not 0; for the closed model omit it",
        ),
        (
            "window = 10",
            "window = 1\npayload = \"big\"",
            "test.toml:17: `publishers.publish.payload`: expected { bytes = … }, { template = … } or \"smart-meter\", not the text \"big\"",
        ),
        (
            "window = 10",
            "window = 1\npayload.template = \"${walc}\"",
            "test.toml:17: `publishers.publish.payload.template`: unknown `${walc}`; did you mean `walk`?; known are counter, walk, bool, float, int:LOW:HIGH, random:BYTES, timestamp_ms, client, truth",
        ),
        (
            "name = \"publishers\"",
            "name = \"subscribers\"",
            "test.toml:10: `subscribers.name`: another group has this name",
        ),
        (
            "name = \"good\"",
            "nam = \"good\"",
            "test.toml:2: `nam`: unknown key; did you mean `name`?",
        ),
        (
            "name = \"good\"",
            "name = \"good\"\nduration_s = -1",
            "test.toml:3: `duration_s`: expected seconds from 0 to 100000000",
        ),
        (
            "name = \"good\"",
            "name = good",
            "test.toml:2: string values must be quoted, expected literal string",
        ),
    ];
    resolve(GOOD).unwrap();
    for (part, replacement, expected) in table {
        assert!(GOOD.contains(part), "{part}");
        assert_eq!(
            resolve(&GOOD.replacen(part, replacement, 1)).unwrap_err(),
            expected,
            "{replacement}"
        );
    }
}

#[test]
fn resolve_returns_all_mistakes() {
    let text = GOOD.replace("qos = 1", "qos = 7").replace("clients = 5", "clients = 0");
    assert_eq!(resolve(&text).unwrap_err().lines().count(), 3);
}

#[test]
fn set_changes_value_of_named_group() {
    let set = |assignments: &[&str]| -> Result<Scenario, String> {
        let mut document = Document::of_text("test.toml", GOOD).unwrap();
        for assignment in assignments {
            document.set(assignment).map_err(|wrong| wrong.to_string())?;
        }
        document.resolve().map_err(|wrong| diagnostic::lines(&wrong))
    };
    let scenario = set(&[
        "duration_s=30",
        "publishers.clients=1_000",
        "publishers.publish.rate=20",
        "publishers.publish.payload=smart-meter",
        "subscribers.subscribe.0.qos=2",
        "subscribers.stall={ after_s = 1, for_s = 2 }",
        "*.keep_alive_s=60",
    ])
    .unwrap();
    assert_eq!(scenario.duration_s, 30.0);
    assert_eq!(scenario.group[0].subscribe[0].qos, 2);
    assert_eq!(scenario.group[0].keep_alive_s, 60);
    assert_eq!(scenario.group[0].stall.as_ref().unwrap().for_s, 2.0);
    let publishers = &scenario.group[1];
    assert_eq!((publishers.clients, publishers.keep_alive_s), (1000, 60));
    let publish = publishers.publish.as_ref().unwrap();
    assert_eq!((publish.rate, &publish.payload), (Some(20.0), &Payload::SmartMeter));
    let fleet = set(&[
        "platform.profile=METER",
        "platform.keys=a,b",
        "platform.alarms_clear=true",
        "*.user_name=m-%i",
    ])
    .unwrap()
    .platform
    .unwrap();
    assert_eq!((fleet.profile.as_str(), fleet.alarms_clear), ("METER", true));
    let publish = set(&[
        "publishers.publish.payload.template=${truth}",
        "publishers.publish.rate=none",
    ])
    .unwrap();
    assert_eq!(
        publish.group[1].publish.as_ref().unwrap().payload,
        Payload::Template("${truth}".into())
    );

    for (assignment, expected) in [
        ("publishers", "expected key=value, for example publishers.clients=10"),
        (
            "publisher.clients=1",
            "`publisher.clients`: unknown group `publisher`; did you mean `publishers`?",
        ),
        (
            "publishers.client=1",
            "`publishers.client`: unknown key; did you mean `clients`?",
        ),
        (
            "publishers.clients=many",
            "`publishers.clients`: expected a whole number from 0 to 4294967295, not `many`",
        ),
        (
            "subscribers.subscribe.qos=1",
            "`subscribers.subscribe.qos`: `subscribe` is a list; expected the number of an item, as in `subscribe.0`",
        ),
        (
            "subscribers.subscribe.1.qos=1",
            "`subscribers.subscribe.1.qos`: `subscribe` has 1 items; the first is `subscribe.0`",
        ),
        (
            "publishers.publish.qos=5",
            "`publishers.publish.qos`: expected 0, 1 or 2, not 5",
        ),
    ] {
        assert_eq!(
            set(&[assignment]).unwrap_err(),
            format!("--set {assignment}: {expected}")
        );
    }
}

#[test]
fn scale_changes_only_groups_that_scale() {
    let mut document = presets::document("fanout").unwrap();
    document.scale(0.0001);
    let scenario = document.resolve().unwrap();
    assert_eq!((scenario.group[0].clients, scenario.group[1].clients), (1, 10));
}

#[test]
fn presets_are_valid_and_equal_after_to_toml() {
    for (name, text) in presets::PRESETS {
        let scenario = resolve(text).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        assert_eq!(&scenario.name, name);
        assert!(!scenario.about.is_empty(), "{name}");
        assert_eq!(resolve(&to_toml(&scenario)).unwrap(), scenario, "{name}");
        let is_published = ["tbmq-", "nanomq-", "emqx-", "thingsboard-"]
            .iter()
            .any(|maker| name.starts_with(maker));
        assert_eq!(scenario.published.is_some(), is_published, "{name}");
    }
}

#[test]
fn unknown_preset_fails_with_suggestion() {
    let message = presets::document("fanuot").unwrap_err();
    assert!(message.contains("did you mean `fanout`?"), "{message}");
}
