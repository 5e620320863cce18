//! The export to an OpenTelemetry collector: connects the HTTP client of `connectors` with the API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::{ExportAnswer, ExportError, TelemetryCollector, TelemetryConfig};
use connectors::http::{HttpAnswer, HttpConnector, HttpConnectorConfig, HttpQuestion, UrlPart};
use connectors::{Secret, TlsConfig};

use crate::config::Config;

/// An answer has a warning at most. More is an error.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Codes after which another attempt may succeed, as OTLP defines them.
const TEMPORARY: [u16; 4] = [429, 502, 503, 504];

struct Collector {
    http: HttpConnector,
    authorization: Option<Secret>,
    timeout: Duration,
}

/// Returns `None` if it is not configured. Sends no request: the server starts also if the collector does not answer.
/// The error names the option.
pub fn config(config: &Config) -> Result<Option<TelemetryConfig>, String> {
    let options = &config.opentelemetry;
    let Some(endpoint) = options.endpoint.0.as_deref() else {
        return Ok(None);
    };
    if endpoint.starts_with("http:") && options.authorization.0.is_some() {
        tracing::warn!(
            "opentelemetry.endpoint does not begin with https: opentelemetry.authorization is sent in clear text"
        );
    }
    let connector = HttpConnectorConfig {
        url: endpoint.trim_end_matches('/').to_owned(),
        headers: BTreeMap::new(),
        connections_max: 2,
        connect_timeout_ms: options.timeout.as_millis() as u64,
        idle_timeout_ms: 90_000,
        tls: TlsConfig {
            ca_file: options.ca_file.0.clone(),
            ..TlsConfig::default()
        },
    };
    let http = HttpConnector::new(&connector)
        .map_err(|problems| format!("opentelemetry.endpoint: {}", problems.join("; ")))?;
    Ok(Some(TelemetryConfig {
        collector: Arc::new(Collector {
            http,
            authorization: options.authorization.0.clone(),
            timeout: options.timeout,
        }),
        timeout: options.timeout,
        service_name: options.service_name.clone(),
        metrics_interval: options.metrics_interval.0,
        traces: options.traces,
    }))
}

impl TelemetryCollector for Collector {
    fn post(&self, path: &'static str, document: Vec<u8>) -> ExportAnswer<'_> {
        let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        if let Some(secret) = &self.authorization {
            headers.push(("authorization".to_owned(), secret.expose().to_owned()));
        }
        let question = HttpQuestion {
            method: "POST".to_owned(),
            path: vec![UrlPart::Literal(path.to_owned())],
            headers,
            body: document,
            timeout: self.timeout,
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
        Box::pin(async move { judged(self.http.ask(question).await.map_err(ExportError::Unavailable)?) })
    }
}

fn judged(answer: HttpAnswer) -> Result<Vec<u8>, ExportError> {
    let status = answer.status;
    if (200..300).contains(&status) {
        return Ok(answer.body);
    }
    let reason = format!("answer {status} {}", answer.reason);
    Err(match TEMPORARY.contains(&status) {
        true => ExportError::Unavailable(reason),
        false => ExportError::Rejected(reason),
    })
}
