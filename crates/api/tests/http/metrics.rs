//! Parses `/metrics` with a strict OpenMetrics parser.

use std::collections::BTreeMap;

use mqtt::QoS;

use super::node::Node;

#[derive(Debug)]
struct Family {
    kind: String,
    samples: BTreeMap<String, f64>,
}

/// Parses the exposition format of OpenMetrics 1.0, as far as counters, gauges and infos need it. Panics if the text is
/// invalid.
fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    let body = text.strip_suffix("# EOF\n").expect("it ends with # EOF");
    for line in body.lines() {
        if let Some(meta) = line.strip_prefix("# ") {
            let mut words = meta.splitn(3, ' ');
            let (keyword, name, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            match keyword {
                "TYPE" => {
                    current = name.to_owned();
                    let family = Family {
                        kind: rest.to_owned(),
                        samples: BTreeMap::new(),
                    };
                    assert!(
                        families.insert(current.clone(), family).is_none(),
                        "the samples of {name} are not contiguous"
                    );
                }
                "UNIT" => assert!(name == current && name.ends_with(&format!("_{rest}")), "{line}"),
                "HELP" => assert_eq!(name, current),
                _ => panic!("{line}"),
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let family = families.get_mut(&current).unwrap();
        let suffix = name
            .strip_prefix(&current)
            .unwrap_or_else(|| panic!("{line} below {current}"));
        let expected = match family.kind.as_str() {
            "counter" => "_total",
            "gauge" => "",
            "info" => "_info",
            "histogram" if ["_bucket", "_count", "_sum"].contains(&suffix) => suffix,
            kind => panic!("{kind}"),
        };
        assert_eq!(suffix, expected, "{line}");
        for label in labels
            .strip_suffix('}')
            .unwrap()
            .split(',')
            .filter(|label| !label.is_empty())
        {
            let (name, value) = label.split_once('=').unwrap();
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
            assert!(
                value.len() >= 2 && value.starts_with('"') && value.ends_with('"'),
                "{line}"
            );
        }
        let value: f64 = value.parse().unwrap();
        assert!(family.kind != "counter" || value >= 0.0, "{line}");
        assert!(
            family.samples.insert(series.to_owned(), value).is_none(),
            "{line} twice"
        );
    }
    families
}

#[test]
fn metrics_are_valid_and_have_correct_values() {
    let node = Node::start(3);
    let (mut publisher, mut subscriber) = (node.peer("publisher"), node.peer("subscriber"));
    subscriber.subscribe("t", QoS::AtMostOnce);
    for _ in 0..3 {
        publisher.publish_acknowledged("t", b"x", false);
        subscriber.receive();
    }
    publisher.publish("nobody", b"x", false);
    publisher.ping();
    let answer = node.get("/metrics").ok();
    assert_eq!(
        answer.header("content-type"),
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    let families = parse(&answer.body);
    let value = |family: &str, series: &str| families[family].samples[series];
    assert_eq!(value("tidewire_broker_connections", "tidewire_broker_connections"), 2.0);
    for (family, labels, expected) in [
        ("tidewire_broker_messages_received", "{qos=\"1\"}", 3.0),
        ("tidewire_broker_messages_received", "{qos=\"0\"}", 1.0),
        ("tidewire_broker_messages_sent", "{qos=\"0\"}", 3.0),
        ("tidewire_broker_packets_received", "{type=\"publish\"}", 4.0),
        ("tidewire_broker_packets_sent", "{type=\"puback\"}", 3.0),
        ("tidewire_broker_messages_dropped", "{reason=\"no_subscriber\"}", 1.0),
        ("tidewire_broker_disconnects", "{reason=\"kicked\"}", 0.0),
        (
            "tidewire_listener_connections_accepted",
            "{listener=\"default\",transport=\"tcp\"}",
            2.0,
        ),
    ] {
        assert_eq!(
            value(family, &format!("{family}_total{labels}")),
            expected,
            "{family}{labels}"
        );
    }
    let acknowledged = "tidewire_publish_acknowledgement_seconds";
    assert_eq!(value(acknowledged, &format!("{acknowledged}_count")), 3.0);
    assert_eq!(
        value(acknowledged, &format!("{acknowledged}_bucket{{le=\"+Inf\"}}")),
        3.0
    );
    // Bounds are printed as they are written in the code, and a p99 of more than a second can be seen.
    for bound in ["0.00005", "0.0025", "1", "5"] {
        value(acknowledged, &format!("{acknowledged}_bucket{{le=\"{bound}\"}}"));
    }
    let sum = value(acknowledged, &format!("{acknowledged}_sum"));
    assert!(sum > 0.0 && sum < 30.0, "{sum}");
    assert_eq!(families["tidewire_build"].kind, "info");
    if cfg!(target_os = "linux") {
        assert!(value("tidewire_process_resident_bytes", "tidewire_process_resident_bytes") > 1e6);
    }
}

#[test]
fn label_values_are_escaped() {
    let node = Node::start_named("we\"ird\\\nname");
    let text = node.get("/metrics").ok().body;
    assert!(text.contains(r#"node="we\"ird\\\nname""#), "{text}");
}

#[test]
fn statistics_match_the_metrics() {
    let node = Node::start(3);
    let mut peer = node.peer("one");
    peer.publish("x", b"12", true);
    peer.ping();
    let stats = || node.get("/api/v1/stats").ok().json();
    node.wait_for("the message to be retained", || stats()["retained"]["messages"] == 1);
    let stats = stats();
    assert_eq!(
        (&stats["connections"]["current"], &stats["connections"]["total"]),
        (&1.into(), &1.into())
    );
    assert_eq!(
        (&stats["messages"]["received"]["qos0"], &stats["drops"]["no_subscriber"]),
        (&1.into(), &1.into())
    );
    assert_eq!(
        (stats["node"]["name"].as_str(), stats["node"]["shards"].as_u64()),
        (Some("test-node"), Some(3))
    );
    let listeners = node.get("/api/v1/listeners").ok().json();
    assert_eq!(
        (&listeners[0]["connections"], &listeners[0]["transport"]),
        (&1.into(), &"tcp".into())
    );
}
