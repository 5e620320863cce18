//! A predicate over one value alone, as queries for entities have it. Thresholds that should come from attributes are not
//! looked up: their default counts.

use serde_json::Value as Json;
use timeseries::Value;

use super::definition::KeyTable;
use super::predicate::{DynamicSource, Lookup, Predicate, Values, parse_predicate};

#[derive(Debug)]
pub struct ValueFilter {
    predicate: Predicate,
    /// None of them has a value.
    thresholds: Vec<Option<Value>>,
}

struct Nobody;

impl Lookup for Nobody {
    fn attribute(&self, _: DynamicSource, _: &str) -> Option<Value> {
        None
    }
}

impl ValueFilter {
    pub fn parse(json: &Json) -> Result<ValueFilter, String> {
        let mut keys = Vec::new();
        let predicate = parse_predicate(json, false, &mut KeyTable::default(), &mut keys)?;
        let count = keys.iter().max().map_or(0, |last| last + 1);
        Ok(ValueFilter {
            predicate,
            thresholds: vec![None; count],
        })
    }

    pub fn is_true(&self, value: &Value) -> bool {
        let values = Values {
            values: &self.thresholds,
            lookup: &Nobody,
        };
        self.predicate.is_true(value, &values)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_is_compared_with_the_default() {
        let dynamic = json!({"sourceType": "CURRENT_DEVICE", "sourceAttribute": "limit"});
        let json =
            json!({"type": "NUMERIC", "operation": "GREATER", "value": {"defaultValue": 5, "dynamicValue": dynamic}});
        let filter = ValueFilter::parse(&json).unwrap();
        assert!(filter.is_true(&Value::Long(6)) && !filter.is_true(&Value::Double(5.0)));
        assert!(!filter.is_true(&Value::String("word".into())));
        assert!(ValueFilter::parse(&json!({"type": "COLOUR"})).is_err());
    }
}
