//! Compares recovery with a model for random histories of a node. The node writes records and, at the same time,
//! updates plain maps. Recovery must reach the state of the maps from the beginning and from every finished checkpoint,
//! with any records in between.

mod checkpoint;
mod node;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use node::ModelNode;

type ModelLog = Vec<Bytes>;

/// Expected result of recovery, in comparable form.
#[derive(Debug, Default, PartialEq, Clone)]
struct ExpectedRecovery {
    sessions: BTreeMap<u64, SessionView>,
    groups: BTreeMap<u64, Vec<u64>>,
    retained: BTreeMap<String, u64>,
    delayed: BTreeMap<u64, u64>,
    unrouted: BTreeMap<u64, u64>,
    shards: u16,
    last_key: u64,
    lowest: Option<u64>,
}

#[derive(Debug, Default, PartialEq, Clone)]
struct SessionView {
    left: Option<u64>,
    expiry_s: u32,
    has_will: bool,
    next_seq: u64,
    started: u64,
    subscriptions: BTreeMap<String, Option<u32>>,
    received: BTreeSet<u16>,
    entries: BTreeMap<u64, ExpectedEntry>,
    /// In order of arrival.
    unnumbered: Vec<(u64, ExpectedEntry)>,
}

#[derive(Debug, Default, PartialEq, Clone)]
struct ExpectedEntry {
    message: u64,
    is_released: bool,
    group: Option<u64>,
    identifiers: Vec<u32>,
}

fn recovered(log: &[Bytes], from: usize) -> ExpectedRecovery {
    let mut recovery = Recovery::new();
    for (at, bytes) in log.iter().enumerate().skip(from) {
        recovery.record(RecordPosition(100 + at as u64), bytes).unwrap();
    }
    view(recovery.finish())
}

fn view(state: RecoveredState) -> ExpectedRecovery {
    ExpectedRecovery {
        sessions: state
            .sessions
            .iter()
            .map(|session| (session.key.0, session_view(session)))
            .collect(),
        groups: state
            .groups
            .iter()
            .map(|g| (g.key.0, g.messages.iter().map(held).collect()))
            .collect(),
        retained: state
            .retained
            .iter()
            .map(|r| (r.topic.to_string(), r.message.0))
            .collect(),
        delayed: state.delayed.iter().map(|(message, due)| (message.0, *due)).collect(),
        unrouted: state.unrouted.iter().map(|u| (u.message.0, u.shards)).collect(),
        shards: state.shards,
        last_key: state.last_key,
        lowest: state.lowest.map(|message| message.0),
    }
}

fn held(message: &SizedMessage) -> u64 {
    assert_eq!(*message, sized(message.position.0));
    message.position.0
}

fn session_view(session: &RecoveredSession) -> SessionView {
    let entries = session.entries.iter().map(|entry| {
        let tag = session.tags.get(entry.seq());
        assert_eq!(entry.is_tagged(), tag.is_some());
        let is_sized = entry.size() == sized(0).size;
        assert!(if entry.is_released() {
            entry.size() == MessageSize::UNKNOWN
        } else {
            is_sized
        });
        let item = ExpectedEntry {
            message: entry.message().0,
            is_released: entry.is_released(),
            group: tag.and_then(StoredTag::group).map(|group| group.0),
            identifiers: tag.map_or(Vec::new(), |tag| tag.identifiers().to_vec()),
        };
        (entry.seq(), item)
    });
    assert!(session.entries.iter().is_sorted_by(|a, b| a.seq() < b.seq()));
    assert!(session.tags.iter().count() <= session.entries.len());
    SessionView {
        left: session.left_unix_ms,
        expiry_s: session.terms.expiry_s,
        has_will: session.terms.will.is_some(),
        next_seq: session.next_seq,
        started: session.started,
        subscriptions: session
            .subscriptions
            .iter()
            .map(|(filter, s)| (filter.to_owned(), s.identifier))
            .collect(),
        received: session.received.iter().copied().collect(),
        entries: entries.collect(),
        unnumbered: Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn recovery_from_every_checkpoint_reaches_the_same_state(life in prop::collection::vec((0..30u8, any::<u8>()), 0..250)) {
        let mut node = ModelNode::new();
        for (action, seed) in life {
            node.act(action, seed);
        }
        let expected = node.expected();
        prop_assert_eq!(&recovered(&node.log, 0), &expected);
        for from in &node.finished {
            prop_assert_eq!(&recovered(&node.log, *from), &expected, "from {}", from);
        }
    }
}
