//! Tests that the limits of a queue and of the queues of a user count the messages that are only in the journal, also
//! after a restart. After every step, the counted bytes equal the sum over all queued messages.

use std::sync::Arc;

use tidewire_broker::durable::record::RecordPosition;
use tidewire_broker::owners::{OwnerLimits, ShareLimits};
use tidewire_broker::*;

use super::NOW;
use super::node::Node;
use crate::scale::scaled;

pub const START: RecordPosition = RecordPosition(0);

/// The owner of all sessions.
const OWNER: &str = "address:127.0.0.1";

/// With this limit the queues of a user are counted.
const UNREACHED: u64 = u64::MAX - 1;

/// Returns a configuration with a limit of the bytes in the queues of a user.
fn limited(queued_bytes: u64) -> ShardConfig {
    let user = OwnerLimits {
        queued_bytes,
        ..OwnerLimits::NONE
    };
    ShardConfig {
        shares: ShareLimits {
            user,
            ..ShareLimits::NONE
        },
        ..ShardConfig::default()
    }
}

/// Returns the number and the bytes of the queued messages.
fn counted(node: &mut Node) -> (u64, u64) {
    let stats = node.shard.inspect().stats();
    let inspection = node.shard.inspect();
    assert_eq!(stats.queued_bytes, inspection.sum_of_queued_bytes());
    let of_owner = node.state.owners.user(OWNER).queued_bytes();
    assert_eq!(of_owner, inspection.sum_of_queued_bytes_of(OWNER));
    (stats.queued_messages, stats.queued_bytes)
}

fn end_tick(node: &mut Node) {
    node.end_tick();
    counted(node);
}

/// Starts a node with an offline session that subscribes to a filter, and publishes messages `1..=count`.
fn offline(name: &str, config: ShardConfig, filter: &str, count: u16) -> Node {
    let mut node = Node::new(name, config);
    let subscriber = node.connect("subscriber", true, 1000);
    node.subscribe(subscriber, filter);
    node.shard.closed(NOW, subscriber, CloseCause::Network);
    publish(&mut node, 1..=count);
    node
}

fn publish(node: &mut Node, ids: std::ops::RangeInclusive<u16>) {
    let publisher = node.connect("publisher", true, 0);
    for id in ids {
        node.publish(publisher, id);
        end_tick(node);
    }
    node.shard.closed(NOW, publisher, CloseCause::Network);
}

fn bytes_of_one(name: &str, filter: &str) -> u64 {
    let mut node = offline(&format!("{name}-one"), limited(UNREACHED), filter, 1);
    let (messages, bytes) = counted(&mut node);
    assert_eq!(messages, 1);
    std::fs::remove_dir_all(node.crash()).unwrap();
    bytes
}

/// Connects the subscriber, and acknowledges all messages. Returns them.
fn drain(node: &mut Node) -> Vec<u16> {
    let subscriber = node.connect("subscriber", false, 1000);
    let mut all = Vec::new();
    for step in 1..10_000 {
        let received = node.received(subscriber);
        for (packet_id, id) in &received {
            all.push(*id);
            node.acknowledge(subscriber, *packet_id);
        }
        let now = Now {
            monotonic_ms: NOW.monotonic_ms + 10 * step,
            ..NOW
        };
        node.shard.run_timers(now);
        end_tick(node);
        if !node.read() && received.is_empty() && counted(node).0 == 0 {
            break;
        }
    }
    assert_eq!(counted(node), (0, 0));
    all
}

#[test]
fn bytes_of_a_queue_in_the_journal_are_limited() {
    for (kind, filter) in [("session", "t"), ("group", "$share/g/t")] {
        let name = format!("bytes-{kind}");
        let one = bytes_of_one(&name, filter);
        let config = ShardConfig {
            max_queued_bytes: 5 * one as usize,
            group_window: 2,
            ..limited(UNREACHED)
        };
        let mut node = offline(&name, config.clone(), filter, 12);
        assert_eq!(counted(&mut node), (5, 5 * one), "{kind}");
        assert_eq!(
            node.shard.inspect().stats().drops[DropReason::QueueFullByBytes as usize],
            7
        );
        let mut node = node.restart(config, START);
        assert_eq!(counted(&mut node), (5, 5 * one), "{kind} after a restart");
        publish(&mut node, 13..=14);
        assert_eq!(counted(&mut node), (5, 5 * one), "{kind}");
        assert_eq!(drain(&mut node), [10, 11, 12, 13, 14], "{kind}");
        publish(&mut node, 15..=15);
        std::fs::remove_dir_all(node.crash()).unwrap();
    }
}

