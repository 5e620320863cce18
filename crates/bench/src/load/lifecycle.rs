//! The life of a connection: TCP, handshakes, CONNECT, SUBSCRIBE, retries, DISCONNECT.

use std::sync::atomic::Ordering::Relaxed;

use mio::Token;
use mqtt::{
    ConnAck, Connect, Packet, Properties, Property, PropertyWriter, ProtocolVersion, QoS, ReasonCode, SubAck,
    Subscribe, SubscribeFilter, SubscribeFilters, SubscriptionOptions,
};
use mqtt_client::ServerLimits;
use rustls::HandshakeKind;

use super::client::{ClientSlot, LoadClient, LoadClientState, LoadPublisher, LoadSubscriber};
use super::context::{LoadContext, TimerKind};
use super::link::{LinkSecurity, LoadLink};
use super::outbound::MESSAGE_IDS;
use super::pattern::expand;
use super::plan::GroupPlan;
use super::publish;
use super::tcp_info::Segments;
use crate::scenario::GroupPresence;
use crate::target::TargetTransport;

/// Time limit until a connection is ready.
const CONNECT_NS: u64 = 10_000_000_000;
/// Time that the server has to close the connection after DISCONNECT.
const LEAVE_NS: u64 = 1_000_000_000;
const ATTEMPTS_MAX: u8 = 6;
const RETRY_NS: u64 = 100_000_000;
const RETRY_MAX_NS: u64 = 2_000_000_000;

/// Queues a client for its turn to connect.
pub fn enqueue(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext) {
    client.state = LoadClientState::Queued;
    cx.queue.push_back(slot);
}

/// Starts a connection.
pub fn connect(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext) {
    let target = &cx.plan.job.target;
    let turn = cx.connect_count as usize;
    cx.connect_count = cx.connect_count.wrapping_add(1);
    let endpoint = &cx.plan.endpoints[turn % cx.plan.endpoints.len()];
    let from = match &*target.source_addresses {
        [] => None,
        sources => Some(sources[turn % sources.len()]),
    };
    client.epoch = client.epoch.next();
    client.begun_ns = cx.plan.clock.now_ns();
    client.state = LoadClientState::Connecting;
    (client.segments, client.is_peer_closed) = (Segments::default(), false);
    cx.connecting += 1;
    let link = match target.transport {
        TargetTransport::Quic => LoadLink::quic(endpoint.address, from),
        _ => LoadLink::connect(endpoint.address, from, target.receive_buffer_bytes),
    };
    let opened = link.and_then(|mut link| {
        link.register(&cx.registry, Token(slot.index()))?;
        Ok(link)
    });
    match opened {
        Ok(link) => {
            client.link = Some(link);
            let deadline_ns = client.begun_ns + CONNECT_NS;
            cx.timers
                .add_for_client(deadline_ns, TimerKind::ConnectDeadline, slot, client);
        }
        Err(error) => handle_disconnect(slot, client, cx, &error.to_string()),
    }
}

/// Continues after the socket has become ready in one of the states before CONNACK. Returns whether the handshakes are
/// complete.
pub fn advance(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext) -> Result<bool, String> {
    let Some(link) = &mut client.link else { return Ok(false) };
    if client.state == LoadClientState::Connecting {
        if !link.is_connected().map_err(|error| error.to_string())? {
            return Ok(false);
        }
        let plan = cx.plan.clone();
        let target = &plan.job.target;
        let is_web = matches!(target.transport, TargetTransport::Ws | TargetTransport::Wss);
        link.wrap(&LinkSecurity {
            tls: plan.tls.as_ref(),
            path: is_web.then_some(target.path.as_str()),
            host: host_of(&plan.endpoints, link),
            seed: client.begun_ns ^ u64::from(slot.0) << 40,
        })?;
        client.state = LoadClientState::Opening;
    }
    if client.state == LoadClientState::Opening {
        link.flush()?;
        if !link.is_open() {
            return Ok(false);
        }
        let took_ns = cx.plan.clock.now_ns().saturating_sub(client.begun_ns);
        cx.meter.interval.handshake.record(took_ns);
        match link.tls_handshake() {
            Some(HandshakeKind::Resumed) => cx.meter.interval.counts.tls_resumed += 1,
            Some(_) => cx.meter.interval.counts.tls_full += 1,
            None => {}
        }
        client.state = LoadClientState::AwaitsConnAck;
        write_connect(client, cx);
        cx.mark_dirty(slot, client);
    }
    Ok(true)
}

