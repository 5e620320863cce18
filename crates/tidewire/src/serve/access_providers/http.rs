//! The provider `http`.

use std::sync::Arc;

use auth_providers::http::{HttpAnswerMeaning, HttpBodyFormat, HttpSource, HttpSourceConfig, HttpSourceMethod};
use auth_providers::{SourceLimits, SourceProvider};
use connectors::TlsConfig;

use super::{on_failure, warn_of_free_user_names};
use crate::config::options::access::http::{HttpAccessAnswer, HttpAccessBody, HttpAccessConfig, HttpAccessMethod};

/// Creates the provider. The error names the option.
pub fn provider(config: &HttpAccessConfig) -> Result<Arc<SourceProvider<HttpSource>>, String> {
    let options = &config.options;
    let limits = SourceLimits {
        timeout: options.timeout,
        max_concurrent: options.max_concurrent as usize,
        max_waiting: options.max_waiting as usize,
        cache_size: options.cache_size as usize,
        cache_allowed: options.cache_allowed,
        cache_denied: options.cache_denied,
        on_failure: on_failure("access.http", options.on_failure),
    };
    let headers = config.headers.values().map(|header| header.expose());
    let body = config.body.values().map(String::as_str);
    warn_of_free_user_names("access.http", body.chain(headers).chain([options.url.as_str()]));
    let source = HttpSourceConfig {
        method: match options.method {
            HttpAccessMethod::Post => HttpSourceMethod::Post,
            HttpAccessMethod::Get => HttpSourceMethod::Get,
        },
        url: options.url.clone(),
        headers: config.headers.clone(),
        body: config.body.clone(),
        body_format: match options.body_format {
            HttpAccessBody::Json => HttpBodyFormat::Json,
            HttpAccessBody::Form => HttpBodyFormat::Form,
        },
        answer: match options.answer {
            HttpAccessAnswer::Json => HttpAnswerMeaning::Body,
            HttpAccessAnswer::Status => HttpAnswerMeaning::Status,
        },
        tls: TlsConfig {
            ca_file: options.ca_file.0.clone(),
            cert_file: options.cert_file.0.clone(),
            key_file: options.key_file.0.clone(),
            verify: options.verify,
        },
    };
    auth_providers::http::provider(&source, limits)
        .map_err(|error| format!("access.http.{}", error.strip_prefix("tls.").unwrap_or(&error)))
}
