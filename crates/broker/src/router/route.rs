//! Routing: delivers a published message to the sessions and share groups of this shard, and forwards it to other
//! shards with subscribers.

use mqtt::QoS;

use crate::config::OverlappingDelivery;
use crate::deliver::ShardCore;
use crate::delivery::DeliveryOptions;
use crate::durable::record::{RetainedTerms, SessionKey};
use crate::durable::record_fields::{PendingCommits, RecordFields};
use crate::effect::{DropReason, ShardId};
use crate::encode::EncodedForms;
use crate::mail::Envelope;
use crate::message::{MessageOrigin, Publication, granted};
use crate::provenance::Provenance;
use crate::retained_messages::{RetainedMessages, retained_until};
use crate::router::{InterestedSession, MergedSubscription, RouteScratch, Router, Subscriber};
use crate::shared::ShareGroups;
use crate::slots::SessionSlot;
use crate::subscriptions::ListId;
use crate::tap::{Receipt, TapEventMask};
use crate::tick::Tick;

/// Result of publishing a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishResult {
    /// Some session or shard may receive the message.
    pub has_recipient: bool,
    /// The message has been recorded, so its acknowledgement waits for the commit.
    pub is_recorded: bool,
}

/// The components that a message reaches besides the sessions of this shard.
pub(crate) struct Destinations<'a> {
    pub groups: &'a mut ShareGroups,
    pub retained: &'a mut RetainedMessages,
}

/// How a retained message of another shard's publisher arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetainOrigin {
    pub from: ShardId,
    /// Bit set of the shards that have routed the message.
    pub routed_by: u64,
    pub stamp: u64,
}

impl Router {
    /// Publishes a message: updates the retained store, routes to local subscriptions, and forwards to other shards.
    pub(crate) fn publish(
        &mut self,
        tick: &mut Tick<'_>,
        to: &mut Destinations<'_>,
        p: &Publication<'_>,
        publisher: Option<(SessionKey, u16)>,
    ) -> PublishResult {
        let is_retained = p.retain && can_retain(tick.core, p);
        if p.retain && !is_retained {
            tick.core.stats.drop_message(DropReason::JournalFull);
        }
        let p = &Publication {
            retain: is_retained,
            ..*p
        };
        if is_retained {
            to.retained.announce(p.topic);
        }
        let others = self.other_shards(p.topic);
        // Decided once, so that the journal and the memory agree.
        let has_space =
            is_retained && to.retained.owner_of(p.topic) == tick.core.id && to.retained.has_space(&tick.core.config, p);
        let mut record_fields = RecordFields {
            publisher,
            ..RecordFields::default()
        };
        if tick.core.ledger.is_active() && !p.topic.starts_with("$SYS/") {
            if p.retain {
                add_retained_fields(&mut record_fields, tick, to.retained, p, has_space);
            }
            self.complete_fields(&mut record_fields, tick.core, p, others);
        } else {
            record_fields = RecordFields::default();
        }
        let mut forms = EncodedForms::default();
        let mut has_recipient = self.route_here(tick, to.groups, p, &mut forms);
        let place = tick
            .core
            .ledger
            .record_message(tick.now, p, forms.stored(), record_fields);
        let p = &Publication { place, ..*p };
        tick.mail.send_to_members(p);
        let mut stamp = 0;
        if is_retained {
            stamp = to.retained.next_stamp();
            let routed_by = others | 1 << tick.core.id.0;
            retain(tick, to.retained, p, Envelope::Retain { routed_by, stamp }, has_space);
        }
        has_recipient |= others != 0;
        forward(tick, p, others, Envelope::Route { stamp });
        if !has_recipient {
            tick.core.stats.drop_message(DropReason::NoSubscriber);
        }
        PublishResult {
            has_recipient,
            is_recorded: !place.is_none(),
        }
    }

