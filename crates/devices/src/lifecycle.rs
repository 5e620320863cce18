//! Lifecycle, error and statistics events (`LC_EVENT`, `ERROR`, `STATS`) of rule chains, rule nodes and devices. The
//! last events of each entity are in memory, and saved regularly and at shutdown for the next start.
//!
//! Failed messages create error events. The same error is recorded at most once a second.

use std::sync::Mutex;

use platform::chain::ChainNodes;
use platform::ids::{EntityId, RuleChainId, TenantId, Uuid};
use serde::{Deserialize, Serialize};

use crate::mutex::lock;
use crate::recent::{Recent, Timed};

/// Events per entity.
const EVENTS_MAX: usize = 50;
/// Entities with events. Beyond that, the entity whose last event is the oldest is removed.
const ENTITIES_MAX: usize = 1_000;
/// Longest error text. The rest is cut.
const TEXT_CHARS_MAX: usize = 500;
const REPEATED_MS: i64 = 1_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntityEvent {
    pub id: Uuid,
    pub at_ms: i64,
    pub tenant: TenantId,
    pub entity: EntityId,
    pub what: EventDetail,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventDetail {
    /// `STARTED`, `UPDATED` or `STOPPED`. `error` is set if it failed.
    Lifecycle { event: String, error: Option<String> },
    /// The failed operation, and the reason.
    Error { method: String, error: String },
    /// Counters of a rule node since its previous statistics event.
    Statistics { messages: u64, errors: u64 },
}

impl EventDetail {
    /// ThingsBoard's event type.
    pub fn kind(&self) -> &'static str {
        match self {
            EventDetail::Lifecycle { .. } => "LC_EVENT",
            EventDetail::Error { .. } => "ERROR",
            EventDetail::Statistics { .. } => "STATS",
        }
    }
}

pub struct Lifecycle(Mutex<Recent<Uuid, EntityEvent>>);

impl Timed for EntityEvent {
    fn at_ms(&self) -> i64 {
        self.at_ms
    }
}

impl Default for Lifecycle {
    fn default() -> Lifecycle {
        Lifecycle(Mutex::new(Recent::new(ENTITIES_MAX, EVENTS_MAX)))
    }
}

impl Lifecycle {
    pub fn put(&self, event: EntityEvent) {
        lock(&self.0).put(event.entity.id, event);
    }

    /// Records a failed message.
    pub fn failed(&self, id: Uuid, at_ms: i64, of: (TenantId, EntityId), method: &str, problem: &str) {
        let error = truncate_text(problem);
        if let Some(last) = lock(&self.0).of(of.1.id).next_back()
            && at_ms.saturating_sub(last.at_ms) < REPEATED_MS
            && matches!(&last.what, EventDetail::Error { error: known, .. } if *known == error)
        {
            return;
        }
        self.put(EntityEvent {
            id,
            at_ms,
            tenant: of.0,
            entity: of.1,
            what: EventDetail::Error {
                method: method.to_owned(),
                error,
            },
        });
    }

    /// Records that a chain and its nodes were started, changed or stopped.
    pub fn chain_changed(
        &self,
        (tenant, chain): (TenantId, RuleChainId),
        (before, after): (Option<&ChainNodes>, Option<&ChainNodes>),
        now_ms: i64,
        new_id: &dyn Fn() -> Uuid,
    ) {
        let put = |entity: EntityId, existed: bool, problem: Option<Option<&str>>| {
            let (event, error) = match problem {
                None => ("STOPPED", None),
                Some(problem) => (if existed { "UPDATED" } else { "STARTED" }, problem.map(truncate_text)),
            };
            self.put(EntityEvent {
                id: new_id(),
                at_ms: now_ms,
                tenant,
                entity,
                what: EventDetail::Lifecycle {
                    event: event.to_owned(),
                    error,
                },
            });
        };
        if before.is_none() && after.is_none() {
            return;
        }
        put(chain.entity(), before.is_some(), after.map(|_| None));
        let (before, after) = (
            before.unwrap_or(&Vec::new()).clone(),
            after.unwrap_or(&Vec::new()).clone(),
        );
        for (node, problem) in &after {
            let existed = before.iter().any(|(known, _)| known == node);
            put(node.entity(), existed, Some(problem.as_deref()));
        }
        for (node, _) in before
            .iter()
            .filter(|(node, _)| !after.iter().any(|(known, _)| known == node))
        {
            put(node.entity(), true, None);
        }
    }

