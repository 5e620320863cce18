//! Tests durable share groups: queued messages, deliveries to members, returned messages, and recovery after a crash.

use std::sync::Arc;

use tidewire_broker::durable::compaction::MovePart;
use tidewire_broker::durable::recovery::RecoveredState;
use tidewire_broker::*;

use super::NOW;
use super::node::{Node, publication};
use crate::rights::ReadRules;

fn held(recovered: &RecoveredState) -> usize {
    recovered.groups.iter().map(|group| group.messages.len()).sum()
}

#[test]
fn group_message_of_a_transient_member_survives_a_crash() {
    let mut node = Node::new("lent", ShardConfig::default());
    let away = node.connect("away", true, 1000);
    node.join(away);
    node.shard.closed(NOW, away, CloseCause::Network);
    let member = node.connect("member", true, 1000);
    node.join(member);
    let publisher = node.connect("publisher", true, 0);
    node.end_tick();
    node.publish(publisher, 1);
    node.connect("member", false, 0);
    node.end_tick();
    let recovered = node.recovered_after_a_crash();
    let held = held(&recovered);
    // The member's session ends when the node starts, and its messages return to the group.
    let given = recovered.sessions.iter().filter(|session| session.terms.expiry_s == 0);
    let given: usize = given.map(|session| session.entries.len()).sum();
    assert_eq!(
        (held, given),
        (0, 1),
        "the publisher has received PUBACK, so the message must not be lost"
    );
}

/// The only member that may read the topic is offline. The group has queued the message, or has not.
#[test]
fn message_assigned_to_an_offline_reader_survives_a_crash() {
    for is_queued in [false, true] {
        let rules = Arc::new(ReadRules::default());
        rules.set("limited", &["a/#"]);
        let mut node = Node::with_access(&format!("assigned-{is_queued}"), ShardConfig::default(), rules);
        let reader = node.connect("reader", true, 1000);
        node.subscribe(reader, "$share/g/#");
        node.shard.closed(NOW, reader, CloseCause::Network);
        let publisher = node.connect("publisher", true, 0);
        node.end_tick();
        if is_queued {
            node.publish(publisher, 1);
            node.end_tick();
        }
        let limited = node.connect("limited", true, 1000);
        node.subscribe(limited, "$share/g/#");
        if !is_queued {
            node.publish(publisher, 1);
        }
        node.end_tick();
        while node.read() {
            node.end_tick();
        }
        assert_eq!(node.sent(limited), [0; 0]);
        let recovered = node.recovered_after_a_crash();
        let entries = recovered
            .sessions
            .iter()
            .map(|session| (&*session.client_id, session.entries.len()));
        let mut entries: Vec<_> = entries.filter(|(client_id, _)| *client_id != "publisher").collect();
        entries.sort_unstable();
        assert_eq!(entries, [("limited", 0), ("reader", 1)], "queued: {is_queued}");
        assert_eq!(held(&recovered), 0, "queued: {is_queued}");
    }
}

/// A member leaves with one message in flight and two queued. Its session has only their journal positions. Then
/// another member joins. Returns the number of messages of the group and of the other member after a crash.
fn left_behind(name: &str, is_read: bool) -> (usize, usize) {
    let config = ShardConfig {
        max_inflight: 1,
        ..ShardConfig::default()
    };
    let mut node = Node::new(name, config);
    let first = node.connect("first", true, 1000);
    node.join(first);
    let publisher = node.connect("publisher", true, 0);
    (1..=3).for_each(|id| node.publish(publisher, id));
    node.shard.closed(NOW, first, CloseCause::Network);
    node.end_tick();
    let other = node.connect("other", true, 1000);
    node.join(other);
    while is_read && node.read() {
        node.end_tick();
    }
    node.end_tick();
    let recovered = node.recovered_after_a_crash();
    let held = held(&recovered);
    let entries = |name: &str| {
        let sessions = recovered.sessions.iter().filter(|session| &*session.client_id == name);
        sessions.map(|session| session.entries.len()).sum::<usize>()
    };
    assert_eq!(entries("first"), 0);
    (held, entries("other"))
}

#[test]
fn journal_only_messages_go_to_the_next_member() {
    assert_eq!(left_behind("comes", true), (0, 3));
}

