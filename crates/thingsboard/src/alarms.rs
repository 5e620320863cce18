//! Alarms: lists, changes by users, comments.

use std::collections::HashMap;

use axum::Json;
use axum::response::{IntoResponse, Response};
use platform::ids::{AlarmId, EntityId, EntityType, UserId, Uuid};
use platform::model::{Alarm, AlarmComment, AlarmSeverity, AlarmStatus, Authority, User};
use platform::repository::{AlarmSelection, Selection};
use platform::{AlarmChange, PageData, PageLink};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::alarm_activity;
use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::info::fields;
use super::lists::{PageQuery, comma_separated, empty_is_none, list_query, optional_id};
use super::operation::{HandlerResult, JsonBody, NoQuery, delete, get, post};
use crate::services::Endpoint;

pub fn endpoints() -> Vec<Endpoint> {
    [lists(), one(), comments()]
        .into_iter()
        .flatten()
        .map(|endpoint| endpoint.tag("Alarms"))
        .collect()
}

fn lists() -> Vec<Endpoint> {
    vec![
        get("/api/alarms", "get_all_alarms", Authorities::TENANT, all)
            .describe("List alarms", "Alarms of the tenant or the customer, newest first.")
            .returns_json("A page of alarms, with the names of originators and assignees."),
        get(
            "/api/v2/alarms",
            "get_all_alarms_v2",
            Authorities::TENANT.and_screens(),
            all_v2,
        )
        .describe(
            "List alarms by several statuses, severities and types",
            "Alarms of the tenant or the customer, newest first.",
        )
        .returns_json("A page of alarms, with the names of originators and assignees."),
        get(
            "/api/alarm/{entityType}/{entityId}",
            "get_alarms",
            Authorities::TENANT,
            of_entity,
        )
        .describe(
            "List an entity's alarms",
            "Its own alarms, and alarms that are propagated to it.",
        )
        .returns_json("A page of alarms, with the names of originators and assignees."),
        get(
            "/api/v2/alarm/{entityType}/{entityId}",
            "get_alarms_v2",
            Authorities::TENANT.and_screens(),
            of_entity_v2,
        )
        .describe(
            "List an entity's alarms by several statuses, severities and types",
            "Its own alarms, and alarms that are propagated to it.",
        )
        .returns_json("A page of alarms, with the names of originators and assignees."),
        get(
            "/api/alarm/highestSeverity/{entityType}/{entityId}",
            "get_highest_severity",
            Authorities::TENANT,
            highest,
        )
        .describe(
            "Get the highest severity of an entity's alarms",
            "Empty if it has no alarms.",
        )
        .returns_json("The severity."),
        get("/api/alarm/types", "get_alarm_types", Authorities::TENANT, types)
            .describe("List alarm types", "Types of the tenant's alarms.")
            .returns_json("A page of types."),
    ]
}

fn one() -> Vec<Endpoint> {
    vec![
        post("/api/alarm", "save_alarm", Authorities::TENANT, save)
            .describe(
                "Create or change an alarm",
                "An originator has at most one uncleared alarm of a type. If there is one, it is changed.",
            )
            .returns_json("The alarm."),
        get("/api/alarm/{alarmId}", "get_alarm", Authorities::TENANT, read)
            .describe("Read an alarm", "By its ID.")
            .returns_json("The alarm."),
        get("/api/alarm/info/{alarmId}", "get_alarm_info", Authorities::TENANT, info)
            .describe(
                "Read an alarm with names",
                "With the names of its originator and assignee.",
            )
            .returns_json("The alarm with names."),
        delete("/api/alarm/{alarmId}", "delete_alarm", Authorities::TENANT, remove)
            .describe("Delete an alarm", "With its comments.")
            .returns_json("`true` if the alarm was deleted."),
        post(
            "/api/alarm/{alarmId}/ack",
            "acknowledge_alarm",
            Authorities::TENANT,
            acknowledge,
        )
        .describe("Acknowledge an alarm", "An acknowledged alarm does not change.")
        .returns_json("The alarm with names."),
        post("/api/alarm/{alarmId}/clear", "clear_alarm", Authorities::TENANT, clear)
            .describe("Clear an alarm", "A cleared alarm does not change.")
            .returns_json("The alarm with names."),
        post(
            "/api/alarm/{alarmId}/assign/{assigneeId}",
            "assign_alarm",
            Authorities::TENANT,
            assign,
        )
        .describe("Assign an alarm to a user", "Replaces the current assignee.")
        .returns_json("The alarm."),
        delete(
            "/api/alarm/{alarmId}/assign",
            "unassign_alarm",
            Authorities::TENANT,
            unassign,
        )
        .describe("Unassign an alarm", "Removes its assignee.")
        .returns_json("The alarm."),
    ]
}

