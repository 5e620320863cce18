//! Routing: from a published message to the sessions and shared groups of this shard, and to the shards that have more.

use mqtt::QoS;

use crate::config::Overlapping;
use crate::deliver::{Core, Forms, Terms};
use crate::durable::keep::Keeping;
use crate::durable::record::{RetainedTerms, SessionKey};
use crate::effect::{DropReason, Now, ShardId};
use crate::lifecycle::granted;
use crate::mail::Envelope;
use crate::message::{Origin, Publication};
use crate::retained::RetainedLimits;
use crate::shard::{Interested, Shard, hash, retained_limits};
use crate::shared::GROUP_KEY;
use crate::subscriptions::{Entry, ListId};

/// Buffers of routing, kept so that it does not allocate.
#[derive(Default)]
pub(crate) struct RouteScratch {
    lists: Vec<ListId>,
    groups: Vec<u32>,
    merged: Vec<Merged>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published {
    /// Somebody may get it.
    pub is_wanted: bool,
    /// It has been recorded: what is said of it has to wait until the journal has it.
    pub is_kept: bool,
}

/// The subscriptions of one session that match one message.
struct Merged {
    session: u32,
    maximum_qos: QoS,
    retain_as_published: bool,
    identifiers: Vec<u32>,
}

impl Shard {
    /// Everything that a published message sets off: retained store, subscriptions here, other shards. False when nobody
    /// is known to want it.
    pub(crate) fn publish(&mut self, now: Now, p: &Publication<'_>, publisher: Option<(SessionKey, u16)>) -> Published {
        let is_retained = p.retain && self.may_retain(p);
        if p.retain && !is_retained {
            self.core.stats.drop_message(DropReason::JournalFull);
        }
        let p = &Publication {
            retain: is_retained,
            ..*p
        };
        if is_retained && self.core.shards > 1 {
            self.shared.note_retaining(self.retained_owner(p.topic));
        }
        let others = if self.core.shards > 1 {
            self.shared.interest.mask(p.topic) & !(1 << self.core.id.0)
        } else {
            0
        };
        let keeping = self.keeping(now, p, others, publisher);
        let mut forms = Forms::default();
        let mut is_wanted = self.route_here(now, p, &mut forms);
        let place = self.core.keep(now, p, forms.kept(), keeping);
        let p = &Publication { place, ..*p };
        self.send_member_mail(p);
        let mut stamp = 0;
        if is_retained {
            self.retained_stamp += 1;
            stamp = self.retained_stamp;
            self.retain(now, p, others, stamp);
        }
        is_wanted |= others != 0;
        self.forward(p, others, Envelope::Route { stamp });
        if !is_wanted {
            self.core.stats.drop_message(DropReason::NoSubscriber);
        }
        Published {
            is_wanted,
            is_kept: !place.is_none(),
        }
    }

    /// While the journal is full, what is retained of a topic stays as the journal has it. Clients are refused then: what they have is a
    /// will or a `$delayed` message, of which it says that it is done.
    fn may_retain(&self, p: &Publication<'_>) -> bool {
        !self.core.is_journal_stuck() || p.origin != Origin::NONE || p.topic.starts_with("$SYS/")
    }

    /// What the journal has to know of a message besides who gets it here.
    fn keeping(&self, now: Now, p: &Publication<'_>, others: u64, publisher: Option<(SessionKey, u16)>) -> Keeping {
        if self.core.ledger.is_none() || p.topic.starts_with("$SYS/") {
            return Keeping::default();
        }
        let mut keeping = Keeping {
            publisher,
            ..Keeping::default()
        };
        if p.qos != QoS::AtMostOnce && others != 0 {
            keeping.others = others & self.shared.durable.mask(p.topic);
        }
        if p.retain {
            let owner = self.retained_owner(p.topic);
            if owner != self.core.id {
                keeping.others |= 1 << owner.0;
            } else if self.has_retained_space(p) {
                let expires_at_ms = self.retained_until(now, p);
                let expires_unix_ms = expires_at_ms.map(|at| now.unix_at(at));
                keeping.retained = Some(RetainedTerms { expires_unix_ms });
            }
        }
        let is_kept_anyway = self.core.config.is_all_kept && p.qos != QoS::AtMostOnce;
        keeping.is_needed = keeping.others != 0 || keeping.retained.is_some() || publisher.is_some() || is_kept_anyway;
        keeping
    }

