//! Queues of rule chains: failed messages are handled by the strategy of their queue, and none is lost by a restart.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bounds;
mod changed;
mod order;
mod slow_nodes;
mod slow_scripts;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::scratch::Scratch;
use platform::chain::{ExternalAnswer, ExternalCall, ExternalError, NodeError};
use platform::entities::Entities;
use platform::ids::{DeviceId, EntityId, TenantId};
use platform::model::{Device, DeviceProfile, ProcessingKind, Queue, SubmitKind, Tenant};
use platform::repository::RepositoryChange;
use platform::{IngestError, IngestInput, IngestMessage, Platform, PlatformOptions, PlatformOutlet, SqliteRepository};
use serde_json::{Value as Json, json};
use timeseries::{
    ColumnStore, DIRECTORY_NAME, LogPosition, PointOrder, PointValue, Query, StorageDirectory, StoreConfig,
    TimeseriesStore,
};

const NOW: i64 = 1_700_000_000_000;

/// Added to the values that the second system gets.
const SECOND: i64 = 100;

/// An external system that rejects messages with a value of `a` a number of times.
#[derive(Default)]
struct Other {
    refuses: HashMap<i64, u32>,
    /// Values of `a` with their results.
    events: Vec<String>,
    /// Request numbers and values of accepted requests without an answer.
    requests: Vec<(u64, i64)>,
    /// Answers only on request.
    is_slow: bool,
    /// Real time that each request takes.
    work: Duration,
}

impl PlatformOutlet for Other {
    fn send(&mut self, _: TenantId, number: u64, outbound: ExternalCall) -> Result<(), NodeError> {
        let ExternalCall::Rest(call) = outbound else {
            panic!("{outbound:?}")
        };
        let body: Json = serde_json::from_str(&call.body.unwrap()).unwrap();
        let mut value = body["a"].as_i64().unwrap();
        if call.server == "http://second" {
            value += SECOND;
        }
        std::thread::sleep(self.work);
        match self.refuses.get_mut(&value) {
            Some(left) if *left > 0 => {
                *left -= 1;
                self.events.push(format!("refused {value}"));
                Err(NodeError::new("busy"))
            }
            _ => {
                self.events.push(format!("took {value}"));
                self.requests.push((number, value));
                Ok(())
            }
        }
    }

    fn log(&mut self, _: platform::ids::RuleChainId, node: &str, _: &str) {
        std::thread::sleep(self.work);
        self.events.push(node.to_owned());
    }

    fn failed(&mut self, _: EntityId, node: &str, problem: &str) {
        self.events.push(format!("{node} failed: {problem}"));
    }
}

impl Other {
    fn refuses(&mut self, value: i64, times: u32) {
        self.refuses.insert(value, times);
    }

    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.events)
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

fn open(directory: &Scratch, options: PlatformOptions) -> (Platform, Arc<ColumnStore>) {
    let repository = Arc::new(SqliteRepository::open(directory.path()).unwrap());
    let entities = Arc::new(Entities::open(repository).unwrap());
    let disk = Arc::new(StorageDirectory::open(directory.path(), DIRECTORY_NAME).unwrap());
    let store = Arc::new(ColumnStore::open(disk, StoreConfig::default()).unwrap());
    let opened = Platform::open(entities, store.clone(), options).unwrap();
    (opened, store)
}

/// A queue that is deleted after the profile has named it.
const GONE: &str = "Gone";

impl World {
    /// Two devices with messages in this queue. The messages are logged and sent to the external system. They are
    /// stored when the system has accepted them.
    fn new(queue: Option<&str>) -> World {
        World::with(queue, PlatformOptions::default())
    }

