//! Fuzzes any bytes as the records of a journal, each with its length in front. A readable record has the same meaning
//! when it is written again. The recovered state is in order and no larger than the records.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tidewire_broker::durable::record::{JournalRecord, RecordPosition};
use tidewire_broker::durable::recovery::{RecoveredState, Recovery};

fuzz_target!(|bytes: &[u8]| {
    let (mut recovery, mut restarted) = (Recovery::new(), Recovery::new());
    let (mut position, mut rest) = (100, bytes);
    while let Some((length, more)) = rest.split_first() {
        let (payload, more) = more.split_at(usize::from(*length).min(more.len()));
        rest = more;
        if let Ok(record) = JournalRecord::read(payload) {
            writes_back(&record);
        }
        if recovery.record(RecordPosition(position), payload).is_err() {
            return;
        }
        restarted
            .record(RecordPosition(position), payload)
            .expect("the other recovery has accepted it");
        position += 8 + payload.len() as u64;
    }
    let mut boot = Vec::new();
    let record = JournalRecord::Boot {
        unix_ms: 1,
        shards: 1,
        last_key: 0,
    };
    record.put(&mut boot);
    restarted.record(RecordPosition(position), &boot).expect("a boot record is valid");
    let (recovered, restarted) = (recovery.finish(), restarted.finish());
    is_in_order(&recovered, bytes.len());
    for (before, after) in recovered.sessions.iter().zip(&restarted.sessions) {
        assert_eq!((&before.entries, &before.tags), (&after.entries, &after.tags));
    }
});

fn writes_back(record: &JournalRecord<'_>) {
    let mut written = Vec::new();
    record.put(&mut written);
    assert_eq!(JournalRecord::read(&written).as_ref(), Ok(record));
}

fn is_in_order(recovered: &RecoveredState, bytes: usize) {
    let mut things = recovered.retained.len() + recovered.delayed.len() + recovered.unrouted.len();
    for session in &recovered.sessions {
        things += 1 + session.entries.len() + session.subscriptions.len() + session.received.len();
        assert!(session.entries.iter().is_sorted_by(|a, b| a.seq() < b.seq()));
        assert!(session.entries.iter().all(|entry| entry.seq() < session.next_seq));
        assert!(
            session
                .tags
                .iter()
                .all(|(seq, _)| session.entries.iter().any(|entry| entry.seq() == *seq))
        );
    }
    for group in &recovered.groups {
        things += 1 + group.messages.len();
        assert!(group.messages.iter().is_sorted_by(|a, b| a.position < b.position));
    }
    assert!(things <= bytes, "{things} of {bytes} bytes");
}
