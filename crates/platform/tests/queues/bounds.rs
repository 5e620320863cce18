//! What one message, or one tenant, may cost: room in memory, and the time of the one thread.

use super::*;

/// Of each message here: 10,000 of them are 200 MB.
const TEXT_BYTES: usize = 20_000;
/// As many as fit into what may be kept of one message, and one more.
const KEPT_MAX: usize = (64 << 20) / TEXT_BYTES + 1;

/// From the first node a hundred times to the log, and from there a hundred times to this node.
fn fan_out(to: i64, behind: &[(i64, i64, &'static str)]) -> Vec<(i64, i64, &'static str)> {
    let first = (0..100).map(|_| (0, 1, "True"));
    let second = (0..100).map(|_| (1, to, "Success"));
    first.chain(second).chain(behind.iter().copied()).collect()
}

fn count(said: &[String], what: &str) -> usize {
    said.iter().filter(|said| said.contains(what)).count()
}

#[test]
fn one_message_puts_so_much_aside() {
    let mut world = World::new(None);
    world.chain_of(&fan_out(4, &[(4, 5, "Success")]));
    world.other.refuses(1 + SECOND, u32::MAX);
    let said = world.say_large(0, TEXT_BYTES);
    let went_on = count(&said, "refused 101");
    assert!((1_000..=KEPT_MAX).contains(&went_on), "{went_on}");
    assert_eq!(count(&said, "checkpoint failed: "), 9_900 - went_on);
    let said = world.say_large(1, 10);
    assert_eq!(count(&said, "refused 101"), 9_900, "the next one has room again");
}

#[test]
fn one_message_stores_so_much() {
    let mut world = World::new(None);
    world.chain_of(&fan_out(3, &[]));
    let said = world.say_large(0, TEXT_BYTES);
    let failed = count(&said, "save failed: too much has come of the message");
    assert!(9_900 - failed <= KEPT_MAX && failed < 9_000, "{failed}");
    assert_eq!(world.stored(0), longs(&[1]));
}

#[test]
fn one_message_fails_so_often_and_is_tried_again() {
    let mut world = World::new(Some("HighPriority"));
    world.chain_of(&fan_out(2, &[]));
    world.other.refuses(1, u32::MAX);
    world.say_large(0, TEXT_BYTES);
    assert_eq!(world.platform.stats().waiting_retries, 1);
    let again = world.tick(6);
    let refused = count(&again, "refused 1");
    assert!((3_000..=KEPT_MAX).contains(&refused), "{refused}");
}

/// Each turn of the circle makes two of one.
#[test]
fn a_circle_of_checkpoints_that_doubles_ends() {
    for queue in [None, Some("HighPriority")] {
        let mut world = World::new(queue);
        let circle = [(0, 4, "True"), (4, 4, "Success"), (4, 4, "Success")];
        world.connect(&circle, queue.unwrap_or("Main"));
        let said = world.say(0, 0, &[1]);
        let stats = world.platform.stats();
        assert!(stats.rule_nodes_total <= 100_010, "{}", stats.rule_nodes_total);
        assert!(count(&said, "is there a circle?") > 0, "{}", said.len());
        assert_eq!(stats.waiting_retries, 0, "{queue:?}");
        assert_eq!(
            world.say(1, 1, &[2]).len(),
            said.len(),
            "the next one has its own budget"
        );
    }
}

/// A device of another tenant, with a queue and a chain as the first.
fn another_tenant(world: &mut World, queue: &str) {
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
fn retries_of_one_tenant_leave_time_for_those_of_others() {
    let mut world = World::new(Some("HighPriority"));
    another_tenant(&mut world, "HighPriority");
    let many: Vec<i64> = (1..=300).collect();
    many.iter().for_each(|value| world.other.refuses(*value, u32::MAX));
    world.other.refuses(1000, 1);
    world.say(0, 0, &many);
    world.say(2, 1, &[1000]);
    // All of them together take three times what is spent on retries at a time.
    world.other.work = Duration::from_millis(2);
    let said = [world.tick(6), world.tick(11)].concat();
    assert!(count(&said, "refused ") < 600, "{}", said.len());
    assert_eq!(count(&said, "took 1000"), 1);
}

#[test]
fn a_long_lane_goes_on_a_part_at_a_time() {
    let mut world = World::new(Some("SequentialByOriginator"));
    world.other.refuses(1, 1);
    world.other.is_slow = true;
    let all: Vec<i64> = (1..=1_000).collect();
    assert_eq!(world.say(0, 0, &all), ["log", "refused 1"]);
    // What waits behind it is logged and no more.
    world.chain_of(&[(0, 1, "True")]);
    assert_eq!(world.tick(6), ["took 1"]);
    world.other.work = Duration::from_millis(2);
    world.says(7, Ok(Answer::default()));
    let mut logged = count(&world.other.take(), "log");
    assert!((1..900).contains(&logged), "{logged}");
    world.other.work = Duration::ZERO;
    for after_s in 8..60 {
        logged += count(&world.tick(after_s), "log");
    }
    assert_eq!((logged, world.platform.stats().waiting_retries), (999, 0));
}
