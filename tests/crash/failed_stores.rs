//! Kills the server while the disk of one of its stores fails, chosen at random, under load.
//!
//! Each fault is visible in the log, as an alarm, as a metric and, unless a store is only full, in `/readyz`. At the
//! end everything that was acknowledged is there: messages of a durable session, messages of an action, points of a
//! device, and entities.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::faulty_disk;
use super::random::Random;
use crate::devices::rest::Rest;
use crate::rules::web_server::WebServer;
use crate::support::api::Api;
use crate::support::*;

/// Every store fails with each error once.
const ROUNDS: u64 = 10;
const CONFIG: &str = r#"
[node]
workers = 2
[platform]
enabled = true
demo = true
head_bytes = "1MiB"
[durability]
segment_bytes = "1MiB"
reserve_bytes = "0B"
[mqtt]
max_queued_messages = 10000000
max_queued_bytes = "16GiB"
[limits]
shutdown_grace = "200ms"
"#;
/// Pause of a client that was refused or could not connect.
const PAUSE: Duration = Duration::from_millis(5);
/// Time for one answer. Publishers are held back while a store fails.
const ANSWER: Duration = Duration::from_millis(200);
/// Time until a fault is visible. On a busy machine it takes a while until enough points are to be written.
const VISIBLE_WITHIN: Duration = Duration::from_secs(120);
/// Each round continues after this number of acknowledgements of each kind.
const PROGRESS: u64 = 20;
const TEXT_BYTES: usize = 10_000;
const SUBSCRIBER: &str = "failed-stores-subscriber";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Journal,
    Buffers,
    IngestLog,
    Entities,
    TimeSeries,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    store: Store,
    is_full: bool,
}

impl Fault {
    const ALL: [Fault; 10] = {
        let stores = [
            Store::Journal,
            Store::Buffers,
            Store::IngestLog,
            Store::Entities,
            Store::TimeSeries,
        ];
        let mut all = [Fault {
            store: Store::Journal,
            is_full: false,
        }; 10];
        let mut index = 0;
        while index < 10 {
            all[index] = Fault {
                store: stores[index / 2],
                is_full: index % 2 == 1,
            };
            index += 1;
        }
        all
    };

    fn control(self, server: &Server) -> std::path::PathBuf {
        let error = if self.is_full { "enospc" } else { "eio" };
        let store = match self.store {
            Store::Journal => "journal",
            Store::Buffers => "buffers",
            Store::IngestLog => "ingest-log",
            Store::Entities => "entities",
            Store::TimeSeries => "timeseries",
        };
        server.dir().join(format!("faults.{error}-{store}"))
    }

    /// Returns the name of the alarm, and the beginning of a metric line that is not 0.
    fn signs(self) -> (&'static str, &'static str) {
        match (self.store, self.is_full) {
            (Store::Journal, false) => ("journal_failed", "tidewire_journal_state{state=\"failed\"} 1"),
            (Store::Journal, true) => ("journal_full", "tidewire_journal_state{state=\"full\"} 1"),
            (Store::Buffers, false) => (
                "action:http:hook",
                "tidewire_action_state{action=\"http:hook\",state=\"buffer_failed\"} 1",
            ),
            (Store::Buffers, true) => (
                "buffer:http:hook",
                "tidewire_action_publishers_held_back_total{action=\"http:hook\"}",
            ),
            (Store::IngestLog, false) => ("ingest_log_failed", "tidewire_platform_log_state{state=\"failed\"} 1"),
            (Store::IngestLog, true) => ("ingest_log_full", "tidewire_platform_log_state{state=\"full\"} 1"),
            (Store::Entities | Store::TimeSeries, _) => ("platform_store_failed", "tidewire_platform_failed_stores 1"),
        }
    }

    /// A journal, buffer or ingest log that is only full works again when messages leave it.
    fn makes_unready(self) -> bool {
        !self.is_full || matches!(self.store, Store::Entities | Store::TimeSeries)
    }

    /// Waits until log, alarm, metric and `/readyz` show the fault.
    fn wait_until_visible(self, server: &Server) {
        let (alarm, metric) = self.signs();
        let api = Api::of(server);
        server.wait_until_within(VISIBLE_WITHIN, &format!("{self:?} is an alarm"), |_| {
            let alarms = api.get("/api/v1/alarms");
            let active = alarms["active"].as_array().into_iter().flatten();
            active.into_iter().any(|active| active["name"] == alarm)
        });
        server.wait_until(&format!("{self:?} is in the log"), |server| {
            server.log().contains(alarm)
        });
        server.wait_until(&format!("{self:?} is a metric"), |server| {
            let metrics = server.http_get("/metrics").1;
            let mut lines = metrics.lines();
            lines.any(|line| line.starts_with(metric) && !line.ends_with(" 0"))
        });
        if self.makes_unready() {
            server.wait_until(&format!("{self:?} is in /readyz"), |server| {
                server.http_get("/readyz").0 == 503
            });
        }
    }
}

