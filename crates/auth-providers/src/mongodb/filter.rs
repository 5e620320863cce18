//! Filters of MongoDB as JSON, with placeholders in their values.
//!
//! A placeholder may stand where MongoDB compares a value. Elsewhere a text has a meaning: `$where` is JavaScript,
//! `$regex` a pattern, and in `$expr` a text that begins with `$` is a field. There, placeholders are an error.

use connectors::mongodb::{Bson, BsonDocument};
use serde_json::{Map, Value};

/// Operators whose values are compared, or contain such operators.
const OPERATORS: [&str; 14] = [
    "$all",
    "$and",
    "$elemMatch",
    "$eq",
    "$gt",
    "$gte",
    "$in",
    "$lt",
    "$lte",
    "$ne",
    "$nin",
    "$nor",
    "$not",
    "$or",
];

/// Maximum depth of a filter.
const DEPTH_MAX: u32 = 20;

/// A filter whose values may be placeholders.
pub(super) struct FilterTemplate {
    root: Vec<(String, FilterValue)>,
    /// The template of each value with a placeholder, in order.
    templates: Vec<String>,
}

enum FilterValue {
    Fixed(Bson),
    /// Index of a template.
    Template(usize),
    Document(Vec<(String, FilterValue)>),
    Array(Vec<FilterValue>),
}

struct FilterParser {
    templates: Vec<String>,
}

/// Where a value is.
#[derive(Clone, Copy)]
struct Position<'a> {
    depth: u32,
    /// Operator around the value in which texts have another meaning.
    operator: Option<&'a str>,
}

impl FilterTemplate {
    /// The error names the option.
    pub fn parse(text: &str) -> Result<FilterTemplate, String> {
        let wrong = |problem: String| format!("filter: {problem}");
        let fields: Value = serde_json::from_str(text).map_err(|error| {
            wrong(format!(
                "is not JSON: {error}; expected for example {{\"username\": \"${{username}}\"}}"
            ))
        })?;
        let Value::Object(fields) = fields else {
            return Err(wrong("expected a JSON object".to_owned()));
        };
        let mut parser = FilterParser { templates: Vec::new() };
        let position = Position {
            depth: 0,
            operator: None,
        };
        let root = parser.document(&fields, position).map_err(wrong)?;
        Ok(FilterTemplate {
            root,
            templates: parser.templates,
        })
    }

    pub fn templates(&self) -> &[String] {
        &self.templates
    }

    /// Inserts the values of the templates. `None`: a value is no text, so it belongs to no document.
    pub fn render(&self, values: Vec<Vec<u8>>) -> Option<BsonDocument> {
        let texts: Result<Vec<String>, _> = values.into_iter().map(String::from_utf8).collect();
        Some(render_document(&self.root, &texts.ok()?))
    }
}

impl FilterParser {
    fn document(
        &mut self,
        fields: &Map<String, Value>,
        at: Position<'_>,
    ) -> Result<Vec<(String, FilterValue)>, String> {
        let mut converted = Vec::with_capacity(fields.len());
        for (name, value) in fields {
            if name.contains("${") {
                return Err(format!(
                    "the name {name:?} has a placeholder: only values may have placeholders"
                ));
            }
            if name.contains('\0') {
                return Err(format!("the name {name:?} contains NUL"));
            }
            let is_special = name.starts_with('$') && !OPERATORS.contains(&name.as_str());
            let inner = Position {
                depth: at.depth + 1,
                operator: at.operator.or(is_special.then_some(name)),
            };
            converted.push((name.clone(), self.value(value, inner)?));
        }
        Ok(converted)
    }

    fn value(&mut self, value: &Value, at: Position<'_>) -> Result<FilterValue, String> {
        if at.depth > DEPTH_MAX {
            return Err(format!("is nested deeper than {DEPTH_MAX} levels"));
        }
        Ok(match value {
            Value::String(text) if text.contains("${") => {
                if let Some(operator) = at.operator {
                    return Err(format!(
                        "{operator} has a placeholder: a client could change the meaning of the filter; compare with $eq or $in"
                    ));
                }
                self.templates.push(text.clone());
                FilterValue::Template(self.templates.len() - 1)
            }
            Value::Object(fields) => FilterValue::Document(self.document(fields, at)?),
            Value::Array(values) => {
                let inner = Position {
                    depth: at.depth + 1,
                    ..at
                };
                let values = values.iter().map(|value| self.value(value, inner));
                FilterValue::Array(values.collect::<Result<_, String>>()?)
            }
            Value::Null => FilterValue::Fixed(Bson::Null),
            Value::Bool(value) => FilterValue::Fixed(Bson::Bool(*value)),
            Value::String(text) => FilterValue::Fixed(Bson::from(text.as_str())),
            Value::Number(number) => FilterValue::Fixed(match (number.as_i64(), number.as_f64()) {
                (Some(integer), _) => i32::try_from(integer).map_or(Bson::Int64(integer), Bson::Int32),
                (None, Some(number)) => Bson::Double(number),
                (None, None) => return Err(format!("the number {number} is out of range")),
            }),
        })
    }
}

