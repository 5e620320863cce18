//! Builds running shards from the recovered state: sessions with subscriptions and queues, groups, retained and delayed
//! messages, deadlines, and messages that a shard had not routed yet.
//!
//! Runs on one thread before the first connection, with access to all shards. Queued messages stay in the journal; only
//! messages that are needed at once are read.

use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use journal::LogBatch;
use mqtt::ProtocolVersion;

use crate::access::LoginGrant;
use crate::delayed::DelayedMessage;
use crate::deliver::ShardCore;
use crate::delivery::{DeliveryTag, GroupRef};
use crate::durable::cold::publication_of;
use crate::durable::entry::StoredEntry;
use crate::durable::journaled_queue::ColdEntries;
use crate::durable::pages::{Pages, QueuePage};
use crate::durable::pending_records::PendingRecords;
use crate::durable::record;
use crate::durable::record::{
    GroupKey, JournalRecord, MessageRecord, Recipient, RecordPosition, Seq, SessionEntry, SessionKey, Targets, WITH_TAP,
};
use crate::durable::recovery::{
    RecoveredRetained, RecoveredSession, RecoveredState, RecoveredSubscription, RecoveredWill, StoredTag, Unrouted,
};
use crate::effect::{DropReason, Now, ShardId};
use crate::fault::{Fault, is_planted};
use crate::message::{Publication, RecordLocation};
use crate::mountpoint::Mountpoint;
use crate::node_state::{NodeState, group_home_shard, hash, home_shard};
use crate::owners::{ClientAccount, SessionHolding, owner_name};
use crate::parsed_filter::ParsedFilter;
use crate::router::{InterestedSession, Subscriber};
use crate::session::{Session, SessionWill, Subscription};
use crate::session_link::LinkFlag;
use crate::sessions::Sessions;
use crate::shard::{Components, DUE_BYTES, Shard};
use crate::shared::JoinRequest;
use crate::slots::{ReplayNumber, SessionEpoch, SessionSlot, SubscribeTicket};
use crate::stats::ShardStats;
use crate::tick::Tick;
use crate::timers::SessionDeadline;

/// Reads message records. Calls back with the index of each position and its payload, or `None` if it cannot be read.
pub type ReadMessages<'a> = dyn FnMut(&[RecordPosition], &mut dyn FnMut(usize, Option<&[u8]>)) + 'a;

/// Appends a batch to the journal. Returns its start and end.
pub type AppendBatch<'a> = dyn FnMut(&mut LogBatch) -> (u64, u64) + 'a;

/// Counts of restored and lost items. The loss is reported once and also recorded in the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreCounts {
    pub sessions: u64,
    pub queued_messages: u64,
    pub retained_messages: u64,
    /// Retained and delayed messages that could not be read.
    pub damaged: u64,
}

