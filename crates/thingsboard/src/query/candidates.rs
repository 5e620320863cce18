//! The entities that a query's filter selects, before its conditions.

use platform::PageLink;
use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::{Authority, RelationGroup};
use platform::repository::{EntityRecord, Selection};
use serde::Deserialize;
use serde_json::Value;
use web::strict::from_value;

use super::super::call::{ApiCall, Verb};
use super::super::failure::ThingsboardError;
use super::super::lists::LARGE_CHUNK;
use super::super::relations::{EntitySearchDirection, RelationEntityTypeFilter, RelationTraversal};

/// Limit of entities that one query examines.
pub const CANDIDATES_MAX: usize = 100_000;
const CHUNK: usize = 1000;
/// Limit of root entities of one query along relations.
const ROOTS_MAX: usize = 1000;

/// Entity types of ThingsBoard that this server does not have.
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

fn is_unsupported_kind(kind: &Value) -> bool {
    kind.as_str().is_some_and(|kind| ABSENT_KINDS.contains(&kind))
}

/// The selected entities.
pub enum Candidates {
    /// Entities of a type that the repository can select; their names match the pattern, if there is one.
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
    direction: EntitySearchDirection,
    #[serde(default)]
    relation_type: Option<String>,
    #[serde(default)]
    filters: Option<Vec<RelationEntityTypeFilter>>,
    #[serde(default)]
    max_level: i64,
    #[serde(default)]
    fetch_last_level_only: bool,
}

pub fn candidates(call: &ApiCall, filter: &Value) -> Result<Candidates, ThingsboardError> {
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
        "entityName" | "entityType" if is_unsupported_kind(&filter["entityType"]) => Candidates::Listed(Vec::new()),
        "entityName" => selected(read(&filter["entityType"])?, Vec::new(), text("entityNameFilter")),
        "entityType" => selected(read(&filter["entityType"])?, Vec::new(), None),
        // This server has no entities of these types.
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
            return Err(ThingsboardError::bad_request(format!(
                "Entity filter {other:?} is not supported"
            )));
        }
    })
}

fn read<T: serde::de::DeserializeOwned>(json: &Value) -> Result<T, ThingsboardError> {
    from_value(json.clone()).map_err(|error| ThingsboardError::bad_request(format!("Entity filter: {error}")))
}

fn types(filter: &Value, one: &str, many: &str) -> Vec<String> {
    let many = filter[many].as_array().into_iter().flatten();
    let all = many.chain(std::iter::once(&filter[one]));
    let all = all.filter_map(Value::as_str).filter(|kind| !kind.is_empty());
    all.map(str::to_owned).collect()
}

/// One selection per type; without types, one for all entities.
fn selections(call: &ApiCall, types: Vec<String>) -> Vec<Selection> {
    if types.is_empty() {
        return vec![call.own_entities()];
    }
    let of_type = |kind| Selection {
        subtype: Some(kind),
        ..call.own_entities()
    };
    types.into_iter().map(of_type).collect()
}

/// Returns the entities at the other ends of relations, without the root.
fn along_relations(
    call: &ApiCall,
    filter: &Value,
    kind: Option<EntityType>,
) -> Result<Vec<EntityId>, ThingsboardError> {
    let wanted: RelationsFilter = read(filter)?;
    let roots: Vec<EntityId> = match (wanted.multi_root, wanted.root_entity) {
        (true, _) => {
            let kind = wanted.multi_root_entities_type;
            let kind = kind
                .ok_or_else(|| ThingsboardError::bad_request("Entity filter: missing field `multiRootEntitiesType`"))?;
            let ids = wanted.multi_root_entity_ids.unwrap_or_default();
            ids.into_iter().map(|id| EntityId::new(kind, id)).collect()
        }
        (false, Some(root)) => vec![root],
        (false, None) => {
            return Err(ThingsboardError::bad_request(
                "Entity filter: missing field `rootEntity`",
            ));
        }
    };
    if roots.len() > ROOTS_MAX {
        return Err(ThingsboardError::bad_request(format!(
            "More than {ROOTS_MAX} root entities"
        )));
    }
    let filters = match wanted.filters {
        Some(filters) => filters,
        None => vec![RelationEntityTypeFilter::new(
            wanted.relation_type,
            kind.map(|kind| vec![kind]),
        )],
    };
    let walk = RelationTraversal {
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

fn of_types(call: &ApiCall, mut ids: Vec<EntityId>, types: &[String]) -> Result<Candidates, ThingsboardError> {
    if !types.is_empty() {
        let mut matching = Vec::new();
        for id in ids {
            let record = call.entities().repository().get(id)?;
            if record.is_some_and(|record| types.contains(&record.row.subtype)) {
                matching.push(id);
            }
        }
        ids = matching;
    }
    Ok(Candidates::Listed(ids))
}

impl Candidates {
    /// Calls the function for each entity that the user may read.
    pub fn for_each(
        &self,
        call: &ApiCall,
        visit: &mut dyn FnMut(EntityRecord) -> Result<(), ThingsboardError>,
    ) -> Result<(), ThingsboardError> {
        let mut seen = 0;
        let mut count = move || {
            seen += 1;
            if seen > CANDIDATES_MAX {
                let message = format!("The filter selects more than {CANDIDATES_MAX} entities: use a narrower filter");
                return Err(ThingsboardError::bad_request(message));
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
                    let mut visit_named = |record: EntityRecord| {
                        count()?;
                        let is_named = name.as_deref().is_none_or(|name| has_name(&record.row.name, name));
                        if is_named && call.may(&record, Verb::Read)? {
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

fn pages(
    call: &ApiCall,
    kind: EntityType,
    selection: &Selection,
    visit: &mut dyn FnMut(EntityRecord) -> Result<(), ThingsboardError>,
) -> Result<(), ThingsboardError> {
    let selection = match kind {
        // The customers of a dashboard are stored in its body.
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
        // Customer users can read all profiles.
        EntityType::DeviceProfile | EntityType::AssetProfile => Selection {
            customer: None,
            ..selection.clone()
        },
        EntityType::Tenant if call.principal.authority == Authority::SysAdmin => Selection::default(),
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
            return Err(ThingsboardError::bad_request(format!(
                "Entities of type {other} cannot be queried"
            )));
        }
    };
    if kind == EntityType::Customer && selection.customer.is_some() {
        let own = EntityId::new(kind, call.principal.customer.0);
        return visit(call.record(own, Verb::Read)?);
    }
    if kind == EntityType::RuleChain && selection.customer.is_some() {
        return Err(ThingsboardError::permission());
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

/// Whether the name begins with the pattern, ignoring case. `%` matches any text.
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
    fn names_match_the_pattern_from_their_start() {
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
