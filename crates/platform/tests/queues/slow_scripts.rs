//! Scripts that take long: messages of their tenant wait in order, other tenants go on, and a crash loses nothing.

use std::sync::Mutex;

use platform::chain::{ScriptAnswer, ScriptCall, ScriptError, ScriptRunner, ScriptUsage};

use super::bounds::another_tenant;
use super::*;

/// A runner whose scripts never answer at once. The test answers them.
#[derive(Debug, Default)]
pub struct SlowRunner {
    state: Mutex<RunnerState>,
}

#[derive(Debug, Default)]
pub struct RunnerState {
    /// Calls without an answer: number, tenant, data.
    calls: Vec<(u64, TenantId, String)>,
    answers: Vec<(u64, ScriptAnswer)>,
    /// Tenants whose scripts answer at once.
    fast: Vec<TenantId>,
    /// Time for which tenants have no CPU time.
    pub pauses: HashMap<TenantId, Duration>,
    pub node_times: HashMap<TenantId, Duration>,
}

impl SlowRunner {
    pub fn state(&self) -> std::sync::MutexGuard<'_, RunnerState> {
        self.state.lock().unwrap()
    }

    /// Data of the calls that run.
    fn running(&self) -> Vec<String> {
        self.state().calls.iter().map(|(_, _, data)| data.clone()).collect()
    }

    /// Answers the first call.
    fn answer(&self, result: Result<String, ScriptError>) {
        let mut state = self.state();
        let (number, _, _) = state.calls.remove(0);
        let answer = ScriptAnswer {
            result,
            cpu: Duration::from_millis(1),
        };
        state.answers.push((number, answer));
    }
}

impl ScriptRunner for SlowRunner {
    fn run(&self, call: ScriptCall, number: u64) -> Option<ScriptAnswer> {
        let mut state = self.state();
        if state.fast.contains(&call.tenant) {
            return Some(ScriptAnswer {
                result: Ok("true".to_owned()),
                cpu: Duration::ZERO,
            });
        }
        state.calls.push((number, call.tenant, call.data));
        None
    }

    fn run_blocking(&self, _: ScriptCall) -> ScriptAnswer {
        ScriptAnswer::failed("not in this test")
    }

    fn run_in_replay(&self, _: ScriptCall) -> ScriptAnswer {
        ScriptAnswer {
            result: Ok("true".to_owned()),
            cpu: Duration::ZERO,
        }
    }

    fn cancel(&self, _: TenantId, number: u64) {
        self.state().calls.retain(|(known, _, _)| *known != number);
    }

    fn take_answers(&self) -> Vec<(u64, ScriptAnswer)> {
        std::mem::take(&mut self.state().answers)
    }

    fn usage(&self) -> ScriptUsage {
        ScriptUsage::default()
    }

    fn add_node_time(&self, tenant: TenantId, took: Duration) {
        *self.state().node_times.entry(tenant).or_default() += took;
    }

    fn budget_pause(&self, tenant: TenantId) -> Duration {
        self.state().pauses.get(&tenant).copied().unwrap_or_default()
    }
}

pub fn options(runner: &Arc<SlowRunner>) -> PlatformOptions {
    PlatformOptions {
        scripts: Some(Arc::clone(runner) as Arc<dyn ScriptRunner>),
        ..PlatformOptions::default()
    }
}

/// A chain that runs a script for telemetry, logs the message and saves it. The script runs twice if `is_double`.
fn install(world: &World, tenant: TenantId, is_double: bool) {
    let class = |class: &str| format!("org.thingsboard.rule.engine.{class}");
    let script = json!({"scriptLang": "JS", "jsScript": "return true;"});
    let nodes = json!([
        {"type": class("filter.TbMsgTypeFilterNode"), "name": "telemetry", "configuration": {"messageTypes": ["POST_TELEMETRY_REQUEST"]}},
        {"type": class("filter.TbJsFilterNode"), "name": "script", "configuration": script},
        {"type": class("action.TbLogNode"), "name": "log", "configuration": {}},
        {"type": class("telemetry.TbMsgTimeseriesNode"), "name": "save", "configuration": {}},
        {"type": class("filter.TbJsFilterNode"), "name": "second", "configuration": script},
    ]);
    let connections = match is_double {
        false => vec![(0, 1, "True"), (1, 2, "True"), (2, 3, "Success")],
        true => vec![(0, 1, "True"), (1, 4, "True"), (4, 2, "True"), (2, 3, "Success")],
    };
    let connections: Vec<Json> = connections
        .into_iter()
        .map(|(from, to, label)| json!({"fromIndex": from, "toIndex": to, "type": label}))
        .collect();
    let metadata = json!({"firstNodeIndex": 0, "nodes": nodes, "connections": connections});
    let entities = world.platform.entities();
    let root = entities.root_chain(tenant).unwrap().unwrap().id.unwrap();
    entities.save_rule_chain_metadata(root, metadata, NOW).unwrap();
    world.platform.reload_chain(root, NOW).unwrap();
}