/// Fills new shards, on which `keep_journal` has been called. Appends the records that they write.
pub fn restore(
    now: Now,
    shards: &mut [Shard],
    recovered: RecoveredState,
    read: &mut ReadMessages<'_>,
    append: &mut AppendBatch<'_>,
) -> RestoreCounts {
    for shard in &mut *shards {
        if let Some(records) = shard.split(now).0.core.ledger.records_mut() {
            records.continue_clock(now, recovered.clock_ahead_ms);
        }
    }
    let mut result = RestoreCounts::default();
    // Losses of sessions are counted in `damaged`.
    let mut lost = 0;
    let mut groups = HashMap::new();
    for group in recovered.groups {
        let home = group_home_shard(&group.share_name, &group.filter, shards.len() as u16);
        let key = group.key;
        let (mut tick, parts) = shards[usize::from(home.0)].split(now);
        if let Some(reference) = parts.groups.restore(&mut tick, parts.router, group) {
            groups.insert(key, reference);
        }
    }
    let mut connected = Vec::new();
    for mut session in recovered.sessions {
        let was_connected = session.left_unix_ms.is_none();
        if was_connected {
            // Treated as disconnected now, because the time of the crash is unknown.
            session.set_disconnected(now.journal_ms);
        }
        result.sessions += 1;
        let paged: u64 = session.pages.iter().map(|page| u64::from(page.count)).sum();
        result.queued_messages += session.entries.len() as u64 + paged;
        let home = home_shard(&session.client_id, shards.len() as u16).map_or(0, |id| usize::from(id.0));
        let (tick, parts) = shards[home].split(now);
        let (slot, damaged) = SessionRestorer { tick, parts }.restore(session, &groups, read);
        result.damaged += damaged;
        connected.extend(was_connected.then_some((home, slot)));
    }
    for (session, entry) in recovered.numbered {
        record_number(shards[0].split(now).0.core, session, &entry);
    }
    let mut retained = recovered.retained;
    // Expired messages are not read. If replay starts earlier than necessary, it finds records of expired messages that
    // have been deleted.
    retained.retain(|retained| retained.expires_unix_ms.is_none_or(|at| at > now.journal_ms));
    result.retained_messages = retained.len() as u64;
    lost += restore_retained(now, shards, &retained, read);
    lost += restore_delayed(now, shards, &recovered.delayed, read);
    exchange_mail(now, shards, append);
    for shard in &mut *shards {
        let (mut tick, parts) = shard.split(now);
        parts.groups.end_empty(&mut tick, parts.router);
    }
    lost += route_rest(now, shards, recovered.shards, &recovered.unrouted, read);
    result.damaged += lost;
    let count = shards.len() as u16;
    let core = shards[0].split(now).0.core;
    core.stats.drops[DropReason::Damaged as usize] += lost;
    // In the same batch as the records that everything has been routed, and before any new publication: messages
    // identify shards by number, and the number of shards may have grown.
    core.ledger.record(&JournalRecord::Boot {
        unix_ms: now.journal_ms,
        shards: count,
        last_key: recovered.last_key,
    });
    if let Some(records) = core.ledger.records_mut() {
        records.record_clock(now);
    }
    append_atomically(now, shards, append);
    exchange_mail(now, shards, append);
    for (home, slot) in connected {
        let core = shards[home].split(now).0.core;
        core.sessions.mark_possibly_sent(&mut core.stats, slot);
    }
    resume_deadlines(now, shards, append);
    append_all(now, shards, append);
    result
}

/// Records the queue number of a message that was held.
fn record_number(core: &mut ShardCore, session: SessionKey, entry: &SessionEntry) {
    let mut targets = Vec::new();
    record::RecordTarget {
        to: Recipient::Session(session),
        seq: entry.seq,
        qos: entry.qos,
        retain: entry.retain,
        group: entry.group,
        identifiers: entry.identifiers.clone(),
    }
    .put(&mut targets);
    core.ledger.record(&JournalRecord::Queued {
        message: entry.message,
        size: entry.size,
        targets: Targets::from_written(&targets),
    });
}

/// Appends the records of the shards; mail refers to their positions. The first shard is last, because it records that
/// all shards have routed.
fn append_all(now: Now, shards: &mut [Shard], append: &mut AppendBatch<'_>) {
    for shard in shards.iter_mut().rev() {
        if let Some(batch) = shard.journal(now).batch() {
            let (base, end) = append(batch);
            shard.journal(now).appended(base, end);
        }
    }
}

/// Like [`append_all`], but atomic: the routed messages and the record that they were routed survive a crash together.
fn append_atomically(now: Now, shards: &mut [Shard], append: &mut AppendBatch<'_>) {
    let mut all = LogBatch::new();
    let mut shifts = Vec::new();
    for shard in shards.iter_mut().rev() {
        shifts.push(shard.journal(now).batch().map(|batch| all.take(batch)));
    }
    if all.is_empty() {
        return;
    }
    let (base, end) = append(&mut all);
    for (shard, shift) in shards.iter_mut().rev().zip(shifts) {
        if let Some(shift) = shift {
            shard.journal(now).appended(base + shift, end);
        }
    }
}

