//! A virtual client: one client id, its connection, and its session state as the standard requires.
//!
//! It communicates only through its link. The oracle judges the messages that it sends and receives. Rules between the
//! two ends of a connection (packet identifiers, windows, DUP) are checked here.

mod incoming;
mod outgoing;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use mqtt::{ConnAck, Decoded, Packet, PacketType, ProtocolVersion, QoS, ReasonCode};

pub use outgoing::PublishOrder;

use crate::network::{LinkIndex, Network};
use crate::oracle::{LeaveMode, Oracle};
use crate::packets::{self, ConnectFields};
use crate::trace::Trace;

/// Maximum gap between two ticks of a worker. After a longer one the worker reads all input before it checks
/// keep-alives.
const ON_THE_WAY_MS: u64 = 500;

/// Index of a client. The last two are the auditor and, in the oracle only, the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientIndex(pub usize);

impl ClientIndex {
    /// Returns the indexes of the first `count` clients.
    pub fn first(count: usize) -> impl Iterator<Item = ClientIndex> {
        (0..count).map(ClientIndex)
    }

    pub fn index(self) -> usize {
        self.0
    }

    pub fn is_odd(self) -> bool {
        self.0 % 2 == 1
    }
}

impl fmt::Display for ClientIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The parts of the world that a client uses.
pub struct ClientContext<'a> {
    pub network: &'a mut Network,
    pub oracle: &'a mut Oracle,
    pub trace: &'a mut Trace,
    /// Time up to which the node has handled all due timers.
    pub ticked_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientStage {
    Offline,
    /// CONNECT has been sent.
    Connecting,
    Online,
}

pub struct SimulatedClient {
    pub index: ClientIndex,
    pub stage: ClientStage,
    pub link: Option<LinkIndex>,
    /// The client does not read from its link.
    pub is_not_reading: bool,
    /// The connection whose DISCONNECT ended the session. The client does not reconnect before the node has closed it.
    pub ending_link: Option<LinkIndex>,
    /// The state of the session on the node is unknown, because the last CONNECT was not answered.
    pub has_unknown_session: bool,
    /// The client has discarded its session state, but the node may still have the session.
    has_discarded_session: bool,
    /// Received retained messages, for the audit.
    pub retained: Vec<(String, u64)>,
    /// Pending answers on this connection, oldest first.
    pub answers: VecDeque<(PacketType, u16)>,
    pub is_ping_pending: bool,
    /// Time of the last packet sent.
    sent_ms: u64,
    /// Time from which the node may close this connection, because it received nothing for one and a half times the
    /// Keep Alive.
    silent_ms: u64,
    /// Time at which the client last read everything that the node had sent.
    read_ms: u64,
    id: String,
    terms: Option<ConnectFields>,
    unread: Vec<u8>,
    aliases: BTreeMap<u16, String>,
    requests: Vec<UnansweredRequest>,
    /// Messages that the server has not completed, in the order of first sending.
    outgoing: Vec<OutgoingPublish>,
    next_id: u16,
    /// Receive Maximum of the server for this connection.
    window: usize,
    /// Messages of the server that are not completed, by packet identifier.
    held: BTreeMap<u16, HeldPublish>,
    /// All messages received in this session.
    received: Vec<HeldPublish>,
    /// Packet identifiers in use on this connection.
    open: Vec<u16>,
}

#[derive(Clone, Debug)]
enum UnansweredRequest {
    Subscribe { id: u16, sent: u64 },
    Unsubscribe { id: u16, sent: u64, filter: &'static str },
}

#[derive(Clone, Debug)]
struct OutgoingPublish {
    id: u16,
    serial: u64,
    topic: String,
    payload: Vec<u8>,
    qos: QoS,
    retain: bool,
    expiry_s: Option<u32>,
    /// PUBREC received: only PUBREL is sent again.
    is_received: bool,
    is_sent_here: bool,
}

#[derive(Clone, Copy, Debug)]
struct HeldPublish {
    serial: u64,
    qos: QoS,
    /// Not retained and not from a shared subscription. The others may be delivered again in another way.
    is_bound: bool,
    /// Received on an earlier connection, and not yet on this one.
    is_from_earlier_connection: bool,
    /// Number of crashes at that time.
    crashes: u64,
    retain: bool,
    /// Number of messages received before it.
    number: usize,
}

impl SimulatedClient {
    pub fn new(index: ClientIndex) -> SimulatedClient {
        SimulatedClient {
            index,
            stage: ClientStage::Offline,
            link: None,
            is_not_reading: false,
            ending_link: None,
            has_unknown_session: false,
            has_discarded_session: false,
            retained: Vec::new(),
            answers: VecDeque::new(),
            is_ping_pending: false,
            sent_ms: 0,
            silent_ms: u64::MAX,
            read_ms: 0,
            id: format!("c{index}"),
            terms: None,
            unread: Vec::new(),
            aliases: BTreeMap::new(),
            requests: Vec::new(),
            outgoing: Vec::new(),
            next_id: 0,
            window: 1,
            held: BTreeMap::new(),
            received: Vec::new(),
            open: Vec::new(),
        }
    }

