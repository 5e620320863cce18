//! Expensive messages: one message that makes a rule expensive must not stop the server for other clients.
//!
//! Before evaluations had a limit, each of these messages stopped all clients for seconds. `crates/rules/tests/cost.rs`
//! tests the work of every function; these tests show that the limit holds in a running server.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;

/// Messages of the attacker. The thread that serves all clients evaluates the first ones, the slow lane evaluates the
/// others.
const MESSAGES: usize = 8;

/// Maximum delay of other clients. They may wait for a few evaluations of 20 ms, on a machine that runs other tests.
const DELAY_MAX: Duration = Duration::from_secs(2);

/// Publishes `payload` and measures how long another client waits for its PUBACKs at the same time.
fn attack(rule: &str, payload: &str) -> Server {
    let server = Server::start(&Config::new(format!(
        "[node]\nworkers = 1\n[rules.attacked]\nsql = \"\"\"{rule}\"\"\"\n"
    )));
    let mut other = server.session(&Connect::new(V5, unique("other")));
    let mut attacker = server.session(&Connect::new(V5, unique("attacker")));
    let is_done = Arc::new(AtomicBool::new(false));
    let message = Publish::new("attack", payload).qos(1);
    let attacks = thread::spawn({
        let is_done = Arc::clone(&is_done);
        move || {
            for _ in 0..MESSAGES {
                assert!(
                    attacker.publish(&message) < 0x80,
                    "a rule that fails does not reject its messages"
                );
            }
            is_done.store(true, Release);
        }
    });
    let mut times = Vec::new();
    while !is_done.load(Acquire) {
        let start = Instant::now();
        assert!(other.publish(&Publish::new("other", "x").qos(1)) < 0x80);
        times.push(start.elapsed());
    }
    attacks.join().expect("the attacker's messages are acknowledged");
    times.sort_unstable();
    let (p99, longest) = (times[(times.len() - 1) * 99 / 100], times[times.len() - 1]);
    println!(
        "{} PUBACKs during {rule}: p99 {p99:?}, longest {longest:?}",
        times.len()
    );
    assert!(longest < DELAY_MAX, "another client waited {longest:?}");
    server
}

/// Waits until this many messages have failed at a limit. The slow lane evaluates a rule without actions after the
/// PUBACK.
fn wait_for_failures(server: &Server, messages: usize) {
    let line = format!("tidewire_rule_failed_at_limit_total{{rule=\"attacked\"}} {messages}");
    server.wait_until("every message is counted as failed", |server| {
        server.http_get("/metrics").1.lines().any(|found| found == line)
    });
}

fn json_text(text: &str, times: usize) -> String {
    format!("{{\"x\": \"{}\"}}", text.repeat(times))
}

#[test]
fn replacing_unclosed_tags_ends_at_the_limit() {
    let rule = "SELECT regex_replace(payload.x, '<[^>]*>|<', '') AS y FROM \"attack\"";
    wait_for_failures(&attack(rule, &json_text("<", 300_000)), MESSAGES);
}

#[test]
fn replacing_numbers_with_units_does_not_stop_other_clients() {
    let rule = r"SELECT regex_replace(payload.x, '\\d+(\\.\\d+)?( kWh| MWh)|\\d', '') AS y FROM 'attack'";
    attack(rule, &json_text("1", 300_000));
}

#[test]
fn pattern_of_a_message_does_not_stop_other_clients() {
    let rule = "SELECT regex_extract(payload.x, payload.p) AS y FROM 'attack'";
    let payload = format!(
        r#"{{"p": "(?-u)([01]*)(1)([01]{{1000}})$", "x": "{}"}}"#,
        "01".repeat(150_000)
    );
    attack(rule, &payload);
}

#[test]
fn jq_substitution_does_not_stop_other_clients() {
    let rule = r#"SELECT jq('.x | gsub("<[^>]*>|<"; "")', payload) AS y FROM 'attack'"#;
    attack(rule, &json_text("<", 300_000));
}

#[test]
fn foreach_over_many_elements_does_not_stop_other_clients() {
    let keys: Vec<String> = (0..40_000).map(|key| format!("\"k{key}\": 1")).collect();
    let payload = format!("{{{}, \"l\": [{}1]}}", keys.join(","), "1,".repeat(100_000));
    attack("FOREACH payload.l AS e DO payload.site AS s, e FROM 'attack'", &payload);
}
