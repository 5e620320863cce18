//! A session: the state that the server stores for a client id, connected or not [MQTT-4.1.0-1].
//!
//! The home shard of the client id owns it. An idle session without subscriptions is one allocation of some 300 bytes
//! plus its names. Rarely needed parts are behind pointers that are null in most sessions.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use mqtt::{Connect, Disconnect, PacketId, PacketType, ProtocolVersion, QoS, ReasonCode, SubscriptionOptions};

use crate::access::{ClientIdentity, LoginGrant, SessionAccess};
use crate::address::CompactAddress;
use crate::config::ShardConfig;
use crate::delivery::Delivery;
use crate::durable::record::SessionKey;
use crate::effect::Peer;
use crate::exclusive::EXCLUSIVE;
use crate::inbox::InboxKey;
use crate::lazy_deque::LazyDeque;
use crate::mountpoint::Mountpoint;
use crate::outgoing::OutgoingMessages;
use crate::owners::UserAccount;
use crate::queued_bytes::QueuedBytes;
use crate::receive_window::ReceivedIds;
use crate::retained::ScanCursor;
use crate::slots::{ConnectNumber, ReplayNumber, SessionEpoch, SubscribeTicket};
use crate::tap::GrantedConnect;
use crate::timers::SessionDeadline;
use crate::{ConnSlot, DisconnectReason, DropReason, Now, ShardId};

pub struct Session {
    pub client_id: Box<str>,
    pub user_name: Option<Box<str>>,
    /// Address of the last CONNECT. Access decisions and limits use it. `current_address` may be another one.
    pub address: CompactAddress,
    /// Listener of the last connection since the server was started.
    pub listener: Option<u16>,
    /// Distinguishes this session from earlier ones in the same slot.
    pub epoch: SessionEpoch,
    pub conn: Option<ConnSlot>,
    pub version: ProtocolVersion,
    pub is_superuser: bool,
    pub is_bridge: bool,
    pub clean_start: bool,
    /// Whether acknowledgements may have a reason string [MQTT-3.1.2-29].
    pub wants_problem_information: bool,
    pub keep_alive_s: u16,
    /// The client's Receive Maximum, at most `max_inflight`.
    pub window: u16,
    pub expiry_s: u32,
    /// Number of the current or last connection, unique in the shard. Timers of earlier connections, also of earlier
    /// sessions in the slot, are ignored.
    pub connect_number: ConnectNumber,
    pub connected_at_ms: u64,
    pub disconnected_at_ms: u64,
    /// End of the last connection in monotonic milliseconds. Session expiry and will delay count from here.
    pub left_at_ms: u64,
    pub created_at_ms: u64,
    pub last_disconnect: Option<DisconnectReason>,
    pub will: Option<Box<SessionWill>>,
    pub subscriptions: FilterMap<Subscription>,
    pub access: Option<Arc<dyn SessionAccess>>,
    pub outgoing: OutgoingMessages,
    pub received: ReceivedIds,
    pub replays: Replays,
    rare: Option<Box<RareParts>>,
    pub messages_received: u64,
    pub bytes_received: u64,
    /// The session is in `ShardCore::unfinished`.
    pub is_unfinished: bool,
    pub subacks: LazyDeque<PendingSubAck>,
    /// Key in the journal; 0 if the session is not durable.
    pub key: SessionKey,
    /// The session is in `PendingRecords::eviction_candidates`.
    pub is_eviction_scheduled: bool,
}

impl Session {
    /// Creates a session. The caller sets the terms of the CONNECT.
    pub fn new(now: Now, client_id: &str, address: SocketAddr, epoch: SessionEpoch) -> Session {
        Session {
            client_id: client_id.into(),
            user_name: None,
            address: address.into(),
            listener: None,
            epoch,
            conn: None,
            version: ProtocolVersion::V3_1_1,
            is_superuser: false,
            is_bridge: false,
            clean_start: true,
            wants_problem_information: true,
            keep_alive_s: 0,
            window: 0,
            expiry_s: 0,
            connect_number: ConnectNumber::default(),
            connected_at_ms: now.unix_ms,
            disconnected_at_ms: 0,
            left_at_ms: 0,
            created_at_ms: now.unix_ms,
            last_disconnect: None,
            will: None,
            subscriptions: FilterMap::default(),
            access: None,
            outgoing: OutgoingMessages::default(),
            received: ReceivedIds::default(),
            replays: Replays::default(),
            rare: None,
            messages_received: 0,
            bytes_received: 0,
            is_unfinished: false,
            subacks: LazyDeque::default(),
            key: SessionKey::default(),
            is_eviction_scheduled: false,
        }
    }