fn host_of<'a>(endpoints: &'a [super::plan::BrokerEndpoint], link: &LoadLink) -> &'a str {
    let peer = link.server();
    let found = endpoints.iter().find(|endpoint| Some(endpoint.address) == peer);
    &found.unwrap_or(&endpoints[0]).host
}

fn write_connect(client: &mut LoadClient, cx: &LoadContext) {
    let group = cx.group(client);
    let now_ns = cx.plan.clock.now_ns();
    let (session, out) = (&mut client.session, &mut client.out);
    let mut bytes = Vec::new();
    let properties = match group.version == ProtocolVersion::V5 && group.group.session_expiry_s > 0 {
        true => {
            let mut writer = PropertyWriter::new(&mut bytes);
            writer.put(Property::SessionExpiryInterval(group.group.session_expiry_s));
            writer.finish()
        }
        false => Properties::EMPTY,
    };
    group.with_names(client.index, cx.plan.job.run, |names| {
        let user_name = group.group.user_name.as_ref().map(|_| names.user_name);
        let password = group.group.password.as_deref().map(|pattern| expand(pattern, names));
        let connect = Connect {
            version: group.version,
            clean_start: group.group.clean_start,
            is_bridge: false,
            keep_alive: group.group.keep_alive_s,
            properties,
            client_id: names.client_id,
            will: None,
            user_name,
            password: password.as_deref().map(str::as_bytes),
        };
        session.connect(connect, now_ns, out);
    });
}

/// Returns why the connection ends.
pub fn on_rejected(client: &mut LoadClient, connack: &ConnAck<'_>) -> String {
    if is_final(connack.reason) {
        client.attempts = ATTEMPTS_MAX;
    }
    format!("CONNACK: {}", connack.reason.name())
}

pub fn on_accepted(
    slot: ClientSlot,
    client: &mut LoadClient,
    cx: &mut LoadContext,
    connack: &ConnAck<'_>,
) -> Result<(), String> {
    cx.connecting -= 1;
    cx.connected += 1;
    cx.meter.interval.counts.connects += 1;
    cx.meter
        .interval
        .connect
        .record(cx.now_ns.saturating_sub(client.begun_ns));
    cx.plan.shared.ever_connected.fetch_add(1, Relaxed);
    client.state = LoadClientState::AwaitsSubAck;
    let plan = cx.plan.clone();
    let group = &plan.groups[client.group.position()];
    arm_keep_alive(slot, client, cx);
    if let Some(publisher) = &mut client.publisher {
        permit(publisher, group, client.session.limits())?;
    }
    // MQTT 3.1 does not report whether the session is present.
    let has_session = connack.session_present || group.version == ProtocolVersion::V3_1 && group.keeps_session();
    resume(slot, client, cx, has_session);
    if group.group.subscribe.is_empty() || has_session && client.has_subscribed {
        set_ready(slot, client, cx);
    } else {
        subscribe(slot, client, cx);
    }
    Ok(())
}

/// Whether another attempt with the same CONNECT would fail too.
fn is_final(reason: ReasonCode) -> bool {
    matches!(
        reason,
        ReasonCode::UnsupportedProtocolVersion
            | ReasonCode::ClientIdentifierNotValid
            | ReasonCode::BadUserNameOrPassword
            | ReasonCode::NotAuthorized
            | ReasonCode::Banned
            | ReasonCode::BadAuthenticationMethod
    )
}

/// Adopts the limits of the server; fails if they forbid what the scenario publishes.
fn permit(publisher: &mut LoadPublisher, group: &GroupPlan, limits: ServerLimits) -> Result<(), String> {
    let Some(publish) = &group.group.publish else {
        return Ok(());
    };
    let wanted = if publish.window == 0 {
        u32::from(u16::MAX)
    } else {
        publish.window
    };
    // [MQTT-3.3.4-9]
    publisher.window = wanted.min(u32::from(limits.receive_maximum));
    // [MQTT-3.2.2-11], [MQTT-3.2.2-14]
    if (limits.maximum_qos as u8) < publish.qos {
        return Err(format!("the server does not accept QoS {}", publish.qos));
    }
    if publish.retain && !limits.is_retain_available {
        return Err("the server does not support retained messages".into());
    }
    Ok(())
}

/// Continues what an earlier connection left unfinished, or drops it if the session is lost.
fn resume(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext, has_session: bool) {
    if has_session {
        publish::send_again(slot, client, cx);
        return;
    }
    client.give_up_messages();
    client.session.discard();
}

