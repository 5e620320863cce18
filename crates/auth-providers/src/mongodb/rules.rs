//! Access rules of clients in a collection of MongoDB.
//!
//! A document is a rule with the fields of EMQX: `permission`, `action`, `topics` or `topic`, and optionally `qos`,
//! `retain` and `ipaddress` or `ipaddr`. Other fields, such as those that the filter compares, have no meaning.

use std::sync::Arc;

use auth::{Credentials, ProviderOutcome, TemplateUse};
use connectors::mongodb::{Bson, BsonDocument, MongoClient, MongoConnectorConfig, MongoFind};
use serde_json::{Map, Number, Value};

use super::filter::FilterTemplate;
use super::{NAME, check_collection, check_field, source_error};
use crate::ACCESS_SOURCE;
use crate::provider::{SourceLimits, SourceProvider};
use crate::rows::Parameters;
use crate::source::{LoginSource, QuestionKey, SourceError, SourceFuture};
use crate::source_rules::{CONDITIONS, RULES_MAX, outcome};

/// Fields of documents, and of rules.
const FIELDS: [(&str, &str); 8] = [
    ("permission", "permission"),
    ("action", "action"),
    ("topic", "topic"),
    ("topics", "topics"),
    ("qos", "qos"),
    ("retain", "retain"),
    ("ipaddress", "ipaddr"),
    ("ipaddr", "ipaddr"),
];

/// Configuration of the source.
pub struct MongodbRulesConfig {
    pub connection: MongoConnectorConfig,
    pub collection: String,
    /// JSON with placeholders in its values.
    pub filter: String,
    /// Fields that give the order of the rules. A `-` in front makes the order descending.
    pub sort: Vec<String>,
    /// The server ends a query after this time.
    pub timeout_ms: u64,
}

/// A collection with access rules.
pub struct MongodbRules {
    client: MongoClient,
    find: MongoFind,
    filter: FilterTemplate,
    parameters: Parameters,
}

/// Creates the source. Does not connect. The error names the field.
pub fn rules(config: MongodbRulesConfig, limits: SourceLimits) -> Result<Arc<SourceProvider<MongodbRules>>, String> {
    check_collection(&config.collection)?;
    let filter = FilterTemplate::parse(&config.filter)?;
    let client = MongoClient::new(&config.connection).map_err(|problems| problems.join("; "))?;
    let source = MongodbRules {
        client,
        find: MongoFind {
            collection: config.collection,
            projection: projection(),
            sort: sort(&config.sort)?,
            limit: RULES_MAX as u32 + 1,
            timeout_ms: config.timeout_ms,
        },
        parameters: Parameters::parse(TemplateUse::Rules, "filter", filter.templates())?.with_empty_values(),
        filter,
    };
    Ok(SourceProvider::new(source, limits))
}

fn projection() -> BsonDocument {
    let names = FIELDS.iter().map(|(name, _)| *name).chain(CONDITIONS);
    names.fold(BsonDocument::new(), |projection, name| projection.with(name, 1))
}

fn sort(fields: &[String]) -> Result<BsonDocument, String> {
    fields.iter().try_fold(BsonDocument::new(), |sort, field| {
        let (name, direction) = match field.strip_prefix('-') {
            Some(name) => (name, -1),
            None => (field.as_str(), 1),
        };
        check_field("sort", name)?;
        Ok(sort.with(name, direction))
    })
}

impl MongodbRules {
    async fn rules(&self, client: &Credentials) -> Result<ProviderOutcome, SourceError> {
        let values = self.parameters.values(client);
        let Some(filter) = values.and_then(|values| self.filter.render(values)) else {
            return Ok(ProviderOutcome::Ignore);
        };
        let documents = self.client.find(&self.find, filter).await.map_err(source_error)?;
        let rules: Result<Vec<Value>, String> = documents.iter().map(rule).collect();
        outcome("the documents", rules.map_err(SourceError::Invalid)?)
    }
}

impl LoginSource for MongodbRules {
    fn name(&self) -> &'static str {
        NAME
    }

    fn role(&self) -> &'static str {
        ACCESS_SOURCE
    }

    /// A missing value is an empty text, as in EMQX: documents for all clients still match.
    fn question(&self, client: &Credentials) -> Option<QuestionKey> {
        self.parameters.question(NAME, client)
    }

    fn ask<'a>(&'a self, client: &'a Credentials) -> SourceFuture<'a> {
        Box::pin(async { Ok(self.rules(client).await?.into()) })
    }
}