impl World {
    fn take_answers(&mut self, after_s: i64) -> Vec<String> {
        self.platform.take_script_answers(NOW + after_s * 1000, &mut self.other);
        self.other.take()
    }

    /// Answers calls one by one until none runs. Returns the data of the calls.
    fn answer_all(&mut self, runner: &SlowRunner, after_s: i64) -> Vec<String> {
        let mut calls = Vec::new();
        while let Some(data) = runner.running().first().cloned() {
            calls.push(data);
            runner.answer(Ok("true".to_owned()));
            self.take_answers(after_s);
        }
        self.tick(after_s);
        calls
    }

    /// A crash, after which the same runner runs the scripts.
    fn restart_with(&mut self, runner: &Arc<SlowRunner>) {
        self.restart();
        let directory = std::mem::replace(&mut self.directory, Scratch::new());
        let (platform, store) = open(&self.directory, PlatformOptions::default());
        drop(std::mem::replace(&mut self.platform, platform));
        drop(std::mem::replace(&mut self.store, store));
        runner.state().calls.clear();
        (self.platform, self.store) = open(&directory, options(runner));
        self.directory = directory;
    }
}

fn data(values: &[i64]) -> Vec<String> {
    values.iter().map(|value| json!({ "a": value }).to_string()).collect()
}

#[test]
fn messages_wait_for_a_slow_script_in_order() {
    for is_double in [false, true] {
        let runner = Arc::new(SlowRunner::default());
        let mut world = World::with(None, options(&runner));
        install(&world, world.tenant, is_double);
        assert!(world.publish(0, 0, &[1, 2, 3]).is_empty());
        assert_eq!(runner.running(), data(&[1]), "one message of a tenant at a time");
        assert!(world.publish(1, 0, &[4]).is_empty());
        // Also the event about the activity of the second device.
        assert_eq!(world.platform.stats().waiting_retries, 4);
        runner.answer(Ok("true".to_owned()));
        let expected: &[&str] = if is_double { &[] } else { &["log"] };
        assert_eq!(world.take_answers(0), expected);
        let calls = world.answer_all(&runner, 1);
        let expected: &[i64] = if is_double { &[1, 2, 2, 3, 3, 4, 4] } else { &[2, 3, 4] };
        assert_eq!(calls, data(expected));
        assert_eq!(world.stored(0), longs(&[1, 2, 3]));
        assert_eq!(world.stored(1), longs(&[4]));
        let stats = world.platform.stats();
        assert_eq!((stats.waiting_retries, stats.failed_messages_total), (0, 0));
        // Afterwards messages run at once again.
        runner.state().fast.push(world.tenant);
        assert_eq!(world.publish(0, 2, &[5]), ["log"]);
    }
}

#[test]
fn other_tenants_do_not_wait_for_a_slow_script() {
    let runner = Arc::new(SlowRunner::default());
    let mut world = World::with(None, options(&runner));
    let another = Tenant {
        title: "Another".to_owned(),
        ..Tenant::default()
    };
    let start = world.platform.entities().create_tenant(another, NOW).unwrap();
    world.platform.reload_chain(start.root_chain.id.unwrap(), NOW).unwrap();
    let tenant = start.tenant.id.unwrap();
    install(&world, world.tenant, false);
    install(&world, tenant, false);
    runner.state().fast.push(tenant);
    let device = Device {
        tenant_id: tenant,
        name: "C".to_owned(),
        kind: "default".to_owned(),
        ..Device::default()
    };
    let device = world.platform.entities().save_device(device, Some("C"), NOW).unwrap();
    world.devices.push(device.id.unwrap());
    assert!(world.publish(0, 0, &[1, 2]).is_empty());
    assert_eq!(world.publish(2, 0, &[3]), ["log"]);
    assert_eq!(world.stored(2), longs(&[3]));
    assert!(world.stored(0).is_empty());
    world.answer_all(&runner, 1);
    assert_eq!(world.stored(0), longs(&[1, 2]));
}

