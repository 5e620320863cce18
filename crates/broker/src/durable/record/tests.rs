//! Records survive a round trip, and truncated records are errors.

use mqtt::RetainHandling;

use super::*;

fn round_trip(record: &JournalRecord<'_>) {
    let mut bytes = Vec::new();
    record.put(&mut bytes);
    assert_eq!(JournalRecord::read(&bytes).as_ref(), Ok(record));
    for end in 0..bytes.len() {
        // A truncated record may decode as another record or fail; it must not panic.
        let _ = JournalRecord::read(&bytes[..end]);
    }
}

fn targets() -> Vec<u8> {
    let mut bytes = Vec::new();
    for to in [Recipient::Session(SessionKey(7)), Recipient::Group(GroupKey(1 << 40))] {
        RecordTarget {
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
fn message_with_all_fields_survives_a_round_trip() {
    let targets = targets();
    round_trip(&JournalRecord::Message(MessageRecord {
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
        owner: Some("user:a"),
        targets: Targets::from_written(&targets),
    }));
}

/// Most messages have no owner. Their records have the same kind and layout as in version 1.
#[test]
fn message_without_owner_has_the_record_of_version_1() {
    let message = MessageRecord {
        topic: "t",
        payload: b"p",
        properties: b"",
        qos: QoS::AtLeastOnce,
        retain: false,
        expires_unix_ms: None,
        publisher_hash: 5,
        shard: 1,
        others: 0,
        due_unix_ms: None,
        retained: None,
        publisher: None,
        provenance: Provenance::NONE,
        owner: None,
        targets: Targets::default(),
    };
    let mut bytes = Vec::new();
    message.put(&mut bytes);
    assert_eq!(bytes, [2, 1, 1, 0, 5, 1, b't', 0, 0, b'p']);
    round_trip(&JournalRecord::Message(message));
}

#[test]
fn address_of_a_session_survives_a_round_trip() {
    for address in ["192.0.2.1", "2001:db8::1"] {
        let terms = ConnectSettings {
            address: Some(address.parse().unwrap()),
            version: 4,
            ..ConnectSettings::default()
        };
        let session = SessionKey(1);
        round_trip(&JournalRecord::Connected { session, terms });
    }
}

#[test]
fn targets_are_decoded_one_by_one() {
    let bytes = targets();
    let read: Vec<_> = Targets::from_written(&bytes).iter().map(Result::unwrap).collect();
    assert_eq!(read.len(), 2);
    assert_eq!(read[1].to, Recipient::Group(GroupKey(1 << 40)));
    assert_eq!(read[0].identifiers, [1, 268_435_455]);
    let cut = &bytes[..bytes.len() - 1];
    assert!(Targets::from_written(cut).iter().last().unwrap().is_err());
}

#[test]
fn session_with_all_fields_survives_a_round_trip() {
    round_trip(&JournalRecord::Session(SessionRecord {
        session: SessionKey(1),
        client_id: "sensor-1",
        created_unix_ms: 1,
        left_unix_ms: Some(0),
        terms: ConnectSettings {
            user_name: Some("u"),
            address: None,
            version: 5,
            is_superuser: true,
            has_grant: true,
            is_bridge: false,
            expiry_s: u32::MAX,
            mountpoint: Some("tenants/acme/"),
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

/// Records of version 1 and 2 have no sizes.
#[test]
fn records_without_sizes_are_read() {
    let (message, group, size) = (RecordPosition(5), GroupKey(7), MessageSize::UNKNOWN);
    let (session, targets) = (SessionKey(0), Targets::default());
    let returned = JournalRecord::Returned {
        session,
        seq: 1,
        group,
        message,
        size,
    };
    assert_eq!(
        JournalRecord::read(&[3, 5]),
        Ok(JournalRecord::Queued { message, size, targets })
    );
    assert_eq!(JournalRecord::read(&[18, 0, 1, 7, 5]), Ok(returned));
    let Ok(JournalRecord::GroupEntries { messages, .. }) = JournalRecord::read(&[16, 7, 5, 6]) else {
        panic!("kind 16 is `GroupEntries`");
    };
    let positions: Vec<u64> = messages.iter().map(|message| message.unwrap().position.0).collect();
    assert_eq!(positions, [5, 6]);
    let Ok(JournalRecord::Entries { entries, .. }) = JournalRecord::read(&[8, 1, 1, 5, 2, 1, 6, 3]) else {
        panic!("kind 8 is `Entries`");
    };
    let entries: Vec<SessionEntry> = entries.iter().map(Result::unwrap).collect();
    assert_eq!(
        entries.iter().map(|entry| (entry.seq, entry.size)).collect::<Vec<_>>(),
        [(2, size), (3, size)]
    );
    let Ok(JournalRecord::Pages { pages, .. }) = JournalRecord::read(&[29, 1, 9, 4, 2, 0, 1, 5]) else {
        panic!("kind 29 is `Pages`");
    };
    let page = pages.iter().next().unwrap().unwrap();
    assert_eq!((page.first, page.count, page.oldest, page.bytes), (4, 2, message, 0));
}

#[test]
fn small_records_survive_a_round_trip() {
    let (session, group, message) = (SessionKey(300), GroupKey(2), RecordPosition(1 << 50));
    let mut settled = Vec::new();
    AcknowledgedEntry {
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
        oldest: RecordPosition(7),
        bytes: 1 << 33,
    };
    page.put(&mut pages);
    assert_eq!(PageRefs::from_written(&pages).iter().next(), Some(Ok(page)));
    let mut entries = Vec::new();
    SessionEntry {
        message,
        seq: 4,
        qos: QoS::AtLeastOnce,
        retain: false,
        is_released: true,
        size: MessageSize::of(1000),
        group: None,
        identifiers: Vec::new(),
    }
    .put(&mut entries);
    for record in [
        JournalRecord::Boot {
            unix_ms: 1,
            shards: 64,
            last_key: 9,
        },
        JournalRecord::Checkpoint {
            unix_ms: 1,
            shards: 64,
            last_key: 9,
        },
        JournalRecord::Time {
            unix_ms: 1,
            ahead_ms: 1 << 40,
        },
        JournalRecord::Queued {
            message,
            size: MessageSize::of(200_000),
            targets: Targets::from_written(&targets()),
        },
        JournalRecord::Routed {
            by: 1,
            from: 0,
            up_to: message,
        },
        JournalRecord::Settled(SettledItems::from_written(&settled)),
        JournalRecord::PacketIdFreed { session, packet_id: 1 },
        JournalRecord::Entries {
            session,
            entries: Entries::from_written(&entries),
        },
        JournalRecord::Page {
            session,
            entries: PackedEntries(&[1, 2, 3]),
        },
        JournalRecord::PageLoaded {
            session,
            entries: PackedEntries(&[]),
        },
        JournalRecord::Pages {
            session,
            pages: PageRefs::from_written(&pages),
        },
        JournalRecord::Connected {
            session,
            terms: ConnectSettings::default(),
        },
        JournalRecord::Disconnected {
            session,
            unix_ms: 5,
            expiry_s: 6,
            has_will: true,
            started: 7,
        },
        JournalRecord::WillPublished { session },
        JournalRecord::Ended { session },
        JournalRecord::Unsubscribed { session, filter: "a" },
        JournalRecord::Replayed { session, filter: "a" },
        JournalRecord::Group {
            group,
            share_name: "g",
            filter: "f",
        },
        JournalRecord::GroupEntries {
            group,
            messages: SizedMessages::from_written(&[1, 2]),
        },
        JournalRecord::GroupEnded { group },
        JournalRecord::Returned {
            session,
            seq: 1,
            group,
            message,
            size: MessageSize::of(1),
        },
        JournalRecord::GroupDropped { group, message },
        JournalRecord::Retained {
            message,
            expires_unix_ms: None,
            topic: "t",
        },
        JournalRecord::RetainedCleared { topic: "t" },
        JournalRecord::Delayed {
            message,
            due_unix_ms: 1,
        },
        JournalRecord::DelayedDone { message },
    ] {
        round_trip(&record);
    }
}

#[test]
fn time_without_a_step_has_the_former_layout() {
    let record = JournalRecord::Time {
        unix_ms: 5,
        ahead_ms: 0,
    };
    let mut bytes = Vec::new();
    record.put(&mut bytes);
    assert_eq!(bytes, [32, 5]);
    assert_eq!(JournalRecord::read(&bytes), Ok(record));
}
