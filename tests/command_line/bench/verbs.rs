//! Tests `bench pub` and `bench sub` in separate processes, with the flags and output lines of emqtt-bench.

use std::fs;
use std::io::{BufReader, Read};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Broker, TIDEWIRE, interrupt, said, wait_for};

#[test]
fn verbs_of_emqtt_bench_run_and_print_its_lines() {
    let broker = Broker::start();
    let mut sub = broker
        .command(&["sub", "-c", "5", "-i", "1", "-t", "verbs/#", "-q", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(sub.stdout.take().unwrap());
    wait_for(&mut lines, " sub total=5 ");
    let output = Command::new(TIDEWIRE)
        .args([
            "bench",
            "pub",
            "-h",
            "127.0.0.1",
            "-p",
            &broker.port,
            "-c",
            "3",
            "-i",
            "1",
            "-I",
            "10",
        ])
        .args(["-t", "verbs/%i", "-q", "1", "-L", "100", "--threads", "1"])
        .args(["--json", &broker.path("published.json")])
        .output()
        .unwrap();
    let published = said(&output);
    assert!(output.status.success(), "{published}");
    assert!(
        published.contains("Start with 3 workers") && published.contains("publish complete"),
        "{published}"
    );
    // The run is shorter than a second, so its rates use its real length.
    let text = fs::read_to_string(broker.path("published.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["totals"]["published"], 100, "{published}");
    for (part, key) in [
        ("counts", "published"),
        ("counts", "acknowledged"),
        ("throughput", "published"),
    ] {
        assert!(result[part][key].as_f64().unwrap() > 0.0, "{part} {key}: {published}");
    }
    wait_for(&mut lines, " recv total=500 ");
    interrupt(&sub);
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(sub.wait().unwrap().code(), Some(0), "{rest}");
    let result = broker.result();
    assert_eq!(result["totals"]["received"], 500);
    assert_eq!(result["is_interrupted"], true);
    // This process verifies the messages of the other process: 3 publishers to 5 subscribers.
    for (key, expected) in [
        ("flows", 15),
        ("expected", 500),
        ("received", 500),
        ("lost", 0),
        ("duplicated", 0),
        ("reordered", 0),
        ("corrupt", 0),
        ("unverified", 0),
    ] {
        assert_eq!(result["truth"][key], expected, "{key}: {rest}");
    }
    let latency = &result["latency"]["end_to_end"]["summary"];
    assert_eq!(latency["count"], 500);
    // Both processes read the same clock, so no latency can exceed the duration of the test.
    assert!(latency["max_ms"].as_f64().unwrap() < 60_000.0, "{rest}");
}

#[test]
fn random_topics_are_verified_and_shared_ones_timed() {
    let broker = Broker::start();
    for (filter, flows, received, unverified) in [("rand/+/+", 6, 180, 0), ("$share/crew/rand/#", 0, 0, 60)] {
        let mut sub = broker
            .command(&["sub", "-c", "3", "-i", "1", "-t", filter, "-q", "1"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(sub.stdout.take().unwrap());
        wait_for(&mut lines, " sub total=3 ");
        let output = Command::new(TIDEWIRE)
            .args([
                "bench",
                "pub",
                "-h",
                "127.0.0.1",
                "-p",
                &broker.port,
                "-c",
                "2",
                "-i",
                "1",
                "-I",
                "10",
            ])
            .args(["-t", "rand/%rand_10/%i", "-q", "1", "-L", "60", "--threads", "1"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", said(&output));
        wait_for(&mut lines, &format!(" recv total={} ", received + unverified));
        interrupt(&sub);
        let mut rest = String::new();
        lines.read_to_string(&mut rest).unwrap();
        assert_eq!(sub.wait().unwrap().code(), Some(0), "{rest}");
        let result = broker.result();
        let truth = &result["truth"];
        let found = [
            &truth["flows"],
            &truth["received"],
            &truth["unverified"],
            &truth["lost"],
        ];
        assert_eq!(found, [flows, received, unverified, 0], "{filter}: {rest}");
        assert_eq!(
            result["latency"]["end_to_end"]["summary"]["count"],
            received + unverified
        );
    }
}
