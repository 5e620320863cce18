//! Packets that come: messages are checked and acknowledged, acknowledgements open windows.
//!
//! The path of a message at QoS 0 is what limits the tool, which shares its machine with the broker: decoded where it was read,
//! one look at the clock per read, no allocation, and the list of holes untouched while nothing is missing.

use std::sync::atomic::Ordering::Relaxed;

use mqtt::{Ack, Decoded, MAXIMUM_REMAINING_LENGTH, Packet, PacketType, Publish, QoS, encode_bare_ack};

use super::client::{Client, State};
use super::context::Context;
use super::flow::{Arrival, Finding, FindingKind};
use super::lifecycle::{on_connack, on_suback};
use super::others::Verified;
use super::outbound::Outbound;
use super::truth::{HEADER_BYTES, Header, find_hex};

const PACKET_BYTES_MAX: usize = MAXIMUM_REMAINING_LENGTH + 5;

/// Takes all whole packets; how many bytes they had, and how many are needed (from there) to go on.
pub fn take_packets(slot: u32, client: &mut Client, cx: &mut Context, bytes: &[u8]) -> Result<(usize, usize), String> {
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
            Err(error) => return Err(format!("the server sends something malformed: {error}")),
        }
    }
}

fn on_other(slot: u32, client: &mut Client, cx: &mut Context, packet: &Packet<'_>) -> Result<(), String> {
    match packet {
        Packet::PubAck(ack) => on_last_ack(client, cx, ack),
        Packet::PubComp(ack) => on_last_ack(client, cx, ack),
        Packet::PubRec(ack) => on_pubrec(slot, client, cx, ack),
        Packet::PubRel(ack) => {
            if let Some(subscriber) = &mut client.subscriber {
                subscriber.inbound.release(ack.packet_id);
            }
            // Also when it is not known [MQTT-4.3.3-11].
            encode_bare_ack(PacketType::PubComp, ack.packet_id, &mut client.out);
            cx.mark_dirty(slot, client);
        }
        Packet::ConnAck(connack) => return on_connack(slot, client, cx, connack),
        Packet::SubAck(suback) => return on_suback(slot, client, cx, suback),
        Packet::PingResp | Packet::UnsubAck(_) => {}
        Packet::Disconnect(disconnect) => return Err(format!("DISCONNECT: {}", disconnect.reason.name())),
        other => return Err(format!("the server sends {}", other.packet_type().name())),
    }
    Ok(())
}

fn outbound(client: &mut Client) -> Option<&mut Outbound> {
    client.publisher.as_deref_mut().map(|publisher| &mut publisher.outbound)
}

