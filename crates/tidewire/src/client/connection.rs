//! An MQTT connection from the client's side: CONNECT, keep alive, packets out, and the loop that feeds packets to a
//! `ConnectionHandler`, which is the publisher or the subscriber.

use std::time::{Duration, Instant};

use mqtt::{
    ConnAck, Connect, ConnectReturnCode, Decoded, Disconnect, MAXIMUM_REMAINING_LENGTH, Packet, PacketId, Properties,
    Property, PropertyContext, PropertyWriter, ProtocolVersion, QoS, ReasonCode, Will, decode,
};
use mqtt_client::{ClientSession, ServerLimits, SessionEvent};

use super::args::ConnectOptions;
use super::events::{ClientEvent, ClientEventQueue, WaitOutcome};
use super::failure::ClientFailure;
use super::properties::checked;
use super::transport::ClientTransport;
use crate::output::print_error;

const PACKET_BYTES_MAX: usize = MAXIMUM_REMAINING_LENGTH + 5;
const OUTPUT_BYTES: usize = 64 * 1024;
/// How long the server has to answer CONNECT, and to close after DISCONNECT.
const CONNACK_TIMEOUT: Duration = Duration::from_secs(30);
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Packet identifiers of messages. SUBSCRIBE and UNSUBSCRIBE use the others.
const MESSAGE_IDS: u16 = 65_000;

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionFlow {
    Continue,
    /// Everything is done: send DISCONNECT and end.
    Done,
}

/// Handles the packets and events of a connection.
pub trait ConnectionHandler {
    /// The server has accepted the connection.
    fn connected(
        &mut self,
        connection: &mut MqttConnection<'_>,
        is_session_present: bool,
    ) -> Result<ConnectionFlow, ClientFailure>;
    fn event(
        &mut self,
        connection: &mut MqttConnection<'_>,
        event: SessionEvent<'_, ()>,
    ) -> Result<ConnectionFlow, ClientFailure>;
    fn line(
        &mut self,
        _connection: &mut MqttConnection<'_>,
        _line: Option<Vec<u8>>,
    ) -> Result<ConnectionFlow, ClientFailure> {
        Ok(ConnectionFlow::Continue)
    }
    /// When `due` has to be called.
    fn deadline(&self) -> Option<Instant> {
        None
    }
    fn due(&mut self, _connection: &mut MqttConnection<'_>) -> Result<ConnectionFlow, ClientFailure> {
        Ok(ConnectionFlow::Continue)
    }
    /// Nothing more is there for now: buffers can be flushed.
    fn idle(&mut self) -> Result<(), ClientFailure> {
        Ok(())
    }
}

pub struct MqttConnection<'s> {
    transport: ClientTransport,
    session: &'s mut ClientSession<()>,
    is_debug: bool,
    /// Number of this connection within a run. It distinguishes late events of an earlier connection.
    generation: u32,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Origin of the session's times.
    opened: Instant,
}

/// Creates the session of a command.
pub fn new_session(options: &ConnectOptions) -> ClientSession<()> {
    ClientSession::new(options.version, MESSAGE_IDS)
}

