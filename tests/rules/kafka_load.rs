//! Publishers at QoS 1 that continue through restarts of the server. They record acknowledged messages and compare them
//! with the content of Kafka or another target.
//!
//! A message is `NUMBER` in the topic `up/CLIENT`, and its Kafka key is the client. A message that was sent but not
//! acknowledged may be present or absent. Duplicates are counted. The first copies of the messages must be in the order
//! in which the client sent them.

use std::collections::{BTreeMap, HashSet};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::api::Api;
use crate::support::kafka::{Found, Kafka};
use crate::support::*;

const CLIENTS: usize = 4;
/// Messages that a publisher sends before it waits for their acknowledgements.
const AT_ONCE: u64 = 10;
/// Pause between these groups. The rate per client is about [`AT_ONCE`] messages per pause.
const PACE: Duration = Duration::from_millis(10);
/// Time limit for a server that restarts or applies back-pressure.
const HELD_BACK: Duration = Duration::from_secs(1);

/// Creates a rule and an action that send everything below `up/` to the Kafka topic, with these `delivery` settings.
pub fn bridge(api: &Api<'_>, kafka: &Kafka, kafka_topic: &str, delivery: serde_json::Value) {
    let connector = json!({"type": "kafka", "name": "k", "config": {"bootstrap_hosts": kafka.address}});
    api.ok("POST", "/api/v1/connectors", &connector);
    let mut delivery = delivery;
    delivery["retry"] = json!({"first_ms": 50, "longest_ms": 500});
    delivery["health_check_interval_ms"] = 500.into();
    let action = json!({
        "type": "kafka", "name": "out", "connector": "k", "delivery": delivery,
        "parameters": {"kafka_topic": kafka_topic, "key": "${clientid}", "value": "${payload}", "partition_refresh_ms": 1000},
    });
    api.ok("POST", "/api/v1/actions", &action);
    let rule = json!({"id": "out", "sql": "SELECT clientid, payload FROM \"up/#\"", "actions": ["kafka:out"]});
    api.ok("POST", "/api/v1/rules", &rule);
}

/// Waits until the action has sent all messages.
pub fn wait_until_sent(server: &Server, api: &Api<'_>, within: Duration) {
    wait_until_action_sent(server, api, "kafka:out", within);
}

/// Waits until the action with this name has sent all messages.
pub fn wait_until_action_sent(server: &Server, api: &Api<'_>, id: &str, within: Duration) {
    server.wait_until_within(within, &format!("all that waits in {id} has been sent"), |_| {
        api.get(&format!("/api/v1/actions/{id}"))["metrics"]["queued_messages"] == 0
    });
}

/// Publishers, each on its own thread.
pub struct Load {
    is_over: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Sent>>,
}

/// Messages that one publisher sent.
struct Sent {
    client: String,
    acknowledged: Vec<u64>,
}

