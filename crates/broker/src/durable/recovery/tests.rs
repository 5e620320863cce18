//! Short sequences of records and the state that recovery builds from them. The records are at positions 100, 101, and
//! so on.

use super::*;
use crate::delivery::DeliveryTag;
use crate::durable::entry_list::EntryList;
use crate::durable::record::{
    AcknowledgedEntry, ConnectSettings, Entries, GroupKey, PackedEntries, PageRef, PageRefs, RetainedTerms,
    SessionRecord, SettledItems, SizedMessages, SubscriptionRecord, WillRecord,
};
use crate::provenance::Provenance;
use mqtt::QoS;
use std::fmt::Write;

mod node;
mod random;

const S: SessionKey = SessionKey(1);
const G: GroupKey = GroupKey(2);
const UNKNOWN: SessionKey = SessionKey(77);

type Bytes = Vec<u8>;

fn recover(records: &[Bytes]) -> RecoveredState {
    let mut recovery = Recovery::new();
    for (position, bytes) in (100..).map(RecordPosition).zip(records) {
        recovery.record(position, bytes).unwrap();
    }
    recovery.finish()
}

fn put(record: &JournalRecord<'_>) -> Bytes {
    let mut bytes = Vec::new();
    record.put(&mut bytes);
    bytes
}

fn session_record(next_seq: u64) -> SessionRecord<'static> {
    SessionRecord {
        session: S,
        client_id: "c",
        created_unix_ms: 10,
        left_unix_ms: None,
        terms: ConnectSettings {
            expiry_s: 60,
            will: Some(WillRecord {
                topic: "w",
                payload: b"",
                properties: b"",
                qos: QoS::AtMostOnce,
                retain: false,
                delay_s: 5,
                message_expiry_s: None,
            }),
            ..ConnectSettings::default()
        },
        next_seq,
        started: 0,
        subscriptions: Vec::new(),
        received: Vec::new(),
    }
}

fn session(next_seq: u64) -> Bytes {
    put(&JournalRecord::Session(session_record(next_seq)))
}

fn target(seq: u64) -> RecordTarget {
    RecordTarget {
        to: Recipient::Session(S),
        seq,
        qos: QoS::AtLeastOnce,
        retain: false,
        group: None,
        identifiers: Vec::new(),
    }
}

fn member(seq: u64) -> RecordTarget {
    RecordTarget {
        group: Some(G),
        ..target(seq)
    }
}

fn to_group() -> RecordTarget {
    RecordTarget {
        to: Recipient::Group(G),
        ..target(0)
    }
}

fn targets(targets: &[RecordTarget]) -> Bytes {
    let mut bytes = Vec::new();
    targets.iter().for_each(|target| target.put(&mut bytes));
    bytes
}

