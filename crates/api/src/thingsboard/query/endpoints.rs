//! The operations: finding and counting entities and alarms.

use std::collections::HashMap;

use axum::Json;
use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::Alarm;
use platform::{Page, PageLink};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::alarms::{self, Names, severities_of, statuses_of};
use super::super::call::{Call, Verb};
use super::super::failure::Failure;
use super::super::operation::{Body, NoQuery, Outcome, post};
use super::{EntityDataQuery, EntityKey, KeyType, QuerySort, Room, Row, count, find, values_json};
use crate::endpoint::Endpoint;
use crate::guard::Who;
use crate::strict::from_value;
use platform::repository::AlarmSelection;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/entitiesQuery/find", "find_entities", Who::ANY, find_entities)
            .says(
                "Find entities",
                "By a filter and conditions over fields, attributes and latest values; sorted, in pages.",
            )
            .returns_json("A page of entities with what was asked of them."),
        post("/api/entitiesQuery/count", "count_entities", Who::ANY, count_entities)
            .says("Count entities", "By a filter and conditions.")
            .returns_json("How many there are."),
        post(
            "/api/entitiesQuery/find/keys",
            "find_entity_keys",
            Who::TENANT,
            find_keys,
        )
        .says(
            "List keys of entities",
            "Of latest values and attributes of the first hundred entities that are found.",
        )
        .returns_json("`entityTypes`, `timeseries` and `attribute`."),
        post("/api/alarmsQuery/find", "find_alarms", Who::TENANT, find_alarms)
            .says(
                "Find alarms",
                "Of the entities that a filter names, by status, severity and type.",
            )
            .returns_json("A page of alarms."),
        post("/api/alarmsQuery/count", "count_alarms", Who::TENANT, count_alarms)
            .says(
                "Count alarms",
                "Of the entities that a filter names, by status, severity and type.",
            )
            .returns_json("How many there are."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Queries")).collect()
}

fn find_entities(call: &Call, (): (), _: NoQuery, Body(query): Body<EntityDataQuery>) -> Outcome<Page<Value>> {
    Ok(Json(find(call, &query)?.page(call, &query, &mut Room::default())?))
}

fn count_entities(call: &Call, (): (), _: NoQuery, Body(query): Body<EntityDataQuery>) -> Outcome<usize> {
    Ok(Json(count(call, &query)?))
}

fn find_keys(call: &Call, (): (), _: NoQuery, Body(query): Body<EntityDataQuery>) -> Outcome<Value> {
    const LOOKED_AT: usize = 100;
    let found = find(call, &query)?;
    let (mut kinds, mut timeseries, mut attributes) = (Vec::<EntityType>::new(), Vec::new(), Vec::new());
    for row in found.rows.iter().take(LOOKED_AT) {
        let id = row.id();
        kinds.push(id.kind);
        timeseries.extend(call.platform().store().keys(id.id.into())?);
        for scope in platform::model::Scope::ALL {
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

/// Which alarms.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AlarmWanted {
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
    wanted: AlarmWanted,
}

impl AlarmPageLink {
    fn page_link(&self) -> Result<PageLink, Failure> {
        let sort = self
            .sort_order
            .as_ref()
            .filter(|sort| sort.key.kind == KeyType::AlarmField);
        // What a client calls the field, and what an alarm has.
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

impl AlarmWanted {
    fn selection(&self, call: &Call) -> Result<AlarmSelection, Failure> {
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
            ..alarms::own(call)
        })
    }
}

fn words(list: Option<&Vec<String>>) -> Vec<&str> {
    list.into_iter().flatten().map(String::as_str).collect()
}

fn find_alarms(call: &Call, (): (), _: NoQuery, Body(query): Body<Value>) -> Outcome<Page<Value>> {
    Ok(Json(alarms_page(call, &query)?))
}

fn count_alarms(call: &Call, (): (), _: NoQuery, Body(query): Body<Value>) -> Outcome<usize> {
    Ok(Json(count_of_alarms(call, &query)?))
}

/// The entities that the query names; `None`: everybody's alarms are asked for.
fn named(call: &Call, query: &Value) -> Result<Option<HashMap<Uuid, EntityId>>, Failure> {
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

fn read<T: serde::de::DeserializeOwned>(json: &Value) -> Result<T, Failure> {
    from_value(json.clone()).map_err(|error| Failure::bad_request(error.to_string()))
}

pub fn alarms_page(call: &Call, query: &Value) -> Result<Page<Value>, Failure> {
    let link: AlarmPageLink = read(&query["pageLink"])?;
    let page_link = link.page_link()?;
    let selection = link.wanted.selection(call)?;
    let mut shown = Shown {
        names: Names::new(call),
        keys: keys_of(query)?,
        room: Room::default(),
    };
    let repository = call.entities().repository();
    let Some(named) = named(call, query)? else {
        let page = repository.alarms(&selection, &page_link)?;
        return page.try_map(|alarm| shown.data(call, &alarm, None));
    };
    let ids: Vec<Uuid> = named.keys().copied().collect();
    let page = repository.alarms_of(&ids, &selection, &page_link)?;
    page.try_map(|(entity, alarm)| shown.data(call, &alarm, named.get(&entity).copied()))
}

/// What is asked of the entities beside their alarms.
fn keys_of(query: &Value) -> Result<Vec<EntityKey>, Failure> {
    let mut keys = Vec::new();
    for name in ["entityFields", "latestValues"] {
        let some: Option<Vec<EntityKey>> = read(&query[name])?;
        keys.extend(some.into_iter().flatten());
    }
    Ok(keys)
}

/// For the alarms of one answer.
struct Shown<'c> {
    names: Names<'c>,
    keys: Vec<EntityKey>,
    room: Room,
}

impl Shown<'_> {
    /// An alarm as queries show it: with the entity that it is shown for, and what is asked of that.
    fn data(&mut self, call: &Call, alarm: &Alarm, entity: Option<EntityId>) -> Result<Value, Failure> {
        let mut info = self.names.info(alarm)?;
        let entity = entity.unwrap_or(alarm.originator);
        info["entityId"] = json!(entity);
        info["latest"] = json!({});
        if !self.keys.is_empty()
            && let Ok(record) = call.record(entity, Verb::Read)
        {
            info["latest"] = values_json(call, &mut Row::new(record), &self.keys, &mut self.room)?;
        }
        Ok(info)
    }
}

pub fn count_of_alarms(call: &Call, query: &Value) -> Result<usize, Failure> {
    let wanted: AlarmWanted = read(query)?;
    let selection = wanted.selection(call)?;
    let (repository, first) = (call.entities().repository(), PageLink::new(1, 0));
    Ok(match named(call, query)? {
        None => repository.alarms(&selection, &first)?.total_elements,
        Some(named) => {
            let ids: Vec<Uuid> = named.into_keys().collect();
            repository.alarms_of(&ids, &selection, &first)?.total_elements
        }
    })
}