#[test]
fn returned_messages_belong_to_the_group_before_a_read() {
    assert_eq!(left_behind("unread", false), (3, 0));
}

/// Queues nine messages for a group whose member is offline. The in-memory window of the queue is two.
fn long_queue(name: &str, config: ShardConfig) -> (Node, ConnSlot) {
    let config = ShardConfig {
        group_window: 2,
        ..config
    };
    let mut node = Node::new(name, config);
    let member = node.connect("member", true, 1000);
    node.join(member);
    node.shard.closed(NOW, member, CloseCause::Network);
    let publisher = node.connect("publisher", true, 0);
    for id in 1..=9 {
        node.publish(publisher, id);
        node.end_tick();
    }
    (node, publisher)
}

#[test]
fn group_queue_has_only_the_newest_messages_in_memory() {
    let (mut node, _) = long_queue("held", ShardConfig::default());
    let views = node.shard.inspect().shared_groups(1);
    let bytes_of_one = views[0].queued_bytes / 9;
    assert_eq!((views[0].queued, views[0].queued_bytes), (9, 9 * bytes_of_one));
    assert!(bytes_of_one > 0);
    let stats = node.shard.inspect().stats();
    assert_eq!(
        (stats.queued_messages, stats.queued_bytes),
        (9, 9 * bytes_of_one as u64)
    );
    assert_eq!(node.asked_for(), 0, "no member is connected");
    node.connect("member", false, 1000);
    assert!(node.asked_for() > 0, "the oldest messages are only in the journal");
    let recovered = node.recovered_after_a_crash();
    assert_eq!(recovered.groups[0].messages.len(), 9);
}

#[test]
fn group_queue_is_dispatched_in_parts_before_new_messages() {
    let (mut node, publisher) = long_queue("parts", ShardConfig::default());
    let member = node.connect("member", false, 1000);
    let mut left = Vec::new();
    for step in 0.. {
        let queued = node.shard.inspect().shared_groups(1)[0].queued;
        left.push(queued);
        if queued == 0 {
            break;
        }
        if step == 1 {
            node.publish(publisher, 10);
            assert_eq!(
                node.shard.inspect().shared_groups(1)[0].queued,
                queued + 1,
                "the member has not received it yet"
            );
        }
        node.read();
        node.shard.run_timers(NOW);
        node.end_tick();
    }
    // First the messages that were read from the journal, then those in memory.
    assert!(left.windows(2).all(|pair| pair[0] <= pair[1] + 2 + 2), "{left:?}");
    let sent = node.sent(member);
    assert_eq!(sent, (1..=10).collect::<Vec<_>>());
    assert_eq!(node.shard.inspect().stats().queued_messages, 0);
}

#[test]
fn group_queue_stays_in_order_when_its_member_leaves() {
    let (mut node, _) = long_queue("goes", ShardConfig::default());
    let member = node.connect("member", false, 1000);
    node.read();
    assert_eq!(node.sent(member), [1, 2]);
    // The journal is reading the next two messages.
    node.shard.closed(NOW, member, CloseCause::Network);
    node.read();
    node.end_tick();
    assert_eq!(node.shard.inspect().shared_groups(1)[0].queued, 7);
    let member = node.connect("member", false, 1000);
    while node.read() || node.shard.inspect().shared_groups(1)[0].queued > 0 {
        node.shard.run_timers(NOW);
        node.end_tick();
    }
    assert_eq!(node.sent(member), (1..=9).collect::<Vec<_>>());
}

#[test]
fn offline_member_returns_its_queue_in_parts() {
    let config = ShardConfig {
        max_inflight: 1,
        group_window: 1,
        ..ShardConfig::default()
    };
    let mut node = Node::new("gives", config);
    let first = node.connect("first", true, 1000);
    node.join(first);
    let publisher = node.connect("publisher", true, 0);
    (1..=20).for_each(|id| node.publish(publisher, id));
    node.shard.closed(NOW, first, CloseCause::Network);
    node.end_tick();
    let other = node.connect("other", true, 1000);
    node.join(other);
    assert_eq!(
        node.shard.inspect().shared_groups(1)[0].queued,
        8,
        "messages of a member's queue in one tick"
    );
    while node.read() || node.shard.inspect().next_deadline() == Some(0) {
        node.shard.run_timers(NOW);
        node.end_tick();
    }
    assert_eq!(node.sent(other), [1]);
    let recovered = node.recovered_after_a_crash();
    assert!(recovered.groups[0].messages.is_empty());
    let entries = |name: &str| {
        let session = recovered
            .sessions
            .iter()
            .find(|session| &*session.client_id == name)
            .unwrap();
        session.entries.iter().map(|entry| entry.message()).collect::<Vec<_>>()
    };
    assert!(entries("first").is_empty());
    assert_eq!(entries("other").len(), 20);
    assert!(
        entries("other").is_sorted(),
        "in the order in which they were published"
    );
}

