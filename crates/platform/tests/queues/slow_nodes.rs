//! Messages whose nodes take long pause, so that messages of other tenants go between.

use platform::ChainEvent;
use platform::decode::{DecodeLimits, attributes};
use platform::ids::{EntityType, Uuid};
use platform::model::AttributeScope;

use super::slow_scripts::{SlowRunner, options};
use super::*;

/// Log nodes of the slow chain.
const NODES: usize = 100;

fn node(class: &str, name: &str, configuration: Json) -> Json {
    json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "configuration": configuration})
}

/// Makes the tenant log each message of telemetry so many times, and save it.
fn install(world: &World, tenant: TenantId, logs: usize) {
    install_after(world, tenant, &["POST_TELEMETRY_REQUEST"], logs, None);
}

/// As [`install`], for messages of these types. They may pass another node before.
fn install_after(world: &World, tenant: TenantId, kinds: &[&str], logs: usize, before: Option<Json>) {
    let filter = json!({ "messageTypes": kinds });
    let mut nodes = vec![node("filter.TbMsgTypeFilterNode", "filter", filter)];
    nodes.extend(before);
    for number in 0..logs {
        nodes.push(node("action.TbLogNode", &format!("log {number}"), json!({})));
    }
    nodes.push(node("telemetry.TbMsgTimeseriesNode", "save", json!({})));
    let connection = |number: usize| json!({"fromIndex": number, "toIndex": number + 1, "type": if number == 0 { "True" } else { "Success" }});
    let connections: Vec<Json> = (0..nodes.len() - 1).map(connection).collect();
    put_chain(world, tenant, &nodes, &connections);
}

fn put_chain(world: &World, tenant: TenantId, nodes: &[Json], connections: &[Json]) {
    let metadata = json!({"firstNodeIndex": 0, "nodes": nodes, "connections": connections});
    let entities = world.platform.entities();
    let root = entities.root_chain(tenant).unwrap().unwrap().id.unwrap();
    entities.save_rule_chain_metadata(root, metadata, NOW).unwrap();
    world.platform.reload_chain(root, NOW).unwrap();
}

/// A world whose first tenant has a slow chain. The third device belongs to a second tenant.
fn world(queue: Option<&str>) -> World {
    world_with(queue, PlatformOptions::default())
}

fn world_with(queue: Option<&str>, options: PlatformOptions) -> World {
    let mut world = World::with(queue, options);
    let another = Tenant {
        title: "Another".to_owned(),
        ..Tenant::default()
    };
    let start = world.platform.entities().create_tenant(another, NOW).unwrap();
    world.platform.reload_chain(start.root_chain.id.unwrap(), NOW).unwrap();
    let tenant = start.tenant.id.unwrap();
    install(&world, world.tenant, NODES);
    install(&world, tenant, 1);
    let device = Device {
        tenant_id: tenant,
        name: "C".to_owned(),
        kind: "default".to_owned(),
        ..Device::default()
    };
    let device = world.platform.entities().save_device(device, Some("C"), NOW).unwrap();
    world.devices.push(device.id.unwrap());
    // A slice ends after 16 nodes.
    world.other.work = Duration::from_millis(2);
    world
}

/// Continues waiting messages until none is left. Returns the events.
fn continue_all(world: &mut World) -> Vec<String> {
    let mut events = Vec::new();
    for after_s in 1..1000 {
        if world.platform.stats().waiting_retries == 0 {
            return events;
        }
        events.extend(world.tick(after_s));
    }
    panic!("messages still wait: {:?}", world.platform.stats());
}

/// Continues waiting messages until one causes this event. Returns the events.
fn continue_until(world: &mut World, last: &str) -> Vec<String> {
    let mut events = Vec::new();
    for after_s in 1..1000 {
        events.extend(world.tick(after_s));
        if events.iter().any(|event| event == last) {
            return events;
        }
    }
    panic!("no '{last}': {events:?}");
}

const QUEUES: [Option<&str>; 3] = [None, Some("HighPriority"), Some("SequentialByOriginator")];