#[test]
fn next_message_waits_for_cpu_time_after_an_answer() {
    let runner = Arc::new(SlowRunner::default());
    let mut world = World::with(None, options(&runner));
    another_tenant(&mut world, "Main");
    install(&world, world.tenant, false);
    world.publish(0, 0, &[1, 2]);
    runner.state().pauses.insert(world.tenant, Duration::from_secs(5));
    runner.answer(Ok("true".to_owned()));
    assert_eq!(world.take_answers(0), ["log"]);
    assert!(runner.running().is_empty(), "the tenant has no CPU time");
    assert!(!world.platform.has_due_messages(NOW + 5000));
    runner.state().pauses.clear();
    world.tick(6);
    assert_eq!(world.answer_all(&runner, 6), data(&[2]));
    assert_eq!(world.stored(0), longs(&[1, 2]));
}

#[test]
fn messages_that_wait_for_a_script_survive_a_crash() {
    for queue in [None, Some("HighPriority"), Some("SequentialByOriginator")] {
        let runner = Arc::new(SlowRunner::default());
        let mut world = World::with(queue, options(&runner));
        install(&world, world.tenant, false);
        world.publish(0, 0, &[1, 2, 3]);
        assert_eq!(runner.running(), data(&[1]), "{queue:?}");
        world.restart_with(&runner);
        world.tick(1);
        assert_eq!(runner.running(), data(&[1]), "{queue:?}");
        assert_eq!(world.answer_all(&runner, 2), data(&[1, 2, 3]), "{queue:?}");
        assert_eq!(world.stored(0), longs(&[1, 2, 3]), "{queue:?}");
        world.store.flush().unwrap();
        world.platform.checkpoint().unwrap();
        world.restart_with(&runner);
        world.tick(3);
        assert!(
            runner.running().is_empty(),
            "{queue:?}: finished messages do not run again"
        );
        assert_eq!(world.platform.stats().waiting_retries, 0, "{queue:?}");
    }
}

/// The points of a finished message are not on disk when the server crashes. A replay restores them, also if the script
/// takes long this time: nothing else would protect the message while it waits.
#[test]
fn replay_waits_for_a_script() {
    let runner = Arc::new(SlowRunner::default());
    let mut world = World::with(None, options(&runner));
    install(&world, world.tenant, false);
    runner.state().fast.push(world.tenant);
    world.publish(0, 0, &[1, 2]);
    assert_eq!(world.stored(0), longs(&[1, 2]));
    world.tick(1);
    world.restart_with(&runner);
    assert!(world.stored(0).is_empty(), "the points were in memory");
    runner.state().fast.clear();
    world.position = 0;
    assert!(world.publish(0, 2, &[1, 2]).is_empty(), "a replay logs nothing");
    assert!(runner.running().is_empty());
    assert_eq!(world.stored(0), longs(&[1, 2]));
    assert_eq!(world.platform.stats().waiting_retries, 0);
}

#[test]
fn failed_slow_script_follows_the_strategy_of_its_queue() {
    let runner = Arc::new(SlowRunner::default());
    let mut world = World::with(None, options(&runner));
    install(&world, world.tenant, false);
    world.publish(0, 0, &[1, 2]);
    runner.answer(Err(ScriptError::Failed("no".to_owned())));
    assert_eq!(world.take_answers(0), ["script failed: no"]);
    assert_eq!(runner.running(), data(&[2]), "the next message runs");
    world.answer_all(&runner, 0);
    assert_eq!(world.platform.stats().failed_messages_total, 1);
    assert_eq!(world.stored(0), longs(&[2]));

    // A queue with retries, in which later messages do not wait for the retry.
    world.strategy(ProcessingKind::RetryFailed, 0);
    world.publish(0, 10, &[3, 4]);
    runner.answer(Err(ScriptError::Failed("no".to_owned())));
    world.take_answers(10);
    assert_eq!(runner.running(), data(&[4]));
    assert_eq!(world.answer_all(&runner, 10), data(&[4]));
    assert_eq!(world.stored(0), longs(&[2, 4]));
    world.tick(20);
    assert_eq!(world.answer_all(&runner, 20), data(&[3]));
    assert_eq!(world.stored(0), longs(&[2, 3, 4]));
    assert_eq!(world.platform.stats().waiting_retries, 0);
}

