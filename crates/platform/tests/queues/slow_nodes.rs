//! Messages whose nodes take long pause, so that messages of other tenants go between.

use super::*;

/// Log nodes of the slow chain.
const NODES: usize = 100;

/// Makes the tenant log each message of telemetry so many times, and save it.
fn install(world: &World, tenant: TenantId, logs: usize) {
    let node = |class: &str, name: &str, configuration: Json| json!({"type": format!("org.thingsboard.rule.engine.{class}"), "name": name, "configuration": configuration});
    let telemetry = json!({"messageTypes": ["POST_TELEMETRY_REQUEST"]});
    let mut nodes = vec![node("filter.TbMsgTypeFilterNode", "telemetry", telemetry)];
    let mut connections = Vec::new();
    for number in 0..logs {
        nodes.push(node("action.TbLogNode", &format!("log {number}"), json!({})));
    }
    nodes.push(node("telemetry.TbMsgTimeseriesNode", "save", json!({})));
    for number in 0..=logs {
        let label = if number == 0 { "True" } else { "Success" };
        connections.push(json!({"fromIndex": number, "toIndex": number + 1, "type": label}));
    }
    let metadata = json!({"firstNodeIndex": 0, "nodes": nodes, "connections": connections});
    let entities = world.platform.entities();
    let root = entities.root_chain(tenant).unwrap().unwrap().id.unwrap();
    entities.save_rule_chain_metadata(root, metadata, NOW).unwrap();
    world.platform.reload_chain(root, NOW).unwrap();
}

/// A world whose first tenant has a slow chain. The third device belongs to a second tenant.
fn world(queue: Option<&str>) -> World {
    let mut world = World::with(queue, PlatformOptions::default());
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