#[test]
fn messages_of_other_tenants_go_between_slices() {
    for queue in QUEUES {
        let mut world = world(queue);
        let mut events = world.publish(0, 0, &[1, 2]);
        assert!(events.len() < NODES, "{queue:?}: the message is paused: {events:?}");
        let between = world.publish(2, 0, &[3]);
        assert_eq!(world.stored(2), longs(&[3]), "{queue:?}");
        assert!(world.stored(0).is_empty(), "{queue:?}");
        events.extend(between);
        events.extend(continue_all(&mut world));
        // All nodes run once and in order, and those of the second message after those of the first.
        let logs = (0..NODES).map(|number| format!("log {number}"));
        let mut expected = logs.clone().chain(logs).peekable();
        events.retain(|event| expected.next_if(|next| next == event).is_none());
        assert_eq!(events, ["log 0"], "{queue:?}: the node of the other tenant");
        assert_eq!(world.stored(0), longs(&[1, 2]), "{queue:?}");
        let stats = world.platform.stats();
        assert_eq!(
            (stats.waiting_retries, stats.failed_messages_total),
            (0, 0),
            "{queue:?}"
        );
    }
}

#[test]
fn paused_messages_survive_a_crash() {
    for queue in QUEUES {
        let mut world = world(queue);
        world.publish(0, 0, &[1, 2]);
        assert!(world.stored(0).is_empty(), "{queue:?}");
        world.restart();
        continue_all(&mut world);
        assert_eq!(world.stored(0), longs(&[1, 2]), "{queue:?}");
        assert_eq!(world.platform.stats().failed_messages_total, 0, "{queue:?}");
        world.store.flush().unwrap();
        world.platform.checkpoint().unwrap();
        world.restart();
        assert_eq!(world.platform.stats().waiting_retries, 0, "{queue:?}");
    }
}

/// A world whose messages wait for an external system before the slow nodes.
fn world_with_requests(queue: Option<&str>) -> World {
    let mut world = world(queue);
    let url = json!({"restEndpointUrlPattern": "http://other"});
    let before = node("rest.TbRestApiCallNode", "other", url);
    install_after(&world, world.tenant, &["POST_TELEMETRY_REQUEST"], NODES, Some(before));
    world.other.is_slow = true;
    world
}

#[test]
fn answered_messages_pause_in_the_lane_of_their_tenant() {
    let mut world = world_with_requests(Some("HighPriority"));
    assert_eq!(world.publish(0, 0, &[1]), ["took 1"]);
    world.answer_first(0, Ok(ExternalAnswer::default()));
    let first = world.other.take();
    assert!((1..NODES).contains(&first.len()), "the message is paused: {first:?}");
    assert!(
        world.publish(1, 0, &[2]).iter().all(|event| event != "took 2"),
        "a later message waits"
    );
    assert!(world.stored(0).is_empty());
    continue_until(&mut world, "took 2");
    assert_eq!(world.stored(0), longs(&[1]));
    world.answer_first(0, Ok(ExternalAnswer::default()));
    continue_all(&mut world);
    assert_eq!(world.stored(1), longs(&[2]));
}

/// Processes a message whose nodes take so long that later messages of the tenant wait in its lane.
fn make_slow(world: &mut World) {
    world.other.work = Duration::from_millis(10);
    world.publish(0, 0, &[1]);
    world.other.work = Duration::ZERO;
    continue_all(world);
    assert_eq!(world.stored(0), longs(&[1]));
}

#[test]
fn events_of_a_slow_tenant_wait_in_its_lane() {
    let mut world = world(None);
    let kinds = ["POST_TELEMETRY_REQUEST", "ENTITY_CREATED", "ENTITY_DELETED"];
    install_after(&world, world.tenant, &kinds, NODES, None);
    make_slow(&mut world);
    let deleted = EntityId::new(EntityType::Device, Uuid([7; 16]));
    for (kind, entity) in [("ENTITY_CREATED", world.tenant.entity()), ("ENTITY_DELETED", deleted)] {
        let event = ChainEvent {
            kind,
            entity,
            tenant: world.tenant,
            metadata: Vec::new(),
            data: json!({}),
        };
        world.platform.send_event(event, NOW, &mut world.other);
        assert!(world.other.take().is_empty(), "{kind} waits");
        let events = continue_all(&mut world);
        let logs = events.iter().filter(|event| event.starts_with("log "));
        assert_eq!(logs.count(), NODES, "{kind}: {events:?}");
    }
}

/// The log nodes of two messages, one after the other.
fn logs_of_two() -> Vec<String> {
    let all = || (0..NODES).map(|number| format!("log {number}"));
    all().chain(all()).collect()
}

fn logs(events: &[String]) -> Vec<String> {
    events
        .iter()
        .filter(|event| event.starts_with("log "))
        .cloned()
        .collect()
}

