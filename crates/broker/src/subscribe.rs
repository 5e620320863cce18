//! SUBSCRIBE and UNSUBSCRIBE: which filters are granted, and the updates of the subscription index.

use std::borrow::Cow;

use mqtt::{
    FilterError, Packet, PacketId, PacketType, Properties, ProtocolVersion, ReasonCode, RetainHandling, SubAck,
    Subscribe, SubscribeFilter, SubscriptionOptions, UnsubAck, Unsubscribe,
};

use crate::access::SubscribeAccess;
use crate::access_questions;
use crate::config::ShardConfig;
use crate::deliver::ShardCore;
use crate::effect::{ConnectionEvent, Effect};
use crate::exclusive::EXCLUSIVE;
use crate::fault::{Fault, is_planted};
use crate::mounted::mounted;
use crate::owners::{ExceededLimit, OwnerLimit};
use crate::parsed_filter::ParsedFilter;
use crate::retained_messages::RetainedMessages;
use crate::router::{InterestedSession, Router, Subscriber};
use crate::session::{PendingSubAck, Subscription, SubscriptionKind};
use crate::session_link::LinkFlag;
use crate::shared::{JoinRequest, ShareGroups};
use crate::slots::{ReplayNumber, SessionEpoch, SessionSlot, SubscribeTicket};
use crate::tap::{TapEvent, TapEventMask};
use crate::tick::Tick;

/// Total length of the filters of a session, because they are one record of the journal and one step of a checkpoint.
pub(crate) const FILTER_BYTES_MAX: usize = 16 << 20;

/// Why a client is disconnected whose packet the access rules deny.
pub(crate) const ACCESS_DENIED: &str = "the access rules deny this packet, and access.deny_action is disconnect";

/// A packet that violates the protocol or exceeds a limit. Its connection is closed.
pub(crate) struct Violation {
    pub code: ReasonCode,
    pub detail: Cow<'static, str>,
}

impl Violation {
    pub fn new(code: ReasonCode, detail: impl Into<Cow<'static, str>>) -> Violation {
        Violation {
            code,
            detail: detail.into(),
        }
    }
}

/// Whether the answer to a SUBSCRIBE or UNSUBSCRIBE has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerState {
    Sent,
    /// Another shard must change the index of a share group first.
    Waiting,
}

/// A subscription that a client or an operator requests.
#[derive(Clone, Copy)]
pub(crate) struct RequestedSubscription<'a> {
    pub asked: SubscribeFilter<'a>,
    /// Properties of SUBSCRIBE.
    pub properties: Properties<'a>,
    pub ticket: SubscribeTicket,
}

/// Returns why a filter is malformed, so that the connection is closed [MQTT-4.7.3-1], [MQTT-4.13.1-1] (in 3.1.1
/// [MQTT-4.8.0-1]). Shared subscriptions are not part of 3.1.1: there an invalid one is a plain filter, which only gets
/// a failure code.
fn malformed(filter: &str, is_v5: bool) -> Option<FilterError> {
    match ParsedFilter::parse(filter).err()? {
        FilterError::Shared if !is_v5 => mqtt::validate_filter(filter).err(),
        error => Some(error),
    }
}

/// Returns the SUBACK code. MQTT 3.1.1 has only one failure code [MQTT-3.9.3-2].
fn suback_code(reason: ReasonCode, is_v5: bool) -> u8 {
    match reason.is_error() && !is_v5 {
        true => 0x80,
        false => reason.to_u8(),
    }
}

