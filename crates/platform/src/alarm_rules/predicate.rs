//! Predicates on values, and thresholds from attributes of the device, its customer or its tenant.

use serde_json::Value as Json;
use timeseries::PointValue;

use super::definition::{KeySource, KeyTable};

/// An owner of the device whose attribute is a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DynamicSource {
    Customer,
    Tenant,
}

/// Server attributes of a device's owners.
pub trait OwnerAttributeSource {
    fn attribute(&self, source: DynamicSource, name: &str) -> Option<PointValue>;
}

/// Input of predicates: the device's values and its owners' attributes.
pub(super) struct Values<'a> {
    pub values: &'a [Option<PointValue>],
    pub lookup: &'a dyn OwnerAttributeSource,
}

#[derive(Debug)]
pub(super) struct DynamicValue {
    /// Index of the attribute of the device. `None` if only attributes of its owners count.
    device_key: Option<usize>,
    customer: bool,
    tenant: bool,
    name: Box<str>,
}

impl DynamicValue {
    /// Also returns the index of the device's attribute, if it is one.
    pub fn parse(json: &Json, table: &mut KeyTable) -> Result<Option<(DynamicValue, Option<usize>)>, String> {
        let (Some(source), Some(name)) = (json["sourceType"].as_str(), json["sourceAttribute"].as_str()) else {
            return Ok(None);
        };
        let inherit = json["inherit"].as_bool().unwrap_or(false);
        let (is_device, customer, tenant) = match source {
            "CURRENT_DEVICE" => (true, inherit, inherit),
            "CURRENT_CUSTOMER" => (false, true, inherit),
            "CURRENT_TENANT" => (false, false, true),
            // ThingsBoard resolves these only in dashboards.
            "CURRENT_USER" => return Ok(None),
            other => return Err(format!("dynamic value source {other:?} is not supported")),
        };
        let device_key = is_device.then(|| table.number(KeySource::Attribute, name));
        let dynamic = DynamicValue {
            device_key,
            customer,
            tenant,
            name: name.into(),
        };
        Ok(Some((dynamic, device_key)))
    }

    /// The device's attribute, or the customer's or tenant's if inherited.
    pub fn resolve(&self, values: &Values<'_>) -> Option<PointValue> {
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
    Number(NumberOperation, PredicateThreshold<f64>),
    Text {
        operation: TextOperation,
        ignores_case: bool,
        threshold: PredicateThreshold<String>,
    },
    Bool {
        is_equal: bool,
        threshold: PredicateThreshold<bool>,
    },
    All(Vec<Predicate>),
    Any(Vec<Predicate>),
}

#[derive(Debug)]
pub(super) struct PredicateThreshold<T> {
    /// `None` for a comparison with a constant, which uses only the dynamic value.
    default: Option<T>,
    dynamic: Option<DynamicValue>,
}

impl<T: Clone> PredicateThreshold<T> {
    fn resolve(&self, values: &Values<'_>, convert: impl Fn(&PointValue) -> Option<T>) -> Option<T> {
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
                other => return Err(format!("boolean operation {other:?} is not supported")),
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
                other => Err(format!("complex operation {other:?} is not supported")),
            }
        }
        other => Err(format!(
            "predicate type {:?} is not supported",
            other.unwrap_or_default()
        )),
    }
}

fn threshold<T>(
    json: &Json,
    is_constant: bool,
    table: &mut KeyTable,
    keys: &mut Vec<usize>,
    read: impl Fn(&Json) -> Option<T>,
) -> Result<PredicateThreshold<T>, String> {
    let value = &json["value"];
    let dynamic = DynamicValue::parse(&value["dynamicValue"], table)?;
    keys.extend(dynamic.as_ref().and_then(|(_, key)| *key));
    Ok(PredicateThreshold {
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
        other => return Err(format!("numeric operation {other:?} is not supported")),
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
        other => return Err(format!("string operation {other:?} is not supported")),
    })
}

impl Predicate {
    pub fn is_true(&self, value: &PointValue, values: &Values<'_>) -> bool {
        match self {
            Predicate::Number(operation, threshold) => match (number(value), threshold.resolve(values, number)) {
                (Some(value), Some(threshold)) => operation.compare(value, threshold),
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
                    operation.compare(&value.to_lowercase(), &threshold.to_lowercase())
                } else {
                    operation.compare(&value, &threshold)
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
    fn compare(self, value: f64, threshold: f64) -> bool {
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
    fn compare(self, value: &str, threshold: &str) -> bool {
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

/// Whether the value is in a comma-separated list, whose parts may be quoted.
fn is_one_of(value: &str, list: &str) -> bool {
    let mut parts = list.split(',').map(str::trim);
    parts.any(|part| {
        let quoted = ['"', '\'']
            .iter()
            .find_map(|quote| part.strip_prefix(*quote)?.strip_suffix(*quote));
        quoted.unwrap_or(part) == value
    })
}

pub(super) fn number(value: &PointValue) -> Option<f64> {
    match value {
        #[expect(clippy::cast_precision_loss, reason = "thresholds are doubles")]
        PointValue::Long(value) => Some(*value as f64),
        PointValue::Double(value) => Some(*value),
        PointValue::Bool(value) => Some(f64::from(u8::from(*value))),
        PointValue::String(text) | PointValue::Json(text) => text.trim().parse().ok(),
    }
}

pub(super) fn whole(value: &PointValue) -> Option<i64> {
    match value {
        PointValue::Long(value) => Some(*value),
        PointValue::Bool(value) => Some(i64::from(*value)),
        other => {
            let value = number(other)?;
            #[expect(clippy::cast_possible_truncation, reason = "saturates, and truncates decimal places")]
            (!value.is_nan()).then_some(value as i64)
        }
    }
}

fn boolean(value: &PointValue) -> Option<bool> {
    Some(match value {
        PointValue::Bool(value) => *value,
        PointValue::Long(value) => *value > 0,
        PointValue::Double(value) => *value > 0.0,
        PointValue::String(text) | PointValue::Json(text) => text.eq_ignore_ascii_case("true"),
    })
}

pub(super) fn text(value: &PointValue) -> String {
    match value {
        PointValue::Bool(value) => value.to_string(),
        PointValue::Long(value) => value.to_string(),
        PointValue::Double(value) => format!("{value:?}"),
        PointValue::String(text) | PointValue::Json(text) => text.to_string(),
    }
}
