//! The operations that find and count entities and alarms.

use std::collections::HashMap;

use axum::Json;
use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::Alarm;
use platform::{PageData, PageLink};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::alarms::{self, NameCache, severities_of, statuses_of};
use super::super::authorities::Authorities;
use super::super::call::{ApiCall, Verb};
use super::super::failure::ThingsboardError;
use super::super::operation::{HandlerResult, JsonBody, NoQuery, post};
use super::{
    EntityDataQuery, EntityKey, KeyType, QueriedEntity, QueryAnswerBudget, QuerySort, count, find, values_json,
};
use crate::services::Endpoint;
use platform::repository::AlarmSelection;
use web::strict::from_value;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post(
            "/api/entitiesQuery/find",
            "find_entities",
            Authorities::ANY,
            find_entities,
        )
        .describe(
            "Find entities",
            "By a filter and conditions over fields, attributes and latest values; sorted, in pages.",
        )
        .returns_json("A page of entities with the requested fields and values."),
        post(
            "/api/entitiesQuery/count",
            "count_entities",
            Authorities::ANY,
            count_entities,
        )
        .describe("Count entities", "By a filter and conditions.")
        .returns_json("Number of entities."),
        post(
            "/api/entitiesQuery/find/keys",
            "find_entity_keys",
            Authorities::TENANT,
            find_keys,
        )
        .describe(
            "List keys of entities",
            "Keys of latest values and attributes of the first 100 matching entities.",
        )
        .returns_json("`entityTypes`, `timeseries` and `attribute`."),
        post("/api/alarmsQuery/find", "find_alarms", Authorities::TENANT, find_alarms)
            .describe(
                "Find alarms",
                "Alarms of the selected entities, by status, severity and type.",
            )
            .returns_json("A page of alarms."),
        post(
            "/api/alarmsQuery/count",
            "count_alarms",
            Authorities::TENANT,
            count_alarms,
        )
        .describe(
            "Count alarms",
            "Alarms of the selected entities, by status, severity and type.",
        )
        .returns_json("Number of alarms."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Queries")).collect()
}

fn find_entities(
    call: &ApiCall,
    (): (),
    _: NoQuery,
    JsonBody(query): JsonBody<EntityDataQuery>,
) -> HandlerResult<PageData<Value>> {
    Ok(Json(find(call, &query)?.page(
        call,
        &query,
        &mut QueryAnswerBudget::default(),
    )?))
}

fn count_entities(
    call: &ApiCall,
    (): (),
    _: NoQuery,
    JsonBody(query): JsonBody<EntityDataQuery>,
) -> HandlerResult<usize> {
    Ok(Json(count(call, &query)?))
}

fn find_keys(call: &ApiCall, (): (), _: NoQuery, JsonBody(query): JsonBody<EntityDataQuery>) -> HandlerResult<Value> {
    const LOOKED_AT: usize = 100;
    let found = find(call, &query)?;
    let (mut kinds, mut timeseries, mut attributes) = (Vec::<EntityType>::new(), Vec::new(), Vec::new());
    for row in found.rows.iter().take(LOOKED_AT) {
        let id = row.id();
        kinds.push(id.kind);
        if row.readable.has_telemetry {
            timeseries.extend(call.platform().store().keys(id.id.into())?);
        }
        let scopes = platform::model::AttributeScope::ALL;
        for scope in scopes.into_iter().filter(|_| row.readable.has_attributes) {
            let known = call.platform().attributes(id, scope, None)?;
            attributes.extend(known.into_iter().map(|attribute| attribute.key));
        }
    }
    kinds.sort();
    kinds.dedup();
    timeseries.sort();
    timeseries.dedup();
    attributes.sort();
    attributes.dedup();
    Ok(Json(
        json!({"entityTypes": kinds, "timeseries": timeseries, "attribute": attributes}),
    ))
}

/// Conditions of an alarm query.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AlarmQueryFilter {
    status_list: Option<Vec<String>>,
    severity_list: Option<Vec<String>>,
    type_list: Option<Vec<String>>,
    assignee_id: Option<platform::ids::UserId>,
    start_ts: Option<i64>,
    end_ts: Option<i64>,
    time_window: Option<i64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AlarmPageLink {
    page_size: Option<i64>,
    page: Option<i64>,
    text_search: Option<String>,
    sort_order: Option<QuerySort>,
    #[serde(flatten)]
    filter: AlarmQueryFilter,
}

impl AlarmPageLink {
    fn page_link(&self) -> Result<PageLink, ThingsboardError> {
        let sort = self
            .sort_order
            .as_ref()
            .filter(|sort| sort.key.kind == KeyType::AlarmField);
        // The field names of queries, and the property names of alarms.
        let property = sort.map(|sort| match sort.key.key.as_str() {
            "startTime" => "startTs",
            "endTime" => "endTs",
            "ackTime" => "ackTs",
            "clearTime" => "clearTs",
            "assignTime" => "assignTs",
            "assignee" => "assigneeId.id",
            "originator" => "originator.id",
            other => other,
        });
        let order = sort.and_then(|sort| sort.direction.as_deref());
        let (size, page) = (self.page_size.unwrap_or(100), self.page.unwrap_or(0));
        Ok(PageLink::parse(
            size,
            page,
            self.text_search.as_deref(),
            property,
            order,
        )?)
    }
}

