//! A virtual client: one client id, its connection and what it keeps of its session, as the standard prescribes.
//!
//! It speaks through its link only. What it sends and gets is told to the oracle, which judges it; what only the protocol
//! between two ends can show (identifiers, windows, DUP) is checked here.

mod incoming;
mod outgoing;

use std::collections::{BTreeMap, VecDeque};

use mqtt::{ConnAck, Decoded, Packet, PacketType, ProtocolVersion, QoS, ReasonCode};

pub use outgoing::Order;

use crate::network::Network;
use crate::oracle::{Left, Oracle};
use crate::speak::{self, Terms};
use crate::trace::Trace;

/// A worker that has not read for longer reads everything before it finds anybody silent.
const ON_THE_WAY_MS: u64 = 500;

/// What a client needs to do anything.
pub struct Scene<'a> {
    pub network: &'a mut Network,
    pub oracle: &'a mut Oracle,
    pub trace: &'a mut Trace,
    /// Up to when the node has done what was due.
    pub ticked_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Away,
    /// CONNECT is sent.
    Connecting,
    Online,
}

pub struct Client {
    pub index: usize,
    pub stage: Stage,
    pub link: Option<usize>,
    /// It does not look at what comes.
    pub is_dawdling: bool,
    /// The connection on which it ended its session; it does not come back before the node has heard that.
    pub parting: Option<usize>,
    /// It has no session that would be worth resuming: the last CONNECT was never answered.
    pub is_confused: bool,
    /// It has forgotten its session, which the node may still have.
    has_forgotten: bool,
    /// Retained messages that came, for who audits.
    pub retained: Vec<(String, u64)>,
    /// Answers owed on this connection, oldest first.
    pub answers: VecDeque<(PacketType, u16)>,
    pub is_ping_pending: bool,
    /// When it has last sent anything.
    sent_ms: u64,
    /// From when on the node may close this connection, because nothing came for one and a half times the Keep Alive.
    silent_ms: u64,
    /// When all was read last that the node had sent.
    read_ms: u64,
    id: String,
    terms: Option<Terms>,
    unread: Vec<u8>,
    aliases: BTreeMap<u16, String>,
    requests: Vec<Request>,
    /// Messages that the server has not completed, in the order they were sent first.
    outgoing: Vec<Outgoing>,
    next_id: u16,
    /// Of the server, for this connection.
    window: usize,
    /// Messages of the server that are not completed, by identifier.
    held: BTreeMap<u16, Held>,
    /// All that came of this session.
    came: Vec<Held>,
    /// Of those, the ones sent on this connection.
    open: Vec<u16>,
}

#[derive(Clone, Debug)]
enum Request {
    Subscribe { id: u16, sent: u64 },
    Unsubscribe { id: u16, sent: u64, filter: &'static str },
}

#[derive(Clone, Debug)]
struct Outgoing {
    id: u16,
    serial: u64,
    topic: String,
    payload: Vec<u8>,
    qos: QoS,
    retain: bool,
    expiry_s: Option<u32>,
    /// PUBREC has come: only PUBREL is sent again.
    is_received: bool,
    is_sent_here: bool,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    serial: u64,
    qos: QoS,
    /// Through a shared subscription, or retained: it may come again in another way.
    is_bound: bool,
    /// It has come on an earlier connection, and not yet on this.
    is_from_before: bool,
    /// How many processes had ended then.
    crashes: u64,
    retain: bool,
    /// How many had come.
    number: usize,
}

impl Client {
    pub fn new(index: usize) -> Client {
        Client {
            index,
            stage: Stage::Away,
            link: None,
            is_dawdling: false,
            parting: None,
            is_confused: false,
            has_forgotten: false,
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
            came: Vec::new(),
            open: Vec::new(),
        }
    }

    pub fn version(&self) -> ProtocolVersion {
        self.terms.as_ref().map_or(ProtocolVersion::V5, |terms| terms.version)
    }

    pub fn expiry_s(&self) -> u32 {
        self.terms.as_ref().map_or(0, |terms| terms.expiry_s)
    }

    /// Everything that it has asked was answered, and everything it was asked.
    pub fn is_settled(&self) -> bool {
        let is_idle = self.answers.is_empty() && self.requests.is_empty() && self.outgoing.is_empty();
        self.stage == Stage::Online && is_idle && !self.is_ping_pending
    }

    /// What has not been answered, for the report.
    pub fn unsettled(&self) -> String {
        format!(
            "client {} {:?}: requests {:?}, messages {:?}, held {:?}, answers {:?}",
            self.index, self.stage, self.requests, self.outgoing, self.held, self.answers
        )
    }

    // --- connections ---