    /// Returns the entity's events, newest first.
    pub fn of(&self, tenant: TenantId, entity: EntityId) -> Vec<EntityEvent> {
        let held = lock(&self.0);
        let is_own = |event: &&EntityEvent| event.tenant == tenant && event.entity == entity;
        held.of(entity.id).rev().filter(is_own).cloned().collect()
    }

    pub fn clear(&self, tenant: TenantId, entity: EntityId) {
        lock(&self.0).remove_if(entity.id, |event| event.tenant == tenant);
    }

    /// Returns the events to save: all events of each changed entity, or `None` if it has none any more.
    pub fn take_changed(&self) -> Vec<(Uuid, Option<Vec<u8>>)> {
        lock(&self.0).take_changed(|events| serde_json::to_vec(events).ok())
    }

    /// Marks entities as changed again, after saving them failed.
    pub fn mark_changed(&self, entities: impl Iterator<Item = Uuid>) {
        lock(&self.0).mark_changed(entities);
    }

    /// Loads the saved events of an entity.
    pub fn restore(&self, entity: Uuid, bytes: &[u8]) -> Result<(), serde_json::Error> {
        lock(&self.0).restore(entity, bytes)
    }
}

fn truncate_text(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use platform::ids::{DeviceId, RuleNodeId};

    use super::*;

    const TENANT: TenantId = TenantId(Uuid([1; 16]));

    fn device(number: usize) -> EntityId {
        DeviceId(Uuid((number as u128).to_be_bytes())).entity()
    }

    #[test]
    fn nodes_start_change_and_stop_with_their_chain() {
        let events = Lifecycle::default();
        let (chain, [one, two]) = (RuleChainId(Uuid([2; 16])), [3, 4].map(|n| RuleNodeId(Uuid([n; 16]))));
        let first = vec![(one, None), (two, Some("unknown".to_owned()))];
        let second = vec![(one, None)];
        let change = |before, after| events.chain_changed((TENANT, chain), (before, after), 5, &|| Uuid::NULL);
        change(None, Some(&first));
        change(Some(&first), Some(&second));
        change(Some(&second), None);
        change(None, None);
        let of = |entity| {
            let found = events.of(TENANT, entity).into_iter().rev();
            let text = found.map(|event| match event.what {
                EventDetail::Lifecycle { event, error } => format!("{event}{}", error.unwrap_or_default()),
                EventDetail::Error { .. } | EventDetail::Statistics { .. } => panic!("unexpected event of a chain"),
            });
            text.collect::<Vec<_>>()
        };
        assert_eq!(of(chain.entity()), ["STARTED", "UPDATED", "STOPPED"]);
        assert_eq!(of(one.entity()), ["STARTED", "UPDATED", "STOPPED"]);
        assert_eq!(of(two.entity()), ["STARTEDunknown", "STOPPED"]);
        assert!(events.of(TenantId(Uuid([9; 16])), chain.entity()).is_empty());
    }

    #[test]
    fn error_events_are_bounded_and_survive_a_restart() {
        let events = Lifecycle::default();
        let fail = |number: usize, at_ms: i64, problem: &str| {
            events.failed(Uuid::NULL, at_ms, (TENANT, device(number)), "telemetry", problem);
        };
        fail(0, 0, "the same");
        fail(0, 999, "the same");
        assert_eq!(events.of(TENANT, device(0)).len(), 1);
        fail(0, 1_000, "the same");
        fail(0, 1_001, &"ü".repeat(TEXT_CHARS_MAX + 1));
        assert_eq!(events.of(TENANT, device(0)).len(), 3);
        (0..100).for_each(|n| fail(0, 2_000 + n, &n.to_string()));
        let found = events.of(TENANT, device(0));
        assert_eq!(
            (found.len(), found[0].at_ms, found[0].what.kind()),
            (EVENTS_MAX, 2_099, "ERROR")
        );
        let changed = events.take_changed();
        assert!(events.take_changed().is_empty() && changed.len() == 1);
        let restarted = Lifecycle::default();
        let bytes = changed[0].1.as_deref().unwrap_or_default();
        assert!(restarted.restore(changed[0].0, bytes).is_ok());
        assert!(restarted.restore(Uuid([7; 16]), b"nonsense").is_err());
        assert_eq!(restarted.of(TENANT, device(0)), found);
        (1..=ENTITIES_MAX).for_each(|number| fail(number, 10_000, "x"));
        assert!(events.of(TENANT, device(0)).is_empty());
        assert!(events.take_changed().contains(&(device(0).id, None)));
        events.clear(TENANT, device(1));
        assert_eq!(events.take_changed(), [(device(1).id, None)]);
    }
}