impl Router {
    pub fn subscribe_received(
        &mut self,
        tick: &mut Tick<'_>,
        groups: &mut ShareGroups,
        retained: &RetainedMessages,
        slot: SessionSlot,
        subscribe: &Subscribe<'_>,
    ) -> Result<AnswerState, Violation> {
        let core = &mut *tick.core;
        core.stats.packets_received[PacketType::Subscribe as usize] += 1;
        let (session, inbox_key) = (core.sessions.at(slot), core.sessions.inbox_key(slot));
        let (is_v5, is_bridge) = (session.version == ProtocolVersion::V5, session.is_bridge);
        check_subscribe(&core.config, is_v5, inbox_key.is_some(), subscribe)?;
        let packet_id = subscribe.packet_id;
        if let Some(client) = inbox_key {
            let reasons = core.taps.inbox_subscribed(tick.now, client, subscribe);
            let reasons: Vec<u8> = reasons.into_iter().map(|reason| suback_code(reason, is_v5)).collect();
            return send_suback(core, slot, packet_id, &reasons);
        }
        let mut reasons = Vec::with_capacity(subscribe.filters.len());
        let (ticket, mut waiting) = (SubscribeTicket(tick.numbers.next()), 0);
        for mut asked in subscribe.filters.iter() {
            if is_bridge && matches!(ParsedFilter::parse(asked.filter), Ok(ParsedFilter::Plain(_))) {
                // A bridge before MQTT 5 cannot ask for these options. As in Mosquitto, the bridge flag implies them.
                asked.options.no_local = true;
                asked.options.retain_as_published = true;
            }
            let full = tick.core.sessions.at(slot).mounted_filter(asked.filter);
            let requested = RequestedSubscription {
                asked: mounted(asked, full.as_deref()),
                properties: subscribe.properties,
                ticket,
            };
            let (reason, must_wait) = self.subscribe(tick, groups, retained, slot, requested);
            if reason == ReasonCode::NotAuthorized && tick.core.config.disconnect_denied {
                return Err(Violation::new(ReasonCode::NotAuthorized, ACCESS_DENIED));
            }
            waiting += u32::from(must_wait);
            reasons.push(suback_code(reason, is_v5));
        }
        if waiting > 0 {
            tick.core.sessions.at_mut(slot).subacks.push_back(PendingSubAck {
                packet_id,
                reasons,
                kind: PacketType::SubAck,
                waiting,
                ticket,
            });
            return Ok(AnswerState::Waiting);
        }
        send_suback(tick.core, slot, packet_id, &reasons)
    }

    /// Adds or replaces one subscription. Returns the reason code for SUBACK. The second value is true if SUBACK must
    /// wait for `MailRequest::Joined` with the ticket.
    pub fn subscribe(
        &mut self,
        tick: &mut Tick<'_>,
        groups: &mut ShareGroups,
        retained: &RetainedMessages,
        slot: SessionSlot,
        requested: RequestedSubscription<'_>,
    ) -> (ReasonCode, bool) {
        let RequestedSubscription {
            asked,
            properties,
            ticket,
        } = requested;
        let identifier = properties.subscription_identifier();
        let checked = check_filter(tick.core, slot, asked.filter);
        let tap_event = TapEvent::Authorized {
            is_publish: false,
            topic: asked.filter,
            is_allowed: !matches!(checked, Err(ReasonCode::NotAuthorized)),
        };
        report(tick, slot, TapEventMask::AUTHORIZED, &tap_event);
        let target = match checked {
            Ok(target) => target,
            Err(reason) => return (reason, false),
        };
        let options = SubscriptionOptions {
            maximum_qos: asked.options.maximum_qos.min(tick.core.config.max_qos),
            ..asked.options
        };
        let subscription = Subscription {
            options,
            identifier,
            kind: target.kind(),
        };
        let is_new = tick.core.sessions.at(slot).subscriptions.get(asked.filter).is_none();
        if is_new && !count_subscription(tick, slot) {
            return (ReasonCode::QuotaExceeded, false);
        }
        if let ParsedFilter::Exclusive(filter) = target
            && !self.claim_exclusive(filter, tick.session_ref(slot))
        {
            tick.core.sessions.uncount_subscriptions(slot, usize::from(is_new));
            return (ReasonCode::QuotaExceeded, false);
        }
        let core = &mut *tick.core;
        let session = core.sessions.at_mut(slot);
        let replaced = session.subscriptions.insert(asked.filter, subscription);
        if let Some(access) = &session.access {
            access.set_subscribed(target.filter(), true);
        }
        let starts_replay = wants_replay(target, options, replaced.is_some()) && retained.has_messages(target.filter());
        let is_replaying = starts_replay || session.replays.is_pending(target.filter());
        core.ledger
            .record_subscribed(session, asked.filter, &subscription, is_replaying);
        if replaced.is_none() {
            self.update_durable_target(core, slot, target, true);
            core.stats.subscribed();
        }
        let interest = InterestedSession {
            identifier: identifier.unwrap_or(0),
            options,
        };
        let mut must_wait = false;
        match target {
            ParsedFilter::Shared(shared) => {
                let request = JoinRequest {
                    session: slot,
                    filter: shared,
                    subscription: interest,
                    ticket,
                };
                must_wait = groups.join(tick, self, request);
            }
            ParsedFilter::Plain(filter) | ParsedFilter::Exclusive(filter) => {
                core.invalidate_recipients();
                self.add(filter, Subscriber::Session(slot), interest);
                if starts_replay {
                    let number = ReplayNumber(tick.numbers.next());
                    let replay = retained.replay_of(number, filter, options, identifier);
                    core.link_mut(slot).set(LinkFlag::Replaying, true);
                    core.sessions.at_mut(slot).replays.push_back(replay);
                }
            }
        }
        let tap_event = TapEvent::Subscribed {
            filter: asked.filter,
            qos: options.maximum_qos,
            properties: properties.as_bytes(),
        };
        report(tick, slot, TapEventMask::SUBSCRIBED, &tap_event);
        let reason = match options.maximum_qos {
            mqtt::QoS::AtMostOnce => ReasonCode::Success,
            mqtt::QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
            mqtt::QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
        };
        (reason, must_wait)
    }