/// The journal has a new group with the same name when the session returns the message of the old one.
#[test]
fn message_of_a_recreated_durable_group_survives_a_crash() {
    let mut node = Node::new("anew", ShardConfig::default());
    let member = node.connect("member", true, 1000);
    node.join(member);
    let publisher = node.connect("publisher", true, 0);
    node.publish(publisher, 1);
    let passing = node.connect("passing", true, 0);
    node.join(passing);
    node.end_tick();
    node.leave(member);
    node.join(member);
    node.end_tick();
    node.shard.closed(NOW, member, CloseCause::Network);
    node.end_tick();
    let recovered = node.recovered_after_a_crash();
    let entries: usize = recovered.sessions.iter().map(|session| session.entries.len()).sum();
    assert_eq!((held(&recovered), entries), (1, 0), "the publisher has received PUBACK");
}

/// The member that reconnects first has no space for all messages of the other queues.
#[test]
fn returned_messages_wait_for_a_member_with_space() {
    let config = ShardConfig {
        max_queued_messages: 5,
        max_inflight: 1,
        group_window: 2,
        ..ShardConfig::default()
    };
    let mut node = Node::new("space", config);
    let names = ["a", "b", "c"];
    let members = names.map(|name| node.connect(name, true, 1000));
    members.iter().for_each(|member| node.join(*member));
    let publisher = node.connect("publisher", true, 0);
    for id in 1..=15 {
        node.publish(publisher, id);
        node.end_tick();
    }
    for member in members {
        node.shard.closed(NOW, member, CloseCause::Network);
    }
    node.end_tick();
    let first = node.connect("a", false, 1000);
    let mut got = Vec::new();
    for step in 1..300 {
        node.read();
        let now = Now {
            monotonic_ms: NOW.monotonic_ms + 10 * step,
            ..NOW
        };
        node.shard.run_timers(now);
        node.end_tick();
        for (packet_id, id) in node.received(first) {
            got.push(id);
            node.acknowledge(first, packet_id);
        }
    }
    assert_eq!(
        node.shard.inspect().stats().drops[DropReason::QueueFullByCount as usize],
        0
    );
    got.sort_unstable();
    assert_eq!(got, (1..=15).collect::<Vec<_>>());
}

/// In each tick, clients publish more messages than the group dispatches.
#[test]
fn group_queue_drains_despite_fast_publishers() {
    let config = ShardConfig {
        group_window: 2,
        max_queued_messages: 10,
        ..ShardConfig::default()
    };
    let mut node = Node::new("faster", config);
    let member = node.connect("member", true, 1000);
    node.join(member);
    node.shard.closed(NOW, member, CloseCause::Network);
    let publisher = node.connect("publisher", true, 0);
    (1..=3).for_each(|id| node.publish(publisher, id));
    node.end_tick();
    let member = node.connect("member", false, 1000);
    let mut last = 3;
    for _ in 0..40 {
        (last + 1..=last + 3).for_each(|id| node.publish(publisher, id));
        last += 3;
        node.read();
        node.shard.run_timers(NOW);
        node.end_tick();
        for (packet_id, _) in node.received(member) {
            node.acknowledge(member, packet_id);
        }
    }
    assert_eq!(
        node.shard.inspect().stats().drops[DropReason::QueueFullByCount as usize],
        0
    );
    assert!(node.shard.inspect().shared_groups(1)[0].queued <= 3);
}