fn comments() -> Vec<Endpoint> {
    vec![
        post(
            "/api/alarm/{alarmId}/comment",
            "save_alarm_comment",
            Authorities::TENANT,
            save_comment,
        )
        .describe("Comment on an alarm", "With an ID, changes your own comment.")
        .returns_json("The comment."),
        get(
            "/api/alarm/{alarmId}/comment",
            "get_alarm_comments",
            Authorities::TENANT,
            list_comments,
        )
        .describe(
            "List comments on an alarm",
            "With the names of their authors. Also contains comments of type SYSTEM without an author, for changes of the alarm by users.",
        )
        .returns_json("A page of comments."),
        delete(
            "/api/alarm/{alarmId}/comment/{commentId}",
            "delete_alarm_comment",
            Authorities::TENANT,
            delete_comment,
        )
        .describe("Delete a comment on an alarm", "Users can delete their own comments, tenant administrators any.")
        .returns_empty("Deleted."),
    ]
}

list_query!(AlarmQuery {
    /// ANY, ACTIVE, CLEARED, ACK or UNACK.
    search_status: Option<String>,
    /// ACTIVE_UNACK, ACTIVE_ACK, CLEARED_UNACK or CLEARED_ACK.
    status: Option<String>,
    /// Only alarms that are assigned to this user.
    assignee_id: Option<String>,
    /// Only alarms created at or after this time, in milliseconds since 1970.
    #[serde(default, deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    start_time: Option<i64>,
    /// Only alarms created at or before this time.
    #[serde(default, deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    end_time: Option<i64>,
});

list_query!(AlarmQueryV2 {
    /// ACTIVE, CLEARED, ACK, UNACK, separated by commas.
    status_list: Option<String>,
    /// Severities, separated by commas.
    severity_list: Option<String>,
    /// Types, separated by commas.
    type_list: Option<String>,
    /// Only alarms that are assigned to this user.
    assignee_id: Option<String>,
    /// Only alarms created at or after this time, in milliseconds since 1970.
    #[serde(default, deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    start_time: Option<i64>,
    /// Only alarms created at or before this time.
    #[serde(default, deserialize_with = "empty_is_none")]
    #[schemars(with = "Option<i64>")]
    end_time: Option<i64>,
});

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct StatusQuery {
    /// ANY, ACTIVE, CLEARED, ACK or UNACK.
    search_status: Option<String>,
    /// ACTIVE_UNACK, ACTIVE_ACK, CLEARED_UNACK or CLEARED_ACK.
    status: Option<String>,
}

const ALL_STATUSES: [AlarmStatus; 4] = [
    AlarmStatus::ActiveUnack,
    AlarmStatus::ActiveAck,
    AlarmStatus::ClearedUnack,
    AlarmStatus::ClearedAck,
];

/// Returns the statuses that match all of these words.
pub fn statuses_of(words: &[&str]) -> Result<Vec<AlarmStatus>, ThingsboardError> {
    let (mut cleared, mut acknowledged) = (Vec::new(), Vec::new());
    for word in words {
        match *word {
            "ANY" => {}
            "ACTIVE" => cleared.push(false),
            "CLEARED" => cleared.push(true),
            "ACK" => acknowledged.push(true),
            "UNACK" => acknowledged.push(false),
            other => {
                return Err(ThingsboardError::bad_request(format!(
                    "No enum constant AlarmSearchStatus.{other}"
                )));
            }
        }
    }
    let is_wanted = |status: &AlarmStatus| {
        let is_cleared = matches!(status, AlarmStatus::ClearedUnack | AlarmStatus::ClearedAck);
        let is_acknowledged = matches!(status, AlarmStatus::ActiveAck | AlarmStatus::ClearedAck);
        (cleared.is_empty() || cleared.contains(&is_cleared))
            && (acknowledged.is_empty() || acknowledged.contains(&is_acknowledged))
    };
    Ok(ALL_STATUSES.into_iter().filter(is_wanted).collect())
}

