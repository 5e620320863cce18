//! Queues of rule chains: what becomes of messages that fail, by the strategy of their queue; and that none is lost by a restart.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bounds;
mod changed;
#[path = "../scratch/mod.rs"]
mod scratch;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use platform::chain::{Answer, NodeError, Outbound, Refusal};
use platform::entities::Entities;
use platform::ids::{DeviceId, EntityId, TenantId};
use platform::model::{Device, DeviceProfile, ProcessingKind, Queue, SubmitKind, Tenant};
use platform::repository::Change;
use platform::{Incoming, IngestError, Options, Outlet, Platform, Said, SqliteRepository};
use scratch::Scratch;
use serde_json::{Value as Json, json};
use timeseries::{ColumnStore, Config, DIRECTORY_NAME, Directory, Order, Position, Query, Store, Value};

const NOW: i64 = 1_700_000_000_000;

/// What is added to the values that a second system gets.
const SECOND: i64 = 100;

/// Another system, which refuses messages with a value of `a` so many times.
#[derive(Default)]
struct Other {
    refuses: HashMap<i64, u32>,
    /// Values of `a`, by what became of them.
    said: Vec<String>,
    /// Numbers under which what it took is to be answered, and values.
    taken: Vec<(u64, i64)>,
    /// Answers when it is told to.
    is_slow: bool,
    /// That everything takes, in real time.
    work: Duration,
}

impl Outlet for Other {
    fn send(&mut self, _: TenantId, number: u64, outbound: Outbound) -> Result<(), NodeError> {
        let Outbound::Rest(call) = outbound else {
            panic!("{outbound:?}")
        };
        let body: Json = serde_json::from_str(&call.body.unwrap()).unwrap();
        let mut value = body["a"].as_i64().unwrap();
        if call.url == "http://second" {
            value += SECOND;
        }
        std::thread::sleep(self.work);
        match self.refuses.get_mut(&value) {
            Some(left) if *left > 0 => {
                *left -= 1;
                self.said.push(format!("refused {value}"));
                Err(NodeError::new("busy"))
            }
            _ => {
                self.said.push(format!("took {value}"));
                self.taken.push((number, value));
                Ok(())
            }
        }
    }

    fn log(&mut self, _: platform::ids::RuleChainId, node: &str, _: &str) {
        std::thread::sleep(self.work);
        self.said.push(node.to_owned());
    }

    fn failed(&mut self, _: EntityId, node: &str, problem: &str) {
        self.said.push(format!("{node} failed: {problem}"));
    }
}

impl Other {
    fn refuses(&mut self, value: i64, times: u32) {
        self.refuses.insert(value, times);
    }

    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }
}

struct World {
    platform: Platform,
    store: Arc<ColumnStore>,
    tenant: TenantId,
    devices: Vec<DeviceId>,
    other: Other,
    position: u64,
    directory: Scratch,
}

fn open(directory: &Scratch, options: Options) -> (Platform, Arc<ColumnStore>) {
    let repository = Arc::new(SqliteRepository::open(directory.path()).unwrap());
    let entities = Arc::new(Entities::open(repository).unwrap());
    let disk = Arc::new(Directory::open(directory.path(), DIRECTORY_NAME).unwrap());
    let store = Arc::new(ColumnStore::open(disk, Config::default()).unwrap());
    let opened = Platform::open(entities, store.clone(), options).unwrap();
    (opened, store)
}

/// A queue that is deleted after the profile has named it.
const GONE: &str = "Gone";

impl World {
    /// Two devices whose messages go to this queue: they are logged, sent to the other system, and stored when it has taken them.
    fn new(queue: Option<&str>) -> World {
        World::with(queue, Options::default())
    }