impl<'s> MqttConnection<'s> {
    pub fn open(
        options: &ConnectOptions,
        events: &ClientEventQueue,
        generation: u32,
        session: &'s mut ClientSession<()>,
    ) -> Result<MqttConnection<'s>, ClientFailure> {
        let transport = ClientTransport::connect(options)?;
        let reader = transport
            .reader()
            .map_err(|error| ClientFailure::local("cannot share the socket", &error))?;
        let mut connection = MqttConnection {
            transport,
            session,
            is_debug: options.is_debug,
            generation,
            inbox: Vec::new(),
            outbox: Vec::new(),
            opened: Instant::now(),
        };
        connection.send_connect(options);
        connection.flush()?;
        events.watch_socket(reader, generation);
        Ok(connection)
    }

    fn send_connect(&mut self, options: &ConnectOptions) {
        let mut connect = options.properties.connect.clone();
        if let Some(expiry) = options.session_expiry
            && checked(&connect, PropertyContext::Connect)
                .session_expiry_interval()
                .is_none()
        {
            PropertyWriter::new(&mut connect).put(Property::SessionExpiryInterval(expiry));
        }
        let will = options.will.as_ref().map(|will| Will {
            qos: will.qos,
            retain: will.retain,
            properties: checked(&options.properties.will, PropertyContext::Will),
            topic: &will.topic,
            payload: &will.payload,
        });
        let connect = Connect {
            version: options.version,
            clean_start: options.clean_start,
            is_bridge: false,
            keep_alive: options.keep_alive,
            properties: checked(&connect, PropertyContext::Connect),
            client_id: &options.client_id,
            will,
            user_name: options.user_name.as_deref(),
            password: options.password.as_ref().map(|password| password.expose().as_bytes()),
        };
        self.session.connect(connect, 0, &mut self.outbox);
        self.note_output(0);
    }

    pub fn is_accepted(&self) -> bool {
        self.session.is_accepted()
    }

    pub fn version(&self) -> ProtocolVersion {
        self.session.version()
    }

    pub fn limits(&self) -> ServerLimits {
        self.session.limits()
    }

    pub fn session(&mut self) -> &mut ClientSession<()> {
        self.session
    }

    /// Number of QoS 1 and 2 messages without acknowledgement.
    pub fn in_flight(&self) -> usize {
        self.session.in_flight_count()
    }

    /// Queues a packet; it goes out before the loop waits.
    pub fn send(&mut self, packet: &Packet<'_>) {
        self.note("sending", packet);
        packet.encode(self.session.version(), &mut self.outbox);
    }

    /// Acknowledges a message.
    pub fn acknowledge(&mut self, qos: QoS, id: Option<PacketId>) {
        let start = self.outbox.len();
        self.session.acknowledge(qos, id, &mut self.outbox);
        self.note_output(start);
    }

    /// Bounds the size of queued output.
    pub fn flush_if_full(&mut self) -> Result<(), ClientFailure> {
        if self.outbox.len() >= OUTPUT_BYTES {
            self.flush()
        } else {
            Ok(())
        }
    }

    pub fn flush(&mut self) -> Result<(), ClientFailure> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        let sent = self.transport.send(&self.outbox);
        self.outbox.clear();
        self.outbox.shrink_to(OUTPUT_BYTES);
        let now_ns = self.now_ns();
        self.session.keep_alive.record_sent(now_ns);
        sent.map_err(|error| ClientFailure::ConnectionLost(error.to_string()))
    }

    /// Sends DISCONNECT and closes the connection. `properties` are used in MQTT 5 only. Fails if queued output could
    /// not be sent.
    pub fn close(
        &mut self,
        events: &ClientEventQueue,
        reason: ReasonCode,
        properties: Properties<'_>,
    ) -> Result<(), ClientFailure> {
        self.send(&Packet::Disconnect(Disconnect { reason, properties }));
        let flushed = self.flush();
        if flushed.is_ok() {
            self.transport.close();
            self.wait_for_end(events);
        }
        self.transport.abort();
        flushed
    }

    /// Closing with unread bytes in the socket would make the kernel drop what the server has not read yet.
    fn wait_for_end(&self, events: &ClientEventQueue) {
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        loop {
            match events.next(Some(deadline)) {
                WaitOutcome::Event(ClientEvent::Closed { generation, .. }) if generation == self.generation => return,
                WaitOutcome::Event(ClientEvent::Signal) | WaitOutcome::Nothing => return,
                WaitOutcome::Event(_) => {}
            }
        }
    }

    /// Runs until the client is done. Afterwards the connection is of no use except to `close` it.
    pub fn run(&mut self, client: &mut impl ConnectionHandler, events: &ClientEventQueue) -> Result<(), ClientFailure> {
        loop {
            let event = match events.try_next() {
                WaitOutcome::Event(event) => WaitOutcome::Event(event),
                WaitOutcome::Nothing => {
                    client.idle()?;
                    self.flush()?;
                    events.next(self.deadline(client))
                }
            };
            let mut flow = match event {
                WaitOutcome::Event(event) => self.event(client, event)?,
                WaitOutcome::Nothing => ConnectionFlow::Continue,
            };
            // Also while events never end.
            if flow == ConnectionFlow::Continue && self.deadline(client).is_some_and(|due| Instant::now() >= due) {
                flow = self.due(client)?;
            }
            if flow == ConnectionFlow::Done {
                return client.idle();
            }
            if self.outbox.len() >= OUTPUT_BYTES {
                // The client writes out what the queued packets acknowledge.
                client.idle()?;
                self.flush()?;
            }
        }
    }

    fn event(
        &mut self,
        client: &mut impl ConnectionHandler,
        event: ClientEvent,
    ) -> Result<ConnectionFlow, ClientFailure> {
        match event {
            ClientEvent::Bytes { generation, bytes } if generation == self.generation => self.bytes(client, &bytes),
            ClientEvent::Closed { generation, error } if generation == self.generation => Err(self.lost(error)),
            ClientEvent::Bytes { .. } | ClientEvent::Closed { .. } => Ok(ConnectionFlow::Continue),
            ClientEvent::Line(line) => client.line(self, Some(line)),
            ClientEvent::LinesEnd(None) => client.line(self, None),
            ClientEvent::LinesEnd(Some(error)) => Err(ClientFailure::local("cannot read standard input", &error)),
            ClientEvent::Signal => Ok(ConnectionFlow::Done),
        }
    }

    fn lost(&self, error: Option<std::io::Error>) -> ClientFailure {
        let text = error.map_or("the server closed it".into(), |error| error.to_string());
        if self.is_accepted() {
            ClientFailure::ConnectionLost(text)
        } else {
            ClientFailure::Connect(format!("no CONNACK came: {text}"))
        }
    }

    fn bytes(&mut self, client: &mut impl ConnectionHandler, bytes: &[u8]) -> Result<ConnectionFlow, ClientFailure> {
        let mut inbox = std::mem::take(&mut self.inbox);
        let received = self
            .transport
            .receive(bytes, &mut inbox)
            .map_err(|error| ClientFailure::ConnectionLost(error.to_string()))?;
        let mut at = 0;
        let mut flow = ConnectionFlow::Continue;
        while flow == ConnectionFlow::Continue {
            match decode(&inbox[at..], self.session.version(), PACKET_BYTES_MAX) {
                Ok(Decoded::Incomplete { .. }) => break,
                Ok(Decoded::Complete { packet, size }) => {
                    self.note("received", &packet);
                    let start = self.outbox.len();
                    let event = self.session.handle(packet, &mut self.outbox);
                    self.note_output(start);
                    let event = event.map_err(|violation| ClientFailure::Protocol(violation.to_string()))?;
                    flow = self.session_event(client, event)?;
                    at += size;
                }
                Err(error) => return Err(ClientFailure::Protocol(format!("the server sent {}", error.kind))),
            }
        }
        inbox.drain(..at);
        self.inbox = inbox;
        if received.is_closed && flow == ConnectionFlow::Continue {
            Err(self.lost(None))
        } else {
            Ok(flow)
        }
    }

    fn session_event(
        &mut self,
        client: &mut impl ConnectionHandler,
        event: SessionEvent<'_, ()>,
    ) -> Result<ConnectionFlow, ClientFailure> {
        match event {
            SessionEvent::Accepted(connack) => client.connected(self, connack.session_present),
            SessionEvent::Rejected(connack) => Err(refusal(&connack, self.version())),
            SessionEvent::Disconnected(disconnect) => {
                let text = disconnect.properties.reason_string().map(Into::into);
                Err(ClientFailure::Disconnected {
                    reason: disconnect.reason,
                    text,
                })
            }
            event => client.event(self, event),
        }
    }

    fn now_ns(&self) -> u64 {
        self.opened.elapsed().as_nanos() as u64
    }

    fn deadline(&self, client: &impl ConnectionHandler) -> Option<Instant> {
        let own = if self.is_accepted() {
            let keep_alive = &self.session.keep_alive;
            let due_ns = keep_alive.ping_due_ns().or(keep_alive.response_due_ns());
            due_ns.map(|due_ns| self.opened + Duration::from_nanos(due_ns))
        } else {
            Some(self.opened + CONNACK_TIMEOUT)
        };
        [own, client.deadline()].into_iter().flatten().min()
    }

    fn due(&mut self, client: &mut impl ConnectionHandler) -> Result<ConnectionFlow, ClientFailure> {
        let now_ns = self.now_ns();
        let is_due = |due_ns: Option<u64>| due_ns.is_some_and(|due_ns| now_ns >= due_ns);
        if !self.is_accepted() {
            if self.opened.elapsed() >= CONNACK_TIMEOUT {
                return Err(ClientFailure::Connect("no CONNACK came in time".into()));
            }
        } else if is_due(self.session.keep_alive.response_due_ns()) {
            return Err(ClientFailure::ConnectionLost(
                "the server does not answer PINGREQ".into(),
            ));
        } else if is_due(self.session.keep_alive.ping_due_ns()) {
            let start = self.outbox.len();
            self.session.ping(now_ns, &mut self.outbox);
            self.note_output(start);
        }
        if client.deadline().is_some_and(|due| Instant::now() >= due) {
            client.due(self)
        } else {
            Ok(ConnectionFlow::Continue)
        }
    }

    /// Prints the packets of the output from `start` on.
    fn note_output(&self, start: usize) {
        let mut rest = &self.outbox[start..];
        while self.is_debug
            && let Ok(Decoded::Complete { packet, size }) = decode(rest, self.session.version(), PACKET_BYTES_MAX)
        {
            self.note("sending", &packet);
            rest = &rest[size..];
        }
    }

    fn note(&self, verb: &str, packet: &Packet<'_>) {
        if self.is_debug {
            print_error(&format!("{verb} {}", summary(packet)));
        }
    }
}