fn statuses(search: Option<&str>, status: Option<&str>) -> Result<Vec<AlarmStatus>, ThingsboardError> {
    let filled = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
    match (filled(search), filled(status)) {
        (Some(_), Some(_)) => Err(ThingsboardError::bad_request(
            "Invalid alarms search query: Both parameters 'searchStatus' and 'status' can't be specified at the same time!",
        )),
        (Some(search), None) => statuses_of(&[&search]),
        (None, Some(status)) => serde_json::from_value(json!([status]))
            .map_err(|_| ThingsboardError::bad_request(format!("No enum constant AlarmStatus.{status}"))),
        (None, None) => Ok(Vec::new()),
    }
}

pub fn severities_of(words: &[&str]) -> Result<Vec<AlarmSeverity>, ThingsboardError> {
    let parse = |word: &&str| {
        AlarmSeverity::parse(word)
            .ok_or_else(|| ThingsboardError::bad_request(format!("No enum constant AlarmSeverity.{word}")))
    };
    words.iter().map(parse).collect()
}

/// Selects the alarms of the tenant or the customer.
pub fn own_alarms(call: &ApiCall) -> AlarmSelection {
    AlarmSelection {
        tenant: Some(call.tenant().0),
        customer: (call.principal.authority == Authority::CustomerUser).then_some(call.principal.customer.0),
        ..AlarmSelection::default()
    }
}

fn created(start: Option<i64>, end: Option<i64>) -> Option<std::ops::Range<i64>> {
    if start.is_none() && end.is_none() {
        return None;
    }
    Some(start.unwrap_or(0)..end.map_or(i64::MAX, |end| end.saturating_add(1)))
}

impl AlarmQuery {
    fn selection(&self, call: &ApiCall) -> Result<AlarmSelection, ThingsboardError> {
        Ok(AlarmSelection {
            statuses: statuses(self.search_status.as_deref(), self.status.as_deref())?,
            assignee: optional_id(self.assignee_id.as_deref())?,
            created: created(self.start_time, self.end_time),
            ..own_alarms(call)
        })
    }
}

impl AlarmQueryV2 {
    fn selection(&self, call: &ApiCall) -> Result<AlarmSelection, ThingsboardError> {
        let assignee = optional_id(self.assignee_id.as_deref())?;
        // A screen does not see assignees, and must not find them out with this filter.
        if assignee.is_some() && call.principal.screen.is_some() {
            return Err(ThingsboardError::permission());
        }
        let words = |list: &Option<String>| list.clone().unwrap_or_default();
        let types = words(&self.type_list);
        Ok(AlarmSelection {
            statuses: match comma_separated(&words(&self.status_list)).as_slice() {
                [] => Vec::new(),
                words => statuses_of(words)?,
            },
            severities: severities_of(&comma_separated(&words(&self.severity_list)))?,
            types: comma_separated(&types).into_iter().map(str::to_owned).collect(),
            assignee,
            created: created(self.start_time, self.end_time),
            ..own_alarms(call)
        })
    }
}

fn all(call: &ApiCall, (): (), query: AlarmQuery, (): ()) -> HandlerResult<PageData<Value>> {
    page(call, &query.selection(call)?, &query.link()?)
}

fn all_v2(call: &ApiCall, (): (), query: AlarmQueryV2, (): ()) -> HandlerResult<PageData<Value>> {
    call.check_alarms(None)?;
    page(call, &query.selection(call)?, &query.link()?)
}

fn of_entity(
    call: &ApiCall,
    (kind, id): (EntityType, Uuid),
    query: AlarmQuery,
    (): (),
) -> HandlerResult<PageData<Value>> {
    let selection = query.selection(call)?;
    shown_by(call, EntityId::new(kind, id), selection, &query.link()?)
}

fn of_entity_v2(
    call: &ApiCall,
    (kind, id): (EntityType, Uuid),
    query: AlarmQueryV2,
    (): (),
) -> HandlerResult<PageData<Value>> {
    call.check_alarms(Some(id))?;
    let selection = query.selection(call)?;
    shown_by(call, EntityId::new(kind, id), selection, &query.link()?)
}