    fn with(queue: Option<&str>, options: Options) -> World {
        let directory = Scratch::new();
        let (platform, store) = open(&directory, options);
        let entities = platform.entities();
        let tenant = Tenant {
            title: "T".to_owned(),
            ..Tenant::default()
        };
        let start = entities.create_tenant(tenant, NOW).unwrap();
        let tenant = start.tenant.id.unwrap();
        let mut profile = DeviceProfile {
            tenant_id: tenant,
            name: "P".to_owned(),
            ..DeviceProfile::default()
        };
        profile.default_queue_name = queue.map(str::to_owned);
        let gone = queue.filter(|name| *name == GONE).map(|name| {
            let queue = Queue {
                name: name.to_owned(),
                ..Queue::defaults().into_iter().next().unwrap()
            };
            entities.save_queue(queue, NOW).unwrap().id.unwrap()
        });
        entities.save_device_profile(profile, NOW).unwrap();
        if let Some(queue) = gone {
            entities.repository().apply(&[Change::Delete(queue.entity())]).unwrap();
            platform.reload_queues().unwrap();
        }
        let device = |name: &str| Device {
            tenant_id: tenant,
            name: name.to_owned(),
            kind: "P".to_owned(),
            ..Device::default()
        };
        let devices = ["A", "B"].map(|name| entities.save_device(device(name), Some(name), NOW).unwrap().id.unwrap());
        let world = World {
            tenant,
            devices: devices.to_vec(),
            other: Other::default(),
            position: 0,
            directory,
            platform,
            store,
        };
        world.chain(None);
        world
    }

    /// With a checkpoint to this queue before the other system.
    fn chain(&self, checkpoint: Option<&str>) {
        match checkpoint {
            None => self.chain_of(&[(0, 1, "True"), (1, 2, "Success"), (2, 3, "Success")]),
            Some(queue) => {
                let connections = [(0, 1, "True"), (1, 4, "Success"), (4, 2, "Success"), (2, 3, "Success")];
                self.connect(&connections, queue);
            }
        }
    }

    fn chain_of(&self, connections: &[(i64, i64, &str)]) {
        self.connect(connections, "Main");
    }

    fn connect(&self, connections: &[(i64, i64, &str)], checkpoint: &str) {
        let class = |class: &str| format!("org.thingsboard.rule.engine.{class}");
        let nodes = json!([
            {"type": class("filter.TbMsgTypeFilterNode"), "name": "telemetry", "configuration": {"messageTypes": ["POST_TELEMETRY_REQUEST"]}},
            {"type": class("action.TbLogNode"), "name": "log", "configuration": {}},
            {"type": class("rest.TbRestApiCallNode"), "name": "other", "configuration": {"restEndpointUrlPattern": "http://other"}},
            {"type": class("telemetry.TbMsgTimeseriesNode"), "name": "save", "configuration": {}},
            {"type": class("flow.TbCheckpointNode"), "name": "checkpoint", "queueName": checkpoint, "configuration": {"queueName": checkpoint}},
            {"type": class("rest.TbRestApiCallNode"), "name": "second", "configuration": {"restEndpointUrlPattern": "http://second"}},
        ]);
        let connection =
            |(from, to, label): &(i64, i64, &str)| json!({"fromIndex": from, "toIndex": to, "type": label});
        let connections: Vec<Json> = connections.iter().map(connection).collect();
        let metadata = json!({"firstNodeIndex": 0, "nodes": nodes, "connections": connections});
        let entities = self.platform.entities();
        let root = entities.root_chain(self.tenant).unwrap().unwrap().id.unwrap();
        entities.save_rule_chain_metadata(root, metadata, NOW).unwrap();
        self.platform.reload_chain(root, NOW).unwrap();
    }

    /// Changes the queue Main.
    fn queue(&self, change: impl FnOnce(&mut Queue)) {
        let entities = self.platform.entities();
        let mut main = entities
            .queues(NOW)
            .unwrap()
            .into_iter()
            .find(|queue| queue.name == "Main")
            .unwrap();
        change(&mut main);
        entities.save_queue(main, NOW).unwrap();
        self.platform.reload_queues().unwrap();
    }

    fn strategy(&self, kind: ProcessingKind, retries: i64) {
        self.queue(|main| {
            let strategy = main.processing_strategy.as_mut().unwrap();
            (strategy.kind, strategy.retries) = (kind, retries);
        });
    }

