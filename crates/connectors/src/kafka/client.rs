//! Shared by producers and consumers: options of librdkafka, its logs and errors, and the classification of errors.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::BaseProducer;

use super::config::{Authentication, KafkaConnectorConfig};
use crate::config::{address, out_of_range};
use crate::sink::DeliveryFailure;

/// The option with the bootstrap brokers.
pub(super) const BOOTSTRAP: &str = "bootstrap.servers";

impl KafkaConnectorConfig {
    /// Returns one message per invalid field: the field, its value and the expected value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for host in self.bootstrap_hosts.split(',') {
            if address(host.trim()).is_none() {
                problems.push(format!("bootstrap_hosts: found {host:?}, expected host:port"));
            }
        }
        // Limits of librdkafka.
        problems.extend(out_of_range([
            ("connect_timeout_ms", self.connect_timeout_ms, 1000..=i32::MAX as u64),
            ("request_timeout_ms", self.request_timeout_ms, 1000..=300_000),
        ]));
        problems.extend(self.authentication.problems());
        if let Some(tls) = &self.tls
            && tls.cert_file.is_some() != tls.key_file.is_some()
        {
            problems.push("tls: cert_file and key_file must be set together".to_owned());
        }
        problems
    }

    /// Checks the options with librdkafka, including certificate files. Opens no connection; takes some milliseconds.
    pub fn check_options(&self) -> Result<(), String> {
        let tried: Result<BaseProducer, KafkaError> = self.options().create();
        let field = if self.tls.is_some() { "tls" } else { "authentication" };
        tried.map(drop).map_err(|error| format!("{field}: {error}"))
    }

    pub(super) fn options(&self) -> ClientConfig {
        let mut options = ClientConfig::new();
        options
            .set(BOOTSTRAP, &self.bootstrap_hosts)
            .set("client.id", &self.client_id)
            .set(
                "socket.connection.setup.timeout.ms",
                self.connect_timeout_ms.to_string(),
            )
            .set("socket.timeout.ms", self.request_timeout_ms.to_string())
            .set("socket.nagle.disable", "true")
            // Reconnect delays per broker. While nothing is connected and requests wait, librdkafka uses half of the
            // first and ignores the second.
            .set("reconnect.backoff.ms", "1000")
            .set("reconnect.backoff.max.ms", "2000")
            .set_log_level(RDKafkaLogLevel::Warning);
        let is_sasl = self.set_authentication(&mut options);
        self.set_tls(&mut options);
        let protocol = match (is_sasl, self.tls.is_some()) {
            (false, false) => "plaintext",
            (false, true) => "ssl",
            (true, false) => "sasl_plaintext",
            (true, true) => "sasl_ssl",
        };
        options.set("security.protocol", protocol);
        options
    }

    fn set_authentication(&self, options: &mut ClientConfig) -> bool {
        let (mechanism, username, password) = match &self.authentication {
            Authentication::None => return false,
            Authentication::Plain { username, password } => ("PLAIN", username, password),
            Authentication::ScramSha256 { username, password } => ("SCRAM-SHA-256", username, password),
            Authentication::ScramSha512 { username, password } => ("SCRAM-SHA-512", username, password),
            Authentication::Gssapi {
                service_name,
                principal,
                keytab_file,
            } => {
                options
                    .set("sasl.mechanisms", "GSSAPI")
                    .set("sasl.kerberos.service.name", service_name)
                    .set("sasl.kerberos.principal", principal)
                    .set("sasl.kerberos.keytab", keytab_file);
                return true;
            }
        };
        options
            .set("sasl.mechanisms", mechanism)
            .set("sasl.username", username)
            .set("sasl.password", password.expose());
        true
    }

    fn set_tls(&self, options: &mut ClientConfig) {
        let Some(tls) = &self.tls else {
            return;
        };
        let password = tls.key_password.as_ref().map(|password| password.expose().to_owned());
        let files = [
            ("ssl.ca.location", &tls.ca_file),
            ("ssl.certificate.location", &tls.cert_file),
            ("ssl.key.location", &tls.key_file),
            ("ssl.key.password", &password),
        ];
        for (name, value) in files {
            if let Some(value) = value {
                options.set(name, value);
            }
        }
        let name_check = if tls.verify { "https" } else { "none" };
        options
            .set("enable.ssl.certificate.verification", tls.verify.to_string())
            .set("ssl.endpoint.identification.algorithm", name_check);
    }
}

impl Authentication {
    fn problems(&self) -> Vec<String> {
        let Authentication::Gssapi {
            service_name,
            principal,
            keytab_file,
        } = self
        else {
            return Vec::new();
        };
        let mut problems = Vec::new();
        if !cfg!(feature = "gssapi") {
            problems
                .push("authentication: this build does not support Kerberos; build with the feature gssapi".to_owned());
        }
        // librdkafka inserts these values into a shell command: `kinit -t "KEYTAB" -k PRINCIPAL`.
        let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '@');
        for (field, name) in [("service_name", service_name), ("principal", principal)] {
            if name.is_empty() || name.starts_with('-') || !name.chars().all(is_of_a_name) {
                problems.push(format!(
                    "authentication.{field}: {name:?} may contain only letters, digits and . _ - / @, and must not begin with a dash"
                ));
            }
        }
        let is_of_a_shell = |c: char| c.is_control() || matches!(c, '"' | '\\' | '$' | '`' | '%');
        if keytab_file.is_empty() || keytab_file.chars().any(is_of_a_shell) {
            problems.push(format!(
                "authentication.keytab_file: {keytab_file:?} must be a path without quotes, backslashes, $, ` or %"
            ));
        }
        problems
    }
}