    /// Attaches a connection with the terms of an accepted CONNECT. Requires that the session has none.
    pub(crate) fn attach(&mut self, terms: ConnectTerms<'_>) {
        let ConnectTerms { connect, granted, .. } = terms;
        self.conn = Some(terms.conn);
        self.address = terms.peer.address.into();
        self.set_current_address(None);
        self.listener = Some(terms.peer.listener);
        self.version = connect.version;
        self.user_name = connect.user_name.map(Into::into);
        self.is_superuser = terms.is_superuser;
        self.set_grant(terms.grant);
        self.set_mountpoint(terms.mountpoint);
        self.is_bridge = connect.is_bridge;
        self.clean_start = connect.clean_start;
        self.wants_problem_information = connect.properties.request_problem_information().unwrap_or(true);
        self.keep_alive_s = granted.keep_alive_s;
        let receive_maximum = connect.properties.receive_maximum().unwrap_or(u16::MAX);
        self.window = receive_maximum.min(terms.max_inflight).max(1);
        self.expiry_s = granted.expiry_s;
        self.connect_number = terms.number;
        self.connected_at_ms = terms.now.unix_ms;
        self.outgoing.sent = 0;
        if let Some(cold) = &mut self.outgoing.cold {
            cold.entries.end_fetch();
        }
        let will = connect.will.as_ref();
        self.will = will.map(|will| Box::new(SessionWill::from_connect(will, self.mountpoint())));
    }

    /// Applies DISCONNECT of the client. Returns why the connection ends; `None` if the packet is not allowed
    /// [MQTT-3.14.2-2].
    pub(crate) fn disconnect_received(&mut self, sent: &Disconnect<'_>, expiry_s_max: u32) -> Option<DisconnectReason> {
        if let Some(expiry_s) = sent.properties.session_expiry_interval() {
            if self.expiry_s == 0 && expiry_s > 0 {
                return None;
            }
            self.expiry_s = expiry_s.min(expiry_s_max);
        }
        if sent.reason == ReasonCode::Success {
            // [MQTT-3.14.4-3]
            self.will = None;
            return Some(DisconnectReason::ByClient);
        }
        Some(DisconnectReason::ByClientWithWill)
    }

    /// Detaches the connection. `number` is called if a request for retained messages needs a new number.
    pub(crate) fn detach(&mut self, now: Now, reason: DisconnectReason, number: impl FnOnce() -> ReplayNumber) {
        self.conn = None;
        self.disconnected_at_ms = now.unix_ms;
        self.left_at_ms = now.monotonic_ms;
        self.last_disconnect = Some(reason);
        self.subacks.take();
        self.replays.forget_request(number);
    }

    /// One of the share groups that an answer waits for is done. Returns the SUBACK or UNSUBACK if it was the last one.
    pub(crate) fn take_answer(&mut self, ticket: SubscribeTicket) -> Option<PendingSubAck> {
        let at = self.subacks.iter().position(|answer| answer.ticket == ticket)?;
        self.subacks[at].waiting -= 1;
        match self.subacks[at].waiting {
            0 => self.subacks.remove(at),
            _ => None,
        }
    }

    /// Returns whether the session is offline, and has not been connected since this connection.
    pub(crate) fn is_offline_since(&self, connect_number: ConnectNumber) -> bool {
        self.connect_number == connect_number && self.conn.is_none()
    }

    /// Returns when a deadline of a disconnected session passes; `None` for never. `exclusive_release_ms` is the time
    /// after which exclusive subscriptions are released.
    pub(crate) fn deadline_ms(&self, deadline: SessionDeadline, exclusive_release_ms: Option<u64>) -> Option<u64> {
        match deadline {
            SessionDeadline::Will => self.will_due_ms(),
            SessionDeadline::ExclusiveRelease => {
                let release_ms = exclusive_release_ms?;
                self.exclusive_filters().next()?;
                Some(self.left_at_ms.saturating_add(release_ms))
            }
            SessionDeadline::Expiry => self.expires_at_ms(),
        }
    }