    fn try_say(&mut self, device: usize, after_s: i64, values: &[i64]) -> Result<Vec<String>, IngestError> {
        let now_ms = NOW + after_s * 1000;
        let bodies: Vec<String> = values
            .iter()
            .map(|value| format!("{{\"ts\":{},\"values\":{{\"a\":{value}}}}}", NOW + value))
            .collect();
        let batch: Vec<Incoming<'_>> = bodies
            .iter()
            .map(|body| Incoming {
                at: Position(self.position + 1),
                device: self.devices[device],
                received_ms: now_ms,
                said: Said::Telemetry(body.as_bytes()),
            })
            .collect();
        let position = Position(self.position + 1);
        self.platform.ingest(&batch, position, now_ms, &mut self.other)?;
        self.position += 1;
        self.answer(now_ms);
        Ok(self.other.take())
    }

    /// One message of the first device, which may be large.
    fn say_large(&mut self, after_s: i64, text_bytes: usize) -> Vec<String> {
        let now_ms = NOW + after_s * 1000;
        let body = json!({"a": 1, "text": "x".repeat(text_bytes)}).to_string();
        self.position += 1;
        let batch = [Incoming {
            at: Position(self.position),
            device: self.devices[0],
            received_ms: now_ms,
            said: Said::Telemetry(body.as_bytes()),
        }];
        self.platform
            .ingest(&batch, Position(self.position), now_ms, &mut self.other)
            .unwrap();
        self.other.take()
    }

    fn say(&mut self, device: usize, after_s: i64, values: &[i64]) -> Vec<String> {
        self.try_say(device, after_s, values).unwrap()
    }

    fn tick(&mut self, after_s: i64) -> Vec<String> {
        self.position += 1;
        self.platform
            .tick(Position(self.position), NOW + after_s * 1000, &mut self.other)
            .unwrap();
        self.answer(NOW + after_s * 1000);
        self.other.take()
    }

    /// The other system has taken what it was sent, unless it is slow.
    fn answer(&mut self, now_ms: i64) {
        if self.other.is_slow || self.other.taken.is_empty() {
            return;
        }
        while let Some((number, _)) = self.other.taken.pop() {
            self.platform
                .returned(number, Ok(Answer::default()), now_ms, &mut self.other);
        }
        self.position += 1;
        self.platform
            .tick(Position(self.position), now_ms, &mut self.other)
            .unwrap();
    }

    /// A slow one says something to the first that it took.
    fn says(&mut self, after_s: i64, said: Result<Answer, Refusal>) {
        let (number, _) = self.other.taken.remove(0);
        self.platform
            .returned(number, said, NOW + after_s * 1000, &mut self.other);
    }

    /// As after a kill: what was not on the disk is gone.
    fn restart(&mut self) {
        let directory = std::mem::replace(&mut self.directory, Scratch::new());
        // The lock of the time-series store goes with the old platform.
        let (platform, store) = open(&self.directory, Options::default());
        drop(std::mem::replace(&mut self.platform, platform));
        drop(std::mem::replace(&mut self.store, store));
        (self.platform, self.store) = open(&directory, Options::default());
        self.directory = directory;
    }

    fn stored(&self, device: usize) -> Vec<Value> {
        let query = Query::Points {
            range: 0..i64::MAX,
            order: Order::Ascending,
            limit: 100,
        };
        let found = self.store.query(self.devices[device].0.into(), &["a"], &query).unwrap();
        found.into_iter().flatten().map(|point| point.value).collect()
    }
}

fn longs(values: &[i64]) -> Vec<Value> {
    values.iter().map(|value| Value::Long(*value)).collect()
}

#[test]
fn the_queues_that_are_always_there() {
    let world = World::new(None);
    let queues = world.platform.entities().queues(NOW).unwrap();
    let names: Vec<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
    assert_eq!(names, ["Main", "HighPriority", "SequentialByOriginator"]);
    let retrying: Vec<bool> = queues.iter().map(Queue::is_retrying).collect();
    assert_eq!(retrying, [false, true, true]);
    assert_eq!(world.platform.entities().queues(NOW).unwrap(), queues, "made once");
}