/// Returns a rule in the JSON form of EMQX. Null and an empty address stand for a missing field.
fn rule(document: &BsonDocument) -> Result<Value, String> {
    let mut fields = Map::new();
    for (name, field) in FIELDS {
        let value = match document.get(name) {
            None | Some(Bson::Null) => continue,
            Some(Bson::Text(text)) if field == "ipaddr" && text.is_empty() => continue,
            Some(value) => {
                json(value).ok_or_else(|| format!("the field {name} of a document has an unsupported type"))?
            }
        };
        if fields.insert(field.to_owned(), value).is_some() {
            return Err(format!("two fields of a document have an {field}"));
        }
    }
    for name in CONDITIONS {
        if !matches!(document.get(name), None | Some(Bson::Null)) {
            return Err(format!("the condition of the field {name} is not supported"));
        }
    }
    Ok(Value::Object(fields))
}

/// `None`: rules have no values of this type.
fn json(value: &Bson) -> Option<Value> {
    match value {
        Bson::Text(text) => Some(Value::String(text.clone())),
        Bson::Bool(value) => Some(Value::Bool(*value)),
        Bson::Array(values) => values
            .iter()
            .map(json)
            .collect::<Option<Vec<Value>>>()
            .map(Value::Array),
        // Shells write numbers as floating-point numbers.
        number => match number.as_f64()? {
            whole @ 0.0..=2.0 if whole.fract() == 0.0 => Some(Value::from(whole as u8)),
            // NaN and infinity are no numbers of JSON. Null would stand for a missing condition.
            other => Number::from_f64(other).map(Value::Number),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> BsonDocument {
        BsonDocument::new()
            .with("_id", Bson::Other(0x07))
            .with("username", "u")
            .with("permission", "allow")
            .with("action", "publish")
    }

    #[test]
    fn documents_of_emqx_are_rules() {
        let topics = Bson::Array(vec![Bson::from("a/#"), Bson::from("eq b/+")]);
        let found = rule(&document().with("topics", topics.clone()).with("qos", Bson::Double(1.0))).unwrap();
        assert_eq!(
            found,
            json!({ "permission": "allow", "action": "publish", "topics": ["a/#", "eq b/+"], "qos": 1 })
        );
        let more = document()
            .with("topic", "t")
            .with("qos", Bson::Array(vec![Bson::Int32(0), Bson::Int64(2)]))
            .with("retain", false)
            .with("ipaddress", "10.0.0.0/8")
            .with("ipaddr", "");
        let expected = json!({
            "permission": "allow", "action": "publish", "topic": "t", "qos": [0, 2], "retain": false,
            "ipaddr": "10.0.0.0/8"
        });
        assert_eq!(rule(&more), Ok(expected));
        assert!(outcome("x", vec![rule(&more).unwrap()]).is_ok());
        // Each of them would be another rule without the field.
        for (name, value, reason) in [
            ("ipaddr", Bson::Int32(1), "ipaddr"),
            ("qos", Bson::Double(1.5), "qos"),
            ("topics", Bson::from("t"), "topic"),
        ] {
            let rules = rule(&document().with("topic", "t").with(name, value)).unwrap();
            let error = outcome("x", vec![rules]).expect_err(name).to_string();
            assert!(error.contains(reason), "{error}");
        }
        let both = document().with("ipaddress", "10.0.0.1").with("ipaddr", "10.0.0.2");
        assert!(rule(&both).unwrap_err().contains("two fields"));
        let error = rule(&document().with("qos", Bson::Other(0x09))).unwrap_err();
        assert!(error.contains("the field qos"), "{error}");
        for condition in CONDITIONS {
            let error = rule(&document().with("topic", "t").with(condition, "x")).unwrap_err();
            assert!(error.contains(condition), "{error}");
        }
    }

    #[test]
    fn order_has_directions() {
        let fields = ["priority".to_owned(), "-_id".to_owned()];
        assert_eq!(
            sort(&fields),
            Ok(BsonDocument::new().with("priority", 1).with("_id", -1))
        );
        for wrong in ["", "-", "$natural", "a.b"] {
            assert!(sort(&[wrong.to_owned()]).unwrap_err().starts_with("sort: "), "{wrong}");
        }
    }
}