fn message_with(list: &[RecordTarget], set: impl FnOnce(&mut MessageRecord<'_>)) -> Bytes {
    let targets = targets(list);
    let mut message = MessageRecord {
        topic: "t",
        payload: b"p",
        properties: b"",
        qos: QoS::AtLeastOnce,
        retain: false,
        expires_unix_ms: None,
        publisher_hash: 0,
        shard: 0,
        others: 0,
        due_unix_ms: None,
        retained: None,
        publisher: None,
        provenance: Provenance::NONE,
        owner: None,
        targets: Targets::from_written(&targets),
    };
    set(&mut message);
    put(&JournalRecord::Message(message))
}

fn message(list: &[RecordTarget]) -> Bytes {
    message_with(list, |_| {})
}

/// Returns a message with the size that all messages of these tests have.
fn sized(message: u64) -> SizedMessage {
    SizedMessage {
        position: RecordPosition(message),
        size: MessageSize::of(stored_bytes_of("t", b"", b"", Provenance::NONE)),
    }
}

fn queued(message: u64, list: &[RecordTarget]) -> Bytes {
    let targets = targets(list);
    put(&JournalRecord::Queued {
        message: RecordPosition(message),
        size: sized(message).size,
        targets: Targets::from_written(&targets),
    })
}

fn entries(list: &[(u64, u64)]) -> Bytes {
    let mut bytes = Vec::new();
    for (message, seq) in list {
        entry_of(sized(*message), target(*seq)).put(&mut bytes);
    }
    put(&JournalRecord::Entries {
        session: S,
        entries: Entries::from_written(&bytes),
    })
}

fn settled(seq: u64, is_release: bool) -> Bytes {
    let mut bytes = Vec::new();
    let session = S;
    AcknowledgedEntry {
        session,
        seq,
        is_release,
    }
    .put(&mut bytes);
    put(&JournalRecord::Settled(SettledItems::from_written(&bytes)))
}

fn group() -> Bytes {
    put(&JournalRecord::Group {
        group: G,
        share_name: "n",
        filter: "f",
    })
}

fn group_entries(list: &[u64]) -> Bytes {
    let mut bytes = Vec::new();
    list.iter().for_each(|at| sized(*at).put(&mut bytes));
    put(&JournalRecord::GroupEntries {
        group: G,
        messages: SizedMessages::from_written(&bytes),
    })
}

fn returned(seq: u64, message: u64) -> Bytes {
    put(&JournalRecord::Returned {
        session: S,
        seq,
        group: G,
        message: RecordPosition(message),
        size: sized(message).size,
    })
}

fn boot(unix_ms: u64) -> Bytes {
    put(&JournalRecord::Boot {
        unix_ms,
        shards: 4,
        last_key: 9,
    })
}

fn routed(by: u16, up_to: u64) -> Bytes {
    put(&JournalRecord::Routed {
        by,
        from: 0,
        up_to: RecordPosition(up_to),
    })
}

fn disconnected(unix_ms: u64, has_will: bool) -> Bytes {
    put(&JournalRecord::Disconnected {
        session: S,
        unix_ms,
        expiry_s: 7,
        has_will,
        started: 3,
    })
}

fn retained(message: u64, topic: &str) -> Bytes {
    put(&JournalRecord::Retained {
        message: RecordPosition(message),
        expires_unix_ms: Some(5),
        topic,
    })
}

/// Formats queues and other lists of positions: `seq@message`, `r` released, `g` of a group, `#` a subscription
/// identifier.
fn show(state: &RecoveredState) -> String {
    let mut text = String::new();
    for session in &state.sessions {
        write!(text, "s{}", session.key.0).unwrap();
        for entry in &session.entries {
            write!(text, " {}@{}", entry.seq(), entry.message().0).unwrap();
            text.push_str(if entry.is_released() { "r" } else { "" });
            let tag = session.tags.get(entry.seq());
            assert_eq!(entry.is_tagged(), tag.is_some());
            if let Some(group) = tag.and_then(StoredTag::group) {
                write!(text, "g{}", group.0).unwrap();
            }
            for identifier in tag.map_or(&[][..], StoredTag::identifiers) {
                write!(text, "#{identifier}").unwrap();
            }
        }
        for page in session.pages.iter() {
            write!(text, " [{}+{} at {}]", page.first, page.count, page.at.0).unwrap();
        }
        write!(text, " next {}; ", session.next_seq).unwrap();
    }
    for group in &state.groups {
        let messages: Vec<u64> = group.messages.iter().map(|message| message.position.0).collect();
        write!(text, "g{} {messages:?}; ", group.key.0).unwrap();
    }
    for retained in &state.retained {
        write!(text, "{}={}; ", retained.topic, retained.message.0).unwrap();
    }
    for (message, due) in &state.delayed {
        write!(text, "{} due {due}; ", message.0).unwrap();
    }
    for unrouted in &state.unrouted {
        write!(text, "{} for {:b}; ", unrouted.message.0, unrouted.shards).unwrap();
    }
    if let Some(lowest) = state.lowest {
        write!(text, "from {}", lowest.0).unwrap();
    }
    text.trim_end_matches([' ', ';']).to_owned()
}

fn assert_table(table: &[(&str, &[Bytes], &str)]) {
    for (name, records, expected) in table {
        assert_eq!(show(&recover(records)), *expected, "{name}");
    }
}

#[test]
fn queue_has_the_unacknowledged_messages() {
    let released = &[
        session(1),
        message(&[target(1)]),
        message(&[target(2)]),
        settled(1, true),
    ];
    assert_table(&[
        ("nothing", &[], ""),
        ("a session", &[session(1)], "s1 next 1"),
        ("unknown session", &[message(&[target(1)]), session(2)], "s1 next 2"),
        (
            "a message",
            &[session(1), message(&[target(1)])],
            "s1 1@101 next 2; from 101",
        ),
        (
            "queued by a later record",
            &[session(1), queued(50, &[target(1)])],
            "s1 1@50 next 2; from 50",
        ),
        (
            "done",
            &[session(1), message(&[target(1)]), settled(1, false)],
            "s1 next 2",
        ),
        (
            "acknowledged in the middle",
            &[
                session(1),
                message(&[target(1)]),
                message(&[target(2)]),
                message(&[target(3)]),
                settled(2, false),
            ],
            "s1 1@101 3@103 next 4; from 101",
        ),
        (
            "a released entry needs no message",
            released,
            "s1 1@101r 2@102 next 3; from 102",
        ),
        (
            "released and acknowledged",
            &[session(1), message(&[target(1)]), settled(1, true), settled(1, false)],
            "s1 next 2",
        ),
        (
            "ended",
            &[
                session(1),
                message(&[target(1)]),
                put(&JournalRecord::Ended { session: S }),
            ],
            "",
        ),
        (
            "twice",
            &[session(1), message(&[target(1)]), queued(50, &[target(1)])],
            "s1 1@50 next 2; from 50",
        ),
    ]);
}

#[test]
fn checkpoint_between_other_records_changes_nothing() {
    assert_table(&[
        (
            "entries after a newer message",
            &[session(3), message(&[target(3)]), entries(&[(50, 1), (51, 2)])],
            "s1 1@50 2@51 3@101 next 4; from 50",
        ),
        (
            "in parts, with an acknowledgement between them",
            &[session(3), entries(&[(50, 1)]), settled(1, false), entries(&[(51, 2)])],
            "s1 2@51 next 3; from 51",
        ),
        (
            "a known session keeps its queue",
            &[session(1), message(&[target(1)]), session(2)],
            "s1 1@101 next 2; from 101",
        ),
        (
            "entries that are known already",
            &[
                session(1),
                message(&[target(1)]),
                message(&[target(2)]),
                settled(1, false),
                session(3),
                entries(&[(102, 2)]),
            ],
            "s1 2@102 next 3; from 102",
        ),
        (
            "a group snapshot after a newer message",
            &[group(), message(&[to_group()]), group_entries(&[50, 60, 101])],
            "g2 [50, 60, 101]; from 50",
        ),
        (
            "a known group keeps its queue",
            &[group(), message(&[to_group()]), group()],
            "g2 [101]; from 101",
        ),
        (
            "entries of an unknown session and group",
            &[entries(&[(50, 1)]), group_entries(&[50])],
            "",
        ),
    ]);
}

fn page(seqs: std::ops::Range<u64>, is_loaded: bool) -> Bytes {
    let mut list = EntryList::default();
    list.extend(seqs.map(|seq| {
        let entry = StoredEntry::of(RecordPosition(40 + seq), seq, QoS::AtLeastOnce, false);
        (entry.sized(sized(40 + seq).size), DeliveryTag::None)
    }));
    let mut bytes = Vec::new();
    list.pack(&mut bytes);
    let (session, entries) = (S, PackedEntries(&bytes));
    put(&match is_loaded {
        false => JournalRecord::Page { session, entries },
        true => JournalRecord::PageLoaded { session, entries },
    })
}

fn pages(list: &[PageRef]) -> Bytes {
    let mut bytes = Vec::new();
    list.iter().for_each(|page| page.put(&mut bytes));
    put(&JournalRecord::Pages {
        session: S,
        pages: PageRefs::from_written(&bytes),
    })
}

#[test]
fn entries_of_a_page_are_in_no_list_until_it_is_loaded() {
    let known = [session(1), entries(&[(41, 1), (42, 2), (43, 3), (44, 4)])];
    let with = |records: &[Bytes]| [&known[..], records].concat();
    let whole = PageRef {
        at: RecordPosition(90),
        first: 2,
        count: 3,
        skipped: 0,
        queued_qos0: 0,
        oldest: RecordPosition(42),
        bytes: 300,
    };
    assert_table(&[
        (
            "paged",
            &with(&[page(2..4, false)]),
            "s1 1@41 4@44 [2+2 at 102] next 5; from 41",
        ),
        ("page of an unknown session", &[page(2..4, false)], ""),
        (
            "loaded",
            &with(&[page(2..4, false), page(2..4, true)]),
            "s1 1@41 2@42 3@43 4@44 next 5; from 41",
        ),
        (
            "dropped in order",
            &with(&[page(2..4, false), settled(1, false), settled(2, false)]),
            "s1 4@44 [3+1 at 102] next 5; from 42",
        ),
        (
            "all entries dropped",
            &with(&[page(2..4, false), settled(2, false), settled(3, false)]),
            "s1 1@41 4@44 next 5; from 41",
        ),
        (
            "rewritten among other pages",
            &with(&[page(1..3, false), page(3..5, false), page(1..3, false)]),
            "s1 [1+2 at 104] [3+2 at 103] next 5; from 41",
        ),
        (
            "listed by a checkpoint",
            &[session(1), entries(&[(41, 1)]), pages(&[whole]), entries(&[(45, 5)])],
            "s1 1@41 5@45 [2+3 at 90] next 6; from 41",
        ),
        (
            "listed by a checkpoint with another position",
            &with(&[page(2..4, false), pages(&[whole])]),
            "s1 1@41 [2+3 at 90] next 5; from 41",
        ),
    ]);
}

/// Dropped entries reduce the bytes of a page by their mean. Loading the page gives the entries their own sizes.
#[test]
fn bytes_of_a_page_are_those_of_its_remaining_entries() {
    let known = [
        session(1),
        entries(&[(41, 1), (42, 2), (43, 3), (44, 4)]),
        page(1..4, false),
    ];
    let bytes_after = |records: &[Bytes]| {
        let mut recovery = Recovery::new();
        for (at, record) in known.iter().chain(records).enumerate() {
            recovery.record(RecordPosition(100 + at as u64), record).unwrap();
        }
        let session = recovery.finish().sessions.remove(0);
        let pages = session.pages.iter().map(|page| page.bytes).sum::<u64>() as usize;
        (pages, session.entries.iter().map(|entry| entry.size().bytes()).sum())
    };
    let one = sized(0).size.bytes();
    assert!(one > 0);
    assert_eq!(bytes_after(&[]), (3 * one, one));
    assert_eq!(bytes_after(&[settled(1, false)]), (2 * one, one));
    assert_eq!(bytes_after(&[settled(1, false), page(2..4, true)]), (0, 3 * one));
    assert_eq!(
        bytes_after(&[settled(1, false), settled(2, false), settled(3, false)]),
        (0, one)
    );
}

#[test]
fn invalid_page_is_an_error() {
    let gap = [page(2..4, false), page(9..11, false)];
    let joined: Bytes = [&gap[0][..], &gap[1][2..]].concat();
    for bytes in [
        page(3..3, false),
        joined,
        pages(&[PageRef {
            at: RecordPosition(1),
            first: u64::MAX,
            count: 2,
            skipped: 0,
            queued_qos0: 0,
            oldest: RecordPosition(1),
            bytes: 0,
        }]),
    ] {
        let mut recovery = Recovery::new();
        recovery.record(RecordPosition(99), &session(1)).unwrap();
        assert!(recovery.record(RecordPosition(100), &bytes).is_err());
    }
}

#[test]
fn group_holds_a_message_until_a_member_receives_it() {
    let given_back = [session(1), message(&[member(1)]), returned(1, 101)];
    let with = |more: &[Bytes]| [&given_back[..], more].concat();
    let dropped = put(&JournalRecord::GroupDropped {
        group: G,
        message: RecordPosition(101),
    });
    let ended = put(&JournalRecord::GroupEnded { group: G });
    assert_table(&[
        (
            "queued for a member",
            &[session(1), group(), message(&[to_group()]), queued(102, &[member(1)])],
            "s1 1@102g2 next 2; g2 []; from 102",
        ),
        (
            "queued for an unknown member",
            &[
                group(),
                message(&[to_group()]),
                queued(
                    101,
                    &[RecordTarget {
                        to: Recipient::Session(UNKNOWN),
                        ..member(1)
                    }],
                ),
            ],
            "g2 []",
        ),
        ("returned", &with(&[]), "s1 next 2"),
        (
            "returned before the group is known",
            &with(&[group()]),
            "s1 next 2; g2 [101]; from 101",
        ),
        (
            "the snapshot contains the returned message",
            &with(&[group(), group_entries(&[50, 101])]),
            "s1 next 2; g2 [50, 101]; from 50",
        ),
        (
            "held before the group is known, because it retains the message",
            &[message(&[to_group()]), group(), group_entries(&[50])],
            "g2 [50, 100]; from 50",
        ),
        (
            "held and queued before the group is known",
            &[session(1), message(&[to_group()]), queued(101, &[member(1)]), group()],
            "s1 1@101g2 next 2; g2 []; from 101",
        ),
        (
            "returned and queued before the group is known",
            &with(&[queued(101, &[member(2)]), group()]),
            "s1 2@101g2 next 3; g2 []; from 101",
        ),
        (
            "dropped before the group is known",
            &with(&[dropped.clone(), group()]),
            "s1 next 2; g2 []",
        ),
        ("dropped", &with(&[group(), dropped.clone()]), "s1 next 2; g2 []"),
        (
            "moved by an unfinished checkpoint",
            &[group(), message(&[to_group()]), message(&[to_group()]), dropped.clone()],
            "g2 [102]; from 102",
        ),
        ("the group ends", &with(&[group(), ended.clone()]), "s1 next 2"),
        (
            "the group ends before it is known",
            &with(&[ended, group()]),
            "s1 next 2; g2 []",
        ),
        (
            "returned by an unknown session",
            &[group(), returned(1, 60), returned(2, 50)],
            "g2 [50, 60]; from 50",
        ),
        (
            "the snapshot is older than the delivery to a member",
            &[session(1), message(&[member(1)]), group(), group_entries(&[101])],
            "s1 1@101g2 next 2; g2 []; from 101",
        ),
        (
            "the snapshot is older than the acknowledgement",
            &[
                session(1),
                message(&[member(1)]),
                group(),
                settled(1, false),
                group_entries(&[101]),
            ],
            "s1 next 2; g2 []",
        ),
        (
            "the snapshot is older than the second delivery",
            &[group(), returned(1, 50), queued(50, &[member(1)]), group_entries(&[50])],
            "g2 []",
        ),
        (
            "the snapshot is newer than the return",
            &[
                queued(50, &[member(1)]),
                group(),
                returned(1, 50),
                group_entries(&[40, 50]),
            ],
            "g2 [40, 50]; from 40",
        ),
    ]);
}

#[test]
fn unnumbered_messages_are_numbered_when_the_process_ends() {
    let held = [session(5), message(&[target(0)]), message(&[target(0)])];
    let with = |more: &[Bytes]| [&held[..], more].concat();
    assert_table(&[
        ("the records end", &with(&[]), "s1 5@101 6@102 next 7; from 101"),
        (
            "one is numbered already",
            &with(&[queued(101, &[target(5)])]),
            "s1 5@101 6@102 next 7; from 101",
        ),
        (
            "numbers stay the same after a restart",
            &with(&[boot(50), settled(5, false)]),
            "s1 6@102 next 7; from 102",
        ),
        (
            "listed by a checkpoint",
            &with(&[entries(&[(101, 0), (102, 0)])]),
            "s1 5@101 6@102 next 7; from 101",
        ),
        (
            "the session ends",
            &with(&[put(&JournalRecord::Ended { session: S }), session(5)]),
            "s1 next 5",
        ),
        ("returned", &with(&[returned(0, 101), returned(0, 102)]), "s1 next 5"),
        (
            "in order of arrival, not of position",
            &with(&[queued(50, &[target(0)])]),
            "s1 5@101 6@102 7@50 next 8; from 50",
        ),
        (
            "in the order of a checkpoint's entries",
            &[session(5), queued(60, &[target(0)]), entries(&[(70, 0), (60, 0)])],
            "s1 5@70 6@60 next 7; from 60",
        ),
    ]);
}

#[test]
fn last_retained_message_of_a_topic_is_recovered() {
    let publish = |payload: &'static [u8]| {
        message_with(&[], |message| {
            message.payload = payload;
            message.retained = Some(RetainedTerms { expires_unix_ms: None });
        })
    };
    assert_table(&[
        ("kept", &[publish(b"x")], "t=100; from 100"),
        ("replaced", &[publish(b"x"), publish(b"y")], "t=101; from 101"),
        ("cleared", &[publish(b"x"), publish(b"")], ""),
        (
            "stored by the owner of the topic",
            &[retained(50, "u"), publish(b"x")],
            "u=50; t=101; from 50",
        ),
        (
            "cleared by an empty payload",
            &[publish(b"x"), retained(50, "t")],
            "t=50; from 50",
        ),
        (
            "gone",
            &[
                retained(50, "u"),
                retained(51, "v"),
                put(&JournalRecord::RetainedCleared { topic: "u" }),
            ],
            "v=51; from 51",
        ),
    ]);
}

