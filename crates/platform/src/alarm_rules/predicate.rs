//! Predicates over one value, and values that come from attributes of the device, its customer or its tenant.

use serde_json::Value as Json;
use timeseries::Value;

use super::definition::{KeySource, KeyTable};

/// Whose attribute a threshold is, beyond the device's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DynamicSource {
    Customer,
    Tenant,
}

/// Server attributes of the owners of a device.
pub trait Lookup {
    fn attribute(&self, source: DynamicSource, name: &str) -> Option<Value>;
}

/// What predicates are evaluated over: the values of a device, and its owners.
pub(super) struct Values<'a> {
    pub values: &'a [Option<Value>],
    pub lookup: &'a dyn Lookup,
}

#[derive(Debug)]
pub(super) struct Dynamic {
    /// `None`: not the device's.
    device_key: Option<usize>,
    customer: bool,
    tenant: bool,
    name: Box<str>,
}

impl Dynamic {
    /// With the number of the device's attribute, if it is one.
    pub fn parse(json: &Json, table: &mut KeyTable) -> Result<Option<(Dynamic, Option<usize>)>, String> {
        let (Some(source), Some(name)) = (json["sourceType"].as_str(), json["sourceAttribute"].as_str()) else {
            return Ok(None);
        };
        let inherit = json["inherit"].as_bool().unwrap_or(false);
        let (is_device, customer, tenant) = match source {
            "CURRENT_DEVICE" => (true, inherit, inherit),
            "CURRENT_CUSTOMER" => (false, true, inherit),
            "CURRENT_TENANT" => (false, false, true),
            // ThingsBoard resolves these in dashboards only.
            "CURRENT_USER" => return Ok(None),
            other => return Err(format!("{other:?} is no source of a dynamic value")),
        };
        let device_key = is_device.then(|| table.number(KeySource::Attribute, name));
        let dynamic = Dynamic {
            device_key,
            customer,
            tenant,
            name: name.into(),
        };
        Ok(Some((dynamic, device_key)))
    }

    /// The device's, else the customer's, else the tenant's, as far as it is inherited.
    pub fn resolve(&self, values: &Values<'_>) -> Option<Value> {
        let own = self.device_key.and_then(|key| values.values[key].clone());
        let customer = || {
            self.customer
                .then(|| values.lookup.attribute(DynamicSource::Customer, &self.name))
                .flatten()
        };
        let tenant = || {
            self.tenant
                .then(|| values.lookup.attribute(DynamicSource::Tenant, &self.name))
                .flatten()
        };
        own.or_else(customer).or_else(tenant)
    }
}

#[derive(Debug)]
pub(super) enum Predicate {
    Number(NumberOperation, Threshold<f64>),
    Text {
        operation: TextOperation,
        ignores_case: bool,
        threshold: Threshold<String>,
    },
    Bool {
        is_equal: bool,
        threshold: Threshold<bool>,
    },
    All(Vec<Predicate>),
    Any(Vec<Predicate>),
}

#[derive(Debug)]
pub(super) struct Threshold<T> {
    /// `None` when a constant is compared, which makes sense with dynamic values only.
    default: Option<T>,
    dynamic: Option<Dynamic>,
}