fn render_document(fields: &[(String, FilterValue)], texts: &[String]) -> BsonDocument {
    fields.iter().fold(BsonDocument::new(), |document, (name, value)| {
        document.with(name, render_value(value, texts))
    })
}

fn render_value(value: &FilterValue, texts: &[String]) -> Bson {
    match value {
        FilterValue::Fixed(value) => value.clone(),
        // Each template has a value.
        FilterValue::Template(index) => texts.get(*index).map_or(Bson::Null, |text| Bson::from(text.as_str())),
        FilterValue::Document(fields) => render_document(fields, texts).into(),
        FilterValue::Array(values) => Bson::Array(values.iter().map(|value| render_value(value, texts)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> FilterTemplate {
        FilterTemplate::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn values_are_texts_of_the_filter() {
        let filter = parse(
            r#"{"username": "${username}", "$or": [{"n": {"$in": [1, 5000000000, 1.5, null, "x ${clientid}"]}}, {"a": true}]}"#,
        );
        let mut templates = filter.templates().to_vec();
        templates.sort_unstable();
        assert_eq!(templates, ["${username}", "x ${clientid}"]);
        for value in ["u", "{\"$ne\": null}", "$where", "${username}", "a.b", "x\0y", ""] {
            let values = filter.templates().iter().map(|_| value.as_bytes().to_vec()).collect();
            let rendered = filter.render(values).unwrap();
            assert_eq!(rendered.text("username"), Some(value));
            let Bson::Document(first) = &rendered.array("$or")[0] else {
                panic!("{rendered:?}");
            };
            assert_eq!(
                first.document("n").unwrap().array("$in"),
                [
                    Bson::Int32(1),
                    Bson::Int64(5_000_000_000),
                    Bson::Double(1.5),
                    Bson::Null,
                    Bson::from(value)
                ]
            );
        }
        assert_eq!(filter.render(vec![b"u".to_vec(), vec![0xFF]]), None);
    }

    #[test]
    fn placeholders_are_only_values_that_are_compared() {
        for (text, reason) in [
            (r#"{"${username}": 1}"#, "only values may have placeholders"),
            (r#"{"a": {"${username}": 1}}"#, "only values may have placeholders"),
            (
                r#"{"$where": "this.name == '${username}'"}"#,
                "$where has a placeholder",
            ),
            (r#"{"a": {"$regex": "^${username}$"}}"#, "$regex has a placeholder"),
            (
                r#"{"$expr": {"$eq": ["$name", "${username}"]}}"#,
                "$expr has a placeholder",
            ),
            (
                r#"{"a": {"$not": {"$regex": "${username}"}}}"#,
                "$regex has a placeholder",
            ),
            (r#"{"$and": [{"$where": "${username}"}]}"#, "$where has a placeholder"),
            (
                r#"{"$jsonSchema": {"properties": {"a": {"enum": ["${username}"]}}}}"#,
                "$jsonSchema has",
            ),
            (r#"{"a\u0000b": 1}"#, "contains NUL"),
            ("[]", "expected a JSON object"),
            ("username = ${username}", "is not JSON"),
            ("", "is not JSON"),
        ] {
            let error = FilterTemplate::parse(text).map(|_| ()).expect_err(text);
            assert!(
                error.starts_with("filter: ") && error.contains(reason),
                "{text}: {error}"
            );
        }
        let deep = format!("{}1{}", "{\"a\":".repeat(30), "}".repeat(30));
        assert!(FilterTemplate::parse(&deep).is_err());
        // Without a placeholder, every operator is allowed.
        assert!(
            parse(r#"{"a": {"$regex": "^x"}, "$where": "true", "u": "${username}"}"#)
                .templates()
                .len()
                == 1
        );
    }
}
