//! Incoming packets: checks and acknowledges messages; acknowledgements open windows.
//!
//! The path of a QoS 0 message limits the throughput of the tool, which shares the machine with the broker. Messages
//! are therefore decoded in the read buffer, the clock is read once per read, nothing is allocated, and the list of
//! gaps is not touched while none is missing.

use std::sync::atomic::Ordering::Relaxed;

use mqtt::{Ack, Decoded, MAXIMUM_REMAINING_LENGTH, Packet, Publish};
use mqtt_client::SessionEvent;

use super::client::{ClientSlot, LoadClient};
use super::context::LoadContext;
use super::flow::{Arrival, Finding, FindingKind};
use super::lifecycle::{on_accepted, on_rejected, on_suback};
use super::others::VerifiedMessage;
use super::outbound::PendingPublish;
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
                    // QoS 0 changes nothing in the session.
                    Packet::Publish(publish) if publish.packet_id.is_none() && client.session.is_accepted() => {
                        on_message(slot, client, cx, &publish)?;
                    }
                    packet => on_packet(slot, client, cx, packet)?,
                }
            }
            Ok(Decoded::Incomplete { needed }) => return Ok((at, needed)),
            Err(error) => return Err(format!("the server sent a malformed packet: {error}")),
        }
    }
}

fn on_packet(
    slot: ClientSlot,
    client: &mut LoadClient,
    cx: &mut LoadContext,
    packet: Packet<'_>,
) -> Result<(), String> {
    let before = client.out.len();
    let event = client.session.handle(packet, &mut client.out);
    let event = event.map_err(|violation| violation.to_string())?;
    if let SessionEvent::Message(publish) = &event {
        client
            .session
            .acknowledge(publish.qos, publish.packet_id, &mut client.out);
    }
    if client.out.len() > before {
        cx.mark_dirty(slot, client);
    }
    match event {
        SessionEvent::Message(publish) => return on_message(slot, client, cx, &publish),
        SessionEvent::Finished(pending, _, ack) => on_finished(client, cx, pending, &ack),
        SessionEvent::UnknownAck(..) => cx.meter.error("an acknowledgement with an unknown packet id"),
        SessionEvent::Accepted(connack) => return on_accepted(slot, client, cx, &connack),
        SessionEvent::Rejected(connack) => return Err(on_rejected(client, &connack)),
        SessionEvent::Subscribed(suback) => return on_suback(slot, client, cx, &suback),
        SessionEvent::Disconnected(disconnect) => return Err(format!("DISCONNECT: {}", disconnect.reason.name())),
        SessionEvent::Received(_) | SessionEvent::Unsubscribed(_) | SessionEvent::Handled => {}
    }
    Ok(())
}

/// Handles the last acknowledgement of a message.
fn on_finished(client: &mut LoadClient, cx: &mut LoadContext, pending: PendingPublish, ack: &Ack<'_>) {
    let Some(publisher) = &mut client.publisher else { return };
    let counts = &mut cx.meter.interval.counts;
    if ack.reason.is_error() {
        publisher.unaccepted.push(pending.sequence);
        counts.refused += 1;
        return cx.meter.error(&format!("refused: {}", ack.reason.name()));
    }
    counts.acknowledged += 1;
    cx.meter
        .interval
        .acknowledgement
        .record(cx.now_ns.saturating_sub(pending.due_ns));
}

#[inline]
fn on_message(
    slot: ClientSlot,
    client: &mut LoadClient,
    cx: &mut LoadContext,
    publish: &Publish<'_>,
) -> Result<(), String> {
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
