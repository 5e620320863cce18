//! Random lives of a node, told twice: as records, and as the state in plain maps that no record is read for. Recovery must come to
//! that state from the beginning and from every checkpoint that was finished, whatever came while it was written.

mod checkpoint;
mod node;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use node::Node;

type Log = Vec<Bytes>;

/// What recovery must come to, in comparable form.
#[derive(Debug, Default, PartialEq, Clone)]
struct View {
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
    entries: BTreeMap<u64, Item>,
    /// By message.
    /// In the order in which they came.
    unnumbered: Vec<(u64, Item)>,
}

#[derive(Debug, Default, PartialEq, Clone)]
struct Item {
    message: u64,
    is_released: bool,
    group: Option<u64>,
    identifiers: Vec<u32>,
}

fn recovered(log: &[Bytes], from: usize) -> View {
    let mut recovery = Recovery::new();
    for (at, bytes) in log.iter().enumerate().skip(from) {
        recovery.record(Position(100 + at as u64), bytes).unwrap();
    }
    view(recovery.finish())
}

fn view(state: Recovered) -> View {
    View {
        sessions: state
            .sessions
            .iter()
            .map(|session| (session.key.0, session_view(session)))
            .collect(),
        groups: state
            .groups
            .iter()
            .map(|g| (g.key.0, g.messages.iter().map(|m| m.0).collect()))
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

fn session_view(session: &RecoveredSession) -> SessionView {
    let entries = session.entries.iter().map(|entry| {
        let tag = session.tags.get(entry.seq());
        assert_eq!(entry.is_tagged(), tag.is_some());
        let item = Item {
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
            .map(|s| (s.filter.to_string(), s.identifier))
            .collect(),
        received: session.received.iter().copied().collect(),
        entries: entries.collect(),
        unnumbered: Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_checkpoint_comes_to_the_state_that_was(life in prop::collection::vec((0..30u8, any::<u8>()), 0..250)) {
        let mut node = Node::new();
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
