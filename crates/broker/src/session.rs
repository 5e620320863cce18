//! A session: all that the server keeps for a client id, connected or not [MQTT-4.1.0-1].
//!
//! Owned by the home shard of its client id. An idle session without subscriptions is one allocation of some 300 bytes
//! besides its names; everything that only some sessions need is behind a pointer that is empty for the others.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use mqtt::{PacketId, PacketType, ProtocolVersion, QoS, SubscriptionOptions};

use crate::access::{Identity, SessionAccess};
use crate::address::KeptAddress;
use crate::device::DeviceKey;
use crate::durable::record::SessionKey;
use crate::lazy_deque::LazyDeque;
use crate::outgoing::{Delivery, Outgoing};
use crate::receive_window::ReceivedIds;
use crate::retained::ScanCursor;
use crate::{ConnSlot, DisconnectReason, DropReason, Now, ShardId};

pub struct Session {
    pub client_id: Box<str>,
    pub user_name: Option<Box<str>>,
    pub address: KeptAddress,
    /// That the client came through last, since the server was started.
    pub listener: Option<u16>,
    /// Tells this session from an earlier one in the same slot.
    pub epoch: u32,
    pub conn: Option<ConnSlot>,
    pub version: ProtocolVersion,
    pub is_superuser: bool,
    pub is_bridge: bool,
    pub clean_start: bool,
    /// Whether reason strings may be sent in acknowledgements [MQTT-3.1.2-29].
    pub wants_problem_information: bool,
    pub keep_alive_s: u16,
    /// The client's Receive Maximum, limited by `inflight_max`.
    pub window: u16,
    pub expiry_s: u32,
    /// Tells the present or last connection from all others of the shard, so that timers of an earlier one, of this session
    /// or of an earlier session in the slot, do nothing.
    pub connects: u32,
    pub connected_at_ms: u64,
    pub disconnected_at_ms: u64,
    /// When the last connection ended, in monotonic milliseconds: what the expiry and the will's delay count from.
    pub left_at_ms: u64,
    pub created_at_ms: u64,
    pub last_disconnect: Option<DisconnectReason>,
    pub will: Option<Box<Will>>,
    pub subscriptions: FilterMap<Subscription>,
    pub access: Option<Arc<dyn SessionAccess>>,
    pub outgoing: Outgoing,
    pub received: ReceivedIds,
    pub replays: Replays,
    pub drops: Option<Box<Drops>>,
    pub messages_received: u64,
    pub bytes_received: u64,
    /// In `Core::unfinished`.
    pub is_unfinished: bool,
    pub subacks: LazyDeque<PendingSubAck>,
    /// Its name in the journal; none while it ends with its connection, or where there is no journal.
    pub key: SessionKey,
    /// In `Ledger::cooling`.
    pub is_cooling: bool,
}

impl Session {
    /// Of a client that has none; the terms of its CONNECT are still to come.
    pub fn new(now: Now, client_id: &str, address: SocketAddr, epoch: u32) -> Session {
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
            connects: 0,
            connected_at_ms: now.unix_ms,
            disconnected_at_ms: 0,
            left_at_ms: 0,
            created_at_ms: now.unix_ms,
            last_disconnect: None,
            will: None,
            subscriptions: FilterMap::default(),
            access: None,
            outgoing: Outgoing::default(),
            received: ReceivedIds::default(),
            replays: Replays::default(),
            drops: None,
            messages_received: 0,
            bytes_received: 0,
            is_unfinished: false,
            subacks: LazyDeque::default(),
            key: SessionKey::default(),
            is_cooling: false,
        }
    }

    pub fn identity(&self) -> Identity {
        Identity {
            client_id: self.client_id.clone(),
            user_name: self.user_name.clone(),
            address: self.address.get().ip(),
            is_superuser: self.is_superuser,
        }
    }

    /// The device whose session this is.
    pub fn device(&self) -> Option<DeviceKey> {
        self.access.as_ref()?.device()
    }

    /// When a session without a connection ends; `None` for never [MQTT-3.1.2-23].
    pub fn expires_at_ms(&self) -> Option<u64> {
        (self.expiry_s != u32::MAX).then(|| self.left_at_ms + u64::from(self.expiry_s) * 1000)
    }

    /// When the will of a session without a connection is due, if it has one.
    pub fn will_due_ms(&self) -> Option<u64> {
        let will = self.will.as_ref()?;
        Some(self.left_at_ms + u64::from(will.delay_s) * 1000)
    }

    pub fn count_drop(&mut self, reason: DropReason, at_ms: u64) -> bool {
        let drops = self.drops.get_or_insert_default();
        let count = &mut drops.by_reason[reason as usize];
        let is_first = *count == 0;
        *count = count.saturating_add(1);
        drops.last = Some((reason, at_ms));
        is_first
    }
}

