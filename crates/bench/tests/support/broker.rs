//! A small MQTT broker for tests. It behaves correctly unless a test injects a fault.
//!
//! It has a thread per connection and one lock. It supports sessions, QoS 0 to 2 in both directions, shared
//! subscriptions and retained messages.

#![allow(clippy::unwrap_used, dead_code, reason = "a helper of tests")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use mqtt::{
    Ack, ConnAck, Connect, Decoded, Packet, PacketId, Properties, Property, PropertyWriter, ProtocolVersion, Publish,
    QoS, ReasonCode, SharedFilter, SubAck, Subscribe, decode, decode_connect, filter_matches,
};

const PACKET_MAX: usize = 1 << 20;

/// The faults of the broker. The default methods inject none.
pub trait Faults: Send {
    /// Returns the answer to a client's `attempt`th CONNECT (from 1). `None` closes the connection without an answer.
    fn connack(&mut self, _client_id: &str, _attempt: u32) -> Option<ReasonCode> {
        Some(ReasonCode::Success)
    }

    fn suback(&mut self, _client_id: &str, qos: u8) -> u8 {
        qos
    }

    /// Decides how the broker handles the `number`th PUBLISH of a client (from 0, including retransmissions).
    fn publish(&mut self, _client_id: &str, _number: u32) -> Taking {
        Taking::Accept
    }

    /// Returns the messages to send instead of the `number`th message (from 0) to a subscriber.
    fn deliver(&mut self, _client_id: &str, _number: u32, message: Message) -> Vec<Message> {
        vec![message]
    }
}

pub struct Faultless;

impl Faults for Faultless {}

pub enum Taking {
    Accept,
    /// Acknowledges with an error code (MQTT 5) and delivers nothing.
    Refuse(ReasonCode),
    /// Closes the connection and drops the message.
    Close,
    /// Delivers the message, then closes the connection without an acknowledgement.
    AcceptAndClose,
    /// Delivers the message and never acknowledges it.
    Ignore,
}

#[derive(Clone, Debug)]
pub struct Message {
    pub topic: String,
    pub qos: QoS,
    pub retain: bool,
    pub payload: Vec<u8>,
}

pub struct Broker {
    pub port: u16,
    state: Arc<Mutex<State>>,
}

struct State {
    sessions: HashMap<String, Session>,
    retained: BTreeMap<String, Message>,
    faults: Box<dyn Faults>,
    turn: usize,
    receive_maximum: Option<u16>,
    seen: Seen,
}

/// The broker's observations of its clients.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub connects: u32,
    pub disconnects: u32,
    pub pings: u32,
    pub publishes: u32,
    pub dups: u32,
    pub in_flight_max: u32,
    pub client_ids: Vec<String>,
    pub user_names: Vec<String>,
}

#[derive(Default)]
struct Session {
    stream: Option<TcpStream>,
    version: Option<ProtocolVersion>,
    is_kept: bool,
    filters: Vec<(String, QoS)>,
    in_flight: Vec<(u16, Message, bool)>,
    next_id: u16,
    queue: Vec<Message>,
    taken: HashSet<u16>,
    attempts: u32,
    delivered: u32,
    published: u32,
}

impl Broker {
    pub fn start(faults: impl Faults + 'static) -> Broker {
        Broker::start_with(faults, None)
    }

    pub fn start_with(faults: impl Faults + 'static, receive_maximum: Option<u16>) -> Broker {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State {
            sessions: HashMap::new(),
            retained: BTreeMap::new(),
            faults: Box::new(faults),
            turn: 0,
            receive_maximum,
            seen: Seen::default(),
        }));
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, shared) = (stream.unwrap(), shared.clone());
                std::thread::spawn(move || serve(stream, &shared));
            }
        });
        Broker { port, state }
    }

    pub fn seen(&self) -> Seen {
        self.state.lock().unwrap().seen.clone()
    }

    /// Publishes a message in place of another client.
    pub fn inject(&self, topic: &str, payload: &[u8]) {
        let message = Message {
            topic: topic.into(),
            qos: QoS::AtMostOnce,
            retain: false,
            payload: payload.into(),
        };
        route(&mut self.state.lock().unwrap(), &message);
    }
}

