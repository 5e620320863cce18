//! What went through nodes of rule chains that are debugged: the last of each node. In memory; the newest of them are kept every now
//! and then, and at a stop, so that they are there after a restart.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use platform::chain::DebugEvent;
use platform::ids::{EntityId, RuleNodeId, TenantId, Uuid};
use serde::{Deserialize, Serialize};

use crate::recent::{Recent, Timed};

/// Of one node.
const EVENTS_MAX: usize = 500;
/// Nodes; of more, the one whose last event is the oldest is forgotten.
const NODES_MAX: usize = 200;
/// Of data, and of metadata; the rest is cut.
const TEXT_BYTES_MAX: usize = 10_000;
/// Of the events of one node that are kept for a restart, as JSON.
const KEPT_BYTES_MAX: usize = 256 << 10;

/// A message that went into a node or came out of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEvent {
    pub id: Uuid,
    pub at_ms: i64,
    pub tenant: TenantId,
    pub node: RuleNodeId,
    pub is_input: bool,
    pub originator: EntityId,
    pub message_type: String,
    /// The connection by which it went out.
    pub label: Option<String>,
    /// JSON.
    pub data: String,
    pub metadata: String,
    pub error: Option<String>,
}

pub struct Events(Mutex<Recent<RuleNodeId, NodeEvent>>);

impl Timed for NodeEvent {
    fn at_ms(&self) -> i64 {
        self.at_ms
    }
}

impl Default for Events {
    fn default() -> Events {
        Events(Mutex::new(Recent::new(NODES_MAX, EVENTS_MAX)))
    }
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, Recent<RuleNodeId, NodeEvent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be kept: all of a node anew, or nothing of it any more.
    pub fn take_changed(&self) -> Vec<(RuleNodeId, Option<Vec<u8>>)> {
        self.lock().take_changed(to_bytes)
    }

    /// They could not be kept.
    pub fn keep_later(&self, nodes: impl Iterator<Item = RuleNodeId>) {
        self.lock().keep_later(nodes);
    }

    /// What was kept of a node.
    pub fn restore(&self, node: RuleNodeId, bytes: &[u8]) -> Result<(), serde_json::Error> {
        self.lock().restore(node, bytes)
    }

    pub fn put(&self, id: Uuid, at_ms: i64, tenant: TenantId, event: &DebugEvent<'_>) {
        let Some(node) = event.node_id else { return };
        let event = NodeEvent {
            id,
            at_ms,
            tenant,
            node,
            is_input: event.is_input,
            originator: event.message.originator,
            message_type: event.message.kind.to_string(),
            label: event.label.map(str::to_owned),
            data: cut(event.message.json().to_string()),
            metadata: cut(event.message.metadata.to_json().to_string()),
            error: event.error.map(str::to_owned),
        };
        self.lock().put(node, event);
    }

    /// The newest first.
    pub fn of(&self, tenant: TenantId, node: RuleNodeId) -> Vec<NodeEvent> {
        let held = self.lock();
        let events = held.of(node).rev();
        events.filter(|event| event.tenant == tenant).cloned().collect()
    }

    pub fn clear(&self, tenant: TenantId, node: RuleNodeId) {
        self.lock().remove_if(node, |event| event.tenant == tenant);
    }
}

/// The newest that have room.
fn to_bytes(events: &VecDeque<NodeEvent>) -> Option<Vec<u8>> {
    let mut bytes = 2;
    let newest = events.iter().rev().map(serde_json::to_string);
    let mut texts: Vec<String> = newest
        .map_while(Result::ok)
        .take_while(|text| {
            bytes += text.len() + 1;
            bytes <= KEPT_BYTES_MAX
        })
        .collect();
    texts.reverse();
    (!texts.is_empty()).then(|| format!("[{}]", texts.join(",")).into_bytes())
}

fn cut(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use platform::chain::{Data, Message, Metadata};
    use platform::ids::{CustomerId, EntityType, RuleChainId};

    use super::*;

    #[test]
    fn the_last_events_of_each_node_are_kept() {
        let events = Events::default();
        let (tenant, other) = (TenantId(Uuid([1; 16])), TenantId(Uuid([2; 16])));
        let message = Message {
            kind: "POST_TELEMETRY_REQUEST".into(),
            originator: EntityId::new(EntityType::Device, Uuid([3; 16])),
            customer: CustomerId::NULL,
            metadata: Metadata::default(),
            data: Data::Json("ü".repeat(TEXT_BYTES_MAX).into()),
            ts_ms: 0,
        };
        let node = |number: usize| RuleNodeId(Uuid((number as u128).to_be_bytes()));
        let put = |number: usize, at_ms| {
            let event = DebugEvent {
                chain: RuleChainId::NULL,
                node: "n",
                node_id: Some(node(number)),
                node_index: 0,
                is_input: true,
                label: None,
                error: None,
                message: &message,
            };
            events.put(Uuid::NULL, at_ms, tenant, &event);
        };
        (0..=EVENTS_MAX).for_each(|at| put(0, at as i64));
        let found = events.of(tenant, node(0));
        assert_eq!((found.len(), found[0].at_ms), (EVENTS_MAX, EVENTS_MAX as i64));
        assert!(found[0].data.len() <= TEXT_BYTES_MAX + '…'.len_utf8());
        assert!(events.of(other, node(0)).is_empty());
        // What is kept is bounded, and there after a restart.
        let changed = events.take_changed();
        let (kept, bytes) = (changed[0].0, changed[0].1.as_ref().unwrap());
        assert!(changed.len() == 1 && kept == node(0) && bytes.len() <= KEPT_BYTES_MAX);
        assert!(events.take_changed().is_empty());
        let restarted = Events::default();
        assert!(restarted.restore(kept, bytes).is_ok());
        assert!(restarted.restore(node(9), b"nonsense").is_err());
        let again = restarted.of(tenant, node(0));
        assert!(again.len() > 10 && found.starts_with(&again) && restarted.of(tenant, node(9)).is_empty());
        (1..=NODES_MAX).for_each(|number| put(number, 10_000 + number as i64));
        assert!(events.of(tenant, node(0)).is_empty());
        assert!(events.take_changed().contains(&(node(0), None)));
        events.clear(tenant, node(1));
        assert_eq!(events.take_changed(), [(node(1), None)]);
        assert!(events.of(tenant, node(1)).is_empty());
    }
}