impl AlarmQueryFilter {
    fn selection(&self, call: &ApiCall) -> Result<AlarmSelection, ThingsboardError> {
        let statuses = words(self.status_list.as_ref());
        let severities = words(self.severity_list.as_ref());
        let start = match (self.start_ts, self.time_window) {
            (Some(start), _) if start > 0 => start,
            (_, Some(window)) if window > 0 => call.now_ms.saturating_sub(window),
            _ => 0,
        };
        let end = self
            .end_ts
            .filter(|end| *end > 0)
            .map_or(i64::MAX, |end| end.saturating_add(1));
        Ok(AlarmSelection {
            statuses: if statuses.is_empty() {
                Vec::new()
            } else {
                statuses_of(&statuses)?
            },
            severities: severities_of(&severities)?,
            types: self.type_list.clone().unwrap_or_default(),
            assignee: self.assignee_id.map(|id| id.0),
            created: Some(start..end),
            ..alarms::own_alarms(call)
        })
    }
}

fn words(list: Option<&Vec<String>>) -> Vec<&str> {
    list.into_iter().flatten().map(String::as_str).collect()
}

fn find_alarms(call: &ApiCall, (): (), _: NoQuery, JsonBody(query): JsonBody<Value>) -> HandlerResult<PageData<Value>> {
    Ok(Json(alarms_page(call, &query)?))
}

fn count_alarms(call: &ApiCall, (): (), _: NoQuery, JsonBody(query): JsonBody<Value>) -> HandlerResult<usize> {
    Ok(Json(count_of_alarms(call, &query)?))
}

/// Returns the selected entities. `None`: the query is for alarms of all entities.
fn selected_entities(call: &ApiCall, query: &Value) -> Result<Option<HashMap<Uuid, EntityId>>, ThingsboardError> {
    if query["entityFilter"].is_null() {
        return Ok(None);
    }
    let entities: EntityDataQuery = read(&json!({
        "entityFilter": query["entityFilter"], "keyFilters": query["keyFilters"],
        "pageLink": {"pageSize": platform::PAGE_SIZE_MAX, "page": 0},
    }))?;
    let rows = find(call, &entities)?.rows;
    Ok(Some(rows.iter().map(|row| (row.id().id, row.id())).collect()))
}

fn read<T: serde::de::DeserializeOwned>(json: &Value) -> Result<T, ThingsboardError> {
    from_value(json.clone()).map_err(ThingsboardError::bad_request)
}

pub fn alarms_page(call: &ApiCall, query: &Value) -> Result<PageData<Value>, ThingsboardError> {
    let link: AlarmPageLink = read(&query["pageLink"])?;
    let page_link = link.page_link()?;
    let selection = link.filter.selection(call)?;
    let mut shown = AlarmDataConverter {
        names: NameCache::new(call),
        keys: keys_of(query)?,
        budget: QueryAnswerBudget::default(),
    };
    let repository = call.entities().repository();
    let Some(named) = selected_entities(call, query)? else {
        let page = repository.alarms(&selection, &page_link)?;
        return page.try_map(|alarm| shown.data(call, &alarm, None));
    };
    let ids: Vec<Uuid> = named.keys().copied().collect();
    let page = repository.alarms_of(&ids, &selection, &page_link)?;
    page.try_map(|(entity, alarm)| shown.data(call, &alarm, named.get(&entity).copied()))
}

/// Returns the requested keys of the alarms' entities.
fn keys_of(query: &Value) -> Result<Vec<EntityKey>, ThingsboardError> {
    let mut keys = Vec::new();
    for name in ["entityFields", "latestValues"] {
        let some: Option<Vec<EntityKey>> = read(&query[name])?;
        keys.extend(some.into_iter().flatten());
    }
    Ok(keys)
}

/// Converts the alarms of one answer.
struct AlarmDataConverter<'c> {
    names: NameCache<'c>,
    keys: Vec<EntityKey>,
    budget: QueryAnswerBudget,
}

impl AlarmDataConverter<'_> {
    /// Returns the alarm with its entity, and the requested fields and values of that entity.
    fn data(&mut self, call: &ApiCall, alarm: &Alarm, entity: Option<EntityId>) -> Result<Value, ThingsboardError> {
        let mut info = self.names.info(alarm)?;
        let entity = entity.unwrap_or(alarm.originator);
        info["entityId"] = json!(entity);
        info["latest"] = json!({});
        if !self.keys.is_empty()
            && let Ok(record) = call.record(entity, Verb::Read)
        {
            let mut row = QueriedEntity::new(call, record)?;
            info["latest"] = values_json(call, &mut row, &self.keys, &mut self.budget)?;
        }
        Ok(info)
    }
}

pub fn count_of_alarms(call: &ApiCall, query: &Value) -> Result<usize, ThingsboardError> {
    let wanted: AlarmQueryFilter = read(query)?;
    let selection = wanted.selection(call)?;
    let (repository, first) = (call.entities().repository(), PageLink::new(1, 0));
    Ok(match selected_entities(call, query)? {
        None => repository.alarms(&selection, &first)?.total_elements,
        Some(named) => {
            let ids: Vec<Uuid> = named.into_keys().collect();
            repository.alarms_of(&ids, &selection, &first)?.total_elements
        }
    })
}
