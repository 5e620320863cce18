//! Conditions of a query over one value, with ThingsBoard's answers for values that are not there, and thresholds that are attributes of
//! whoever asks.

use platform::alarm_rules::ValueFilter;
use platform::ids::{CustomerId, EntityId};
use platform::model::Scope;
use serde_json::Value as Json;
use timeseries::Value;

use super::super::call::Call;
use super::super::failure::Failure;
use super::super::values;

/// Conditions within conditions.
const DEPTH_MAX: usize = 20;

#[derive(Debug)]
pub enum Condition {
    All(Vec<Condition>),
    Any(Vec<Condition>),
    /// A text that is empty asks for nothing.
    Nothing,
    One {
        filter: ValueFilter,
        when_absent: bool,
    },
}

impl Condition {
    pub fn parse(call: &Call, json: &Json) -> Result<Condition, Failure> {
        parse(call, json, 0)
    }

    /// `None`: it is not there.
    pub fn holds(&self, value: Option<&Value>) -> bool {
        match self {
            Condition::All(all) => all.iter().all(|one| one.holds(value)),
            Condition::Any(all) => all.iter().any(|one| one.holds(value)),
            Condition::Nothing => true,
            Condition::One { filter, when_absent } => value.map_or(*when_absent, |value| filter.is_true(value)),
        }
    }
}

fn parse(call: &Call, json: &Json, depth: usize) -> Result<Condition, Failure> {
    if depth > DEPTH_MAX {
        return Err(Failure::bad_request(format!(
            "More than {DEPTH_MAX} predicates within each other"
        )));
    }
    if json["type"] == "COMPLEX" {
        let parts = json["predicates"].as_array().into_iter().flatten();
        let parts = parts
            .map(|part| parse(call, part, depth + 1))
            .collect::<Result<_, _>>()?;
        return match json["operation"].as_str() {
            Some("AND") => Ok(Condition::All(parts)),
            Some("OR") => Ok(Condition::Any(parts)),
            other => Err(Failure::bad_request(format!("{other:?} joins no predicates"))),
        };
    }
    let mut json = json.clone();
    if let Some(threshold) = threshold(call, &json["value"])? {
        json["value"] = serde_json::json!({ "defaultValue": threshold });
    }
    if json["type"] == "STRING" && json["value"]["defaultValue"] == "" {
        return Ok(Condition::Nothing);
    }
    let filter = ValueFilter::parse(&json).map_err(Failure::bad_request)?;
    let when_absent = match json["type"].as_str() {
        // A switch that was never set is off.
        Some("BOOLEAN") => filter.is_true(&Value::Bool(false)),
        Some("STRING") => matches!(json["operation"].as_str(), Some("NOT_EQUAL" | "NOT_CONTAINS")),
        _ => false,
    };
    Ok(Condition::One { filter, when_absent })
}

/// In place of the default: what the user chose, or an attribute of the user, the customer or the tenant.
fn threshold(call: &Call, json: &Json) -> Result<Option<Json>, Failure> {
    if !json["userValue"].is_null() {
        return Ok(Some(json["userValue"].clone()));
    }
    let dynamic = &json["dynamicValue"];
    let (Some(source), Some(name)) = (dynamic["sourceType"].as_str(), dynamic["sourceAttribute"].as_str()) else {
        return Ok(None);
    };
    let person = &call.person;
    let owners: [Option<EntityId>; 3] = [
        Some(person.id.entity()),
        (person.customer != CustomerId::NULL).then(|| person.customer.entity()),
        Some(person.tenant.entity()),
    ];
    let first = match source {
        "CURRENT_USER" => 0,
        "CURRENT_CUSTOMER" => 1,
        "CURRENT_TENANT" => 2,
        other => {
            return Err(Failure::bad_request(format!(
                "{other:?} is no source of a dynamic value"
            )));
        }
    };
    let count = if dynamic["inherit"] == true { owners.len() } else { 1 };
    for owner in owners.into_iter().skip(first).take(count).flatten() {
        let found = call.platform().attributes(owner, Scope::ServerScope, Some(&[name]))?;
        if let Some(attribute) = found.first() {
            return Ok(Some(values::typed(&attribute.value)));
        }
    }
    Ok(None)
}