/// A message whose retry is due while another message of its lane is paused is retried after that.
#[test]
fn paused_message_runs_before_the_retry_of_another() {
    let mut world = world(Some("HighPriority"));
    make_slow(&mut world);
    let url = json!({"restEndpointUrlPattern": "http://other"});
    let before = node("rest.TbRestApiCallNode", "other", url);
    install_after(&world, world.tenant, &["POST_TELEMETRY_REQUEST"], NODES, Some(before));
    world.other.work = Duration::from_millis(2);
    world.other.refuses(2, 1);
    world.publish(0, 0, &[2]);
    assert!(world.tick(1).iter().any(|event| event == "refused 2"));
    world.publish(0, 2, &[3]);
    let mut events = world.tick(3);
    assert!(events.iter().any(|event| event == "took 3"), "{events:?}");
    // The pause before the retry has ended.
    for after_s in 20.. {
        events.extend(world.tick(after_s));
        if world.platform.stats().waiting_retries == 0 {
            break;
        }
        assert!(after_s < 1000, "{events:?}");
    }
    let retried = events.iter().position(|event| event == "took 2").unwrap();
    assert_eq!(logs(&events[retried..]).len(), NODES, "{events:?}");
    assert_eq!(logs(&events), logs_of_two());
    assert_eq!(world.stored(0), longs(&[1, 2, 3]));
}

/// The external system answers two messages. The first takes so long that the second waits behind it.
#[test]
fn answered_messages_of_a_slow_tenant_wait_in_its_lane() {
    for queue in [None, Some("HighPriority")] {
        let mut world = world_with_requests(queue);
        assert_eq!(world.publish(0, 0, &[1]), ["took 1"], "{queue:?}");
        assert_eq!(world.publish(1, 0, &[2]), ["took 2"], "{queue:?}");
        world.other.work = Duration::from_millis(10);
        world.answer_first(0, Ok(ExternalAnswer::default()));
        let mut events = world.other.take();
        assert!((1..NODES).contains(&events.len()), "{queue:?}: {events:?}");
        world.other.work = Duration::ZERO;
        world.answer_first(0, Ok(ExternalAnswer::default()));
        assert!(world.other.take().is_empty(), "{queue:?}: the second message waits");
        events.extend(continue_all(&mut world));
        assert_eq!(logs(&events), logs_of_two(), "{queue:?}");
        assert_eq!(
            (world.stored(0), world.stored(1)),
            (longs(&[1]), longs(&[2])),
            "{queue:?}"
        );
    }
}

#[test]
fn periodic_messages_of_a_slow_tenant_wait_in_its_lane() {
    let mut world = world(None);
    make_slow(&mut world);
    let nodes = [
        node("action.TbMsgCountNode", "count", json!({"interval": 1})),
        node("action.TbLogNode", "counted", json!({})),
    ];
    let connections = [json!({"fromIndex": 0, "toIndex": 1, "type": "Success"})];
    put_chain(&world, world.tenant, &nodes, &connections);
    assert!(world.tick(20).is_empty());
    assert_eq!(world.platform.stats().waiting_retries, 1);
    assert_eq!(world.tick(21), ["counted"]);
}

/// Makes the first tenant reject messages of this kind at one node, and log them at many others.
fn install_failure(world: &mut World, kind: &str) {
    let url = json!({"restEndpointUrlPattern": "http://other"});
    let mut nodes = vec![
        node("filter.TbMsgTypeFilterNode", "filter", json!({"messageTypes": [kind]})),
        node("rest.TbRestApiCallNode", "other", url),
    ];
    let mut connections = vec![json!({"fromIndex": 0, "toIndex": 1, "type": "True"})];
    for number in 0..NODES {
        nodes.push(node("action.TbLogNode", &format!("log {number}"), json!({})));
        connections.push(json!({"fromIndex": 0, "toIndex": number + 2, "type": "True"}));
    }
    put_chain(world, world.tenant, &nodes, &connections);
    world.other.refuses(1, u32::MAX);
}

