//! Counters and gauges of a shard: plain integers that one thread owns. Operators read a copy.

use mqtt::{PacketType, QoS};

use crate::owners::OwnerLimit;
use crate::publish_limits::PublishLimit;
use crate::{DisconnectReason, DropReason};

/// Totals since the start, unless noted otherwise. Arrays are indexed by the enum that names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardStats {
    pub connections_total: u64,
    /// Current number.
    pub connections: u64,
    pub connections_max: u64,
    /// Current number, connected or not.
    pub sessions: u64,
    pub sessions_max: u64,
    pub subscriptions: u64,
    pub subscriptions_max: u64,
    pub shared_groups: u64,
    pub retained_messages: u64,
    pub retained_bytes: u64,
    pub delayed_messages: u64,
    pub queued_messages: u64,
    pub queued_bytes: u64,
    pub inflight_messages: u64,
    /// Timers that are set and not due.
    pub timers: u64,
    /// Bytes queued for sockets.
    pub output_backlog_bytes: u64,
    pub refused_connections: u64,
    pub takeovers: u64,
    /// Indexed by packet type, 1 to 15.
    pub packets_received: [u64; 16],
    pub packets_sent: [u64; 16],
    pub bytes_received: u64,
    pub bytes_sent: u64,
    /// PUBLISH accepted from clients, indexed by QoS.
    pub messages_received: [u64; 3],
    /// PUBLISH queued for connections, indexed by QoS.
    pub messages_sent: [u64; 3],
    pub publish_bytes_received: u64,
    pub publish_bytes_sent: u64,
    /// Messages forwarded to other shards.
    pub messages_forwarded: u64,
    pub messages_acknowledged: u64,
    pub messages_redelivered: u64,
    pub wills_published: u64,
    /// How often a publisher had to wait for a limit of its rate.
    pub publishers_slowed: [u64; PublishLimit::COUNT],
    pub disconnects: [u64; DisconnectReason::COUNT],
    pub drops: [u64; DropReason::COUNT],
    /// Connections, messages and subscriptions rejected because of a limit of a user or a client.
    pub limit_rejections: [u64; OwnerLimit::COUNT],
}

impl ShardStats {
    pub fn drop_message(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Counts PUBLISH packets that were queued for connections.
    #[inline]
    pub(crate) fn sent(&mut self, qos: QoS, messages: u64, packet_bytes: usize, payload_bytes: usize) {
        self.messages_sent[qos as usize] += messages;
        self.packets_sent[PacketType::Publish as usize] += messages;
        self.bytes_sent += packet_bytes as u64;
        self.publish_bytes_sent += payload_bytes as u64;
    }

    /// A client has connected.
    pub(crate) fn connected(&mut self) {
        self.connections += 1;
        self.connections_total += 1;
        self.connections_max = self.connections_max.max(self.connections);
    }

    /// The number of sessions has changed.
    pub(crate) fn set_sessions(&mut self, sessions: usize) {
        self.sessions = sessions as u64;
        self.sessions_max = self.sessions_max.max(self.sessions);
    }

    /// A session has a new subscription.
    pub(crate) fn subscribed(&mut self) {
        self.subscriptions += 1;
        self.subscriptions_max = self.subscriptions_max.max(self.subscriptions);
    }

    /// Adds the numbers of another shard.
    pub fn add(&mut self, other: &ShardStats) {
        macro_rules! sum {
            ($($field:ident),* $(,)?) => { $( self.$field += other.$field; )* };
        }
        macro_rules! sum_arrays {
            ($($field:ident),* $(,)?) => { $( for (a, b) in self.$field.iter_mut().zip(other.$field) { *a += b; } )* };
        }
        sum!(
            connections_total,
            connections,
            connections_max,
            sessions,
            sessions_max,
            subscriptions,
            subscriptions_max,
            shared_groups,
            retained_messages,
            retained_bytes,
            delayed_messages,
            queued_messages,
            queued_bytes,
            inflight_messages,
            timers,
            output_backlog_bytes,
            refused_connections,
            takeovers,
            bytes_received,
            bytes_sent,
            publish_bytes_received,
            publish_bytes_sent,
            messages_forwarded,
            messages_acknowledged,
            messages_redelivered,
            wills_published,
        );
        sum_arrays!(
            packets_received,
            packets_sent,
            messages_received,
            messages_sent,
            publishers_slowed,
            disconnects,
            drops,
            limit_rejections
        );
    }
}
