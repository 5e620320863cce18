//! Incoming packets: checks and acknowledges messages; acknowledgements open windows.
//!
//! The path of a QoS 0 message limits the throughput of the tool, which shares the machine with the broker. Messages
//! are therefore decoded in the read buffer, the clock is read once per read, nothing is allocated, and the list of
//! gaps is not touched while none is missing.

use std::sync::atomic::Ordering::Relaxed;

use mqtt::{Ack, Decoded, MAXIMUM_REMAINING_LENGTH, Packet, PacketType, Publish, QoS, encode_bare_ack};

use super::client::{ClientSlot, LoadClient, LoadClientState};
use super::context::LoadContext;
use super::flow::{Arrival, Finding, FindingKind};
use super::lifecycle::{on_connack, on_suback};
use super::others::VerifiedMessage;
use super::outbound::OutboundQueue;
use super::truth::{HEADER_BYTES, SenderNumber, VerificationHeader, find_hex};

const PACKET_BYTES_MAX: usize = MAXIMUM_REMAINING_LENGTH + 5;

/// Processes all complete packets. Returns how many bytes they had, and how many bytes the next packet needs.
pub fn take_packets(
    slot: ClientSlot,
    client: &mut LoadClient,
    cx: &mut LoadContext,
    bytes: &[u8],
) -> Result<(usize, usize), String> {
    let version = cx.group(client).version;
    let mut at = 0;
    loop {
        match mqtt::decode(&bytes[at..], version, PACKET_BYTES_MAX) {
            Ok(Decoded::Complete { packet, size }) => {
                at += size;
                match packet {
                    Packet::Publish(publish) => on_publish(slot, client, cx, &publish)?,
                    packet => on_other(slot, client, cx, &packet)?,
                }
            }
            Ok(Decoded::Incomplete { needed }) => return Ok((at, needed)),
            Err(error) => return Err(format!("the server sent a malformed packet: {error}")),
        }
    }
}

fn on_other(
    slot: ClientSlot,
    client: &mut LoadClient,
    cx: &mut LoadContext,
    packet: &Packet<'_>,
) -> Result<(), String> {
    match packet {
        Packet::PubAck(ack) => on_last_ack(client, cx, ack),
        Packet::PubComp(ack) => on_last_ack(client, cx, ack),
        Packet::PubRec(ack) => on_pubrec(slot, client, cx, ack),
        Packet::PubRel(ack) => {
            if let Some(subscriber) = &mut client.subscriber {
                subscriber.inbound.release(ack.packet_id);
            }
            // Also for an unknown packet id [MQTT-4.3.3-11].
            encode_bare_ack(PacketType::PubComp, ack.packet_id, &mut client.out);
            cx.mark_dirty(slot, client);
        }
        Packet::ConnAck(connack) => return on_connack(slot, client, cx, connack),
        Packet::SubAck(suback) => return on_suback(slot, client, cx, suback),
        Packet::PingResp | Packet::UnsubAck(_) => {}
        Packet::Disconnect(disconnect) => return Err(format!("DISCONNECT: {}", disconnect.reason.name())),
        other => return Err(format!("the server sent an unexpected {}", other.packet_type().name())),
    }
    Ok(())
}

fn outbound(client: &mut LoadClient) -> Option<&mut OutboundQueue> {
    client.publisher.as_deref_mut().map(|publisher| &mut publisher.outbound)
}

/// Handles PUBACK and PUBCOMP.
fn on_last_ack(client: &mut LoadClient, cx: &mut LoadContext, ack: &Ack<'_>) {
    let Some(outbound) = outbound(client) else { return };
    let Some(pending) = outbound.complete(ack.packet_id) else {
        return cx.meter.error("an acknowledgement with an unknown packet id");
    };
    let counts = &mut cx.meter.interval.counts;
    if ack.reason.is_error() {
        outbound.refuse(pending.sequence);
        counts.refused += 1;
        return cx.meter.error(&format!("refused: {}", ack.reason.name()));
    }
    counts.acknowledged += 1;
    cx.meter
        .interval
        .acknowledgement
        .record(cx.now_ns.saturating_sub(pending.due_ns));
}

