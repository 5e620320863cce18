//! A host that records its calls.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use timeseries::{PointValue, TimedValue};

use super::super::*;
use crate::alarm_rules::{AlarmEffect, AlarmTransition, FiredCondition};
use crate::decode::KeyValue;
use crate::ids::{AlarmId, EntityId, EntityType, RuleChainId, RuleNodeId, TenantId, Uuid};
use crate::model::{Alarm, AlarmSeverity, Attribute, AttributeScope, Relation};
use crate::repository::RelationSelection;

#[derive(Default)]
pub struct TestHost {
    pub chains: HashMap<RuleChainId, Arc<CompiledChain>>,
    pub attributes: Vec<(EntityId, AttributeScope, String, PointValue)>,
    pub latest: Vec<(String, TimedValue)>,
    pub relations: Vec<Relation>,
    pub alarms: Vec<Alarm>,
    /// Alarm events sent to the chains of originators.
    pub alarm_events: Vec<String>,
    pub alarm_effects: Vec<AlarmEffect>,
    /// `key=value@ts`, in the order of saving.
    pub saved: Vec<String>,
    pub saving: Vec<SaveOptions>,
    pub done: Vec<String>,
    pub logged: Vec<String>,
    pub texts: Vec<String>,
    pub continuations: Vec<Continuation>,
    pub calls: Vec<RpcCall>,
    pub sent: Vec<ExternalCall>,
    pub debugged: Vec<String>,
    pub fails_external: bool,
    /// Nodes have no time left after this many log lines.
    pub logs_in_time: Option<usize>,
    /// The time slice is over after this many log lines.
    pub logs_in_slice: Option<usize>,
    /// There are no entities, and alarm rules cannot be applied.
    pub is_empty: bool,
    ids: Cell<u8>,
}

impl Host for TestHost {
    fn now_ms(&self) -> i64 {
        5000
    }

    fn new_alarm_id(&self) -> AlarmId {
        self.ids.set(self.ids.get() + 1);
        AlarmId(Uuid([self.ids.get(); 16]))
    }

    fn chain(&self, id: RuleChainId) -> Option<Arc<CompiledChain>> {
        self.chains.get(&id).cloned()
    }

    fn tenant_of(&self, entity: EntityId) -> TenantId {
        if entity.id == Uuid([0xee; 16]) {
            TenantId(entity.id)
        } else {
            super::TENANT_ID
        }
    }

    fn default_chain(&self, _: EntityId) -> Option<RuleChainId> {
        None
    }