    pub fn connect(&mut self, terms: Terms, capacity: usize, scene: &mut Scene<'_>) -> usize {
        let link = scene.network.open(self.index, capacity);
        scene
            .trace
            .line(|| format!("c{} connects by link {link}: {terms:?}", self.index));
        scene.oracle.connecting(self.index, &terms, scene.ticked_ms);
        self.link = Some(link);
        self.stage = Stage::Connecting;
        self.is_dawdling = false;
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
            held.is_from_before = true;
        }
        if terms.clean_start {
            self.forget_session();
        }
        let bytes = speak::connect(&terms, &self.id);
        self.terms = Some(terms);
        self.silent_ms = u64::MAX;
        self.read_ms = scene.oracle.now_ms;
        self.write(&bytes, scene);
        link
    }

    fn forget_session(&mut self) {
        self.has_forgotten = true;
        self.outgoing.clear();
        self.held.clear();
        self.came.clear();
    }

    /// Leaves without a word: by a reset, or by FIN behind what it has sent.
    pub fn cut(&mut self, with_reset: bool, scene: &mut Scene<'_>) {
        let Some(link) = self.link.take() else { return };
        scene
            .trace
            .line(|| format!("c{} cuts link {link}, reset {with_reset}", self.index));
        // Before CONNACK nobody may read the CONNECT later.
        if with_reset || self.stage == Stage::Connecting {
            scene.network.links[link].reset();
        } else {
            scene.network.links[link].finish();
        }
        self.gone(scene);
    }

    /// Forgets the connection without closing it, to be taken over.
    pub fn abandon(&mut self, scene: &mut Scene<'_>) {
        if self.stage != Stage::Online {
            return;
        }
        let link = self.link.take();
        scene.trace.line(|| format!("c{} abandons link {link:?}", self.index));
        self.gone(scene);
    }

    pub fn disconnect(&mut self, expiry_s: Option<u32>, with_will: bool, scene: &mut Scene<'_>) {
        let is_v5 = self.version() == ProtocolVersion::V5;
        let expiry_s = expiry_s.filter(|_| is_v5 && self.expiry_s() > 0);
        let with_will = with_will && is_v5;
        let bytes = speak::disconnect(self.version(), expiry_s, with_will);
        self.write(&bytes, scene);
        let Some(link) = self.link.take() else { return };
        scene.trace.line(|| {
            format!(
                "c{} says goodbye on link {link}, expiry {expiry_s:?}, will {with_will}",
                self.index
            )
        });
        scene.network.links[link].finish();
        self.stage = Stage::Away;
        scene.oracle.left(self.index, Left::Goodbye { expiry_s, with_will });
        self.parting = (expiry_s == Some(0)).then_some(link);
        self.forget_what_has_ended(expiry_s.unwrap_or(u32::MAX));
    }

    /// Whether the node may still be reading its goodbye.
    pub fn is_parting(&self, network: &Network) -> bool {
        self.parting.is_some_and(|link| !network.links[link].is_closed_by_node)
    }

    fn forget_what_has_ended(&mut self, expiry_s: u32) {
        if self.expiry_s() == 0 || expiry_s == 0 {
            self.forget_session();
        }
    }

    fn gone(&mut self, scene: &mut Scene<'_>) {
        match self.stage {
            Stage::Connecting => {
                if scene.oracle.gave_up(self.index) {
                    self.is_confused = true;
                    self.forget_session();
                }
            }
            Stage::Online => {
                scene.oracle.left(self.index, Left::Lost);
                self.forget_what_has_ended(u32::MAX);
            }
            Stage::Away => {}
        }
        self.stage = Stage::Away;
    }

    fn write(&mut self, bytes: &[u8], scene: &mut Scene<'_>) {
        scene.trace.bytes(bytes);
        self.note_sent(scene);
        if let Some(link) = self.link {
            scene.network.links[link].to_node.extend(bytes);
        }
    }

    /// What comes too late changes nothing: what counts is what the node has received [MQTT-3.1.2-22], and nobody knows how long it
    /// is on the way.
    fn note_sent(&mut self, scene: &mut Scene<'_>) {
        self.sent_ms = scene.oracle.now_ms;
        if self.sent_ms.saturating_add(ON_THE_WAY_MS) < self.silent_ms {
            self.silent_ms = self.alive_until(self.sent_ms);
        }
        scene.oracle.sessions[self.index].silent_ms = self.silent_ms;
    }

    /// How long the node waits for a sign of life after one at this time.
    fn alive_until(&self, ms: u64) -> u64 {
        match self.terms.as_ref().map_or(0, |terms| u64::from(terms.keep_alive_s)) {
            0 => u64::MAX,
            seconds => ms + seconds * 1_500,
        }
    }

    /// The node reads nothing from a client that does not take its answers.
    fn note_read(&mut self, had_any: bool, has_left: bool, scene: &mut Scene<'_>) {
        let now_ms = scene.oracle.now_ms;
        if had_any && now_ms >= self.alive_until(self.read_ms) {
            self.silent_ms = self.silent_ms.min(now_ms);
            scene.oracle.sessions[self.index].silent_ms = self.silent_ms;
        }
        if !has_left {
            self.read_ms = now_ms;
        }
    }

    /// Bytes wait that the node does not take.
    pub fn is_stuck(&self, network: &Network) -> bool {
        self.link.is_some_and(|link| network.links[link].to_node.len() > 4_000)
    }