/// Delivers mail as soon as the records that it refers to have been appended.
fn exchange_mail(now: Now, shards: &mut [Shard], append: &mut AppendBatch<'_>) {
    loop {
        let mut mail = Vec::new();
        for from in (0..shards.len()).rev() {
            append_all(now, &mut shards[from..=from], append);
            for to in 0..shards.len() {
                mail.extend(shards[from].take_mail(ShardId(to as u16)).map(|mail| (to, mail)));
            }
        }
        if mail.is_empty() {
            return;
        }
        for (to, mail) in mail {
            shards[to].mail(now, mail);
        }
    }
}

/// Works in parts, because many wills may be due at once.
fn resume_deadlines(now: Now, shards: &mut [Shard], append: &mut AppendBatch<'_>) {
    let mut slots = vec![SessionSlot::FIRST; shards.len()];
    let mut is_any_left = true;
    while is_any_left {
        is_any_left = false;
        for (shard, slot) in shards.iter_mut().zip(&mut slots) {
            *slot = resume_deadlines_of(shard, now, *slot);
            is_any_left |= *slot < shard.split(now).0.core.sessions.end();
        }
        exchange_mail(now, shards, append);
    }
}

fn restore_retained(
    now: Now,
    shards: &mut [Shard],
    retained: &[RecoveredRetained],
    read: &mut ReadMessages<'_>,
) -> u64 {
    let positions: Vec<RecordPosition> = retained.iter().map(|retained| retained.message).collect();
    let mut damaged = 0;
    read(&positions, &mut |index, bytes| {
        let topic = &retained[index];
        let Some(Ok(JournalRecord::Message(record))) = bytes.map(JournalRecord::read) else {
            damaged += 1;
            let (tick, _) = shards[0].split(now);
            tick.core
                .ledger
                .record(&JournalRecord::RetainedCleared { topic: &topic.topic });
            return;
        };
        let (_, parts) = shards[0].split(now);
        let account = owner_of(parts.node, &record);
        let p = Publication {
            expires_at_ms: topic.expires_unix_ms.map(|at| now.monotonic_at(at)),
            owner: account.as_ref(),
            ..publication_of(now, &record, topic.message)
        };
        let owner = parts.retained.owner_of(&topic.topic);
        let (tick, parts) = shards[usize::from(owner.0)].split(now);
        parts.node.register_retaining(owner);
        parts.retained.restore(tick.core, now, &p);
    });
    damaged
}

fn restore_delayed(
    now: Now,
    shards: &mut [Shard],
    delayed: &[(RecordPosition, u64)],
    read: &mut ReadMessages<'_>,
) -> u64 {
    let positions: Vec<RecordPosition> = delayed.iter().map(|(message, _)| *message).collect();
    let mut damaged = 0;
    let count = shards.len();
    read(&positions, &mut |index, bytes| match bytes.map(JournalRecord::read) {
        Some(Ok(JournalRecord::Message(record))) => {
            let (position, due_unix_ms) = delayed[index];
            let (_, parts) = shards[0].split(now);
            let owner = owner_of(parts.node, &record);
            let p = Publication {
                owner: owner.as_ref(),
                ..publication_of(now, &record, position)
            };
            let message = p.to_message();
            let (tick, parts) = shards[index % count].split(now);
            let delayed = DelayedMessage {
                message,
                due_ms: now.monotonic_at(due_unix_ms),
                is_routed: due_unix_ms == WITH_TAP,
            };
            parts.delayed.delay_until(tick.core, delayed);
        }
        _ => {
            damaged += 1;
            let place = RecordLocation::at(delayed[index].0);
            let (tick, _) = shards[0].split(now);
            tick.core
                .ledger
                .record_of(place, |message| JournalRecord::DelayedDone { message });
        }
    });
    damaged
}

