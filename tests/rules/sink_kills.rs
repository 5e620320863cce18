//! Kills the server repeatedly under load. In the end every kind of target has all acknowledged messages in the order
//! of each client, and messages from a Kafka source reach their subscriber.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::kafka_load::{Load, Reconciled, wait_until_action_sent};
use super::real_servers::Started;
use super::web_server::WebServer;
use crate::support::api::Api;
use crate::support::kafka::{Found, Kafka};
use crate::support::shared::POSTGRES;
use crate::support::*;

const KILLS: u64 = 12;
const SENT_WITHIN: Duration = Duration::from_secs(60);

/// Parses a line with the client and the number.
fn found(line: &str) -> Found {
    let (key, value) = line.split_once(' ').expect("client and number");
    Found {
        partition: 0,
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("the client of the server is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

fn psql(sql: &str) -> String {
    let address = POSTGRES.value("TIDEWIRE_POSTGRES");
    let (host, port) = address.rsplit_once(':').expect("an address");
    let mut command = Command::new("psql");
    command
        .env("PGPASSWORD", "tidewire")
        .args(["-U", "postgres", "-At", "-F", " "]);
    output(command.args(["-h", host, "-p", port, "-c", sql]))
}

pub fn redis(server: &Started, arguments: &[&str]) -> String {
    let (host, port) = server.address.rsplit_once(':').expect("an address");
    let mut command = Command::new("redis-cli");
    output(command.args(["-h", host, "-p", port]).args(arguments))
}

/// Targets that receive all messages published below `up/`.
struct Targets {
    /// Name of the table in the PostgreSQL that all tests share.
    table: String,
    redis: Started,
    web: WebServer,
}

const ACTIONS: [&str; 5] = [
    "postgresql:rows",
    "redis:stream",
    "redis:list",
    "http:hook",
    "file:lines",
];

impl Targets {
    fn start() -> Targets {
        let table = format!("arrived_{}", std::process::id());
        psql(&format!("CREATE TABLE {table} (n bigserial, client text, number text)"));
        Targets {
            table,
            redis: Started::new("redis", &[]),
            web: WebServer::here(),
        }
    }

    fn define(&self, server: &Server) {
        let api = Api::of(server);
        let address = POSTGRES.value("TIDEWIRE_POSTGRES");
        let (host, port) = address.rsplit_once(':').expect("an address");
        let port: u16 = port.parse().expect("a port");
        let credentials =
            json!({"host": host, "port": port, "database": "postgres", "user": "postgres", "password": "tidewire"});
        let connectors = [
            ("postgresql", credentials),
            ("redis", json!({"servers": [self.redis.address]})),
            ("http", json!({"url": format!("http://{}", self.web.address)})),
        ];
        for (kind, config) in connectors {
            let connector = json!({"type": kind, "name": kind, "config": config});
            api.ok("POST", "/api/v1/connectors", &connector);
        }
        let parameters = [
            json!({"sql": format!("INSERT INTO {} (client, number) VALUES (${{clientid}}, ${{payload}})", self.table)}),
            json!({"command": ["XADD", "stream", "*", "client", "${clientid}", "number", "${payload}"]}),
            json!({"command": ["RPUSH", "list", "${clientid} ${payload}"]}),
            json!({"body": "${clientid} ${payload}"}),
            json!({"directory": server.dir(), "name": "lines"}),
        ];
        for (id, parameters) in ACTIONS.iter().zip(parameters) {
            let (kind, name) = id.split_once(':').expect("type:name");
            let connector = if kind == "file" { "" } else { kind };
            let action = json!({
                "type": kind, "name": name, "connector": connector, "parameters": parameters,
                "delivery": {"buffer": {"segment_bytes": 65_536}, "retry": {"first_ms": 20, "longest_ms": 200}},
            });
            api.ok("POST", "/api/v1/actions", &action);
        }
        let rule = json!({"id": "all", "sql": "SELECT clientid, payload FROM \"up/#\"", "actions": ACTIONS});
        api.ok("POST", "/api/v1/rules", &rule);
    }

    /// Returns the messages of each target in their order of arrival.
    fn found(&self, server: &Server) -> [Vec<Found>; 5] {
        let rows = psql(&format!("SELECT client, number FROM {} ORDER BY n", self.table));
        let stream = redis(&self.redis, &["XRANGE", "stream", "-", "+"]);
        // Each entry has an identifier, two names and two values.
        let stream: Vec<&str> = stream.lines().collect();
        let stream = stream
            .chunks(5)
            .map(|entry| found(&format!("{} {}", entry[2], entry[4])));
        let list = redis(&self.redis, &["LRANGE", "list", "0", "-1"]);
        let lines = fs::read_to_string(server.dir().join("lines.jsonl")).expect("the file exists");
        let line = |line: &str| {
            let line: Value = serde_json::from_str(line).expect("a line is JSON, also after a kill");
            let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
            found(&format!("{} {}", text("clientid"), text("payload")))
        };
        [
            rows.lines().map(found).collect(),
            stream.collect(),
            list.lines().map(found).collect(),
            self.web.bodies().iter().map(|body| found(body)).collect(),
            lines.lines().map(line).collect(),
        ]
    }
}

// fault: Process killed; Action buffers
#[test]
fn acknowledged_messages_reach_every_target_despite_kills() {
    let targets = Targets::start();
    let mut server = Server::start(&Config::new(""));
    targets.define(&server);
    let load = Load::start(server.mqtt(), "kills");
    for round in 0..scaled(KILLS) {
        load.wait_for(10 + 50 * (round % 5));
        server.kill();
        server.spawn_again();
        server.wait_until_ready();
    }
    load.wait_for(100);
    let acknowledged = load.finish();
    let api = Api::of(&server);
    for id in ACTIONS {
        wait_until_action_sent(&server, &api, id, SENT_WITHIN);
    }
    for (id, found) in ACTIONS.iter().zip(targets.found(&server)) {
        let Reconciled {
            acknowledged,
            records,
            twice,
        } = acknowledged.reconcile(&found);
        println!("{id}: {acknowledged} acknowledged, {records} arrived, {twice} of them once more");
        assert!(twice <= acknowledged, "{id}: at most one duplicate per message");
        let metrics = &api.get(&format!("/api/v1/actions/{id}"))["metrics"];
        assert_eq!(metrics["failed"], 0, "{metrics:#}");
    }
}

/// A subscriber with a durable session. It records the first copy of each received message by key.
struct Subscriber {
    is_over: Arc<AtomicBool>,
    got: Arc<Mutex<Got>>,
}

#[derive(Default)]
struct Got {
    by_key: BTreeMap<String, Vec<u64>>,
    all: BTreeSet<(String, u64)>,
    twice: usize,
}

impl Subscriber {
    fn connect() -> Connect {
        Connect::new(V5, "subscriber").persistent()
    }

    fn start(address: SocketAddr) -> Subscriber {
        let subscriber = Subscriber {
            is_over: Arc::default(),
            got: Arc::default(),
        };
        let (is_over, got) = (Arc::clone(&subscriber.is_over), Arc::clone(&subscriber.got));
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let _ = Subscriber::receive(address, &is_over, &got);
            }
        });
        subscriber
    }

    /// Receives messages until the connection is lost.
    fn receive(address: SocketAddr, is_over: &AtomicBool, got: &Mutex<Got>) -> std::io::Result<()> {
        let stream = TcpStream::connect(address).inspect_err(|_| thread::sleep(Duration::from_millis(5)))?;
        let mut peer = Peer::over(stream).speak(V5);
        peer.try_send(&Subscriber::connect().bytes())?;
        while !is_over.load(Ordering::Relaxed) {
            match peer.read(Duration::from_millis(100)) {
                Reading::Packet(packet) if packet.kind() == kind::CONNACK => {
                    assert!(packet.connack(V5).session_present, "the session survives kills");
                }
                Reading::Packet(packet) => {
                    let delivery = packet.delivery(V5);
                    got.lock().unwrap_or_else(PoisonError::into_inner).add(&delivery);
                    let id = delivery.packet_id.expect("QoS 1");
                    peer.try_send(&packet::acknowledge(kind::PUBACK, id))?;
                }
                Reading::Closed => return Ok(()),
                Reading::Silence => {}
            }
        }
        Ok(())
    }

    fn count(&self) -> usize {
        self.got.lock().unwrap_or_else(PoisonError::into_inner).all.len()
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Got {
    fn add(&mut self, delivery: &Delivery) {
        let key = delivery.topic_str().to_owned();
        let number = delivery.payload_str().parse().expect("a number");
        match self.all.insert((key.clone(), number)) {
            true => self.by_key.entry(key).or_default().push(number),
            false => self.twice += 1,
        }
    }
}

/// The source commits offsets after the server has stored the messages, so no Kafka record is skipped.
// fault: Process killed; Action buffers
#[test]
fn kafka_records_reach_the_subscriber_despite_kills() {
    const KEYS: u64 = 8;
    let kafka = Kafka::shared();
    let kafka_topic = kafka.topic("in", 4);
    let mut server = Server::start(&Config::new("[mqtt]\nmax_queued_messages = 100000\n"));
    let mut first = server.session(&Subscriber::connect());
    first.subscribe("down/#", 1);
    first.disconnect();
    {
        let api = Api::of(&server);
        let connector = json!({"type": "kafka", "name": "k", "config": {"bootstrap_hosts": kafka.address}});
        api.ok("POST", "/api/v1/connectors", &connector);
        let source = json!({
            "type": "kafka", "name": "in", "connector": "k",
            "parameters": {"kafka_topics": [kafka_topic], "group_id": kafka_topic, "offset_reset": "earliest", "session_timeout_ms": 6000,
                "batch_records_max": 20, "commit_interval_ms": 200},
            "publish": {"topic": "down/${key}", "payload": "${value}", "qos": 1},
        });
        api.ok("POST", "/api/v1/sources", &source);
    }
    let subscriber = Subscriber::start(server.mqtt());
    let producer = kafka.producer();
    let mut written = 0;
    for round in 0..scaled(KILLS) {
        for _ in 0..100 + 20 * (round % 5) {
            producer.send(&kafka_topic, &format!("k{}", written % KEYS), &written.to_string());
            written += 1;
        }
        // The kill hits the server while it receives records, before it commits the offsets.
        let before = subscriber.count();
        let some = before + 1 + 13 * (round as usize % 4);
        server.wait_until_within(SENT_WITHIN, "some more have come", |_| {
            subscriber.count() >= some.min(written as usize)
        });
        server.kill();
        server.spawn_again();
        server.wait_until_ready();
    }
    producer.flush();
    server.wait_until_within(SENT_WITHIN, "all have come", |_| subscriber.count() as u64 == written);
    let got = subscriber.got.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{written} in Kafka, all arrived, {} of them once more", got.twice);
    for (key, numbers) in &got.by_key {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
}