    /// Returns the filters of the exclusive subscriptions.
    pub(crate) fn exclusive_filters(&self) -> impl Iterator<Item = &str> {
        let filters = self.subscriptions.iter().map(|(filter, _)| filter);
        filters.filter(|filter| filter.starts_with(EXCLUSIVE))
    }

    pub fn identity(&self) -> ClientIdentity {
        ClientIdentity {
            client_id: self.client_id.clone(),
            user_name: self.user_name.clone(),
            address: self.address.get().ip(),
            is_superuser: self.is_superuser,
            grant: self.grant().clone(),
            mountpoint: self.mountpoint().cloned(),
        }
    }

    /// Returns the address of the client, for operators, rules and traces.
    #[inline]
    pub fn current_address(&self) -> SocketAddr {
        let moved_to = self.rare.as_ref().and_then(|rare| rare.moved_to);
        moved_to.unwrap_or(self.address).get()
    }

    /// Sets the address to which the client has moved. `None`: that of CONNECT.
    pub(crate) fn set_current_address(&mut self, address: Option<SocketAddr>) {
        if address.is_some() || self.rare.is_some() {
            self.rare.get_or_insert_default().moved_to = address.map(CompactAddress::from);
        }
    }

    /// Returns whether this is the session of a data stream.
    pub fn is_data_stream(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.client_epoch.is_some())
    }

    /// Returns the epoch of the client's own session. All data streams of a client publish under it.
    #[inline]
    pub fn client_epoch(&self) -> SessionEpoch {
        let of_client = self.rare.as_ref().and_then(|rare| rare.client_epoch);
        of_client.unwrap_or(self.epoch)
    }

    pub(crate) fn set_client_epoch(&mut self, epoch: SessionEpoch) {
        self.rare.get_or_insert_default().client_epoch = Some(epoch);
    }

    /// Returns the grant of the last login.
    pub fn grant(&self) -> &LoginGrant {
        self.rare.as_ref().map_or(&LoginGrant::None, |rare| &rare.grant)
    }

    pub fn set_grant(&mut self, grant: LoginGrant) {
        if grant.is_some() || self.rare.is_some() {
            self.rare.get_or_insert_default().grant = grant;
        }
    }

    /// Returns the prefix of the client's topics.
    #[inline]
    pub fn mountpoint(&self) -> Option<&Mountpoint> {
        self.rare.as_ref()?.mountpoint.as_ref()
    }

    pub fn set_mountpoint(&mut self, mountpoint: Option<Mountpoint>) {
        if mountpoint.is_some() || self.rare.is_some() {
            self.rare.get_or_insert_default().mountpoint = mountpoint;
        }
    }

    /// Returns whether the login has a grant that denies the will. Such a will is dropped at once: a restart forgets
    /// the grant, and the will could be published after it.
    pub fn has_denied_will(&self) -> bool {
        let Some(will) = self.will.as_ref().filter(|_| self.grant().is_some()) else {
            return false;
        };
        let access = self.access.as_ref();
        access.is_some_and(|access| !access.can_publish_will(&will.topic, will.qos, will.retain))
    }

    /// Returns the messages that were not delivered; `None` if all were.
    pub fn drops(&self) -> Option<&DropCounts> {
        let drops = self.rare.as_ref().map(|rare| &rare.drops);
        drops.filter(|drops| drops.last.is_some())
    }

    /// Returns the address if it is the owner of the session: that of a client without a user name. `None` if it is
    /// unknown.
    pub fn owner_address(&self) -> Option<IpAddr> {
        let address = self.address.get().ip();
        (self.user_name.is_none() && !address.is_unspecified()).then_some(address)
    }

    /// Counts the queued messages and those held for replays for another user. `None`: for no user.
    pub(crate) fn count_queue_for(&mut self, user: Option<Arc<UserAccount>>) {
        self.replays.count_for(user.clone());
        self.outgoing.queued_bytes.count_for(user);
    }

    /// Returns the bytes of the client id, the will and the attributes.
    pub fn holding_bytes(&self) -> usize {
        let will_bytes = self.will.as_ref().map_or(0, |will| will.bytes());
        self.client_id.len() + will_bytes + self.grant().attribute_bytes()
    }

    /// Returns the key of an inbox client.
    pub fn inbox_key(&self) -> Option<InboxKey> {
        self.access.as_ref()?.inbox_key()
    }

    /// Returns whether the access rules allow the delivery of a message.
    pub fn can_receive(&self, topic: &str) -> bool {
        self.access.as_ref().is_none_or(|access| access.can_receive(topic))
    }

    /// Returns when a disconnected session expires; `None` for never [MQTT-3.1.2-23].
    pub fn expires_at_ms(&self) -> Option<u64> {
        (self.expiry_s != u32::MAX).then(|| self.left_at_ms + u64::from(self.expiry_s) * 1000)
    }

    /// Returns when the will of a disconnected session is due.
    pub fn will_due_ms(&self) -> Option<u64> {
        let will = self.will.as_ref()?;
        Some(self.left_at_ms + u64::from(will.delay_s) * 1000)
    }

    pub fn count_drop(&mut self, reason: DropReason, at_ms: u64) -> bool {
        let drops = &mut self.rare.get_or_insert_default().drops;
        let count = &mut drops.by_reason[reason as usize];
        let is_first = *count == 0;
        *count = count.saturating_add(1);
        drops.last = Some((reason, at_ms));
        is_first
    }
}