/// Numbers that clients sent, and those that were acknowledged, in all rounds.
#[derive(Default)]
struct Ledger {
    next: AtomicU64,
    acknowledged: Mutex<BTreeSet<u64>>,
}

impl Ledger {
    fn next(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    fn acknowledged(&self, number: u64) {
        self.acknowledged
            .lock()
            .expect("the mutex is not poisoned")
            .insert(number);
    }

    fn all(&self) -> BTreeSet<u64> {
        self.acknowledged.lock().expect("the mutex is not poisoned").clone()
    }

    fn count(&self) -> u64 {
        self.acknowledged.lock().expect("the mutex is not poisoned").len() as u64
    }
}

#[derive(Default)]
struct Load {
    messages: Ledger,
    points: Ledger,
    entities: Ledger,
    is_ending: AtomicBool,
}

impl Load {
    fn counts(&self) -> [u64; 3] {
        [&self.messages, &self.points, &self.entities].map(Ledger::count)
    }

    /// Publishes at QoS 1 until the round ends. Connects again when the server closes the connection.
    fn publish(&self, address: SocketAddr, connect: &Connect, ledger: &Ledger, message: impl Fn(u64) -> Publish) {
        while !self.is_ending.load(Relaxed) {
            let Some(mut peer) = session(address, connect) else {
                thread::sleep(PAUSE);
                continue;
            };
            self.publish_over(&mut peer, ledger, &message);
        }
    }

    fn publish_over(&self, peer: &mut Peer, ledger: &Ledger, message: &impl Fn(u64) -> Publish) {
        while !self.is_ending.load(Relaxed) {
            let (number, id) = (ledger.next(), peer.packet_id());
            if peer.try_send(&message(number).qos(1).id(id).bytes(V5)).is_err() {
                return;
            }
            match peer.read(ANSWER) {
                Reading::Packet(packet) if packet.kind() == kind::PUBACK && packet.packet_id() == id => {
                    match packet.reason() < 0x80 {
                        true => ledger.acknowledged(number),
                        false => thread::sleep(PAUSE),
                    }
                }
                // The answer may come later. It does not count, so the connection is replaced.
                Reading::Packet(_) | Reading::Silence | Reading::Closed => return,
            }
        }
    }