/// Connects members that hold one message and leave one in their queue, and `count` members that acknowledge. Tests
/// check whether the first block the others.
fn crowd(name: &str, strategy: ShareStrategy, count: usize) -> (Node, Vec<ConnSlot>, ConnSlot) {
    let config = ShardConfig {
        shared_strategy: strategy,
        max_inflight: 1,
        max_queued_messages: 1,
        ..ShardConfig::default()
    };
    let mut node = Node::new(name, config);
    let publisher = node.connect("publisher", true, 0);
    let members: Vec<ConnSlot> = (0..count)
        .map(|member| node.connect(&format!("member {member}"), true, 1000))
        .collect();
    members.iter().for_each(|member| node.join(*member));
    node.end_tick();
    (node, members, publisher)
}

#[test]
fn stalled_members_do_not_block_other_members() {
    let (mut node, _, publisher) = crowd("crowd", ShareStrategy::RoundRobin, 20);
    (1..=40).for_each(|id| node.publish(publisher, id));
    node.end_tick();
    let others = ["x", "y", "z"].map(|name| node.connect(name, true, 1000));
    others.iter().for_each(|member| node.join(*member));
    let mut got = Vec::new();
    for step in 1..100 {
        if step <= 30 {
            node.publish(publisher, 40 + step);
        }
        let now = Now {
            monotonic_ms: NOW.monotonic_ms + 10 * u64::from(step),
            ..NOW
        };
        node.read();
        node.shard.run_timers(now);
        node.end_tick();
        for member in others {
            for (packet_id, id) in node.received(member) {
                got.push(id);
                node.acknowledge(member, packet_id);
            }
        }
    }
    got.sort_unstable();
    assert_eq!(got, (41..=70).collect::<Vec<_>>());
}

/// All messages of one topic begin with the same member.
#[test]
fn dispatch_finds_a_member_with_space_among_full_ones() {
    let (mut node, members, publisher) = crowd("topic", ShareStrategy::HashTopic, 40);
    // Sixteen members have one message in flight and one queued, and so have the members after them.
    (1..=40).for_each(|id| node.publish(publisher, id));
    node.shard.run_timers(NOW);
    node.end_tick();
    let queued = node.shard.inspect().shared_groups(1)[0].queued;
    let sent = members.iter().map(|member| node.sent(*member).len()).sum::<usize>();
    assert_eq!(
        (queued, sent),
        (0, 20),
        "the group has no message that a member could receive"
    );
    assert_ne!(
        node.shard.inspect().next_deadline(),
        Some(0),
        "the group has messages to dispatch"
    );
}

/// The only member of a group connects and disconnects repeatedly. No other session holds a message of the group.
#[test]
fn sessions_without_group_messages_are_not_scanned_repeatedly() {
    for has_own in [false, true] {
        let config = ShardConfig {
            group_window: 1,
            ..ShardConfig::default()
        };
        let mut node = Node::new(&format!("nothing-{has_own}"), config);
        let publisher = node.connect("publisher", true, 0);
        for number in 0..100 {
            let member = node.connect(&format!("away {number}"), true, 1000);
            node.join(member);
            if has_own {
                node.subscribe(member, "own");
            }
            node.shard.closed(NOW, member, CloseCause::Network);
        }
        node.send(publisher, &publication("own", 1, b"", false));
        node.end_tick();
        let mut member = node.connect("member", true, 1000);
        node.join(member);
        for _ in 0..100 {
            node.shard.closed(NOW, member, CloseCause::Network);
            member = node.connect("member", false, 1000);
        }
        let mut ticks = 0;
        while node.shard.inspect().next_deadline() == Some(0) {
            node.shard.run_timers(NOW);
            node.end_tick();
            ticks += 1;
        }
        // Eight messages per tick.
        assert!(ticks <= if has_own { 100 / 8 + 1 } else { 0 }, "{ticks} ticks");
        std::fs::remove_dir_all(node.crash()).unwrap();
    }
}