/// The terms with which a client connects.
pub(crate) struct ConnectTerms<'a> {
    pub now: Now,
    pub conn: ConnSlot,
    pub peer: &'a Peer,
    pub number: ConnectNumber,
    pub max_inflight: u16,
    pub connect: &'a Connect<'a>,
    pub granted: GrantedConnect,
    pub is_superuser: bool,
    pub grant: LoginGrant,
    pub mountpoint: Option<Mountpoint>,
}

/// Parts that most sessions do not have.
#[derive(Default)]
struct RareParts {
    grant: LoginGrant,
    mountpoint: Option<Mountpoint>,
    drops: DropCounts,
    /// The address to which the client has moved since CONNECT.
    moved_to: Option<CompactAddress>,
    /// For the session of a data stream: epoch of the client's own session.
    client_epoch: Option<SessionEpoch>,
}

/// Counters of messages that were not delivered to a session, per reason.
#[derive(Debug, Default, Clone)]
pub struct DropCounts {
    pub by_reason: [u32; DropReason::COUNT],
    /// Reason and monotonic time of the last drop.
    pub last: Option<(DropReason, u64)>,
}

impl DropCounts {
    pub fn counted(&self) -> Vec<(DropReason, u32)> {
        DropReason::ALL
            .into_iter()
            .zip(self.by_reason)
            .filter(|(_, n)| *n > 0)
            .collect()
    }

    pub fn total(&self) -> u64 {
        self.by_reason.into_iter().map(u64::from).sum()
    }
}

/// A SUBACK or UNSUBACK that waits until another shard has changed the index of a shared subscription. Afterwards every
/// message published after the SUBACK is delivered, and none after the UNSUBACK.
#[derive(Debug)]
pub struct PendingSubAck {
    pub packet_id: PacketId,
    pub reasons: Vec<u8>,
    pub kind: PacketType,
    pub waiting: u32,
    /// Ticket of the requests whose answers it waits for.
    pub ticket: SubscribeTicket,
}

/// Will Message of the current or last connection [MQTT-3.1.2-7].
#[derive(Debug, Clone)]
pub struct SessionWill {
    pub topic: Box<str>,
    pub payload: Box<[u8]>,
    /// Forwarded properties in wire format.
    pub properties: Box<[u8]>,
    pub qos: QoS,
    pub retain: bool,
    pub delay_s: u32,
    pub message_expiry_s: Option<u32>,
}

impl SessionWill {
    pub(crate) fn from_connect(will: &mqtt::Will<'_>, mountpoint: Option<&Mountpoint>) -> SessionWill {
        let mut properties = Vec::new();
        will.properties.append_forwarded(&mut properties);
        let topic = mountpoint.map(|mountpoint| mountpoint.will_topic(will.topic));
        SessionWill {
            topic: topic.map_or_else(|| will.topic.into(), String::into_boxed_str),
            payload: will.payload.into(),
            properties: properties.into(),
            qos: will.qos,
            retain: will.retain,
            delay_s: will.properties.will_delay_interval().unwrap_or(0),
            message_expiry_s: will.properties.message_expiry_interval(),
        }
    }

