//! The entities that a query's filter names, before its conditions.

use platform::PageLink;
use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::{Authority, Dashboard, RelationGroup};
use platform::repository::{Record, Selection};
use serde::Deserialize;
use serde_json::Value;

use super::super::call::{Call, Verb};
use super::super::failure::Failure;
use super::super::lists::LARGE_CHUNK;
use super::super::relations::{Direction, Filter, Walk};
use crate::strict::from_value;

/// Entities that one query looks at.
pub const CANDIDATES_MAX: usize = 100_000;
const CHUNK: usize = 1000;
/// Entities at which one query begins to search along relations.
const ROOTS_MAX: usize = 1000;

/// Kinds of ThingsBoard's of which there are no entities here.
const ABSENT_KINDS: [&str; 15] = [
    "ENTITY_VIEW",
    "EDGE",
    "WIDGET_TYPE",
    "WIDGETS_BUNDLE",
    "TB_RESOURCE",
    "NOTIFICATION",
    "NOTIFICATION_TARGET",
    "NOTIFICATION_TEMPLATE",
    "NOTIFICATION_RULE",
    "DOMAIN",
    "MOBILE_APP",
    "OAUTH2_CLIENT",
    "CALCULATED_FIELD",
    "JOB",
    "AI_MODEL",
];

fn is_absent_kind(kind: &Value) -> bool {
    kind.as_str().is_some_and(|kind| ABSENT_KINDS.contains(&kind))
}