/// The byte limit of the member varies around the size of two messages, with and without the overhead of the session.
#[test]
fn member_space_is_measured_like_its_queue() {
    let (node, _) = long_queue("measured", ShardConfig::default());
    let bytes_of_one = node.shard.inspect().shared_groups(1)[0].queued_bytes / 9;
    std::fs::remove_dir_all(node.crash()).unwrap();
    for beyond in (0..200).step_by(8) {
        let config = ShardConfig {
            max_inflight: 1,
            max_queued_bytes: 4 * bytes_of_one + beyond,
            ..ShardConfig::default()
        };
        let (mut node, _) = long_queue(&format!("measured-{beyond}"), ShardConfig::default());
        // The limit also applies to the group, whose queue is longer already.
        node.shard.reconfigure(NOW, Arc::new(config));
        let member = node.connect("member", false, 1000);
        let mut got = Vec::new();
        for step in 1..40 {
            let mut reads = 0;
            while node.read() {
                reads += 1;
                assert!(reads < 10, "the same messages are read repeatedly with {beyond} bytes");
                node.end_tick();
            }
            let now = Now {
                monotonic_ms: NOW.monotonic_ms + 10 * step,
                ..NOW
            };
            node.shard.run_timers(now);
            node.end_tick();
            for (packet_id, id) in node.received(member) {
                got.push(id);
                node.acknowledge(member, packet_id);
            }
        }
        assert_eq!(
            node.shard.inspect().stats().drops[DropReason::QueueFullByBytes as usize],
            0
        );
        assert_eq!(got, (1..=9).collect::<Vec<_>>(), "with {beyond} bytes");
        std::fs::remove_dir_all(node.crash()).unwrap();
    }
}

/// An unfinished checkpoint rewrites a message that is in memory. Then one of the groups delivers it.
#[test]
fn message_of_two_groups_is_rewritten_for_both() {
    let mut node = Node::new("both", ShardConfig::default());
    for group in ["g", "h"] {
        let member = node.connect(group, true, 1000);
        node.subscribe(member, &format!("$share/{group}/t"));
        node.shard.closed(NOW, member, CloseCause::Network);
    }
    let publisher = node.connect("publisher", true, 0);
    (1..=3).for_each(|id| node.publish(publisher, id));
    node.end_tick();
    let part = MovePart {
        before: node.log_end(),
        bytes: u64::MAX,
    };
    node.shard.journal(NOW).begin_checkpoint(part);
    node.end_tick();
    let mut moved_bytes = None;
    while node.shard.inspect().is_checkpoint_active() && moved_bytes.is_none() {
        moved_bytes = node
            .shard
            .journal(NOW)
            .continue_checkpoint()
            .map(|done| done.moved_bytes);
        node.end_tick();
    }
    assert!(moved_bytes.is_some_and(|bytes| bytes > 0));
    let member = node.connect("h", false, 1000);
    node.shard.run_timers(NOW);
    node.end_tick();
    for (packet_id, _) in node.received(member) {
        node.acknowledge(member, packet_id);
    }
    node.end_tick();
    let recovered = node.recovered_after_a_crash();
    let of = |name: &str| {
        let groups = recovered.groups.iter().filter(|group| &*group.share_name == name);
        groups.map(|group| group.messages.len()).sum::<usize>()
    };
    let entries: usize = recovered.sessions.iter().map(|session| session.entries.len()).sum();
    assert_eq!((of("g"), of("h"), entries), (3, 0, 0));
}

/// A group message that a session drops is no longer counted as in flight, so a group that counts selects the session
/// as often as the others.
#[test]
fn message_dropped_from_a_journal_queue_is_not_in_flight() {
    let config = ShardConfig {
        shared_strategy: ShareStrategy::LeastInflight,
        max_inflight: 4,
        max_queued_messages: 2,
        ..ShardConfig::default()
    };
    let mut node = Node::new("drift", config);
    let publisher = node.connect("publisher", true, 0);
    let member = node.connect("member", true, 1000);
    node.join(member);
    node.subscribe(member, "own");
    (1..=6).for_each(|id| node.publish(publisher, id));
    node.shard.closed(NOW, member, CloseCause::Network);
    node.end_tick();
    for id in 7..=8u16 {
        node.send(publisher, &publication("own", id, &id.to_be_bytes(), false));
        node.end_tick();
    }
    let member = node.connect("member", false, 1000);
    let mut got = Vec::new();
    for _ in 0..10 {
        node.read();
        node.end_tick();
        for (packet_id, id) in node.received(member) {
            got.push(id);
            node.acknowledge(member, packet_id);
        }
        node.shard.run_timers(NOW);
    }
    assert_eq!(got, [1, 2, 3, 4, 7, 8]);
    let other = node.connect("other", true, 1000);
    node.join(other);
    (9..=10).for_each(|id| node.publish(publisher, id));
    node.end_tick();
    assert_eq!((node.received(member).len(), node.received(other).len()), (1, 1));
}
