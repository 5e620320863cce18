//! What is known of the node itself, and records that are none.

use super::*;

#[test]
fn numbers_of_the_node_are_those_of_its_latest_start_or_checkpoint() {
    let checkpoint = |last_key| {
        put(&Record::Checkpoint {
            unix_ms: 70,
            shards: 2,
            last_key,
        })
    };
    let state = recover(&[boot(50), session(1), checkpoint(3)]);
    assert_eq!((state.shards, state.last_key, state.told_unix_ms), (2, 9, 70));
    assert_eq!(state.sessions[0].left_unix_ms, None, "nobody has gone");
    assert_eq!(recover(&[checkpoint(30), session(1)]).last_key, 30);
}

#[test]
fn a_record_that_makes_no_sense_is_named() {
    let mut recovery = Recovery::new();
    for (bytes, expected) in [
        (Vec::new(), "a byte"),
        (routed(64, 1), "a shard below 64"),
        (session(u64::MAX), "a number of a message below 2^56"),
        (queued(1 << 63, &[to_group()]), "a position below 2^63"),
    ] {
        let error = recovery.record(Position(7), &bytes).unwrap_err();
        assert_eq!(error.position, Position(7));
        assert_eq!(error.source.expected, expected);
    }
}