#[test]
fn newest_message_is_dropped_if_so_configured() {
    let one = bytes_of_one("newest", "t");
    let config = ShardConfig {
        max_queued_bytes: 3 * one as usize,
        queue_drop: QueueDropPolicy::Newest,
        ..limited(UNREACHED)
    };
    let mut node = offline("newest", config, "t", 5);
    assert_eq!(counted(&mut node), (3, 3 * one));
    assert_eq!(drain(&mut node), [1, 2, 3]);
    std::fs::remove_dir_all(node.crash()).unwrap();
}

#[test]
fn message_above_the_limit_drops_no_other() {
    for (kind, filter) in [("session", "t"), ("group", "$share/g/t")] {
        let name = format!("too-large-{kind}");
        let one = bytes_of_one(&name, filter);
        let mut node = offline(&name, limited(UNREACHED), filter, 3);
        let config = ShardConfig {
            max_queued_bytes: one as usize - 1,
            ..limited(UNREACHED)
        };
        node.shard.reconfigure(NOW, Arc::new(config));
        publish(&mut node, 4..=4);
        assert_eq!(counted(&mut node), (3, 3 * one), "{kind}");
        assert_eq!(drain(&mut node), [1, 2, 3], "{kind}");
        std::fs::remove_dir_all(node.crash()).unwrap();
    }
}

/// A member of a group leaves with more bytes in its queue than the group may have.
#[test]
fn returned_messages_leave_the_limit_of_the_group_to_new_ones() {
    let one = bytes_of_one("returned", "$share/g/t");
    let config = ShardConfig {
        max_inflight: 2,
        ..limited(UNREACHED)
    };
    let mut node = Node::new("returned", config.clone());
    let member = node.connect("subscriber", true, 1000);
    node.subscribe(member, "$share/g/t");
    publish(&mut node, 1..=9);
    node.shard.closed(NOW, member, CloseCause::Network);
    while node.shard.inspect().next_deadline() == Some(0) {
        node.shard.run_timers(NOW);
        end_tick(&mut node);
    }
    let config = ShardConfig {
        max_queued_bytes: 5 * one as usize,
        ..config
    };
    node.shard.reconfigure(NOW, Arc::new(config));
    publish(&mut node, 10..=16);
    assert_eq!(drain(&mut node), (1..=9).chain(12..=16).collect::<Vec<_>>());
    std::fs::remove_dir_all(node.crash()).unwrap();
}

/// Pages are written, dropped from, restored and loaded.
#[test]
fn bytes_of_pages_are_counted() {
    let one = bytes_of_one("paged", "t");
    let config = ShardConfig {
        page_entries: 4,
        max_queued_messages: 50,
        ..limited(UNREACHED)
    };
    let mut node = offline("paged", config.clone(), "t", 80);
    assert_eq!(counted(&mut node), (50, 50 * one));
    let config = ShardConfig {
        max_queued_bytes: 43 * one as usize,
        ..config
    };
    let mut node = node.restart(config.clone(), START);
    assert_eq!(counted(&mut node), (50, 50 * one), "after a restart");
    publish(&mut node, 81..=82);
    assert_eq!(counted(&mut node), (43, 43 * one), "the limit is lower now");
    let mut node = node.restart(config, START);
    assert_eq!(counted(&mut node), (43, 43 * one), "after another restart");
    assert_eq!(drain(&mut node), (40..=82).collect::<Vec<_>>());
    std::fs::remove_dir_all(node.crash()).unwrap();
}

/// Recovery begins with a checkpoint that has rewritten all messages.
#[test]
fn checkpoint_has_the_sizes_of_queued_messages() {
    for (kind, filter, page_entries) in [("session", "t", 4096), ("pages", "t", 4), ("group", "$share/g/t", 4096)] {
        let name = format!("checkpoint-{kind}");
        let one = bytes_of_one(&name, filter);
        let config = ShardConfig {
            page_entries,
            group_window: 2,
            ..limited(UNREACHED)
        };
        let mut node = offline(&name, config.clone(), filter, 30);
        let from = node.checkpoint();
        assert_eq!(counted(&mut node), (30, 30 * one), "{kind}");
        let mut node = node.restart(config, from);
        assert_eq!(counted(&mut node), (30, 30 * one), "{kind} after a restart");
        // The messages of a group are in the order of their positions, which compaction changes.
        let mut received = drain(&mut node);
        received.sort_unstable();
        assert_eq!(received, (1..=30).collect::<Vec<_>>(), "{kind}");
        std::fs::remove_dir_all(node.crash()).unwrap();
    }
}

