//! Debug events of rule nodes: the last messages that went through each node with debugging on. They are in memory.
//! The newest are saved regularly and at shutdown, for the next start.

use std::collections::VecDeque;
use std::sync::Mutex;

use platform::chain::DebugEvent;
use platform::ids::{EntityId, RuleNodeId, TenantId, Uuid};
use serde::{Deserialize, Serialize};

use crate::mutex::lock;
use crate::recent::{Recent, Timed};

/// Events per node.
pub(crate) const EVENTS_MAX: usize = 500;
/// Nodes with events. Beyond that, the node whose last event is the oldest is removed.
const NODES_MAX: usize = 200;
/// Longest data and metadata text of an event. The rest is cut.
const TEXT_BYTES_MAX: usize = 10_000;
/// Largest saved JSON of one node's events.
const SAVED_BYTES_MAX: usize = 256 << 10;

/// A message that entered or left a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEvent {
    pub id: Uuid,
    pub at_ms: i64,
    pub tenant: TenantId,
    pub node: RuleNodeId,
    pub is_input: bool,
    pub originator: EntityId,
    pub message_type: String,
    /// The relation type (connection) by which the message left the node.
    pub label: Option<String>,
    /// As JSON.
    pub data: String,
    pub metadata: String,
    pub error: Option<String>,
}

pub struct NodeDebugEvents(Mutex<Recent<RuleNodeId, NodeEvent>>);

impl Timed for NodeEvent {
    fn at_ms(&self) -> i64 {
        self.at_ms
    }
}

impl Default for NodeDebugEvents {
    fn default() -> NodeDebugEvents {
        NodeDebugEvents(Mutex::new(Recent::new(NODES_MAX, EVENTS_MAX)))
    }
}

impl NodeDebugEvents {
    /// Returns the events to save: all events of each changed node, or `None` if it has none any more.
    pub fn take_changed(&self) -> Vec<(RuleNodeId, Option<Vec<u8>>)> {
        lock(&self.0).take_changed(to_bytes)
    }

    /// Marks nodes as changed again, after saving them failed.
    pub fn mark_changed(&self, nodes: impl Iterator<Item = RuleNodeId>) {
        lock(&self.0).mark_changed(nodes);
    }

    /// Loads the saved events of a node.
    pub fn restore(&self, node: RuleNodeId, bytes: &[u8]) -> Result<(), serde_json::Error> {
        lock(&self.0).restore(node, bytes)
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
            data: truncate_text(event.message.json().to_string()),
            metadata: truncate_text(event.message.metadata.to_json().to_string()),
            error: event.error.map(str::to_owned),
        };
        lock(&self.0).put(node, event);
    }

    /// Returns the node's events, newest first.
    pub fn of(&self, tenant: TenantId, node: RuleNodeId) -> Vec<NodeEvent> {
        let held = lock(&self.0);
        let events = held.of(node).rev();
        events.filter(|event| event.tenant == tenant).cloned().collect()
    }

    pub fn clear(&self, tenant: TenantId, node: RuleNodeId) {
        lock(&self.0).remove_if(node, |event| event.tenant == tenant);
    }
}

/// Writes the newest events that fit into the size limit.
fn to_bytes(events: &VecDeque<NodeEvent>) -> Option<Vec<u8>> {
    let mut bytes = 2;
    let newest = events.iter().rev().map(serde_json::to_string);
    let mut texts: Vec<String> = newest
        .map_while(Result::ok)
        .take_while(|text| {
            bytes += text.len() + 1;
            bytes <= SAVED_BYTES_MAX
        })
        .collect();
    texts.reverse();
    (!texts.is_empty()).then(|| format!("[{}]", texts.join(",")).into_bytes())
}

fn truncate_text(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use platform::chain::{ChainMessage, MessageData, Metadata};
    use platform::ids::{CustomerId, EntityType, RuleChainId};

    use super::*;

    #[test]
    fn events_are_bounded_and_survive_a_restart() {
        let events = NodeDebugEvents::default();
        let (tenant, other) = (TenantId(Uuid([1; 16])), TenantId(Uuid([2; 16])));
        let message = ChainMessage {
            kind: "POST_TELEMETRY_REQUEST".into(),
            originator: EntityId::new(EntityType::Device, Uuid([3; 16])),
            customer: CustomerId::NULL,
            metadata: Metadata::default(),
            data: MessageData::Json("ü".repeat(TEXT_BYTES_MAX).into()),
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
        // Saved events are bounded and restored after a restart.
        let changed = events.take_changed();
        let (saved, bytes) = (changed[0].0, changed[0].1.as_ref().unwrap());
        assert!(changed.len() == 1 && saved == node(0) && bytes.len() <= SAVED_BYTES_MAX);
        assert!(events.take_changed().is_empty());
        let restarted = NodeDebugEvents::default();
        assert!(restarted.restore(saved, bytes).is_ok());
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