/// As ThingsBoard has them, in its JSON.
#[test]
fn the_queues_as_they_are_made() {
    let world = World::new(None);
    let queues = world.platform.entities().queues(NOW).unwrap();
    let rows = [
        ("Main", "main", ("BURST", 1000), ("SKIP_ALL_FAILURES", 3, 3)),
        (
            "HighPriority",
            "hp",
            ("BURST", 100),
            ("RETRY_FAILED_AND_TIMED_OUT", 0, 5),
        ),
        (
            "SequentialByOriginator",
            "sq",
            ("SEQUENTIAL_BY_ORIGINATOR", 100),
            ("RETRY_FAILED_AND_TIMED_OUT", 3, 5),
        ),
    ];
    for (queue, (name, topic, (submit, batch), (processing, retries, pause))) in queues.iter().zip(rows) {
        let found = serde_json::to_value(queue).unwrap();
        let expected = json!({"name": name, "topic": format!("tb_rule_engine.{topic}"), "pollInterval": 25, "partitions": 10,
            "consumerPerPartition": true, "packProcessingTimeout": 2000,
            "submitStrategy": {"type": submit, "batchSize": batch},
            "processingStrategy": {"type": processing, "retries": retries, "failurePercentage": 0.0,
                "pauseBetweenRetries": pause, "maxPauseBetweenRetries": pause}});
        for (member, value) in expected.as_object().unwrap() {
            assert_eq!(&found[member], value, "{name} {member}");
        }
    }
}

/// The queue of the profile, how often the other system refuses, and at which seconds the message is tried; whether it is stored.
#[test]
fn what_each_queue_does_with_a_failure() {
    let rows: [(Option<&str>, u32, &[i64], bool); 7] = [
        (None, 0, &[0], true),
        (None, 1, &[0], false),
        (Some("Main"), 1, &[0], false),
        (Some("HighPriority"), 6, &[0, 5, 10, 15, 20, 25, 30], true),
        (Some("SequentialByOriginator"), 3, &[0, 5, 10, 15], true),
        (Some("SequentialByOriginator"), 4, &[0, 5, 10, 15], false),
        // One that there is no more is Main.
        (Some(GONE), 1, &[0], false),
    ];
    for (queue, refusals, expected, is_stored) in rows {
        let mut world = World::new(queue);
        world.other.refuses(1, refusals);
        let mut tried = Vec::new();
        let said = world.say(0, 0, &[1]);
        for after_s in 0..60 {
            let said = if after_s == 0 {
                said.clone()
            } else {
                world.tick(after_s)
            };
            if said.iter().any(|said| said == "refused 1" || said == "took 1") {
                tried.push(after_s);
            }
        }
        assert_eq!(tried, expected, "{queue:?} {refusals}");
        let stored = if is_stored { longs(&[1]) } else { Vec::new() };
        assert_eq!(world.stored(0), stored, "{queue:?} {refusals}");
        assert_eq!(world.platform.stats().waiting_retries, 0, "{queue:?} {refusals}");
    }
}

/// Per strategy of submission: two devices, the first of which has a message that is refused once; who waits for it.
#[test]
fn who_waits_for_whom() {
    // What follows of the same device, and of another one of the tenant.
    let rows = [
        (SubmitKind::Burst, false, false),
        (SubmitKind::Batch, false, false),
        (SubmitKind::SequentialByOriginator, true, false),
        (SubmitKind::SequentialByTenant, true, true),
        (SubmitKind::Sequential, true, true),
    ];
    for (submit, own_waits, other_waits) in rows {
        let mut world = World::new(None);
        world.queue(|main| main.submit_strategy.as_mut().unwrap().kind = submit);
        world.strategy(ProcessingKind::RetryFailed, 3);
        world.other.refuses(1, 1);
        world.say(0, 0, &[1]);
        assert_eq!(world.say(0, 0, &[2]).is_empty(), own_waits, "{submit:?}");
        assert_eq!(world.say(1, 0, &[3]).is_empty(), other_waits, "{submit:?}");
        let took: Vec<String> = world
            .tick(3)
            .into_iter()
            .filter(|said| said.starts_with("took"))
            .collect();
        let mut expected = vec!["took 1"];
        expected.extend(own_waits.then_some("took 2"));
        expected.extend(other_waits.then_some("took 3"));
        assert_eq!(took, expected, "{submit:?}");
        assert_eq!(
            (world.stored(0), world.stored(1)),
            (longs(&[1, 2]), longs(&[3])),
            "{submit:?}"
        );
    }
}

