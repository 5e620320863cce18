//! Watching the packets of some clients, both ways, and what happens to them.
//!
//! A trace is a filter and a sink. What comes in is shown once it has been handled, what goes out when the driver is about to write
//! it; a trace sees whole packets, decoded, on the shard's own thread. The sink decides what it keeps, and must not block. Without a
//! trace this costs a look at one pointer per batch of a connection and per tick, and nothing per packet.
//!
//! Not shown: connections that ended before their CONNECT was complete, which the shard never saw.

use std::collections::HashMap;
use std::net::IpAddr;

use mqtt::{Decoded, Packet, PacketType, filter_matches};

use crate::connection::Connection;
use crate::deliver::Core;
use crate::effect::{ConnSlot, Effect, Event};
use crate::outbox::Outbox;
use crate::session::Session;
use crate::shard::Shard;
use crate::tap::TapClient;

/// Traces of a shard at the same time.
pub const TRACES_MAX: usize = 16;

/// Bytes of output that are looked at in one tick, of all connections that are traced together.
const OUTPUT_BYTES_MAX: usize = 1024 * 1024;

/// Connections without a session that are remembered: in their login, or on their way out.
const STRAYS_MAX: usize = 1024;

/// Whom and what to watch; all that is given has to match.
#[derive(Clone, Debug, Default)]
pub struct TraceFilter {
    pub client_id: Option<Box<str>>,
    pub user_name: Option<Box<str>>,
    pub address: Option<IpAddr>,
    /// A topic filter: only PUBLISH to such topics, and SUBSCRIBE and UNSUBSCRIBE that name one or this very filter.
    pub topic: Option<Box<str>>,
}

/// Which way a packet went, seen from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Received,
    Sent,
}

/// A packet as a sink is shown it.
#[derive(Debug)]
pub struct TracedPacket<'a> {
    pub client: TapClient<'a>,
    /// A device of the platform, whose user name is its secret.
    pub is_device: bool,
    pub direction: Direction,
    pub packet: &'a Packet<'a>,
    /// On the wire.
    pub size: usize,
    /// Of a PUBLISH, also where only an alias of it was sent.
    pub topic: Option<&'a str>,
}

/// Where a trace leads to.
pub trait TraceSink: Send {
    /// Nobody looks any more: the trace ends.
    fn is_over(&self) -> bool;
    fn packet(&mut self, packet: &TracedPacket<'_>);
    fn event(&mut self, event: &Event);
    /// So many bytes of packets were not looked at.
    fn passed_over(&mut self, bytes: usize);
}

/// The traces of a shard, as long as there are any.
#[derive(Default)]
pub struct Traces {
    all: Vec<(TraceFilter, Box<dyn TraceSink>)>,
    /// Whom the connections belong to that have no session.
    strays: HashMap<ConnSlot, Stray>,
    bytes: Vec<u8>,
}

struct Stray {
    client_id: Box<str>,
    user_name: Option<Box<str>>,
    is_device: bool,
}

impl TraceFilter {
    fn takes(&self, client: &TapClient<'_>) -> bool {
        self.client_id
            .as_deref()
            .is_none_or(|wanted| wanted == client.client_id)
            && (self.user_name.is_none() || self.user_name.as_deref() == client.user_name)
            && self
                .address
                .is_none_or(|wanted| wanted == client.address.ip().to_canonical())
    }

    fn takes_packet(&self, packet: &Packet<'_>, topic: Option<&str>) -> bool {
        let Some(wanted) = self.topic.as_deref() else {
            return true;
        };
        let names = |filter: &str| filter == wanted || filter_matches(wanted, filter);
        match packet {
            Packet::Publish(_) => topic.is_some_and(|topic| filter_matches(wanted, topic)),
            Packet::Subscribe(subscribe) => subscribe.filters.iter().any(|one| names(one.filter)),
            Packet::Unsubscribe(unsubscribe) => unsubscribe.filters.iter().any(names),
            _ => false,
        }
    }

