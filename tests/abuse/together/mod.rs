//! All kinds of attacks at once, while normal clients publish at QoS 1.
//!
//! `tidewire bench` runs pairs of a publisher and a subscriber and checks each message by its number. At the same time
//! every kind of `kinds.rs` attacks in rounds. No acknowledged message may be lost, no normal client may lose its
//! connection, and afterwards connections, sessions, subscriptions, retained messages and memory are as before.
//!
//! `make test` attacks for about 15 seconds with 200 normal clients. Its limits are generous, because the machine may
//! be busy. `make attack`, which `make soak` contains, attacks a release build for ten minutes with 1,000 normal
//! clients. The PUBACK of 99 % of their messages must arrive within 20 ms, so it needs an idle machine:
//!
//! ```text
//! make attack                                 # ten minutes
//! dev/attack 120                              # two minutes
//! TIDEWIRE=target/release/tidewire dev/attack # an existing binary
//! ```
//!
//! The environment variables `TIDEWIRE_ATTACK_SECONDS`, `TIDEWIRE_ATTACK_PAIRS` and `TIDEWIRE_ATTACK_P99_MS` set the
//! time, the number of pairs and the limit of the latency.

mod kinds;

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use self::kinds::{KINDS, Kind, Scene};
use crate::support::api::Api;
use crate::support::target::Target;
use crate::support::*;

/// Each kind pauses between its rounds, because attackers share the machine with the server. Real ones do not.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest time until everything that the attacks used is free again. A busy machine needs longer.
const RELEASED_WITHIN: Duration = Duration::from_secs(90);

/// The allocator keeps some freed memory, and pages of the journal and of statistics come into use.
const TOLERANCE_KIB: u64 = 48 * 1024;

const CONFIG: &str = r##"
[access]
anonymous = "loopback"
rules = [
  { permission = "deny", action = "all", topics = ["secret/#"] },
  { permission = "allow", action = "all", topics = ["#"] },
]
[mqtt]
max_session_expiry = "2s"
[retained]
max_messages = 10000
max_bytes = "16MiB"
[platform]
enabled = true
demo = true
[rules.attacked]
sql = """SELECT jq('reduce range(.n) as $i (0; . + 1)', payload) AS done FROM 'attacked/rule'"""
[rules.pattern]
sql = """SELECT regex_replace(payload.x, '<[^>]*>|<', '') AS y FROM 'attacked/pattern'"""
"##;

/// Pairs of normal clients in `make test`.
const PAIRS: u64 = 100;

/// Limit of the latency in `make test`, in milliseconds.
const P99_MS: f64 = 5000.0;

const LOAD: &str = r#"
name = "normal"
about = "pairs at QoS 1, one message per second each"

[[group]]
name = "subscribers"
clients = PAIRS
subscribe = [{ filter = "normal/%r/%i", qos = 1 }]

[[group]]
name = "publishers"
clients = PAIRS

[group.publish]
topic = "normal/%r/%i"
qos = 1
rate = 1.0
window = 16
payload.bytes = 128
"#;

/// Values of the metrics in `RELEASED`.
type Usage = BTreeMap<&'static str, u64>;

/// Metrics of the server that return to their values at the start.
const RELEASED: [&str; 5] = [
    "tidewire_broker_connections",
    "tidewire_broker_sessions",
    "tidewire_broker_subscriptions",
    "tidewire_broker_retained_messages",
    "tidewire_broker_queued_messages",
];

#[test]
fn all_attacks_at_once_lose_no_message_and_no_memory() {
    let server = Server::start(&Config::new(CONFIG));
    let scene = Scene::prepare(&server);
    let seconds = variable("TIDEWIRE_ATTACK_SECONDS").unwrap_or_else(|| scaled(12));
    let start = usage(&server);
    // The first round of each kind and the first normal clients bring code, threads and buffers into use.
    run(&scene, 2);
    wait_for_release(&server, &start);
    let start_kib = server.anonymous_kib();

    let report = run(&scene, seconds);

    wait_for_release(&server, &start);
    let mut end_kib = server.anonymous_kib();
    let deadline = Instant::now() + RELEASED_WITHIN;
    while end_kib > start_kib + TOLERANCE_KIB && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(100));
        end_kib = server.anonymous_kib();
    }
    let (p99, ack_p99) = (p99_of(&report, "end_to_end"), p99_of(&report, "acknowledgement"));
    println!(
        "{seconds} s: end to end p99 {p99:.1} ms, PUBACK p99 {ack_p99:.1} ms; memory {} MiB before, {} MiB at most, {} MiB \
         after",
        start_kib / 1024,
        server.rss_peak_kib() / 1024,
        end_kib / 1024,
    );
    assert!(
        end_kib <= start_kib + TOLERANCE_KIB,
        "memory has grown from {start_kib} to {end_kib} KiB"
    );
    let limit = variable("TIDEWIRE_ATTACK_P99_MS").unwrap_or(P99_MS);
    assert!(
        ack_p99 < limit,
        "the PUBACK p99 is {ack_p99:.1} ms, the limit is {limit} ms"
    );
    server.assert_alive();
}

