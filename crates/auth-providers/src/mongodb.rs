//! Clients whose passwords are in a collection of MongoDB.
//!
//! A filter with placeholders selects the document of a client. Only values of the filter have placeholders. A value of
//! a client is always a text in the encoded filter: it is never parsed, and never an operator or a name.

mod filter;
mod rules;

use std::sync::Arc;

use auth::{Credentials, HashSettings, ProviderOutcome, TemplateUse};
use connectors::mongodb::{Bson, BsonDocument, MongoClient, MongoConnectorConfig, MongoError, MongoFind};

use crate::provider::{SourceLimits, SourceProvider};
use crate::rows::{Parameters, RowCheck, UserRow};
use crate::source::{LoginSource, QuestionKey, SourceAnswer, SourceError, SourceFuture};
use crate::superuser::is_true;
use filter::FilterTemplate;

pub use rules::{MongodbRules, MongodbRulesConfig, rules};

const NAME: &str = "mongodb";

/// Configuration of the provider.
pub struct MongodbConfig {
    pub connection: MongoConnectorConfig,
    pub collection: String,
    /// JSON with placeholders in its values. The first document that matches is used.
    pub filter: String,
    pub fields: MongodbFields,
    pub hash: HashSettings,
    /// The server ends a query after this time.
    pub timeout_ms: u64,
}

/// Names of the fields of a document.
pub struct MongodbFields {
    pub password_hash: String,
    pub salt: Option<String>,
    pub is_superuser: Option<String>,
}

/// A collection with clients.
pub struct MongodbSource {
    client: MongoClient,
    find: MongoFind,
    filter: FilterTemplate,
    /// The values of the filter.
    parameters: Parameters,
    fields: MongodbFields,
    check: RowCheck,
}

/// Creates the provider. Does not connect. The error names the field.
pub fn provider(config: MongodbConfig, limits: SourceLimits) -> Result<Arc<SourceProvider<MongodbSource>>, String> {
    Ok(SourceProvider::new(MongodbSource::new(config)?, limits))
}

/// Checks a filter. The error names the option.
pub fn check_filter(filter: &str) -> Result<(), String> {
    FilterTemplate::parse(filter).map(drop)
}

impl MongodbSource {
    fn new(config: MongodbConfig) -> Result<MongodbSource, String> {
        let fields = config.fields;
        let mut projection = BsonDocument::new();
        for (option, name) in [
            ("password_hash_field", Some(&fields.password_hash)),
            ("salt_field", fields.salt.as_ref()),
            ("is_superuser_field", fields.is_superuser.as_ref()),
        ] {
            if let Some(name) = name {
                check_field(option, name)?;
                projection = projection.with(name, 1);
            }
        }
        check_collection(&config.collection)?;
        let filter = FilterTemplate::parse(&config.filter)?;
        if filter.templates().is_empty() {
            return Err("filter: needs a placeholder such as ${username}".to_owned());
        }
        let client = MongoClient::new(&config.connection).map_err(|problems| problems.join("; "))?;
        Ok(MongodbSource {
            client,
            find: MongoFind {
                collection: config.collection,
                projection,
                sort: BsonDocument::new(),
                limit: 1,
                timeout_ms: config.timeout_ms,
            },
            parameters: Parameters::parse(TemplateUse::Login, "filter", filter.templates())?,
            filter,
            fields,
            check: RowCheck::new(NAME, config.hash)?,
        })
    }

    async fn decide<'a>(&'a self, credentials: &'a Credentials) -> Result<SourceAnswer<'a>, SourceError> {
        let values = self.parameters.values(credentials);
        let Some(filter) = values.and_then(|values| self.filter.render(values)) else {
            return Ok(ProviderOutcome::Ignore.into());
        };
        let found = self.client.find(&self.find, filter).await.map_err(source_error)?;
        let row = found.into_iter().next();
        let row = row.map(|document| self.user_row(&document)).transpose()?;
        Ok(SourceAnswer::PasswordCheck(Box::pin(
            self.check.outcome(credentials, row),
        )))
    }

    fn user_row(&self, document: &BsonDocument) -> Result<UserRow, SourceError> {
        let fields = &self.fields;
        let value = |name: &Option<String>| name.as_deref().and_then(|name| document.get(name));
        Ok(UserRow {
            password_hash: bytes(&fields.password_hash, document.get(&fields.password_hash))?,
            salt: match &fields.salt {
                Some(name) => bytes(name, document.get(name))?.unwrap_or_default(),
                None => Vec::new(),
            },
            is_superuser: value(&fields.is_superuser).is_some_and(is_superuser),
        })
    }
}

impl LoginSource for MongodbSource {
    fn name(&self) -> &'static str {
        NAME
    }

    fn question(&self, credentials: &Credentials) -> Option<QuestionKey> {
        self.parameters.question(NAME, credentials)
    }

    fn ask<'a>(&'a self, credentials: &'a Credentials) -> SourceFuture<'a> {
        Box::pin(self.decide(credentials))
    }
}

/// An error that a value of a client can cause is no failure, because `on_failure` could admit the client.
fn source_error(error: MongoError) -> SourceError {
    match error {
        MongoError::Lost(reason) | MongoError::Failed(reason) => SourceError::Failed(reason),
        MongoError::Unusable(reason) => SourceError::Invalid(reason),
    }
}

/// Only the user of a document with another type is affected, so it is not a failure of the database.
fn bytes(name: &str, value: Option<&Bson>) -> Result<Option<Vec<u8>>, SourceError> {
    match value {
        None | Some(Bson::Null) => Ok(None),
        Some(Bson::Text(text)) => Ok(Some(text.clone().into_bytes())),
        Some(Bson::Binary(bytes)) => Ok(Some(bytes.clone())),
        Some(_) => Err(SourceError::Invalid(format!(
            "the field {name} of a document is neither text nor binary data"
        ))),
    }
}

/// EMQX accepts integers, but no floating-point numbers.
fn is_superuser(value: &Bson) -> bool {
    match value {
        Bson::Bool(value) => *value,
        Bson::Text(text) => is_true(text.as_bytes()),
        Bson::Double(_) => false,
        number => number.as_f64().is_some_and(|number| number >= 1.0),
    }
}

/// Only fields of the document itself are read, as in EMQX.
fn check_field(option: &str, name: &str) -> Result<(), String> {
    match name.is_empty() || name.starts_with('$') || name.contains(['.', '\0']) {
        true => Err(format!(
            "{option}: found {name:?}, expected the name of a field without dots and $"
        )),
        false => Ok(()),
    }
}

fn check_collection(name: &str) -> Result<(), String> {
    match name.is_empty() || name.contains(['$', '\0']) {
        true => Err(format!("collection: found {name:?}, expected the name of a collection")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
