//! Asks an HTTP service whether a client may connect, publish or subscribe, as EMQX does.
//!
//! Scheme, host and port of the URL are fixed. Values of the client are encoded in their position: in a path segment,
//! in the query, in a form or in a JSON string. Redirects are not followed, so that credentials reach only this
//! server.
//!
//! Credentials that no request can contain are denied or ignored, but are never a failure: a client must not be able to
//! cause the outcome of [`OnFailure`](crate::OnFailure).

mod access_answer;
mod answer;
mod request;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use auth::{Credentials, DenyReason, ProviderOutcome, TemplateUse};
use connectors::http::{HttpConnector, HttpConnectorConfig};
use connectors::{Secret, TlsConfig};

use crate::ACCESS_SOURCE;
use crate::provider::{SourceLimits, SourceProvider};
use crate::source::{LoginSource, QuestionKey, SourceError, SourceFuture};
use request::RequestTemplate;

pub(crate) use request::encoded;

/// How long an idle connection to the service stays open, in milliseconds.
const IDLE_TIMEOUT_MS: u64 = 30_000;
/// Maximum number of connections of an HTTP connector.
const CONNECTIONS_MAX: usize = 1024;

/// The service and the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSourceConfig {
    pub method: HttpSourceMethod,
    /// URL with placeholders in its path and query.
    pub url: String,
    /// Headers with placeholders in their values.
    pub headers: BTreeMap<String, Secret>,
    /// Fields of the body with placeholders in their values. With GET, they are added to the query.
    pub body: BTreeMap<String, String>,
    pub body_format: HttpBodyFormat,
    pub answer: HttpAnswerMeaning,
    pub tls: TlsConfig,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpSourceMethod {
    Get,
    #[default]
    Post,
}

/// Format of the body of a POST request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpBodyFormat {
    #[default]
    Json,
    Form,
}

/// The part of an answer that decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpAnswerMeaning {
    /// The body of an answer with the status 200.
    #[default]
    Body,
    /// The status alone.
    Status,
}

/// An HTTP service that knows clients.
pub struct HttpSource {
    connector: HttpConnector,
    request: RequestTemplate,
    /// Whether the service decides about logins or about actions.
    template_use: TemplateUse,
    answer_meaning: HttpAnswerMeaning,
    /// Scheme, host and port, for errors.
    server: String,
    limits: SourceLimits,
}

/// Creates the provider. The error names the field.
pub fn provider(config: &HttpSourceConfig, limits: SourceLimits) -> Result<Arc<SourceProvider<HttpSource>>, String> {
    let source = HttpSource::new(TemplateUse::Login, config, limits)?;
    Ok(SourceProvider::new(source, limits))
}

/// Creates the source that decides whether a client may publish or subscribe. The error names the field.
pub fn access_source(
    config: &HttpSourceConfig,
    limits: SourceLimits,
) -> Result<Arc<SourceProvider<HttpSource>>, String> {
    let source = HttpSource::new(TemplateUse::Action, config, limits)?;
    Ok(SourceProvider::new(source, limits))
}

impl HttpSource {
    fn new(template_use: TemplateUse, config: &HttpSourceConfig, limits: SourceLimits) -> Result<HttpSource, String> {
        let (server, path) = split_url(&config.url);
        let request = RequestTemplate::new(template_use, config, path)?;
        let connector = HttpConnectorConfig {
            url: server.to_owned(),
            // Only to check them. The requests have them with values.
            headers: config.headers.clone(),
            connections_max: limits.max_concurrent.clamp(1, CONNECTIONS_MAX) as u32,
            connect_timeout_ms: limits.timeout.as_millis().max(1) as u64,
            idle_timeout_ms: IDLE_TIMEOUT_MS,
            tls: config.tls.clone(),
        };
        Ok(HttpSource {
            connector: HttpConnector::new(&connector).map_err(|problems| problems.join("; "))?,
            request,
            template_use,
            answer_meaning: config.answer,
            server: server.to_owned(),
            limits,
        })
    }

    async fn answer(&self, credentials: &Credentials) -> Result<ProviderOutcome, SourceError> {
        let Some(question) = self.request.fill(credentials, self.limits.timeout) else {
            return Ok(self.unanswerable());
        };
        if self.connector.check_path(&question.path).is_err() || !request::are_headers_valid(&question.headers) {
            return Ok(ProviderOutcome::Deny(DenyReason::NotAuthorized));
        }
        let failed = |error: String| SourceError::Failed(format!("{}: {error}", self.server));
        let answer = self.connector.ask(question).await.map_err(failed)?;
        match self.template_use {
            TemplateUse::Action => access_answer::outcome(&answer, self.answer_meaning)
                .map_err(|error| SourceError::Invalid(format!("{}: {error}", self.server))),
            _ => answer::outcome(&answer, self.answer_meaning, SystemTime::now()).map_err(failed),
        }
    }

    /// Returns the outcome for a client that no request can contain.
    fn unanswerable(&self) -> ProviderOutcome {
        match self.template_use {
            // A later source must not decide what this one was not asked.
            TemplateUse::Action => ProviderOutcome::Deny(DenyReason::NotAuthorized),
            _ => ProviderOutcome::Ignore,
        }
    }
}

/// Splits a URL behind the host and port.
pub(crate) fn split_url(url: &str) -> (&str, &str) {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    url.split_at(end)
}

impl LoginSource for HttpSource {
    fn name(&self) -> &'static str {
        "http"
    }

    fn role(&self) -> &'static str {
        match self.template_use {
            TemplateUse::Login => "authentication provider",
            TemplateUse::Rules | TemplateUse::Action => ACCESS_SOURCE,
        }
    }

    fn question(&self, credentials: &Credentials) -> Option<QuestionKey> {
        let key = self.request.question(credentials);
        match self.template_use {
            // `answer` denies an action that no request can contain.
            TemplateUse::Action => key.or_else(|| Some(QuestionKey::of(&[]))),
            _ => key,
        }
    }

    fn ask<'a>(&'a self, credentials: &'a Credentials) -> SourceFuture<'a> {
        Box::pin(async { Ok(self.answer(credentials).await?.into()) })
    }
}

#[cfg(test)]
mod tests;