#[test]
fn a_failure_is_skipped_or_tried_again_as_the_strategy_says() {
    use ProcessingKind::{
        RetryAll, RetryFailed, RetryFailedAndTimedOut, RetryTimedOut, SkipAllFailures, SkipAllFailuresAndTimedOut,
    };
    for kind in [SkipAllFailures, SkipAllFailuresAndTimedOut, RetryTimedOut] {
        let mut world = World::new(None);
        world.strategy(kind, 3);
        world.other.refuses(1, 2);
        assert_eq!(
            world.say(0, 0, &[1]),
            ["log", "refused 1", "other failed: busy"],
            "{kind:?}"
        );
        assert!(world.tick(60).is_empty());
        assert!(world.stored(0).is_empty());
        assert_eq!(world.platform.stats().failed_messages_total, 1);
    }
    for kind in [RetryFailed, RetryFailedAndTimedOut, RetryAll] {
        // From its start, or at the node that failed.
        let again = if kind == RetryAll { &["log"][..] } else { &[] };
        let mut world = World::new(None);
        world.strategy(kind, 3);
        world.other.refuses(1, 2);
        assert_eq!(world.say(0, 0, &[1]), ["log", "refused 1"], "{kind:?}");
        assert_eq!(world.platform.stats().waiting_retries, 1);
        assert!(world.tick(2).is_empty(), "the pause is three seconds");
        // Others do not wait.
        assert_eq!(world.say(0, 2, &[2]), ["log", "took 2"]);
        assert_eq!(world.tick(3), [again, &["refused 1"]].concat());
        assert!(world.tick(5).is_empty());
        assert_eq!(world.tick(6), [again, &["took 1"]].concat());
        assert_eq!(world.stored(0), longs(&[1, 2]));
        assert!(world.tick(60).is_empty());
        let stats = world.platform.stats();
        let counts = (
            stats.waiting_retries,
            stats.retried_messages_total,
            stats.failed_messages_total,
        );
        assert_eq!(counts, (0, 2, 0));
        // As often as is allowed, not once more.
        world.other.refuses(3, 10);
        world.say(0, 60, &[3]);
        let mut said = Vec::new();
        for after_s in 61..120 {
            said.extend(world.tick(after_s));
        }
        said.retain(|said| said != "log");
        assert_eq!(said, ["refused 3", "refused 3", "refused 3", "other failed: busy"]);
        assert_eq!(world.platform.stats().failed_messages_total, 1);
        assert_eq!(world.stored(0), longs(&[1, 2]));
    }
}

#[test]
fn retries_without_an_end_and_pauses_that_double() {
    let mut world = World::new(None);
    world.queue(|main| {
        let strategy = main.processing_strategy.as_mut().unwrap();
        (strategy.kind, strategy.retries) = (ProcessingKind::RetryFailed, 0);
        (strategy.pause_between_retries, strategy.max_pause_between_retries) = (1, 5);
    });
    world.other.refuses(1, 6);
    world.say(0, 0, &[1]);
    let mut tried = Vec::new();
    for after_s in 1..60 {
        if !world.tick(after_s).is_empty() {
            tried.push(after_s);
        }
    }
    assert_eq!(tried, [1, 3, 7, 12, 17, 22]);
    assert_eq!(world.stored(0), longs(&[1]));
}