fn serve(mut stream: TcpStream, shared: &Mutex<State>) {
    stream.set_nodelay(true).unwrap();
    let mut bytes = Vec::new();
    let mut known: Option<(String, ProtocolVersion)> = None;
    let mut chunk = vec![0; 64 * 1024];
    'connection: while let Ok(size @ 1..) = stream.read(&mut chunk) {
        bytes.extend_from_slice(&chunk[..size]);
        loop {
            let used = match &known {
                None => match decode_connect(&bytes, PACKET_MAX).unwrap() {
                    Decoded::Incomplete { .. } => break,
                    Decoded::Complete { packet, size } => {
                        if !on_connect(&stream, &packet, &mut shared.lock().unwrap()) {
                            break 'connection;
                        }
                        known = Some((packet.client_id.to_string(), packet.version));
                        size
                    }
                },
                Some((client_id, version)) => match decode(&bytes, *version, PACKET_MAX).unwrap() {
                    Decoded::Incomplete { .. } => break,
                    Decoded::Complete { packet, size } => {
                        if !on_packet(client_id, *version, &packet, &mut shared.lock().unwrap()) {
                            break 'connection;
                        }
                        size
                    }
                },
            };
            bytes.drain(..used);
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
    if let Some((client_id, _)) = known {
        close_session(&client_id, &mut shared.lock().unwrap(), &stream);
    }
}

fn close_session(client_id: &str, state: &mut MutexGuard<'_, State>, stream: &TcpStream) {
    let Some(session) = state.sessions.get_mut(client_id) else {
        return;
    };
    let is_mine = session.stream.as_ref().and_then(|own| own.peer_addr().ok()) == stream.peer_addr().ok();
    if is_mine || session.stream.is_none() {
        session.stream = None;
    }
}

fn send(session: &mut Session, packet: &Packet<'_>) {
    let Some(version) = session.version else { return };
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes);
    if let Some(stream) = &mut session.stream {
        let _ = stream.write_all(&bytes);
    }
}

fn on_connect(stream: &TcpStream, connect: &Connect<'_>, state: &mut MutexGuard<'_, State>) -> bool {
    let state = &mut **state;
    state.seen.connects += 1;
    state.seen.client_ids.push(connect.client_id.to_string());
    state.seen.user_names.extend(connect.user_name.map(str::to_string));
    let session = state.sessions.entry(connect.client_id.to_string()).or_default();
    session.attempts += 1;
    let is_present = session.is_kept && !connect.clean_start;
    if !is_present {
        let attempts = session.attempts;
        *session = Session {
            attempts,
            ..Session::default()
        };
    }
    session.version = Some(connect.version);
    let Some(reason) = state.faults.connack(connect.client_id, session.attempts) else {
        return false;
    };
    session.stream = Some(stream.try_clone().unwrap());
    session.is_kept = match connect.version {
        ProtocolVersion::V5 => connect.properties.session_expiry_interval().unwrap_or(0) > 0,
        _ => !connect.clean_start,
    };
    let mut bytes = Vec::new();
    let mut writer = PropertyWriter::new(&mut bytes);
    if let Some(maximum) = state.receive_maximum.filter(|_| connect.version == ProtocolVersion::V5) {
        writer.put(Property::ReceiveMaximum(maximum));
    }
    let properties = writer.finish();
    send(
        session,
        &Packet::ConnAck(ConnAck {
            session_present: is_present,
            reason,
            properties,
        }),
    );
    if reason.is_error() {
        session.stream = None;
        return false;
    }
    for (id, message, is_released) in session.in_flight.clone() {
        match is_released {
            true => send(session, &Packet::PubRel(ack(id, ReasonCode::Success))),
            false => send_message(session, &message, Some(id), true),
        }
    }
    for message in std::mem::take(&mut session.queue) {
        deliver_to(session, message);
    }
    true
}

fn ack(id: u16, reason: ReasonCode) -> Ack<'static> {
    Ack {
        packet_id: PacketId::new(id).unwrap(),
        reason,
        properties: Properties::EMPTY,
    }
}

fn send_message(session: &mut Session, message: &Message, id: Option<u16>, dup: bool) {
    let publish = Publish {
        dup,
        qos: message.qos,
        retain: message.retain,
        topic: &message.topic,
        packet_id: id.and_then(PacketId::new),
        properties: Properties::EMPTY,
        payload: &message.payload,
    };
    send(session, &Packet::Publish(publish));
}

fn deliver_to(session: &mut Session, message: Message) {
    if message.qos == QoS::AtMostOnce {
        return send_message(session, &message, None, false);
    }
    if session.stream.is_none() {
        return session.queue.push(message);
    }
    session.next_id = session.next_id % 60_000 + 1;
    let id = session.next_id;
    send_message(session, &message, Some(id), false);
    session.in_flight.push((id, message, false));
}