/// Returns the account that a stored message counts for. `None` if the record is of the server, or of version 1.
fn owner_of(node: &NodeState, record: &MessageRecord<'_>) -> Option<Arc<ClientAccount>> {
    Some(node.owners.client(record.owner?, record.publisher_hash))
}

/// Routes messages that a shard had received but not routed, to the sessions that lived on that shard.
fn route_rest(
    now: Now,
    shards: &mut [Shard],
    old_shards: u16,
    unrouted: &[Unrouted],
    read: &mut ReadMessages<'_>,
) -> u64 {
    let unrouted = if is_planted(Fault::SkipUnrouted) { &[] } else { unrouted };
    let positions: Vec<RecordPosition> = unrouted.iter().map(|unrouted| unrouted.message).collect();
    let mut damaged = 0;
    read(&positions, &mut |index, bytes| {
        let Some(Ok(JournalRecord::Message(record))) = bytes.map(JournalRecord::read) else {
            damaged += 1;
            return;
        };
        let Unrouted {
            message, shards: mask, ..
        } = unrouted[index];
        let (_, parts) = shards[0].split(now);
        let account = owner_of(parts.node, &record);
        let p = Publication {
            owner: account.as_ref(),
            ..publication_of(now, &record, message)
        };
        for shard in &mut *shards {
            let (mut tick, parts) = shard.split(now);
            tick.core.home_filter = Some((old_shards.max(1), mask));
            parts.router.route_local(&mut tick, parts.groups, &p);
            tick.core.home_filter = None;
        }
        let owner = shards[0].split(now).1.retained.owner_of(p.topic);
        let old_owner = hash(p.topic) % u64::from(old_shards.max(1));
        if p.retain && mask >> old_owner & 1 == 1 {
            let (mut tick, parts) = shards[usize::from(owner.0)].split(now);
            parts.node.register_retaining(owner);
            parts.retained.retain_recorded(&mut tick, &p);
        }
    });
    for (by, from, up_to) in watermarks(unrouted) {
        let (tick, _) = shards[0].split(now);
        tick.core.ledger.record(&JournalRecord::Routed { by, from, up_to });
    }
    damaged
}

/// Returns, per pair of former shards, the position up to which `by` has now routed all messages of `from`.
fn watermarks(unrouted: &[Unrouted]) -> Vec<(u16, u16, RecordPosition)> {
    let mut latest = BTreeMap::new();
    for rest in unrouted {
        for by in (0..64).filter(|by| rest.shards >> by & 1 == 1) {
            let up_to = latest.entry((by, rest.from)).or_insert(rest.message);
            *up_to = (*up_to).max(rest.message);
        }
    }
    latest
        .into_iter()
        .map(|((by, from), up_to)| (by, from, up_to))
        .collect()
}

/// Restores the sessions of a shard.
struct SessionRestorer<'a> {
    tick: Tick<'a>,
    parts: Components<'a>,
}