    pub fn unsubscribe_received(
        &mut self,
        tick: &mut Tick<'_>,
        groups: &mut ShareGroups,
        slot: SessionSlot,
        unsubscribe: &Unsubscribe<'_>,
    ) -> Result<AnswerState, Violation> {
        let core = &mut *tick.core;
        core.stats.packets_received[PacketType::Unsubscribe as usize] += 1;
        let is_v5 = core.sessions.at(slot).version == ProtocolVersion::V5;
        if let Some(error) = unsubscribe.filters.iter().find_map(|filter| malformed(filter, is_v5)) {
            return Err(Violation::new(ReasonCode::MalformedPacket, error.to_string()));
        }
        let packet_id = unsubscribe.packet_id;
        if let Some(client) = core.sessions.inbox_key(slot) {
            let mut reasons = core.taps.inbox_unsubscribed(tick.now, client, unsubscribe);
            reasons.retain(|_| is_v5);
            let reasons: Vec<u8> = reasons.into_iter().map(ReasonCode::to_u8).collect();
            return send_unsuback(core, slot, packet_id, &reasons);
        }
        let mut reasons = Vec::new();
        let (ticket, mut waiting) = (SubscribeTicket(tick.numbers.next()), 0);
        for filter in unsubscribe.filters.iter() {
            let full = tick.core.sessions.at(slot).mounted_filter(filter);
            let filter = full.as_deref().unwrap_or(filter);
            let known = tick.core.sessions.at(slot).subscriptions.get(filter);
            let qos = known.map_or(mqtt::QoS::AtMostOnce, |known| known.options.maximum_qos);
            let removed =
                ParsedFilter::parse(filter).map(|_| self.unsubscribe(tick, groups, slot, filter, Some(ticket)));
            let reason = match removed {
                Err(_) => ReasonCode::TopicFilterInvalid,
                Ok(Some(must_wait)) => {
                    waiting += u32::from(must_wait);
                    let tap_event = TapEvent::Unsubscribed {
                        filter,
                        qos,
                        properties: unsubscribe.properties.as_bytes(),
                    };
                    report(tick, slot, TapEventMask::UNSUBSCRIBED, &tap_event);
                    ReasonCode::Success
                }
                Ok(None) => ReasonCode::NoSubscriptionExisted,
            };
            if is_v5 {
                reasons.push(reason.to_u8());
            }
        }
        if waiting > 0 {
            tick.core.sessions.at_mut(slot).subacks.push_back(PendingSubAck {
                packet_id,
                reasons,
                kind: PacketType::UnsubAck,
                waiting,
                ticket,
            });
            return Ok(AnswerState::Waiting);
        }
        send_unsuback(tick.core, slot, packet_id, &reasons)
    }

