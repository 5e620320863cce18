//! The order of messages and their deferred work.

use super::*;

/// The next message of a sequential queue starts after the work that the previous one deferred.
#[test]
fn deferred_work_runs_before_the_next_message() {
    let mut world = World::new(Some("SequentialByOriginator"));
    world.chain_of(&[(0, 2, "True"), (2, 4, "Success"), (4, 1, "Success")]);
    world.other.is_slow = true;
    assert_eq!(world.publish(0, 0, &[1, 2]), ["took 1"]);
    world.answer_first(1, Ok(ExternalAnswer::default()));
    assert_eq!(world.other.take(), ["log", "took 2"]);
    world.answer_first(2, Ok(ExternalAnswer::default()));
    assert_eq!(world.other.take(), ["log"]);
    assert_eq!(world.platform.stats().waiting_retries, 0);
}
