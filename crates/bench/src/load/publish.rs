//! Publishing: chooses the next message in both models and for all QoS, and sends messages again on a resumed session.

use std::sync::atomic::Ordering::Relaxed;

use mqtt::{PacketType, Properties, Publish, PublishExtras, QoS, encode_bare_ack, encode_publish};
use mqtt_client::{ClientSession, InFlight};

use super::client::{ClientSlot, LoadClient, LoadClientState, LoadPublisher};
use super::context::{LoadContext, SendPermission};
use super::outbound::PendingPublish;
use super::payload::PayloadValues;
use super::plan::{GroupPlan, Publishing};
use super::truth::VerificationHeader;
use crate::scenario;

/// A connection with more pending bytes than this encodes no new messages; they stay numbers.
pub const OUT_MAX: usize = 64 * 1024;

/// Encodes as many messages as may be sent now.
pub fn pump(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext) {
    if client.state != LoadClientState::Ready || client.publisher.is_none() || cx.permission == SendPermission::Nothing
    {
        return;
    }
    let plan = cx.plan.clone();
    let group = &plan.groups[client.group.position()];
    let (Some(publishing), Some(publish)) = (&group.publishing, &group.group.publish) else {
        return;
    };
    let before = client.out.len();
    while client.pending_out() < OUT_MAX {
        let Some(publisher) = client.publisher.as_deref_mut() else {
            break;
        };
        if !can_send(publisher, &client.session, cx, publishing, publish) {
            break;
        }
        let sequence = publisher.sent;
        let due_ns = match &cx.groups[client.group.position()].schedule {
            Some(schedule) => schedule.due_ns(client.group_index, sequence),
            None => cx.now_ns,
        };
        publisher.sent += 1;
        match publisher.recount.checked_sub(1) {
            Some(rest) => publisher.recount = rest,
            None => cx.meter.interval.counts.published += 1,
        }
        let id = (publishing.qos != QoS::AtMostOnce).then(|| {
            let pending = PendingPublish { sequence, due_ns };
            client.session.in_flight_mut().push(publishing.qos, pending)
        });
        let message = OutgoingMessage {
            sequence,
            due_ns,
            id,
            dup: false,
        };
        write(publisher, &mut client.out, cx, group, &message);
    }
    if client.out.len() > before {
        cx.mark_dirty(slot, client);
    }
}

fn can_send(
    publisher: &LoadPublisher,
    session: &ClientSession<PendingPublish>,
    cx: &LoadContext,
    publishing: &Publishing,
    publish: &scenario::PublishSpec,
) -> bool {
    let is_due = if publishing.is_open {
        publisher.sent < publisher.due
    } else {
        let is_within = publish.messages == 0 || u64::from(publisher.sent) < publish.messages;
        is_within && (cx.permission == SendPermission::Begin || publisher.recount > 0)
    };
    if !is_due {
        return false;
    }
    match publishing.qos {
        QoS::AtMostOnce if publishing.counts_deliveries => is_window_open(publisher, cx, publish.window),
        QoS::AtMostOnce => true,
        _ => session
            .in_flight()
            .is_none_or(|in_flight| in_flight.len() < publisher.window as usize && in_flight.has_room()),
    }
}

/// Whether a QoS 0 message fits in the window. Outstanding messages are estimated from the deliveries in this process.
fn is_window_open(publisher: &LoadPublisher, cx: &LoadContext, window: u32) -> bool {
    let shared = &cx.plan.shared;
    let receivers = u64::from(shared.receivers[publisher.sender.index()].load(Relaxed));
    let delivered = shared.delivered[publisher.sender.index()].load(Relaxed) + publisher.abandoned_deliveries;
    (u64::from(publisher.sent) * receivers).saturating_sub(delivered) < (u64::from(window) * receivers).max(1)
}