#[test]
fn sequential_by_originator_keeps_the_order_of_each_device_and_no_other() {
    let mut world = World::new(Some("SequentialByOriginator"));
    world.other.refuses(1, 2);
    assert_eq!(world.say(0, 0, &[1, 2, 3]), ["log", "refused 1"]);
    assert_eq!(world.platform.stats().waiting_retries, 3);
    assert_eq!(world.say(1, 0, &[10]), ["log", "took 10"], "another device");
    world.other.refuses(3, 1);
    assert!(world.say(0, 1, &[4]).is_empty());
    assert_eq!(world.tick(5), ["refused 1"]);
    assert_eq!(world.tick(10), ["took 1", "log", "took 2", "log", "refused 3"]);
    assert!(world.say(0, 11, &[5]).is_empty());
    assert_eq!(world.tick(15), ["took 3", "log", "took 4", "log", "took 5"]);
    assert_eq!(world.say(0, 16, &[6]), ["log", "took 6"]);
    assert_eq!(world.stored(0), longs(&[1, 2, 3, 4, 5, 6]));
    assert_eq!(world.platform.stats().failed_messages_total, 0);
}

#[test]
fn sequential_by_tenant_and_of_all() {
    for submit in [SubmitKind::SequentialByTenant, SubmitKind::Sequential] {
        let mut world = World::new(None);
        world.queue(|main| main.submit_strategy.as_mut().unwrap().kind = submit);
        world.strategy(ProcessingKind::RetryFailed, 3);
        world.other.refuses(1, 1);
        world.say(0, 0, &[1]);
        assert!(world.say(1, 0, &[2]).is_empty(), "{submit:?}");
        assert_eq!(world.tick(3), ["took 1", "log", "took 2"]);
    }
}

/// Nobody waits for a message that waits, in a batch or a burst.
#[test]
fn bursts_and_batches_wait_for_nobody() {
    for submit in [SubmitKind::Burst, SubmitKind::Batch] {
        let mut world = World::new(None);
        world.queue(|main| main.submit_strategy.as_mut().unwrap().kind = submit);
        world.strategy(ProcessingKind::RetryFailed, 3);
        world.other.refuses(1, 1);
        world.say(0, 0, &[1]);
        assert_eq!(world.say(0, 0, &[2]), ["log", "took 2"], "{submit:?}");
        assert_eq!(world.say(1, 0, &[3]), ["log", "took 3"], "{submit:?}");
        assert_eq!(world.tick(3), ["took 1"]);
    }
}

#[test]
fn where_too_much_fails_nothing_is_tried_again() {
    let mut world = World::new(None);
    world.strategy(ProcessingKind::RetryFailed, 3);
    world.queue(|main| main.processing_strategy.as_mut().unwrap().failure_percentage = 40.0);
    for value in [1, 2, 4] {
        world.other.refuses(value, 1);
    }
    // Two of four: that the device is active now is a message too.
    let said = world.say(0, 0, &[1, 2, 3]);
    assert_eq!(
        said.iter().filter(|said| *said == "other failed: busy").count(),
        2,
        "{said:?}"
    );
    // One of three.
    world.say(0, 0, &[4, 5, 6]);
    assert_eq!(world.tick(3), ["took 4"]);
    assert_eq!(world.stored(0), longs(&[3, 4, 5, 6]));
}

#[test]
fn a_checkpoint_moves_a_message_to_another_queue() {
    let mut world = World::new(None);
    world.chain(Some("HighPriority"));
    world.other.refuses(1, 1);
    assert_eq!(world.say(0, 0, &[1]), ["log", "refused 1"]);
    assert!(world.tick(4).is_empty());
    assert_eq!(world.tick(5), ["took 1"], "behind the checkpoint");
    assert_eq!(world.stored(0), longs(&[1]));
}

#[test]
fn what_waits_survives_a_kill() {
    let mut world = World::new(Some("SequentialByOriginator"));
    world.other.refuses(1, 1);
    world.say(0, 0, &[1, 2]);
    world.restart();
    assert_eq!(world.platform.stats().waiting_retries, 2);
    assert!(world.tick(4).is_empty());
    assert_eq!(world.tick(5), ["took 1", "log", "took 2"]);
    assert_eq!(world.stored(0), longs(&[1, 2]));
    // Its points were in memory only: it is tried once more.
    world.restart();
    assert!(world.stored(0).is_empty());
    assert_eq!(world.tick(20), ["took 1", "log", "took 2"]);
    assert_eq!(world.stored(0), longs(&[1, 2]));
    // They are on the disk: it is done.
    world.store.flush().unwrap();
    world.platform.checkpoint().unwrap();
    world.restart();
    assert!(world.tick(40).is_empty());
    assert_eq!(world.stored(0), longs(&[1, 2]));
    assert_eq!(world.platform.stats().waiting_retries, 0);
}