    pub fn version(&self) -> ProtocolVersion {
        self.terms.as_ref().map_or(ProtocolVersion::V5, |terms| terms.version)
    }

    pub fn expiry_s(&self) -> u32 {
        self.terms.as_ref().map_or(0, |terms| terms.expiry_s)
    }

    /// Returns whether all requests of both sides have been answered.
    pub fn is_settled(&self) -> bool {
        let is_idle = self.answers.is_empty() && self.requests.is_empty() && self.outgoing.is_empty();
        self.stage == ClientStage::Online && is_idle && !self.is_ping_pending
    }

    /// Describes open requests, for the report.
    pub fn unsettled(&self) -> String {
        format!(
            "client {} {:?}: requests {:?}, messages {:?}, held {:?}, answers {:?}",
            self.index, self.stage, self.requests, self.outgoing, self.held, self.answers
        )
    }

    // --- connections ---

    pub fn connect(&mut self, terms: ConnectFields, capacity: usize, context: &mut ClientContext<'_>) -> LinkIndex {
        let link = context.network.open(self.index, capacity);
        context
            .trace
            .line(|| format!("c{} connects by link {link}: {terms:?}", self.index));
        context.oracle.connecting(self.index, &terms, context.ticked_ms);
        self.link = Some(link);
        self.stage = ClientStage::Connecting;
        self.is_not_reading = false;
        self.is_ping_pending = false;
        self.unread.clear();
        self.aliases.clear();
        self.requests.clear();
        self.answers.clear();
        self.open.clear();
        for outgoing in &mut self.outgoing {
            outgoing.is_sent_here = false;
        }
        for held in self.held.values_mut() {
            held.is_from_earlier_connection = true;
        }
        if terms.clean_start {
            self.discard_session();
        }
        let bytes = packets::connect(&terms, &self.id);
        self.terms = Some(terms);
        self.silent_ms = u64::MAX;
        self.read_ms = context.oracle.now_ms;
        self.write(&bytes, context);
        link
    }

    fn discard_session(&mut self) {
        self.has_discarded_session = true;
        self.outgoing.clear();
        self.held.clear();
        self.received.clear();
    }

    /// Closes the connection without DISCONNECT: by a reset, or by FIN after the bytes sent.
    pub fn cut(&mut self, with_reset: bool, context: &mut ClientContext<'_>) {
        let Some(link) = self.link.take() else { return };
        context
            .trace
            .line(|| format!("c{} cuts link {link}, reset {with_reset}", self.index));
        // Before CONNACK the link is reset, so that the node cannot read the CONNECT later.
        if with_reset || self.stage == ClientStage::Connecting {
            context.network.links[link.index()].reset();
        } else {
            context.network.links[link.index()].finish();
        }
        self.connection_ended(context);
    }

    /// Abandons the connection without closing it, so that the next one takes over.
    pub fn abandon(&mut self, context: &mut ClientContext<'_>) {
        if self.stage != ClientStage::Online {
            return;
        }
        let link = self.link.take();
        context.trace.line(|| format!("c{} abandons link {link:?}", self.index));
        self.connection_ended(context);
    }

