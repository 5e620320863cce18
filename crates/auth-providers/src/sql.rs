//! Clients whose passwords or access rules are in a table of an SQL database.
//!
//! A query with placeholders returns the rows of a client. Placeholders become parameters of a prepared statement, so
//! that the values of a client are never part of SQL text. A value that the type of its column does not have, such as
//! NUL bytes or text for an integer, belongs to no row.

mod rules;

use auth::{Credentials, HashSettings, ProviderOutcome, TemplateUse};
use connectors::sql::{LookupError, LookupRow, LookupValue};

use crate::rows::{PASSWORD_COLUMNS, Parameters, RowCheck, SALT_COLUMN, SUPERUSER_COLUMN, UserRow};
use crate::source::{LoginSource, QuestionKey, SourceAnswer, SourceError, SourceFuture};
use crate::superuser::is_true;

pub(crate) use rules::RULE_COLUMNS;
pub use rules::SqlRules;

/// A statement of a database that returns the rows of a client.
pub trait RowLookup: Send + Sync + 'static {
    /// Name of the provider, and of the source of access rules.
    const NAME: &'static str;

    /// The template of each parameter, in order.
    fn templates(&self) -> &[String];

    /// Returns the first rows for these values of the parameters, at most `max`, in the order of the result. The future
    /// may be dropped at any time.
    fn rows(&self, values: &[Vec<u8>], max: usize) -> impl Future<Output = Result<Vec<LookupRow>, LookupError>> + Send;
}

/// A table with clients.
pub struct SqlSource<L> {
    lookup: L,
    parameters: Parameters,
    check: RowCheck,
}

impl<L: RowLookup> SqlSource<L> {
    /// The error names the field.
    pub(crate) fn new(lookup: L, hash: HashSettings) -> Result<SqlSource<L>, String> {
        Ok(SqlSource {
            parameters: Parameters::parse(TemplateUse::Login, "query", lookup.templates())?,
            lookup,
            check: RowCheck::new(L::NAME, hash)?,
        })
    }

    async fn decide<'a>(&'a self, credentials: &'a Credentials) -> Result<SourceAnswer<'a>, SourceError> {
        let Some(values) = self.parameters.values(credentials) else {
            return Ok(ProviderOutcome::Ignore.into());
        };
        let row = match self.lookup.rows(&values, 1).await {
            Ok(mut rows) => rows.pop().map(user_row).transpose()?,
            Err(LookupError::InvalidValue) => None,
            Err(LookupError::Failed(reason)) => return Err(SourceError::Failed(reason)),
        };
        Ok(SourceAnswer::PasswordCheck(Box::pin(
            self.check.outcome(credentials, row),
        )))
    }
}

impl<L: RowLookup> LoginSource for SqlSource<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn question(&self, credentials: &Credentials) -> Option<QuestionKey> {
        self.parameters.question(L::NAME, credentials)
    }

    fn ask<'a>(&'a self, credentials: &'a Credentials) -> SourceFuture<'a> {
        Box::pin(self.decide(credentials))
    }
}

fn user_row(mut row: LookupRow) -> Result<UserRow, SourceError> {
    let password = PASSWORD_COLUMNS.iter().find_map(|name| Some((name, row.take(name)?)));
    let Some((name, value)) = password else {
        return Err(SourceError::Failed(format!(
            "the query returns no column {}",
            PASSWORD_COLUMNS[0]
        )));
    };
    let mut optional = |name| bytes(name, row.take(name).unwrap_or(LookupValue::Null));
    Ok(UserRow {
        salt: optional(SALT_COLUMN)?.unwrap_or_default(),
        is_superuser: optional(SUPERUSER_COLUMN)?.is_some_and(|value| is_true(&value)),
        password_hash: bytes(name, value)?,
    })
}

fn bytes(name: &str, value: LookupValue) -> Result<Option<Vec<u8>>, SourceError> {
    match value {
        LookupValue::Null => Ok(None),
        LookupValue::Bytes(bytes) => Ok(Some(bytes)),
        LookupValue::Unsupported => Err(SourceError::Failed(format!(
            "the column {name} of the query is neither text, bytes, boolean nor integer: add a cast"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(columns: &[(&str, LookupValue)]) -> LookupRow {
        LookupRow {
            columns: columns
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
        }
    }

    fn text(value: &str) -> LookupValue {
        LookupValue::Bytes(value.as_bytes().to_vec())
    }

    #[test]
    fn columns_become_the_row_of_a_user() {
        let found = user_row(row(&[
            ("password", text("old")),
            ("password_hash", text("new")),
            ("salt", text("s")),
            ("is_superuser", text("1")),
        ]));
        let found = found.unwrap();
        assert_eq!(found.password_hash.as_deref(), Some(&b"new"[..]));
        assert_eq!((found.salt.as_slice(), found.is_superuser), (&b"s"[..], true));
        let found = user_row(row(&[("password", LookupValue::Null), ("salt", LookupValue::Null)])).unwrap();
        assert!(found.password_hash.is_none() && found.salt.is_empty() && !found.is_superuser);
    }

    #[test]
    fn rows_that_are_not_understood_are_failures() {
        for (columns, reason) in [
            (row(&[("salt", text("s"))]), "no column password_hash"),
            (row(&[("password_hash", LookupValue::Unsupported)]), "password_hash"),
            (
                row(&[("password_hash", text("x")), ("is_superuser", LookupValue::Unsupported)]),
                "is_superuser",
            ),
        ] {
            let error = user_row(columns).map(drop).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
