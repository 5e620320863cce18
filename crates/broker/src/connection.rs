//! A network connection as the shard sees it: its phase, its limits, and the topic aliases that live and die with it.

use std::collections::HashMap;

use mqtt::ProtocolVersion;

use crate::effect::Peer;

pub struct Connection {
    pub peer: Peer,
    pub phase: Phase,
    pub version: ProtocolVersion,
    /// Slot of the session, once there is one.
    pub session: u32,
    /// What was last asked of the authenticator; no number is used twice, so that a late answer is recognised even if it is for
    /// an earlier connection in the slot.
    pub attempt: u32,
    /// Tells this connection from an earlier one in the same slot.
    pub epoch: u32,
    pub last_packet_ms: u64,
    /// Maximum Packet Size of CONNECT, of MQTT 5.
    pub maximum_packet_size: u32,
    /// What CONNACK told the client: it is held to that, whatever the configuration says since.
    pub receive_maximum: u16,
    /// QoS 2 messages that came on this connection and are not released. Those of earlier ones do not count: the quota begins anew
    /// with each connection (4.9).
    pub open_exactly_once: u16,
    pub topic_alias_maximum: u16,
    /// Authentication Method of CONNECT, once accepted: the only one to authenticate anew with [MQTT-4.12.1-1].
    pub method: Option<Box<str>>,
    /// Of CONNECT, as on the wire, for operators to see.
    pub user_properties: Box<[u8]>,
    pub aliases: Option<Box<Aliases>>,
    pub pending: Option<Box<PendingConnect>>,
    pub publish_quota: Option<Box<PublishQuota>>,
    /// Acknowledgements that wait for the journal; those that follow wait behind them.
    pub waiting_acks: u32,
    /// Acknowledgements that wait for the tap, after the journal.
    pub parked_acks: u32,
    /// Not read from before some of those have been sent.
    pub is_held_by_acks: bool,
    /// Not read from before the journal takes something again.
    pub is_held_by_journal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// CONNECT is to come.
    New,
    /// Waiting for `Shard::authenticated`.
    Authenticating,
    /// Waiting for the client's AUTH in an enhanced exchange.
    AwaitingAuth,
    Online,
    /// A close was asked for; nothing it sends is looked at [MQTT-3.14.4-2].
    Closing,
}

/// A CONNECT that waits for a decision, or an online client that authenticates anew.
pub struct PendingConnect {
    /// The packet as it came; decoded again when the decision is there.
    pub packet: Box<[u8]>,
    pub client_id: Box<str>,
    pub method: Option<Box<str>>,
    /// The authenticator has been asked and has not answered: it is not the client's turn.
    pub is_asked: bool,
}

/// Both directions have their own budget [MQTT-3.3.2-8], [MQTT-3.3.2-11].
#[derive(Default)]
pub struct Aliases {
    pub incoming: IncomingAliases,
    /// Topics that the server gave an alias.
    pub outgoing: HashMap<Box<str>, u16>,
    pub outgoing_max: u16,
}

/// Bytes of topics that one connection may keep under aliases: the maximum of 65,535 of them would cost 4 GiB.
const INCOMING_ALIAS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What the client set. Sparse, because a client may begin with alias 65,535.
#[derive(Default)]
pub struct IncomingAliases {
    topics: HashMap<u16, Box<str>>,
    bytes: usize,
}

impl IncomingAliases {
    pub fn get(&self, alias: u16) -> Option<&str> {
        self.topics.get(&alias).map(AsRef::as_ref)
    }

    /// False when there is no room for it.
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

/// Token buckets for what one client may publish; both hold at most what a period allows.
pub struct PublishQuota {
    pub messages: f64,
    pub bytes: f64,
    pub refilled_ms: u64,
    pub is_paused: bool,
}

impl Connection {
    pub fn new(peer: Peer, epoch: u32, now_ms: u64) -> Connection {
        Connection {
            peer,
            phase: Phase::New,
            version: ProtocolVersion::V3_1_1,
            session: u32::MAX,
            attempt: 0,
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
            parked_acks: 0,
            is_held_by_acks: false,
            is_held_by_journal: false,
        }
    }
}
