//! Options of the export to an OpenTelemetry collector.

use std::path::PathBuf;
use std::time::Duration;

use connectors::Secret;

use crate::config::Config;
use crate::config::key::KeySegment::Fixed;
use crate::config::key::OptionKey;
use crate::config::option::section;
use crate::config::value::{Switch, Unset};

section! {
    /// Export of metrics and traces to an OpenTelemetry collector, with OTLP over HTTP in JSON. It is on if `endpoint`
    /// is set.
    pub struct OpenTelemetry at [Fixed("opentelemetry")] {
        /// URL of the collector's receiver for HTTP, for example `http://127.0.0.1:4318`. The server adds `/v1/metrics`
        /// and `/v1/traces`.
        restart endpoint: Unset<String> = "";
        /// Value of the header `Authorization`, for example `Bearer TOKEN`.
        restart authorization: Unset<Secret> = "";
        /// Value of the attribute `service.name`.
        restart service_name: String = "tidewire";
        /// Time between two exports of all metrics. `off`: metrics are not exported.
        restart metrics_interval: Switch<Duration> = "60s" ["1s", "1h"];
        /// Export the way of messages whose publisher traces them: those with the user property `traceparent` of W3C
        /// Trace Context, if it is sampled. The server then decodes each packet a second time.
        restart traces: bool = "false";
        /// File with the CA certificates that the collector is verified with, in PEM format. Default: the certificates
        /// that the operating system trusts.
        restart ca_file: Unset<PathBuf> = "";
        /// Time limit of a request. A longer one counts as failed.
        restart timeout: Duration = "10s" ["100ms", "60s"];
    }
}

impl OpenTelemetry {
    /// Returns the problems, each with its option.
    pub fn problems(config: &Config) -> Vec<(OptionKey, &'static str)> {
        let options = &config.opentelemetry;
        let Some(endpoint) = options.endpoint.0.as_deref() else {
            return Vec::new();
        };
        let has_scheme = endpoint.starts_with("http://") || endpoint.starts_with("https://");
        let checks = [
            (
                "endpoint",
                !has_scheme || endpoint.contains(['?', '#', ' ']),
                "expected a URL such as \"http://127.0.0.1:4318\", without query and fragment",
            ),
            (
                "endpoint",
                !config.api.enabled,
                "needs the API: set `api.enabled = true`",
            ),
            (
                "metrics_interval",
                options.metrics_interval.0.is_none() && !options.traces,
                "is off, and `opentelemetry.traces` as well: nothing would be exported",
            ),
        ];
        let wrong = checks.into_iter().filter(|(_, is_wrong, _)| *is_wrong);
        wrong
            .map(|(option, _, message)| (OptionKey::of(&["opentelemetry", option]), message))
            .collect()
    }
}