/// The last connection error of librdkafka. Errors of requests often say only "timed out".
#[derive(Clone, Default)]
pub(super) struct LastConnectionError(Arc<Mutex<Option<String>>>);

impl LastConnectionError {
    pub fn set(&self, error: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the text of `error`, preceded by the last connection error.
    pub fn explain(&self, error: &KafkaError) -> String {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match last {
            Some(last) => format!("{last} ({})", text(error)),
            None => text(error),
        }
    }
}

/// The context of clients that need no further state.
#[derive(Clone, Default)]
pub(super) struct PlainClientContext {
    pub last_error: LastConnectionError,
}

impl ClientContext for PlainClientContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        remember(&self.last_error, &error, reason);
    }
}

pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    match level {
        RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical | RDKafkaLogLevel::Error => {
            tracing::warn!(facility, message, "librdkafka");
        }
        _ => tracing::debug!(facility, message, "librdkafka"),
    }
}

pub(super) fn remember(last_error: &LastConnectionError, error: &KafkaError, reason: &str) {
    tracing::debug!(%error, reason, "Kafka");
    // "All brokers down" is less useful than the reason of the previous error.
    if !matches!(code(error), Some(Code::AllBrokersDown)) {
        last_error.set(reason.to_owned());
    }
}

pub(super) fn code(error: &KafkaError) -> Option<Code> {
    error.rdkafka_error_code()
}

/// Returns the error as a text for operators.
pub(super) fn text(error: &KafkaError) -> String {
    match code(error) {
        Some(code) => code.to_string(),
        None => error.to_string(),
    }
}

/// Classifies the error of an undelivered message.
pub(super) fn failure(error: &KafkaError, kafka_topic: &str, last_error: &LastConnectionError) -> DeliveryFailure {
    let about = |problem: &str| format!("Kafka topic {kafka_topic:?}: {problem}");
    match code(error) {
        Some(
            code @ (Code::MessageSizeTooLarge
            | Code::MessageBatchTooLarge
            | Code::InvalidMessage
            | Code::InvalidMessageSize
            | Code::InvalidTimestamp
            | Code::InvalidRecord
            | Code::InvalidTopic
            | Code::PolicyViolation
            | Code::UnsupportedForMessageFormat),
        ) => DeliveryFailure::Refused(about(&code.to_string())),
        Some(Code::InvalidDifferentRecord | Code::UnknownPartition) => DeliveryFailure::Temporary(about(&text(error))),
        Some(Code::PurgeQueue | Code::PurgeInflight) => DeliveryFailure::Unreachable(
            "the producer was replaced or stopped before Kafka confirmed the message".to_owned(),
        ),
        _ => DeliveryFailure::Unreachable(about(&last_error.explain(error))),
    }
}

/// Returns `max.message.bytes` of a topic, which limits a batch, or `None` without permission to read it. Blocks.
pub(super) fn batch_limit(options: &ClientConfig, kafka_topic: &str, timeout: Duration) -> Option<u32> {
    let admin: AdminClient<DefaultClientContext> = options.create().ok()?;
    let asked = [ResourceSpecifier::Topic(kafka_topic)];
    let patience = AdminOptions::new().request_timeout(Some(timeout));
    let described = tokio::runtime::Handle::current().block_on(admin.describe_configs(&asked, &patience));
    let described = described.ok()?.pop()?.ok()?;
    described.get("max.message.bytes")?.value.as_deref()?.parse().ok()
}

/// Returns whether the message or its batch was too large.
pub(super) fn is_too_large(error: &KafkaError) -> bool {
    matches!(
        code(error),
        Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge)
    )
}

/// Returns whether the topic does not exist.
pub(super) fn is_topic_unknown(error: &KafkaError) -> bool {
    matches!(code(error), Some(Code::UnknownTopic | Code::UnknownTopicOrPartition))
}

/// Returns whether the producer is unusable and must be replaced.
pub(super) fn is_fatal(error: &KafkaError) -> bool {
    matches!(
        code(error),
        Some(
            Code::Fatal
                | Code::OutOfOrderSequenceNumber
                | Code::UnknownProducerId
                | Code::InvalidProducerEpoch
                | Code::Fenced
                | Code::ProducerFenced
        )
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kerberos_problems(principal: &str, keytab_file: &str) -> Vec<String> {
        let authentication = json!({
            "mechanism": "gssapi", "service_name": "kafka", "principal": principal, "keytab_file": keytab_file,
        });
        let authentication: Authentication = serde_json::from_value(authentication).expect("valid JSON");
        let mut problems = authentication.problems();
        problems.retain(|problem| !problem.contains("this build does not support Kerberos"));
        problems
    }

    #[test]
    fn kerberos_options_reject_shell_characters() {
        assert!(kerberos_problems("tidewire/host-1.example.org@EXAMPLE.ORG", "/etc/tide wire/a.keytab").is_empty());
        for principal in ["", "a b", "a;reboot", "$(reboot)", "-c", "a\nb"] {
            let problems = kerberos_problems(principal, "/etc/a.keytab");
            assert!(
                problems[0].starts_with("authentication.principal: "),
                "{principal:?}: {problems:?}"
            );
        }
        for keytab in [
            "",
            "a\";reboot;\"",
            "$(reboot)",
            "`reboot`",
            "a\\",
            "%{sasl.kerberos.principal}",
            "a\nb",
        ] {
            let problems = kerberos_problems("tidewire", keytab);
            assert!(
                problems[0].starts_with("authentication.keytab_file: "),
                "{keytab:?}: {problems:?}"
            );
        }
    }
}
