//! Routing: delivers a published message to the sessions and share groups of this shard, and forwards it to other
//! shards with subscribers.

use mqtt::QoS;

use crate::config::OverlappingDelivery;
use crate::deliver::{DeliveryOptions, EncodedForms, ShardCore};
use crate::durable::journaling::RecordFields;
use crate::durable::record::{RetainedTerms, SessionKey};
use crate::effect::{DropReason, Now, ShardId};
use crate::mail::Envelope;
use crate::message::{MessageOrigin, Publication, granted};
use crate::retained_messages::retained_until;
use crate::router::{InterestedSession, Subscriber};
use crate::shard::Shard;
use crate::slots::{GroupIndex, SessionSlot};
use crate::subscriptions::ListId;

/// Buffers of routing, reused to avoid allocations.
#[derive(Default)]
pub(crate) struct RouteScratch {
    lists: Vec<ListId>,
    groups: Vec<GroupIndex>,
    merged: Vec<MergedSubscription>,
}

/// Result of publishing a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishResult {
    /// Some session or shard may receive the message.
    pub has_recipient: bool,
    /// The message has been recorded, so its acknowledgement waits for the commit.
    pub is_recorded: bool,
}

/// The subscriptions of one session that match one message.
struct MergedSubscription {
    session: SessionSlot,
    maximum_qos: QoS,
    retain_as_published: bool,
    identifiers: Vec<u32>,
}

impl Shard {
    /// Publishes a message: updates the retained store, routes to local subscriptions, and forwards to other shards.
    pub(crate) fn publish(
        &mut self,
        now: Now,
        p: &Publication<'_>,
        publisher: Option<(SessionKey, u16)>,
    ) -> PublishResult {
        let is_retained = p.retain && self.can_retain(p);
        if p.retain && !is_retained {
            self.core.stats.drop_message(DropReason::JournalFull);
        }
        let p = &Publication {
            retain: is_retained,
            ..*p
        };
        if is_retained {
            self.retained.announce(p.topic);
        }
        let others = self.router.other_shards(p.topic);
        // Decided once, so that the journal and the memory agree.
        let has_space = is_retained
            && self.retained.owner_of(p.topic) == self.core.id
            && self.retained.has_space(&self.core.config, p);
        let record_fields = self.record_fields(now, p, others, publisher, has_space);
        let mut forms = EncodedForms::default();
        let mut has_recipient = self.route_here(now, p, &mut forms);
        let place = self.core.ledger.record_message(now, p, forms.stored(), record_fields);
        let p = &Publication { place, ..*p };
        self.mail.send_to_members(p);
        let mut stamp = 0;
        if is_retained {
            stamp = self.retained.next_stamp();
            self.retain(now, p, others, stamp, has_space);
        }
        has_recipient |= others != 0;
        self.forward(p, others, Envelope::Route { stamp });
        if !has_recipient {
            self.core.stats.drop_message(DropReason::NoSubscriber);
        }
        PublishResult {
            has_recipient,
            is_recorded: !place.is_none(),
        }
    }

    /// Returns whether the retained message of a topic may change while the journal is full. Messages of clients reach
    /// this point only if they are wills or delayed messages, which the journal already records as published; others
    /// are rejected before.
    fn can_retain(&self, p: &Publication<'_>) -> bool {
        !self.core.ledger.is_unavailable() || p.origin != MessageOrigin::NONE || p.topic.starts_with("$SYS/")
    }

    /// Returns the fields of the message record, except for the local recipients.
    fn record_fields(
        &self,
        now: Now,
        p: &Publication<'_>,
        others: u64,
        publisher: Option<(SessionKey, u16)>,
        has_space: bool,
    ) -> RecordFields {
        if !self.core.ledger.is_active() || p.topic.starts_with("$SYS/") {
            return RecordFields::default();
        }
        let mut record_fields = RecordFields {
            publisher,
            ..RecordFields::default()
        };
        if p.qos != QoS::AtMostOnce && others != 0 {
            record_fields.pending_shards = others & self.router.durable_shards(p.topic);
        }
        if p.retain {
            let owner = self.retained.owner_of(p.topic);
            if owner != self.core.id {
                record_fields.pending_shards |= 1 << owner.0;
            } else if has_space {
                let expires_at_ms = retained_until(&self.core.config, now, p);
                let expires_unix_ms = expires_at_ms.map(|at| now.unix_at(at));
                record_fields.retained = Some(RetainedTerms { expires_unix_ms });
            }
        }
        let is_always_recorded = self.core.config.journals_all_messages && p.qos != QoS::AtMostOnce;
        record_fields.is_required = record_fields.pending_shards != 0
            || record_fields.retained.is_some()
            || publisher.is_some()
            || is_always_recorded;
        record_fields
    }

