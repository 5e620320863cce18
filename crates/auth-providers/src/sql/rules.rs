//! Access rules of clients in a table of an SQL database.
//!
//! The query returns the rules of a client, in the order in which they are checked, with the columns of EMQX:
//! `permission`, `action` and `topic`, and optionally `qos`, `retain` and `ipaddress` or `ipaddr`.

use std::sync::Arc;

use auth::{Credentials, ProviderOutcome, TemplateUse};
use connectors::sql::{LookupError, LookupRow, LookupValue};
use serde_json::{Map, Value};

use super::RowLookup;
use crate::ACCESS_SOURCE;
use crate::provider::{SourceLimits, SourceProvider};
use crate::rows::Parameters;
use crate::source::{LoginSource, QuestionKey, SourceError, SourceFuture};
use crate::source_rules::{CONDITIONS, RULES_MAX, outcome};

/// A column that every result has. The others are checked in each row.
pub(crate) const RULE_COLUMNS: &[&str] = &["topic"];

/// Columns, and the fields of rules.
const COLUMNS: [(&str, &str); 7] = [
    ("permission", "permission"),
    ("action", "action"),
    ("topic", "topic"),
    ("qos", "qos"),
    ("retain", "retain"),
    ("ipaddress", "ipaddr"),
    ("ipaddr", "ipaddr"),
];

/// A table with access rules.
pub struct SqlRules<L> {
    lookup: L,
    parameters: Parameters,
}

impl<L: RowLookup> SqlRules<L> {
    /// Creates the source of a statement that returns [`RULE_COLUMNS`]. The error names the field.
    pub(crate) fn source(lookup: L, limits: SourceLimits) -> Result<Arc<SourceProvider<SqlRules<L>>>, String> {
        let source = SqlRules {
            parameters: Parameters::parse(TemplateUse::Rules, "query", lookup.templates())?,
            lookup,
        };
        Ok(SourceProvider::new(source, limits))
    }

    async fn rules(&self, client: &Credentials) -> Result<ProviderOutcome, SourceError> {
        let Some(values) = self.parameters.values(client) else {
            return Ok(ProviderOutcome::Ignore);
        };
        let rows = match self.lookup.rows(&values, RULES_MAX + 1).await {
            Ok(rows) => rows,
            // Rules for all clients may deny, so this does not mean that there are no rules.
            Err(LookupError::InvalidValue) => {
                return Err(SourceError::Invalid(
                    "the database refuses a value of the client".into(),
                ));
            }
            Err(LookupError::Failed(reason)) => return Err(SourceError::Failed(reason)),
        };
        let rules: Result<Vec<Value>, String> = rows.into_iter().map(rule).collect();
        outcome("the rows of the query", rules.map_err(SourceError::Invalid)?)
    }
}

impl<L: RowLookup> LoginSource for SqlRules<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn role(&self) -> &'static str {
        ACCESS_SOURCE
    }

    /// A client without a value for a placeholder has no rules in the table.
    fn question(&self, client: &Credentials) -> Option<QuestionKey> {
        self.parameters.question(L::NAME, client)
    }

    fn ask<'a>(&'a self, client: &'a Credentials) -> SourceFuture<'a> {
        Box::pin(async { Ok(self.rules(client).await?.into()) })
    }
}

/// Returns a rule in the JSON form of EMQX. NULL and, except for the topic, empty text stand for a missing field.
fn rule(mut row: LookupRow) -> Result<Value, String> {
    // MySQL and SQLite keep the case in which a query or table writes a name. An unknown condition would be left out.
    row.columns.iter_mut().for_each(|(name, _)| name.make_ascii_lowercase());
    let mut fields = Map::new();
    for (column, field) in COLUMNS {
        match row.take(column) {
            None | Some(LookupValue::Null) => {}
            Some(LookupValue::Bytes(bytes)) => {
                let text = String::from_utf8(bytes).map_err(|_| format!("the column {column} is not text"))?;
                let text = text.trim_end_matches(' ');
                if !text.is_empty() || field == "topic" {
                    let value = Value::String(text.to_owned());
                    if fields.insert(field.to_owned(), value).is_some() {
                        return Err(format!("two columns of a row have an {field}"));
                    }
                }
            }
            Some(LookupValue::Unsupported) => {
                return Err(format!(
                    "the column {column} of the query is neither text nor boolean or integer: add a cast"
                ));
            }
        }
    }
    for column in CONDITIONS {
        if !matches!(row.take(column), None | Some(LookupValue::Null)) {
            return Err(format!("the condition of the column {column} is not supported"));
        }
    }
    Ok(Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn text(value: &str) -> LookupValue {
        LookupValue::Bytes(value.as_bytes().to_vec())
    }

    fn row(columns: &[(&str, LookupValue)]) -> LookupRow {
        let columns = columns.iter();
        LookupRow {
            columns: columns
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
        }
    }

    /// A database that refuses each value, as PostgreSQL refuses a NUL character.
    struct RefusingDatabase(Vec<String>);

    impl RowLookup for RefusingDatabase {
        const NAME: &'static str = "refusing";

        fn templates(&self) -> &[String] {
            &self.0
        }

        async fn rows(&self, _: &[Vec<u8>], _: usize) -> Result<Vec<LookupRow>, LookupError> {
            Err(LookupError::InvalidValue)
        }
    }

    #[tokio::test]
    async fn client_with_a_refused_value_does_not_count_as_without_rules() {
        let lookup = RefusingDatabase(vec!["${clientid}".to_owned()]);
        let parameters = Parameters::parse(TemplateUse::Rules, "query", lookup.templates()).unwrap();
        let client = Credentials {
            client_id: "a".to_owned(),
            user_name: None,
            password: None,
            address: Ipv4Addr::LOCALHOST.into(),
            certificate_common_name: None,
            certificate_subject: None,
            action: None,
        };
        let found = SqlRules { lookup, parameters }.rules(&client).await;
        assert!(matches!(found, Err(SourceError::Invalid(_))));
    }

    #[test]
    fn addresses_have_two_names() {
        let of = |columns: &[(&str, LookupValue)]| rule(row(columns));
        for name in ["ipaddress", "ipaddr"] {
            let found = of(&[("topic", text("t")), (name, text("10.0.0.0/8"))]).unwrap();
            assert_eq!(found["ipaddr"], "10.0.0.0/8", "{name}");
        }
        let both = [("ipaddress", text("10.0.0.1")), ("ipaddr", text("10.0.0.2"))];
        assert!(of(&both).is_err());
        let one = of(&[("ipaddress", text("")), ("ipaddr", text("10.0.0.2"))]).unwrap();
        assert_eq!(one["ipaddr"], "10.0.0.2");
    }

    #[test]
    fn conditions_count_in_any_case() {
        let found = rule(row(&[("topic", text("t")), ("QoS", text("1"))])).unwrap();
        assert_eq!(found["qos"], "1");
        assert!(rule(row(&[("topic", text("t")), ("Zone", text("z"))])).is_err());
    }

    #[test]
    fn rows_with_unsupported_conditions_are_invalid() {
        for column in CONDITIONS {
            let error = rule(row(&[("topic", text("t")), (column, text("x"))])).unwrap_err();
            assert!(error.contains(column), "{error}");
            assert!(rule(row(&[("topic", text("t")), (column, LookupValue::Null)])).is_ok());
        }
    }
}