/// Which entities.
pub enum Candidates {
    /// Of a kind, as the repository can select them; names begin with one of these, if there are any.
    Selected {
        kind: EntityType,
        selections: Vec<Selection>,
        name: Option<String>,
    },
    Listed(Vec<EntityId>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RelationsFilter {
    #[serde(default)]
    root_entity: Option<EntityId>,
    #[serde(default)]
    multi_root: bool,
    #[serde(default)]
    multi_root_entities_type: Option<EntityType>,
    #[serde(default)]
    multi_root_entity_ids: Option<Vec<Uuid>>,
    #[serde(default)]
    direction: Direction,
    #[serde(default)]
    relation_type: Option<String>,
    #[serde(default)]
    filters: Option<Vec<Filter>>,
    #[serde(default)]
    max_level: i64,
    #[serde(default)]
    fetch_last_level_only: bool,
}

pub fn candidates(call: &Call, filter: &Value) -> Result<Candidates, Failure> {
    let selected = |kind, types: Vec<String>, name: Option<&str>| Candidates::Selected {
        kind,
        selections: selections(call, types),
        name: name.filter(|name| !name.is_empty()).map(str::to_owned),
    };
    let text = |name: &str| filter[name].as_str();
    Ok(match text("type").unwrap_or_default() {
        "singleEntity" => Candidates::Listed(vec![read(&filter["singleEntity"])?]),
        "entityList" => {
            let kind: EntityType = read(&filter["entityType"])?;
            let ids: Vec<Uuid> = read(&filter["entityList"])?;
            Candidates::Listed(ids.into_iter().map(|id| EntityId::new(kind, id)).collect())
        }
        "entityName" | "entityType" if is_absent_kind(&filter["entityType"]) => Candidates::Listed(Vec::new()),
        "entityName" => selected(read(&filter["entityType"])?, Vec::new(), text("entityNameFilter")),
        "entityType" => selected(read(&filter["entityType"])?, Vec::new(), None),
        // Of these there are none.
        "edgeType" | "entityViewType" | "edgeSearchQuery" | "entityViewSearchQuery" => Candidates::Listed(Vec::new()),
        "deviceType" => selected(
            EntityType::Device,
            types(filter, "deviceType", "deviceTypes"),
            text("deviceNameFilter"),
        ),
        "assetType" => selected(
            EntityType::Asset,
            types(filter, "assetType", "assetTypes"),
            text("assetNameFilter"),
        ),
        "apiUsageState" => {
            let state = call.entities().api_usage_state(call.tenant(), call.now_ms)?;
            Candidates::Listed(vec![state.id.unwrap_or_default().entity()])
        }
        "relationsQuery" => Candidates::Listed(along_relations(call, filter, None)?),
        "deviceSearchQuery" => of_types(
            call,
            along_relations(call, filter, Some(EntityType::Device))?,
            &types(filter, "", "deviceTypes"),
        )?,
        "assetSearchQuery" => of_types(
            call,
            along_relations(call, filter, Some(EntityType::Asset))?,
            &types(filter, "", "assetTypes"),
        )?,
        other => {
            return Err(Failure::bad_request(format!(
                "Entity filter {other:?} is not supported"
            )));
        }
    })
}

fn read<T: serde::de::DeserializeOwned>(json: &Value) -> Result<T, Failure> {
    from_value(json.clone()).map_err(|error| Failure::bad_request(format!("Entity filter: {error}")))
}

fn types(filter: &Value, one: &str, many: &str) -> Vec<String> {
    let many = filter[many].as_array().into_iter().flatten();
    let all = many.chain(std::iter::once(&filter[one]));
    let all = all.filter_map(Value::as_str).filter(|kind| !kind.is_empty());
    all.map(str::to_owned).collect()
}

/// One per type; all of the kind without types.
fn selections(call: &Call, types: Vec<String>) -> Vec<Selection> {
    if types.is_empty() {
        return vec![call.own()];
    }
    let of_type = |kind| Selection {
        subtype: Some(kind),
        ..call.own()
    };
    types.into_iter().map(of_type).collect()
}

/// Entities at the other ends; the root itself is none of them.
fn along_relations(call: &Call, filter: &Value, kind: Option<EntityType>) -> Result<Vec<EntityId>, Failure> {
    let wanted: RelationsFilter = read(filter)?;
    let roots: Vec<EntityId> = match (wanted.multi_root, wanted.root_entity) {
        (true, _) => {
            let kind = wanted.multi_root_entities_type;
            let kind =
                kind.ok_or_else(|| Failure::bad_request("Entity filter: missing field `multiRootEntitiesType`"))?;
            let ids = wanted.multi_root_entity_ids.unwrap_or_default();
            ids.into_iter().map(|id| EntityId::new(kind, id)).collect()
        }
        (false, Some(root)) => vec![root],
        (false, None) => return Err(Failure::bad_request("Entity filter: missing field `rootEntity`")),
    };
    if roots.len() > ROOTS_MAX {
        return Err(Failure::bad_request(format!(
            "More than {ROOTS_MAX} entities to begin at"
        )));
    }
    let filters = match wanted.filters {
        Some(filters) => filters,
        None => vec![Filter::new(wanted.relation_type, kind.map(|kind| vec![kind]))],
    };
    let walk = Walk {
        direction: wanted.direction,
        group: RelationGroup::Common,
        levels: wanted.max_level,
        last_level_only: wanted.fetch_last_level_only,
        filters,
    };
    let mut ids = Vec::new();
    for root in roots {
        call.check_id(root, Verb::Read)?;
        let found = walk.relations(call, root)?.into_iter().map(|(_, id)| id);
        ids.extend(found.filter(|id| *id != root));
    }
    ids.sort();
    ids.dedup();
    Ok(ids)
}

fn of_types(call: &Call, mut ids: Vec<EntityId>, types: &[String]) -> Result<Candidates, Failure> {
    if !types.is_empty() {
        let mut kept = Vec::new();
        for id in ids {
            let record = call.entities().repository().get(id)?;
            if record.is_some_and(|record| types.contains(&record.row.subtype)) {
                kept.push(id);
            }
        }
        ids = kept;
    }
    Ok(Candidates::Listed(ids))
}

impl Candidates {
    /// Those that the person may read, one after the other.
    pub fn for_each(&self, call: &Call, visit: &mut dyn FnMut(Record) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut seen = 0;
        let mut count = move || {
            seen += 1;
            if seen > CANDIDATES_MAX {
                let message = format!("The filter names more than {CANDIDATES_MAX} entities: narrow it");
                return Err(Failure::bad_request(message));
            }
            Ok(())
        };
        match self {
            Candidates::Listed(ids) => {
                for id in ids {
                    count()?;
                    if let Ok(record) = call.record(*id, Verb::Read) {
                        visit(record)?;
                    }
                }
            }
            Candidates::Selected { kind, selections, name } => {
                for selection in selections {
                    let mut visit_named = |record: Record| {
                        count()?;
                        let is_named = name.as_deref().is_none_or(|name| has_name(&record.row.name, name));
                        if is_named && may_list(call, &record)? {
                            visit(record)
                        } else {
                            Ok(())
                        }
                    };
                    pages(call, *kind, selection, &mut visit_named)?;
                }
            }
        }
        Ok(())
    }
}

/// What lists of a kind leave out for users of customers.
fn may_list(call: &Call, record: &Record) -> Result<bool, Failure> {
    if record.kind == EntityType::Dashboard && call.own().customer.is_some() {
        return Ok(call.is_shown(&record.read::<Dashboard>()?));
    }
    Ok(true)
}

fn pages(
    call: &Call,
    kind: EntityType,
    selection: &Selection,
    visit: &mut dyn FnMut(Record) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let selection = match kind {
        // Who sees a dashboard is inside of it.
        EntityType::Dashboard => Selection {
            customer: None,
            ..selection.clone()
        },
        EntityType::Device
        | EntityType::Asset
        | EntityType::Customer
        | EntityType::User
        | EntityType::RuleChain
        | EntityType::QueueStats => selection.clone(),
        // Customers' users read all of them.
        EntityType::DeviceProfile | EntityType::AssetProfile => Selection {
            customer: None,
            ..selection.clone()
        },
        EntityType::Tenant if call.person.authority == Authority::SysAdmin => Selection::default(),
        EntityType::Tenant => {
            let own = EntityId::new(kind, call.tenant().0);
            return call.record(own, Verb::Read).map_or(Ok(()), visit);
        }
        EntityType::ApiUsageState => {
            let state = call.entities().api_usage_state(call.tenant(), call.now_ms)?;
            let state = state.id.unwrap_or_default().entity();
            return call.record(state, Verb::Read).map_or(Ok(()), visit);
        }
        other => {
            return Err(Failure::bad_request(format!(
                "Entities of type {other} cannot be queried"
            )));
        }
    };
    if kind == EntityType::Customer && selection.customer.is_some() {
        let own = EntityId::new(kind, call.person.customer.0);
        return visit(call.record(own, Verb::Read)?);
    }
    if kind == EntityType::RuleChain && selection.customer.is_some() {
        return Err(Failure::permission());
    }
    let chunk = match kind {
        EntityType::Dashboard | EntityType::RuleChain => LARGE_CHUNK,
        _ => CHUNK,
    };
    for number in 0.. {
        let page = call
            .entities()
            .repository()
            .page(kind, &selection, &PageLink::new(chunk, number))?;
        for record in page.data {
            visit(record)?;
        }
        if !page.has_next {
            break;
        }
    }
    Ok(())
}

/// Begins with it, capitals or not; `%` stands for anything.
fn has_name(name: &str, pattern: &str) -> bool {
    let (name, pattern) = (name.to_lowercase(), pattern.to_lowercase());
    let mut rest = name.as_str();
    for (index, part) in pattern.split('%').enumerate() {
        let found = if index == 0 {
            rest.starts_with(part).then_some(0)
        } else {
            rest.find(part)
        };
        let Some(at) = found else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_begin_with_the_filter() {
        for (name, pattern, expected) in [
            ("Thermostat 1", "thermo", true),
            ("Thermostat 1", "stat", false),
            ("Thermostat 1", "%stat", true),
            ("Thermostat 1", "T%1", true),
            ("Thermostat 1", "%2", false),
            ("a", "", true),
        ] {
            assert_eq!(has_name(name, pattern), expected, "{name} {pattern}");
        }
    }
}
