//! What people do to entities, as messages to rule chains: `ENTITY_CREATED` and the like. The originator is the entity; the metadata says
//! who did it, the data is the entity.

use axum::Json;
use platform::News;
use platform::ids::{CustomerId, EntityId, EntityType, TenantId};
use platform::model::{Alarm, AlarmComment, Customer, Entity, Relation};
use serde::Serialize;
use serde_json::Value;

use super::audit_logs::Noted;
use super::call::Call;

impl Call {
    /// It was created or changed; the answer to the one who did it.
    pub fn saved<E: Entity>(&self, is_new: bool, entity: E) -> Json<E> {
        let kind = if is_new { "ENTITY_CREATED" } else { "ENTITY_UPDATED" };
        self.tell(kind, &entity);
        Json(entity)
    }

    pub fn deleted<E: Entity>(&self, entity: &E) {
        self.tell("ENTITY_DELETED", entity);
    }

    fn tell<E: Entity>(&self, kind: &'static str, entity: &E) {
        let row = entity.row();
        let id = EntityId::new(E::KIND, row.id);
        self.tell_of(kind, id, TenantId(row.tenant), json_of(entity), Vec::new());
    }

    /// It belongs to another customer now, or to none: then to whom it belonged.
    pub fn given<E: Entity>(&self, entity: E, to: Option<CustomerId>, from: Option<CustomerId>) -> Json<E> {
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
        self.tell_of(kind, id, TenantId(row.tenant), json_of(&entity), metadata);
        Json(entity)
    }

    /// Both ends are told.
    pub fn related(&self, kind: &'static str, relation: &Relation) {
        for end in [relation.from, relation.to] {
            self.tell_of(kind, end, self.tenant(), json_of(relation), Vec::new());
        }
    }

    /// The originator's chain is told.
    pub fn alarmed(&self, kind: &'static str, alarm: &Alarm) {
        self.tell_of(kind, alarm.originator, alarm.tenant_id, json_of(alarm), Vec::new());
    }

    /// Of what leaves no entry in the audit log.
    pub fn told(&self, kind: &'static str, entity: EntityId, data: Value) {
        self.tell_chain(kind, entity, self.tenant(), data, Vec::new());
    }

    /// The originator's chain is told of what people say to the alarm.
    pub fn commented(&self, kind: &'static str, alarm: &Alarm, comment: &AlarmComment) {
        let metadata = vec![("comment", json_of(comment).to_string())];
        self.tell_of(kind, alarm.originator, alarm.tenant_id, json_of(alarm), metadata);
    }

    fn tell_of(
        &self,
        kind: &'static str,
        entity: EntityId,
        tenant: TenantId,
        data: Value,
        metadata: Vec<(&'static str, String)>,
    ) {
        self.noted().push(Noted {
            action: action_of(kind),
            entity,
            name: name_of(&data),
            data: data.clone(),
        });
        self.tell_chain(kind, entity, tenant, data, metadata);
    }

    fn tell_chain(
        &self,
        kind: &'static str,
        entity: EntityId,
        tenant: TenantId,
        data: Value,
        mut metadata: Vec<(&'static str, String)>,
    ) {
        // What the system administrator does concerns no tenant's chain.
        if tenant == TenantId::NULL || entity.kind == EntityType::Tenant {
            return;
        }
        metadata.push(("userId", self.person.id.to_string()));
        metadata.push(("userName", self.person.name.clone()));
        metadata.push(("userEmail", self.person.name.clone()));
        let news = News {
            kind,
            entity,
            tenant,
            metadata,
            data,
        };
        self.platform().tell(news, self.now_ms, &mut self.world.outlet());
    }
}

/// As the audit log has it.
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

/// Without what is inside of a dashboard.
fn json_of(entity: &impl Serialize) -> Value {
    let mut json = serde_json::to_value(entity).unwrap_or_default();
    if let Some(configuration) = json.get_mut("configuration") {
        *configuration = Value::String(String::new());
    }
    json
}