    // --- reading ---

    /// Takes up to `limit` bytes from the link. Returns whether there was anything.
    pub fn read(&mut self, limit: usize, scene: &mut Scene<'_>) -> bool {
        let Some(link_index) = self.link else { return false };
        let link = &mut scene.network.links[link_index];
        let size = link.to_client.len().min(limit);
        let bytes: Vec<u8> = link.to_client.drain(..size).collect();
        let has_left = !link.to_client.is_empty();
        let is_over = link.is_closed_by_node && !has_left;
        self.note_read(!bytes.is_empty(), has_left, scene);
        scene.trace.bytes(&bytes);
        self.unread.extend_from_slice(&bytes);
        let whole = std::mem::take(&mut self.unread);
        let used = self.read_packets(&whole, scene);
        if self.link == Some(link_index) {
            self.unread = whole[used..].to_vec();
        }
        if is_over && self.link == Some(link_index) {
            scene
                .trace
                .line(|| format!("c{} finds link {link_index} closed", self.index));
            self.link = None;
            self.gone(scene);
        }
        !bytes.is_empty() || is_over
    }

    fn read_packets(&mut self, bytes: &[u8], scene: &mut Scene<'_>) -> usize {
        let mut used = 0;
        loop {
            match mqtt::decode(&bytes[used..], self.version(), 1 << 24) {
                Ok(Decoded::Complete { packet, size }) => {
                    used += size;
                    self.packet(&packet, scene);
                    if self.link.is_none() {
                        return used;
                    }
                }
                Ok(Decoded::Incomplete { .. }) => return used,
                Err(error) => {
                    let text = format!("client {} got nonsense: {error:?} {:02x?}", self.index, &bytes[used..]);
                    scene.oracle.violated(|| text);
                    return bytes.len();
                }
            }
        }
    }

    fn packet(&mut self, packet: &Packet<'_>, scene: &mut Scene<'_>) {
        if self.stage == Stage::Connecting && !matches!(packet, Packet::ConnAck(_)) {
            let text = format!("client {} got {packet:?} before CONNACK [MQTT-3.2.0-1]", self.index);
            scene.oracle.violated(|| text);
        }
        match packet {
            Packet::ConnAck(connack) => self.connack(connack, scene),
            Packet::Publish(publish) => self.publish_came(publish, scene),
            Packet::PubRel(ack) => self.pubrel_came(ack.packet_id.get(), scene),
            Packet::PubAck(ack) => self.puback_came(ack.packet_id.get(), ack.reason, scene),
            Packet::PubRec(ack) => self.pubrec_came(ack.packet_id.get(), ack.reason, scene),
            Packet::PubComp(ack) => self.pubcomp_came(ack.packet_id.get(), scene),
            Packet::SubAck(suback) => self.suback_came(suback.packet_id.get(), suback.reasons, scene),
            Packet::UnsubAck(unsuback) => self.unsuback_came(unsuback.packet_id.get(), scene),
            Packet::PingResp => self.is_ping_pending = false,
            Packet::Disconnect(disconnect) => {
                let is_late =
                    disconnect.reason == ReasonCode::KeepAliveTimeout && scene.oracle.now_ms >= self.silent_ms;
                let waits_in_vain =
                    disconnect.reason == ReasonCode::ImplementationSpecificError && scene.oracle.has_journal_failed;
                if scene.oracle.sessions[self.index].is_sure && !is_late && !waits_in_vain {
                    let text = format!("client {} was sent away: {disconnect:?}", self.index);
                    scene.oracle.violated(|| text);
                }
            }
            other => {
                let text = format!("client {} got {other:?}, which no server sends", self.index);
                scene.oracle.violated(|| text);
            }
        }
    }

    fn connack(&mut self, connack: &ConnAck<'_>, scene: &mut Scene<'_>) {
        scene.trace.line(|| {
            format!(
                "c{} got CONNACK {:?}, present {}",
                self.index, connack.reason, connack.session_present
            )
        });
        if connack.reason == ReasonCode::ServerUnavailable {
            // The journal has failed. The node closes the connection, and what it knows of the session is as uncertain as ever.
            return;
        }
        if connack.reason != ReasonCode::Success {
            let text = format!("client {} was refused: {connack:?}", self.index);
            return scene.oracle.violated(|| text);
        }
        self.stage = Stage::Online;
        self.window = usize::from(connack.properties.receive_maximum().unwrap_or(u16::MAX)).min(8);
        scene.oracle.connected(self.index, connack.session_present);
        if !connack.session_present {
            self.is_confused = false;
            self.forget_session();
            self.has_forgotten = false;
        } else if !self.has_forgotten {
            self.resend(scene);
        } else if self.version().has_properties() {
            // [MQTT-3.2.2-4]
            self.is_confused = true;
            self.cut(false, scene);
        } else {
            // MQTT 3.1.1, 3.2.2.2: it may go on.
            scene.oracle.unsure(self.index);
            self.has_forgotten = false;
        }
    }
}