fn on_pubrec(slot: ClientSlot, client: &mut LoadClient, cx: &mut LoadContext, ack: &Ack<'_>) {
    if ack.reason.is_error() {
        return on_last_ack(client, cx, ack);
    }
    let Some(outbound) = outbound(client) else { return };
    if outbound.release(ack.packet_id).is_none() {
        cx.meter.error("an acknowledgement with an unknown packet id");
    }
    encode_bare_ack(PacketType::PubRel, ack.packet_id, &mut client.out);
    cx.mark_dirty(slot, client);
}

#[inline]
fn on_publish(
    slot: ClientSlot,
    client: &mut LoadClient,
    cx: &mut LoadContext,
    publish: &Publish<'_>,
) -> Result<(), String> {
    if client.state == LoadClientState::AwaitsConnAck {
        return Err("PUBLISH before CONNACK".into());
    }
    if let Some(id) = publish.packet_id {
        let is_new = match (publish.qos, &mut client.subscriber) {
            (QoS::ExactlyOnce, Some(subscriber)) => subscriber.inbound.take(id, publish.dup),
            _ => true,
        };
        let kind = if publish.qos == QoS::ExactlyOnce {
            PacketType::PubRec
        } else {
            PacketType::PubAck
        };
        encode_bare_ack(kind, id, &mut client.out);
        cx.mark_dirty(slot, client);
        if !is_new {
            return Ok(());
        }
    }
    cx.meter.interval.counts.received += 1;
    if cx.plan.compares_other_runs() {
        check_of_other_run(client, cx, publish);
        return Ok(());
    }
    let header = match header_of(publish.payload) {
        Some(header) if is_ours(cx, &header) => header,
        _ => match header_in_text(cx, publish) {
            Some(header) => return verify(slot, client, cx, publish, header, true),
            None => return without_header(slot, cx, publish),
        },
    };
    verify(slot, client, cx, publish, header, false)
}

/// Checks a message in a job without publishers.
fn check_of_other_run(client: &mut LoadClient, cx: &mut LoadContext, publish: &Publish<'_>) {
    let others = client
        .subscriber
        .as_deref_mut()
        .and_then(|subscriber| subscriber.other_runs.as_deref_mut());
    let now_ns = cx.plan.stamp(cx.now_ns);
    match others.map_or(VerifiedMessage::No, |others| others.take(publish, now_ns, &mut cx.gaps)) {
        VerifiedMessage::Message { age_ns } => cx.meter.interval.end_to_end.record(age_ns),
        VerifiedMessage::Part { age_ns } => {
            cx.meter.interval.end_to_end.record(age_ns);
            cx.gaps.unverified += 1;
        }
        VerifiedMessage::Corrupt => cx.gaps.corrupt += 1,
        VerifiedMessage::No => cx.gaps.unverified += 1,
    }
}

#[inline]
fn header_of(payload: &[u8]) -> Option<VerificationHeader> {
    VerificationHeader::decode(payload.first_chunk::<HEADER_BYTES>()?, payload.len())
}

#[inline]
fn is_ours(cx: &LoadContext, header: &VerificationHeader) -> bool {
    header.run == cx.plan.job.run && (header.sender.index()) < cx.plan.topics.len()
}

fn header_in_text(cx: &LoadContext, publish: &Publish<'_>) -> Option<VerificationHeader> {
    find_hex(publish.payload, |header| is_ours(cx, &header))
}

/// Classifies a message without a valid header: of another run or program, made without a header, or damaged. The topic
/// decides.
#[cold]
fn without_header(slot: ClientSlot, cx: &mut LoadContext, publish: &Publish<'_>) -> Result<(), String> {
    let is_of_other_run = header_of(publish.payload).is_some_and(|header| header.run != cx.plan.job.run);
    let sender = cx.plan.tree.first_publisher_of(publish.topic);
    let group = sender.and_then(|sender| cx.plan.publisher(sender));
    let is_verifiable = group
        .and_then(|(group, _)| group.publishing.as_ref())
        .is_some_and(|publishing| publishing.payload.is_verifiable());
    match sender.filter(|_| is_verifiable && !is_of_other_run) {
        Some(sender) => corrupt(slot, cx, FindingKind::DamagedHeader, sender, 0),
        None => {
            cx.gaps.unverified += 1;
            // If several publish to this topic, the delivery may be counted for the wrong one; the sum is correct.
            sender.into_iter().for_each(|sender| count_delivery(cx, sender));
        }
    }
    Ok(())
}

