//! SUBSCRIBE and UNSUBSCRIBE: which filters are granted, and what keeps the index of subscriptions true.

use mqtt::{
    Packet, PacketId, PacketType, Properties, ProtocolVersion, ReasonCode, RetainHandling, SharedFilter, SubAck,
    Subscribe, SubscribeFilter, SubscriptionOptions, UnsubAck, Unsubscribe,
};

use crate::access::SubscribeAccess;
use crate::effect::{ConnSlot, Now};
use crate::fault::{Fault, is_planted};
use crate::mail::SessionRef;
use crate::session::{PendingSubAck, Subscription, SubscriptionKind};
use crate::shard::{Interested, Shard};
use crate::tap::{Happening, Wants};

pub(crate) const EXCLUSIVE: &str = "$exclusive/";

/// Of all filters of a session: they are one record of the journal, and one step of a checkpoint.
const FILTER_BYTES_MAX: usize = 16 << 20;

/// A filter as the client wrote it, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    Plain(&'a str),
    Shared(SharedFilter<'a>),
    Exclusive(&'a str),
}

impl<'a> Target<'a> {
    /// `$share/{name}/{filter}`, `$queue/{filter}` (a share of its own), `$exclusive/{topic}`.
    pub(crate) fn parse(filter: &'a str) -> Result<Target<'a>, ReasonCode> {
        let invalid = |_| ReasonCode::TopicFilterInvalid;
        let target = if let Some(shared) = SharedFilter::parse(filter).map_err(invalid)? {
            Target::Shared(shared)
        } else if let Some(rest) = filter.strip_prefix("$queue/") {
            Target::Shared(SharedFilter {
                share_name: "$queue",
                filter: rest,
            })
        } else if let Some(rest) = filter.strip_prefix(EXCLUSIVE) {
            Target::Exclusive(rest)
        } else {
            Target::Plain(filter)
        };
        mqtt::validate_filter(target.filter()).map_err(invalid)?;
        Ok(target)
    }

    /// The filter that topics are matched with.
    pub(crate) fn filter(self) -> &'a str {
        match self {
            Target::Plain(filter) | Target::Exclusive(filter) => filter,
            Target::Shared(shared) => shared.filter,
        }
    }

    pub(crate) fn kind(self) -> SubscriptionKind {
        match self {
            Target::Plain(_) => SubscriptionKind::Plain,
            Target::Shared(_) => SubscriptionKind::Shared,
            Target::Exclusive(_) => SubscriptionKind::Exclusive,
        }
    }
}

/// 3.1.1 knows one failure code [MQTT-3.9.3-2].
fn suback_code(reason: ReasonCode, is_v5: bool) -> u8 {
    match reason.is_error() && !is_v5 {
        true => 0x80,
        false => reason.to_u8(),
    }
}

impl Shard {
    pub(crate) fn subscribe(&mut self, now: Now, conn: ConnSlot, slot: u32, subscribe: &Subscribe<'_>) {
        self.core.stats.packets_received[PacketType::Subscribe as usize] += 1;
        let identifier = subscribe.properties.subscription_identifier();
        let refusal = match self.core.config.is_identifier_available {
            false => Some("mqtt.subscription_identifiers is off"),
            true => self.device_of(slot).map(|_| "devices have no subscription identifiers"),
        };
        if let Some(because) = refusal.filter(|_| identifier.is_some()) {
            return self.protocol_error(now, conn, ReasonCode::SubscriptionIdentifiersNotSupported, because);
        }
        let is_no_local_shared =
            |f: SubscribeFilter<'_>| f.options.no_local && matches!(Target::parse(f.filter), Ok(Target::Shared(_)));
        if subscribe.filters.iter().any(is_no_local_shared) {
            // [MQTT-3.8.3-4]
            let because = "No Local on a shared subscription";
            return self.protocol_error(now, conn, ReasonCode::ProtocolError, because);
        }
        let is_v5 = self.core.session(slot).version == ProtocolVersion::V5;
        if let Some(device) = self.device_of(slot) {
            let reasons = self.device_subscribed(now, device, subscribe);
            let reasons: Vec<u8> = reasons.into_iter().map(|reason| suback_code(reason, is_v5)).collect();
            return self.suback(now, conn, slot, subscribe.packet_id, &reasons);
        }
        let mut reasons = Vec::with_capacity(subscribe.filters.len());
        self.epochs = self.epochs.wrapping_add(1);
        let (ticket, mut waiting) = (self.epochs, 0);
        for filter in subscribe.filters.iter() {
            let (reason, must_wait) = self.subscribe_filter(now, slot, filter, subscribe.properties, ticket);
            waiting += u32::from(must_wait);
            reasons.push(suback_code(reason, is_v5));
        }
        let packet_id = subscribe.packet_id;
        if waiting > 0 {
            self.core.session_mut(slot).subacks.push_back(PendingSubAck {
                packet_id,
                reasons,
                kind: PacketType::SubAck,
                waiting,
                ticket,
            });
            return;
        }
        self.suback(now, conn, slot, packet_id, &reasons);
    }

    fn suback(&mut self, now: Now, conn: ConnSlot, slot: u32, packet_id: PacketId, reasons: &[u8]) {
        if self.core.link(slot).is_durable && !is_planted(Fault::SubackBeforeCommit) {
            self.core.hold_until_kept(conn);
        }
        // [MQTT-3.8.4-1], [MQTT-3.8.4-2], [MQTT-3.8.4-5]
        if !self.send(
            conn,
            &Packet::SubAck(SubAck {
                packet_id,
                properties: Properties::EMPTY,
                reasons,
            }),
        ) {
            return self.protocol_error(
                now,
                conn,
                ReasonCode::PacketTooLarge,
                "the client has no room for the SUBACK",
            );
        }
        self.pump(now, slot);
    }

    /// Another shard has a shared subscription in its index.
    pub(crate) fn joined(&mut self, now: Now, slot: u32, epoch: u32, ticket: u32) {
        let Some(session) = self.core.live_session(slot, epoch) else {
            return;
        };
        let Some(at) = session.subacks.iter().position(|s| s.ticket == ticket) else {
            return;
        };
        session.subacks[at].waiting -= 1;
        if session.subacks[at].waiting > 0 {
            return;
        }
        let done = session.subacks.remove(at);
        let (Some(conn), Some(done)) = (session.conn, done) else {
            return;
        };
        match done.kind {
            PacketType::SubAck => self.suback(now, conn, slot, done.packet_id, &done.reasons),
            _ => self.unsuback(now, conn, slot, done.packet_id, &done.reasons),
        }
    }

    /// Adds or replaces one subscription; the reason is what SUBACK says of it. True when a letter `Joined` with the
    /// ticket must come before it may.
    pub(crate) fn subscribe_filter(
        &mut self,
        now: Now,
        slot: u32,
        asked: SubscribeFilter<'_>,
        properties: Properties<'_>,
        ticket: u32,
    ) -> (ReasonCode, bool) {
        let identifier = properties.subscription_identifier();
        let checked = self.check_filter(slot, asked.filter);
        let what = Happening::Authorized {
            is_publish: false,
            topic: asked.filter,
            is_allowed: !matches!(checked, Err(ReasonCode::NotAuthorized)),
        };
        self.core.tap_session(now, slot, Wants::AUTHORIZED, &what);
        let target = match checked {
            Ok(target) => target,
            Err(reason) => return (reason, false),
        };
        let mut must_wait = false;
        let options = SubscriptionOptions {
            maximum_qos: asked.options.maximum_qos.min(self.core.config.maximum_qos),
            ..asked.options
        };
        let subscription = Subscription {
            options,
            identifier,
            kind: target.kind(),
        };
        if let Target::Exclusive(filter) = target
            && !self.shared.exclusives.claim(filter, self.session_ref(slot))
        {
            return (ReasonCode::QuotaExceeded, false);
        }
        let replaced = self
            .core
            .session_mut(slot)
            .subscriptions
            .insert(asked.filter, subscription);
        let starts_replay = self.owes_retained(target, options, replaced.is_some());
        let is_replaying = starts_replay || self.core.session(slot).replays.is_pending(target.filter());
        self.keep_subscribed(slot, asked.filter, &subscription, is_replaying);
        if replaced.is_none() {
            self.mind_durable_filter(slot, target, true);
            let stats = &mut self.core.stats;
            stats.subscriptions += 1;
            stats.subscriptions_max = stats.subscriptions_max.max(stats.subscriptions);
        }
        match target {
            Target::Shared(shared) => {
                must_wait = self.join_group(now, slot, shared, options, identifier.unwrap_or(0), ticket)
            }
            Target::Plain(filter) | Target::Exclusive(filter) => {
                self.index(
                    filter,
                    slot,
                    Interested {
                        identifier: identifier.unwrap_or(0),
                        options,
                    },
                );
                if starts_replay {
                    self.start_replay(slot, filter, options, identifier);
                }
            }
        }
        let what = Happening::Subscribed {
            filter: asked.filter,
            qos: options.maximum_qos,
            properties: properties.as_bytes(),
        };
        self.core.tap_session(now, slot, Wants::SUBSCRIBED, &what);
        let reason = match options.maximum_qos {
            mqtt::QoS::AtMostOnce => ReasonCode::Success,
            mqtt::QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
            mqtt::QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
        };
        (reason, must_wait)
    }

    /// [MQTT-3.3.1-9] to [MQTT-3.3.1-11]
    fn owes_retained(&self, target: Target<'_>, options: SubscriptionOptions, was_there: bool) -> bool {
        let is_wanted = match options.retain_handling {
            RetainHandling::SendAtSubscribe => true,
            RetainHandling::SendIfNew => !was_there,
            RetainHandling::DoNotSend => false,
        };
        is_wanted && target.kind() != SubscriptionKind::Shared && self.has_retained(target.filter())
    }

    fn check_filter<'a>(&mut self, slot: u32, filter: &'a str) -> Result<Target<'a>, ReasonCode> {
        let target = Target::parse(filter)?;
        let config = &self.core.config;
        let bare = target.filter();
        if mqtt::levels(bare).count() > config.maximum_topic_levels {
            return Err(ReasonCode::TopicFilterInvalid);
        }
        if !config.is_wildcard_available && mqtt::has_wildcards(bare) {
            return Err(ReasonCode::WildcardSubscriptionsNotSupported);
        }
        if !config.is_shared_available && matches!(target, Target::Shared(_)) {
            return Err(ReasonCode::SharedSubscriptionsNotSupported);
        }
        if matches!(target, Target::Exclusive(_)) && (!config.is_exclusive_available || mqtt::has_wildcards(bare)) {
            return Err(ReasonCode::TopicFilterInvalid);
        }
        let subscriptions_max = config.subscriptions_max;
        let session = self.core.session(slot);
        let subscriptions = &session.subscriptions;
        let is_full =
            subscriptions.len() >= subscriptions_max || subscriptions.filter_bytes() + filter.len() > FILTER_BYTES_MAX;
        if is_full && subscriptions.get(filter).is_none() {
            return Err(ReasonCode::QuotaExceeded);
        }
        match session.access.as_ref().map(|a| a.may_subscribe(bare)) {
            None | Some(SubscribeAccess::Allowed) => {}
            Some(SubscribeAccess::AllowedInPart) => self.core.link_mut(slot).is_filtered = true,
            Some(SubscribeAccess::Denied) => return Err(ReasonCode::NotAuthorized),
        }
        Ok(target)
    }

    pub(crate) fn unsubscribe(&mut self, now: Now, conn: ConnSlot, slot: u32, unsubscribe: &Unsubscribe<'_>) {
        self.core.stats.packets_received[PacketType::Unsubscribe as usize] += 1;
        let is_v5 = self.core.session(slot).version == ProtocolVersion::V5;
        if let Some(device) = self.device_of(slot) {
            let mut reasons = self.device_unsubscribed(now, device, unsubscribe);
            reasons.retain(|_| is_v5);
            let reasons: Vec<u8> = reasons.into_iter().map(ReasonCode::to_u8).collect();
            return self.unsuback(now, conn, slot, unsubscribe.packet_id, &reasons);
        }
        let mut reasons = Vec::new();
        self.epochs = self.epochs.wrapping_add(1);
        let (ticket, mut waiting) = (self.epochs, 0);
        for filter in unsubscribe.filters.iter() {
            let known = self.core.session(slot).subscriptions.get(filter);
            let qos = known.map_or(mqtt::QoS::AtMostOnce, |known| known.options.maximum_qos);
            let reason = match Target::parse(filter).map(|_| self.remove_subscription(slot, filter, Some(ticket))) {
                Err(reason) => reason,
                Ok(Some(must_wait)) => {
                    waiting += u32::from(must_wait);
                    let what = Happening::Unsubscribed {
                        filter,
                        qos,
                        properties: unsubscribe.properties.as_bytes(),
                    };
                    self.core.tap_session(now, slot, Wants::UNSUBSCRIBED, &what);
                    ReasonCode::Success
                }
                Ok(None) => ReasonCode::NoSubscriptionExisted,
            };
            if is_v5 {
                reasons.push(reason.to_u8());
            }
        }
        let packet_id = unsubscribe.packet_id;
        if waiting > 0 {
            self.core.session_mut(slot).subacks.push_back(PendingSubAck {
                packet_id,
                reasons,
                kind: PacketType::UnsubAck,
                waiting,
                ticket,
            });
            return;
        }
        self.unsuback(now, conn, slot, packet_id, &reasons);
    }

    fn unsuback(&mut self, now: Now, conn: ConnSlot, slot: u32, packet_id: PacketId, reasons: &[u8]) {
        if self.core.link(slot).is_durable && !is_planted(Fault::SubackBeforeCommit) {
            self.core.hold_until_kept(conn);
        }
        let properties = Properties::EMPTY;
        // [MQTT-3.10.4-4], [MQTT-3.11.3-1]
        if !self.send(
            conn,
            &Packet::UnsubAck(UnsubAck {
                packet_id,
                properties,
                reasons,
            }),
        ) {
            self.protocol_error(
                now,
                conn,
                ReasonCode::PacketTooLarge,
                "the client has no room for the UNSUBACK",
            );
            return;
        }
        // A replay that ends here may have held messages of other subscriptions up.
        self.pump(now, slot);
    }

    /// Removes one subscription; false when there was none.
    pub(crate) fn unsubscribe_filter(&mut self, slot: u32, filter: &str) -> bool {
        self.remove_subscription(slot, filter, None).is_some()
    }

    /// `Some(true)` when a letter `Joined` with the ticket must come before that is so everywhere; `None` when there was none.
    fn remove_subscription(&mut self, slot: u32, filter: &str, ticket: Option<u32>) -> Option<bool> {
        let session = self.core.session_mut(slot);
        session.subscriptions.remove(filter)?;
        self.core.stats.subscriptions -= 1;
        self.keep_unsubscribed(slot, filter);
        Some(self.unindex_target(slot, filter, ticket))
    }

    fn unindex_target(&mut self, slot: u32, filter: &str, ticket: Option<u32>) -> bool {
        let target = Target::parse(filter);
        if let Ok(target) = target {
            self.mind_durable_filter(slot, target, false);
        }
        if let Ok(Target::Plain(bare) | Target::Exclusive(bare)) = target {
            self.core.session_mut(slot).replays.remove(bare);
        }
        match target {
            Ok(Target::Shared(shared)) => return self.leave_group(slot, shared, ticket),
            Ok(Target::Plain(bare)) => self.unindex_unless_held(slot, bare, EXCLUSIVE),
            Ok(Target::Exclusive(bare)) => {
                self.shared.exclusives.release(bare, self.session_ref(slot));
                self.unindex_unless_held(slot, bare, "");
            }
            Err(_) => {}
        }
        false
    }

    /// A session may hold a filter both plainly and exclusively; the index has one entry for both.
    fn unindex_unless_held(&mut self, slot: u32, bare: &str, other_prefix: &str) {
        let session = self.core.session(slot);
        let other = match other_prefix {
            "" => session.subscriptions.get(bare).copied(),
            prefix => session.subscriptions.get(&format!("{prefix}{bare}")).copied(),
        };
        match other {
            Some(held) => self.index(
                bare,
                slot,
                Interested {
                    identifier: held.identifier.unwrap_or(0),
                    options: held.options,
                },
            ),
            None => self.unindex(bare, slot),
        }
    }

    /// All subscriptions of a session that ends.
    pub(crate) fn drop_subscriptions(&mut self, slot: u32) {
        let session = self.core.session_mut(slot);
        session.replays.clear();
        let subscriptions = std::mem::take(&mut session.subscriptions);
        self.core.stats.subscriptions -= subscriptions.len() as u64;
        for (filter, _) in subscriptions.iter() {
            self.unindex_target(slot, filter, None);
        }
    }

    /// Rights may have changed since a subscription was granted: what is not allowed any more is taken away.
    pub(crate) fn recheck_subscriptions(&mut self, slot: u32) {
        let session = self.core.session(slot);
        let mut denied = Vec::new();
        let mut is_filtered = false;
        if let Some(access) = &session.access {
            for (filter, _) in session.subscriptions.iter() {
                let Ok(target) = Target::parse(filter) else { continue };
                match access.may_subscribe(target.filter()) {
                    SubscribeAccess::Denied => denied.push(filter.to_owned()),
                    SubscribeAccess::AllowedInPart => is_filtered = true,
                    SubscribeAccess::Allowed => {}
                }
            }
        }
        self.core.link_mut(slot).is_filtered = is_filtered;
        for filter in denied {
            self.unsubscribe_filter(slot, &filter);
        }
    }

    /// Publishers of all shards learn, or forget, that a durable session wants what matches. Shared subscriptions tell at their home.
    fn mind_durable_filter(&mut self, slot: u32, target: Target<'_>, is_there: bool) {
        if let Target::Plain(filter) | Target::Exclusive(filter) = target
            && self.core.link(slot).is_durable
        {
            self.mind_durable(filter, is_there);
        }
    }

    pub(crate) fn mind_durable(&mut self, filter: &str, is_there: bool) {
        let Some(durable) = &mut self.durable_interest else {
            return;
        };
        match is_there {
            true => durable.add(&self.shared.durable, filter),
            false => durable.remove(&self.shared.durable, filter),
        }
    }

    pub(crate) fn session_ref(&self, slot: u32) -> SessionRef {
        SessionRef {
            shard: self.core.id,
            session: slot,
            epoch: self.core.session(slot).epoch,
        }
    }

    /// Adds to the tree, and tells the other shards before the SUBACK is sent.
    pub(crate) fn index(&mut self, filter: &str, key: u32, value: Interested) {
        self.core.forget_audience();
        let inserted = self.subscriptions.insert(filter, key, value);
        if inserted.is_new_filter {
            self.shared.filter_added(filter);
            if self.core.shards > 1 {
                self.interest.add(&self.shared.interest, filter);
            }
        }
    }

    pub(crate) fn unindex(&mut self, filter: &str, key: u32) {
        self.core.forget_audience();
        let removed = self.subscriptions.remove(filter, key);
        if removed.is_some_and(|r| r.was_last) {
            self.shared.filter_removed(filter);
            if self.core.shards > 1 {
                self.interest.remove(&self.shared.interest, filter);
            }
        }
    }
}
