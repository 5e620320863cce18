//! Sessions in the order that an operator selects. There is no index: each call visits a bounded number of slots and
//! returns the first matches among them. The caller merges the results of all slots and shards.

use std::cmp::Ordering;

use crate::inspect::{ClientFilter, ClientView, ShardInspection};
use crate::session::{DropCounts, Session};
use crate::sessions::LOOK_MAX;
use crate::slots::SessionSlot;

/// Sort key of a client list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientSort {
    ClientId,
    /// Time of the last connect or disconnect.
    Since,
    Subscriptions,
    Queued,
    MessagesReceived,
    MessagesSent,
    /// Number of messages dropped for any reason.
    Dropped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientOrder {
    pub by: ClientSort,
    pub is_descending: bool,
}

/// Position of a client in the order. The client id breaks ties, so positions are unique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientPlace {
    pub value: u64,
    pub client_id: String,
}

impl ClientOrder {
    pub fn compare(self, a: &ClientPlace, b: &ClientPlace) -> Ordering {
        self.compare_parts((a.value, &a.client_id), (b.value, &b.client_id))
    }

    pub fn place(self, view: &ClientView) -> ClientPlace {
        let value = match self.by {
            ClientSort::ClientId => 0,
            ClientSort::Since => view.disconnected_at_unix_ms.unwrap_or(view.connected_at_unix_ms),
            ClientSort::Subscriptions => view.subscriptions as u64,
            ClientSort::Queued => view.queued as u64,
            ClientSort::MessagesReceived => view.messages_received,
            ClientSort::MessagesSent => view.messages_sent,
            ClientSort::Dropped => view.drops.iter().map(|(_, messages)| u64::from(*messages)).sum(),
        };
        ClientPlace {
            value,
            client_id: view.client_id.clone(),
        }
    }

    fn compare_parts(self, a: (u64, &str), b: (u64, &str)) -> Ordering {
        let order = a.cmp(&b);
        if self.is_descending { order.reverse() } else { order }
    }
}

impl ShardInspection<'_> {
    /// Returns, in order, the first `limit` sessions after `after` among the slots that one call visits, starting at
    /// `from`. The second value is the slot to continue at, if there are more.
    pub fn clients_in_order(
        &self,
        filter: &ClientFilter,
        order: ClientOrder,
        after: Option<&ClientPlace>,
        from: SessionSlot,
        limit: usize,
    ) -> (Vec<ClientView>, Option<SessionSlot>) {
        let sessions = &self.core.sessions;
        let end = SessionSlot::from_index(from.index().saturating_add(LOOK_MAX)).min(sessions.end());
        let mut found: Vec<(u64, &str, SessionSlot)> = from
            .until(end)
            .filter_map(|slot| Some((slot, sessions.get(slot)?)))
            .filter(|(_, session)| filter.matches(session))
            .map(|(slot, session)| (self.sorted_by(order.by, slot, session), &*session.client_id, slot))
            .filter(|(value, client_id, _)| {
                after.is_none_or(|after| {
                    order
                        .compare_parts((*value, client_id), (after.value, &after.client_id))
                        .is_gt()
                })
            })
            .collect();
        let compare =
            |a: &(u64, &str, SessionSlot), b: &(u64, &str, SessionSlot)| order.compare_parts((a.0, a.1), (b.0, b.1));
        if limit < found.len() {
            found.select_nth_unstable_by(limit, compare);
            found.truncate(limit);
        }
        found.sort_unstable_by(compare);
        let views = found
            .iter()
            .map(|(_, _, slot)| self.view(*slot, self.core.sessions.at(*slot)));
        (views.collect(), (end < sessions.end()).then_some(end))
    }

    /// Returns the sort key of [`ClientOrder::place`] without building the view.
    fn sorted_by(&self, by: ClientSort, slot: SessionSlot, session: &Session) -> u64 {
        match by {
            ClientSort::ClientId => 0,
            ClientSort::Since if session.conn.is_some() => session.connected_at_ms,
            ClientSort::Since => session.disconnected_at_ms,
            ClientSort::Subscriptions => session.subscriptions.len() as u64,
            ClientSort::Queued => (session.outgoing.queued() + session.replays.held().0) as u64,
            ClientSort::MessagesReceived => session.messages_received,
            ClientSort::MessagesSent => self.core.sessions.link(slot).messages_sent,
            ClientSort::Dropped => session.drops().map_or(0, DropCounts::total),
        }
    }
}
