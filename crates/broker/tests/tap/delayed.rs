//! `$delayed` messages and a tap that has to keep them: subscribers get them once, the tap at least once.

use std::sync::Arc;

use journal::Batch;
use mqtt::QoS::AtLeastOnce;
use tidewire_broker::durable::record::{MessageRecord, Position, Record, Targets, WITH_TAP};
use tidewire_broker::durable::recovery::Recovery;
use tidewire_broker::durable::restore::restore;
use tidewire_broker::provenance::Provenance;
use tidewire_broker::tap::Wants;
use tidewire_broker::*;

use crate::recorder::Recorder;

const NOW: Now = Now {
    monotonic_ms: 1 << 42,
    unix_ms: 1_700_000_000_000,
};

/// A start from a message that is due, and what the journal says of it; with a tap that keeps what is below `kept/`.
fn start(topic: &str, later: &[Record<'_>]) -> (Shard, Recorder) {
    let message = Record::Message(MessageRecord {
        topic,
        payload: b"p",
        properties: b"",
        qos: AtLeastOnce,
        retain: false,
        expires_unix_ms: None,
        publisher_hash: 0,
        shard: 0,
        others: 0,
        due_unix_ms: Some(NOW.unix_ms - 1),
        retained: None,
        publisher: None,
        provenance: Provenance::NONE,
        targets: Targets::default(),
    });
    let bytes = |record: &Record<'_>| {
        let mut bytes = Vec::new();
        record.put(&mut bytes);
        bytes
    };
    let mut recovery = Recovery::new();
    recovery.record(Position(100), &bytes(&message)).unwrap();
    for (at, record) in (101..).zip(later) {
        recovery.record(Position(at), &bytes(record)).unwrap();
    }
    let node = Arc::new(NodeState::new(1, 1));
    let mut shard = Shard::new(NOW, ShardId(0), 1, Arc::default(), Arc::new(OpenAccess), node, 1);
    shard.keep_journal(1);
    let record = bytes(&message);
    let mut read = |positions: &[Position], each: &mut dyn FnMut(usize, Option<&[u8]>)| {
        (0..positions.len()).for_each(|at| each(at, Some(&record)));
    };
    let mut append = |batch: &mut Batch| {
        batch.clear();
        (1000, 1000)
    };
    let shards = std::slice::from_mut(&mut shard);
    restore(NOW, shards, recovery.finish(), &mut read, &mut append);
    let tap = Recorder::keeping("kept/");
    shard.set_tap(Box::new(tap.clone()));
    tap.0.lock().unwrap().wants = Wants::MESSAGES;
    shard.begin_tap_tick(NOW);
    shard.run_timers(NOW);
    shard.end_tap_tick(NOW);
    (shard, tap)
}

/// Records of a tick, and whether the message has been routed: nobody has subscribed.
fn recorded(shard: &mut Shard) -> (u32, bool) {
    let records = shard.journal_batch().map_or(0, |batch| {
        let records = batch.records();
        batch.clear();
        records
    });
    shard.appended(2000, 2000);
    (records, shard.stats().drops[DropReason::NoSubscriber as usize] == 1)
}

#[test]
fn the_journal_forgets_it_when_the_tap_has_kept_it() {
    let (mut shard, tap) = start("kept/1", &[]);
    assert_eq!(tap.seen(), ["server kept/1 p"]);
    assert_eq!(
        recorded(&mut shard),
        (1, true),
        "that only the tap has still to keep it"
    );
    assert_eq!(shard.stats().delayed_messages, 1);
    tap.0.lock().unwrap().keep_all();
    shard.look_at_tap();
    assert_eq!(recorded(&mut shard).0, 1, "that it is done");
    assert_eq!(shard.stats().delayed_messages, 0);
}

#[test]
fn one_that_has_been_routed_is_given_to_the_tap_again_and_to_nobody_else() {
    let known = Record::Delayed {
        message: Position(100),
        due_unix_ms: WITH_TAP,
    };
    let (mut shard, tap) = start("kept/1", &[known]);
    assert_eq!(tap.seen(), ["server kept/1 p"]);
    assert_eq!(recorded(&mut shard), (1, false));
    tap.0.lock().unwrap().keep_all();
    shard.look_at_tap();
    assert_eq!(recorded(&mut shard), (1, false));
    assert_eq!(shard.stats().delayed_messages, 0);
}

#[test]
fn one_that_no_tap_keeps_is_done_when_it_is_routed() {
    let (mut shard, tap) = start("passed/1", &[]);
    assert_eq!(tap.seen(), ["server passed/1 p"]);
    assert_eq!(recorded(&mut shard), (1, true));
    assert_eq!(shard.stats().delayed_messages, 0);
}
