//! Measures what rules cost a message, from a shard's tap to an action's buffer, on one core; and what a change costs
//! with many rules. Run it with `cargo run --profile fast -p tidewire-integration --example hot_path`.
//!
//! Messages arrive in ticks of 64. They end in a memory buffer that drops the oldest, with a paused pump, so that only
//! the tap is measured. Each line of messages is the best of many rounds.

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use broker::LoginGrant;
use broker::Now;
use broker::tap::{Tap, TapClient, TapMessage};
use integration::{DeclaredDefinitions, Engine, RuleDefinition};
use mqtt::{ProtocolVersion, QoS};
use serde_json::{Value, json};

const PAYLOAD: &[u8] = br#"{"device":"sensor-000017","temp":31.5,"humidity":48.25,"pressure":1013.25,"battery":{"level":87,"voltage":3.71},"location":{"lat":52.520008,"lon":13.404954},"tags":["roof","north"],"ts":1708671600500,"ok":true}"#;
const PER_TICK: usize = 64;
const TICKS: usize = 10;
const ROUNDS: usize = 1000;
const MANY: usize = 10_000;
const CHANGES: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::temp_dir().join(format!("tidewire-hot-path-{}", std::process::id()));
    let result = run(&directory);
    fs::remove_dir_all(&directory)?;
    result
}

fn run(directory: &Path) -> Result<(), Box<dyn Error>> {
    let select = "SELECT payload.temp AS t, topic";
    let plain = format!("{select} FROM \"t/#\" WHERE payload.temp > 30");
    messages(
        "a rule whose WHERE does not match",
        directory,
        &[&format!("{select} FROM \"t/#\" WHERE payload.temp > 90")],
        &["file:a"],
    )?;
    messages("a rule to one action", directory, &[&plain], &["file:a"])?;
    messages(
        "a rule to one action, whole payload",
        directory,
        &["SELECT payload, topic, clientid FROM \"t/#\""],
        &["file:a"],
    )?;
    messages(
        "three rules to one action",
        directory,
        &[&plain, &plain, &plain],
        &["file:a"],
    )?;
    let many: Vec<String> = (0..MANY)
        .map(|n| format!("{select} FROM \"t/{n}\" WHERE payload.temp > 30"))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    messages("one of 10,000 rules", directory, &many, &["file:a"])?;
    changes(directory, &many)
}

fn rule(id: usize, sql: &str, actions: &[&str]) -> Value {
    json!({"id": format!("rule-{id:05}"), "sql": sql, "actions": actions})
}

/// Opens an engine as after a restart of the process.
fn engine(directory: &Path, rules: &[&str], actions: &[&str]) -> Result<Engine, Box<dyn Error>> {
    let at = directory.join("integration");
    fs::create_dir_all(&at)?;
    let rules = rules
        .iter()
        .enumerate()
        .map(|(id, sql)| (format!("rule-{id:05}"), rule(id, sql, actions)));
    let action = json!({
        "type": "file", "name": "a", "parameters": {"directory": directory, "name": "lines"},
        "delivery": {"buffer": {"mode": "memory", "max_bytes": 8_388_608, "overflow": "drop-oldest"}},
    });
    let definitions = json!({"rules": rules.collect::<serde_json::Map<_, _>>(), "actions": {"file:a": action}});
    fs::write(at.join("definitions.json"), serde_json::to_vec(&definitions)?)?;
    let engine = Engine::open(
        directory,
        "bench",
        DeclaredDefinitions::default(),
        Box::new(|_: &Path| None),
        Duration::ZERO,
    )?;
    engine.with_action("file:a", |action| action.pause())?;
    Ok(engine)
}

fn messages(name: &str, directory: &Path, rules: &[&str], actions: &[&str]) -> Result<(), Box<dyn Error>> {
    let engine = engine(directory, rules, actions)?;
    let mut tap = engine.tap(1);
    let mut best = f64::INFINITY;
    for round in 0..ROUNDS {
        let start = Instant::now();
        (0..TICKS).for_each(|tick| one_tick(&mut tap, (round * TICKS + tick) as u64));
        best = best.min(start.elapsed().as_nanos() as f64 / (TICKS * PER_TICK) as f64);
    }
    println!("{name:40} {best:8.0} ns {:8.2} M/s", 1e3 / best);
    drop(tap);
    engine.shut_down();
    Ok(())
}

fn one_tick(tap: &mut dyn Tap, tick: u64) {
    let now = Now {
        monotonic_ms: tick,
        unix_ms: 1_708_671_600_500 + tick,
        journal_ms: 1_708_671_600_500 + tick,
    };
    tap.begin_tick(now);
    for n in 0..PER_TICK {
        let message = TapMessage {
            id: n as u128 + 1,
            received_at_ms: now.unix_ms,
            client: Some(TapClient {
                client_id: "sensor-000017",
                user_name: None,
                address: ([10, 0, 0, 7], 50_123).into(),
                listener: None,
                version: ProtocolVersion::V5,
                grant: &LoginGrant::None,
                mountpoint: None,
            }),
            topic: "t/17",
            payload: PAYLOAD,
            properties: &[],
            qos: QoS::AtLeastOnce,
            expiry_s: None,
            retain: false,
            is_duplicate: false,
            mark: 0,
        };
        tap.message(now, &message);
    }
    tap.end_tick();
}

fn changes(directory: &Path, many: &[&str]) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let engine = engine(directory, many, &["file:a"])?;
    println!(
        "{:40} {:8.0} ms",
        "a start with 10,000 rules",
        start.elapsed().as_secs_f64() * 1e3
    );
    // Shards read the new rules between ticks. A reader that does not would cost a copy of all rules per change.
    let mut tap = engine.tap(1);
    let start = Instant::now();
    for change in 0..CHANGES {
        let sql = format!("SELECT topic, {change} AS n FROM \"t/{change}\"");
        let changed: RuleDefinition = serde_json::from_value(rule(change, &sql, &["file:a"]))?;
        engine.put_rule(changed)?;
        one_tick(&mut tap, change as u64);
    }
    let each = start.elapsed().as_secs_f64() * 1e3 / CHANGES as f64;
    println!("{:40} {each:8.2} ms", "a change of one of them");
    drop(tap);
    engine.shut_down();
    Ok(())
}