    /// Publishes the messages that the tap has created, and those that it creates from them. Returns the commits that
    /// the acknowledgement of the original message waits for.
    pub(crate) fn publish_tap_messages(&mut self, tick: &mut Tick<'_>, to: &mut Destinations<'_>) -> PendingCommits {
        let mut commits = PendingCommits::default();
        loop {
            let made = tick.core.taps.take_publications();
            if made.is_empty() {
                return commits;
            }
            for message in made {
                if tick.core.taps.message_limits().check(&message.limited()).is_err() {
                    tick.core.stats.drop_message(DropReason::TopicInvalid);
                    continue;
                }
                let provenance = tick
                    .core
                    .taps
                    .provenance(tick.now, None, message.mark, TapEventMask::MESSAGE_EVENTS);
                let p = Publication {
                    properties: &message.properties,
                    qos: message.qos,
                    retain: message.retain,
                    expires_at_ms: message.expiry_s.map(|s| tick.now.monotonic_ms + u64::from(s) * 1000),
                    provenance: Provenance::from_written(&provenance),
                    ..Publication::from_server(&message.topic, &message.payload)
                };
                // The publisher of the original cannot be rejected any more, and each retry would disconnect it.
                // Retained messages are checked in `publish`.
                if tick.core.ledger.has_failed() && self.needs_journal(tick.core, None, p.topic, p.qos, false) {
                    tick.core.stats.drop_message(DropReason::JournalFull);
                    continue;
                }
                let receipt = tick.core.taps.marked(tick.now, None, &p, false, message.mark);
                commits.tap = tick.core.taps.join(commits.tap, receipt);
                commits.journal |= self.publish(tick, to, &p, None).is_recorded;
            }
        }
    }

    /// Returns the commits that an acknowledgement of a published message waits for. Publishes the messages that
    /// the tap has created from it.
    pub(crate) fn commits_of(
        &mut self,
        tick: &mut Tick<'_>,
        to: &mut Destinations<'_>,
        published: PublishResult,
        receipt: Option<Receipt>,
    ) -> PendingCommits {
        let mut commits = PendingCommits {
            journal: published.is_recorded,
            tap: receipt,
        };
        if tick.core.taps.is_used() {
            let made = self.publish_tap_messages(tick, to);
            commits.journal |= made.journal;
            commits.tap = tick.core.taps.join(receipt, made.tap);
        }
        commits
    }

    /// Returns whether a message needs the journal, before its recipients are known. `slot` is the publishing session.
    pub(crate) fn needs_journal(
        &self,
        core: &ShardCore,
        slot: Option<SessionSlot>,
        topic: &str,
        qos: QoS,
        retain: bool,
    ) -> bool {
        let is_acknowledged = qos != QoS::AtMostOnce;
        // Duplicates must be recognised after a crash.
        let is_once = qos == QoS::ExactlyOnce && slot.is_some_and(|slot| core.sessions.at(slot).key.0 != 0);
        let has_durable_recipient = || core.config.journals_all_messages || self.durable_shards(topic) != 0;
        core.ledger.is_active() && (retain || is_once || is_acknowledged && has_durable_recipient())
    }

    /// Completes the fields of the message record, except for the local recipients.
    fn complete_fields(&self, fields: &mut RecordFields, core: &ShardCore, p: &Publication<'_>, others: u64) {
        if p.qos != QoS::AtMostOnce && others != 0 {
            fields.pending_shards |= others & self.durable_shards(p.topic);
        }
        let is_always_recorded = core.config.journals_all_messages && p.qos != QoS::AtMostOnce;
        fields.is_required =
            fields.pending_shards != 0 || fields.retained.is_some() || fields.publisher.is_some() || is_always_recorded;
    }

    /// Delivers to the sessions and groups of this shard. Returns false if there are none.
    pub(crate) fn route_local(&mut self, tick: &mut Tick<'_>, groups: &mut ShareGroups, p: &Publication<'_>) -> bool {
        let mut forms = EncodedForms::default();
        let has_recipient = self.route_here(tick, groups, p, &mut forms);
        let place = tick
            .core
            .ledger
            .record_message(tick.now, p, forms.stored(), RecordFields::default());
        tick.mail.send_to_members(&Publication { place, ..*p });
        has_recipient
    }

