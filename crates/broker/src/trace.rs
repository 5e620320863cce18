//! Traces: packets of selected clients in both directions, and their connection events.
//!
//! A trace consists of a filter and a sink. Received packets are traced after they have been handled, and sent packets
//! when the driver is about to write them. The sink receives whole decoded packets on the shard's thread, decides what
//! to store, and must not block. Without a trace the cost is a check of one pointer per batch of a connection and per
//! tick, and nothing per packet.
//!
//! Connections that end before their CONNECT is complete are not traced, because the shard does not see them.

use std::collections::HashMap;
use std::net::IpAddr;

use mqtt::{Decoded, Packet, PacketType, filter_matches};

use crate::access::LoginGrant;
use crate::connection::Connection;
use crate::connections::Connections;
use crate::effect::{ConnectionEvent, Effect};
use crate::mountpoint::Mountpoint;
use crate::outbox::Outbox;
use crate::session::Session;
use crate::sessions::Sessions;
use crate::slots::ConnSlot;
use crate::tap::TapClient;

/// Maximum number of concurrent traces per shard.
pub const TRACES_MAX: usize = 16;

/// Maximum bytes of output that are traced per tick, for all connections together.
const OUTPUT_BYTES_MAX: usize = 1024 * 1024;

/// Maximum number of remembered connections without a session: before CONNACK, or after the session was detached.
const DETACHED_MAX: usize = 1024;

/// Selects clients and packets. All given fields must match.
#[derive(Clone, Debug, Default)]
pub struct TraceFilter {
    pub client_id: Option<Box<str>>,
    pub user_name: Option<Box<str>>,
    pub address: Option<IpAddr>,
    /// Topic filter. Selects PUBLISH to matching topics, and SUBSCRIBE and UNSUBSCRIBE with a matching or equal filter,
    /// with the mountpoint of the client.
    pub topic: Option<Box<str>>,
}

/// Direction of a packet, as seen by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketDirection {
    Received,
    Sent,
}

/// A traced packet.
#[derive(Debug)]
pub struct TracedPacket<'a> {
    pub client: TapClient<'a>,
    /// The user name is a secret, because the client uses the inbox.
    pub is_user_name_secret: bool,
    pub direction: PacketDirection,
    pub packet: &'a Packet<'a>,
    /// Size on the wire.
    pub size: usize,
    /// Topic of a PUBLISH, with the mountpoint of the client. Resolved if the packet has only an alias.
    pub topic: Option<&'a str>,
}

/// Receiver of a trace.
pub trait TraceSink: Send {
    /// Returns true when the trace should end.
    fn has_ended(&self) -> bool;
    fn packet(&mut self, packet: &TracedPacket<'_>);
    fn event(&mut self, event: &ConnectionEvent);
    /// Reports that this many bytes of packets were not traced.
    fn skipped_bytes(&mut self, bytes: usize);
}

/// The active traces of a shard.
#[derive(Default)]
struct Traces {
    all: Vec<(TraceFilter, Box<dyn TraceSink>)>,
    /// Clients of the connections without a session.
    detached: HashMap<ConnSlot, DetachedClient>,
    bytes: Vec<u8>,
}

struct DetachedClient {
    client_id: Box<str>,
    user_name: Option<Box<str>>,
    is_user_name_secret: bool,
}

impl TraceFilter {
    fn matches(&self, client: &TapClient<'_>) -> bool {
        self.client_id
            .as_deref()
            .is_none_or(|wanted| wanted == client.client_id)
            && (self.user_name.is_none() || self.user_name.as_deref() == client.user_name)
            && self
                .address
                .is_none_or(|wanted| wanted == client.address.ip().to_canonical())
    }

    fn matches_packet(&self, packet: &Packet<'_>, topic: Option<&str>, mountpoint: Option<&Mountpoint>) -> bool {
        let Some(wanted) = self.topic.as_deref() else {
            return true;
        };
        let names = |filter: &str| {
            let full = mountpoint.map(|mountpoint| mountpoint.filter(filter));
            let filter = full.as_deref().unwrap_or(filter);
            filter == wanted || filter_matches(wanted, filter)
        };
        match packet {
            Packet::Publish(_) => topic.is_some_and(|topic| filter_matches(wanted, topic)),
            Packet::Subscribe(subscribe) => subscribe.filters.iter().any(|one| names(one.filter)),
            Packet::Unsubscribe(unsubscribe) => unsubscribe.filters.iter().any(names),
            _ => false,
        }
    }

