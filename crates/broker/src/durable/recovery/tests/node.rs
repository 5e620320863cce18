//! State of the node itself, and invalid records.

use super::*;

#[test]
fn node_state_is_that_of_the_latest_boot_or_checkpoint() {
    let checkpoint = |last_key| {
        put(&JournalRecord::Checkpoint {
            unix_ms: 70,
            shards: 2,
            last_key,
        })
    };
    let state = recover(&[boot(50), session(1), checkpoint(3)]);
    assert_eq!((state.shards, state.last_key, state.latest_unix_ms), (2, 9, 70));
    assert_eq!(state.sessions[0].left_unix_ms, None, "still connected");
    assert_eq!(recover(&[checkpoint(30), session(1)]).last_key, 30);
}

/// Shards append their records in any order.
#[test]
fn journal_continues_at_the_latest_time_record() {
    let time = |unix_ms, ahead_ms| put(&JournalRecord::Time { unix_ms, ahead_ms });
    let state = recover(&[time(50, 0), time(70, 20_000), time(60, 0)]);
    assert_eq!(state.journal_ms_at_start(20_100), 100);
    assert_eq!(state.journal_ms_at_start(20_000), 70, "the clock is behind");
    let state = recover(&[time(50, 0)]);
    assert_eq!(state.journal_ms_at_start(20_100), 20_100);
}

#[test]
fn invalid_record_is_reported_with_its_position() {
    let mut recovery = Recovery::new();
    for (bytes, expected) in [
        (Vec::new(), "a byte"),
        (routed(64, 1), "a shard below 64"),
        (session(u64::MAX), "an entry number below 2^48"),
        (queued(1 << 63, &[to_group()]), "a position below 2^55"),
    ] {
        let error = recovery.record(RecordPosition(7), &bytes).unwrap_err();
        assert_eq!(error.position, RecordPosition(7));
        assert_eq!(error.source.expected, expected);
    }
}