    /// Like `route_local`, but the caller writes the record.
    fn route_here(
        &mut self,
        tick: &mut Tick<'_>,
        groups: &mut ShareGroups,
        p: &Publication<'_>,
        forms: &mut EncodedForms,
    ) -> bool {
        if p.is_expired(tick.now) {
            tick.core.stats.drop_message(DropReason::Expired);
            return true;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.lists.clear();
        self.matching(p.topic, &mut scratch.lists);
        let has_recipient = !scratch.lists.is_empty();
        match scratch.lists[..] {
            [] => {}
            [list] if tick.core.broadcast(tick.now, list, || self.entries(list), p) => {}
            [list] => {
                tick.core.end_broadcast_run();
                self.route_list(tick, list, p, &mut scratch, forms);
            }
            _ => {
                tick.core.end_broadcast_run();
                self.route_overlapping(tick, p, &mut scratch, forms);
            }
        }
        for group in scratch.groups.drain(..) {
            groups.dispatch(tick, group, p, forms);
        }
        self.scratch = scratch;
        has_recipient
    }

    /// One filter matches, so each session occurs once.
    #[inline]
    fn route_list(
        &self,
        tick: &mut Tick<'_>,
        list: ListId,
        p: &Publication<'_>,
        scratch: &mut RouteScratch,
        forms: &mut EncodedForms,
    ) {
        for entry in self.entries(list) {
            let slot = match Subscriber::from_key(entry.key) {
                Subscriber::Session(slot) => slot,
                Subscriber::Group(index) => {
                    scratch.groups.push(index);
                    continue;
                }
            };
            let InterestedSession { identifier, options } = &entry.value;
            if options.no_local && is_publisher(tick.core, slot, p.origin) {
                continue;
            }
            let identifiers = if *identifier == 0 {
                &[][..]
            } else {
                std::slice::from_ref(identifier)
            };
            let terms = DeliveryOptions {
                qos: granted(p.qos, options.maximum_qos),
                retain: p.retain && options.retain_as_published,
                identifiers,
                group: None,
            };
            tick.core.deliver(tick.now, slot, p, terms, forms);
        }
    }

    /// Several filters match, so a session may occur more than once.
    fn route_overlapping(
        &self,
        tick: &mut Tick<'_>,
        p: &Publication<'_>,
        scratch: &mut RouteScratch,
        forms: &mut EncodedForms,
    ) {
        let core = &mut *tick.core;
        scratch.merged.clear();
        for list in &scratch.lists {
            for entry in self.entries(*list) {
                let slot = match Subscriber::from_key(entry.key) {
                    Subscriber::Session(slot) => slot,
                    Subscriber::Group(index) => {
                        scratch.groups.push(index);
                        continue;
                    }
                };
                if entry.value.options.no_local && is_publisher(core, slot, p.origin) {
                    continue;
                }
                let link = core.sessions.link(slot);
                let is_merged =
                    link.is_v5() || core.config.overlapping_subscriptions == OverlappingDelivery::DeliverOnce;
                let at = link.stamp as usize;
                // A stamp is an index of `merged`. It is valid only if that entry is of this session.
                if is_merged && scratch.merged.get(at).is_some_and(|m| m.session == slot) {
                    scratch.merged[at].add(&entry.value);
                } else {
                    core.sessions.link_mut(slot).stamp = scratch.merged.len() as u32;
                    scratch.merged.push(MergedSubscription::new(slot, &entry.value));
                }
            }
        }
        for merged in &scratch.merged {
            let terms = DeliveryOptions {
                qos: granted(p.qos, merged.maximum_qos),
                retain: p.retain && merged.retain_as_published,
                identifiers: &merged.identifiers,
                group: None,
            };
            core.deliver(tick.now, merged.session, p, terms, forms);
        }
    }

    /// Stores a retained message of another shard's publisher. A client may have subscribed on a shard that had no
    /// interest when the message was routed, and its replay may have asked here before the message arrived. That shard
    /// receives the message as if it had been published after the subscription.
    pub(crate) fn retain_from(
        &mut self,
        tick: &mut Tick<'_>,
        to: &mut Destinations<'_>,
        origin: RetainOrigin,
        p: &Publication<'_>,
    ) {
        let RetainOrigin { from, routed_by, stamp } = origin;
        to.retained.retain_recorded(tick, p);
        let late = self.interested_shards(p.topic) & !routed_by;
        let here = 1 << tick.core.id.0;
        if late & here != 0 {
            self.route_local(tick, to.groups, p);
        }
        forward(tick, p, late & !here, Envelope::Late { from, stamp });
    }
}

/// Returns whether the retained message of a topic may change while the journal is full. Messages of clients reach
/// this point only if they are wills or delayed messages, which the journal already records as published; others
/// are rejected before.
fn can_retain(core: &ShardCore, p: &Publication<'_>) -> bool {
    !core.ledger.is_unavailable() || p.origin != MessageOrigin::NONE || p.topic.starts_with("$SYS/")
}

/// Adds what the record of a retained message says about the shard that owns the topic.
fn add_retained_fields(
    fields: &mut RecordFields,
    tick: &Tick<'_>,
    retained: &RetainedMessages,
    p: &Publication<'_>,
    has_space: bool,
) {
    let owner = retained.owner_of(p.topic);
    if owner != tick.core.id {
        fields.pending_shards |= 1 << owner.0;
    } else if has_space {
        let expires_at_ms = retained_until(&tick.core.config, tick.now, p);
        let expires_unix_ms = expires_at_ms.map(|at| tick.now.unix_at(at));
        fields.retained = Some(RetainedTerms { expires_unix_ms });
    }
}

/// Retains a message if this shard owns its topic, or sends it to the owner.
fn retain(
    tick: &mut Tick<'_>,
    retained: &mut RetainedMessages,
    p: &Publication<'_>,
    envelope: Envelope,
    has_space: bool,
) {
    let expires_at_ms = retained_until(&tick.core.config, tick.now, p);
    let p = &Publication { expires_at_ms, ..*p };
    let owner = retained.owner_of(p.topic);
    if owner == tick.core.id {
        retained.retain(tick.core, tick.now, p, has_space);
    } else {
        tick.mail.publication(owner, envelope, p);
    }
}

/// Forwards to all other shards that may have a subscription, once per shard regardless of the number of its
/// subscribers.
fn forward(tick: &mut Tick<'_>, p: &Publication<'_>, mut others: u64, envelope: Envelope) {
    while others != 0 {
        let shard = ShardId(others.trailing_zeros() as u16);
        others &= others - 1;
        tick.mail.publication(shard, envelope, p);
        tick.core.stats.messages_forwarded += 1;
    }
}

impl MergedSubscription {
    fn new(session: SessionSlot, subscription: &InterestedSession) -> MergedSubscription {
        let mut merged = MergedSubscription {
            session,
            maximum_qos: QoS::AtMostOnce,
            retain_as_published: false,
            identifiers: Vec::new(),
        };
        merged.add(subscription);
        merged
    }

    /// Merges a subscription: one copy with the highest QoS and all identifiers [MQTT-3.3.4-3], [MQTT-3.3.5-1].
    fn add(&mut self, subscription: &InterestedSession) {
        let InterestedSession { identifier, options } = *subscription;
        self.maximum_qos = self.maximum_qos.max(options.maximum_qos);
        self.retain_as_published |= options.retain_as_published;
        if identifier != 0 {
            self.identifiers.push(identifier);
        }
    }
}

/// Returns whether the session is the publisher, for No Local [MQTT-3.8.3-3].
fn is_publisher(core: &ShardCore, slot: SessionSlot, origin: MessageOrigin) -> bool {
    origin.shard == core.id && origin.epoch == core.sessions.at(slot).client_epoch()
}
