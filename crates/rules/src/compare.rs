//! Comparison operators between values of any type, with the conversions of EMQX.

use std::cmp::Ordering;

use rule_values::{FunctionError, StepBudget, Value, number};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComparisonOperator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    MatchesFilter,
}

/// A number and a string are compared as numbers; `true`, `false` or `null` and a string as strings. Undefined is equal
/// only to itself; all other comparisons with it are false.
pub(crate) fn compare(
    operator: ComparisonOperator,
    left: &Value,
    right: &Value,
    budget: &mut StepBudget,
) -> Result<bool, FunctionError> {
    match operator {
        ComparisonOperator::MatchesFilter => budget.read_both(left, right)?,
        _ => budget.compare(left, right)?,
    }
    let order = match (left, right) {
        (Value::Undefined, Value::Undefined) => Ordering::Equal,
        (Value::Undefined, _) | (_, Value::Undefined) => return Ok(false),
        _ if operator == ComparisonOperator::MatchesFilter => return matches_filter(left, right),
        (Value::Int(_) | Value::Float(_), Value::Text(text)) => left.order(&to_number(text)?),
        (Value::Text(text), Value::Int(_) | Value::Float(_)) => to_number(text)?.order(right),
        (Value::Null | Value::Bool(_), Value::Text(text)) => word(left).cmp(text.as_bytes()),
        (Value::Text(text), Value::Null | Value::Bool(_)) => text.as_bytes().cmp(word(right)),
        _ => left.order(right),
    };
    Ok(match operator {
        ComparisonOperator::Equal | ComparisonOperator::MatchesFilter => order.is_eq(),
        ComparisonOperator::NotEqual => order.is_ne(),
        ComparisonOperator::Less => order.is_lt(),
        ComparisonOperator::LessOrEqual => order.is_le(),
        ComparisonOperator::Greater => order.is_gt(),
        ComparisonOperator::GreaterOrEqual => order.is_ge(),
    })
}

/// Returns whether type and value are equal: 1 and 1.0 are different.
pub(crate) fn is_same(left: &Value, right: &Value, budget: &mut StepBudget) -> Result<bool, FunctionError> {
    budget.compare(left, right)?;
    Ok(left == right)
}

fn word(value: &Value) -> &'static [u8] {
    value.word().unwrap_or_default().as_bytes()
}

fn to_number(text: &[u8]) -> Result<Value, FunctionError> {
    let int = number::parse_integer(text).map(Value::Int);
    let number = int.or_else(|| number::parse_float(text).map(Value::Float));
    number.ok_or_else(|| {
        let shown = String::from_utf8_lossy(&text[..text.len().min(40)]).into_owned();
        FunctionError::from(format!(
            "a number is compared with the string '{shown}', which is not a number"
        ))
    })
}

fn matches_filter(topic: &Value, filter: &Value) -> Result<bool, FunctionError> {
    match (topic.as_str(), filter.as_str()) {
        (Some(topic), Some(filter)) => Ok(mqtt::filter_matches(filter, topic)),
        _ => {
            let (topic, filter) = (topic.type_name(), filter.type_name());
            Err(FunctionError::from(format!(
                "=~ requires a topic and a topic filter, not {topic} and {filter}"
            )))
        }
    }
}
