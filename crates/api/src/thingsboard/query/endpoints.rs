//! The operations: finding and counting entities and alarms.

use axum::Json;
use platform::ids::{EntityId, EntityType};
use platform::model::Alarm;
use platform::{Page, PageLink};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::alarms::{self, Names, severities_of, statuses_of};
use super::super::call::Call;
use super::super::failure::Failure;
use super::super::operation::{Body, NoQuery, Outcome, post};
use super::{EntityDataQuery, count, find};
use crate::endpoint::Endpoint;
use crate::guard::Who;
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
    Ok(Json(find(call, &query)?.page(call, &query)?))
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
    #[serde(flatten)]
    wanted: AlarmWanted,
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

/// What is asked of the repository, and the entity that it is asked for.
type Asked = (Option<EntityId>, AlarmSelection);

/// Alarms of the entities that the query names; of everybody's without a filter.
fn matching(call: &Call, query: &Value, wanted: &AlarmWanted) -> Result<Vec<Asked>, Failure> {
    let selection = wanted.selection(call)?;
    if query["entityFilter"].is_null() {
        return Ok(vec![(None, selection)]);
    }
    let entities: EntityDataQuery = read(&json!({
        "entityFilter": query["entityFilter"], "keyFilters": query["keyFilters"],
        "pageLink": {"pageSize": platform::PAGE_SIZE_MAX, "page": 0},
    }))?;
    let rows = find(call, &entities)?.rows;
    let of = |row: &super::Row| {
        let selection = AlarmSelection {
            entity: Some(row.record.row.id),
            ..selection.clone()
        };
        (Some(row.id()), selection)
    };
    Ok(rows.iter().map(of).collect())
}

fn read<T: serde::de::DeserializeOwned>(json: &Value) -> Result<T, Failure> {
    serde_json::from_value(json.clone()).map_err(|error| Failure::bad_request(error.to_string()))
}

pub fn alarms_page(call: &Call, query: &Value) -> Result<Page<Value>, Failure> {
    let link: AlarmPageLink = read(&query["pageLink"])?;
    let size = link.page_size.unwrap_or(100);
    let page_link = PageLink::parse(size, link.page.unwrap_or(0), link.text_search.as_deref(), None, None)?;
    let mut names = Names::new(call);
    let asked = matching(call, query, &link.wanted)?;
    let repository = call.entities().repository();
    if let [(entity, selection)] = asked.as_slice() {
        let page = repository.alarms(selection, &page_link)?;
        return page.try_map(|alarm| data(&mut names, &alarm, *entity));
    }
    // The newest of all: as many of each as the page could need.
    let needed = page_link.page.saturating_add(1).saturating_mul(page_link.page_size);
    let first = PageLink {
        page: 0,
        page_size: needed.min(platform::PAGE_SIZE_MAX),
        ..page_link.clone()
    };
    let (mut all, mut total) = (Vec::new(), 0);
    for (entity, selection) in &asked {
        let page = repository.alarms(selection, &first)?;
        total += page.total_elements;
        all.extend(page.data.into_iter().map(|alarm| (*entity, alarm)));
    }
    all.sort_by_key(|(_, alarm)| std::cmp::Reverse((alarm.created_time, alarm.id)));
    let skipped = page_link.page.saturating_mul(page_link.page_size);
    let shown = all.into_iter().skip(skipped).take(page_link.page_size);
    let shown = shown.map(|(entity, alarm)| data(&mut names, &alarm, entity));
    Ok(Page::new(shown.collect::<Result<_, _>>()?, total, &page_link))
}

/// An alarm as queries show it: with the entity that it is shown for.
pub fn data(names: &mut Names<'_>, alarm: &Alarm, entity: Option<EntityId>) -> Result<Value, Failure> {
    let mut info = names.info(alarm)?;
    info["entityId"] = json!(entity.unwrap_or(alarm.originator));
    info["latest"] = json!({});
    Ok(info)
}

pub fn count_of_alarms(call: &Call, query: &Value) -> Result<usize, Failure> {
    let wanted: AlarmWanted = read(query)?;
    let mut count = 0;
    for (_, selection) in matching(call, query, &wanted)? {
        let page = call.entities().repository().alarms(&selection, &PageLink::new(1, 0))?;
        count += page.total_elements;
    }
    Ok(count)
}
