//! The client's side of an MQTT session: decides what each packet of the server means and encodes the packets that must
//! follow it. The session outlives its connections.
//!
//! The caller decodes packets, which borrow from its read buffer, and passes each to `handle`. Replies are appended to
//! the caller's output buffer. The caller acknowledges a message when it is done with it; all other replies (PUBREL,
//! PUBCOMP, PUBREC for a repetition) are automatic.

use std::fmt;

use mqtt::{
    Ack, ConnAck, Connect, Disconnect, Packet, PacketId, PacketType, Properties, ProtocolVersion, Publish, QoS,
    ReasonCode, SubAck, UnsubAck, encode_bare_ack,
};

use crate::in_flight::{InFlight, Progress, UnreleasedIds};
use crate::keep_alive::KeepAlive;

/// `T` is the caller's data about a message in flight.
#[derive(Debug)]
pub struct ClientSession<T> {
    version: ProtocolVersion,
    is_accepted: bool,
    /// Packet identifiers of messages; those above are for requests.
    message_ids: u16,
    last_request_id: u16,
    limits: ServerLimits,
    pub keep_alive: KeepAlive,
    /// Created with the first message of QoS 1 or 2: most clients of a load test have none.
    exchanges: Option<Box<Exchanges<T>>>,
}

#[derive(Debug)]
struct Exchanges<T> {
    sent: InFlight<T>,
    received: UnreleasedIds,
}

/// Limits that the server has announced in CONNACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    pub receive_maximum: u16,
    pub maximum_qos: QoS,
    pub is_retain_available: bool,
    pub packet_bytes_max: u32,
}

impl ServerLimits {
    /// The largest packet that MQTT can describe: five bytes of fixed header and 268,435,455 after it.
    const PACKET_BYTES_MAX: u32 = mqtt::MAXIMUM_REMAINING_LENGTH as u32 + 5;

    const NONE: ServerLimits = ServerLimits {
        receive_maximum: u16::MAX,
        maximum_qos: QoS::ExactlyOnce,
        is_retain_available: true,
        packet_bytes_max: ServerLimits::PACKET_BYTES_MAX,
    };

    fn of(properties: &Properties<'_>) -> ServerLimits {
        let none = ServerLimits::NONE;
        ServerLimits {
            receive_maximum: properties.receive_maximum().unwrap_or(none.receive_maximum),
            maximum_qos: properties
                .maximum_qos()
                .and_then(QoS::from_bits)
                .unwrap_or(none.maximum_qos),
            is_retain_available: properties.retain_available().unwrap_or(none.is_retain_available),
            packet_bytes_max: properties.maximum_packet_size().unwrap_or(none.packet_bytes_max),
        }
    }
}