    /// A retained message goes at its own time or at the configured one.
    fn retained_until(&self, now: Now, p: &Publication<'_>) -> Option<u64> {
        let default_s = self.core.config.retained_expiry_default_s;
        p.expires_at_ms
            .or(default_s.map(|s| now.monotonic_ms + u64::from(s) * 1000))
    }

    /// To every other shard that may have a subscription: once each, whatever the number of subscribers there.
    fn forward(&mut self, p: &Publication<'_>, mut others: u64, envelope: Envelope) {
        while others != 0 {
            let shard = others.trailing_zeros() as usize;
            others &= others - 1;
            self.mail_out[shard].publication(envelope, p);
            self.core.stats.messages_forwarded += 1;
        }
    }

    /// Delivers to the sessions and groups of this shard. False when there are none.
    pub(crate) fn route_local(&mut self, now: Now, p: &Publication<'_>) -> bool {
        let mut forms = Forms::default();
        let is_wanted = self.route_here(now, p, &mut forms);
        let place = self.core.keep(now, p, forms.kept(), Keeping::default());
        self.send_member_mail(&Publication { place, ..*p });
        is_wanted
    }

    /// As `route_local`; what the journal has to know is left to the caller.
    fn route_here(&mut self, now: Now, p: &Publication<'_>, forms: &mut Forms) -> bool {
        if p.is_expired(now) {
            self.core.stats.drop_message(DropReason::Expired);
            return true;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.lists.clear();
        self.subscriptions.matching(p.topic, &mut scratch.lists);
        let is_wanted = !scratch.lists.is_empty();
        match scratch.lists[..] {
            [] => {}
            [list] if self.broadcast(now, list, p) => {}
            [list] => {
                self.core.settle();
                for entry in self.subscriptions.entries(list) {
                    if entry.key & GROUP_KEY != 0 {
                        scratch.groups.push(entry.key & !GROUP_KEY);
                        continue;
                    }
                    let Interested { identifier, options } = &entry.value;
                    if options.no_local && is_own(&self.core, entry.key, p.origin) {
                        continue;
                    }
                    let identifiers = if *identifier == 0 {
                        &[][..]
                    } else {
                        std::slice::from_ref(identifier)
                    };
                    let terms = Terms {
                        qos: granted(p.qos, options.maximum_qos),
                        retain: p.retain && options.retain_as_published,
                        identifiers,
                        group: None,
                    };
                    self.core.deliver(now, entry.key, p, terms, forms);
                }
            }
            _ => {
                self.core.settle();
                self.route_overlapping(now, p, &mut scratch, forms);
            }
        }
        for group in scratch.groups.drain(..) {
            self.dispatch(now, group, p, forms);
        }
        self.scratch = scratch;
        is_wanted
    }

    /// Several filters match: a session may be met more than once.
    fn route_overlapping(&mut self, now: Now, p: &Publication<'_>, scratch: &mut RouteScratch, forms: &mut Forms) {
        scratch.merged.clear();
        for list in &scratch.lists {
            for entry in self.subscriptions.entries(*list) {
                if entry.key & GROUP_KEY != 0 {
                    scratch.groups.push(entry.key & !GROUP_KEY);
                    continue;
                }
                if entry.value.options.no_local && is_own(&self.core, entry.key, p.origin) {
                    continue;
                }
                let link = self.core.link(entry.key);
                let is_merged = link.is_v5 || self.core.config.overlapping == Overlapping::DeliverOnce;
                let at = link.stamp as usize;
                // A stamp is the place in `merged`; it is only believed if that place is this session's.
                if is_merged && scratch.merged.get(at).is_some_and(|m| m.session == entry.key) {
                    scratch.merged[at].add(entry);
                } else {
                    *self.core.stamp_mut(entry.key) = scratch.merged.len() as u32;
                    scratch.merged.push(Merged::new(entry));
                }
            }
        }
        for merged in &scratch.merged {
            let terms = Terms {
                qos: granted(p.qos, merged.maximum_qos),
                retain: p.retain && merged.retain_as_published,
                identifiers: &merged.identifiers,
                group: None,
            };
            self.core.deliver(now, merged.session, p, terms, forms);
        }
    }

    // --- retained messages: each topic has an owner among the shards ---

    fn retain(&mut self, now: Now, p: &Publication<'_>, others: u64, stamp: u64) {
        let expires_at_ms = self.retained_until(now, p);
        let p = &Publication { expires_at_ms, ..*p };
        let owner = self.retained_owner(p.topic);
        if owner == self.core.id {
            self.retain_here(now, p);
        } else {
            let told = others | 1 << self.core.id.0;
            self.mail_out[usize::from(owner.0)].publication(Envelope::Retain { told, stamp }, p);
        }
    }

    /// From the shard of the publisher. Who subscribed in the meantime, on a shard that had no interest when the message was
    /// routed, may have asked here before the message came: it gets the message as one published after its subscription.
    pub(crate) fn retain_from(&mut self, now: Now, from: ShardId, told: u64, stamp: u64, p: &Publication<'_>) {
        if self.has_retained_space(p) {
            self.keep_retained(now, p);
        }
        self.retain_here(now, p);
        let late = self.shared.interest.mask(p.topic) & !told;
        let here = 1 << self.core.id.0;
        if late & here != 0 {
            self.route_local(now, p);
        }
        self.forward(p, late & !here, Envelope::Late { from, stamp });
    }

    pub(crate) fn retained_owner(&self, topic: &str) -> ShardId {
        ShardId((hash(topic) % u64::from(self.core.shards)) as u16)
    }

    /// Whether a message can be retained. What is not is not recorded as such either: a start would store it, and have no room for what
    /// was stored in its place.
    pub(crate) fn has_retained_space(&self, p: &Publication<'_>) -> bool {
        let is_allowed = p.payload.len() <= self.core.config.retained_payload_max;
        p.payload.is_empty() || is_allowed && self.retained.has_space(p.topic, p.kept_bytes() as u32).is_ok()
    }

    /// Stores the message, or clears the topic if it has no payload [MQTT-3.3.1-6], [MQTT-3.3.1-7].
    pub(crate) fn retain_here(&mut self, now: Now, p: &Publication<'_>) {
        if p.payload.is_empty() {
            self.retained.remove(p.topic);
        } else if p.payload.len() > self.core.config.retained_payload_max {
            self.core.stats.drop_message(DropReason::RetainedFull);
        } else {
            self.store_retained(now, p);
        }
        self.core.stats.retained_messages = self.retained.count() as u64;
        self.core.stats.retained_bytes = self.retained.bytes();
    }

    /// What was retained when the process ended stays, whatever the limits are now and however many shards have a part of them.
    pub(crate) fn restore_retained(&mut self, now: Now, p: &Publication<'_>) {
        self.retained.set_limits(RetainedLimits::NONE);
        self.store_retained(now, p);
        self.retained.set_limits(retained_limits(&self.core.config));
        self.core.stats.retained_messages = self.retained.count() as u64;
        self.core.stats.retained_bytes = self.retained.bytes();
    }

    fn store_retained(&mut self, now: Now, p: &Publication<'_>) {
        let kept = Publication {
            origin: Origin::NONE,
            ..*p
        }
        .to_message();
        let bytes = kept.kept_bytes();
        if let Some(ledger) = &mut self.core.ledger {
            ledger.place_later(&kept, p.place);
        }
        if self.retained.set(p.topic, kept, bytes as u32, p.expires_at_ms).is_err() {
            self.core.stats.drop_message(DropReason::RetainedFull);
        } else if let Some(at) = p.expires_at_ms {
            self.expect_retained_expiry(now, at);
        }
    }
}

impl Merged {
    fn new(entry: &Entry<Interested>) -> Merged {
        let mut merged = Merged {
            session: entry.key,
            maximum_qos: QoS::AtMostOnce,
            retain_as_published: false,
            identifiers: Vec::new(),
        };
        merged.add(entry);
        merged
    }

    /// One copy with the highest QoS and every identifier [MQTT-3.3.4-3], [MQTT-3.3.5-1].
    fn add(&mut self, entry: &Entry<Interested>) {
        let Interested { identifier, options } = entry.value;
        self.maximum_qos = self.maximum_qos.max(options.maximum_qos);
        self.retain_as_published |= options.retain_as_published;
        if identifier != 0 {
            self.identifiers.push(identifier);
        }
    }
}

/// No Local [MQTT-3.8.3-3].
fn is_own(core: &Core, slot: u32, origin: Origin) -> bool {
    origin.shard == core.id && origin.epoch == core.session(slot).epoch
}
