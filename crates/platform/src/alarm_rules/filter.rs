//! A predicate on a single value, as in entity queries. Thresholds from attributes are not looked up; their default
//! is used.

use serde_json::Value as Json;
use timeseries::PointValue;

use super::definition::KeyTable;
use super::predicate::{DynamicSource, OwnerAttributeSource, Predicate, Values, parse_predicate};

#[derive(Debug)]
pub struct ValueFilter {
    predicate: Predicate,
    /// One `None` per threshold, because attributes are not looked up here.
    thresholds: Vec<Option<PointValue>>,
}

struct NoOwners;

impl OwnerAttributeSource for NoOwners {
    fn attribute(&self, _: DynamicSource, _: &str) -> Option<PointValue> {
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

    pub fn is_true(&self, value: &PointValue) -> bool {
        let values = Values {
            values: &self.thresholds,
            lookup: &NoOwners,
        };
        self.predicate.is_true(value, &values)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn filter_compares_with_the_default_threshold() {
        let dynamic = json!({"sourceType": "CURRENT_DEVICE", "sourceAttribute": "limit"});
        let json =
            json!({"type": "NUMERIC", "operation": "GREATER", "value": {"defaultValue": 5, "dynamicValue": dynamic}});
        let filter = ValueFilter::parse(&json).unwrap();
        assert!(filter.is_true(&PointValue::Long(6)) && !filter.is_true(&PointValue::Double(5.0)));
        assert!(!filter.is_true(&PointValue::String("word".into())));
        assert!(ValueFilter::parse(&json!({"type": "COLOUR"})).is_err());
    }
}