    /// Removes one subscription. Returns `Some(true)` if UNSUBACK must wait for `MailRequest::Joined` with the ticket,
    /// and `None` if there was no subscription.
    pub fn unsubscribe(
        &mut self,
        tick: &mut Tick<'_>,
        groups: &mut ShareGroups,
        slot: SessionSlot,
        filter: &str,
        ticket: Option<SubscribeTicket>,
    ) -> Option<bool> {
        let core = &mut *tick.core;
        let session = core.sessions.at_mut(slot);
        session.subscriptions.remove(filter)?;
        core.stats.subscriptions -= 1;
        core.ledger.record_unsubscribed(session, filter);
        access_questions::unsubscribed(session, filter);
        core.sessions.uncount_subscriptions(slot, 1);
        Some(self.remove_target(tick, groups, slot, filter, ticket))
    }

    /// Removes a filter of a session from the index. Returns true if another shard must answer the ticket.
    fn remove_target(
        &mut self,
        tick: &mut Tick<'_>,
        groups: &mut ShareGroups,
        slot: SessionSlot,
        filter: &str,
        ticket: Option<SubscribeTicket>,
    ) -> bool {
        let Ok(target) = ParsedFilter::parse(filter) else {
            return false;
        };
        self.update_durable_target(tick.core, slot, target, false);
        match target {
            ParsedFilter::Shared(shared) => return groups.leave(tick, self, slot, shared, ticket),
            ParsedFilter::Plain(bare) => {
                tick.core.sessions.at_mut(slot).replays.remove(bare);
                self.remove_unless_held(tick.core, slot, bare, EXCLUSIVE);
            }
            ParsedFilter::Exclusive(bare) => {
                tick.core.sessions.at_mut(slot).replays.remove(bare);
                self.release_exclusive(bare, tick.session_ref(slot));
                self.remove_unless_held(tick.core, slot, bare, "");
            }
        }
        false
    }

    /// A session may hold a filter both plainly and exclusively. The index has one entry for both.
    fn remove_unless_held(&mut self, core: &mut ShardCore, slot: SessionSlot, bare: &str, other_prefix: &str) {
        let session = core.sessions.at(slot);
        let other = match other_prefix {
            "" => session.subscriptions.get(bare).copied(),
            prefix => session.subscriptions.get(&format!("{prefix}{bare}")).copied(),
        };
        core.invalidate_recipients();
        match other {
            Some(held) => self.add(
                bare,
                Subscriber::Session(slot),
                InterestedSession {
                    identifier: held.identifier.unwrap_or(0),
                    options: held.options,
                },
            ),
            None => self.remove(bare, Subscriber::Session(slot)),
        }
    }

    /// Removes all subscriptions of a session that ends.
    pub fn drop_subscriptions(&mut self, tick: &mut Tick<'_>, groups: &mut ShareGroups, slot: SessionSlot) {
        let session = tick.core.sessions.at_mut(slot);
        session.replays.clear();
        let subscriptions = std::mem::take(&mut session.subscriptions);
        tick.core.stats.subscriptions -= subscriptions.len() as u64;
        tick.core.sessions.uncount_subscriptions(slot, subscriptions.len());
        for (filter, _) in subscriptions.iter() {
            self.remove_target(tick, groups, slot, filter, None);
        }
    }