fn shown_by(
    call: &ApiCall,
    entity: EntityId,
    selection: AlarmSelection,
    link: &PageLink,
) -> HandlerResult<PageData<Value>> {
    call.check_id(entity, Verb::Read)?;
    let selection = AlarmSelection {
        entity: Some(entity.id),
        ..selection
    };
    page(call, &selection, link)
}

fn page(call: &ApiCall, selection: &AlarmSelection, link: &PageLink) -> HandlerResult<PageData<Value>> {
    let page = call.entities().repository().alarms(selection, link)?;
    let mut names = NameCache::new(call);
    Ok(Json(page.try_map(|alarm| names.info(&alarm))?))
}

/// Caches the names of originators and assignees for one answer.
pub struct NameCache<'c> {
    call: &'c ApiCall,
    entities: HashMap<EntityId, (Value, Value)>,
}

impl<'c> NameCache<'c> {
    pub fn new(call: &'c ApiCall) -> NameCache<'c> {
        NameCache {
            call,
            entities: HashMap::new(),
        }
    }

    pub fn info(&mut self, alarm: &Alarm) -> Result<Value, ThingsboardError> {
        let mut info = json!(alarm);
        let (name, label) = self.of(alarm.originator)?;
        info["originatorDisplayName"] = if label == Value::Null {
            name.clone()
        } else {
            label.clone()
        };
        (info["originatorName"], info["originatorLabel"]) = (name, label);
        // Screens are public displays, so they do not show assignees.
        let is_of_screen = self.call.principal.screen.is_some();
        info["assignee"] = match alarm.assignee_id {
            Some(id) if !is_of_screen => self.assignee(id)?,
            _ => Value::Null,
        };
        if is_of_screen {
            info["assigneeId"] = Value::Null;
        }
        Ok(info)
    }

    fn of(&mut self, id: EntityId) -> Result<(Value, Value), ThingsboardError> {
        if let Some(known) = self.entities.get(&id) {
            return Ok(known.clone());
        }
        let record = self.call.entities().repository().get(id)?;
        let found = record.map_or((Value::Null, Value::Null), |record| {
            let label = Some(record.row.label).filter(|label| !label.is_empty());
            (record.row.name.into(), label.into())
        });
        self.entities.insert(id, found.clone());
        Ok(found)
    }

    fn assignee(&self, id: UserId) -> Result<Value, ThingsboardError> {
        let user: Option<User> = self.call.entities().find(id.0)?;
        Ok(user.map_or(
            Value::Null,
            |user| json!({"id": id, "firstName": user.first_name, "lastName": user.last_name, "email": user.email}),
        ))
    }
}

fn highest(
    call: &ApiCall,
    (kind, id): (EntityType, Uuid),
    query: StatusQuery,
    (): (),
) -> Result<Response, ThingsboardError> {
    let entity = EntityId::new(kind, id);
    call.check_id(entity, Verb::Read)?;
    for severity in AlarmSeverity::ALL {
        let selection = AlarmSelection {
            entity: Some(entity.id),
            statuses: statuses(query.search_status.as_deref(), query.status.as_deref())?,
            severities: vec![severity],
            ..own_alarms(call)
        };
        let page = call.entities().repository().alarms(&selection, &PageLink::new(1, 0))?;
        if page.total_elements > 0 {
            return Ok(Json(severity).into_response());
        }
    }
    Ok(().into_response())
}

fn types(call: &ApiCall, (): (), query: PageQuery, (): ()) -> HandlerResult<PageData<Value>> {
    let link = query.page_link()?;
    let tenant = call.tenant();
    let mut types = call.entities().repository().alarm_types(tenant.0)?;
    if let Some(text) = &link.text_search {
        let text = text.to_lowercase();
        types.retain(|kind| kind.to_lowercase().contains(&text));
    }
    let total = types.len();
    let skipped = link.page.saturating_mul(link.page_size);
    let shown = types.into_iter().skip(skipped).take(link.page_size);
    let shown = shown.map(|kind| json!({"tenantId": tenant, "entityType": "ALARM", "type": kind}));
    Ok(Json(PageData::new(shown.collect(), total, &link)))
}

#[derive(Deserialize)]
struct AlarmBody {
    #[serde(flatten)]
    alarm: Alarm,
    /// Older clients send the status in this field.
    #[serde(default)]
    status: Option<AlarmStatus>,
}

fn save(call: &ApiCall, (): (), _: NoQuery, JsonBody(body): JsonBody<AlarmBody>) -> HandlerResult<Alarm> {
    let mut alarm = body.alarm;
    if alarm.kind.trim().is_empty() {
        return Err(ThingsboardError::bad_request("Alarm type should be specified!"));
    }
    let named = alarm.id.map(|id| call.alarm(id, Verb::Write)).transpose()?;
    if let Some(assignee) = alarm.assignee_id {
        call.entity::<User>(assignee.0, Verb::Read)?;
    }
    let originator = call.record(alarm.originator, Verb::Read)?;
    alarm.tenant_id = call.tenant();
    alarm.customer_id = Some(platform::ids::CustomerId(originator.row.customer));
    match body.status {
        Some(AlarmStatus::ActiveAck) => alarm.acknowledged = true,
        Some(AlarmStatus::ClearedUnack) => alarm.cleared = true,
        Some(AlarmStatus::ClearedAck) => (alarm.acknowledged, alarm.cleared) = (true, true),
        Some(AlarmStatus::ActiveUnack) | None => {}
    }
    let before = match named {
        Some(named) => Some(named),
        None => {
            let repository = call.entities().repository();
            repository.active_alarm(alarm.originator.id, &alarm.kind)?
        }
    };
    let saved = call
        .platform()
        .save_alarm(alarm, call.now_ms, &mut call.platform_access.outlet())?;
    let Some(before) = before else {
        call.alarm_changed("ENTITY_CREATED", &saved);
        return Ok(Json(saved));
    };
    for kind in changes(&before, &saved) {
        call.alarm_changed(kind, &saved);
    }
    call.alarm_changed("ENTITY_UPDATED", &saved);
    alarm_activity::add_comments(call, &before, &saved)?;
    Ok(Json(saved))
}

/// Returns further events that the change causes for rule chains, as if the user had requested them separately.
fn changes(before: &Alarm, after: &Alarm) -> Vec<&'static str> {
    let mut all = Vec::new();
    if after.acknowledged && !before.acknowledged {
        all.push("ALARM_ACK");
    }
    if after.cleared && !before.cleared {
        all.push("ALARM_CLEAR");
    }
    if after.assignee_id != before.assignee_id {
        all.push(after.assignee_id.map_or("ALARM_UNASSIGNED", |_| "ALARM_ASSIGNED"));
    }
    all
}