/// Meaning of a packet for the caller.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionEvent<'p, T> {
    /// The server has accepted the connection.
    Accepted(ConnAck<'p>),
    /// The server has rejected the connection.
    Rejected(ConnAck<'p>),
    /// A message. With QoS 1 or 2, `acknowledge` is called for it.
    Message(Publish<'p>),
    /// The server has a QoS 2 message; PUBREL follows.
    Received(PacketId),
    /// PUBACK, PUBCOMP, or a PUBREC with an error has ended a delivery.
    Finished(T, PacketType, Ack<'p>),
    /// No message in flight waits for this acknowledgement.
    UnknownAck(PacketType, PacketId),
    Subscribed(SubAck<'p>),
    Unsubscribed(UnsubAck<'p>),
    /// The server ends the connection.
    Disconnected(Disconnect<'p>),
    /// Nothing for the caller.
    Handled,
}

/// A packet that the server must not send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolViolation {
    FirstPacket(PacketType),
    SecondConnAck,
    UnexpectedPacket(PacketType),
}

impl fmt::Display for ProtocolViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProtocolViolation::FirstPacket(kind) => write!(f, "expected CONNACK, received {kind}"),
            ProtocolViolation::SecondConnAck => f.write_str("the server sent a second CONNACK"),
            ProtocolViolation::UnexpectedPacket(PacketType::Auth) => {
                f.write_str("the server sent AUTH, but no authentication method was requested")
            }
            ProtocolViolation::UnexpectedPacket(kind) => {
                write!(f, "the server sent {kind}, which only a client may send")
            }
        }
    }
}

impl<T: Copy> ClientSession<T> {
    /// Creates a session. Messages in flight use the packet identifiers from 1 to `message_ids`, at most 65,534.
    pub fn new(version: ProtocolVersion, message_ids: u16) -> ClientSession<T> {
        let message_ids = message_ids.clamp(1, u16::MAX - 1);
        ClientSession {
            version,
            is_accepted: false,
            message_ids,
            last_request_id: message_ids,
            limits: ServerLimits::NONE,
            keep_alive: KeepAlive::default(),
            exchanges: None,
        }
    }

    /// Starts a connection: encodes CONNECT.
    pub fn connect(&mut self, connect: Connect<'_>, now_ns: u64, out: &mut Vec<u8>) {
        self.is_accepted = false;
        self.limits = ServerLimits::NONE;
        self.keep_alive.start(connect.keep_alive, now_ns);
        Packet::Connect(connect).encode(self.version, out);
    }

    pub fn version(&self) -> ProtocolVersion {
        self.version
    }

    /// Whether the server has accepted the current connection.
    pub fn is_accepted(&self) -> bool {
        self.is_accepted
    }

    pub fn limits(&self) -> ServerLimits {
        self.limits
    }

    /// Messages in flight, if any message of QoS 1 or 2 was sent or received.
    pub fn in_flight(&self) -> Option<&InFlight<T>> {
        self.exchanges.as_deref().map(|exchanges| &exchanges.sent)
    }

    /// Messages in flight.
    pub fn in_flight_mut(&mut self) -> &mut InFlight<T> {
        &mut self.exchanges().sent
    }

    fn exchanges(&mut self) -> &mut Exchanges<T> {
        let message_ids = self.message_ids;
        self.exchanges.get_or_insert_with(|| {
            Box::new(Exchanges {
                sent: InFlight::new(message_ids),
                received: UnreleasedIds::default(),
            })
        })
    }

    pub fn in_flight_count(&self) -> usize {
        self.in_flight().map_or(0, InFlight::len)
    }

    /// Forgets the messages in flight. The caller does not send them again.
    pub fn drop_in_flight(&mut self) {
        if let Some(exchanges) = &mut self.exchanges {
            exchanges.sent.clear();
        }
    }

    /// Forgets the session, because the server has none.
    pub fn discard(&mut self) {
        self.exchanges = None;
    }

    /// Returns the packet identifier of the next SUBSCRIBE or UNSUBSCRIBE.
    pub fn request_id(&mut self) -> PacketId {
        self.last_request_id = self.last_request_id.checked_add(1).unwrap_or(self.message_ids + 1);
        PacketId::new(self.last_request_id).expect("above the identifiers of messages")
    }

    /// Handles a packet of the server and appends the reply to `out`.
    pub fn handle<'p>(
        &mut self,
        packet: Packet<'p>,
        out: &mut Vec<u8>,
    ) -> Result<SessionEvent<'p, T>, ProtocolViolation> {
        if !self.is_accepted {
            return match packet {
                Packet::ConnAck(connack) => Ok(self.on_connack(connack)),
                other => Err(ProtocolViolation::FirstPacket(other.packet_type())),
            };
        }
        Ok(match packet {
            Packet::Publish(publish) => return Ok(self.on_publish(publish, out)),
            Packet::PubAck(ack) => self.on_ack(PacketType::PubAck, ack, out),
            Packet::PubRec(ack) => self.on_ack(PacketType::PubRec, ack, out),
            Packet::PubComp(ack) => self.on_ack(PacketType::PubComp, ack, out),
            Packet::PubRel(ack) => {
                if let Some(exchanges) = &mut self.exchanges {
                    exchanges.received.remove(ack.packet_id);
                }
                // Also for an unknown packet identifier [MQTT-4.3.3-11].
                encode_bare_ack(PacketType::PubComp, ack.packet_id, out);
                SessionEvent::Handled
            }
            Packet::SubAck(suback) => SessionEvent::Subscribed(suback),
            Packet::UnsubAck(unsuback) => SessionEvent::Unsubscribed(unsuback),
            Packet::PingResp => {
                self.keep_alive.record_response();
                SessionEvent::Handled
            }
            Packet::Disconnect(disconnect) => SessionEvent::Disconnected(disconnect),
            Packet::ConnAck(_) => return Err(ProtocolViolation::SecondConnAck),
            other => return Err(ProtocolViolation::UnexpectedPacket(other.packet_type())),
        })
    }

    fn on_connack<'p>(&mut self, connack: ConnAck<'p>) -> SessionEvent<'p, T> {
        if connack.reason.is_error() {
            return SessionEvent::Rejected(connack);
        }
        self.is_accepted = true;
        self.limits = ServerLimits::of(&connack.properties);
        if let Some(interval_s) = connack.properties.server_keep_alive() {
            self.keep_alive.set_interval(interval_s);
        }
        SessionEvent::Accepted(connack)
    }

    fn on_publish<'p>(&mut self, publish: Publish<'p>, out: &mut Vec<u8>) -> SessionEvent<'p, T> {
        if publish.qos == QoS::ExactlyOnce
            && let Some(id) = publish.packet_id
            && let Some(exchanges) = &self.exchanges
            && exchanges.received.contains(id)
        {
            encode_bare_ack(PacketType::PubRec, id, out);
            return SessionEvent::Handled;
        }
        SessionEvent::Message(publish)
    }

    fn on_ack<'p>(&mut self, kind: PacketType, ack: Ack<'p>, out: &mut Vec<u8>) -> SessionEvent<'p, T> {
        let (id, is_error) = (ack.packet_id, ack.reason.is_error());
        let progress = match &mut self.exchanges {
            Some(exchanges) => exchanges.sent.acknowledge(kind, id, is_error),
            None => Progress::Unknown,
        };
        // Also for a message that this client does not know: PUBREL frees the identifier at the server.
        if kind == PacketType::PubRec && !is_error {
            encode_bare_ack(PacketType::PubRel, id, out);
        }
        match progress {
            Progress::Received => SessionEvent::Received(id),
            Progress::Finished(message) => SessionEvent::Finished(message, kind, ack),
            Progress::Unknown => SessionEvent::UnknownAck(kind, id),
        }
    }

    /// Acknowledges a message: PUBACK, or PUBREC. Nothing for QoS 0.
    pub fn acknowledge(&mut self, qos: QoS, id: Option<PacketId>, out: &mut Vec<u8>) {
        let Some(id) = id else { return };
        if qos == QoS::ExactlyOnce {
            self.exchanges().received.insert(id);
            encode_bare_ack(PacketType::PubRec, id, out);
        } else {
            encode_bare_ack(PacketType::PubAck, id, out);
        }
    }

    pub fn ping(&mut self, now_ns: u64, out: &mut Vec<u8>) {
        Packet::PingReq.encode(self.version, out);
        self.keep_alive.record_ping(now_ns);
    }

    pub fn disconnect(&mut self, properties: Properties<'_>, out: &mut Vec<u8>) {
        let reason = ReasonCode::Success;
        Packet::Disconnect(Disconnect { reason, properties }).encode(self.version, out);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

    use mqtt::{Property, PropertyWriter};

    use super::*;

    const V5: ProtocolVersion = ProtocolVersion::V5;

    fn id(id: u16) -> PacketId {
        PacketId::new(id).unwrap()
    }

    fn ack(number: u16, reason: ReasonCode) -> Ack<'static> {
        Ack {
            packet_id: id(number),
            reason,
            properties: Properties::EMPTY,
        }
    }

    fn connack(reason: ReasonCode, properties: Properties<'_>) -> Packet<'_> {
        Packet::ConnAck(ConnAck {
            session_present: false,
            reason,
            properties,
        })
    }

    fn connected() -> ClientSession<u32> {
        let mut session = ClientSession::new(V5, 100);
        let accepted = session.handle(connack(ReasonCode::Success, Properties::EMPTY), &mut Vec::new());
        assert!(matches!(accepted, Ok(SessionEvent::Accepted(_))));
        session
    }

    fn message(qos: QoS, number: u16) -> Packet<'static> {
        Packet::Publish(Publish {
            dup: false,
            qos,
            retain: false,
            topic: "t",
            packet_id: PacketId::new(number),
            properties: Properties::EMPTY,
            payload: b"",
        })
    }

    fn bare(kind: PacketType, number: u16) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_bare_ack(kind, id(number), &mut bytes);
        bytes
    }

    #[test]
    fn connack_sets_limits_and_keep_alive() {
        let mut session: ClientSession<()> = ClientSession::new(V5, 100);
        let connect = Connect {
            version: V5,
            clean_start: true,
            is_bridge: false,
            keep_alive: 60,
            properties: Properties::EMPTY,
            client_id: "c",
            will: None,
            user_name: None,
            password: None,
        };
        let mut out = Vec::new();
        session.connect(connect, 5, &mut out);
        assert_eq!(out[0], 0x10);
        assert_eq!(session.keep_alive.ping_due_ns(), Some(45_000_000_005));
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        writer
            .put(Property::ReceiveMaximum(7))
            .put(Property::MaximumQoS(1))
            .put(Property::MaximumPacketSize(1000))
            .put(Property::ServerKeepAlive(4));
        let accepted = session.handle(connack(ReasonCode::Success, writer.finish()), &mut out);
        assert!(matches!(accepted, Ok(SessionEvent::Accepted(_))));
        let expected = ServerLimits {
            receive_maximum: 7,
            maximum_qos: QoS::AtLeastOnce,
            is_retain_available: true,
            packet_bytes_max: 1000,
        };
        assert_eq!((session.limits(), session.is_accepted()), (expected, true));
        assert_eq!(session.keep_alive.ping_due_ns(), Some(3_000_000_005));
        session.ping(3_000_000_005, &mut out);
        assert_eq!(session.keep_alive.ping_due_ns(), None);
        assert_eq!(session.keep_alive.response_due_ns(), Some(7_000_000_005));
        assert_eq!(session.handle(Packet::PingResp, &mut out), Ok(SessionEvent::Handled));
        assert_eq!(session.keep_alive.ping_due_ns(), Some(6_000_000_005));
    }

    #[test]
    fn packets_in_the_wrong_state_are_violations() {
        let mut session: ClientSession<u32> = ClientSession::new(V5, 100);
        let mut out = Vec::new();
        let early = session.handle(message(QoS::AtMostOnce, 0), &mut out);
        assert_eq!(early, Err(ProtocolViolation::FirstPacket(PacketType::Publish)));
        let rejected = session.handle(connack(ReasonCode::Banned, Properties::EMPTY), &mut out);
        assert!(matches!(rejected, Ok(SessionEvent::Rejected(_))) && !session.is_accepted());
        let mut session = connected();
        let second = session.handle(connack(ReasonCode::Success, Properties::EMPTY), &mut out);
        assert_eq!(second, Err(ProtocolViolation::SecondConnAck));
        let request = session.handle(Packet::PingReq, &mut out);
        assert_eq!(request, Err(ProtocolViolation::UnexpectedPacket(PacketType::PingReq)));
        assert!(out.is_empty());
    }

    #[test]
    fn qos_2_delivery_ends_with_pubcomp() {
        let (mut session, mut out) = (connected(), Vec::new());
        assert_eq!(session.in_flight_mut().push(QoS::ExactlyOnce, 9), id(1));
        let received = session.handle(Packet::PubRec(ack(1, ReasonCode::Success)), &mut out);
        assert_eq!(
            (received, out),
            (Ok(SessionEvent::Received(id(1))), bare(PacketType::PubRel, 1))
        );
        let mut out = Vec::new();
        let done = ack(1, ReasonCode::Success);
        let finished = session.handle(Packet::PubComp(done.clone()), &mut out);
        assert_eq!(finished, Ok(SessionEvent::Finished(9, PacketType::PubComp, done)));
        assert_eq!((session.in_flight_count(), out.len()), (0, 0));
    }

    #[test]
    fn rejected_qos_2_message_has_no_pubrel() {
        let (mut session, mut out) = (connected(), Vec::new());
        session.in_flight_mut().push(QoS::ExactlyOnce, 9);
        let refusal = ack(1, ReasonCode::QuotaExceeded);
        let finished = session.handle(Packet::PubRec(refusal.clone()), &mut out);
        let expected = SessionEvent::Finished(9, PacketType::PubRec, refusal);
        assert_eq!((finished, out.len()), (Ok(expected), 0));
        let unknown = session.handle(Packet::PubRec(ack(2, ReasonCode::Success)), &mut out);
        let expected = SessionEvent::UnknownAck(PacketType::PubRec, id(2));
        assert_eq!((unknown, out), (Ok(expected), bare(PacketType::PubRel, 2)));
    }

    #[test]
    fn repeated_qos_2_message_is_acknowledged_and_not_delivered() {
        let (mut session, mut out) = (connected(), Vec::new());
        for is_first in [true, false] {
            let event = session.handle(message(QoS::ExactlyOnce, 3), &mut out).unwrap();
            assert_eq!(matches!(event, SessionEvent::Message(_)), is_first);
            if is_first {
                session.acknowledge(QoS::ExactlyOnce, Some(id(3)), &mut out);
            }
            assert_eq!(std::mem::take(&mut out), bare(PacketType::PubRec, 3));
        }
        let release = Packet::PubRel(ack(3, ReasonCode::Success));
        assert_eq!(session.handle(release, &mut out), Ok(SessionEvent::Handled));
        assert_eq!(out, bare(PacketType::PubComp, 3));
        let event = session.handle(message(QoS::ExactlyOnce, 3), &mut out).unwrap();
        assert!(matches!(event, SessionEvent::Message(_)));
    }

    #[test]
    fn request_ids_are_above_those_of_messages() {
        let mut session: ClientSession<()> = ClientSession::new(V5, u16::MAX - 2);
        let ids = [(); 3].map(|()| session.request_id().get());
        assert_eq!(ids, [u16::MAX - 1, u16::MAX, u16::MAX - 1]);
    }
}