/// Runs all attacks and the normal clients for this time. Returns the result of the normal clients.
fn run(scene: &Scene<'_>, seconds: u64) -> Json {
    let is_over = &AtomicBool::new(false);
    let (output, rounds) = thread::scope(|scope| {
        let attacks: Vec<_> = KINDS
            .iter()
            .map(|kind| (kind.name, scope.spawn(move || repeat(kind, scene, is_over))))
            .collect();
        let output = load(scene.server, seconds);
        is_over.store(true, Release);
        let rounds: BTreeMap<&str, u64> = attacks
            .into_iter()
            .map(|(name, attack)| (name, attack.join().expect("an attacker only fails with the server")))
            .collect();
        (output, rounds)
    });
    println!("rounds: {rounds:?}");
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(
        output.status.success(),
        "{}\nthe server's log:\n{}",
        String::from_utf8_lossy(&output.stderr),
        scene.server.log()
    );
    let result = std::fs::read_to_string(scene.server.dir().join("load.json")).expect("the load writes a result");
    serde_json::from_str(&result).expect("the result is JSON")
}

/// Attacks until the normal clients have finished, at least once. Returns the number of rounds.
fn repeat(kind: &Kind, scene: &Scene<'_>, is_over: &AtomicBool) -> u64 {
    let mut rounds = 0;
    loop {
        (kind.round)(scene);
        rounds += 1;
        if is_over.load(Acquire) {
            return rounds;
        }
        thread::sleep(PAUSE);
    }
}

/// Runs the normal clients. The command fails if a message is lost, duplicated, reordered or corrupt, or if a client is
/// disconnected.
fn load(server: &Server, seconds: u64) -> Output {
    let (scenario, result) = (server.dir().join("load.toml"), server.dir().join("load.json"));
    let pairs: u64 = variable("TIDEWIRE_ATTACK_PAIRS").unwrap_or(PAIRS);
    let text = LOAD.replace("PAIRS", &pairs.to_string());
    std::fs::write(&scenario, text).expect("the server's directory is writable");
    let Target::Tidewire { program } = Target::from_environment() else {
        panic!("only tidewire has all attacked parts");
    };
    let mut command = Command::new(program);
    command.args(["bench", "run"]).arg(&scenario).arg("--json").arg(&result);
    command.args(["--threads", "1", "--duration", &seconds.to_string()]);
    command.args(["-h", "127.0.0.1", "-p", &server.mqtt().port().to_string()]);
    for measure in [
        "lost",
        "duplicated",
        "reordered",
        "corrupt",
        "disconnects",
        "failed_connects",
    ] {
        command.args(["--require", &format!("{measure}==0")]);
    }
    command.output().expect("the binary can be executed")
}

fn p99_of(report: &Json, latency: &str) -> f64 {
    let p99 = &report["latency"][latency]["summary"]["p99_ms"];
    p99.as_f64().expect("the load measures latencies")
}

fn usage(server: &Server) -> Usage {
    let (_, text) = server.http_get("/metrics");
    let value_of = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok())
    };
    RELEASED
        .iter()
        .map(|name| (*name, value_of(name).unwrap_or_else(|| panic!("no metric {name}"))))
        .collect()
}

/// Waits until every metric is at most its value in `start`.
fn wait_for_release(server: &Server, start: &Usage) {
    let deadline = Instant::now() + RELEASED_WITHIN;
    loop {
        let now = usage(server);
        if now.iter().all(|(name, value)| *value <= start[name]) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "not released: {now:?}, at the start {start:?}"
        );
        thread::sleep(Duration::from_millis(50));
    }
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text}: expected a number")),
    )
}

/// Creates a user whose password is guessed.
fn add_user(server: &Server, name: &str) {
    let user = json!({"name": name, "password": "correct horse battery"});
    Api::of(server).ok("POST", "/api/v1/users", &user);
}
