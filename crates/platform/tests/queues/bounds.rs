//! Limits for one message or one tenant: memory, and time of the single thread.

use super::*;

/// Text size of each message here: 10,000 of them are 200 MB.
const TEXT_BYTES: usize = 20_000;
/// As many as fit into the data limit of one message, and one more.
const MESSAGES_MAX: usize = (64 << 20) / TEXT_BYTES + 1;

/// Connects the first node to the log node a hundred times, and that to `to` a hundred times.
fn fan_out(to: i64, behind: &[(i64, i64, &'static str)]) -> Vec<(i64, i64, &'static str)> {
    let first = (0..100).map(|_| (0, 1, "True"));
    let second = (0..100).map(|_| (1, to, "Success"));
    first.chain(second).chain(behind.iter().copied()).collect()
}

fn count(events: &[String], what: &str) -> usize {
    events.iter().filter(|events| events.contains(what)).count()
}

#[test]
fn deferred_work_of_a_message_is_limited() {
    let mut world = World::new(None);
    world.chain_of(&fan_out(4, &[(4, 5, "Success")]));
    world.other.refuses(1 + SECOND, u32::MAX);
    let events = world.publish_large(0, TEXT_BYTES);
    let forwarded = count(&events, "refused 101");
    assert!((1_000..=MESSAGES_MAX).contains(&forwarded), "{forwarded}");
    assert_eq!(count(&events, "checkpoint failed: "), 9_900 - forwarded);
    let events = world.publish_large(1, 10);
    assert_eq!(
        count(&events, "refused 101"),
        9_900,
        "the next message has its own limit"
    );
}

#[test]
fn stored_data_of_a_message_is_limited() {
    let mut world = World::new(None);
    world.chain_of(&fan_out(3, &[]));
    let events = world.publish_large(0, TEXT_BYTES);
    let failed = count(
        &events,
        "save failed: the message created more data than one message may",
    );
    assert!(9_900 - failed <= MESSAGES_MAX && failed < 9_000, "{failed}");
    assert_eq!(world.stored(0), longs(&[1]));
}

#[test]
fn retries_of_a_message_are_limited() {
    let mut world = World::new(Some("HighPriority"));
    world.chain_of(&fan_out(2, &[]));
    world.other.refuses(1, u32::MAX);
    world.publish_large(0, TEXT_BYTES);
    assert_eq!(world.platform.stats().waiting_retries, 1);
    let again = world.tick(6);
    let refused = count(&again, "refused 1");
    assert!((3_000..=MESSAGES_MAX).contains(&refused), "{refused}");
}

/// Each pass of the cycle doubles the messages.
#[test]
fn doubling_checkpoint_cycle_ends() {
    for queue in [None, Some("HighPriority")] {
        let mut world = World::new(queue);
        let circle = [(0, 4, "True"), (4, 4, "Success"), (4, 4, "Success")];
        world.connect(&circle, queue.unwrap_or("Main"));
        let events = world.publish(0, 0, &[1]);
        let stats = world.platform.stats();
        assert!(stats.rule_nodes_total <= 100_010, "{}", stats.rule_nodes_total);
        assert!(count(&events, "for a cycle") > 0, "{}", events.len());
        assert_eq!(stats.waiting_retries, 0, "{queue:?}");
        assert_eq!(
            world.publish(1, 1, &[2]).len(),
            events.len(),
            "the next message has its own limit"
        );
    }
}

/// A device of another tenant, with the same queue and chain.
pub fn another_tenant(world: &mut World, queue: &str) {
    let entities = Arc::clone(world.platform.entities());
    let tenant = Tenant {
        title: "Another".to_owned(),
        ..Tenant::default()
    };
    let start = entities.create_tenant(tenant, NOW).unwrap();
    let tenant_id = start.tenant.id.unwrap();
    let profile = DeviceProfile {
        tenant_id,
        name: "P".to_owned(),
        default_queue_name: Some(queue.to_owned()),
        ..DeviceProfile::default()
    };
    entities.save_device_profile(profile, NOW).unwrap();
    let device = Device {
        tenant_id,
        name: "C".to_owned(),
        kind: "P".to_owned(),
        ..Device::default()
    };
    let device = entities.save_device(device, Some("C"), NOW).unwrap();
    world.devices.push(device.id.unwrap());
    let first = std::mem::replace(&mut world.tenant, tenant_id);
    world.chain(None);
    world.tenant = first;
}

#[test]
fn retries_of_a_tenant_leave_time_for_others() {
    let mut world = World::new(Some("HighPriority"));
    another_tenant(&mut world, "HighPriority");
    let many: Vec<i64> = (1..=300).collect();
    many.iter().for_each(|value| world.other.refuses(*value, u32::MAX));
    world.other.refuses(1000, 1);
    world.publish(0, 0, &many);
    world.publish(2, 1, &[1000]);
    // All of them together take three times the time for retries.
    world.other.work = Duration::from_millis(2);
    let events = [world.tick(6), world.tick(11)].concat();
    assert!(count(&events, "refused ") < 600, "{}", events.len());
    assert_eq!(count(&events, "took 1000"), 1);
}

#[test]
fn long_lane_continues_in_parts() {
    let mut world = World::new(Some("SequentialByOriginator"));
    world.other.refuses(1, 1);
    world.other.is_slow = true;
    let all: Vec<i64> = (1..=1_000).collect();
    assert_eq!(world.publish(0, 0, &all), ["log", "refused 1"]);
    // The messages that wait behind it are only logged.
    world.chain_of(&[(0, 1, "True")]);
    assert_eq!(world.tick(6), ["took 1"]);
    world.other.work = Duration::from_millis(2);
    world.answer_first(7, Ok(ExternalAnswer::default()));
    let mut logged = count(&world.other.take(), "log");
    assert!((1..900).contains(&logged), "{logged}");
    world.other.work = Duration::ZERO;
    for after_s in 8..60 {
        logged += count(&world.tick(after_s), "log");
    }
    assert_eq!((logged, world.platform.stats().waiting_retries), (999, 0));
}