impl SessionRestorer<'_> {
    /// Returns the slot of the session, and the number of messages that could not be read.
    fn restore(
        &mut self,
        recovered: RecoveredSession,
        groups: &HashMap<GroupKey, GroupRef>,
        read: &mut ReadMessages<'_>,
    ) -> (SessionSlot, u64) {
        let (now, core) = (self.tick.now, &mut *self.tick.core);
        let address = recovered.terms.address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        let epoch = SessionEpoch(self.tick.numbers.next());
        let slot = core.add_session(now, &recovered.client_id, SocketAddr::new(address, 0), epoch);
        let left_unix_ms = recovered.left_unix_ms.unwrap_or(now.journal_ms);
        let session = core.sessions.at_mut(slot);
        set_terms(session, &recovered);
        session.disconnected_at_ms = left_unix_ms + core.ledger.records().map_or(0, PendingRecords::clock_ahead_ms);
        session.left_at_ms = now.monotonic_at(left_unix_ms);
        for id in &recovered.received {
            session.received.insert(*id);
        }
        if !session.grant().is_some() && self.parts.authentication.requires_grants() {
            session.set_grant(LoginGrant::Forgotten);
        }
        session.access = self.parts.authentication.rights_of(session);
        // Until the client connects and its subscriptions are checked.
        let is_filtered = session.access.is_some();
        let owner = owner_name(session.user_name.as_deref(), address);
        let mut holding = SessionHolding::new(&self.parts.node.owners, Some(&owner), session.holding_bytes());
        holding.add_subscriptions(recovered.subscriptions.len() as u64);
        core.sessions
            .set_holding(slot, holding, core.config.limits_user_queues());
        let link = core.link_mut(slot);
        link.set(LinkFlag::Durable, true);
        link.set(LinkFlag::Filtered, is_filtered);
        for (filter, subscription) in recovered.subscriptions.iter() {
            self.restore_subscription(slot, filter, subscription);
        }
        let started = recovered.started;
        let core = &mut *self.tick.core;
        restore_queue(core, slot, recovered, groups);
        let damaged = load_started_pages(core, now, slot, started, read);
        (slot, damaged)
    }

    fn restore_subscription(&mut self, slot: SessionSlot, filter: &str, recovered: &RecoveredSubscription) {
        let (options, identifier) = (recovered.options, recovered.identifier);
        let Ok(target) = ParsedFilter::parse(filter) else {
            return;
        };
        let subscription = Subscription {
            options,
            identifier,
            kind: target.kind(),
        };
        let session = self.tick.core.sessions.at_mut(slot);
        session.subscriptions.insert(filter, subscription);
        self.tick.core.stats.subscriptions += 1;
        if recovered.is_replaying {
            let number = ReplayNumber(self.tick.numbers.next());
            let replay = self
                .parts
                .retained
                .replay_of(number, target.filter(), options, identifier);
            self.tick.core.sessions.at_mut(slot).replays.push_back(replay);
        }
        let interest = InterestedSession {
            identifier: identifier.unwrap_or(0),
            options,
        };
        match target {
            ParsedFilter::Shared(shared) => {
                let request = JoinRequest {
                    session: slot,
                    filter: shared,
                    subscription: interest,
                    ticket: SubscribeTicket::NONE,
                };
                self.parts.groups.join(&mut self.tick, self.parts.router, request);
            }
            ParsedFilter::Plain(bare) | ParsedFilter::Exclusive(bare) => {
                if matches!(target, ParsedFilter::Exclusive(_)) {
                    let session = self.tick.session_ref(slot);
                    self.parts.router.claim_exclusive(bare, session);
                }
                self.parts.router.update_durable(bare, true);
                self.tick.core.invalidate_recipients();
                self.parts.router.add(bare, Subscriber::Session(slot), interest);
            }
        }
    }
}

fn restore_queue(
    core: &mut ShardCore,
    slot: SessionSlot,
    recovered: RecoveredSession,
    groups: &HashMap<GroupKey, GroupRef>,
) {
    let tag_of = |entry: &StoredEntry| {
        let tag = Some(entry.seq()).filter(|_| entry.is_tagged());
        let tag = tag.and_then(|seq| recovered.tags.get(seq));
        tag.map_or(DeliveryTag::None, |tag| restore_tag(tag, groups))
    };
    let pages = Pages::new(recovered.pages.iter().map(|page| QueuePage::from(*page)).collect());
    let paged_qos0: u32 = pages.list.iter().map(|page| page.queued_qos0).sum();
    let is_before = |entry: &&StoredEntry| pages.list.front().is_none_or(|page| entry.seq() < page.first);
    let was_sent = |entry: &&StoredEntry| entry.seq() <= recovered.started && entry.qos() != mqtt::QoS::AtMostOnce;
    let is_qos0 = |entry: &&StoredEntry| entry.qos() == mqtt::QoS::AtMostOnce;
    let queued_qos0 = recovered.entries.iter().filter(is_qos0).count() as u32 + paged_qos0;
    // Includes entries behind a page. QoS 0 entries among them were written to pages again.
    let (inflight, queued): (Vec<&StoredEntry>, Vec<_>) = recovered.entries.iter().partition(was_sent);
    let (queue, tail): (Vec<&StoredEntry>, Vec<_>) = queued.into_iter().partition(is_before);
    let item = |entry: &StoredEntry| (*entry, tag_of(entry));
    let mut cold = ColdEntries::default();
    let entries = &mut cold.entries;
    entries.extend_earlier(inflight.into_iter().map(item));
    entries.extend_queue(queue.into_iter().map(item));
    entries.pages = (!pages.list.is_empty()).then(|| Box::new(pages));
    entries.extend_queue(tail.into_iter().map(item));
    let stats = &mut core.stats;
    stats.queued_messages += cold.queued() as u64;
    stats.inflight_messages += cold.entries.earlier().len() as u64;
    let queued_bytes = cold.entries.queued_bytes();
    stats.queued_bytes += queued_bytes as u64;
    let out = &mut core.sessions.at_mut(slot).outgoing;
    out.last_seq = recovered.next_seq.saturating_sub(1);
    out.committed_seq = out.last_seq;
    out.queued_qos0 = queued_qos0;
    out.queued_bytes.add(queued_bytes);
    out.cold = Some(Box::new(cold));
    out.merge_fresh_if_no_cold();
}