#[test]
fn delayed_message_is_recovered_until_it_is_published() {
    let delayed = message_with(&[], |message| message.due_unix_ms = Some(7));
    let known = put(&JournalRecord::Delayed {
        message: RecordPosition(50),
        due_unix_ms: 8,
    });
    let done = put(&JournalRecord::DelayedDone {
        message: RecordPosition(101),
    });
    assert_table(&[
        ("two", &[known.clone(), delayed.clone()], "50 due 8; 101 due 7; from 50"),
        ("one is published", &[known, delayed, done], "50 due 8; from 50"),
    ]);
}

#[test]
fn message_is_unrouted_until_each_shard_has_routed_it() {
    let to = |others| message_with(&[], move |message| message.others = others);
    let two = [to(0b110), to(0b110)];
    let with = |more: &[Bytes]| [&two[..], more].concat();
    assert_table(&[
        ("routed by no shard", &with(&[]), "100 for 110; 101 for 110; from 100"),
        (
            "routed by one shard",
            &with(&[routed(1, 101)]),
            "100 for 100; 101 for 100; from 100",
        ),
        (
            "partly routed by each shard",
            &with(&[routed(1, 101), routed(2, 100)]),
            "101 for 100; from 101",
        ),
        ("routed by all shards", &with(&[routed(1, 101), routed(2, 101)]), ""),
        (
            "an older position changes nothing",
            &with(&[routed(1, 101), routed(1, 100), routed(2, 101)]),
            "",
        ),
        ("a restart", &with(&[boot(1)]), ""),
        (
            "a message after the restart",
            &with(&[boot(1), to(1)]),
            "103 for 1; from 103",
        ),
    ]);
}

