//! What producers and consumers have in common: options of librdkafka, what it tells us, and what its errors mean.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::producer::BaseProducer;

use super::config::{Authentication, KafkaConnectorConfig};
use crate::sink::Failure;

impl KafkaConnectorConfig {
    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for host in self.bootstrap_hosts.split(',') {
            let port = host.trim().rsplit_once(':').map(|(_, port)| port.parse::<u16>());
            if !matches!(port, Some(Ok(1..))) {
                problems.push(format!("bootstrap_hosts: {host:?} is not host:port"));
            }
        }
        if self.connect_timeout_ms < 1000 || self.request_timeout_ms < 1000 {
            problems.push("connect_timeout_ms, request_timeout_ms: must be at least 1000".to_owned());
        }
        problems.extend(self.authentication.problems());
        if let Some(tls) = &self.tls
            && tls.cert_file.is_some() != tls.key_file.is_some()
        {
            problems.push("tls: cert_file and key_file go together".to_owned());
        }
        problems
    }

    /// What librdkafka says of it, files of certificates included. Nothing is connected to; it takes some milliseconds.
    pub fn try_out(&self) -> Result<(), String> {
        let tried: Result<BaseProducer, KafkaError> = self.options().create();
        let field = if self.tls.is_some() { "tls" } else { "authentication" };
        tried.map(drop).map_err(|error| format!("{field}: {error}"))
    }

    pub(super) fn options(&self) -> ClientConfig {
        let mut options = ClientConfig::new();
        options
            .set("bootstrap.servers", &self.bootstrap_hosts)
            .set("client.id", &self.client_id)
            .set(
                "socket.connection.setup.timeout.ms",
                self.connect_timeout_ms.to_string(),
            )
            .set("socket.timeout.ms", self.request_timeout_ms.to_string())
            .set("socket.nagle.disable", "true")
            // Of a broker. While nothing is connected and somebody waits, librdkafka tries twice as often as the first says, and
            // does not mind the second.
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
            problems.push("authentication: this build has no Kerberos; build with the feature gssapi".to_owned());
        }
        // librdkafka puts them into a command line for a shell: `kinit -t "KEYTAB" -k PRINCIPAL`.
        let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | '@');
        for (field, name) in [("service_name", service_name), ("principal", principal)] {
            if name.is_empty() || name.starts_with('-') || !name.chars().all(is_of_a_name) {
                problems.push(format!(
                    "authentication.{field}: {name:?} may have letters, digits and . _ - / @ only, and begins with no dash"
                ));
            }
        }
        let is_of_a_shell = |c: char| c.is_control() || matches!(c, '"' | '\\' | '$' | '`' | '%');
        if keytab_file.is_empty() || keytab_file.chars().any(is_of_a_shell) {
            problems.push(format!(
                "authentication.keytab_file: {keytab_file:?} must be a path without quotes, backslashes, $, ` and %"
            ));
        }
        problems
    }
}

/// What librdkafka last said about its connections: its own errors are often no more than "timed out".
#[derive(Clone, Default)]
pub(super) struct LastError(Arc<Mutex<Option<String>>>);

impl LastError {
    pub fn set(&self, error: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// `error`, with what is known beside it.
    pub fn explain(&self, error: &KafkaError) -> String {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match last {
            Some(last) => format!("{last} ({})", text(error)),
            None => text(error),
        }
    }
}

/// The part of a context that both directions share.
#[derive(Clone, Default)]
pub(super) struct Context {
    pub last_error: LastError,
}

impl ClientContext for Context {
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

pub(super) fn remember(last_error: &LastError, error: &KafkaError, reason: &str) {
    tracing::debug!(%error, reason, "Kafka");
    // That no broker is left says less than why the last one went.
    if !matches!(code(error), Some(Code::AllBrokersDown)) {
        last_error.set(reason.to_owned());
    }
}

pub(super) fn code(error: &KafkaError) -> Option<Code> {
    error.rdkafka_error_code()
}

/// For operators.
pub(super) fn text(error: &KafkaError) -> String {
    match code(error) {
        Some(code) => code.to_string(),
        None => error.to_string(),
    }
}

/// What a message that was not delivered means for it and for the others.
pub(super) fn failure(error: &KafkaError, kafka_topic: &str, last_error: &LastError) -> Failure {
    let about = |what: &str| format!("Kafka topic {kafka_topic:?}: {what}");
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
        ) => Failure::Refused(about(&code.to_string())),
        Some(Code::InvalidDifferentRecord | Code::UnknownPartition) => Failure::Busy(about(&text(error))),
        Some(Code::PurgeQueue | Code::PurgeInflight) => Failure::Away("the action was stopped".to_owned()),
        _ => Failure::Away(about(&last_error.explain(error))),
    }
}

/// `max.message.bytes` of a topic, which is the limit of a batch, if we may know it. Blocks.
pub(super) fn batch_limit(options: &ClientConfig, kafka_topic: &str, timeout: Duration) -> Option<u32> {
    let admin: AdminClient<DefaultClientContext> = options.create().ok()?;
    let asked = [ResourceSpecifier::Topic(kafka_topic)];
    let patience = AdminOptions::new().request_timeout(Some(timeout));
    let described = tokio::runtime::Handle::current().block_on(admin.describe_configs(&asked, &patience));
    let described = described.ok()?.pop()?.ok()?;
    described.get("max.message.bytes")?.value.as_deref()?.parse().ok()
}

/// The message, or the batch that it was in.
pub(super) fn is_too_large(error: &KafkaError) -> bool {
    matches!(
        code(error),
        Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge)
    )
}

/// The topic is not there.
pub(super) fn is_topic_unknown(error: &KafkaError) -> bool {
    matches!(code(error), Some(Code::UnknownTopic | Code::UnknownTopicOrPartition))
}

/// The producer cannot go on: another one is needed.
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
        let authentication: Authentication = serde_json::from_value(authentication).expect("sound JSON");
        let mut problems = authentication.problems();
        problems.retain(|problem| !problem.contains("this build has no Kerberos"));
        problems
    }

    #[test]
    fn nothing_of_kerberos_reaches_a_shell_but_names_and_a_path() {
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
