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
        world.chain_of(&[(0, 4, "True"), (4, 4, "Success"), (4, 4, "Success")]);
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