#[test]
fn connected_session_counts_as_disconnected_since_restart() {
    let left = |records: &[Bytes]| recover(records).sessions[0].left_unix_ms;
    assert_eq!(left(&[session(1)]), None);
    assert_eq!(left(&[session(1), boot(50)]), Some(50));
    assert_eq!(left(&[session(1), disconnected(40, true), boot(50)]), Some(40));
    assert_eq!(
        left(&[boot(60), session(1), boot(50)]),
        Some(60),
        "the clock was set back"
    );
    let connected = put(&JournalRecord::Connected {
        session: S,
        terms: ConnectSettings::default(),
    });
    let state = recover(&[session(1), disconnected(40, true), connected]);
    assert_eq!(state.sessions[0].left_unix_ms, None);
    assert_eq!(state.sessions[0].terms, RecoveredTerms::default());
    assert_eq!(state.latest_unix_ms, 40);
}

#[test]
fn any_message_may_have_been_sent_to_a_lost_connection() {
    let started = |records: &[Bytes]| recover(records).sessions[0].started;
    assert_eq!(started(&[session(9), disconnected(40, true), boot(50)]), 3);
    assert_eq!(started(&[session(9), boot(50)]), 8);
    let long: Vec<(u64, u64)> = (1..=70_000).map(|n| (n, n)).collect();
    assert_eq!(started(&[session(80_000), entries(&long), boot(50)]), 65_535);
}

