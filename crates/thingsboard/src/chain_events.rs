//! Events of entities that users cause, as messages to rule chains, such as `ENTITY_CREATED`. The originator is the
//! entity; the metadata contains the user, and the data is the entity.

use axum::Json;
use platform::ChainEvent;
use platform::ids::{CustomerId, EntityId, EntityType, TenantId};
use platform::model::{Alarm, AlarmComment, Customer, Entity, Relation};
use serde::Serialize;
use serde_json::Value;

use super::call::{ApiCall, AuditAction};

impl ApiCall {
    /// Sends an event for a created or changed entity, and returns the answer to the user.
    pub fn saved<E: Entity>(&self, is_new: bool, entity: E) -> Json<E> {
        let kind = if is_new { "ENTITY_CREATED" } else { "ENTITY_UPDATED" };
        self.send_event(kind, &entity);
        Json(entity)
    }

    pub fn deleted<E: Entity>(&self, entity: &E) {
        self.send_event("ENTITY_DELETED", entity);
    }

    fn send_event<E: Entity>(&self, kind: &'static str, entity: &E) {
        let row = entity.row();
        let id = EntityId::new(E::KIND, row.id);
        self.log_and_send(kind, id, TenantId(row.tenant), json_of(entity), Vec::new());
    }

    /// Sends an event for a changed assignment. Without a new customer, the event contains the previous one.
    pub fn customer_changed<E: Entity>(&self, entity: E, to: Option<CustomerId>, from: Option<CustomerId>) -> Json<E> {
        let (kind, customer, id_name, title_name) = match (to, from) {
            (Some(to), _) => ("ENTITY_ASSIGNED", to, "assignedCustomerId", "assignedCustomerName"),
            (None, from) => (
                "ENTITY_UNASSIGNED",
                from.unwrap_or_default(),
                "unassignedCustomerId",
                "unassignedCustomerName",
            ),
        };
        let mut metadata = vec![(id_name, customer.to_string())];
        if let Ok(Some(customer)) = self.entities().find::<Customer>(customer.0) {
            metadata.push((title_name, customer.title));
        }
        let row = entity.row();
        let id = EntityId::new(E::KIND, row.id);
        self.log_and_send(kind, id, TenantId(row.tenant), json_of(&entity), metadata);
        Json(entity)
    }

    /// Sends the event to the rule chains of both entities.
    pub fn relation_changed(&self, kind: &'static str, relation: &Relation) {
        for end in [relation.from, relation.to] {
            self.log_and_send(kind, end, self.tenant(), json_of(relation), Vec::new());
        }
    }

    /// Sends the event to the originator's rule chain.
    pub fn alarm_changed(&self, kind: &'static str, alarm: &Alarm) {
        self.log_and_send(kind, alarm.originator, alarm.tenant_id, json_of(alarm), Vec::new());
    }

    /// Sends an event that is not part of the audit log.
    pub fn send_unlogged(&self, kind: &'static str, entity: EntityId, data: Value) {
        self.send_to_chain(kind, entity, self.tenant(), data, Vec::new());
    }

    /// Sends an event for a comment to the originator's rule chain.
    pub fn comment_changed(&self, kind: &'static str, alarm: &Alarm, comment: &AlarmComment) {
        let metadata = vec![("comment", json_of(comment).to_string())];
        self.log_and_send(kind, alarm.originator, alarm.tenant_id, json_of(alarm), metadata);
    }

    fn log_and_send(
        &self,
        kind: &'static str,
        entity: EntityId,
        tenant: TenantId,
        data: Value,
        metadata: Vec<(&'static str, String)>,
    ) {
        self.audit_actions().push(AuditAction {
            action: action_of(kind),
            entity,
            name: name_of(&data),
            data: data.clone(),
        });
        self.send_to_chain(kind, entity, tenant, data, metadata);
    }

    fn send_to_chain(
        &self,
        kind: &'static str,
        entity: EntityId,
        tenant: TenantId,
        data: Value,
        mut metadata: Vec<(&'static str, String)>,
    ) {
        // Actions of system administrators are not sent to the rule chain of a tenant.
        if tenant == TenantId::NULL || entity.kind == EntityType::Tenant {
            return;
        }
        metadata.push(("userId", self.principal.id.to_string()));
        metadata.push(("userName", self.principal.name.clone()));
        metadata.push(("userEmail", self.principal.name.clone()));
        let event = ChainEvent {
            kind,
            entity,
            tenant,
            metadata,
            data,
        };
        self.platform()
            .send_event(event, self.now_ms, &mut self.platform_access.outlet());
    }
}

/// Returns the action's name in the audit log.
fn action_of(kind: &'static str) -> &'static str {
    match kind {
        "ENTITY_CREATED" => "ADDED",
        "ENTITY_UPDATED" => "UPDATED",
        "ENTITY_DELETED" => "DELETED",
        "ENTITY_ASSIGNED" => "ASSIGNED_TO_CUSTOMER",
        "ENTITY_UNASSIGNED" => "UNASSIGNED_FROM_CUSTOMER",
        "COMMENT_CREATED" => "ADDED_COMMENT",
        "COMMENT_UPDATED" => "UPDATED_COMMENT",
        "COMMENT_DELETED" => "DELETED_COMMENT",
        other => other,
    }
}

fn name_of(entity: &Value) -> String {
    let names = ["name", "title", "email", "type"];
    let name = names.iter().find_map(|key| entity[*key].as_str());
    name.unwrap_or_default().to_owned()
}

/// Returns the entity's JSON without the configuration of a dashboard.
fn json_of(entity: &impl Serialize) -> Value {
    let mut json = serde_json::to_value(entity).unwrap_or_default();
    if let Some(configuration) = json.get_mut("configuration") {
        *configuration = Value::String(String::new());
    }
    json
}
