//! Tests of the slow lane through a shard's tap. They mark rules as slow, and start the lane's threads. Until then all
//! jobs stay queued.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use broker::LoginGrant;
use broker::Now;
use broker::tap::{OffloadedResult, Receipt, Tap, TapClient, TapEventMask, TapMessage, TapResult};
use mqtt::{ProtocolVersion, QoS};
use serde_json::{Value, json};

use crate::metrics::RuleCounts;
use crate::slow_lane::MESSAGES_MAX;
use crate::timing::RETURN_AFTER_MS;
use crate::{DeclaredDefinitions, Engine, RuleTap, RuleTiming};

const THRESHOLD: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(20);

struct TestNode {
    engine: Engine,
    tap: RuleTap,
    now: Now,
    directory: PathBuf,
}

impl TestNode {
    /// A node with one rule `r` for messages below `t/`.
    fn new(actions: &Value) -> TestNode {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("tidewire-slow-lane-{}-{number}", std::process::id()));
        let at = directory.join(crate::DIRECTORY_NAME);
        fs::create_dir_all(&at).expect("a directory that can be written to");
        let action = json!({"type": "file", "name": "a", "parameters": {"directory": directory, "name": "lines"}});
        let rule = json!({"id": "r", "sql": "SELECT payload FROM 't/#'", "actions": actions});
        let definitions = json!({"rules": {"r": rule}, "actions": {"file:a": action}});
        fs::write(at.join("definitions.json"), definitions.to_string()).expect("a writable file");
        let engine = Engine::open(
            &directory,
            "node",
            DeclaredDefinitions::default(),
            Box::new(|_: &std::path::Path| None),
            Duration::ZERO,
        )
        .expect("an engine");
        engine
            .with_action("file:a", |action| action.pause())
            .expect("the action runs");
        let tap = engine.tap(1);
        let now = Now {
            monotonic_ms: 1,
            unix_ms: 1_700_000_000_000,
            journal_ms: 1_700_000_000_000,
        };
        let mut node = TestNode {
            engine,
            tap,
            now,
            directory,
        };
        node.tap.begin_tick(now);
        node
    }

    /// Adds an expensive evaluation to the rule's measurements.
    fn make_slow(&self) {
        self.engine.state().rules["r"].timing.measure(THRESHOLD, THRESHOLD, 0);
        assert!(self.timing().is_slow);
    }

    fn make_fast(&self) {
        let timing = &self.engine.state().rules["r"].timing;
        timing.measure(Duration::ZERO, THRESHOLD, RETURN_AFTER_MS);
        assert!(!timing.is_slow());
    }

    fn timing(&self) -> RuleTiming {
        self.engine.rule("r").expect("the rule").timing
    }

    fn counts(&self) -> RuleCounts {
        self.engine.rule("r").expect("the rule").metrics
    }

    fn publish(&mut self, payload: &str, qos: QoS) -> Option<Receipt> {
        match self.tap.message(self.now, &message("t/1", payload, qos, 0)) {
            TapResult::AckNow => None,
            TapResult::AckWhenStored(receipt) => Some(receipt),
        }
    }

    fn is_full(&mut self, topic: &str) -> bool {
        self.tap.is_full(self.now, &message(topic, "x", QoS::AtLeastOnce, 0))
    }

    fn is_committed(&mut self, receipt: Receipt) -> bool {
        self.tap.stored_up_to(receipt.lane()) >= receipt.number()
    }

    fn end_tick(&mut self) -> TapEventMask {
        self.tap.end_tick();
        self.tap.begin_tick(self.now)
    }

    fn start_threads(&self) {
        assert!(self.engine.inner.slow_lane.start());
    }

    fn result(&mut self) -> OffloadedResult {
        let now = self.now;
        wait_for("a result of the slow lane", || self.tap.take_offloaded(now))
    }

    /// Takes the payloads of republished messages.
    fn made(&mut self) -> Vec<String> {
        let made = self.tap.take_publications().into_iter();
        made.map(|made| String::from_utf8(made.payload).expect("UTF-8"))
            .collect()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.engine.shut_down();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn message<'a>(topic: &'a str, payload: &'a str, qos: QoS, mark: u64) -> TapMessage<'a> {
    TapMessage {
        id: 1,
        received_at_ms: 1,
        client: Some(TapClient {
            client_id: "c",
            user_name: None,
            address: ([127, 0, 0, 1], 1).into(),
            listener: None,
            version: ProtocolVersion::V5,
            grant: &LoginGrant::None,
            mountpoint: None,
        }),
        topic,
        payload: payload.as_bytes(),
        properties: &[],
        expiry_s: None,
        qos,
        retain: false,
        is_duplicate: false,
        mark,
    }
}

fn wait_for<T>(condition: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < until, "timed out waiting for {condition}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn republish() -> Value {
    json!([{"function": "republish", "args": {"topic": "t/out", "qos": 1}}])
}

#[test]
fn publisher_waits_until_the_record_of_a_slow_rule_is_stored() {
    let mut node = TestNode::new(&json!(["file:a"]));
    node.make_slow();
    let receipt = node.publish("x", QoS::AtLeastOnce).expect("a receipt");
    node.end_tick();
    assert!(!node.is_committed(receipt), "the message is not evaluated yet");
    assert!(node.tap.is_offloading());
    node.start_threads();
    let result = node.result();
    let records = result.receipt.expect("a record");
    assert!(!node.is_committed(records), "the buffer has not stored it yet");
    node.end_tick();
    wait_for("the buffer", || node.is_committed(records).then_some(()));
    assert!(
        !node.is_committed(receipt),
        "the broker has not reported durability yet"
    );
    result.on_durable.expect("a waiting publisher")();
    assert!(node.is_committed(receipt));
    assert!(!node.tap.is_offloading());
    let counts = node.counts();
    assert_eq!((counts.matched, counts.passed, counts.actions_success), (1, 1, 1));
}

#[test]
fn a_publisher_does_not_wait_for_later_messages() {
    let mut node = TestNode::new(&republish());
    node.make_slow();
    let first = node.publish("1", QoS::AtLeastOnce).expect("a receipt");
    node.end_tick();
    let second = node.publish("2", QoS::AtLeastOnce).expect("a receipt");
    node.end_tick();
    node.start_threads();
    let result = node.result();
    assert!(result.receipt.is_none(), "nothing is recorded");
    result.on_durable.expect("a waiting publisher")();
    assert!(node.is_committed(first) && !node.is_committed(second));
}

#[test]
fn messages_keep_their_order_when_a_rule_changes_lanes() {
    let mut node = TestNode::new(&republish());
    node.publish("1", QoS::AtMostOnce);
    node.make_slow();
    node.publish("2", QoS::AtMostOnce);
    node.end_tick();
    node.publish("3", QoS::AtMostOnce);
    node.make_fast();
    node.publish("4", QoS::AtMostOnce);
    assert_eq!(node.made(), ["1"], "the others must not overtake message 2");
    node.end_tick();
    node.start_threads();
    for _ in 0..3 {
        node.result();
    }
    assert_eq!(node.made(), ["2", "3", "4"]);
    node.publish("5", QoS::AtMostOnce);
    assert_eq!(node.made(), ["5"], "the message is evaluated immediately");
}

#[test]
fn a_slow_rule_ignores_its_republished_messages() {
    let mut node = TestNode::new(&republish());
    node.make_slow();
    node.publish("x", QoS::AtLeastOnce);
    node.end_tick();
    node.start_threads();
    node.result();
    let made = node.tap.take_publications().remove(0);
    let again = message(&made.topic, "x", made.qos, made.mark);
    assert_eq!(node.tap.message(node.now, &again), TapResult::AckNow);
    assert!(!node.tap.is_offloading());
}

#[test]
fn a_full_queue_delays_publishers_and_drops_other_messages() {
    let mut node = TestNode::new(&json!(["file:a"]));
    node.make_slow();
    for n in 1..=MESSAGES_MAX {
        assert!(!node.is_full("t/1"));
        node.publish("x", QoS::AtLeastOnce);
        if n == MESSAGES_MAX / 2 {
            assert!(
                node.end_tick().has(TapEventMask::CHECK_FULL),
                "half of the queue is used"
            );
        }
    }
    assert!(node.is_full("t/1") && !node.is_full("u/1"));
    node.publish("x", QoS::AtMostOnce);
    assert!(node.end_tick().has(TapEventMask::CHECK_FULL));
    let timing = node.timing();
    assert_eq!((timing.queued, timing.is_queue_full), (MESSAGES_MAX as u64, true));
    assert!(timing.queued_bytes > 0);
    assert_eq!(node.counts().dropped_queue_full, 1);
    node.start_threads();
    for _ in 0..MESSAGES_MAX {
        node.result();
    }
    wait_for("the last evaluation to be counted", || {
        (node.timing().queued == 0).then_some(())
    });
    assert!(!node.end_tick().has(TapEventMask::CHECK_FULL));
    assert!(!node.timing().is_queue_full && !node.is_full("t/1"));
    assert_eq!(node.counts().passed, MESSAGES_MAX as u64);
}

#[test]
fn queued_messages_of_a_deleted_rule_reach_its_action() {
    let mut node = TestNode::new(&json!(["file:a"]));
    node.make_slow();
    node.publish("x", QoS::AtLeastOnce);
    node.end_tick();
    node.engine.delete_rule("r").expect("the rule");
    node.tap.begin_tick(node.now);
    node.start_threads();
    assert!(node.result().receipt.is_some());
    node.end_tick();
    let stats = node.engine.with_action("file:a", |action| action.stats().matched);
    assert_eq!(stats.expect("the action"), 1);
}

#[test]
fn a_changed_rule_becomes_fast_after_its_queued_messages() {
    let mut node = TestNode::new(&republish());
    node.make_slow();
    node.publish("1", QoS::AtMostOnce);
    node.end_tick();
    let rule = json!({"id": "r", "sql": "SELECT payload, 1 AS one FROM 't/#'", "actions": republish()});
    let rule = serde_json::from_value(rule).expect("a definition");
    assert!(!node.engine.put_rule(rule).expect("a rule").timing.is_slow);
    node.tap.begin_tick(node.now);
    node.publish("2", QoS::AtMostOnce);
    assert_eq!(node.made(), [""; 0]);
    node.end_tick();
    node.start_threads();
    for _ in 0..2 {
        node.result();
    }
    assert_eq!(node.made(), ["1", "2"]);
}
