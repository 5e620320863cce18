//! Comparison operators between values of any type, with EMQX's conversions.

use std::cmp::Ordering;

use crate::error::Fault;
use crate::expr::Comparison;
use crate::number;
use crate::value::Value;

/// A number against a string compares as numbers; a word (`true`, `null`) against a string as strings; undefined is equal to
/// itself and in no relation to anything else.
pub(crate) fn compare(operator: Comparison, left: &Value, right: &Value) -> Result<bool, Fault> {
    let order = match (left, right) {
        (Value::Undefined, Value::Undefined) => Ordering::Equal,
        (Value::Undefined, _) | (_, Value::Undefined) => return Ok(false),
        _ if operator == Comparison::MatchesFilter => return matches_filter(left, right),
        (Value::Int(_) | Value::Float(_), Value::Text(text)) => left.order(&to_number(text)?),
        (Value::Text(text), Value::Int(_) | Value::Float(_)) => to_number(text)?.order(right),
        (Value::Null | Value::Bool(_), Value::Text(text)) => word(left).cmp(text.as_bytes()),
        (Value::Text(text), Value::Null | Value::Bool(_)) => text.as_bytes().cmp(word(right)),
        _ => left.order(right),
    };
    Ok(match operator {
        Comparison::Equal | Comparison::MatchesFilter => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
    })
}

fn word(value: &Value) -> &'static [u8] {
    value.word().unwrap_or_default().as_bytes()
}

fn to_number(text: &[u8]) -> Result<Value, Fault> {
    let int = number::parse_integer(text).map(Value::Int);
    let number = int.or_else(|| number::parse_float(text).map(Value::Float));
    number.ok_or_else(|| {
        let shown = String::from_utf8_lossy(&text[..text.len().min(40)]).into_owned();
        Fault::from(format!(
            "a number is compared with the string '{shown}', which is no number"
        ))
    })
}

fn matches_filter(topic: &Value, filter: &Value) -> Result<bool, Fault> {
    match (topic.as_str(), filter.as_str()) {
        (Some(topic), Some(filter)) => Ok(mqtt::filter_matches(filter, topic)),
        _ => {
            let (topic, filter) = (topic.type_name(), filter.type_name());
            Err(Fault::from(format!(
                "=~ takes a topic and a topic filter, not {topic} and {filter}"
            )))
        }
    }
}