#[test]
fn what_waits_is_bounded_and_a_changed_chain_ends_it() {
    let options = Options {
        queued_max: 2,
        ..Options::default()
    };
    let mut world = World::with(None, options);
    world.strategy(ProcessingKind::RetryFailed, 0);
    for value in [1, 2] {
        world.other.refuses(value, 100);
    }
    world.say(0, 0, &[1, 2]);
    let refused = world.try_say(0, 1, &[3]).unwrap_err();
    assert!(matches!(refused, IngestError::RetriesFull), "{refused}");
    // A try that goes well makes room when the other system has said so.
    world.other.refuses(1, 0);
    assert_eq!(world.tick(3), ["took 1", "refused 2"]);
    assert_eq!(world.say(0, 3, &[3]), ["log", "took 3"]);
    let entities = world.platform.entities();
    let root = entities.root_chain(world.tenant).unwrap().unwrap().id.unwrap();
    let metadata = json!({"firstNodeIndex": null, "nodes": [], "connections": []});
    entities.save_rule_chain_metadata(root, metadata, NOW).unwrap();
    world.platform.reload_chain(root, NOW).unwrap();
    let said = world.tick(10);
    assert_eq!(
        said,
        ["other failed: the rule chain was changed while the message waited for its retry"]
    );
    assert_eq!(world.platform.stats().waiting_retries, 0);
}

#[test]
fn one_tenant_among_others_does_not_hold_them() {
    let options = Options {
        queued_max: 4,
        ..Options::default()
    };
    let mut world = World::with(None, options);
    let another = Tenant {
        title: "Another".to_owned(),
        ..Tenant::default()
    };
    let start = world.platform.entities().create_tenant(another, NOW).unwrap();
    world.platform.reload_chain(start.root_chain.id.unwrap(), NOW).unwrap();
    world.strategy(ProcessingKind::RetryFailed, 0);
    for value in 1..=4 {
        world.other.refuses(value, 100);
    }
    let said = world.say(0, 0, &[1, 2, 3, 4]);
    let given_up = said
        .iter()
        .filter(|said| said.contains("too many messages of this tenant"));
    assert_eq!(given_up.count(), 2, "{said:?}");
    let stats = world.platform.stats();
    assert_eq!((stats.waiting_retries, stats.failed_messages_total), (2, 2));
    assert_eq!(world.say(0, 1, &[5]), ["log", "took 5"]);
}

#[test]
fn what_another_system_refuses_later_is_tried_again_and_those_behind_it_wait() {
    let mut world = World::new(Some("SequentialByOriginator"));
    world.other.is_slow = true;
    assert_eq!(
        world.say(0, 0, &[1, 2]),
        ["log", "took 1"],
        "the second waits behind it"
    );
    world.says(1, Err(Refusal::new("busy")));
    assert_eq!(world.tick(2), Vec::<String>::new());
    assert_eq!(world.tick(6), ["took 1"], "at the node that failed");
    assert_eq!(world.platform.stats().waiting_retries, 2);
    world.says(7, Ok(Answer::default()));
    assert_eq!(world.other.take(), ["log", "took 2"]);
    world.says(8, Ok(Answer::default()));
    world.tick(9);
    assert_eq!(world.stored(0), longs(&[1, 2]));
    assert_eq!(world.platform.stats().waiting_retries, 0);
}

#[test]
fn what_waits_for_another_system_is_sent_again_after_a_kill() {
    let rows: [(&str, &[&str]); 2] = [("HighPriority", &["log", "took 1"]), ("Main", &["took 1"])];
    for (queue, again) in rows {
        let mut world = World::new(Some(queue));
        world.other.is_slow = true;
        assert_eq!(world.say(0, 0, &[1]), ["log", "took 1"]);
        world.tick(1);
        world.restart();
        world.other.taken.clear();
        assert_eq!(world.tick(2), again, "{queue}");
        world.says(3, Ok(Answer::default()));
        world.tick(4);
        assert_eq!(world.stored(0), longs(&[1]), "{queue}");
        world.store.flush().unwrap();
        world.platform.checkpoint().unwrap();
        world.restart();
        assert_eq!(world.tick(6), Vec::<String>::new(), "{queue}");
    }
}

