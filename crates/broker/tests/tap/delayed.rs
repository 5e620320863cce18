//! Tests `$delayed` messages with a tap that persists them: subscribers receive them once, the tap at least once.

use std::sync::Arc;

use journal::LogBatch;
use mqtt::QoS::AtLeastOnce;
use tidewire_broker::durable::record::{JournalRecord, MessageRecord, RecordPosition, Targets, WITH_TAP};
use tidewire_broker::durable::recovery::Recovery;
use tidewire_broker::durable::restore::restore;
use tidewire_broker::provenance::Provenance;
use tidewire_broker::tap::TapEventMask;
use tidewire_broker::*;

use super::recorder::Recorder;

const NOW: Now = Now {
    monotonic_ms: 1 << 42,
    unix_ms: 1_700_000_000_000,
    journal_ms: 1_700_000_000_000,
};

/// Starts a shard from the journal records of a due message. The tap persists messages on topics below `kept/`.
fn start(topic: &str, later: &[JournalRecord<'_>]) -> (Shard, Recorder) {
    let message = JournalRecord::Message(MessageRecord {
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
        owner: None,
        targets: Targets::default(),
    });
    let bytes = |record: &JournalRecord<'_>| {
        let mut bytes = Vec::new();
        record.put(&mut bytes);
        bytes
    };
    let mut recovery = Recovery::new();
    recovery.record(RecordPosition(100), &bytes(&message)).unwrap();
    for (at, record) in (101..).zip(later) {
        recovery.record(RecordPosition(at), &bytes(record)).unwrap();
    }
    let node = Arc::new(NodeState::new(1, 1));
    let mut shard = Shard::new(NOW, ShardId(0), Arc::default(), Arc::new(OpenAccess), node, 1);
    shard.start_journaling(1);
    let record = bytes(&message);
    let mut read = |positions: &[RecordPosition], each: &mut dyn FnMut(usize, Option<&[u8]>)| {
        (0..positions.len()).for_each(|at| each(at, Some(&record)));
    };
    let mut append = |batch: &mut LogBatch| {
        batch.clear();
        (1000, 1000)
    };
    let shards = std::slice::from_mut(&mut shard);
    restore(NOW, shards, recovery.finish(), &mut read, &mut append);
    let tap = Recorder::keeping("kept/");
    shard.set_tap(Box::new(tap.clone()));
    tap.0.lock().unwrap().wants = TapEventMask::MESSAGES;
    shard.begin_tick(NOW);
    shard.run_timers(NOW);
    shard.tap(NOW).end_tick();
    (shard, tap)
}

/// Returns the number of records of a tick, and whether the message has been routed. There are no subscribers.
fn recorded(shard: &mut Shard) -> (u32, bool) {
    let records = shard.journal(NOW).batch().map_or(0, |batch| {
        let records = batch.records();
        batch.clear();
        records
    });
    shard.journal(NOW).appended(2000, 2000);
    (
        records,
        shard.inspect().stats().drops[DropReason::NoSubscriber as usize] == 1,
    )
}

#[test]
fn journal_discards_a_message_persisted_by_the_tap() {
    let (mut shard, tap) = start("kept/1", &[]);
    assert_eq!(tap.seen(), ["server kept/1 p"]);
    assert_eq!(
        recorded(&mut shard),
        (1, true),
        "one record: only the tap must still persist the message"
    );
    assert_eq!(shard.inspect().stats().delayed_messages, 1);
    tap.0.lock().unwrap().keep_all();
    shard.tap(NOW).run_stored_actions();
    assert_eq!(recorded(&mut shard).0, 1, "one record: the message is complete");
    assert_eq!(shard.inspect().stats().delayed_messages, 0);
}

#[test]
fn routed_delayed_message_is_replayed_only_to_the_tap() {
    let known = JournalRecord::Delayed {
        message: RecordPosition(100),
        due_unix_ms: WITH_TAP,
    };
    let (mut shard, tap) = start("kept/1", &[known]);
    assert_eq!(tap.seen(), ["server kept/1 p"]);
    assert_eq!(recorded(&mut shard), (1, false));
    tap.0.lock().unwrap().keep_all();
    shard.tap(NOW).run_stored_actions();
    assert_eq!(recorded(&mut shard), (1, false));
    assert_eq!(shard.inspect().stats().delayed_messages, 0);
}

#[test]
fn delayed_message_without_a_tap_is_done_when_routed() {
    let (mut shard, tap) = start("passed/1", &[]);
    assert_eq!(tap.seen(), ["server passed/1 p"]);
    assert_eq!(recorded(&mut shard), (1, true));
    assert_eq!(shard.inspect().stats().delayed_messages, 0);
}