    pub fn disconnect(&mut self, expiry_s: Option<u32>, with_will: bool, context: &mut ClientContext<'_>) {
        let is_v5 = self.version() == ProtocolVersion::V5;
        let expiry_s = expiry_s.filter(|_| is_v5 && self.expiry_s() > 0);
        let with_will = with_will && is_v5;
        let bytes = packets::disconnect(self.version(), expiry_s, with_will);
        self.write(&bytes, context);
        let Some(link) = self.link.take() else { return };
        context.trace.line(|| {
            format!(
                "c{} disconnects on link {link}, expiry {expiry_s:?}, will {with_will}",
                self.index
            )
        });
        context.network.links[link.index()].finish();
        self.stage = ClientStage::Offline;
        context
            .oracle
            .left(self.index, LeaveMode::Disconnect { expiry_s, with_will });
        self.ending_link = (expiry_s == Some(0)).then_some(link);
        self.discard_ended_session(expiry_s.unwrap_or(u32::MAX));
    }

    /// Returns whether the node may not have read the DISCONNECT yet.
    pub fn is_ending_session(&self, network: &Network) -> bool {
        self.ending_link
            .is_some_and(|link| !network.links[link.index()].is_closed_by_node)
    }

    fn discard_ended_session(&mut self, expiry_s: u32) {
        if self.expiry_s() == 0 || expiry_s == 0 {
            self.discard_session();
        }
    }

    fn connection_ended(&mut self, context: &mut ClientContext<'_>) {
        match self.stage {
            ClientStage::Connecting => {
                if context.oracle.connect_abandoned(self.index) {
                    self.has_unknown_session = true;
                    self.discard_session();
                }
            }
            ClientStage::Online => {
                context.oracle.left(self.index, LeaveMode::ConnectionLost);
                self.discard_ended_session(u32::MAX);
            }
            ClientStage::Offline => {}
        }
        self.stage = ClientStage::Offline;
    }

    fn write(&mut self, bytes: &[u8], context: &mut ClientContext<'_>) {
        context.trace.bytes(bytes);
        self.record_sent(context);
        if let Some(link) = self.link {
            context.network.links[link.index()].to_node.extend(bytes);
        }
    }

    /// A late packet changes nothing: the time at which the node receives it counts [MQTT-3.1.2-22], and transit times
    /// are unknown.
    fn record_sent(&mut self, context: &mut ClientContext<'_>) {
        self.sent_ms = context.oracle.now_ms;
        if self.sent_ms.saturating_add(ON_THE_WAY_MS) < self.silent_ms {
            self.silent_ms = self.alive_until(self.sent_ms);
        }
        context.oracle.sessions[self.index.index()].silent_ms = self.silent_ms;
    }

    /// Returns how long the node waits after a packet at this time.
    fn alive_until(&self, ms: u64) -> u64 {
        match self.terms.as_ref().map_or(0, |terms| u64::from(terms.keep_alive_s)) {
            0 => u64::MAX,
            seconds => ms + seconds * 1_500,
        }
    }

    /// The node does not read from a client that does not read its answers.
    fn record_read(&mut self, had_any: bool, has_left: bool, context: &mut ClientContext<'_>) {
        let now_ms = context.oracle.now_ms;
        if had_any && now_ms >= self.alive_until(self.read_ms) {
            self.silent_ms = self.silent_ms.min(now_ms);
            context.oracle.sessions[self.index.index()].silent_ms = self.silent_ms;
        }
        if !has_left {
            self.read_ms = now_ms;
        }
    }

    /// Returns whether the node is not reading the client's bytes.
    pub fn is_stuck(&self, network: &Network) -> bool {
        self.link
            .is_some_and(|link| network.links[link.index()].to_node.len() > 4_000)
    }

    // --- reading ---

    /// Reads up to `limit` bytes from the link. Returns whether there were any.
    pub fn read(&mut self, limit: usize, context: &mut ClientContext<'_>) -> bool {
        let Some(link_index) = self.link else { return false };
        let link = &mut context.network.links[link_index.index()];
        let size = link.to_client.len().min(limit);
        let bytes: Vec<u8> = link.to_client.drain(..size).collect();
        let has_left = !link.to_client.is_empty();
        let is_over = link.is_closed_by_node && !has_left;
        self.record_read(!bytes.is_empty(), has_left, context);
        context.trace.bytes(&bytes);
        self.unread.extend_from_slice(&bytes);
        let whole = std::mem::take(&mut self.unread);
        let used = self.read_packets(&whole, context);
        if self.link == Some(link_index) {
            self.unread = whole[used..].to_vec();
        }
        if is_over && self.link == Some(link_index) {
            context
                .trace
                .line(|| format!("c{} finds link {link_index} closed", self.index));
            self.link = None;
            self.connection_ended(context);
        }
        !bytes.is_empty() || is_over
    }