fn subscribe(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext) {
    let group = cx.group(client);
    let filters = group.filters(client.index, cx.plan.job.run);
    let mut bytes = Vec::new();
    let each = filters
        .iter()
        .zip(&group.group.subscribe)
        .map(|(filter, subscribe)| SubscribeFilter {
            filter,
            options: SubscriptionOptions {
                maximum_qos: QoS::from_bits(subscribe.qos).unwrap_or_default(),
                ..SubscriptionOptions::default()
            },
        });
    let filters = SubscribeFilters::encode(each, group.version, &mut bytes);
    let subscribe = Subscribe {
        packet_id: client.session.request_id(),
        properties: Properties::EMPTY,
        filters,
    };
    Packet::Subscribe(subscribe).encode(group.version, &mut client.out);
    client.begun_ns = cx.now_ns;
    cx.mark_dirty(slot, client);
}

pub fn on_suback(
    slot: ClientSlot,
    client: &mut LoadClient,
    cx: &mut LoadContext,
    suback: &SubAck<'_>,
) -> Result<(), String> {
    if client.state != LoadClientState::AwaitsSubAck || suback.packet_id.get() <= MESSAGE_IDS {
        return Err("the server sent an unexpected SUBACK".into());
    }
    cx.meter
        .interval
        .subscribe
        .record(cx.now_ns.saturating_sub(client.begun_ns));
    for &reason in suback.reasons {
        if reason < 0x80 {
            cx.meter.interval.counts.subscribes += 1;
            continue;
        }
        cx.meter.interval.counts.subscribes_failed += 1;
        let name = ReasonCode::from_u8(reason).map_or("unknown reason", ReasonCode::name);
        cx.meter.error(&format!("SUBACK: {name}"));
        if let Some(subscriber) = &mut client.subscriber {
            subscriber.is_refused = true;
        }
    }
    client.has_subscribed = true;
    set_ready(slot, client, cx);
    Ok(())
}

fn set_ready(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext) {
    client.state = LoadClientState::Ready;
    client.attempts = 0;
    let plan = cx.plan.clone();
    let group = &plan.groups[client.group.position()].group;
    if let Some(cycle) = &group.cycle {
        let stay_ns = (cycle.stay_s * 1e9) as u64;
        if stay_ns == 0 {
            return leave(slot, client, cx, cycle.is_abrupt);
        }
        cx.timers
            .add_for_client(cx.now_ns + stay_ns, TimerKind::Leave, slot, client);
    } else if group.presence == GroupPresence::AwayWhilePublishing && !cx.has_returned {
        return leave(slot, client, cx, false);
    }
    cx.settle(client);
    publish::pump(slot, client, cx);
}

/// Sends DISCONNECT after the pending data. The server then closes first, so that the local port is free at once.
pub fn leave(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext, is_abrupt: bool) {
    if client.link.is_none() {
        client.state = LoadClientState::Absent;
        return;
    }
    if is_abrupt || !client.is_connected() {
        close(client, cx);
        return after_disconnect(slot, client, cx);
    }
    client.state = LoadClientState::Disconnecting;
    client.session.disconnect(Properties::EMPTY, &mut client.out);
    let deadline_ns = cx.plan.clock.now_ns() + LEAVE_NS;
    cx.timers
        .add_for_client(deadline_ns, TimerKind::LeaveDeadline, slot, client);
    cx.mark_dirty(slot, client);
}

/// Handles the end of a connection: reconnects or gives the client up.
pub fn handle_disconnect(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext, reason: &str) {
    let state = client.state;
    if matches!(
        state,
        LoadClientState::Absent | LoadClientState::GivenUp | LoadClientState::Queued
    ) {
        return;
    }
    close(client, cx);
    match state {
        LoadClientState::Disconnecting => after_disconnect(slot, client, cx),
        LoadClientState::Ready | LoadClientState::AwaitsSubAck => {
            cx.meter.interval.counts.disconnects += 1;
            cx.meter.error(&format!("lost: {reason}"));
            let has_a_chance = client.is_awaited && client.attempts < ATTEMPTS_MAX;
            if cx.group(client).group.reconnects || has_a_chance || client_cycles(client, cx) {
                retry(slot, client, cx);
            } else {
                cx.given_up += u32::from(client.is_awaited);
                give_up(client, cx);
            }
        }
        _ => {
            cx.meter.interval.counts.connects_failed += 1;
            cx.meter.error(&format!("connect: {reason}"));
            cx.last_refusal = reason.to_string();
            let is_persistent = cx.group(client).group.reconnects && client.has_subscribed || client_cycles(client, cx);
            if client.attempts >= ATTEMPTS_MAX && !is_persistent {
                cx.given_up += 1;
                give_up(client, cx);
            } else {
                retry(slot, client, cx);
            }
        }
    }
}