/// Loads the pages that a connected client may already have received from. Returns the number of messages that
/// could not be read.
fn load_started_pages(
    core: &mut ShardCore,
    now: Now,
    slot: SessionSlot,
    started: Seq,
    read: &mut ReadMessages<'_>,
) -> u64 {
    let mut damaged = 0;
    loop {
        let cold = core.sessions.at(slot).outgoing.cold.as_deref();
        let Some(pages) = cold.and_then(|cold| cold.entries.pages()) else {
            return damaged;
        };
        let Some(page) = pages.list.front().copied().filter(|page| page.first <= started) else {
            return damaged;
        };
        let mut record = None;
        let position: Vec<RecordPosition> = page.place.position().into_iter().collect();
        read(&position, &mut |_, bytes| record = bytes.map(<[u8]>::to_vec));
        let (sessions, ledger) = (&mut core.sessions, &mut core.ledger);
        let lost = sessions.load_page(ledger, &mut core.stats, slot, record.as_deref());
        damaged += lost.len() as u64;
        core.stats.queued_messages -= lost.len() as u64;
        for seq in lost {
            core.ledger.record_acknowledged(&core.sessions, slot, seq, false);
            core.drop_for(now, slot, DropReason::Damaged, None);
        }
        core.sessions.mark_sent(&mut core.stats, slot, started);
    }
}

/// Schedules wills and expiry of the sessions from slot `from` on, including those due while the process was down.
/// Returns the slot to continue at.
fn resume_deadlines_of(shard: &mut Shard, now: Now, from: SessionSlot) -> SessionSlot {
    let mut lifecycle = shard.lifecycle(now);
    let end = lifecycle.tick.core.sessions.end();
    for slot in from.until(end) {
        let core = &lifecycle.tick.core;
        if core.ledger.batch_bytes() >= DUE_BYTES {
            return slot;
        }
        let Some(session) = core.sessions.get(slot) else {
            continue;
        };
        let epoch = session.epoch;
        lifecycle.meet_deadline(slot, SessionDeadline::Will);
        if lifecycle.tick.core.sessions.live(slot, epoch).is_some() {
            lifecycle.meet_deadline(slot, SessionDeadline::ExclusiveRelease);
            lifecycle.meet_deadline(slot, SessionDeadline::Expiry);
        }
    }
    end
}

impl Sessions {
    /// A message that was just routed to a session that was connected at the crash may have been sent before its record
    /// was written. It is sent again with DUP [MQTT-3.3.1-1].
    fn mark_possibly_sent(&mut self, stats: &mut ShardStats, slot: SessionSlot) {
        let Some(session) = self.get_mut(slot) else {
            return;
        };
        let out = &mut session.outgoing;
        let before = out.queued_bytes.get();
        let count = out.count_as_sent() as u64;
        stats.queued_bytes -= (before - out.queued_bytes.get()) as u64;
        stats.queued_messages -= count;
        stats.inflight_messages += count;
    }
}