    fn read_packets(&mut self, bytes: &[u8], context: &mut ClientContext<'_>) -> usize {
        let mut used = 0;
        loop {
            match mqtt::decode(&bytes[used..], self.version(), 1 << 24) {
                Ok(Decoded::Complete { packet, size }) => {
                    used += size;
                    self.packet(&packet, context);
                    if self.link.is_none() {
                        return used;
                    }
                }
                Ok(Decoded::Incomplete { .. }) => return used,
                Err(error) => {
                    let text = format!(
                        "client {} received a malformed packet: {error:?} {:02x?}",
                        self.index,
                        &bytes[used..]
                    );
                    context.oracle.violated(|| text);
                    return bytes.len();
                }
            }
        }
    }

    fn packet(&mut self, packet: &Packet<'_>, context: &mut ClientContext<'_>) {
        if self.stage == ClientStage::Connecting && !matches!(packet, Packet::ConnAck(_)) {
            let text = format!(
                "client {} received {packet:?} before CONNACK [MQTT-3.2.0-1]",
                self.index
            );
            context.oracle.violated(|| text);
        }
        match packet {
            Packet::ConnAck(connack) => self.connack(connack, context),
            Packet::Publish(publish) => self.receive_publish(publish, context),
            Packet::PubRel(ack) => self.receive_pubrel(ack.packet_id.get(), context),
            Packet::PubAck(ack) => self.receive_puback(ack.packet_id.get(), ack.reason, context),
            Packet::PubRec(ack) => self.receive_pubrec(ack.packet_id.get(), ack.reason, context),
            Packet::PubComp(ack) => self.receive_pubcomp(ack.packet_id.get(), context),
            Packet::SubAck(suback) => self.receive_suback(suback.packet_id.get(), suback.reasons, context),
            Packet::UnsubAck(unsuback) => self.receive_unsuback(unsuback.packet_id.get(), context),
            Packet::PingResp => self.is_ping_pending = false,
            Packet::Disconnect(disconnect) => {
                let is_late =
                    disconnect.reason == ReasonCode::KeepAliveTimeout && context.oracle.now_ms >= self.silent_ms;
                let waits_in_vain =
                    disconnect.reason == ReasonCode::ImplementationSpecificError && context.oracle.has_journal_failed;
                if context.oracle.sessions[self.index.index()].is_sure && !is_late && !waits_in_vain {
                    let text = format!("client {} was disconnected: {disconnect:?}", self.index);
                    context.oracle.violated(|| text);
                }
            }
            other => {
                let text = format!(
                    "client {} received {other:?}, which is reserved for clients",
                    self.index
                );
                context.oracle.violated(|| text);
            }
        }
    }

    fn connack(&mut self, connack: &ConnAck<'_>, context: &mut ClientContext<'_>) {
        context.trace.line(|| {
            format!(
                "c{} received CONNACK {:?}, present {}",
                self.index, connack.reason, connack.session_present
            )
        });
        if connack.reason == ReasonCode::ServerUnavailable {
            // The journal has failed. The node closes the connection, and the state of the session remains unknown.
            return;
        }
        if connack.reason != ReasonCode::Success {
            let text = format!("client {} was rejected: {connack:?}", self.index);
            return context.oracle.violated(|| text);
        }
        self.stage = ClientStage::Online;
        self.window = usize::from(connack.properties.receive_maximum().unwrap_or(u16::MAX)).min(8);
        context.oracle.connected(self.index, connack.session_present);
        if !connack.session_present {
            self.has_unknown_session = false;
            self.discard_session();
            self.has_discarded_session = false;
        } else if !self.has_discarded_session {
            self.resend(context);
        } else if self.version().has_properties() {
            // [MQTT-3.2.2-4]
            self.has_unknown_session = true;
            self.cut(false, context);
        } else {
            // MQTT 3.1.1, section 3.2.2.2: the client may continue.
            context.oracle.mark_unsure(self.index);
            self.has_discarded_session = false;
        }
    }
}