fn close(client: &mut LoadClient, cx: &mut LoadContext) {
    cx.count_segments(client);
    if client.is_connected() {
        cx.connected -= 1;
    } else {
        cx.connecting -= 1;
    }
    requeue_unsent(client);
    client.link = None;
    client.rest = Vec::new();
    client.out.clear();
    client.out_taken = 0;
    client.epoch = client.epoch.next();
}

fn client_cycles(client: &LoadClient, cx: &LoadContext) -> bool {
    cx.is_cycling && cx.group(client).group.cycle.is_some()
}

/// Counts the QoS 0 messages that were not sent, so that they are sent later under the same numbers.
fn requeue_unsent(client: &mut LoadClient) {
    if client.publisher.is_none() {
        return;
    }
    let unsent = client.unsent_qos0();
    if let Some(publisher) = &mut client.publisher {
        publisher.sent -= unsent;
        publisher.recount += unsent;
    }
}

fn after_disconnect(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext) {
    client.state = LoadClientState::Absent;
    cx.settle(client);
    if client_cycles(client, cx) {
        enqueue(slot, client, cx);
    }
}

fn give_up(client: &mut LoadClient, cx: &mut LoadContext) {
    client.state = LoadClientState::GivenUp;
    cx.settle(client);
    client.give_up_messages();
}

fn retry(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext) {
    if cx.is_ending {
        return give_up(client, cx);
    }
    client.attempts = client.attempts.saturating_add(1).min(ATTEMPTS_MAX);
    client.state = LoadClientState::Queued;
    let pause_ns = (RETRY_NS << (client.attempts - 1)).min(RETRY_MAX_NS);
    let at_ns = cx.plan.clock.now_ns() + pause_ns;
    cx.timers.add_for_client(at_ns, TimerKind::Retry, slot, client);
}

fn arm_keep_alive(slot: ClientSlot, client: &LoadClient, cx: &mut LoadContext) {
    let keep_alive = client.session.keep_alive;
    let interval_ns = keep_alive.interval_ns();
    // A client that comes and goes disconnects earlier; timers for it would only accumulate.
    let comes_and_goes = cx
        .group(client)
        .group
        .cycle
        .as_ref()
        .is_some_and(|cycle| cycle.stay_s * 1e9 < interval_ns as f64 / 2.0);
    if interval_ns > 0 && !comes_and_goes {
        let at_ns = keep_alive.ping_due_ns().unwrap_or(0).max(cx.now_ns + interval_ns / 4);
        cx.timers.add_for_client(at_ns, TimerKind::KeepAlive, slot, client);
    }
}

/// Sends PINGREQ if nothing was sent for a while [MQTT-3.1.2-20]; a server that does not answer it counts as lost.
pub fn keep_alive(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext) {
    if client.state != LoadClientState::Ready || client.session.keep_alive.interval_ns() == 0 {
        return;
    }
    if cx.groups[client.group.position()].is_stalled {
        // The client does not read the answers.
        client.session.keep_alive.record_response();
    }
    let is_due = |due_ns: Option<u64>| due_ns.is_some_and(|due_ns| cx.now_ns >= due_ns);
    if is_due(client.session.keep_alive.response_due_ns()) {
        return handle_disconnect(slot, client, cx, "the server does not answer PINGREQ");
    }
    if is_due(client.session.keep_alive.ping_due_ns()) && client.pending_out() == 0 {
        client.session.ping(cx.now_ns, &mut client.out);
        cx.mark_dirty(slot, client);
    }
    arm_keep_alive(slot, client, cx);
}

/// Creates the parts of a client that only publishers and subscribers have.
pub fn create_parts(client: &mut LoadClient, cx: &LoadContext, subscriber: Option<LoadSubscriber>) {
    let plan = &cx.plan;
    let group = &plan.groups[client.group.position()];
    client.subscriber = subscriber.map(Box::new);
    if let Some(publishing) = &group.publishing {
        client.publisher = Some(Box::new(LoadPublisher {
            sender: publishing.sender(client.index),
            client_id: group.client_id(client.index, plan.job.run).into(),
            sent: 0,
            due: 0,
            recount: 0,
            window: 1,
            unaccepted: Default::default(),
            abandoned_deliveries: 0,
            delivered_before: 0,
        }));
    }
}