#[test]
fn will_is_removed_when_published_or_withdrawn() {
    let will = |records: &[Bytes]| recover(records).sessions[0].terms.will.is_some();
    assert!(will(&[session(1), disconnected(40, true), boot(50)]));
    assert!(!will(&[session(1), disconnected(40, false)]));
    assert!(!will(&[session(1), put(&JournalRecord::WillPublished { session: S })]));
}

#[test]
fn publisher_packet_ids_are_in_use_until_freed() {
    let publish = |packet_id| message_with(&[], move |message| message.publisher = Some((S, packet_id)));
    let freed = put(&JournalRecord::PacketIdFreed {
        session: S,
        packet_id: 8,
    });
    let state = recover(&[
        publish(1),
        session(1),
        publish(9),
        publish(8),
        publish(7),
        publish(9),
        freed,
    ]);
    assert_eq!(state.sessions[0].received, [7, 9]);
}

#[test]
fn subscriptions_are_added_changed_and_removed() {
    let subscribed = |filter, identifier| {
        put(&JournalRecord::Subscribed {
            session: S,
            subscription: SubscriptionRecord {
                filter,
                options: Default::default(),
                identifier,
                is_replaying: false,
            },
        })
    };
    let gone = put(&JournalRecord::Unsubscribed {
        session: S,
        filter: "b",
    });
    let records = [
        subscribed("x", None),
        session(1),
        subscribed("b", None),
        subscribed("a", None),
        subscribed("a", Some(3)),
        gone,
    ];
    let state = recover(&records);
    let left: Vec<_> = state.sessions[0]
        .subscriptions
        .iter()
        .map(|(filter, s)| (filter, s.identifier))
        .collect();
    assert_eq!(left, [("a", Some(3))]);
}

