//! SUBSCRIBE and UNSUBSCRIBE: which filters are granted, and the updates of the subscription index.

use mqtt::{
    FilterError, Packet, PacketId, PacketType, Properties, ProtocolVersion, ReasonCode, RetainHandling, SharedFilter,
    SubAck, Subscribe, SubscribeFilter, SubscriptionOptions, UnsubAck, Unsubscribe,
};

use crate::access::SubscribeAccess;
use crate::effect::Now;
use crate::exclusive::EXCLUSIVE;
use crate::fault::{Fault, is_planted};
use crate::router::{InterestedSession, Subscriber};
use crate::session::{PendingSubAck, Subscription, SubscriptionKind};
use crate::shard::Shard;
use crate::shared::JoinRequest;
use crate::slots::{ConnSlot, ReplayNumber, SessionEpoch, SessionRef, SessionSlot, SubscribeTicket};
use crate::tap::{TapEvent, TapEventMask};

/// Total length of the filters of a session, because they are one record of the journal and one step of a checkpoint.
pub(crate) const FILTER_BYTES_MAX: usize = 16 << 20;

/// A parsed filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParsedFilter<'a> {
    Plain(&'a str),
    Shared(SharedFilter<'a>),
    Exclusive(&'a str),
}

impl<'a> ParsedFilter<'a> {
    /// Parses `$share/{name}/{filter}`, `$queue/{filter}` (a share name of its own), `$exclusive/{topic}`, or a plain
    /// filter.
    pub(crate) fn parse(filter: &'a str) -> Result<ParsedFilter<'a>, FilterError> {
        let target = if let Some(shared) = SharedFilter::parse(filter)? {
            ParsedFilter::Shared(shared)
        } else if let Some(rest) = filter.strip_prefix("$queue/") {
            ParsedFilter::Shared(SharedFilter {
                share_name: "$queue",
                filter: rest,
            })
        } else if let Some(rest) = filter.strip_prefix(EXCLUSIVE) {
            ParsedFilter::Exclusive(rest)
        } else {
            ParsedFilter::Plain(filter)
        };
        mqtt::validate_filter(target.filter())?;
        Ok(target)
    }

    /// Returns the filter that is matched with topics.
    pub(crate) fn filter(self) -> &'a str {
        match self {
            ParsedFilter::Plain(filter) | ParsedFilter::Exclusive(filter) => filter,
            ParsedFilter::Shared(shared) => shared.filter,
        }
    }

    pub(crate) fn kind(self) -> SubscriptionKind {
        match self {
            ParsedFilter::Plain(_) => SubscriptionKind::Plain,
            ParsedFilter::Shared(_) => SubscriptionKind::Shared,
            ParsedFilter::Exclusive(_) => SubscriptionKind::Exclusive,
        }
    }
}

/// Returns whether a filter is malformed, so that the connection is closed [MQTT-4.7.3-1], [MQTT-4.13.1-1] (in 3.1.1
/// [MQTT-4.8.0-1]). Shared subscriptions are not part of 3.1.1: there an invalid one only gets a failure code.
fn is_malformed(error: FilterError, is_v5: bool) -> bool {
    is_v5 || error != FilterError::Shared
}

/// Returns the SUBACK code. MQTT 3.1.1 has only one failure code [MQTT-3.9.3-2].
fn suback_code(reason: ReasonCode, is_v5: bool) -> u8 {
    match reason.is_error() && !is_v5 {
        true => 0x80,
        false => reason.to_u8(),
    }
}

impl Shard {
    pub(crate) fn subscribe(&mut self, now: Now, conn: ConnSlot, slot: SessionSlot, subscribe: &Subscribe<'_>) {
        self.core.stats.packets_received[PacketType::Subscribe as usize] += 1;
        let identifier = subscribe.properties.subscription_identifier();
        let refusal = match self.core.config.subscription_identifiers {
            false => Some("mqtt.subscription_identifiers is off"),
            true => self
                .core
                .sessions
                .inbox_key(slot)
                .map(|_| "this client cannot use subscription identifiers"),
        };
        if let Some(detail) = refusal.filter(|_| identifier.is_some()) {
            return self.protocol_error(now, conn, ReasonCode::SubscriptionIdentifiersNotSupported, detail);
        }
        let is_v5 = self.core.sessions.at(slot).version == ProtocolVersion::V5;
        for asked in subscribe.filters.iter() {
            match ParsedFilter::parse(asked.filter) {
                Err(error) if is_malformed(error, is_v5) => {
                    return self.protocol_error(now, conn, ReasonCode::MalformedPacket, &error.to_string());
                }
                Ok(ParsedFilter::Shared(_)) if asked.options.no_local => {
                    // [MQTT-3.8.3-4]
                    let detail = "No Local is not allowed in a shared subscription";
                    return self.protocol_error(now, conn, ReasonCode::ProtocolError, detail);
                }
                Ok(target) if is_v5 => {
                    if let Some((code, detail)) = self.missing_feature(target) {
                        return self.protocol_error(now, conn, code, detail);
                    }
                }
                _ => {}
            }
        }
        if let Some(client) = self.core.sessions.inbox_key(slot) {
            let reasons = self.core.taps.inbox_subscribed(now, client, subscribe);
            let reasons: Vec<u8> = reasons.into_iter().map(|reason| suback_code(reason, is_v5)).collect();
            return self.suback(now, conn, slot, subscribe.packet_id, &reasons);
        }
        let mut reasons = Vec::with_capacity(subscribe.filters.len());
        let (ticket, mut waiting) = (SubscribeTicket(self.numbers.next()), 0);
        let is_bridge = self.core.sessions.at(slot).is_bridge;
        for mut filter in subscribe.filters.iter() {
            if is_bridge && matches!(ParsedFilter::parse(filter.filter), Ok(ParsedFilter::Plain(_))) {
                // A bridge before MQTT 5 cannot ask for these options. As in Mosquitto, the bridge flag implies them.
                filter.options.no_local = true;
                filter.options.retain_as_published = true;
            }
            let (reason, must_wait) = self.subscribe_filter(now, slot, filter, subscribe.properties, ticket);
            waiting += u32::from(must_wait);
            reasons.push(suback_code(reason, is_v5));
        }
        let packet_id = subscribe.packet_id;
        if waiting > 0 {
            self.core.sessions.at_mut(slot).subacks.push_back(PendingSubAck {
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

    /// Returns the code and text of the DISCONNECT for a subscription that CONNACK has announced as not available
    /// (sections 3.2.2.3.11 and 3.2.2.3.13 of MQTT 5.0).
    fn missing_feature(&self, target: ParsedFilter<'_>) -> Option<(ReasonCode, &'static str)> {
        let config = &self.core.config;
        if !config.shared_subscription && matches!(target, ParsedFilter::Shared(_)) {
            return Some((
                ReasonCode::SharedSubscriptionsNotSupported,
                "mqtt.shared_subscription is off",
            ));
        }
        if !config.wildcard_subscription && mqtt::has_wildcards(target.filter()) {
            return Some((
                ReasonCode::WildcardSubscriptionsNotSupported,
                "mqtt.wildcard_subscription is off",
            ));
        }
        None
    }

    fn suback(&mut self, now: Now, conn: ConnSlot, slot: SessionSlot, packet_id: PacketId, reasons: &[u8]) {
        if self.core.sessions.link(slot).is_durable && !is_planted(Fault::SubackBeforeCommit) {
            self.core.hold_until_committed(conn);
        }
        // [MQTT-3.8.4-1], [MQTT-3.8.4-2], [MQTT-3.8.4-5]
        if !self.core.send(
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
                "SUBACK exceeds the client's Maximum Packet Size",
            );
        }
        self.pump(now, slot);
    }

    /// Another shard has added a shared subscription to its index, or removed it.
    pub(crate) fn joined(&mut self, now: Now, slot: SessionSlot, epoch: SessionEpoch, ticket: SubscribeTicket) {
        let Some(session) = self.core.sessions.live(slot, epoch) else {
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

    /// Adds or replaces one subscription. Returns the reason code for SUBACK. The second value is true if SUBACK must
    /// wait for `MailRequest::Joined` with the ticket.
    pub(crate) fn subscribe_filter(
        &mut self,
        now: Now,
        slot: SessionSlot,
        asked: SubscribeFilter<'_>,
        properties: Properties<'_>,
        ticket: SubscribeTicket,
    ) -> (ReasonCode, bool) {
        let identifier = properties.subscription_identifier();
        let checked = self.check_filter(slot, asked.filter);
        let tap_event = TapEvent::Authorized {
            is_publish: false,
            topic: asked.filter,
            is_allowed: !matches!(checked, Err(ReasonCode::NotAuthorized)),
        };
        self.core
            .taps
            .session_event(now, self.core.sessions.at(slot), TapEventMask::AUTHORIZED, &tap_event);
        let target = match checked {
            Ok(target) => target,
            Err(reason) => return (reason, false),
        };
        let mut must_wait = false;
        let options = SubscriptionOptions {
            maximum_qos: asked.options.maximum_qos.min(self.core.config.max_qos),
            ..asked.options
        };
        let subscription = Subscription {
            options,
            identifier,
            kind: target.kind(),
        };
        if let ParsedFilter::Exclusive(filter) = target
            && !self.shared.exclusives.claim(filter, self.session_ref(slot))
        {
            return (ReasonCode::QuotaExceeded, false);
        }
        let replaced = self
            .core
            .sessions
            .at_mut(slot)
            .subscriptions
            .insert(asked.filter, subscription);
        let starts_replay = self.needs_replay(target, options, replaced.is_some());
        let is_replaying = starts_replay || self.core.sessions.at(slot).replays.is_pending(target.filter());
        self.core
            .ledger
            .record_subscribed(self.core.sessions.at(slot), asked.filter, &subscription, is_replaying);
        if replaced.is_none() {
            self.update_durable_filter(slot, target, true);
            let stats = &mut self.core.stats;
            stats.subscriptions += 1;
            stats.subscriptions_max = stats.subscriptions_max.max(stats.subscriptions);
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
                    ticket,
                };
                let (mut tick, parts) = self.split(now);
                must_wait = parts.groups.join(&mut tick, parts.router, request);
            }
            ParsedFilter::Plain(filter) | ParsedFilter::Exclusive(filter) => {
                self.core.invalidate_recipients();
                self.router.add(filter, Subscriber::Session(slot), interest);
                if starts_replay {
                    let number = ReplayNumber(self.numbers.next());
                    let replay = self.retained.replay_of(number, filter, options, identifier);
                    self.core.link_mut(slot).is_replaying = true;
                    self.core.sessions.at_mut(slot).replays.push_back(replay);
                }
            }
        }
        let tap_event = TapEvent::Subscribed {
            filter: asked.filter,
            qos: options.maximum_qos,
            properties: properties.as_bytes(),
        };
        self.core
            .taps
            .session_event(now, self.core.sessions.at(slot), TapEventMask::SUBSCRIBED, &tap_event);
        let reason = match options.maximum_qos {
            mqtt::QoS::AtMostOnce => ReasonCode::Success,
            mqtt::QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
            mqtt::QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
        };
        (reason, must_wait)
    }

    /// Returns whether retained messages must be sent [MQTT-3.3.1-9] to [MQTT-3.3.1-11].
    fn needs_replay(&self, target: ParsedFilter<'_>, options: SubscriptionOptions, existed: bool) -> bool {
        let is_wanted = match options.retain_handling {
            RetainHandling::SendAtSubscribe => true,
            RetainHandling::SendIfNew => !existed,
            RetainHandling::DoNotSend => false,
        };
        is_wanted && target.kind() != SubscriptionKind::Shared && self.retained.has_messages(target.filter())
    }

    fn check_filter<'a>(&mut self, slot: SessionSlot, filter: &'a str) -> Result<ParsedFilter<'a>, ReasonCode> {
        let target = ParsedFilter::parse(filter).map_err(|_| ReasonCode::TopicFilterInvalid)?;
        let config = &self.core.config;
        let bare = target.filter();
        if mqtt::levels(bare).count() > config.max_topic_levels || !config.allows_characters(filter) {
            return Err(ReasonCode::TopicFilterInvalid);
        }
        if let Some((code, _)) = self.missing_feature(target) {
            return Err(code);
        }
        if matches!(target, ParsedFilter::Exclusive(_)) && (!config.exclusive_subscription || mqtt::has_wildcards(bare))
        {
            return Err(ReasonCode::TopicFilterInvalid);
        }
        let subscriptions_max = config.max_subscriptions;
        let session = self.core.sessions.at(slot);
        let subscriptions = &session.subscriptions;
        let is_full =
            subscriptions.len() >= subscriptions_max || subscriptions.filter_bytes() + filter.len() > FILTER_BYTES_MAX;
        if is_full && subscriptions.get(filter).is_none() {
            return Err(ReasonCode::QuotaExceeded);
        }
        match session.access.as_ref().map(|a| a.can_subscribe(bare)) {
            None | Some(SubscribeAccess::Allowed) => {}
            Some(SubscribeAccess::AllowedInPart) => self.core.link_mut(slot).is_filtered = true,
            Some(SubscribeAccess::Denied) => return Err(ReasonCode::NotAuthorized),
        }
        Ok(target)
    }

    pub(crate) fn unsubscribe(&mut self, now: Now, conn: ConnSlot, slot: SessionSlot, unsubscribe: &Unsubscribe<'_>) {
        self.core.stats.packets_received[PacketType::Unsubscribe as usize] += 1;
        let is_v5 = self.core.sessions.at(slot).version == ProtocolVersion::V5;
        let mut errors = unsubscribe
            .filters
            .iter()
            .filter_map(|filter| ParsedFilter::parse(filter).err());
        if let Some(error) = errors.find(|error| is_malformed(*error, is_v5)) {
            return self.protocol_error(now, conn, ReasonCode::MalformedPacket, &error.to_string());
        }
        if let Some(client) = self.core.sessions.inbox_key(slot) {
            let mut reasons = self.core.taps.inbox_unsubscribed(now, client, unsubscribe);
            reasons.retain(|_| is_v5);
            let reasons: Vec<u8> = reasons.into_iter().map(ReasonCode::to_u8).collect();
            return self.unsuback(now, conn, slot, unsubscribe.packet_id, &reasons);
        }
        let mut reasons = Vec::new();
        let (ticket, mut waiting) = (SubscribeTicket(self.numbers.next()), 0);
        for filter in unsubscribe.filters.iter() {
            let known = self.core.sessions.at(slot).subscriptions.get(filter);
            let qos = known.map_or(mqtt::QoS::AtMostOnce, |known| known.options.maximum_qos);
            let reason =
                match ParsedFilter::parse(filter).map(|_| self.remove_subscription(now, slot, filter, Some(ticket))) {
                    Err(_) => ReasonCode::TopicFilterInvalid,
                    Ok(Some(must_wait)) => {
                        waiting += u32::from(must_wait);
                        let tap_event = TapEvent::Unsubscribed {
                            filter,
                            qos,
                            properties: unsubscribe.properties.as_bytes(),
                        };
                        self.core.taps.session_event(
                            now,
                            self.core.sessions.at(slot),
                            TapEventMask::UNSUBSCRIBED,
                            &tap_event,
                        );
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
            self.core.sessions.at_mut(slot).subacks.push_back(PendingSubAck {
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

    fn unsuback(&mut self, now: Now, conn: ConnSlot, slot: SessionSlot, packet_id: PacketId, reasons: &[u8]) {
        if self.core.sessions.link(slot).is_durable && !is_planted(Fault::SubackBeforeCommit) {
            self.core.hold_until_committed(conn);
        }
        let properties = Properties::EMPTY;
        // [MQTT-3.10.4-4], [MQTT-3.11.3-1]
        if !self.core.send(
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
                "UNSUBACK exceeds the client's Maximum Packet Size",
            );
            return;
        }
        // A replay that ends here may have held messages of other subscriptions.
        self.pump(now, slot);
    }

    /// Removes one subscription. Returns false if there was none.
    pub(crate) fn unsubscribe_filter(&mut self, now: Now, slot: SessionSlot, filter: &str) -> bool {
        self.remove_subscription(now, slot, filter, None).is_some()
    }

    /// Removes one subscription. Returns `Some(true)` if UNSUBACK must wait for `MailRequest::Joined` with the ticket,
    /// and `None` if there was no subscription.
    fn remove_subscription(
        &mut self,
        now: Now,
        slot: SessionSlot,
        filter: &str,
        ticket: Option<SubscribeTicket>,
    ) -> Option<bool> {
        let session = self.core.sessions.at_mut(slot);
        session.subscriptions.remove(filter)?;
        self.core.stats.subscriptions -= 1;
        self.core
            .ledger
            .record_unsubscribed(self.core.sessions.at(slot), filter);
        Some(self.unindex_target(now, slot, filter, ticket))
    }

    fn unindex_target(&mut self, now: Now, slot: SessionSlot, filter: &str, ticket: Option<SubscribeTicket>) -> bool {
        let target = ParsedFilter::parse(filter);
        if let Ok(target) = target {
            self.update_durable_filter(slot, target, false);
        }
        if let Ok(ParsedFilter::Plain(bare) | ParsedFilter::Exclusive(bare)) = target {
            self.core.sessions.at_mut(slot).replays.remove(bare);
        }
        match target {
            Ok(ParsedFilter::Shared(shared)) => {
                let (mut tick, parts) = self.split(now);
                return parts.groups.leave(&mut tick, parts.router, slot, shared, ticket);
            }
            Ok(ParsedFilter::Plain(bare)) => self.unindex_unless_held(slot, bare, EXCLUSIVE),
            Ok(ParsedFilter::Exclusive(bare)) => {
                self.shared.exclusives.release(bare, self.session_ref(slot));
                self.unindex_unless_held(slot, bare, "");
            }
            Err(_) => {}
        }
        false
    }

    /// A session may hold a filter both plainly and exclusively. The index has one entry for both.
    fn unindex_unless_held(&mut self, slot: SessionSlot, bare: &str, other_prefix: &str) {
        let session = self.core.sessions.at(slot);
        let other = match other_prefix {
            "" => session.subscriptions.get(bare).copied(),
            prefix => session.subscriptions.get(&format!("{prefix}{bare}")).copied(),
        };
        self.core.invalidate_recipients();
        match other {
            Some(held) => self.router.add(
                bare,
                Subscriber::Session(slot),
                InterestedSession {
                    identifier: held.identifier.unwrap_or(0),
                    options: held.options,
                },
            ),
            None => self.router.remove(bare, Subscriber::Session(slot)),
        }
    }

    /// Removes all subscriptions of a session that ends.
    pub(crate) fn drop_subscriptions(&mut self, now: Now, slot: SessionSlot) {
        let session = self.core.sessions.at_mut(slot);
        session.replays.clear();
        let subscriptions = std::mem::take(&mut session.subscriptions);
        self.core.stats.subscriptions -= subscriptions.len() as u64;
        for (filter, _) in subscriptions.iter() {
            self.unindex_target(now, slot, filter, None);
        }
    }

    /// Applies access rules that may have changed: removes subscriptions that they no longer allow. Messages that are
    /// already queued are checked when they are sent.
    pub(crate) fn recheck_subscriptions(&mut self, now: Now, slot: SessionSlot) {
        let session = self.core.sessions.at(slot);
        let was_filtered = self.core.sessions.link(slot).is_filtered;
        let mut denied = Vec::new();
        let mut is_filtered = false;
        if let Some(access) = &session.access {
            for (filter, _) in session.subscriptions.iter() {
                let Ok(target) = ParsedFilter::parse(filter) else {
                    continue;
                };
                match access.can_subscribe(target.filter()) {
                    SubscribeAccess::Denied => denied.push(filter.to_owned()),
                    SubscribeAccess::AllowedInPart => is_filtered = true,
                    SubscribeAccess::Allowed => {}
                }
            }
        }
        // Messages of a share group may still be in transit to a member that leaves it.
        is_filtered |= !denied.is_empty();
        let has_queued =
            session.outgoing.queued() + session.outgoing.unacknowledged() > 0 || !session.replays.is_done();
        let must_check_queue = session.access.is_some() && has_queued;
        let link = self.core.link_mut(slot);
        link.is_filtered = is_filtered;
        link.must_check_queue = must_check_queue;
        for filter in denied {
            self.unsubscribe_filter(now, slot, &filter);
        }
        if was_filtered || is_filtered {
            let (mut tick, parts) = self.split(now);
            parts.groups.announce_rights(&mut tick, slot);
        }
    }

    /// Announces to all shards that a durable session has, or no longer has, this filter. For shared subscriptions the
    /// group's home shard does that.
    fn update_durable_filter(&mut self, slot: SessionSlot, target: ParsedFilter<'_>, is_added: bool) {
        if let ParsedFilter::Plain(filter) | ParsedFilter::Exclusive(filter) = target
            && self.core.sessions.link(slot).is_durable
        {
            self.router.update_durable(filter, is_added);
        }
    }

    pub(crate) fn session_ref(&self, slot: SessionSlot) -> SessionRef {
        SessionRef {
            shard: self.core.id,
            session: slot,
            epoch: self.core.sessions.at(slot).epoch,
        }
    }
}