impl Load {
    /// Starts publishers whose client ids begin with `name`.
    pub fn start(address: SocketAddr, name: &str) -> Load {
        let mut load = Load {
            is_over: Arc::default(),
            acknowledged: Arc::default(),
            refused: Arc::default(),
            threads: Vec::new(),
        };
        for number in 0..CLIENTS {
            let publisher = Publisher {
                address,
                client: format!("{name}-{number}"),
                is_over: Arc::clone(&load.is_over),
                counts: (Arc::clone(&load.acknowledged), Arc::clone(&load.refused)),
                next: 0,
                acknowledged: Vec::new(),
            };
            load.threads.push(thread::spawn(|| publisher.run()));
        }
        load
    }

    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Messages rejected with reason code 0x97, Quota exceeded.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Waits until this many more messages have been acknowledged.
    #[track_caller]
    pub fn wait_for(&self, more: u64) {
        let (wanted, end) = (self.acknowledged() + more, Instant::now() + 3 * PATIENCE);
        while self.acknowledged() < wanted {
            assert!(
                Instant::now() < end,
                "{} of {wanted} messages were acknowledged",
                self.acknowledged()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the publishers and waits for their messages in flight.
    pub fn finish(self) -> Acknowledged {
        self.is_over.store(true, Ordering::Relaxed);
        let sent = self.threads.into_iter().map(|thread| thread.join().expect("no panic"));
        Acknowledged(sent.collect())
    }
}

struct Publisher {
    address: SocketAddr,
    client: String,
    is_over: Arc<AtomicBool>,
    counts: (Arc<AtomicU64>, Arc<AtomicU64>),
    next: u64,
    acknowledged: Vec<u64>,
}

impl Publisher {
    fn run(mut self) -> Sent {
        let mut peer = None;
        while !self.is_over.load(Ordering::Relaxed) {
            peer = match peer.or_else(|| self.connect()) {
                Some(mut peer) => self.round(&mut peer).then_some(peer),
                None => None,
            };
            thread::sleep(PACE);
        }
        Sent {
            client: self.client,
            acknowledged: self.acknowledged,
        }
    }

    fn connect(&self) -> Option<Peer> {
        let stream = TcpStream::connect(self.address).ok()?;
        let mut peer = Peer::over(stream).speak(V5);
        peer.try_send(&Connect::new(V5, &self.client).bytes()).ok()?;
        matches!(peer.read(PATIENCE), Reading::Packet(connack) if connack.kind() == kind::CONNACK).then_some(peer)
    }

    /// Sends some messages and reads their acknowledgements. Returns whether the connection is still open.
    fn round(&mut self, peer: &mut Peer) -> bool {
        let first = self.next;
        let topic = format!("up/{}", self.client);
        for number in first..first + AT_ONCE {
            let message = Publish::new(&topic, number.to_string()).qos(1);
            // Messages sent before the connection was lost are never resent.
            self.next = number + 1;
            if peer
                .try_send(&message.id((number - first) as u16 + 1).bytes(V5))
                .is_err()
            {
                return false;
            }
        }
        let mut is_refused = false;
        for _ in 0..AT_ONCE {
            let Reading::Packet(answer) = peer.read(3 * PATIENCE) else {
                return false;
            };
            assert_eq!(answer.kind(), kind::PUBACK, "{answer:?}");
            match answer.reason() {
                0..0x80 => {
                    self.acknowledged.push(first + u64::from(answer.packet_id()) - 1);
                    self.counts.0.fetch_add(1, Ordering::Relaxed);
                }
                0x97 => {
                    is_refused = true;
                    self.counts.1.fetch_add(1, Ordering::Relaxed);
                }
                other => panic!("PUBACK {other:#x}"),
            }
        }
        if is_refused && !self.is_over.load(Ordering::Relaxed) {
            thread::sleep(HELD_BACK);
        }
        true
    }
}

/// Messages that were acknowledged to publishers.
pub struct Acknowledged(Vec<Sent>);

/// Result of comparing acknowledged messages with the content of Kafka.
#[derive(Debug)]
pub struct Reconciled {
    pub acknowledged: usize,
    pub records: usize,
    pub twice: usize,
}

impl Acknowledged {
    /// Fails with the first message that is missing or arrived after a later message of its client.
    #[track_caller]
    pub fn reconcile(&self, found: &[Found]) -> Reconciled {
        let mut there: BTreeMap<&str, HashSet<u64>> = BTreeMap::new();
        let mut last: BTreeMap<&str, (i32, u64)> = BTreeMap::new();
        let mut twice = 0;
        for record in found {
            let number: u64 = record.value.parse().expect("a number");
            if !there.entry(&record.key).or_default().insert(number) {
                twice += 1;
                continue;
            }
            let before = last.insert(&record.key, (record.partition, number));
            if let Some((partition, before)) = before {
                assert_eq!(partition, record.partition, "{} is in two partitions", record.key);
                assert!(before < number, "{} {number} arrived after {before}", record.key);
            }
        }
        let mut missing = Vec::new();
        for sent in &self.0 {
            let is_there = |number: &&u64| there.get(&*sent.client).is_some_and(|there| there.contains(number));
            let lost = sent.acknowledged.iter().filter(|number| !is_there(number));
            missing.extend(lost.map(|number| format!("{} {number}", sent.client)));
        }
        let reconciled = Reconciled {
            acknowledged: self.0.iter().map(|sent| sent.acknowledged.len()).sum(),
            records: found.len(),
            twice,
        };
        assert!(
            missing.is_empty(),
            "{} are missing, such as {:?}: {reconciled:?}",
            missing.len(),
            &missing[..missing.len().min(5)]
        );
        reconciled
    }
}
