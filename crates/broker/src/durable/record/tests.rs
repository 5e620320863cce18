//! What is written comes back, and what is cut short is an error.

use mqtt::RetainHandling;

use super::*;

fn round_trip(record: &Record<'_>) {
    let mut bytes = Vec::new();
    record.put(&mut bytes);
    assert_eq!(Record::read(&bytes).as_ref(), Ok(record));
    for end in 0..bytes.len() {
        // Cut short it may be another record, or none; it is never a panic.
        let _ = Record::read(&bytes[..end]);
    }
}

fn targets() -> Vec<u8> {
    let mut bytes = Vec::new();
    for to in [Recipient::Session(SessionKey(7)), Recipient::Group(GroupKey(1 << 40))] {
        Target {
            to,
            seq: 300,
            qos: QoS::ExactlyOnce,
            retain: true,
            group: Some(GroupKey(9)),
            identifiers: vec![1, 268_435_455],
        }
        .put(&mut bytes);
    }
    bytes
}

#[test]
fn a_message_with_everything_comes_back() {
    let targets = targets();
    round_trip(&Record::Message(MessageRecord {
        topic: "a/b",
        payload: b"\0payload",
        properties: b"\x01\x01",
        qos: QoS::ExactlyOnce,
        retain: true,
        expires_unix_ms: Some(1_700_000_000_000),
        publisher_hash: u32::MAX,
        shard: 3,
        others: u64::MAX,
        due_unix_ms: Some(0),
        retained: Some(RetainedTerms {
            expires_unix_ms: Some(5),
        }),
        publisher: Some((SessionKey(u64::MAX), 65535)),
        provenance: Provenance::from_written(b"whence"),
        targets: Targets::from_written(&targets),
    }));
}

#[test]
fn targets_are_read_one_by_one() {
    let bytes = targets();
    let read: Vec<_> = Targets::from_written(&bytes).iter().map(Result::unwrap).collect();
    assert_eq!(read.len(), 2);
    assert_eq!(read[1].to, Recipient::Group(GroupKey(1 << 40)));
    assert_eq!(read[0].identifiers, [1, 268_435_455]);
    let cut = &bytes[..bytes.len() - 1];
    assert!(Targets::from_written(cut).iter().last().unwrap().is_err());
}

#[test]
fn a_session_with_everything_comes_back() {
    round_trip(&Record::Session(SessionRecord {
        session: SessionKey(1),
        client_id: "sensor-1",
        created_unix_ms: 1,
        left_unix_ms: Some(0),
        terms: Terms {
            user_name: Some("u"),
            version: 5,
            is_superuser: true,
            is_bridge: false,
            expiry_s: u32::MAX,
            will: Some(WillRecord {
                topic: "gone",
                payload: b"x",
                properties: b"",
                qos: QoS::AtLeastOnce,
                retain: true,
                delay_s: 10,
                message_expiry_s: Some(u32::MAX),
            }),
        },
        next_seq: 12,
        started: 11,
        subscriptions: vec![SubscriptionRecord {
            filter: "$share/g/a/#",
            options: SubscriptionOptions {
                maximum_qos: QoS::ExactlyOnce,
                no_local: true,
                retain_as_published: true,
                retain_handling: RetainHandling::DoNotSend,
            },
            identifier: Some(1),
            is_replaying: true,
        }],
        received: vec![1, 65535],
    }));
}

#[test]
fn every_small_record_comes_back() {
    let (session, group, message) = (SessionKey(300), GroupKey(2), Position(1 << 50));
    let mut settled = Vec::new();
    Settled {
        session,
        seq: 1 << 40,
        is_release: true,
    }
    .put(&mut settled);
    let mut pages = Vec::new();
    let page = PageRef {
        at: message,
        first: 1 << 40,
        count: 4096,
        skipped: 1,
        queued_qos0: 2,
        oldest: Position(7),
    };
    page.put(&mut pages);
    assert_eq!(PageRefs::from_written(&pages).iter().next(), Some(Ok(page)));
    let mut entries = Vec::new();
    Entry {
        message,
        seq: 4,
        qos: QoS::AtLeastOnce,
        retain: false,
        is_released: true,
        group: None,
        identifiers: Vec::new(),
    }
    .put(&mut entries);
    for record in [
        Record::Boot {
            unix_ms: 1,
            shards: 64,
            last_key: 9,
        },
        Record::Checkpoint {
            unix_ms: 1,
            shards: 64,
            last_key: 9,
        },
        Record::Queued {
            message,
            targets: Targets::from_written(&targets()),
        },
        Record::Routed {
            by: 1,
            from: 0,
            up_to: message,
        },
        Record::Settled(SettledItems::from_written(&settled)),
        Record::Freed { session, packet_id: 1 },
        Record::Entries {
            session,
            entries: Entries::from_written(&entries),
        },
        Record::Page {
            session,
            entries: Packed(&[1, 2, 3]),
        },
        Record::Unpaged {
            session,
            entries: Packed(&[]),
        },
        Record::Pages {
            session,
            pages: PageRefs::from_written(&pages),
        },
        Record::Connected {
            session,
            terms: Terms::default(),
        },
        Record::Disconnected {
            session,
            unix_ms: 5,
            expiry_s: 6,
            has_will: true,
            started: 7,
        },
        Record::WillDone { session },
        Record::Ended { session },
        Record::Unsubscribed { session, filter: "a" },
        Record::Replayed { session, filter: "a" },
        Record::Group {
            group,
            share_name: "g",
            filter: "f",
        },
        Record::GroupEntries {
            group,
            messages: Positions::from_written(&[1, 2]),
        },
        Record::GroupEnded { group },
        Record::Returned {
            session,
            seq: 1,
            group,
            message,
        },
        Record::GroupDropped { group, message },
        Record::Retained {
            message,
            expires_unix_ms: None,
            topic: "t",
        },
        Record::RetainedGone { topic: "t" },
        Record::Delayed {
            message,
            due_unix_ms: 1,
        },
        Record::DelayedDone { message },
    ] {
        round_trip(&record);
    }
}