    fn create_devices(&self, address: SocketAddr, token: &str) {
        while !self.is_ending.load(Relaxed) {
            let number = self.entities.next();
            let body = json!({"name": device_name(number), "type": "default"}).to_string();
            match post(address, "/api/device", token, &body) {
                Some(200) => self.entities.acknowledged(number),
                _ => thread::sleep(PAUSE),
            }
        }
    }
}

fn device_name(number: u64) -> String {
    format!("made-{number:06}")
}

/// Returns `None` if the server does not accept the session.
fn session(address: SocketAddr, connect: &Connect) -> Option<Peer> {
    let stream = TcpStream::connect(address).ok()?;
    let mut peer = Peer::over(stream).speak(V5);
    peer.try_send(&connect.bytes()).ok()?;
    match peer.read(PATIENCE) {
        Reading::Packet(packet) if packet.kind() == kind::CONNACK && packet.connack(V5).code == 0 => Some(peer),
        _ => None,
    }
}

/// Returns the status, or `None` if there is no answer.
fn post(address: SocketAddr, path: &str, token: &str, body: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nX-Authorization: Bearer {token}\r\n\r\n{body}"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

/// Creates the rule that sends all messages to the web server.
fn define(api: &Api<'_>, web: &WebServer) {
    let connector = json!({"type": "http", "name": "web", "config": {"url": format!("http://{}", web.address)}});
    api.ok("POST", "/api/v1/connectors", &connector);
    let action = json!({
        "type": "http", "name": "hook", "connector": "web", "parameters": {"body": "${payload}"},
        "delivery": {"buffer": {"segment_bytes": 65_536}, "retry": {"first_ms": 20, "longest_ms": 100}},
    });
    api.ok("POST", "/api/v1/actions", &action);
    let rule = json!({"id": "all", "sql": "SELECT payload FROM \"t/#\"", "actions": ["http:hook"]});
    api.ok("POST", "/api/v1/rules", &rule);
}

// fault: Write or sync fails; Journal, Action buffers, Ingest log, Entity database, Time series
// fault: Disk full; Journal, Action buffers, Ingest log, Entity database, Time series
#[test]
fn acknowledged_data_survives_kills_while_stores_fail() {
    let seed = super::number("TIDEWIRE_CRASH_SEED", 1);
    let mut random = Random::new(seed, 7);
    let mut server = Server::start(&faulty_disk::config(CONFIG));
    let web = WebServer::here();
    define(&Api::of(&server), &web);
    let device = Rest::login(&server).device("meter", "METER");
    // The session must not expire before the last round.
    let expiry = prop::u32(prop::SESSION_EXPIRY_INTERVAL, 86_400);
    let subscriber = Connect::new(V5, SUBSCRIBER).clean(false).property(expiry);
    server.session(&subscriber).subscribe("t/#", 1);
    let load = Load::default();
    let mut faults = Vec::new();
    for round in 0..scaled(ROUNDS) {
        if faults.is_empty() {
            faults = Fault::ALL.to_vec();
        }
        let fault = faults.swap_remove(random.below(faults.len() as u64) as usize);
        println!("seed {seed}, round {round}: {fault:?}");
        run_round(&mut server, &load, fault, &mut random);
    }
    check(&server, &load, &web, &subscriber, &device);
    let [messages, points, entities] = load.counts();
    println!("acknowledged: {messages} messages, {points} points, {entities} entities");
}

fn run_round(server: &mut Server, load: &Load, fault: Fault, random: &mut Random) {
    load.is_ending.store(false, Relaxed);
    let token = Rest::login(server).token().to_owned();
    let (mqtt, http) = (server.mqtt(), server.http());
    let before = load.counts();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let connect = Connect::new(V5, unique("publisher"));
                load.publish(mqtt, &connect, &load.messages, |number| {
                    Publish::new("t/1", number.to_string())
                });
            });
        }
        scope.spawn(|| {
            let connect = Connect::new(V5, unique("meter")).user_name("METER");
            load.publish(mqtt, &connect, &load.points, point);
        });
        scope.spawn(|| load.create_devices(http, &token));
        let end = SetOnDrop(&load.is_ending);
        server.wait_until_within(VISIBLE_WITHIN, "the load makes progress", |_| {
            load.counts()
                .iter()
                .zip(&before)
                .all(|(now, before)| now - before >= PROGRESS)
        });
        thread::sleep(Duration::from_millis(random.below(100)));
        let control = fault.control(server);
        fs::write(&control, "").expect("the directory is writable");
        fault.wait_until_visible(server);
        thread::sleep(Duration::from_millis(random.below(300)));
        server.kill();
        drop(end);
        fs::remove_file(&control).expect("the file exists");
    });
    server.spawn_again();
    server.wait_until_ready();
}

/// The texts fill the memory for points soon, so that points are written to the disk.
fn point(number: u64) -> Publish {
    let values = json!({"n": number, "text": "x".repeat(TEXT_BYTES)});
    let body = json!({"ts": 1_700_000_000_000_u64 + number, "values": values});
    Publish::new("v1/devices/me/telemetry", body.to_string())
}

fn check(server: &Server, load: &Load, web: &WebServer, subscriber: &Connect, device: &str) {
    let messages = load.messages.all();
    let mut peer = server.session(subscriber);
    let mut missing = messages.clone();
    while !missing.is_empty() {
        let delivery = peer.receive();
        missing.remove(&delivery.payload_str().parse().expect("a number"));
        peer.acknowledge(&delivery);
    }
    server.wait_until_within(Duration::from_secs(60), "all messages reach the web server", |_| {
        let arrived: BTreeSet<u64> = web.bodies().iter().filter_map(|body| body.parse().ok()).collect();
        arrived.is_superset(&messages)
    });
    let rest = Rest::login(server);
    server.wait_until_within(Duration::from_secs(60), "the ingest log is processed", |server| {
        let (_, metrics) = server.http_get("/metrics");
        metrics.lines().any(|line| line == "tidewire_platform_lag_messages 0")
    });
    let path = format!(
        "/api/plugins/telemetry/DEVICE/{device}/values/timeseries?keys=n&startTs=0&endTs={}&limit=10000000&useStrictDataTypes=true",
        i64::MAX
    );
    let stored = rest.ok("GET", &path, &Json::Null);
    let points = stored["n"].as_array().into_iter().flatten();
    let stored: BTreeSet<u64> = points.filter_map(|point| point["value"].as_u64()).collect();
    let lost: Vec<u64> = load.points.all().difference(&stored).copied().collect();
    assert!(
        lost.is_empty(),
        "points that were acknowledged are not stored: {lost:?}"
    );
    for number in load.entities.all() {
        let path = format!("/api/tenant/devices?deviceName={}", device_name(number));
        rest.ok("GET", &path, &Json::Null);
    }
}
