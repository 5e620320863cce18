//! A network connection in the shard: its phase, its limits, and its topic aliases.

use std::collections::HashMap;

use mqtt::ProtocolVersion;

use crate::effect::Peer;
use crate::slots::{AuthAttempt, ConnEpoch, SessionSlot};

pub struct Connection {
    pub peer: Peer,
    pub phase: ConnectionPhase,
    pub version: ProtocolVersion,
    /// Slot of the session; `SessionSlot::NONE` before CONNECT is accepted.
    pub session: SessionSlot,
    /// Number of the last question to the authenticator. Numbers are unique, so that a late answer, also one for an
    /// earlier connection in the slot, is recognised.
    pub attempt: AuthAttempt,
    /// Distinguishes this connection from earlier ones in the same slot.
    pub epoch: ConnEpoch,
    pub last_packet_ms: u64,
    /// Maximum Packet Size of CONNECT (MQTT 5).
    pub maximum_packet_size: u32,
    /// Receive Maximum sent in CONNACK. It stays in force if the configuration changes.
    pub receive_maximum: u16,
    /// QoS 2 messages received on this connection and not released. Those of earlier connections do not count, because
    /// each connection starts with the full quota (section 4.9).
    pub open_exactly_once: u16,
    pub topic_alias_maximum: u16,
    /// Authentication Method of CONNECT. Re-authentication must use the same one [MQTT-4.12.1-1].
    pub method: Option<Box<str>>,
    /// User Properties of CONNECT in wire format, for operators to see.
    pub user_properties: Box<[u8]>,
    pub aliases: Option<Box<Aliases>>,
    pub pending: Option<Box<PendingConnect>>,
    pub publish_quota: Option<Box<PublishQuota>>,
    /// Acknowledgements that wait for the journal. Later ones wait behind them.
    pub waiting_acks: u32,
    /// Acknowledgements that wait for the tap, after the journal.
    pub acks_waiting_for_tap: u32,
    /// Reading is paused until some of these acknowledgements have been sent.
    pub is_held_by_acks: bool,
    /// Reading is paused until the journal accepts records again.
    pub is_held_by_journal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPhase {
    /// Waits for CONNECT.
    New,
    /// Waits for `Shard::authenticated`.
    Authenticating,
    /// Waits for AUTH of the client in an enhanced authentication.
    AwaitingAuth,
    Online,
    /// Closing was requested; received data is ignored [MQTT-3.14.4-2].
    Closing,
}

/// A CONNECT that waits for a decision, or a re-authentication of an online client.
pub struct PendingConnect {
    /// The packet as received. It is decoded again after the decision.
    pub packet: Box<[u8]>,
    pub client_id: Box<str>,
    pub method: Option<Box<str>>,
    /// Waits for the authenticator, not for the client.
    pub is_decision_pending: bool,
}

/// Topic aliases. Each direction has its own limit [MQTT-3.3.2-8], [MQTT-3.3.2-11].
#[derive(Default)]
pub struct Aliases {
    pub incoming: IncomingAliases,
    /// Topics to which the server has assigned an alias.
    pub outgoing: HashMap<Box<str>, u16>,
    pub outgoing_max: u16,
}

/// Total length of topic names that a connection may store under aliases. The maximum of 65,535 aliases could use 4 GiB
/// otherwise.
pub(crate) const INCOMING_ALIAS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Aliases set by the client. Sparse, because a client may start with alias 65,535.
#[derive(Default)]
pub struct IncomingAliases {
    topics: HashMap<u16, Box<str>>,
    bytes: usize,
}

impl IncomingAliases {
    pub fn get(&self, alias: u16) -> Option<&str> {
        self.topics.get(&alias).map(AsRef::as_ref)
    }

    /// Sets an alias. Returns false if the length limit is exceeded.
    pub fn set(&mut self, alias: u16, topic: &str) -> bool {
        let before = self.topics.get(&alias);
        if before.is_some_and(|before| **before == *topic) {
            return true;
        }
        let bytes = self.bytes - before.map_or(0, |before| before.len()) + topic.len();
        if bytes > INCOMING_ALIAS_BYTES_MAX {
            return false;
        }
        self.bytes = bytes;
        self.topics.insert(alias, topic.into());
        true
    }
}

/// Token buckets that limit a client's publications. Each holds at most the amount of one period.
pub struct PublishQuota {
    pub messages: f64,
    pub bytes: f64,
    pub refilled_ms: u64,
    pub is_paused: bool,
}

impl Connection {
    pub fn new(peer: Peer, epoch: ConnEpoch, now_ms: u64) -> Connection {
        Connection {
            peer,
            phase: ConnectionPhase::New,
            version: ProtocolVersion::V3_1_1,
            session: SessionSlot::NONE,
            attempt: AuthAttempt::default(),
            user_properties: Box::default(),
            epoch,
            last_packet_ms: now_ms,
            maximum_packet_size: u32::MAX,
            receive_maximum: 0,
            open_exactly_once: 0,
            topic_alias_maximum: 0,
            method: None,
            aliases: None,
            pending: None,
            publish_quota: None,
            waiting_acks: 0,
            acks_waiting_for_tap: 0,
            is_held_by_acks: false,
            is_held_by_journal: false,
        }
    }
}