fn read(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Alarm> {
    Ok(Json(call.alarm(AlarmId(id), Verb::Read)?))
}

fn info(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
    let alarm = call.alarm(AlarmId(id), Verb::Read)?;
    Ok(Json(NameCache::new(call).info(&alarm)?))
}

fn remove(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<bool> {
    let alarm = call.alarm(AlarmId(id), Verb::Delete)?;
    call.platform()
        .delete_alarm(AlarmId(id), call.now_ms, &mut call.platform_access.outlet())?;
    call.alarm_changed("ALARM_DELETE", &alarm);
    call.entities().delete_alarm_comments_of(AlarmId(id))?;
    Ok(Json(true))
}

fn change(call: &ApiCall, id: Uuid, change: AlarmChange) -> HandlerResult<Value> {
    let before = call.alarm(AlarmId(id), Verb::Write)?;
    let done = match &change {
        AlarmChange::Acknowledge if before.acknowledged => Some("acknowledged"),
        AlarmChange::Clear if before.cleared => Some("cleared"),
        AlarmChange::Assign(Some(_)) if change == AlarmChange::Assign(before.assignee_id) => {
            Some("assigned to this user")
        }
        AlarmChange::Assign(None) if before.assignee_id.is_none() => Some("unassigned"),
        _ => None,
    };
    if let Some(done) = done {
        return Err(ThingsboardError::bad_request(format!("Alarm was already {done}!")));
    }
    let kind = match &change {
        AlarmChange::Acknowledge => "ALARM_ACK",
        AlarmChange::Clear => "ALARM_CLEAR",
        AlarmChange::Assign(Some(_)) => "ALARM_ASSIGNED",
        AlarmChange::Assign(None) => "ALARM_UNASSIGNED",
    };
    let alarm = call
        .platform()
        .change_alarm(AlarmId(id), change, call.now_ms, &mut call.platform_access.outlet())?;
    call.alarm_changed(kind, &alarm);
    alarm_activity::add_comments(call, &before, &alarm)?;
    Ok(Json(NameCache::new(call).info(&alarm)?))
}

fn acknowledge(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
    change(call, id, AlarmChange::Acknowledge)
}

fn clear(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
    change(call, id, AlarmChange::Clear)
}

fn assign(call: &ApiCall, (id, user): (Uuid, Uuid), _: NoQuery, (): ()) -> HandlerResult<Value> {
    call.entity::<User>(user, Verb::Read)?;
    change(call, id, AlarmChange::Assign(Some(UserId(user))))
}

fn unassign(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
    change(call, id, AlarmChange::Assign(None))
}

fn save_comment(
    call: &ApiCall,
    id: Uuid,
    _: NoQuery,
    JsonBody(mut comment): JsonBody<AlarmComment>,
) -> HandlerResult<AlarmComment> {
    let alarm = call.alarm(AlarmId(id), Verb::Write)?;
    let mut kind = "COMMENT_CREATED";
    if let Some(known) = comment.id {
        let stored: AlarmComment = call.entities().get(known.id)?;
        if stored.alarm_id != AlarmId(id) || stored.user_id != Some(call.principal.id) {
            return Err(ThingsboardError::permission());
        }
        if let Some(members) = comment.comment.as_object_mut() {
            members.insert("edited".to_owned(), "true".into());
            members.insert("editedOn".to_owned(), call.now_ms.into());
        }
        kind = "COMMENT_UPDATED";
    }
    comment.tenant_id = call.tenant();
    comment.alarm_id = AlarmId(id);
    comment.user_id = Some(call.principal.id);
    comment.kind = Some("OTHER".to_owned());
    let saved = call.entities().save_alarm_comment(comment, call.now_ms)?;
    call.comment_changed(kind, &alarm, &saved);
    Ok(Json(saved))
}

fn list_comments(call: &ApiCall, id: Uuid, query: PageQuery, (): ()) -> HandlerResult<PageData<Value>> {
    call.alarm(AlarmId(id), Verb::Read)?;
    let selection = Selection {
        parent: Some(id),
        ..Selection::default()
    };
    let page = call.entities().page::<AlarmComment>(&selection, &query.page_link()?)?;
    let info = |comment: AlarmComment| -> Result<Value, ThingsboardError> {
        let user: Option<User> = match comment.user_id {
            Some(id) => call.entities().find(id.0)?,
            None => None,
        };
        let mut info = fields(&comment);
        let user = user.map(|user| (user.first_name, user.last_name, Some(user.email)));
        let (first, last, email) = user.unwrap_or_default();
        info.insert("firstName".into(), first.into());
        info.insert("lastName".into(), last.into());
        info.insert("email".into(), email.into());
        Ok(info.into())
    };
    Ok(Json(page.try_map(info)?))
}

fn delete_comment(call: &ApiCall, (id, comment): (Uuid, Uuid), _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    call.alarm(AlarmId(id), Verb::Write)?;
    let mut stored: AlarmComment = call.entities().get(comment)?;
    if stored.alarm_id != AlarmId(id) {
        return Err(ThingsboardError::not_found());
    }
    if stored.kind.as_deref() == Some("SYSTEM") {
        return Err(ThingsboardError::bad_request("System comment could not be deleted"));
    }
    let is_own = stored.user_id == Some(call.principal.id);
    if !is_own && call.principal.authority != Authority::TenantAdmin {
        return Err(ThingsboardError::permission());
    }
    let who = alarm_activity::own_title(call)?;
    stored.kind = Some("SYSTEM".to_owned());
    stored.user_id = None;
    stored.comment =
        json!({"text": format!("User {who} deleted his comment"), "subtype": "COMMENT_DELETED", "userName": who});
    call.entities().save_alarm_comment(stored, call.now_ms)?;
    Ok(())
}