/// The messages may have been sent, so they are in flight after the restart.
#[test]
fn messages_in_flight_after_a_restart_are_not_queued() {
    for filter in ["t", "$share/g/t"] {
        let config = ShardConfig {
            max_inflight: 2,
            ..limited(UNREACHED)
        };
        let name = format!("in-flight-{}", filter.len());
        let mut node = Node::new(&name, config.clone());
        let subscriber = node.connect("subscriber", true, 1000);
        node.subscribe(subscriber, filter);
        publish(&mut node, 1..=9);
        assert_eq!(counted(&mut node).0, 7);
        let mut node = node.restart(config, START);
        counted(&mut node);
        assert_eq!(drain(&mut node), (1..=9).collect::<Vec<_>>(), "{filter}");
        std::fs::remove_dir_all(node.crash()).unwrap();
    }
}

/// A session with queued messages is taken over, and then ends.
#[test]
fn bytes_of_an_ended_session_are_released() {
    let mut node = offline("ended", limited(UNREACHED), "t", 300);
    let (messages, bytes) = counted(&mut node);
    assert!(messages == 300 && bytes > 0);
    for _ in 0..2 {
        node.connect("subscriber", false, 1000);
        end_tick(&mut node);
        while node.read() {
            end_tick(&mut node);
        }
    }
    node.connect("subscriber", true, 1000);
    end_tick(&mut node);
    assert_eq!(counted(&mut node), (0, 0));
    std::fs::remove_dir_all(node.crash()).unwrap();
}

#[test]
fn lower_limit_of_a_user_deletes_nothing_at_a_restart() {
    let one = bytes_of_one("user-lower", "t");
    let node = offline("user-lower", limited(UNREACHED), "t", 6);
    let mut node = node.restart(limited(4 * one), START);
    assert_eq!(counted(&mut node), (6, 6 * one));
    publish(&mut node, 7..=7);
    assert_eq!(counted(&mut node), (6, 6 * one));
    let refused = |node: &Node| node.shard.inspect().stats().drops[DropReason::UserQueueFull as usize];
    assert_eq!(refused(&node), 1);
    assert_eq!(drain(&mut node), [1, 2, 3, 4, 5, 6]);
    let subscriber = node.connect("subscriber", false, 1000);
    node.shard.closed(NOW, subscriber, CloseCause::Network);
    publish(&mut node, 8..=13);
    assert_eq!((counted(&mut node), refused(&node)), ((4, 4 * one), 3));
    assert_eq!(drain(&mut node), [10, 11, 12, 13]);
    std::fs::remove_dir_all(node.crash()).unwrap();
}

/// xorshift64*
fn below(random: &mut u64, n: u64) -> u64 {
    *random ^= *random >> 12;
    *random ^= *random << 25;
    *random ^= *random >> 27;
    (random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % n
}

/// Queues in memory, in the journal, in pages, of share groups and in flight, with checkpoints and restarts.
#[test]
fn bytes_of_a_user_equal_a_recount_after_random_steps() {
    for seed in 1..=scaled(12) {
        let random = &mut (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let config = |queued_bytes| ShardConfig {
            page_entries: 3,
            max_inflight: 2,
            group_window: 2,
            max_queued_messages: 40,
            ..limited(queued_bytes)
        };
        let mut node = Node::new(&format!("user-random-{seed}"), config(UNREACHED));
        let (mut from, mut id, mut time_ms) = (START, 0, NOW.monotonic_ms);
        let mut connections = [None; 3];
        for _ in 0..150 {
            let client = below(random, 3) as usize;
            match below(random, 12) {
                0..4 => {
                    let count = below(random, 8) as u16 + 1;
                    publish(&mut node, id + 1..=id + count);
                    id += count;
                }
                4..6 => {
                    let clean_start = below(random, 8) == 0;
                    let conn = node.connect(&format!("c{client}"), clean_start, 1000);
                    node.subscribe(conn, if client == 2 { "$share/g/t" } else { "t" });
                    connections[client] = Some(conn);
                }
                6..8 => {
                    if let Some(conn) = connections[client].take() {
                        node.shard.closed(NOW, conn, CloseCause::Network);
                    }
                }
                8 => from = node.checkpoint(),
                9 => {
                    let queued_bytes = [2000, 5000, UNREACHED][below(random, 3) as usize];
                    node = node.restart(config(queued_bytes), from);
                    connections = [None; 3];
                }
                _ => {
                    if let Some(conn) = connections[client] {
                        for (packet_id, _) in node.received(conn) {
                            node.acknowledge(conn, packet_id);
                        }
                    }
                }
            }
            end_tick(&mut node);
            time_ms += 10;
            let now = Now {
                monotonic_ms: time_ms,
                ..NOW
            };
            node.shard.run_timers(now);
            end_tick(&mut node);
            while node.read() {
                end_tick(&mut node);
            }
        }
        std::fs::remove_dir_all(node.crash()).unwrap();
    }
}