    pub fn bytes(&self) -> usize {
        self.topic.len() + self.payload.len() + self.properties.len()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscriptionKind {
    Plain,
    Shared,
    Exclusive,
}

/// A subscription of a session. Its key is the filter as sent by the client.
#[derive(Debug, Clone, Copy)]
pub struct Subscription {
    pub options: SubscriptionOptions,
    pub identifier: Option<u32>,
    pub kind: SubscriptionKind,
}

/// Replays of retained messages of a session, and the live messages that must not overtake them.
#[derive(Debug, Default)]
pub struct Replays(Option<Box<PendingReplays>>);

/// A client may have as many replays as subscriptions, so no method iterates over all of them.
#[derive(Debug, Default)]
struct PendingReplays {
    /// In order of request.
    replays: BTreeMap<u64, RetainedReplay>,
    /// Key of the replay of each filter.
    by_filter: BTreeMap<Box<str>, u64>,
    last_number: u64,
    held: VecDeque<Delivery>,
    held_bytes: QueuedBytes,
}

const REPLAYS_MATCHED_MAX: usize = 16;

impl Replays {
    /// Returns whether there are neither replays nor held messages.
    pub fn is_done(&self) -> bool {
        self.0.is_none()
    }

    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Returns the active replay. The others wait for it.
    pub fn first(&self) -> Option<&RetainedReplay> {
        Some(self.0.as_ref()?.replays.first_key_value()?.1)
    }

    fn first_mut(&mut self) -> Option<&mut RetainedReplay> {
        Some(self.0.as_mut()?.replays.first_entry()?.into_mut())
    }

    /// The active replay has asked another shard.
    pub fn await_answer(&mut self) {
        if let Some(first) = self.first_mut() {
            first.is_waiting = true;
        }
    }

    /// Returns the active replay if it waits for the answer to this request.
    pub fn awaiting(&self, number: ReplayNumber) -> Option<&RetainedReplay> {
        self.first().filter(|first| first.number == number && first.is_waiting)
    }

    /// The client has disconnected. The active replay does not wait any more, and gets a new number, so that the late
    /// answer is not taken for one to the next connection's request.
    pub fn forget_request(&mut self, number: impl FnOnce() -> ReplayNumber) {
        if let Some(first) = self.first_mut().filter(|first| first.is_waiting) {
            first.number = number();
            first.is_waiting = false;
        }
    }

    /// Returns the replays that wait for the active one, in order.
    pub fn following(&self) -> impl Iterator<Item = &RetainedReplay> {
        self.0.iter().flat_map(|pending| pending.replays.values().skip(1))
    }

    /// Returns the replay of a filter if it has this number.
    pub fn numbered_mut(&mut self, filter: &str, number: ReplayNumber) -> Option<&mut RetainedReplay> {
        let pending = self.0.as_mut()?;
        let key = pending.by_filter.get(filter)?;
        let replay = pending.replays.get_mut(key)?;
        Some(replay).filter(|replay| replay.number == number)
    }

    /// Appends a replay. Removes an unfinished replay of the same filter.
    pub fn push_back(&mut self, replay: RetainedReplay) {
        let pending = self.0.get_or_insert_default();
        pending.last_number += 1;
        if let Some(before) = pending.by_filter.insert(replay.filter.clone(), pending.last_number) {
            pending.replays.remove(&before);
        }
        pending.replays.insert(pending.last_number, replay);
    }

    /// Returns whether retained messages of this filter (without `$exclusive/`) must still be sent.
    pub fn is_pending(&self, filter: &str) -> bool {
        self.0
            .as_ref()
            .is_some_and(|pending| pending.by_filter.contains_key(filter))
    }

    pub fn remove(&mut self, filter: &str) -> Option<RetainedReplay> {
        let pending = self.0.as_mut()?;
        let key = pending.by_filter.remove(filter)?;
        pending.replays.remove(&key)
    }

    pub fn clear(&mut self) {
        if let Some(pending) = &mut self.0 {
            pending.replays.clear();
            pending.by_filter.clear();
        }
    }

    /// Holds a message that must not overtake a replay. It counts for the user of the session's queue. Returns false if
    /// the limits are reached.
    pub fn hold(&mut self, delivery: Delivery, queue: &QueuedBytes, config: &ShardConfig) -> bool {
        let pending = self.0.get_or_insert_default();
        if pending.held.is_empty() {
            pending.held_bytes.count_for(queue.user().cloned());
        }
        let bytes = delivery.stored_bytes();
        let has_space = pending.held.len() < config.max_queued_messages
            && pending.held_bytes.get() + bytes <= config.max_queued_bytes
            && pending.held_bytes.try_add(bytes, config.shares.user.queued_bytes);
        if has_space {
            pending.held.push_back(delivery);
        }
        has_space
    }

    fn count_for(&mut self, user: Option<Arc<UserAccount>>) {
        if let Some(pending) = &mut self.0 {
            pending.held_bytes.count_for(user);
        }
    }

    /// Returns whether a live message of this topic must be held, because a replay may deliver an older one or older
    /// live messages are held [MQTT-4.6.0-5]. With many replays it returns true without checking them.
    pub fn must_wait(&self, topic: &str) -> bool {
        self.0.as_ref().is_some_and(|pending| {
            let mut replays = pending.replays.values();
            !pending.held.is_empty()
                || pending.replays.len() > REPLAYS_MATCHED_MAX
                || replays.any(|r| mqtt::filter_matches(&r.filter, topic))
        })
    }

    /// Returns the number and the bytes of held messages.
    pub fn held(&self) -> (usize, usize) {
        let pending = self.0.as_ref();
        pending.map_or((0, 0), |pending| (pending.held.len(), pending.held_bytes.get()))
    }

    pub fn held_messages(&self) -> impl Iterator<Item = &Delivery> {
        self.0.iter().flat_map(|pending| &pending.held)
    }

    /// Removes and returns the held messages, in order.
    pub fn release(&mut self) -> VecDeque<Delivery> {
        let Some(pending) = &mut self.0 else {
            return VecDeque::new();
        };
        pending.held_bytes = QueuedBytes::default();
        let held = std::mem::take(&mut pending.held);
        if pending.replays.is_empty() {
            self.0 = None;
        }
        held
    }
}

/// Retained messages for a new subscription, sent in batches as fast as the connection accepts them.
#[derive(Debug, Clone)]
pub struct RetainedReplay {
    pub filter: Box<str>,
    pub options: SubscriptionOptions,
    pub identifier: Option<u32>,
    /// Shard whose retained messages are being read.
    pub shard: ShardId,
    pub cursor: Option<ScanCursor>,
    /// Waits for the answer of another shard.
    pub is_waiting: bool,
    pub number: ReplayNumber,
}

impl RetainedReplay {
    /// Continues with another batch: at the cursor, or at the start of a shard.
    pub fn advance(&mut self, shard: ShardId, cursor: Option<ScanCursor>) {
        self.is_waiting = false;
        self.cursor = cursor;
        self.shard = shard;
    }
}

/// A map from the filters of a session: a list while it is small, a sorted map when it is large. The order is the same
/// in every run, and no choice of filters makes it slow.
// The map is boxed so that it does not enlarge sessions that do not use it.
#[derive(Debug)]
pub enum FilterMap<V> {
    /// Without slack, because most sessions have one filter.
    Few(Box<[(Box<str>, V)]>),
    Many(Box<ManyFilters<V>>),
}

#[derive(Debug)]
pub struct ManyFilters<V> {
    map: BTreeMap<Box<str>, V>,
    /// Total length of all filters.
    bytes: usize,
}

const FEW_MAX: usize = 24;

impl<V> Default for FilterMap<V> {
    fn default() -> Self {
        FilterMap::Few(Box::default())
    }
}

impl<V> FilterMap<V> {
    pub fn len(&self) -> usize {
        match self {
            FilterMap::Few(few) => few.len(),
            FilterMap::Many(many) => many.map.len(),
        }
    }

    /// Returns the total length of all filters.
    pub fn filter_bytes(&self) -> usize {
        match self {
            FilterMap::Few(few) => few.iter().map(|(filter, _)| filter.len()).sum(),
            FilterMap::Many(many) => many.bytes,
        }
    }

    pub fn get(&self, filter: &str) -> Option<&V> {
        match self {
            FilterMap::Few(few) => few.iter().find(|(have, _)| &**have == filter).map(|(_, v)| v),
            FilterMap::Many(many) => many.map.get(filter),
        }
    }

    pub fn get_mut(&mut self, filter: &str) -> Option<&mut V> {
        match self {
            FilterMap::Few(few) => few.iter_mut().find(|(have, _)| &**have == filter).map(|(_, v)| v),
            FilterMap::Many(many) => many.map.get_mut(filter),
        }
    }

    /// Returns the replaced value.
    pub fn insert(&mut self, filter: &str, value: V) -> Option<V> {
        let few = match self {
            FilterMap::Many(many) => return many.insert(filter, value),
            FilterMap::Few(few) => few,
        };
        if let Some((_, have)) = few.iter_mut().find(|(have, _)| &**have == filter) {
            return Some(std::mem::replace(have, value));
        }
        let mut list = std::mem::take(few).into_vec();
        list.reserve_exact(1);
        list.push((filter.into(), value));
        *self = match list.len() > FEW_MAX {
            true => FilterMap::Many(Box::new(ManyFilters {
                bytes: list.iter().map(|(filter, _)| filter.len()).sum(),
                map: list.into_iter().collect(),
            })),
            false => FilterMap::Few(list.into()),
        };
        None
    }

    pub fn remove(&mut self, filter: &str) -> Option<V> {
        match self {
            FilterMap::Many(many) => {
                let removed = many.remove(filter);
                if many.map.is_empty() {
                    *self = FilterMap::default();
                }
                removed
            }
            FilterMap::Few(few) => {
                let at = few.iter().position(|(have, _)| &**have == filter)?;
                let mut list = std::mem::take(few).into_vec();
                let removed = list.swap_remove(at).1;
                *few = list.into();
                Some(removed)
            }
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        let (few, many) = match self {
            FilterMap::Few(few) => (&few[..], None),
            FilterMap::Many(many) => (&[][..], Some(many)),
        };
        let many = many
            .into_iter()
            .flat_map(|many| many.map.iter().map(|(k, v)| (&**k, v)));
        few.iter().map(|(k, v)| (&**k, v)).chain(many)
    }
}

/// The order does not count.
impl<V: PartialEq> PartialEq for FilterMap<V> {
    fn eq(&self, other: &FilterMap<V>) -> bool {
        self.len() == other.len() && self.iter().all(|(filter, value)| other.get(filter) == Some(value))
    }
}

impl<V> ManyFilters<V> {
    fn insert(&mut self, filter: &str, value: V) -> Option<V> {
        let replaced = self.map.insert(filter.into(), value);
        if replaced.is_none() {
            self.bytes += filter.len();
        }
        replaced
    }

    fn remove(&mut self, filter: &str) -> Option<V> {
        let removed = self.map.remove(filter)?;
        self.bytes -= filter.len();
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_size_stays_small() {
        assert!(size_of::<Session>() <= 304, "{} bytes", size_of::<Session>());
    }

    #[test]
    fn filter_map_works_as_list_and_as_map() {
        assert_eq!(size_of::<FilterMap<Subscription>>(), 16);
        for count in [1, FEW_MAX, 3 * FEW_MAX] {
            let mut map = FilterMap::default();
            for n in 0..count {
                assert_eq!(map.insert(&format!("f/{n}"), n), None);
                assert_eq!((map.insert(&format!("f/{n}"), n + 1), map.len()), (Some(n), n + 1));
            }
            assert_eq!(map.iter().map(|(_, n)| n).sum::<usize>(), count * (count + 1) / 2);
            let bytes = |map: &FilterMap<usize>| map.iter().map(|(filter, _)| filter.len()).sum::<usize>();
            assert_eq!(map.filter_bytes(), bytes(&map));
            for n in (0..count).rev() {
                assert_eq!(map.get(&format!("f/{n}")), Some(&(n + 1)));
                assert_eq!(map.remove(&format!("f/{n}")), Some(n + 1));
                assert_eq!((map.remove(&format!("f/{n}")), map.len()), (None, n));
                assert_eq!(map.filter_bytes(), bytes(&map));
            }
        }
    }
}