    fn matches_event(&self, event: &ConnectionEvent) -> bool {
        let (id, user_name, address) = match event {
            ConnectionEvent::Connected {
                client_id,
                user_name,
                address,
                ..
            }
            | ConnectionEvent::Refused {
                client_id,
                user_name,
                address,
                ..
            } => (client_id, Some(user_name), Some(address)),
            ConnectionEvent::Disconnected { client_id, address, .. }
            | ConnectionEvent::StreamEnded { client_id, address, .. }
            | ConnectionEvent::AddressChanged { client_id, address, .. } => (client_id, None, Some(address)),
            ConnectionEvent::SessionEnded { client_id, .. }
            | ConnectionEvent::Dropping { client_id, .. }
            | ConnectionEvent::OverLimit { client_id, .. } => (client_id, None, None),
            ConnectionEvent::Throttled {
                client_id, user_name, ..
            } => (client_id, Some(user_name), None),
        };
        let has_user = |wanted: &str| user_name.is_some_and(|user_name| user_name.as_deref() == Some(wanted));
        let has_address = |wanted: IpAddr| address.is_some_and(|address| address.ip().to_canonical() == wanted);
        self.topic.is_none()
            && self.client_id.as_ref().is_none_or(|wanted| wanted == id)
            && self.user_name.as_deref().is_none_or(has_user)
            && self.address.is_none_or(has_address)
    }
}

/// The parts of a shard from which traces describe clients.
#[derive(Clone, Copy)]
pub(crate) struct TracedClients<'a> {
    pub connections: &'a Connections,
    pub sessions: &'a Sessions,
}

impl<'a> TracedClients<'a> {
    fn session_at(self, conn: ConnSlot) -> Option<&'a Session> {
        let connection = self.connections.get(conn)?;
        self.sessions.get(connection.session)
    }
}

/// The traces of a shard; `None` if none is active.
#[derive(Default)]
pub(crate) struct ShardTraces(Option<Box<Traces>>);

impl ShardTraces {
    /// Starts a trace. Returns false if there are too many traces.
    pub fn start(&mut self, filter: TraceFilter, sink: Box<dyn TraceSink>) -> bool {
        let traces = self.0.get_or_insert_default();
        traces.all.retain(|(_, sink)| !sink.has_ended());
        let has_space = traces.all.len() < TRACES_MAX;
        if has_space {
            traces.all.push((filter, sink));
        }
        has_space
    }

    /// Traces packets that were received on a connection and have been handled.
    #[inline]
    pub fn received(&mut self, clients: TracedClients<'_>, conn: ConnSlot, bytes: &[u8]) {
        if let Some(traces) = &mut self.0 {
            traces.show_received(clients, conn, bytes);
            self.remove_ended();
        }
    }

    /// Remembers the client of a connection that is about to lose its session.
    #[inline]
    pub fn leaving(&mut self, clients: TracedClients<'_>, conn: ConnSlot) {
        if let Some(traces) = &mut self.0 {
            traces.remember_closed(clients, conn);
        }
    }

    #[inline]
    pub fn closed(&mut self, conn: ConnSlot) {
        if let Some(traces) = &mut self.0 {
            traces.detached.remove(&conn);
        }
    }

    #[inline]
    pub fn events(&mut self, effects: &[Effect]) {
        if let Some(traces) = &mut self.0 {
            traces.show_events(effects);
        }
    }

    /// Traces the output of this tick.
    #[inline]
    pub fn sent(&mut self, clients: TracedClients<'_>, outbox: &Outbox) {
        if let Some(traces) = &mut self.0 {
            traces.show_sent(clients, outbox);
            self.remove_ended();
        }
    }

    fn remove_ended(&mut self) {
        if let Some(traces) = &mut self.0 {
            traces.all.retain(|(_, sink)| !sink.has_ended());
            if traces.all.is_empty() {
                self.0 = None;
            }
        }
    }
}

/// Copies the output of this tick for a connection, up to `limit` bytes. Returns the number of further bytes.
fn copy_tick_output(outbox: &Outbox, conn: ConnSlot, limit: usize, bytes: &mut Vec<u8>) -> usize {
    let mut beyond = 0;
    for slice in outbox.tick_output(conn) {
        let room = limit - bytes.len();
        bytes.extend_from_slice(&slice[..slice.len().min(room)]);
        beyond += slice.len().saturating_sub(room);
    }
    beyond
}

/// Returns the topic for which the server has set an alias.
fn outgoing_topic(connection: &Connection, alias: u16) -> Option<String> {
    let mut outgoing = connection.aliases.as_ref()?.outgoing.iter();
    outgoing
        .find(|(_, given)| **given == alias)
        .map(|(topic, _)| topic.to_string())
}

impl Traces {
    #[cold]
    fn show_received(&mut self, clients: TracedClients<'_>, conn: ConnSlot, bytes: &[u8]) {
        if bytes
            .first()
            .is_some_and(|first| first >> 4 == PacketType::Connect as u8)
        {
            self.record_connect(conn, bytes);
        }
        let aliases = |connection: &Connection, alias: u16| {
            let incoming = &connection.aliases.as_ref()?.incoming;
            incoming.get(alias).map(str::to_owned)
        };
        self.trace_packets(clients, conn, PacketDirection::Received, bytes, aliases);
    }

    #[cold]
    fn remember_closed(&mut self, clients: TracedClients<'_>, conn: ConnSlot) {
        if let Some(session) = clients.session_at(conn) {
            let client = DetachedClient {
                client_id: session.client_id.clone(),
                user_name: session.user_name.clone(),
                is_user_name_secret: session.inbox_key().is_some(),
            };
            self.record_client(conn, client);
        }
    }