/// Handles a packet. Returns whether the connection stays open.
fn on_packet(
    client_id: &str,
    version: ProtocolVersion,
    packet: &Packet<'_>,
    state: &mut MutexGuard<'_, State>,
) -> bool {
    let state = &mut **state;
    match packet {
        Packet::Publish(publish) => return on_publish(client_id, version, publish, state),
        Packet::Subscribe(subscribe) => on_subscribe(client_id, subscribe, state),
        Packet::Disconnect(_) => {
            state.seen.disconnects += 1;
            return false;
        }
        Packet::PingReq => {
            state.seen.pings += 1;
            send(state.sessions.get_mut(client_id).unwrap(), &Packet::PingResp);
        }
        Packet::PubRel(released) => {
            let session = state.sessions.get_mut(client_id).unwrap();
            session.taken.remove(&released.packet_id.get());
            send(
                session,
                &Packet::PubComp(ack(released.packet_id.get(), ReasonCode::Success)),
            );
        }
        Packet::PubAck(done) | Packet::PubComp(done) => {
            let session = state.sessions.get_mut(client_id).unwrap();
            session.in_flight.retain(|(id, ..)| *id != done.packet_id.get());
        }
        Packet::PubRec(taken) => {
            let session = state.sessions.get_mut(client_id).unwrap();
            for entry in session
                .in_flight
                .iter_mut()
                .filter(|(id, ..)| *id == taken.packet_id.get())
            {
                entry.2 = true;
            }
            send(
                session,
                &Packet::PubRel(ack(taken.packet_id.get(), ReasonCode::Success)),
            );
        }
        other => panic!("unexpected packet of a client: {other:?}"),
    }
    true
}

fn on_subscribe(client_id: &str, subscribe: &Subscribe<'_>, state: &mut State) {
    let session = state.sessions.get_mut(client_id).unwrap();
    let mut reasons = Vec::new();
    let mut retained = Vec::new();
    for filter in subscribe.filters.iter() {
        let reason = state.faults.suback(client_id, filter.options.maximum_qos as u8);
        reasons.push(reason);
        if let Some(qos) = QoS::from_bits(reason) {
            session.filters.push((filter.filter.to_string(), qos));
            let matching = state
                .retained
                .values()
                .filter(|message| filter_matches(filter.filter, &message.topic));
            retained.extend(matching.map(|message| Message {
                qos: message.qos.min(qos),
                ..message.clone()
            }));
        }
    }
    let suback = SubAck {
        packet_id: subscribe.packet_id,
        properties: Properties::EMPTY,
        reasons: &reasons,
    };
    send(session, &Packet::SubAck(suback));
    for message in retained {
        deliver_to(session, message);
    }
}

fn on_publish(client_id: &str, version: ProtocolVersion, publish: &Publish<'_>, state: &mut State) -> bool {
    state.seen.publishes += 1;
    state.seen.dups += u32::from(publish.dup);
    let session = state.sessions.get_mut(client_id).unwrap();
    let taking = state.faults.publish(client_id, session.published);
    session.published += 1;
    let id = publish.packet_id.map(PacketId::get);
    let is_known = publish.qos == QoS::ExactlyOnce && session.taken.contains(&id.unwrap());
    let refused = match taking {
        Taking::Close => return false,
        Taking::Refuse(reason) if version == ProtocolVersion::V5 => Some(reason),
        _ => None,
    };
    if publish.qos == QoS::ExactlyOnce && refused.is_none() {
        session.taken.insert(id.unwrap());
        state.seen.in_flight_max = state.seen.in_flight_max.max(session.taken.len() as u32);
    }
    if refused.is_none() && !is_known {
        let message = Message {
            topic: publish.topic.into(),
            qos: publish.qos,
            retain: false,
            payload: publish.payload.into(),
        };
        if publish.retain {
            let kept = Message {
                retain: true,
                ..message.clone()
            };
            state.retained.insert(message.topic.clone(), kept);
        }
        route(state, &message);
    }
    let answer = ack(id.unwrap_or(1), refused.unwrap_or(ReasonCode::Success));
    let session = state.sessions.get_mut(client_id).unwrap();
    match (publish.qos, taking) {
        (_, Taking::AcceptAndClose) => return false,
        (QoS::AtMostOnce, _) | (_, Taking::Ignore) => {}
        (QoS::AtLeastOnce, _) => send(session, &Packet::PubAck(answer)),
        (QoS::ExactlyOnce, _) => send(session, &Packet::PubRec(answer)),
    }
    true
}

fn route(state: &mut State, message: &Message) {
    let mut receivers: Vec<(String, QoS)> = Vec::new();
    let mut shares: BTreeMap<String, Vec<(String, QoS)>> = BTreeMap::new();
    for (client_id, session) in &state.sessions {
        for (filter, qos) in &session.filters {
            let share = SharedFilter::parse(filter).unwrap();
            if !filter_matches(share.map_or(filter, |share| share.filter), &message.topic) {
                continue;
            }
            let list = if share.is_some() {
                shares.entry(filter.clone()).or_default()
            } else {
                &mut receivers
            };
            list.push((client_id.clone(), *qos));
        }
    }
    for mut members in shares.into_values() {
        members.sort();
        state.turn += 1;
        receivers.push(members.swap_remove(state.turn % members.len()));
    }
    for (client_id, qos) in receivers {
        let session = state.sessions.get_mut(&client_id).unwrap();
        let message = Message {
            qos: message.qos.min(qos),
            ..message.clone()
        };
        let number = session.delivered;
        session.delivered += 1;
        for message in state.faults.deliver(&client_id, number, message) {
            deliver_to(session, message);
        }
    }
}