#[test]
fn message_that_cannot_wait_reports_the_failures_before() {
    let full = PlatformOptions {
        queued_max: 0,
        ..PlatformOptions::default()
    };
    let mut world = world_with(None, full);
    install_failure(&mut world, "ATTRIBUTES_UPDATED");
    let values = attributes(br#"{"a":1}"#, &DecodeLimits::default()).unwrap();
    let (device, scope) = (world.devices[0].entity(), AttributeScope::ServerScope);
    world
        .platform
        .save_attributes(device, scope, &values, NOW, &mut world.other)
        .unwrap();
    let events = world.other.take();
    assert!(logs(&events).len() < NODES, "the message is paused: {events:?}");
    let [.., first, last] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(first, "other failed: busy");
    assert!(last.contains("the message was dropped: too many messages"), "{last}");
    assert_eq!(world.platform.stats().failed_messages_total, 1);
}

#[test]
fn restart_keeps_the_failures_before_a_pause() {
    let mut world = world(None);
    install_failure(&mut world, "POST_TELEMETRY_REQUEST");
    let events = world.publish(0, 0, &[1]);
    assert!(events.iter().all(|event| event != "other failed: busy"), "{events:?}");
    assert_eq!(world.platform.stats().waiting_retries, 1);
    world.restart();
    let events = continue_all(&mut world);
    assert_eq!(events.last().map(String::as_str), Some("other failed: busy"));
    assert_eq!(world.platform.stats().failed_messages_total, 1);
}

/// Makes the first tenant log each message of telemetry before and after a checkpoint. After the second log the message
/// is saved, or passes the first node again.
fn put_checkpoint(world: &World, is_cycle: bool) {
    let telemetry = json!({"messageTypes": ["POST_TELEMETRY_REQUEST"]});
    let nodes = [
        node("filter.TbMsgTypeFilterNode", "filter", telemetry),
        node("action.TbLogNode", "before", json!({})),
        node("flow.TbCheckpointNode", "checkpoint", json!({"queueName": "Main"})),
        node("action.TbLogNode", "after", json!({})),
        node("telemetry.TbMsgTimeseriesNode", "save", json!({})),
    ];
    let end = if is_cycle { 1 } else { 4 };
    let connections = [
        (0, 1, "True"),
        (1, 2, "Success"),
        (2, 3, "Success"),
        (3, end, "Success"),
    ];
    let connections = connections.map(|(from, to, label)| json!({"fromIndex": from, "toIndex": to, "type": label}));
    put_chain(world, world.tenant, &nodes, &connections);
}

#[test]
fn checkpoints_of_a_slow_tenant_wait_in_its_lane() {
    let mut world = world(None);
    make_slow(&mut world);
    put_checkpoint(&world, false);
    assert!(world.publish(0, 0, &[2, 3]).is_empty());
    let events = continue_all(&mut world);
    assert_eq!(events, ["before", "before", "after", "after"]);
    assert_eq!(world.stored(0), longs(&[1, 2, 3]));
}

#[test]
fn cycle_through_checkpoints_of_a_slow_tenant_ends() {
    let mut world = world(None);
    make_slow(&mut world);
    put_checkpoint(&world, true);
    assert!(world.publish(0, 0, &[2]).is_empty());
    let events = continue_all(&mut world);
    let passed = events.iter().filter(|event| *event == "after").count();
    let failed = events.last().unwrap();
    assert_eq!(passed, 50);
    assert!(
        failed.starts_with("checkpoint failed: the message passed 50 checkpoints"),
        "{failed}"
    );
}

/// Each part after a checkpoint is short, and all of them take much longer than a time slice.
#[test]
fn deferred_work_waits_after_a_time_slice() {
    const PARTS: usize = 40;
    let mut world = world(None);
    let telemetry = json!({"messageTypes": ["POST_TELEMETRY_REQUEST"]});
    let nodes = [
        node("filter.TbMsgTypeFilterNode", "filter", telemetry),
        node("flow.TbCheckpointNode", "checkpoint", json!({"queueName": "Main"})),
        node("action.TbLogNode", "after", json!({})),
    ];
    let mut connections = vec![json!({"fromIndex": 0, "toIndex": 1, "type": "True"}); PARTS];
    connections.push(json!({"fromIndex": 1, "toIndex": 2, "type": "Success"}));
    put_chain(&world, world.tenant, &nodes, &connections);
    let mut events = world.publish(0, 0, &[1]);
    // A slice ends after 10 ms, and each part takes two.
    assert!(events.len() <= 6, "{}", events.len());
    events.extend(continue_all(&mut world));
    assert_eq!(events.len(), PARTS);
}

#[test]
fn storing_a_waiting_message_counts_as_time_of_its_tenant() {
    let runner = Arc::new(SlowRunner::default());
    let mut world = world_with(None, options(&runner));
    make_slow(&mut world);
    let before = runner.state().node_times.get(&world.tenant).copied();
    assert!(before.is_some());
    world.publish_large(0, (1 << 20) - 100);
    assert_eq!(world.platform.stats().waiting_retries, 1);
    assert!(runner.state().node_times.get(&world.tenant).copied() > before);
}

#[test]
fn storing_a_paused_message_counts_once() {
    let runner = Arc::new(SlowRunner::default());
    let mut world = world_with(None, options(&runner));
    let begun = std::time::Instant::now();
    world.publish_large(0, (1 << 20) - 100);
    let took = begun.elapsed();
    assert_eq!(world.platform.stats().waiting_retries, 1);
    let counted = runner.state().node_times[&world.tenant];
    assert!(counted <= took, "{counted:?} of {took:?}");
}

/// The time of the pause is that of the tests: `NOW` and the seconds after it.
#[test]
fn tenant_over_its_budget_is_not_due() {
    let runner = Arc::new(SlowRunner::default());
    let mut world = world_with(None, options(&runner));
    world.publish(0, 0, &[1]);
    let now_ms = NOW + 1000;
    runner.state().pauses.insert(world.tenant, Duration::from_millis(250));
    assert!(world.platform.has_due_messages(now_ms));
    assert!(!world.platform.continue_waiting(now_ms, &mut world.other).unwrap());
    assert!(world.other.take().is_empty());
    let until_ms = now_ms + 251;
    assert_eq!(world.platform.next_due_ms(), until_ms);
    assert!(!world.platform.has_due_messages(until_ms - 1), "nothing to look for");
    runner.state().pauses.clear();
    assert!(world.platform.continue_waiting(until_ms, &mut world.other).unwrap());
    assert!(!world.other.take().is_empty());
    continue_all(&mut world);
    assert_eq!(world.stored(0), longs(&[1]));
}

/// The first tenant uses more than its share, so it waits.
#[test]
fn small_tenants_do_not_wait_for_cpu_time_if_full() {
    let runner = Arc::new(SlowRunner::default());
    let limited = PlatformOptions {
        queued_max: 3,
        ..options(&runner)
    };
    let mut world = world_with(None, limited);
    let device = world.devices[2];
    let other = world.platform.entities().directory().device(device).unwrap().tenant;
    install(&world, other, NODES);
    world.publish(0, 0, &[1, 2]);
    for tenant in [world.tenant, other] {
        runner.state().pauses.insert(tenant, Duration::from_secs(100));
    }
    assert!(!world.platform.continue_waiting(NOW, &mut world.other).unwrap());
    assert!(!world.platform.has_due_messages(NOW + 1000));
    world.publish(2, 1, &[3]);
    assert_eq!(world.platform.stats().waiting_retries, 3);
    assert!(world.platform.has_due_messages(NOW + 1000));
    assert!(world.platform.continue_waiting(NOW + 1000, &mut world.other).unwrap());
    for after_s in 2..100 {
        world.tick(after_s);
    }
    assert_eq!(world.stored(2), longs(&[3]));
    assert_eq!(world.platform.stats().waiting_retries, 2, "the first tenant waits");
    runner.state().pauses.clear();
    continue_all(&mut world);
    assert_eq!(world.stored(0), longs(&[1, 2]));
}

#[test]
fn clock_set_back_does_not_stop_a_lane() {
    let runner = Arc::new(SlowRunner::default());
    let mut world = world_with(None, options(&runner));
    world.publish(0, 0, &[1]);
    runner.state().pauses.insert(world.tenant, Duration::from_millis(250));
    assert!(!world.platform.continue_waiting(NOW, &mut world.other).unwrap());
    runner.state().pauses.clear();
    world.other.work = Duration::ZERO;
    assert!(!world.platform.has_due_messages(NOW));
    let earlier_ms = NOW - 3_600_000;
    assert!(world.platform.has_due_messages(earlier_ms));
    assert!(world.platform.continue_waiting(earlier_ms, &mut world.other).unwrap());
    for _ in 0..1000 {
        world.platform.continue_waiting(earlier_ms, &mut world.other).unwrap();
    }
    assert_eq!(world.platform.stats().waiting_retries, 0);
    // Stores the points.
    world.tick(1);
    assert_eq!(world.stored(0), longs(&[1]));
}
