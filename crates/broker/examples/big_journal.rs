//! Writes a journal of many disconnected sessions with queued messages, to start a server on it: `cargo run --release
//! --example big_journal -- DATA_DIR SESSIONS MESSAGES_EACH [bare]`. With `bare` the sessions have no subscriptions.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use journal::{DIRECTORY_NAME, FlushPolicy, LogBatch, LogConfig, RecordLog, StorageDirectory};
use mqtt::{QoS, SubscriptionOptions};
use tidewire_broker::durable::record::{
    ConnectSettings, JournalRecord, MessageRecord, Recipient, RecordTarget, SessionKey, SessionRecord,
    SubscriptionRecord, Targets,
};
use tidewire_broker::provenance::Provenance;

/// Bytes per batch.
const BATCH_BYTES: usize = 256 * 1024;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [data_dir, sessions, messages, rest @ ..] = &arguments[..] else {
        panic!("expected DATA_DIR SESSIONS MESSAGES_EACH [bare]");
    };
    let is_bare = rest.iter().any(|word| word == "bare");
    let (sessions, messages): (u64, u64) = (sessions.parse().unwrap(), messages.parse().unwrap());
    let storage = StorageDirectory::open(data_dir.as_ref(), DIRECTORY_NAME).unwrap();
    let config = LogConfig {
        policy: FlushPolicy::Os,
        ..LogConfig::default()
    };
    let (mut log, _) = RecordLog::open(Arc::new(storage), config, &mut |_, _| Ok(()), &mut |_, _| {}).unwrap();
    let mut batch = LogBatch::new();
    let mut record = |record: JournalRecord<'_>| {
        batch.record(|out| record.put(out));
        if batch.len() > BATCH_BYTES {
            log.append(&mut batch);
            log.flush().unwrap();
        }
    };
    let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    record(JournalRecord::Boot {
        unix_ms,
        shards: 2,
        last_key: sessions + 1,
    });
    for number in 1..=sessions {
        session(&mut record, number, unix_ms, is_bare);
    }
    for seq in 1..=messages {
        for number in 1..=sessions {
            message(&mut record, number, seq);
        }
    }
    record(JournalRecord::Checkpoint {
        unix_ms,
        shards: 2,
        last_key: sessions + 1,
    });
    log.append(&mut batch);
    log.close().unwrap();
}

fn session(record: &mut impl FnMut(JournalRecord<'_>), number: u64, unix_ms: u64, is_bare: bool) {
    let filter = format!("fleet/{number:07}/command");
    let subscription = SubscriptionRecord {
        filter: &filter,
        options: SubscriptionOptions {
            maximum_qos: QoS::AtLeastOnce,
            ..SubscriptionOptions::default()
        },
        identifier: None,
        is_replaying: false,
    };
    record(JournalRecord::Session(SessionRecord {
        session: SessionKey(number),
        client_id: &format!("device-{number:07}"),
        created_unix_ms: unix_ms,
        left_unix_ms: Some(unix_ms),
        terms: ConnectSettings {
            version: 4,
            expiry_s: u32::MAX,
            ..ConnectSettings::default()
        },
        next_seq: 1,
        started: 0,
        subscriptions: if is_bare { Vec::new() } else { vec![subscription] },
        received: Vec::new(),
    }));
}

fn message(record: &mut impl FnMut(JournalRecord<'_>), number: u64, seq: u64) {
    let mut targets = Vec::new();
    RecordTarget {
        to: Recipient::Session(SessionKey(number)),
        seq,
        qos: QoS::AtLeastOnce,
        retain: false,
        group: None,
        identifiers: Vec::new(),
    }
    .put(&mut targets);
    record(JournalRecord::Message(MessageRecord {
        topic: &format!("fleet/{number:07}/command"),
        payload: &[b'x'; 62],
        properties: b"",
        qos: QoS::AtLeastOnce,
        retain: false,
        expires_unix_ms: None,
        publisher_hash: 0,
        shard: (number % 2) as u16,
        others: 0,
        due_unix_ms: None,
        retained: None,
        publisher: None,
        provenance: Provenance::NONE,
        owner: None,
        targets: Targets::from_written(&targets),
    }));
}