fn set_terms(session: &mut Session, recovered: &RecoveredSession) {
    let terms = &recovered.terms;
    session.key = recovered.key;
    session.user_name = terms.user_name.clone();
    session.version = match terms.version {
        3 => ProtocolVersion::V3_1,
        4 => ProtocolVersion::V3_1_1,
        _ => ProtocolVersion::V5,
    };
    session.is_superuser = terms.is_superuser;
    if terms.has_grant {
        session.set_grant(LoginGrant::Forgotten);
    }
    session.set_mountpoint(terms.mountpoint.as_deref().map(Mountpoint::restored));
    session.is_bridge = terms.is_bridge;
    session.expiry_s = terms.expiry_s;
    session.clean_start = false;
    session.created_at_ms = recovered.created_unix_ms;
    let will = terms.will.as_deref().filter(|_| !is_planted(Fault::ForgetWill));
    session.will = will.map(|will| Box::new(restore_will(will)));
}

fn restore_will(will: &RecoveredWill) -> SessionWill {
    SessionWill {
        topic: will.topic.clone(),
        payload: will.payload.clone(),
        properties: will.properties.clone(),
        qos: will.qos,
        retain: will.retain,
        delay_s: will.delay_s,
        message_expiry_s: will.message_expiry_s,
    }
}

fn restore_tag(tag: &StoredTag, groups: &HashMap<GroupKey, GroupRef>) -> DeliveryTag {
    let group = tag.group().and_then(|key| groups.get(&key).copied());
    DeliveryTag::new(tag.identifiers(), group)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::VecDeque;
    use std::sync::Arc;

    use mqtt::QoS;

    use super::*;
    use crate::config::ShardConfig;
    use crate::durable::entry_list::EntryList;
    use crate::durable::record::PageRef;
    use crate::durable::recovery::{RecoveredTerms, Tags};

    /// A client with a long queue has received messages 3 and 4. Messages 1 and 2, at QoS 0, were written to a page
    /// again.
    #[test]
    fn sent_messages_behind_a_page_are_in_flight() {
        let page = |first, queued_qos0| PageRef {
            at: RecordPosition(first),
            first,
            count: 2,
            skipped: 0,
            queued_qos0,
            oldest: RecordPosition(first),
            bytes: 40,
        };
        let entry = |seq| StoredEntry::of(RecordPosition(seq), seq, QoS::AtLeastOnce, false);
        let recovered = RecoveredSession {
            key: SessionKey(64),
            client_id: "c".into(),
            created_unix_ms: 0,
            left_unix_ms: Some(0),
            terms: RecoveredTerms::default(),
            next_seq: 8,
            started: 4,
            subscriptions: Default::default(),
            received: Vec::new(),
            entries: VecDeque::from([entry(3), entry(4), entry(7)]),
            tags: Tags::default(),
            pages: VecDeque::from([page(1, 2), page(5, 0)]).into(),
        };
        let now = Now {
            monotonic_ms: 1 << 42,
            unix_ms: 0,
            journal_ms: 0,
        };
        let config = Arc::new(ShardConfig::default());
        let mut core = ShardCore::new(now, ShardId(0), 1, config);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let slot = core.add_session(now, "c", address, SessionEpoch(1));
        restore_queue(&mut core, slot, recovered, &HashMap::new());
        let cold = core.sessions.at(slot).outgoing.cold.as_deref().unwrap();
        let numbers = |list: &EntryList| list.iter().map(|(entry, _)| entry.seq()).collect::<Vec<_>>();
        assert_eq!(numbers(cold.entries.earlier()), [3, 4]);
        assert_eq!(cold.entries.tail().map(numbers), Some(vec![7]), "behind the pages");
    }
}