    /// Forwards to all other shards that may have a subscription, once per shard regardless of the number of its
    /// subscribers.
    fn forward(&mut self, p: &Publication<'_>, mut others: u64, envelope: Envelope) {
        while others != 0 {
            let shard = ShardId(others.trailing_zeros() as u16);
            others &= others - 1;
            self.mail.publication(shard, envelope, p);
            self.core.stats.messages_forwarded += 1;
        }
    }

    /// Delivers to the sessions and groups of this shard. Returns false if there are none.
    pub(crate) fn route_local(&mut self, now: Now, p: &Publication<'_>) -> bool {
        let mut forms = EncodedForms::default();
        let has_recipient = self.route_here(now, p, &mut forms);
        let place = self
            .core
            .ledger
            .record_message(now, p, forms.stored(), RecordFields::default());
        self.mail.send_to_members(&Publication { place, ..*p });
        has_recipient
    }

    /// Like `route_local`, but the caller writes the record.
    fn route_here(&mut self, now: Now, p: &Publication<'_>, forms: &mut EncodedForms) -> bool {
        if p.is_expired(now) {
            self.core.stats.drop_message(DropReason::Expired);
            return true;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.lists.clear();
        self.router.matching(p.topic, &mut scratch.lists);
        let has_recipient = !scratch.lists.is_empty();
        match scratch.lists[..] {
            [] => {}
            [list] if self.broadcast(now, list, p) => {}
            [list] => {
                self.core.end_broadcast_run();
                for entry in self.router.entries(list) {
                    let slot = match Subscriber::from_key(entry.key) {
                        Subscriber::Session(slot) => slot,
                        Subscriber::Group(index) => {
                            scratch.groups.push(index);
                            continue;
                        }
                    };
                    let InterestedSession { identifier, options } = &entry.value;
                    if options.no_local && is_publisher(&self.core, slot, p.origin) {
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
                    self.core.deliver(now, slot, p, terms, forms);
                }
            }
            _ => {
                self.core.end_broadcast_run();
                self.route_overlapping(now, p, &mut scratch, forms);
            }
        }
        let (mut tick, parts) = self.split(now);
        for group in scratch.groups.drain(..) {
            parts.groups.dispatch(&mut tick, group, p, forms);
        }
        self.scratch = scratch;
        has_recipient
    }

    /// Several filters match, so a session may occur more than once.
    fn route_overlapping(
        &mut self,
        now: Now,
        p: &Publication<'_>,
        scratch: &mut RouteScratch,
        forms: &mut EncodedForms,
    ) {
        scratch.merged.clear();
        for list in &scratch.lists {
            for entry in self.router.entries(*list) {
                let slot = match Subscriber::from_key(entry.key) {
                    Subscriber::Session(slot) => slot,
                    Subscriber::Group(index) => {
                        scratch.groups.push(index);
                        continue;
                    }
                };
                if entry.value.options.no_local && is_publisher(&self.core, slot, p.origin) {
                    continue;
                }
                let link = self.core.sessions.link(slot);
                let is_merged =
                    link.is_v5 || self.core.config.overlapping_subscriptions == OverlappingDelivery::DeliverOnce;
                let at = link.stamp as usize;
                // A stamp is an index of `merged`. It is valid only if that entry is of this session.
                if is_merged && scratch.merged.get(at).is_some_and(|m| m.session == slot) {
                    scratch.merged[at].add(&entry.value);
                } else {
                    self.core.sessions.link_mut(slot).stamp = scratch.merged.len() as u32;
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
            self.core.deliver(now, merged.session, p, terms, forms);
        }
    }

    // --- retained messages: each topic is owned by one shard ---

    fn retain(&mut self, now: Now, p: &Publication<'_>, others: u64, stamp: u64, has_space: bool) {
        let expires_at_ms = retained_until(&self.core.config, now, p);
        let p = &Publication { expires_at_ms, ..*p };
        let owner = self.retained.owner_of(p.topic);
        if owner == self.core.id {
            self.retained.retain(&mut self.core, now, p, has_space);
        } else {
            let routed_by = others | 1 << self.core.id.0;
            self.mail.publication(owner, Envelope::Retain { routed_by, stamp }, p);
        }
    }

    /// Stores a retained message of another shard's publisher. A client may have subscribed on a shard that had no
    /// interest when the message was routed, and its replay may have asked here before the message arrived. That shard
    /// receives the message as if it had been published after the subscription.
    pub(crate) fn retain_from(&mut self, now: Now, from: ShardId, routed_by: u64, stamp: u64, p: &Publication<'_>) {
        let has_space = self.retained.has_space(&self.core.config, p);
        if has_space {
            self.core.ledger.record_retained(now, p);
        }
        self.retained.retain(&mut self.core, now, p, has_space);
        let late = self.shared.interest.mask(p.topic) & !routed_by;
        let here = 1 << self.core.id.0;
        if late & here != 0 {
            self.route_local(now, p);
        }
        self.forward(p, late & !here, Envelope::Late { from, stamp });
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
    origin.shard == core.id && origin.epoch == core.sessions.at(slot).epoch
}