    /// Applies access rules that may have changed: removes subscriptions that they no longer allow. Messages that are
    /// already queued are checked when they are sent.
    pub fn recheck_subscriptions(&mut self, tick: &mut Tick<'_>, groups: &mut ShareGroups, slot: SessionSlot) {
        let session = tick.core.sessions.at(slot);
        access_questions::retain_decisions(session);
        let was_filtered = tick.core.sessions.link(slot).is_filtered();
        let mut denied = Vec::new();
        let mut is_filtered = false;
        if let Some(access) = &session.access {
            for (filter, _) in session.subscriptions.iter() {
                let Ok(target) = ParsedFilter::parse(filter) else {
                    continue;
                };
                match access.keeps_subscription(target.filter()) {
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
        let link = tick.core.link_mut(slot);
        link.set(LinkFlag::Filtered, is_filtered);
        link.set(LinkFlag::MustCheckQueue, must_check_queue);
        for filter in denied {
            self.unsubscribe(tick, groups, slot, &filter, None);
        }
        if was_filtered || is_filtered {
            groups.announce_rights(tick, slot);
        }
    }

    /// Announces to all shards that a durable session has, or no longer has, this filter. For shared subscriptions the
    /// group's home shard does that.
    fn update_durable_target(&mut self, core: &ShardCore, slot: SessionSlot, target: ParsedFilter<'_>, is_added: bool) {
        if let ParsedFilter::Plain(filter) | ParsedFilter::Exclusive(filter) = target
            && core.sessions.link(slot).is_durable()
        {
            self.update_durable(filter, is_added);
        }
    }
}

/// Another shard has added a shared subscription to its index, or removed it. Returns
/// whether the SUBACK or UNSUBACK that waited for that has been sent.
pub(crate) fn joined(
    tick: &mut Tick<'_>,
    slot: SessionSlot,
    epoch: SessionEpoch,
    ticket: SubscribeTicket,
) -> Result<AnswerState, Violation> {
    let Some(session) = tick.core.sessions.live(slot, epoch) else {
        return Ok(AnswerState::Waiting);
    };
    let Some(done) = session.take_answer(ticket).filter(|_| session.conn.is_some()) else {
        return Ok(AnswerState::Waiting);
    };
    match done.kind {
        PacketType::SubAck => send_suback(tick.core, slot, done.packet_id, &done.reasons),
        _ => send_unsuback(tick.core, slot, done.packet_id, &done.reasons),
    }
}

/// Checks what CONNACK and the protocol forbid in a SUBSCRIBE.
fn check_subscribe(
    config: &ShardConfig,
    is_v5: bool,
    is_for_inbox: bool,
    subscribe: &Subscribe<'_>,
) -> Result<(), Violation> {
    if subscribe.properties.subscription_identifier().is_some() {
        let code = ReasonCode::SubscriptionIdentifiersNotSupported;
        if !config.subscription_identifiers {
            return Err(Violation::new(code, "mqtt.subscription_identifiers is off"));
        }
        if is_for_inbox {
            return Err(Violation::new(code, "this client cannot use subscription identifiers"));
        }
    }
    for asked in subscribe.filters.iter() {
        if let Some(error) = malformed(asked.filter, is_v5) {
            return Err(Violation::new(ReasonCode::MalformedPacket, error.to_string()));
        }
        match ParsedFilter::parse(asked.filter) {
            Ok(ParsedFilter::Shared(_)) if asked.options.no_local => {
                // [MQTT-3.8.3-4]
                let detail = "No Local is not allowed in a shared subscription";
                return Err(Violation::new(ReasonCode::ProtocolError, detail));
            }
            Ok(target) if is_v5 => {
                if let Some((code, detail)) = missing_feature(config, target) {
                    return Err(Violation::new(code, detail));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the code and text of the DISCONNECT for a subscription that CONNACK has announced as not available (sections
/// 3.2.2.3.11 and 3.2.2.3.13 of MQTT 5.0).
fn missing_feature(config: &ShardConfig, target: ParsedFilter<'_>) -> Option<(ReasonCode, &'static str)> {
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

fn check_filter<'a>(core: &mut ShardCore, slot: SessionSlot, filter: &'a str) -> Result<ParsedFilter<'a>, ReasonCode> {
    let target = ParsedFilter::parse(filter).map_err(|_| ReasonCode::TopicFilterInvalid)?;
    let config = &core.config;
    let bare = target.filter();
    if mqtt::levels(bare).count() > config.max_topic_levels || !config.allows_characters(filter) {
        return Err(ReasonCode::TopicFilterInvalid);
    }
    if let Some((code, _)) = missing_feature(config, target) {
        return Err(code);
    }
    if matches!(target, ParsedFilter::Exclusive(_)) && (!config.exclusive_subscription || mqtt::has_wildcards(bare)) {
        return Err(ReasonCode::TopicFilterInvalid);
    }
    let session = core.sessions.at(slot);
    let subscriptions = &session.subscriptions;
    let is_full = subscriptions.len() >= config.max_subscriptions
        || subscriptions.filter_bytes() + filter.len() > FILTER_BYTES_MAX;
    if is_full && subscriptions.get(filter).is_none() {
        return Err(ReasonCode::QuotaExceeded);
    }
    match session.access.as_ref().map(|a| a.can_subscribe(bare)) {
        None | Some(SubscribeAccess::Allowed) => {}
        Some(SubscribeAccess::AllowedInPart) => core.link_mut(slot).set(LinkFlag::Filtered, true),
        Some(SubscribeAccess::Denied) => return Err(ReasonCode::NotAuthorized),
    }
    Ok(target)
}

/// Counts a new subscription of a session for its user. Returns false at the limit of the user, and counts and reports
/// that.
fn count_subscription(tick: &mut Tick<'_>, slot: SessionSlot) -> bool {
    let core = &mut *tick.core;
    let max = core.config.shares.user.subscriptions;
    let Some(holding) = core.sessions.holding_mut(slot) else {
        return true;
    };
    if holding.try_add_subscription(max) {
        return true;
    }
    let limit = OwnerLimit::Subscriptions;
    core.stats.limit_rejections[limit as usize] += 1;
    let now_ms = tick.now.monotonic_ms;
    let reported = holding.user().filter(|user| user.can_report(now_ms));
    let owner = reported.map(|user| Box::from(user.name()));
    if let Some(owner) = owner {
        core.effects.push(Effect::Event(ConnectionEvent::OverLimit {
            client_id: core.sessions.at(slot).client_id.clone(),
            owner,
            exceeded: ExceededLimit {
                limit,
                option: "limits.max_subscriptions_per_user",
            },
        }));
    }
    false
}

/// Returns whether retained messages must be sent [MQTT-3.3.1-9] to [MQTT-3.3.1-11], if there are any.
fn wants_replay(target: ParsedFilter<'_>, options: SubscriptionOptions, existed: bool) -> bool {
    let is_wanted = match options.retain_handling {
        RetainHandling::SendAtSubscribe => true,
        RetainHandling::SendIfNew => !existed,
        RetainHandling::DoNotSend => false,
    };
    is_wanted && target.kind() != SubscriptionKind::Shared
}

fn report(tick: &mut Tick<'_>, slot: SessionSlot, wanted: TapEventMask, tap_event: &TapEvent<'_>) {
    let session = tick.core.sessions.at(slot);
    tick.core.taps.session_event(tick.now, session, wanted, tap_event);
}

fn send_suback(
    core: &mut ShardCore,
    slot: SessionSlot,
    packet_id: PacketId,
    reasons: &[u8],
) -> Result<AnswerState, Violation> {
    // [MQTT-3.8.4-1], [MQTT-3.8.4-2], [MQTT-3.8.4-5]
    let suback = Packet::SubAck(SubAck {
        packet_id,
        properties: Properties::EMPTY,
        reasons,
    });
    match send_answer(core, slot, &suback) {
        true => Ok(AnswerState::Sent),
        false => {
            let detail = "SUBACK exceeds the client's Maximum Packet Size";
            Err(Violation::new(ReasonCode::PacketTooLarge, detail))
        }
    }
}

fn send_unsuback(
    core: &mut ShardCore,
    slot: SessionSlot,
    packet_id: PacketId,
    reasons: &[u8],
) -> Result<AnswerState, Violation> {
    // [MQTT-3.10.4-4], [MQTT-3.11.3-1]
    let unsuback = Packet::UnsubAck(UnsubAck {
        packet_id,
        properties: Properties::EMPTY,
        reasons,
    });
    match send_answer(core, slot, &unsuback) {
        true => Ok(AnswerState::Sent),
        false => {
            let detail = "UNSUBACK exceeds the client's Maximum Packet Size";
            Err(Violation::new(ReasonCode::PacketTooLarge, detail))
        }
    }
}

/// Sends the answer of a connected session. It waits for the commit of the subscriptions of a durable session. Returns
/// false if it is too large.
fn send_answer(core: &mut ShardCore, slot: SessionSlot, packet: &Packet<'_>) -> bool {
    let link = core.sessions.link(slot);
    if link.is_durable() && !is_planted(Fault::SubackBeforeCommit) {
        core.hold_until_committed(link.conn);
    }
    core.send(link.conn, packet)
}