    fn takes_event(&self, event: &Event) -> bool {
        let (id, user_name, address) = match event {
            Event::Connected {
                client_id,
                user_name,
                address,
                ..
            }
            | Event::Refused {
                client_id,
                user_name,
                address,
                ..
            } => (client_id, Some(user_name), Some(address)),
            Event::Disconnected { client_id, address, .. } => (client_id, None, Some(address)),
            Event::SessionEnded { client_id, .. } | Event::Dropping { client_id, .. } => (client_id, None, None),
        };
        let has_user = |wanted: &str| user_name.is_some_and(|user_name| user_name.as_deref() == Some(wanted));
        let has_address = |wanted: IpAddr| address.is_some_and(|address| address.ip().to_canonical() == wanted);
        self.topic.is_none()
            && self.client_id.as_ref().is_none_or(|wanted| wanted == id)
            && self.user_name.as_deref().is_none_or(has_user)
            && self.address.is_none_or(has_address)
    }
}

impl Shard {
    /// Begins to show what the filter takes. False when there are too many traces already.
    pub fn trace(&mut self, filter: TraceFilter, sink: Box<dyn TraceSink>) -> bool {
        let traces = self.core.traces.get_or_insert_default();
        traces.all.retain(|(_, sink)| !sink.is_over());
        let has_room = traces.all.len() < TRACES_MAX;
        if has_room {
            traces.all.push((filter, sink));
        }
        has_room
    }

    /// Shows what is queued in this tick. The driver calls it before it writes anything of that.
    #[inline]
    pub fn trace_output(&mut self) {
        if self.core.traces.is_some() {
            self.core.trace_sent();
        }
    }
}

impl Core {
    /// Shows packets that a connection has sent and that have been handled.
    #[inline]
    pub fn trace_received(&mut self, conn: ConnSlot, bytes: &[u8]) {
        if self.traces.is_some() {
            self.show_received(conn, bytes);
        }
    }

    /// A connection is about to lose its session.
    #[inline]
    pub fn trace_leaving(&mut self, conn: ConnSlot) {
        if self.traces.is_some() {
            self.remember_leaving(conn);
        }
    }

    #[inline]
    pub fn trace_closed(&mut self, conn: ConnSlot) {
        if let Some(traces) = &mut self.traces {
            traces.strays.remove(&conn);
        }
    }

    #[inline]
    pub fn trace_events(&mut self) {
        if let Some(traces) = &mut self.traces {
            traces.show_events(&self.effects);
        }
    }

    #[cold]
    fn show_received(&mut self, conn: ConnSlot, bytes: &[u8]) {
        let Some(mut traces) = self.traces.take() else { return };
        if bytes
            .first()
            .is_some_and(|first| first >> 4 == PacketType::Connect as u8)
        {
            traces.remember_connect(conn, bytes);
        }
        let aliases = |connection: &Connection, alias: u16| {
            let incoming = &connection.aliases.as_ref()?.incoming;
            incoming.get(alias).map(str::to_owned)
        };
        traces.show(self, conn, Direction::Received, bytes, aliases);
        self.put_back(traces);
    }

    fn remember_leaving(&mut self, conn: ConnSlot) {
        let Some(mut traces) = self.traces.take() else { return };
        if let Some(session) = self.session_at(conn) {
            let stray = Stray {
                client_id: session.client_id.clone(),
                user_name: session.user_name.clone(),
                is_device: session.device().is_some(),
            };
            traces.remember(conn, stray);
        }
        self.traces = Some(traces);
    }

    #[cold]
    fn trace_sent(&mut self) {
        let Some(mut traces) = self.traces.take() else { return };
        let mut bytes = std::mem::take(&mut traces.bytes);
        let mut left = OUTPUT_BYTES_MAX;
        for &conn in self.outbox.dirty() {
            if !traces.wants(self, conn) {
                continue;
            }
            bytes.clear();
            let passed_over = copy_fresh(&self.outbox, conn, left, &mut bytes);
            left -= bytes.len();
            let shown = traces.show(self, conn, Direction::Sent, &bytes, outgoing_topic);
            let passed_over = passed_over + bytes.len() - shown;
            if passed_over > 0 {
                traces
                    .all
                    .iter_mut()
                    .for_each(|(_, sink)| sink.passed_over(passed_over));
            }
        }
        bytes.clear();
        traces.bytes = bytes;
        self.put_back(traces);
    }

    /// Puts the traces back that are not over.
    fn put_back(&mut self, mut traces: Box<Traces>) {
        traces.all.retain(|(_, sink)| !sink.is_over());
        self.traces = (!traces.all.is_empty()).then_some(traces);
    }