impl<T: Clone> Threshold<T> {
    fn resolve(&self, values: &Values<'_>, convert: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let dynamic = self.dynamic.as_ref().and_then(|dynamic| dynamic.resolve(values));
        dynamic
            .and_then(|value| convert(&value))
            .or_else(|| self.default.clone())
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum NumberOperation {
    Equal,
    NotEqual,
    Greater,
    Less,
    GreaterOrEqual,
    LessOrEqual,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum TextOperation {
    Equal,
    NotEqual,
    StartsWith,
    EndsWith,
    Contains,
    NotContains,
    In,
    NotIn,
}

pub(super) fn parse_predicate(
    json: &Json,
    is_constant: bool,
    table: &mut KeyTable,
    keys: &mut Vec<usize>,
) -> Result<Predicate, String> {
    let operation = json["operation"].as_str().unwrap_or_default();
    match json["type"].as_str() {
        Some("NUMERIC") => {
            let operation = number_operation(operation)?;
            Ok(Predicate::Number(
                operation,
                threshold(json, is_constant, table, keys, Json::as_f64)?,
            ))
        }
        Some("STRING") => Ok(Predicate::Text {
            operation: text_operation(operation)?,
            ignores_case: json["ignoreCase"].as_bool().unwrap_or(false),
            threshold: threshold(json, is_constant, table, keys, |json| json.as_str().map(str::to_owned))?,
        }),
        Some("BOOLEAN") => Ok(Predicate::Bool {
            is_equal: match operation {
                "EQUAL" => true,
                "NOT_EQUAL" => false,
                other => return Err(format!("{other:?} is no operation of a boolean")),
            },
            threshold: threshold(json, is_constant, table, keys, Json::as_bool)?,
        }),
        Some("COMPLEX") => {
            let parts = json["predicates"].as_array().into_iter().flatten();
            let parts = parts
                .map(|part| parse_predicate(part, is_constant, table, keys))
                .collect::<Result<_, _>>()?;
            match operation {
                "AND" => Ok(Predicate::All(parts)),
                "OR" => Ok(Predicate::Any(parts)),
                other => Err(format!("{other:?} is no operation of several predicates")),
            }
        }
        other => Err(format!("{:?} is no type of a predicate", other.unwrap_or_default())),
    }
}

fn threshold<T>(
    json: &Json,
    is_constant: bool,
    table: &mut KeyTable,
    keys: &mut Vec<usize>,
    read: impl Fn(&Json) -> Option<T>,
) -> Result<Threshold<T>, String> {
    let value = &json["value"];
    let dynamic = Dynamic::parse(&value["dynamicValue"], table)?;
    keys.extend(dynamic.as_ref().and_then(|(_, key)| *key));
    Ok(Threshold {
        default: if is_constant {
            None
        } else {
            read(&value["defaultValue"])
        },
        dynamic: dynamic.map(|(dynamic, _)| dynamic),
    })
}

fn number_operation(text: &str) -> Result<NumberOperation, String> {
    Ok(match text {
        "EQUAL" => NumberOperation::Equal,
        "NOT_EQUAL" => NumberOperation::NotEqual,
        "GREATER" => NumberOperation::Greater,
        "LESS" => NumberOperation::Less,
        "GREATER_OR_EQUAL" => NumberOperation::GreaterOrEqual,
        "LESS_OR_EQUAL" => NumberOperation::LessOrEqual,
        other => return Err(format!("{other:?} is no operation of a number")),
    })
}

fn text_operation(text: &str) -> Result<TextOperation, String> {
    Ok(match text {
        "EQUAL" => TextOperation::Equal,
        "NOT_EQUAL" => TextOperation::NotEqual,
        "STARTS_WITH" => TextOperation::StartsWith,
        "ENDS_WITH" => TextOperation::EndsWith,
        "CONTAINS" => TextOperation::Contains,
        "NOT_CONTAINS" => TextOperation::NotContains,
        "IN" => TextOperation::In,
        "NOT_IN" => TextOperation::NotIn,
        other => return Err(format!("{other:?} is no operation of a text")),
    })
}

impl Predicate {
    pub fn is_true(&self, value: &Value, values: &Values<'_>) -> bool {
        match self {
            Predicate::Number(operation, threshold) => match (number(value), threshold.resolve(values, number)) {
                (Some(value), Some(threshold)) => operation.holds(value, threshold),
                _ => false,
            },
            Predicate::Text {
                operation,
                ignores_case,
                threshold,
            } => {
                let Some(threshold) = threshold.resolve(values, |value| Some(text(value))) else {
                    return false;
                };
                let value = text(value);
                if *ignores_case {
                    operation.holds(&value.to_lowercase(), &threshold.to_lowercase())
                } else {
                    operation.holds(&value, &threshold)
                }
            }
            Predicate::Bool { is_equal, threshold } => match (boolean(value), threshold.resolve(values, boolean)) {
                (Some(value), Some(threshold)) => (value == threshold) == *is_equal,
                _ => false,
            },
            Predicate::All(parts) => parts.iter().all(|part| part.is_true(value, values)),
            Predicate::Any(parts) => parts.iter().any(|part| part.is_true(value, values)),
        }
    }
}

impl NumberOperation {
    fn holds(self, value: f64, threshold: f64) -> bool {
        match self {
            NumberOperation::Equal => value.to_bits() == threshold.to_bits(),
            NumberOperation::NotEqual => value.to_bits() != threshold.to_bits(),
            NumberOperation::Greater => value > threshold,
            NumberOperation::Less => value < threshold,
            NumberOperation::GreaterOrEqual => value >= threshold,
            NumberOperation::LessOrEqual => value <= threshold,
        }
    }
}

impl TextOperation {
    fn holds(self, value: &str, threshold: &str) -> bool {
        match self {
            TextOperation::Equal => value == threshold,
            TextOperation::NotEqual => value != threshold,
            TextOperation::StartsWith => value.starts_with(threshold),
            TextOperation::EndsWith => value.ends_with(threshold),
            TextOperation::Contains => value.contains(threshold),
            TextOperation::NotContains => !value.contains(threshold),
            TextOperation::In => is_one_of(value, threshold),
            TextOperation::NotIn => !is_one_of(value, threshold),
        }
    }
}

/// Of a list with commas, whose parts may be in quotes.
fn is_one_of(value: &str, list: &str) -> bool {
    let mut parts = list.split(',').map(str::trim);
    parts.any(|part| {
        let quoted = ['"', '\'']
            .iter()
            .find_map(|quote| part.strip_prefix(*quote)?.strip_suffix(*quote));
        quoted.unwrap_or(part) == value
    })
}

pub(super) fn number(value: &Value) -> Option<f64> {
    match value {
        #[expect(clippy::cast_precision_loss, reason = "thresholds are doubles")]
        Value::Long(value) => Some(*value as f64),
        Value::Double(value) => Some(*value),
        Value::Bool(value) => Some(f64::from(u8::from(*value))),
        Value::String(text) | Value::Json(text) => text.trim().parse().ok(),
    }
}

pub(super) fn whole(value: &Value) -> Option<i64> {
    match value {
        Value::Long(value) => Some(*value),
        Value::Bool(value) => Some(i64::from(*value)),
        other => {
            let value = number(other)?;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "saturates, and decimal places are cut off"
            )]
            (!value.is_nan()).then_some(value as i64)
        }
    }
}

fn boolean(value: &Value) -> Option<bool> {
    Some(match value {
        Value::Bool(value) => *value,
        Value::Long(value) => *value > 0,
        Value::Double(value) => *value > 0.0,
        Value::String(text) | Value::Json(text) => text.eq_ignore_ascii_case("true"),
    })
}

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Bool(value) => value.to_string(),
        Value::Long(value) => value.to_string(),
        Value::Double(value) => format!("{value:?}"),
        Value::String(text) | Value::Json(text) => text.to_string(),
    }
}