    fn save_timeseries(
        &mut self,
        entity: EntityId,
        ts_ms: i64,
        values: &[KeyValue<'_>],
        saving: SaveOptions,
    ) -> Result<(), NodeError> {
        let kind = entity.kind.name();
        self.saved.extend(
            values
                .iter()
                .map(|value| format!("{kind} {}={:?}@{ts_ms}", value.key, value.value)),
        );
        self.saving.push(saving);
        Ok(())
    }

    fn save_attributes(
        &mut self,
        entity: EntityId,
        scope: AttributeScope,
        attributes: &[Attribute],
        notifies_device: bool,
    ) -> Result<(), NodeError> {
        for attribute in attributes {
            self.done
                .push(format!("{} {} notify={notifies_device}", scope.name(), attribute.key));
            self.attributes
                .push((entity, scope, attribute.key.clone(), attribute.value.clone()));
        }
        Ok(())
    }

    fn delete_attributes(
        &mut self,
        _: EntityId,
        scope: AttributeScope,
        keys: &[String],
        _: bool,
    ) -> Result<(), NodeError> {
        self.done.push(format!("delete {} {}", scope.name(), keys.join(",")));
        Ok(())
    }

    fn attributes(
        &self,
        entity: EntityId,
        scope: AttributeScope,
        keys: &[String],
    ) -> Result<Vec<Attribute>, NodeError> {
        let known = self
            .attributes
            .iter()
            .filter(|(of, in_scope, key, _)| *of == entity && *in_scope == scope && keys.contains(key));
        let known = known.map(|(_, _, key, value)| Attribute {
            key: key.clone(),
            value: value.clone(),
            last_update_ms: 0,
        });
        Ok(known.collect())
    }

    fn latest(&self, _: EntityId, keys: &[String]) -> Result<Vec<Option<TimedValue>>, NodeError> {
        let find = |key: &String| {
            self.latest
                .iter()
                .find(|(known, _)| known == key)
                .map(|(_, value)| value.clone())
        };
        Ok(keys.iter().map(find).collect())
    }

    fn entity(&self, id: EntityId) -> Result<Option<Json>, NodeError> {
        if self.is_empty {
            return Ok(None);
        }
        Ok(Some(json!({"id": id, "name": "D", "type": "default", "label": null,
            "tenantId": super::TENANT, "customerId": {"entityType": "CUSTOMER", "id": Uuid([4; 16])}})))
    }

    fn entity_named(&self, _: TenantId, kind: EntityType, name: &str) -> Result<Option<EntityId>, NodeError> {
        Ok((name == "Boiler D").then(|| EntityId::new(kind, Uuid([7; 16]))))
    }

    fn relations(&self, selection: &RelationSelection) -> Result<Vec<Relation>, NodeError> {
        let is_wanted = |relation: &&Relation| {
            selection.from.is_none_or(|from| from == relation.from)
                && selection.to.is_none_or(|to| to == relation.to)
                && selection.kind.as_ref().is_none_or(|kind| *kind == relation.kind)
        };
        Ok(self.relations.iter().filter(is_wanted).cloned().collect())
    }

    fn apply_alarm_rules(&mut self, _: &ChainMessage<'_>) -> Result<Vec<AlarmEffect>, NodeError> {
        if self.is_empty {
            return Err(NodeError::new("the device does not exist"));
        }
        Ok(std::mem::take(&mut self.alarm_effects))
    }

    fn active_alarm(&self, originator: EntityId, kind: &str) -> Result<Option<Alarm>, NodeError> {
        let mut alarms = self.alarms.iter();
        Ok(alarms
            .find(|alarm| alarm.originator == originator && alarm.kind == kind && !alarm.cleared)
            .cloned())
    }

    fn put_alarm(&mut self, alarm: &Alarm) -> Result<(), NodeError> {
        self.alarms.retain(|known| known.id != alarm.id);
        self.alarms.push(alarm.clone());
        Ok(())
    }

    fn send_alarm_event(&mut self, kind: &'static str, alarm: &Alarm, _: Option<RuleNodeId>) -> Result<(), NodeError> {
        self.alarm_events.push(format!("{kind} {}", alarm.kind));
        Ok(())
    }

    fn alarm(&self, id: AlarmId) -> Result<Option<Alarm>, NodeError> {
        Ok(self.alarms.iter().find(|alarm| alarm.id == Some(id)).cloned())
    }

    fn call_device(&mut self, _: EntityId, call: RpcCall, then: Continuation) -> Result<(), NodeError> {
        self.calls.push(call);
        self.continuations.push(then);
        Ok(())
    }

    fn reply_to_device(&mut self, _: EntityId, request_id: i32, body: &Json) -> Result<(), NodeError> {
        self.done.push(format!("reply {request_id} {body}"));
        Ok(())
    }

    fn has_time_for_nodes(&self) -> bool {
        self.logs_in_time.is_none_or(|most| self.logged.len() < most)
    }

    fn is_slice_over(&self) -> bool {
        self.logs_in_slice.is_some_and(|most| self.logged.len() >= most)
    }

    fn log(&mut self, _: RuleChainId, node: &str, text: &str) {
        self.logged.push(node.to_owned());
        self.texts.push(text.to_owned());
    }

    fn send(&mut self, outbound: ExternalCall, _: i64, then: Continuation) -> Result<(), NodeError> {
        if self.fails_external {
            return Err(NodeError::new("the buffer is full"));
        }
        self.sent.push(outbound);
        self.continuations.push(then);
        Ok(())
    }

    fn enqueue(&mut self, queue: &str, then: Continuation) -> Result<(), NodeError> {
        self.done.push(format!("enqueue {queue}"));
        self.continuations.push(then);
        Ok(())
    }

    fn debug(&mut self, event: &DebugEvent<'_>) {
        let label = event.label.unwrap_or("In");
        self.debugged
            .push(format!("{} {label} {}", event.node, event.error.unwrap_or_default()));
    }
}

pub fn effect(action: AlarmTransition) -> AlarmEffect {
    AlarmEffect {
        action,
        alarm: Alarm::new(
            crate::ids::TenantId(super::TENANT.id),
            super::DEVICE,
            "hot",
            AlarmSeverity::Major,
        ),
        condition: FiredCondition::Repeats(3),
    }
}