    fn session_at(&self, conn: ConnSlot) -> Option<&Session> {
        let connection = self.connections.get(conn.0 as usize)?.as_deref()?;
        self.sessions.get(connection.session as usize)?.as_deref()
    }
}

/// What this tick has queued for a connection, up to `limit` bytes; returns how many bytes there are beyond.
fn copy_fresh(outbox: &Outbox, conn: ConnSlot, limit: usize, bytes: &mut Vec<u8>) -> usize {
    let mut beyond = 0;
    for slice in outbox.fresh(conn) {
        let room = limit - bytes.len();
        bytes.extend_from_slice(&slice[..slice.len().min(room)]);
        beyond += slice.len().saturating_sub(room);
    }
    beyond
}

/// The topic that the server has given an alias.
fn outgoing_topic(connection: &Connection, alias: u16) -> Option<String> {
    let mut outgoing = connection.aliases.as_ref()?.outgoing.iter();
    outgoing
        .find(|(_, given)| **given == alias)
        .map(|(topic, _)| topic.to_string())
}

impl Traces {
    fn remember(&mut self, conn: ConnSlot, stray: Stray) {
        if self.strays.len() < STRAYS_MAX || self.strays.contains_key(&conn) {
            self.strays.insert(conn, stray);
        }
    }

    /// Unless its session has been remembered, whose client id may be another.
    fn remember_connect(&mut self, conn: ConnSlot, bytes: &[u8]) {
        if self.strays.contains_key(&conn) {
            return;
        }
        if let Ok(Decoded::Complete { packet, .. }) = mqtt::decode_connect(bytes, bytes.len()) {
            let stray = Stray {
                client_id: packet.client_id.into(),
                user_name: packet.user_name.map(Into::into),
                is_device: false,
            };
            self.remember(conn, stray);
        }
    }

    /// Whom a connection belongs to, as far as that is known, and whether that is a device.
    fn who<'a>(&'a self, core: &'a Core, conn: ConnSlot) -> Option<(TapClient<'a>, bool)> {
        let connection = core.connections.get(conn.0 as usize)?.as_deref()?;
        let (client_id, user_name, is_device) = match (core.session_at(conn), self.strays.get(&conn)) {
            (Some(session), _) => (
                &session.client_id,
                session.user_name.as_deref(),
                session.device().is_some(),
            ),
            (None, Some(stray)) => (&stray.client_id, stray.user_name.as_deref(), stray.is_device),
            (None, None) => return None,
        };
        let client = TapClient {
            client_id,
            user_name,
            address: connection.peer.address,
            listener: Some(connection.peer.listener),
            version: connection.version,
        };
        Some((client, is_device))
    }

    fn wants(&self, core: &Core, conn: ConnSlot) -> bool {
        self.who(core, conn)
            .is_some_and(|(client, _)| self.all.iter().any(|(filter, _)| filter.takes(&client)))
    }

    /// Shows whole packets, and returns how many bytes they are.
    fn show(
        &mut self,
        core: &Core,
        conn: ConnSlot,
        direction: Direction,
        bytes: &[u8],
        topic_of: impl Fn(&Connection, u16) -> Option<String>,
    ) -> usize {
        let mut all = std::mem::take(&mut self.all);
        let mut shown = 0;
        if let Some((client, is_device)) = self.who(core, conn)
            && all.iter().any(|(filter, _)| filter.takes(&client))
        {
            let connection = core.connections[conn.0 as usize].as_deref();
            while let Ok(Decoded::Complete { packet, size }) = mqtt::decode(&bytes[shown..], client.version, usize::MAX)
            {
                shown += size;
                let resolved = aliased(&packet).and_then(|alias| topic_of(connection?, alias));
                let topic = resolved.as_deref().or(plain_topic(&packet));
                let traced = TracedPacket {
                    client,
                    is_device,
                    direction,
                    packet: &packet,
                    size,
                    topic,
                };
                for (filter, sink) in &mut all {
                    if filter.takes(&client) && filter.takes_packet(&packet, topic) {
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
                if filter.takes_event(event) {
                    sink.event(event);
                }
            }
        }
    }
}

/// The alias of a PUBLISH that has no topic.
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