    #[cold]
    fn show_sent(&mut self, clients: TracedClients<'_>, outbox: &Outbox) {
        let mut bytes = std::mem::take(&mut self.bytes);
        let mut left = OUTPUT_BYTES_MAX;
        for &conn in outbox.dirty() {
            if !self.is_traced(clients, conn) {
                continue;
            }
            bytes.clear();
            let passed_over = copy_tick_output(outbox, conn, left, &mut bytes);
            left -= bytes.len();
            let shown = self.trace_packets(clients, conn, PacketDirection::Sent, &bytes, outgoing_topic);
            let passed_over = passed_over + bytes.len() - shown;
            if passed_over > 0 {
                self.all
                    .iter_mut()
                    .for_each(|(_, sink)| sink.skipped_bytes(passed_over));
            }
        }
        bytes.clear();
        self.bytes = bytes;
    }

    fn record_client(&mut self, conn: ConnSlot, client: DetachedClient) {
        if self.detached.len() < DETACHED_MAX || self.detached.contains_key(&conn) {
            self.detached.insert(conn, client);
        }
    }

    /// Does nothing if the client is known from its session, which may have another client id.
    fn record_connect(&mut self, conn: ConnSlot, bytes: &[u8]) {
        if self.detached.contains_key(&conn) {
            return;
        }
        if let Ok(Decoded::Complete { packet, .. }) = mqtt::decode_connect(bytes, bytes.len()) {
            let client = DetachedClient {
                client_id: packet.client_id.into(),
                user_name: packet.user_name.map(Into::into),
                is_user_name_secret: false,
            };
            self.record_client(conn, client);
        }
    }

    /// Returns the client of a connection, if it is known, and whether its user name is a secret.
    fn client_of<'a>(&'a self, clients: TracedClients<'a>, conn: ConnSlot) -> Option<(TapClient<'a>, bool)> {
        let connection = clients.connections.get(conn)?;
        let session = clients.session_at(conn);
        let (client_id, user_name, is_user_name_secret) = match (session, self.detached.get(&conn)) {
            (Some(session), _) => (
                &session.client_id,
                session.user_name.as_deref(),
                session.inbox_key().is_some(),
            ),
            (None, Some(client)) => (
                &client.client_id,
                client.user_name.as_deref(),
                client.is_user_name_secret,
            ),
            (None, None) => return None,
        };
        let client = TapClient {
            client_id,
            user_name,
            address: session.map_or(connection.peer.address, Session::current_address),
            listener: Some(connection.peer.listener),
            version: connection.version,
            grant: &LoginGrant::None,
            mountpoint: session.and_then(Session::mountpoint).map(Mountpoint::as_str),
        };
        Some((client, is_user_name_secret))
    }

    fn is_traced(&self, clients: TracedClients<'_>, conn: ConnSlot) -> bool {
        self.client_of(clients, conn)
            .is_some_and(|(client, _)| self.all.iter().any(|(filter, _)| filter.matches(&client)))
    }

    /// Traces whole packets. Returns their size in bytes.
    fn trace_packets(
        &mut self,
        clients: TracedClients<'_>,
        conn: ConnSlot,
        direction: PacketDirection,
        bytes: &[u8],
        topic_of: impl Fn(&Connection, u16) -> Option<String>,
    ) -> usize {
        let mut all = std::mem::take(&mut self.all);
        let mut shown = 0;
        if let Some((client, is_user_name_secret)) = self.client_of(clients, conn)
            && all.iter().any(|(filter, _)| filter.matches(&client))
        {
            let connection = clients.connections.get(conn);
            let mountpoint = clients.session_at(conn).and_then(Session::mountpoint);
            while let Ok(Decoded::Complete { packet, size }) = mqtt::decode(&bytes[shown..], client.version, usize::MAX)
            {
                shown += size;
                let resolved = aliased(&packet).and_then(|alias| topic_of(connection?, alias));
                let topic = resolved.as_deref().or(plain_topic(&packet));
                let full = mountpoint.zip(topic).map(|(mountpoint, topic)| mountpoint.topic(topic));
                let topic = full.as_deref().or(topic);
                let traced = TracedPacket {
                    client,
                    is_user_name_secret,
                    direction,
                    packet: &packet,
                    size,
                    topic,
                };
                for (filter, sink) in &mut all {
                    if filter.matches(&client) && filter.matches_packet(&packet, topic, mountpoint) {
                        sink.packet(&traced);
                    }
                }
            }
        }
        self.all = all;
        shown
    }

    #[cold]
    fn show_events(&mut self, effects: &[Effect]) {
        for effect in effects {
            let Effect::Event(event) = effect else { continue };
            for (filter, sink) in &mut self.all {
                if filter.matches_event(event) {
                    sink.event(event);
                }
            }
        }
    }
}

/// Returns the alias of a PUBLISH without a topic.
fn aliased(packet: &Packet<'_>) -> Option<u16> {
    match packet {
        Packet::Publish(publish) if publish.topic.is_empty() => publish.properties.topic_alias(),
        _ => None,
    }
}

fn plain_topic<'a>(packet: &Packet<'a>) -> Option<&'a str> {
    match packet {
        Packet::Publish(publish) => Some(publish.topic),
        _ => None,
    }
}