#[inline]
fn count_delivery(cx: &mut LoadContext, sender: SenderNumber) {
    if cx.deliveries.is_empty() {
        return;
    }
    let count = &mut cx.deliveries[sender.index()];
    if *count == 0 {
        cx.delivered.push(sender);
    }
    *count += 1;
}

#[cold]
fn corrupt(slot: ClientSlot, cx: &mut LoadContext, kind: FindingKind, sender: SenderNumber, sequence: u32) {
    cx.gaps.corrupt += 1;
    cx.gaps.find(Finding {
        slot,
        sender,
        sequence,
        kind,
    });
}

#[inline(always)]
fn verify(
    slot: ClientSlot,
    client: &mut LoadClient,
    cx: &mut LoadContext,
    publish: &Publish<'_>,
    header: VerificationHeader,
    is_text: bool,
) -> Result<(), String> {
    let VerificationHeader { sender, sequence, .. } = header;
    if !cx.plan.topics[sender.index()].matches(publish.topic, sequence) {
        corrupt(slot, cx, FindingKind::WrongTopic, sender, sequence);
        return Ok(());
    }
    if !is_text && !header.has_filled(&publish.payload[HEADER_BYTES..]) {
        corrupt(slot, cx, FindingKind::CorruptPayload, sender, sequence);
        return Ok(());
    }
    cx.meter
        .interval
        .end_to_end
        .record(VerificationHeader::difference_ns(cx.plan.stamp(cx.now_ns), header.due_ns).max(0) as u64);
    let Some(subscriber) = client.subscriber.as_deref_mut() else {
        return Ok(());
    };
    let arrival = match subscriber.sources.position(sender) {
        Some(position) => cx.gaps.arrive(&mut subscriber.flows[position], sequence),
        None => match arrive_shared(client, cx, sender, sequence) {
            Some(arrival) => arrival,
            // A filter without wildcards matches some topics of such a publisher and not others.
            None if cx.plan.topics[sender.index()].changes() => {
                cx.gaps.unverified += 1;
                return Ok(());
            }
            None => {
                corrupt(slot, cx, FindingKind::NotSubscribed, sender, sequence);
                return Ok(());
            }
        },
    };
    if arrival != Arrival::First {
        let kind = if arrival == Arrival::Duplicate {
            FindingKind::Duplicate
        } else {
            FindingKind::Reordered
        };
        cx.gaps.find(Finding {
            slot,
            sender,
            sequence,
            kind,
        });
    }
    if arrival != Arrival::Duplicate {
        count_delivery(cx, sender);
    }
    Ok(())
}

/// Records a message of a shared subscription; `None` if none of the client's shared subscriptions receives from the
/// sender.
fn arrive_shared(
    client: &mut LoadClient,
    cx: &mut LoadContext,
    sender: SenderNumber,
    sequence: u32,
) -> Option<Arrival> {
    let plan = cx.plan.clone();
    let members = &mut client.subscriber.as_deref_mut()?.shares;
    let found = members
        .iter_mut()
        .find_map(|member| Some((plan.shares[member.share as usize].sources.position(sender)?, member)));
    let (position, member) = found?;
    let next = &mut member.next[position];
    let is_late = sequence < *next;
    *next = (*next).max(sequence.saturating_add(1));
    if !cx.share_log[member.share as usize][position].insert(sequence) {
        cx.gaps.duplicated += 1;
        return Some(Arrival::Duplicate);
    }
    plan.shared.share_received[member.share as usize].fetch_add(1, Relaxed);
    if is_late {
        cx.gaps.reordered += 1;
        return Some(Arrival::Reordered);
    }
    Some(Arrival::First)
}