#[test]
fn script_that_does_not_run_in_time_fails() {
    let runner = Arc::new(SlowRunner::default());
    let mut world = World::with(None, options(&runner));
    install(&world, world.tenant, false);
    world.publish(0, 0, &[1, 2]);
    assert!(world.tick(59).is_empty());
    let events = world.tick(61);
    assert!(
        events[0].starts_with("script failed: the script did not run within 60 seconds"),
        "{events:?}"
    );
    assert_eq!(runner.running(), data(&[2]), "the first call is cancelled");
    world.answer_all(&runner, 62);
    assert_eq!(world.stored(0), longs(&[2]));
}

#[test]
fn waiting_messages_of_a_tenant_are_limited_to_its_share() {
    let runner = Arc::new(SlowRunner::default());
    let limited = PlatformOptions {
        queued_max: 8,
        ..options(&runner)
    };
    let mut world = World::with(None, limited);
    let another = Tenant {
        title: "Another".to_owned(),
        ..Tenant::default()
    };
    let start = world.platform.entities().create_tenant(another, NOW).unwrap();
    world.platform.reload_chain(start.root_chain.id.unwrap(), NOW).unwrap();
    install(&world, world.tenant, false);
    world.publish(0, 0, &[1, 2, 3]);
    assert!(world.platform.tenants_behind_scripts().is_empty());
    let events = world.publish(0, 0, &[4, 5, 6, 7]);
    let dropped = events
        .iter()
        .filter(|event| event.contains("too many messages of this tenant wait for its scripts"));
    assert_eq!(dropped.count(), 2, "{events:?}");
    assert_eq!(world.platform.tenants_behind_scripts(), [world.tenant]);
    assert_eq!(world.answer_all(&runner, 1), data(&[1, 2, 3, 4, 5]));
    assert!(world.platform.tenants_behind_scripts().is_empty());
}

#[test]
fn cycle_through_slow_scripts_ends() {
    let runner = Arc::new(SlowRunner::default());
    let mut world = World::with(None, options(&runner));
    let class = |class: &str| format!("org.thingsboard.rule.engine.{class}");
    let script = json!({"scriptLang": "JS", "jsScript": "return true;"});
    let nodes = json!([
        {"type": class("filter.TbMsgTypeFilterNode"), "name": "telemetry", "configuration": {"messageTypes": ["POST_TELEMETRY_REQUEST"]}},
        {"type": class("filter.TbJsFilterNode"), "name": "script", "configuration": script},
    ]);
    let connections =
        json!([{"fromIndex": 0, "toIndex": 1, "type": "True"}, {"fromIndex": 1, "toIndex": 1, "type": "True"}]);
    let metadata = json!({"firstNodeIndex": 0, "nodes": nodes, "connections": connections});
    let entities = world.platform.entities();
    let root = entities.root_chain(world.tenant).unwrap().unwrap().id.unwrap();
    entities.save_rule_chain_metadata(root, metadata, NOW).unwrap();
    world.platform.reload_chain(root, NOW).unwrap();
    world.publish(0, 0, &[1]);
    // Each call takes a second of the 5 seconds of CPU time that a message has.
    let mut events = Vec::new();
    for _ in 0..5 {
        let mut state = runner.state();
        let (number, _, _) = state.calls.remove(0);
        let answer = ScriptAnswer {
            result: Ok("true".to_owned()),
            cpu: Duration::from_secs(1),
        };
        state.answers.push((number, answer));
        drop(state);
        events.extend(world.take_answers(0));
    }
    assert!(runner.running().is_empty());
    assert_eq!(
        events,
        ["script failed: script time limit of the message exceeded (5 seconds)"]
    );
}