/// The record that an older session of the client ended is lost.
#[test]
fn older_session_of_a_client_is_ended_after_a_loss() {
    let session = |key: u64, client_id: &'static str| {
        put(&JournalRecord::Session(SessionRecord {
            session: SessionKey(key),
            client_id,
            ..session_record(1)
        }))
    };
    let mut state = recover(&[session(3, "a"), session(5, "b"), session(9, "a"), session(7, "a")]);
    assert_eq!(state.end_replaced_sessions(), 2);
    let left: Vec<u64> = state.sessions.iter().map(|session| session.key.0).collect();
    assert_eq!(left, [5, 9]);
    assert_eq!(state.end_replaced_sessions(), 0);
}

#[test]
fn tags_are_found_by_entry_number() {
    let with = |seq, group, identifiers: &[u32]| RecordTarget {
        group,
        identifiers: identifiers.to_vec(),
        ..target(seq)
    };
    let records = [
        session(1),
        message(&[with(1, None, &[5])]),
        message(&[with(2, None, &[])]),
        message(&[with(3, Some(G), &[6, 7])]),
        message(&[with(4, Some(G), &[])]),
    ];
    assert_eq!(
        show(&recover(&records)),
        "s1 1@101#5 2@102 3@103g2#6#7 4@104g2 next 5; from 101"
    );
    let fewer = [&records[..], &[settled(3, false), settled(1, false)]].concat();
    assert_eq!(show(&recover(&fewer)), "s1 2@102 4@104g2 next 5; from 102");
}
