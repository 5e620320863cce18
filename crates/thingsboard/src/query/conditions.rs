//! Conditions of a query on one value. Missing values are treated as in ThingsBoard. Thresholds may be attributes of
//! the calling user.

use platform::alarm_rules::ValueFilter;
use platform::ids::{CustomerId, EntityId};
use platform::model::AttributeScope;
use serde_json::Value as Json;
use timeseries::PointValue;

use super::super::call::{ApiCall, Verb};
use super::super::failure::ThingsboardError;
use super::super::values;

/// Limit of nested conditions.
const DEPTH_MAX: usize = 20;

#[derive(Debug)]
pub enum QueryCondition {
    All(Vec<QueryCondition>),
    Any(Vec<QueryCondition>),
    /// An empty text, which matches everything.
    Nothing,
    One {
        filter: ValueFilter,
        when_absent: bool,
    },
}

impl QueryCondition {
    pub fn parse(call: &ApiCall, json: &Json) -> Result<QueryCondition, ThingsboardError> {
        parse(call, json, 0)
    }

    /// `None`: the value is missing.
    pub fn matches(&self, value: Option<&PointValue>) -> bool {
        match self {
            QueryCondition::All(all) => all.iter().all(|one| one.matches(value)),
            QueryCondition::Any(all) => all.iter().any(|one| one.matches(value)),
            QueryCondition::Nothing => true,
            QueryCondition::One { filter, when_absent } => value.map_or(*when_absent, |value| filter.is_true(value)),
        }
    }
}

fn parse(call: &ApiCall, json: &Json, depth: usize) -> Result<QueryCondition, ThingsboardError> {
    if depth > DEPTH_MAX {
        return Err(ThingsboardError::bad_request(format!(
            "More than {DEPTH_MAX} nested predicates"
        )));
    }
    if json["type"] == "COMPLEX" {
        let parts = json["predicates"].as_array().into_iter().flatten();
        let parts = parts
            .map(|part| parse(call, part, depth + 1))
            .collect::<Result<_, _>>()?;
        return match json["operation"].as_str() {
            Some("AND") => Ok(QueryCondition::All(parts)),
            Some("OR") => Ok(QueryCondition::Any(parts)),
            other => Err(ThingsboardError::bad_request(format!(
                "{other:?} is not a valid operation to combine predicates"
            ))),
        };
    }
    let mut json = json.clone();
    if let Some(threshold) = threshold(call, &json["value"])? {
        json["value"] = serde_json::json!({ "defaultValue": threshold });
    }
    if json["type"] == "STRING" && json["value"]["defaultValue"] == "" {
        return Ok(QueryCondition::Nothing);
    }
    let filter = ValueFilter::parse(&json).map_err(ThingsboardError::bad_request)?;
    let when_absent = match json["type"].as_str() {
        // A missing boolean counts as false.
        Some("BOOLEAN") => filter.is_true(&PointValue::Bool(false)),
        Some("STRING") => matches!(json["operation"].as_str(), Some("NOT_EQUAL" | "NOT_CONTAINS")),
        _ => false,
    };
    Ok(QueryCondition::One { filter, when_absent })
}

/// Returns the value that replaces the default: the user's choice, or an attribute of the user, the customer or the
/// tenant. Fails if the user may not read attributes of the source. Inherited attributes that the user may not read are
/// skipped.
fn threshold(call: &ApiCall, json: &Json) -> Result<Option<Json>, ThingsboardError> {
    if !json["userValue"].is_null() {
        return Ok(Some(json["userValue"].clone()));
    }
    let dynamic = &json["dynamicValue"];
    let (Some(source), Some(name)) = (dynamic["sourceType"].as_str(), dynamic["sourceAttribute"].as_str()) else {
        return Ok(None);
    };
    let principal = &call.principal;
    let owners: [Option<EntityId>; 3] = [
        Some(principal.id.entity()),
        (principal.customer != CustomerId::NULL).then(|| principal.customer.entity()),
        Some(principal.tenant.entity()),
    ];
    let first = match source {
        "CURRENT_USER" => 0,
        "CURRENT_CUSTOMER" => 1,
        "CURRENT_TENANT" => 2,
        other => {
            return Err(ThingsboardError::bad_request(format!(
                "{other:?} is not a valid source of a dynamic value"
            )));
        }
    };
    let count = if dynamic["inherit"] == true { owners.len() } else { 1 };
    for (index, owner) in owners.into_iter().skip(first).take(count).enumerate() {
        let Some(owner) = owner else { continue };
        match call.check_id(owner, Verb::ReadAttributes) {
            Ok(()) => {}
            Err(refused) if refused.is_permission() && index == 0 => return Err(refused),
            Err(refused) if refused.hides_entity() => continue,
            Err(other) => return Err(other),
        }
        let found = call
            .platform()
            .attributes(owner, AttributeScope::ServerScope, Some(&[name]))?;
        if let Some(attribute) = found.first() {
            return Ok(Some(values::typed(&attribute.value)));
        }
    }
    Ok(None)
}