/// Writes off missing QoS 0 deliveries, so that lost messages do not close a window forever: if none has arrived since
/// the last check, no more are expected.
pub fn write_off(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext) {
    let Some(publisher) = &mut client.publisher else { return };
    let shared = &cx.plan.shared;
    let delivered = shared.delivered[publisher.sender.index()].load(Relaxed);
    if delivered == publisher.delivered_before && client.out_taken == client.out.len() {
        let receivers = u64::from(shared.receivers[publisher.sender.index()].load(Relaxed));
        publisher.abandoned_deliveries = (u64::from(publisher.sent) * receivers).saturating_sub(delivered);
    }
    publisher.delivered_before = delivered;
    pump(slot, client, cx);
}

struct OutgoingMessage {
    sequence: u32,
    due_ns: u64,
    id: Option<mqtt::PacketId>,
    dup: bool,
}

fn write(
    publisher: &LoadPublisher,
    out: &mut Vec<u8>,
    cx: &mut LoadContext,
    group: &GroupPlan,
    message: &OutgoingMessage,
) {
    let (Some(publishing), Some(publish)) = (&group.publishing, &group.group.publish) else {
        return;
    };
    let header = VerificationHeader {
        run: cx.plan.job.run,
        sender: publisher.sender,
        sequence: message.sequence,
        due_ns: cx.plan.stamp(message.due_ns),
    };
    let content = PayloadValues {
        header,
        due_ns: message.due_ns,
        client_id: &publisher.client_id,
        epoch_ms: cx.plan.epoch_ms,
    };
    let payload = &mut cx.payload;
    payload.clear();
    publishing.payload.make(&content, payload);
    let topic = &cx.plan.topics[publisher.sender.index()];
    topic.of(message.sequence, &mut cx.scratch, |topic| {
        let packet = Publish {
            dup: message.dup,
            qos: publishing.qos,
            retain: publish.retain,
            topic,
            packet_id: message.id,
            properties: Properties::EMPTY,
            payload,
        };
        encode_publish(&packet, PublishExtras::default(), group.version, out);
    });
}

/// Sends again on a resumed session: unacknowledged PUBLISH with DUP, and PUBREL, in the original order [MQTT-4.4.0-1].
pub fn send_again(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext) {
    let plan = cx.plan.clone();
    let group = &plan.groups[client.group.position()];
    let Some(publisher) = client.publisher.as_deref() else {
        return;
    };
    let before = client.out.len();
    for pending in client.session.in_flight().into_iter().flat_map(InFlight::iter) {
        let id = pending.packet_id;
        if pending.is_received {
            encode_bare_ack(PacketType::PubRel, id, &mut client.out);
            continue;
        }
        let message = OutgoingMessage {
            sequence: pending.message.sequence,
            due_ns: pending.message.due_ns,
            id: Some(id),
            dup: true,
        };
        write(publisher, &mut client.out, cx, group, &message);
    }
    if client.out.len() > before {
        cx.mark_dirty(slot, client);
    }
}

/// Whether all messages that may be sent are sent, and acknowledged or given up.
pub fn has_finished(client: &LoadClient, cx: &LoadContext) -> bool {
    let Some(publisher) = client.publisher.as_deref() else {
        return true;
    };
    if client.has_finished() {
        return true;
    }
    let group = cx.group(client);
    let (Some(publishing), Some(publish)) = (&group.publishing, &group.group.publish) else {
        return true;
    };
    let is_all_sent = if cx.permission == SendPermission::Nothing {
        true
    } else if publishing.is_open {
        let is_schedule_over = cx.permission != SendPermission::Begin
            || publish.messages != 0 && u64::from(publisher.due) >= publish.messages;
        is_schedule_over && publisher.sent >= publisher.due
    } else {
        let is_limit_reached = publish.messages != 0 && u64::from(publisher.sent) >= publish.messages;
        publisher.recount == 0 && (cx.permission != SendPermission::Begin || is_limit_reached)
    };
    is_all_sent && client.session.in_flight_count() == 0 && client.pending_out() == 0
}
