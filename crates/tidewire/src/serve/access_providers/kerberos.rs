//! The authentication provider `kerberos`, and the rate of its log lines.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use api::AuthProviderFigures;
use auth_providers::kerberos::{KerberosAcceptor, KerberosConfig, KerberosRejection};

use crate::config::options::access::ProviderKind;
use crate::config::options::access::kerberos::KerberosAccess;
use crate::serve::guesses::LineLimit;

pub struct KerberosProvider {
    pub acceptor: KerberosAcceptor,
    lines: LineLimit,
}

impl KerberosProvider {
    /// Reads the keytab. The error names the option.
    pub fn new(options: &KerberosAccess) -> Result<KerberosProvider, String> {
        let config = KerberosConfig {
            principal: options.principal.0.clone().unwrap_or_default(),
            keytab_file: options.keytab_file.0.clone(),
            strip_realm: options.strip_realm,
            disconnect_after_expire: options.disconnect_after_expire,
        };
        Ok(KerberosProvider {
            acceptor: KerberosAcceptor::new(&config).map_err(|error| format!("access.kerberos.{error}"))?,
            lines: LineLimit::default(),
        })
    }

    /// Logs what the Kerberos library says about a client. The line about the rejection itself has only the reason.
    pub fn log(&self, client_id: &str, address: IpAddr, rejection: &KerberosRejection) {
        let Some(error) = &rejection.error else { return };
        let Some(omitted_lines) = self.lines.admit(Instant::now()) else {
            return;
        };
        let reason = rejection.reason.label();
        match rejection.reason.is_failure() {
            true => tracing::warn!(client_id, %address, reason, %error, omitted_lines, "Kerberos failed"),
            false => tracing::info!(client_id, %address, reason, %error, omitted_lines, "Kerberos token rejected"),
        }
    }

    pub fn figures(&self) -> AuthProviderFigures {
        let stats = self.acceptor.stats();
        let count = |is_failure: bool| {
            let reasons = stats.denied.iter();
            let counted = reasons.filter(|(reason, _)| reason.is_failure() == is_failure);
            counted.map(|(_, count)| count).sum::<u64>()
        };
        AuthProviderFigures {
            name: ProviderKind::Kerberos.word(),
            results: vec![
                ("allowed", stats.allowed),
                ("denied", count(false)),
                ("failed", count(true)),
            ],
            denials: stats
                .denied
                .iter()
                .map(|(reason, count)| (reason.label(), *count))
                .collect(),
            waiting: 0,
            in_progress: 0,
            answer_time: stats.step_time,
            answer_time_p50: None,
            answer_time_p99: None,
            is_failing: false,
            cached_answers: 0,
            cache_size: 0,
            timeout: Duration::ZERO,
            on_failure: "deny",
        }
    }
}