/// What was not delivered to a session, and why.
#[derive(Debug, Default, Clone)]
pub struct Drops {
    pub by_reason: [u32; DropReason::COUNT],
    /// The last one, and when (monotonic).
    pub last: Option<(DropReason, u64)>,
}

impl Drops {
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

/// A SUBACK or UNSUBACK that waits until another shard has the shared subscription in its index, or no longer, so that no message
/// published after the SUBACK can miss it, and none after the UNSUBACK comes.
#[derive(Debug)]
pub struct PendingSubAck {
    pub packet_id: PacketId,
    pub reasons: Vec<u8>,
    pub kind: PacketType,
    pub waiting: u32,
    /// Of the letters that are awaited.
    pub ticket: u32,
}

/// The Will Message of the present or last connection [MQTT-3.1.2-7].
#[derive(Debug, Clone)]
pub struct Will {
    pub topic: Box<str>,
    pub payload: Box<[u8]>,
    /// Forwardable properties, as wire bytes.
    pub properties: Box<[u8]>,
    pub qos: QoS,
    pub retain: bool,
    pub delay_s: u32,
    pub message_expiry_s: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscriptionKind {
    Plain,
    Shared,
    Exclusive,
}

/// One subscription of a session; its key is the filter as the client wrote it.
#[derive(Debug, Clone, Copy)]
pub struct Subscription {
    pub options: SubscriptionOptions,
    pub identifier: Option<u32>,
    pub kind: SubscriptionKind,
}

/// The replays of a session, and the live messages that must not overtake them.
#[derive(Debug, Default)]
pub struct Replays(Option<Box<Pending>>);

/// A client may have as many replays as it may have subscriptions, so nothing here looks through all of them.
#[derive(Debug, Default)]
struct Pending {
    /// In the order in which they were asked for.
    replays: BTreeMap<u64, Replay>,
    /// Where the replay of a filter is; at most one each.
    by_filter: BTreeMap<Box<str>, u64>,
    asked: u64,
    held: VecDeque<Delivery>,
    held_bytes: usize,
}

const REPLAYS_MATCHED_MAX: usize = 16;

impl Replays {
    /// Nothing to replay and nothing held.
    pub fn is_done(&self) -> bool {
        self.0.is_none()
    }

    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// The one that is at work: the others wait for it.
    pub fn first(&self) -> Option<&Replay> {
        Some(self.0.as_ref()?.replays.first_key_value()?.1)
    }

    pub fn first_mut(&mut self) -> Option<&mut Replay> {
        Some(self.0.as_mut()?.replays.first_entry()?.into_mut())
    }

    /// The one that is at work, if it is this one.
    pub fn numbered_mut(&mut self, number: u32) -> Option<&mut Replay> {
        self.first_mut().filter(|first| first.number == number)
    }

    /// Comes after all others; one of the same filter that is not finished is not needed any more.
    pub fn push_back(&mut self, replay: Replay) {
        let pending = self.0.get_or_insert_default();
        pending.asked += 1;
        if let Some(before) = pending.by_filter.insert(replay.filter.clone(), pending.asked) {
            pending.replays.remove(&before);
        }
        pending.replays.insert(pending.asked, replay);
    }