/// What was on its way is sent again, and nothing is tried after that.
#[test]
fn what_a_queue_that_does_not_try_again_has_sent_fails_once_after_a_kill() {
    let mut world = World::new(None);
    world.other.is_slow = true;
    world.say(0, 0, &[1, 2]);
    world.tick(1);
    world.restart();
    world.other.taken.clear();
    world.other.refuses(2, 1);
    assert_eq!(world.tick(2), ["took 1", "refused 2", "other failed: busy"]);
    world.says(3, Ok(Answer::default()));
    world.tick(4);
    assert_eq!(world.platform.stats().waiting_retries, 0);
    assert_eq!(world.stored(0), longs(&[1]));
}

/// What is stored before it is sent, a replay of the log stores again: nothing has to be sent for that.
#[test]
fn what_was_taken_is_not_sent_again_after_a_kill_unless_its_answer_is_stored() {
    for (queue, is_stored_first, sent_again) in [
        ("HighPriority", true, 0),
        ("HighPriority", false, 1),
        ("Main", true, 0),
        ("Main", false, 1),
    ] {
        let mut w = World::new(Some(queue));
        w.chain_of(&match is_stored_first {
            true => [(0, 1, "True"), (1, 3, "Success"), (3, 2, "Success")],
            false => [(0, 1, "True"), (1, 2, "Success"), (2, 3, "Success")],
        });
        assert_eq!(w.say(0, 0, &[1]), ["log", "took 1"]);
        w.tick(1);
        w.restart();
        let again = w.tick(2);
        let count = again.iter().filter(|said| *said == "took 1").count();
        assert_eq!(count, sent_again, "{queue}, stored first: {is_stored_first}: {again:?}");
        // What is stored first, a replay has, of which there is none here.
        let found = if is_stored_first { vec![] } else { longs(&[1]) };
        assert_eq!(w.stored(0), found, "{queue}");
    }
}

/// What the first system answered is stored; the second one refuses. No replay of the log stores it: the first is asked again, unless the
/// answer is on the disk.
#[test]
fn what_a_try_stored_before_it_failed_survives_a_kill() {
    let whole = ["log", "took 1", "took 101"];
    let (second_try, behind_it) = (["took 1", "took 101"], ["took 101"]);
    let rows: [(u32, bool, &[&str]); 4] = [
        (0, false, &whole),
        (1, false, &second_try),
        (0, true, &behind_it),
        (1, true, &behind_it),
    ];
    for (refusals, is_flushed, expected) in rows {
        let mut w = World::new(Some("HighPriority"));
        w.chain_of(&[(0, 1, "True"), (1, 2, "Success"), (2, 3, "Success"), (3, 5, "Success")]);
        w.other.refuses(1, refusals);
        w.other.refuses(1 + SECOND, 2);
        let mut said = w.say(0, 0, &[1]);
        if refusals > 0 {
            said = w.tick(5);
        }
        assert_eq!(&said[said.len() - 2..], ["took 1", "refused 101"], "{refusals}");
        if is_flushed {
            w.store.flush().unwrap();
        }
        assert_eq!(w.tick(10), ["refused 101"], "a try that goes on where it failed");
        w.restart();
        assert_eq!(w.tick(20), expected, "{refusals} {is_flushed}");
        assert_eq!(w.stored(0), longs(&[1]), "{refusals} {is_flushed}");
        assert_eq!(w.platform.stats().waiting_retries, 0);
    }
}

#[test]
fn what_is_never_answered_has_failed() {
    let mut world = World::new(None);
    world.other.is_slow = true;
    world.say(0, 0, &[1]);
    assert_eq!(world.tick(60), Vec::<String>::new());
    assert_eq!(
        world.tick(66),
        ["other failed: the other system has not answered in time"]
    );
}