    fn with(queue: Option<&str>, options: PlatformOptions) -> World {
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
            entities
                .repository()
                .apply(&[RepositoryChange::Delete(queue.entity())])
                .unwrap();
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

    /// Adds a checkpoint to this queue before the external system.
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

    fn try_publish(&mut self, device: usize, after_s: i64, values: &[i64]) -> Result<Vec<String>, IngestError> {
        let now_ms = NOW + after_s * 1000;
        let bodies: Vec<String> = values
            .iter()
            .map(|value| format!("{{\"ts\":{},\"values\":{{\"a\":{value}}}}}", NOW + value))
            .collect();
        let batch: Vec<IngestInput<'_>> = bodies
            .iter()
            .map(|body| IngestInput {
                at: LogPosition(self.position + 1),
                device: self.devices[device],
                received_ms: now_ms,
                message: IngestMessage::Telemetry(body.as_bytes()),
            })
            .collect();
        let position = LogPosition(self.position + 1);
        self.platform.ingest(&batch, position, now_ms, &mut self.other)?;
        self.position += 1;
        self.answer(now_ms);
        Ok(self.other.take())
    }

    /// One message of the first device, which may be large.
    fn publish_large(&mut self, after_s: i64, text_bytes: usize) -> Vec<String> {
        let now_ms = NOW + after_s * 1000;
        let body = json!({"a": 1, "text": "x".repeat(text_bytes)}).to_string();
        self.position += 1;
        let batch = [IngestInput {
            at: LogPosition(self.position),
            device: self.devices[0],
            received_ms: now_ms,
            message: IngestMessage::Telemetry(body.as_bytes()),
        }];
        self.platform
            .ingest(&batch, LogPosition(self.position), now_ms, &mut self.other)
            .unwrap();
        self.other.take()
    }

    fn publish(&mut self, device: usize, after_s: i64, values: &[i64]) -> Vec<String> {
        self.try_publish(device, after_s, values).unwrap()
    }

    fn tick(&mut self, after_s: i64) -> Vec<String> {
        self.position += 1;
        self.platform
            .tick(LogPosition(self.position), NOW + after_s * 1000, &mut self.other)
            .unwrap();
        self.answer(NOW + after_s * 1000);
        self.other.take()
    }

    /// Answers accepted requests, unless the system is slow.
    fn answer(&mut self, now_ms: i64) {
        if self.other.is_slow || self.other.requests.is_empty() {
            return;
        }
        while let Some((number, _)) = self.other.requests.pop() {
            self.platform
                .returned(number, Ok(ExternalAnswer::default()), now_ms, &mut self.other);
        }
        self.position += 1;
        self.platform
            .tick(LogPosition(self.position), now_ms, &mut self.other)
            .unwrap();
    }

    /// A slow system answers its first accepted request.
    fn answer_first(&mut self, after_s: i64, result: Result<ExternalAnswer, ExternalError>) {
        let (number, _) = self.other.requests.remove(0);
        self.platform
            .returned(number, result, NOW + after_s * 1000, &mut self.other);
    }

    /// A crash: data that is not on disk is lost.
    fn restart(&mut self) {
        let directory = std::mem::replace(&mut self.directory, Scratch::new());
        // The old platform holds the lock of the time-series store.
        let (platform, store) = open(&self.directory, PlatformOptions::default());
        drop(std::mem::replace(&mut self.platform, platform));
        drop(std::mem::replace(&mut self.store, store));
        (self.platform, self.store) = open(&directory, PlatformOptions::default());
        self.directory = directory;
    }

    fn stored(&self, device: usize) -> Vec<PointValue> {
        let query = Query::Points {
            range: 0..i64::MAX,
            order: PointOrder::Ascending,
            limit: 100,
        };
        let found = self.store.query(self.devices[device].0.into(), &["a"], &query).unwrap();
        found.into_iter().flatten().map(|point| point.value).collect()
    }
}

fn longs(values: &[i64]) -> Vec<PointValue> {
    values.iter().map(|value| PointValue::Long(*value)).collect()
}

#[test]
fn default_queues_always_exist() {
    let world = World::new(None);
    let queues = world.platform.entities().queues(NOW).unwrap();
    let names: Vec<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
    assert_eq!(names, ["Main", "HighPriority", "SequentialByOriginator"]);
    let retrying: Vec<bool> = queues.iter().map(Queue::is_retrying).collect();
    assert_eq!(retrying, [false, true, true]);
    assert_eq!(world.platform.entities().queues(NOW).unwrap(), queues, "created once");
}

/// Compared with ThingsBoard's JSON.
#[test]
fn default_queues_match_thingsboard() {
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

/// The profile's queue, the number of rejections, the seconds at which the message is tried, and whether it is
/// stored.
#[test]
fn default_queues_handle_failures() {
    let rows: [(Option<&str>, u32, &[i64], bool); 7] = [
        (None, 0, &[0], true),
        (None, 1, &[0], false),
        (Some("Main"), 1, &[0], false),
        (Some("HighPriority"), 6, &[0, 5, 10, 15, 20, 25, 30], true),
        (Some("SequentialByOriginator"), 3, &[0, 5, 10, 15], true),
        (Some("SequentialByOriginator"), 4, &[0, 5, 10, 15], false),
        // A deleted queue falls back to Main.
        (Some(GONE), 1, &[0], false),
    ];
    for (queue, refusals, expected, is_stored) in rows {
        let mut world = World::new(queue);
        world.other.refuses(1, refusals);
        let mut tried = Vec::new();
        let events = world.publish(0, 0, &[1]);
        for after_s in 0..60 {
            let events = if after_s == 0 {
                events.clone()
            } else {
                world.tick(after_s)
            };
            if events.iter().any(|events| events == "refused 1" || events == "took 1") {
                tried.push(after_s);
            }
        }
        assert_eq!(tried, expected, "{queue:?} {refusals}");
        let stored = if is_stored { longs(&[1]) } else { Vec::new() };
        assert_eq!(world.stored(0), stored, "{queue:?} {refusals}");
        assert_eq!(world.platform.stats().waiting_retries, 0, "{queue:?} {refusals}");
    }
}

/// Per submit strategy: two devices, of which the first has a message that is rejected once; which messages wait for
/// it.
#[test]
fn submit_strategy_defines_waiting_messages() {
    // A later message of the same device, and one of another device of the tenant.
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
        world.publish(0, 0, &[1]);
        assert_eq!(world.publish(0, 0, &[2]).is_empty(), own_waits, "{submit:?}");
        assert_eq!(world.publish(1, 0, &[3]).is_empty(), other_waits, "{submit:?}");
        let took: Vec<String> = world
            .tick(3)
            .into_iter()
            .filter(|events| events.starts_with("took"))
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
fn failure_is_skipped_or_retried_by_the_strategy() {
    use ProcessingKind::{
        RetryAll, RetryFailed, RetryFailedAndTimedOut, RetryTimedOut, SkipAllFailures, SkipAllFailuresAndTimedOut,
    };
    for kind in [SkipAllFailures, SkipAllFailuresAndTimedOut, RetryTimedOut] {
        let mut world = World::new(None);
        world.strategy(kind, 3);
        world.other.refuses(1, 2);
        assert_eq!(
            world.publish(0, 0, &[1]),
            ["log", "refused 1", "other failed: busy"],
            "{kind:?}"
        );
        assert!(world.tick(60).is_empty());
        assert!(world.stored(0).is_empty());
        assert_eq!(world.platform.stats().failed_messages_total, 1);
    }
    for kind in [RetryFailed, RetryFailedAndTimedOut, RetryAll] {
        // From the start, or at the failed node.
        let again = if kind == RetryAll { &["log"][..] } else { &[] };
        let mut world = World::new(None);
        world.strategy(kind, 3);
        world.other.refuses(1, 2);
        assert_eq!(world.publish(0, 0, &[1]), ["log", "refused 1"], "{kind:?}");
        assert_eq!(world.platform.stats().waiting_retries, 1);
        assert!(world.tick(2).is_empty(), "the pause is three seconds");
        // Other messages do not wait.
        assert_eq!(world.publish(0, 2, &[2]), ["log", "took 2"]);
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
        // As often as allowed, and not more.
        world.other.refuses(3, 10);
        world.publish(0, 60, &[3]);
        let mut events = Vec::new();
        for after_s in 61..120 {
            events.extend(world.tick(after_s));
        }
        events.retain(|events| events != "log");
        assert_eq!(events, ["refused 3", "refused 3", "refused 3", "other failed: busy"]);
        assert_eq!(world.platform.stats().failed_messages_total, 1);
        assert_eq!(world.stored(0), longs(&[1, 2]));
    }
}

#[test]
fn unlimited_retries_double_their_pause() {
    let mut world = World::new(None);
    world.queue(|main| {
        let strategy = main.processing_strategy.as_mut().unwrap();
        (strategy.kind, strategy.retries) = (ProcessingKind::RetryFailed, 0);
        (strategy.pause_between_retries, strategy.max_pause_between_retries) = (1, 5);
    });
    world.other.refuses(1, 6);
    world.publish(0, 0, &[1]);
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
fn sequential_by_originator_keeps_the_order_per_device() {
    let mut world = World::new(Some("SequentialByOriginator"));
    world.other.refuses(1, 2);
    assert_eq!(world.publish(0, 0, &[1, 2, 3]), ["log", "refused 1"]);
    assert_eq!(world.platform.stats().waiting_retries, 3);
    assert_eq!(world.publish(1, 0, &[10]), ["log", "took 10"], "another device");
    world.other.refuses(3, 1);
    assert!(world.publish(0, 1, &[4]).is_empty());
    assert_eq!(world.tick(5), ["refused 1"]);
    assert_eq!(world.tick(10), ["took 1", "log", "took 2", "log", "refused 3"]);
    assert!(world.publish(0, 11, &[5]).is_empty());
    assert_eq!(world.tick(15), ["took 3", "log", "took 4", "log", "took 5"]);
    assert_eq!(world.publish(0, 16, &[6]), ["log", "took 6"]);
    assert_eq!(world.stored(0), longs(&[1, 2, 3, 4, 5, 6]));
    assert_eq!(world.platform.stats().failed_messages_total, 0);
}

#[test]
fn sequential_queues_keep_the_order() {
    for submit in [SubmitKind::SequentialByTenant, SubmitKind::Sequential] {
        let mut world = World::new(None);
        world.queue(|main| main.submit_strategy.as_mut().unwrap().kind = submit);
        world.strategy(ProcessingKind::RetryFailed, 3);
        world.other.refuses(1, 1);
        world.publish(0, 0, &[1]);
        assert!(world.publish(1, 0, &[2]).is_empty(), "{submit:?}");
        assert_eq!(world.tick(3), ["took 1", "log", "took 2"]);
    }
}

/// No message waits for another in a batch or burst.
#[test]
fn bursts_and_batches_do_not_wait() {
    for submit in [SubmitKind::Burst, SubmitKind::Batch] {
        let mut world = World::new(None);
        world.queue(|main| main.submit_strategy.as_mut().unwrap().kind = submit);
        world.strategy(ProcessingKind::RetryFailed, 3);
        world.other.refuses(1, 1);
        world.publish(0, 0, &[1]);
        assert_eq!(world.publish(0, 0, &[2]), ["log", "took 2"], "{submit:?}");
        assert_eq!(world.publish(1, 0, &[3]), ["log", "took 3"], "{submit:?}");
        assert_eq!(world.tick(3), ["took 1"]);
    }
}

#[test]
fn failure_percentage_prevents_retries() {
    let mut world = World::new(None);
    world.strategy(ProcessingKind::RetryFailed, 3);
    world.queue(|main| main.processing_strategy.as_mut().unwrap().failure_percentage = 40.0);
    for value in [1, 2, 4] {
        world.other.refuses(value, 1);
    }
    // Two of four fail: the activity event is a message too.
    let events = world.publish(0, 0, &[1, 2, 3]);
    assert_eq!(
        events.iter().filter(|events| *events == "other failed: busy").count(),
        2,
        "{events:?}"
    );
    // One of three fails.
    world.publish(0, 0, &[4, 5, 6]);
    assert_eq!(world.tick(3), ["took 4"]);
    assert_eq!(world.stored(0), longs(&[3, 4, 5, 6]));
}

#[test]
fn checkpoint_moves_a_message_to_another_queue() {
    let mut world = World::new(None);
    world.chain(Some("HighPriority"));
    world.other.refuses(1, 1);
    assert_eq!(world.publish(0, 0, &[1]), ["log", "refused 1"]);
    assert!(world.tick(4).is_empty());
    assert_eq!(world.tick(5), ["took 1"], "after the checkpoint");
    assert_eq!(world.stored(0), longs(&[1]));
}

#[test]
fn waiting_messages_survive_a_crash() {
    let mut world = World::new(Some("SequentialByOriginator"));
    world.other.refuses(1, 1);
    world.publish(0, 0, &[1, 2]);
    world.restart();
    assert_eq!(world.platform.stats().waiting_retries, 2);
    assert!(world.tick(4).is_empty());
    assert_eq!(world.tick(5), ["took 1", "log", "took 2"]);
    assert_eq!(world.stored(0), longs(&[1, 2]));
    // Its points were only in memory, so it is retried again.
    world.restart();
    assert!(world.stored(0).is_empty());
    assert_eq!(world.tick(20), ["took 1", "log", "took 2"]);
    assert_eq!(world.stored(0), longs(&[1, 2]));
    // Its points are on disk, so it is finished.
    world.store.flush().unwrap();
    world.platform.checkpoint().unwrap();
    world.restart();
    assert!(world.tick(40).is_empty());
    assert_eq!(world.stored(0), longs(&[1, 2]));
    assert_eq!(world.platform.stats().waiting_retries, 0);
}

#[test]
fn waiting_messages_are_bounded_and_end_with_their_chain() {
    let options = PlatformOptions {
        queued_max: 2,
        ..PlatformOptions::default()
    };
    let mut world = World::with(None, options);
    world.strategy(ProcessingKind::RetryFailed, 0);
    for value in [1, 2] {
        world.other.refuses(value, 100);
    }
    world.publish(0, 0, &[1, 2]);
    let refused = world.try_publish(0, 1, &[3]).unwrap_err();
    assert!(matches!(refused, IngestError::RetriesFull), "{refused}");
    // A successful retry frees its space after the external system's answer.
    world.other.refuses(1, 0);
    assert_eq!(world.tick(3), ["took 1", "refused 2"]);
    assert_eq!(world.publish(0, 3, &[3]), ["log", "took 3"]);
    let entities = world.platform.entities();
    let root = entities.root_chain(world.tenant).unwrap().unwrap().id.unwrap();
    let metadata = json!({"firstNodeIndex": null, "nodes": [], "connections": []});
    entities.save_rule_chain_metadata(root, metadata, NOW).unwrap();
    world.platform.reload_chain(root, NOW).unwrap();
    let events = world.tick(10);
    assert_eq!(
        events,
        ["other failed: the rule chain was changed while the message waited for its retry"]
    );
    assert_eq!(world.platform.stats().waiting_retries, 0);
}

#[test]
fn full_retries_of_a_tenant_do_not_block_others() {
    let options = PlatformOptions {
        queued_max: 4,
        ..PlatformOptions::default()
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
    let events = world.publish(0, 0, &[1, 2, 3, 4]);
    let given_up = events
        .iter()
        .filter(|events| events.contains("too many messages of this tenant"));
    assert_eq!(given_up.count(), 2, "{events:?}");
    let stats = world.platform.stats();
    assert_eq!((stats.waiting_retries, stats.failed_messages_total), (2, 2));
    assert_eq!(world.publish(0, 1, &[5]), ["log", "took 5"]);
}

#[test]
fn later_rejection_is_retried_and_holds_its_lane() {
    let mut world = World::new(Some("SequentialByOriginator"));
    world.other.is_slow = true;
    assert_eq!(
        world.publish(0, 0, &[1, 2]),
        ["log", "took 1"],
        "the second waits behind it"
    );
    world.answer_first(1, Err(ExternalError::new("busy")));
    assert_eq!(world.tick(2), Vec::<String>::new());
    assert_eq!(world.tick(6), ["took 1"], "at the failed node");
    assert_eq!(world.platform.stats().waiting_retries, 2);
    world.answer_first(7, Ok(ExternalAnswer::default()));
    assert_eq!(world.other.take(), ["log", "took 2"]);
    world.answer_first(8, Ok(ExternalAnswer::default()));
    world.tick(9);
    assert_eq!(world.stored(0), longs(&[1, 2]));
    assert_eq!(world.platform.stats().waiting_retries, 0);
}

#[test]
fn outstanding_requests_are_resent_after_a_crash() {
    let rows: [(&str, &[&str]); 2] = [("HighPriority", &["log", "took 1"]), ("Main", &["took 1"])];
    for (queue, again) in rows {
        let mut world = World::new(Some(queue));
        world.other.is_slow = true;
        assert_eq!(world.publish(0, 0, &[1]), ["log", "took 1"]);
        world.tick(1);
        world.restart();
        world.other.requests.clear();
        assert_eq!(world.tick(2), again, "{queue}");
        world.answer_first(3, Ok(ExternalAnswer::default()));
        world.tick(4);
        assert_eq!(world.stored(0), longs(&[1]), "{queue}");
        world.store.flush().unwrap();
        world.platform.checkpoint().unwrap();
        world.restart();
        assert_eq!(world.tick(6), Vec::<String>::new(), "{queue}");
    }
}

/// Outstanding requests are sent again, and not retried after that.
#[test]
fn queue_without_retries_resends_once_after_a_crash() {
    let mut world = World::new(None);
    world.other.is_slow = true;
    world.publish(0, 0, &[1, 2]);
    world.tick(1);
    world.restart();
    world.other.requests.clear();
    world.other.refuses(2, 1);
    assert_eq!(world.tick(2), ["took 1", "refused 2", "other failed: busy"]);
    world.answer_first(3, Ok(ExternalAnswer::default()));
    world.tick(4);
    assert_eq!(world.platform.stats().waiting_retries, 0);
    assert_eq!(world.stored(0), longs(&[1]));
}

/// A log replay restores points stored before the request. They do not require sending it again.
#[test]
fn answered_requests_are_resent_only_for_their_points() {
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
        assert_eq!(w.publish(0, 0, &[1]), ["log", "took 1"]);
        w.tick(1);
        w.restart();
        let again = w.tick(2);
        let count = again.iter().filter(|events| *events == "took 1").count();
        assert_eq!(count, sent_again, "{queue}, stored first: {is_stored_first}: {again:?}");
        // Points stored first come from a replay, which does not happen here.
        let found = if is_stored_first { vec![] } else { longs(&[1]) };
        assert_eq!(w.stored(0), found, "{queue}");
    }
}

/// The first system's answer is stored, and the second system rejects. Log replay does not restore these points, so
/// the first is asked again unless they are on disk.
#[test]
fn points_of_a_failed_attempt_survive_a_crash() {
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
        let mut events = w.publish(0, 0, &[1]);
        if refusals > 0 {
            events = w.tick(5);
        }
        assert_eq!(&events[events.len() - 2..], ["took 1", "refused 101"], "{refusals}");
        if is_flushed {
            w.store.flush().unwrap();
        }
        assert_eq!(w.tick(10), ["refused 101"], "a retry at the failed node");
        w.restart();
        assert_eq!(w.tick(20), expected, "{refusals} {is_flushed}");
        assert_eq!(w.stored(0), longs(&[1]), "{refusals} {is_flushed}");
        assert_eq!(w.platform.stats().waiting_retries, 0);
    }
}

#[test]
fn unanswered_request_fails() {
    let mut world = World::new(None);
    world.other.is_slow = true;
    world.publish(0, 0, &[1]);
    assert_eq!(world.tick(60), Vec::<String>::new());
    assert_eq!(
        world.tick(66),
        ["other failed: the external system did not answer in time"]
    );
}