/// One line about a packet, without payload, user name or password.
fn summary(packet: &Packet<'_>) -> String {
    let name = packet.packet_type().name();
    match packet {
        Packet::Connect(connect) => format!(
            "{name} (client id `{}`, keep alive {})",
            connect.client_id, connect.keep_alive
        ),
        Packet::ConnAck(connack) => format!("{name} ({})", connack.reason.name()),
        Packet::Publish(publish) => {
            let id = publish.packet_id.map_or(0, PacketId::get);
            let (dup, qos, retain) = (u8::from(publish.dup), publish.qos as u8, u8::from(publish.retain));
            format!(
                "{name} (d{dup}, q{qos}, r{retain}, m{id}, `{}`, {} bytes)",
                publish.topic,
                publish.payload.len()
            )
        }
        Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack) => {
            format!("{name} (m{}, {})", ack.packet_id.get(), ack.reason.name())
        }
        Packet::Subscribe(subscribe) => {
            let filters: Vec<String> = subscribe
                .filters
                .iter()
                .map(|filter| format!("`{}`", filter.filter))
                .collect();
            format!("{name} (m{}, {})", subscribe.packet_id.get(), filters.join(", "))
        }
        Packet::SubAck(suback) => format!("{name} (m{}, {:?})", suback.packet_id.get(), suback.reasons),
        Packet::Disconnect(disconnect) => format!("{name} ({})", disconnect.reason.name()),
        _ => name.into(),
    }
}

/// In the words and the numbers of the version that was spoken.
fn refusal(connack: &ConnAck<'_>, version: ProtocolVersion) -> ClientFailure {
    let text = connack
        .properties
        .reason_string()
        .map(|text| format!(": {text}"))
        .unwrap_or_default();
    if version == ProtocolVersion::V5 {
        return ClientFailure::Refused {
            code: connack.reason.to_u8(),
            name: format!("{}{text}", connack.reason.name()),
        };
    }
    let code: ConnectReturnCode = connack.reason.to_connect_return_code();
    ClientFailure::Refused {
        code: code as u8,
        name: code.name().trim_start_matches("Connection Refused, ").into(),
    }
}