    /// Retained messages of this filter, without `$exclusive/`, are still to be sent.
    pub fn is_pending(&self, filter: &str) -> bool {
        self.0
            .as_ref()
            .is_some_and(|pending| pending.by_filter.contains_key(filter))
    }

    pub fn remove(&mut self, filter: &str) {
        if let Some(pending) = &mut self.0
            && let Some(at) = pending.by_filter.remove(filter)
        {
            pending.replays.remove(&at);
        }
    }

    pub fn remove_first(&mut self) {
        if let Some(pending) = &mut self.0
            && let Some((_, first)) = pending.replays.pop_first()
        {
            pending.by_filter.remove(&first.filter);
        }
    }

    pub fn clear(&mut self) {
        if let Some(pending) = &mut self.0 {
            pending.replays.clear();
            pending.by_filter.clear();
        }
    }

    /// Keeps a message that a replay has to come before; gives it back when there is no room.
    pub fn hold(&mut self, delivery: Delivery, max_messages: usize, max_bytes: usize) -> Result<(), Delivery> {
        let pending = self.0.get_or_insert_default();
        let bytes = pending.held_bytes + delivery.kept_bytes();
        if pending.held.len() >= max_messages || bytes > max_bytes {
            return Err(delivery);
        }
        pending.held_bytes = bytes;
        pending.held.push_back(delivery);
        Ok(())
    }

    /// Whether a live message of this topic has to wait: a replay may bring an older one, or older live ones wait already
    /// [MQTT-4.6.0-5]. Taken for granted where there are many replays, so that it costs little.
    pub fn must_wait(&self, topic: &str) -> bool {
        self.0.as_ref().is_some_and(|pending| {
            let mut replays = pending.replays.values();
            !pending.held.is_empty()
                || pending.replays.len() > REPLAYS_MATCHED_MAX
                || replays.any(|r| mqtt::filter_matches(&r.filter, topic))
        })
    }

    /// Messages held, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        let pending = self.0.as_ref();
        pending.map_or((0, 0), |pending| (pending.held.len(), pending.held_bytes))
    }

    pub fn held_messages(&self) -> impl Iterator<Item = &Delivery> {
        self.0.iter().flat_map(|pending| &pending.held)
    }

    /// What was held, in its order.
    pub fn release(&mut self) -> VecDeque<Delivery> {
        let Some(pending) = &mut self.0 else {
            return VecDeque::new();
        };
        pending.held_bytes = 0;
        let held = std::mem::take(&mut pending.held);
        if pending.replays.is_empty() {
            self.0 = None;
        }
        held
    }
}

/// Retained messages that a new subscription has still to be sent, pulled bit by bit as the connection takes them.
#[derive(Debug, Clone)]
pub struct Replay {
    pub filter: Box<str>,
    pub options: SubscriptionOptions,
    pub identifier: Option<u32>,
    /// Whose part of the retained messages is being read.
    pub shard: ShardId,
    pub cursor: Option<ScanCursor>,
    /// A request to another shard is on its way.
    pub is_waiting: bool,
    pub number: u32,
}

/// Filters of one session: a list while there are few, a map when there are many. Sorted, so that the order of its filters
/// is the same in every run and no choice of filters makes it slow.
// The map is boxed because a session that has none should not pay for its bytes.
#[derive(Debug)]
pub enum FilterMap<V> {
    /// Exactly as long as it has to be: most sessions have one.
    Few(Box<[(Box<str>, V)]>),
    Many(Box<ManyFilters<V>>),
}

#[derive(Debug)]
pub struct ManyFilters<V> {
    map: BTreeMap<Box<str>, V>,
    /// Of all filters.
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

    /// What all filters are long.
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

    /// Returns the value it replaces.
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
    fn a_session_is_small() {
        assert!(size_of::<Session>() <= 296, "{} bytes", size_of::<Session>());
    }

    #[test]
    fn filters_come_and_go_as_a_list_and_as_a_map() {
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