/// PUBACK and PUBCOMP.
fn on_last_ack(client: &mut Client, cx: &mut Context, ack: &Ack<'_>) {
    let Some(outbound) = outbound(client) else { return };
    let Some(pending) = outbound.complete(ack.packet_id) else {
        return cx.meter.error("an acknowledgement of nothing");
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

fn on_pubrec(slot: u32, client: &mut Client, cx: &mut Context, ack: &Ack<'_>) {
    if ack.reason.is_error() {
        return on_last_ack(client, cx, ack);
    }
    let Some(outbound) = outbound(client) else { return };
    if outbound.release(ack.packet_id).is_none() {
        cx.meter.error("an acknowledgement of nothing");
    }
    encode_bare_ack(PacketType::PubRel, ack.packet_id, &mut client.out);
    cx.mark_dirty(slot, client);
}

#[inline]
fn on_publish(slot: u32, client: &mut Client, cx: &mut Context, publish: &Publish<'_>) -> Result<(), String> {
    if client.state == State::AwaitsConnAck {
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
    if cx.plan.hears_others() {
        take_of_others(client, cx, publish);
        return Ok(());
    }
    let header = match header_of(publish.payload) {
        Some(header) if is_ours(cx, &header) => header,
        _ => match proof_in_text(cx, publish) {
            Some(header) => return verify(slot, client, cx, publish, header, true),
            None => return without_proof(slot, cx, publish),
        },
    };
    verify(slot, client, cx, publish, header, false)
}

/// A job without publishers.
fn take_of_others(client: &mut Client, cx: &mut Context, publish: &Publish<'_>) {
    let others = client
        .subscriber
        .as_deref_mut()
        .and_then(|subscriber| subscriber.others.as_deref_mut());
    let now_ns = cx.plan.stamp(cx.now_ns);
    match others.map_or(Verified::No, |others| others.take(publish, now_ns, &mut cx.ledger)) {
        Verified::Message { age_ns } => cx.meter.interval.end_to_end.record(age_ns),
        Verified::Part { age_ns } => {
            cx.meter.interval.end_to_end.record(age_ns);
            cx.ledger.unverified += 1;
        }
        Verified::Corrupt => cx.ledger.corrupt += 1,
        Verified::No => cx.ledger.unverified += 1,
    }
}

#[inline]
fn header_of(payload: &[u8]) -> Option<Header> {
    Header::decode(payload.first_chunk::<HEADER_BYTES>()?, payload.len())
}

#[inline]
fn is_ours(cx: &Context, header: &Header) -> bool {
    header.run == cx.plan.job.run && (header.sender as usize) < cx.plan.topics.len()
}

fn proof_in_text(cx: &Context, publish: &Publish<'_>) -> Option<Header> {
    find_hex(publish.payload, |header| is_ours(cx, &header))
}

/// Of another run or another program, made without a proof, or changed on the way: the topic tells.
#[cold]
fn without_proof(slot: u32, cx: &mut Context, publish: &Publish<'_>) -> Result<(), String> {
    let is_of_other_run = header_of(publish.payload).is_some_and(|header| header.run != cx.plan.job.run);
    let sender = cx.plan.tree.a_publisher_of(publish.topic);
    let group = sender.and_then(|sender| cx.plan.publisher(sender));
    let is_proven = group
        .and_then(|(group, _)| group.publishing.as_ref())
        .is_some_and(|publishing| publishing.payload.is_proven());
    match sender.filter(|_| is_proven && !is_of_other_run) {
        Some(sender) => corrupt(slot, cx, FindingKind::NoProof, sender, 0),
        None => {
            cx.ledger.unverified += 1;
            // Where several publish to one topic this may be another's window; together they come out even.
            sender.into_iter().for_each(|sender| count_delivery(cx, sender));
        }
    }
    Ok(())
}

#[inline]
fn count_delivery(cx: &mut Context, sender: u32) {
    if cx.deliveries.is_empty() {
        return;
    }
    let count = &mut cx.deliveries[sender as usize];
    if *count == 0 {
        cx.delivered.push(sender);
    }
    *count += 1;
}

#[cold]
fn corrupt(slot: u32, cx: &mut Context, kind: FindingKind, sender: u32, sequence: u32) {
    cx.ledger.corrupt += 1;
    cx.ledger.find(Finding {
        slot,
        sender,
        sequence,
        kind,
    });
}

#[inline(always)]
fn verify(
    slot: u32,
    client: &mut Client,
    cx: &mut Context,
    publish: &Publish<'_>,
    header: Header,
    is_text: bool,
) -> Result<(), String> {
    let Header { sender, sequence, .. } = header;
    if !cx.plan.topics[sender as usize].is(publish.topic, sequence) {
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
        .record(Header::difference_ns(cx.plan.stamp(cx.now_ns), header.due_ns).max(0) as u64);
    let Some(subscriber) = client.subscriber.as_deref_mut() else {
        return Ok(());
    };
    let arrival = match subscriber.sources.position(sender) {
        Some(position) => cx.ledger.arrive(&mut subscriber.flows[position], sequence),
        None => match arrive_shared(client, cx, sender, sequence) {
            Some(arrival) => arrival,
            // A filter without wildcards hears some topics of a publisher and others not.
            None if cx.plan.topics[sender as usize].changes() => {
                cx.ledger.unverified += 1;
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
        cx.ledger.find(Finding {
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

/// `None` when none of its shared subscriptions hears the sender.
fn arrive_shared(client: &mut Client, cx: &mut Context, sender: u32, sequence: u32) -> Option<Arrival> {
    let plan = cx.plan.clone();
    let members = &mut client.subscriber.as_deref_mut()?.shares;
    let heard = members
        .iter_mut()
        .find_map(|member| Some((plan.shares[member.share as usize].sources.position(sender)?, member)));
    let (position, member) = heard?;
    let next = &mut member.next[position];
    let is_late = sequence < *next;
    *next = (*next).max(sequence.saturating_add(1));
    if !cx.share_log[member.share as usize][position].insert(sequence) {
        cx.ledger.duplicated += 1;
        return Some(Arrival::Duplicate);
    }
    plan.shared.share_received[member.share as usize].fetch_add(1, Relaxed);
    if is_late {
        cx.ledger.reordered += 1;
        return Some(Arrival::Reordered);
    }
    Some(Arrival::First)
}
