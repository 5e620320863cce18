//! Settings of a connection to MySQL or MariaDB.

use std::net::Ipv6Addr;
use std::time::Duration;

use mysql_async::{ClientIdentity, Opts, OptsBuilder, SslOpts};

use crate::config::{at_least, is_host, out_of_range};
use crate::secret::Secret;
use crate::tls::TlsConfig;

/// Maximum size of an answer. A row of a client is much smaller.
const PACKET_BYTES_MAX: usize = 16 << 20;

/// Time without data after which TCP checks that the server still exists.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Connection to a MySQL or MariaDB server.
#[derive(Clone, Debug)]
pub struct MysqlConnection {
    /// Host name or address, or the path of a Unix socket.
    pub host: String,
    pub port: u16,
    pub database: String,
    pub user: String,
    pub password: Option<Secret>,
    pub connections_max: u32,
    pub connect_timeout_ms: u64,
    /// Maximum run time of a statement. The server cancels longer statements.
    pub statement_timeout_ms: u64,
    pub tls: Option<TlsConfig>,
}

impl MysqlConnection {
    /// Returns the options of the client library. The errors name the fields.
    pub(super) fn options(&self) -> Result<Opts, Vec<String>> {
        let problems = self.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let is_socket = self.host.starts_with('/');
        let is_verified = self.tls.as_ref().is_some_and(|tls| tls.verify) && !is_socket;
        let builder = OptsBuilder::default()
            .user(Some(&self.user))
            .pass(self.password.as_ref().map(Secret::expose))
            .db_name(Some(&self.database))
            .ssl_opts(self.tls.as_ref().map(tls_options))
            .enable_cleartext_plugin(is_verified)
            // Otherwise the client connects to a socket that the server names.
            .prefer_socket(false)
            .max_allowed_packet(Some(PACKET_BYTES_MAX))
            // Unused: it is for the pool of the library. Without a value, the client asks for it.
            .wait_timeout(Some(0))
            .tcp_keepalive(Some(KEEPALIVE))
            .init(vec![statement_limit(self.statement_timeout_ms)]);
        Ok(match is_socket {
            true => builder.socket(Some(&self.host)),
            false => builder.ip_or_hostname(&self.host).tcp_port(self.port),
        }
        .into())
    }

    /// Returns one message per invalid field: the field, its value and the expected value.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (field, value) in [("database", &self.database), ("user", &self.user)] {
            if value.is_empty() || value.contains('\0') {
                problems.push(format!("{field}: must not be empty or contain NUL"));
            }
        }
        let is_socket = self.host.starts_with('/') && !self.host.contains('\0');
        if !is_socket && self.host.parse::<Ipv6Addr>().is_err() && !is_host(&self.host) {
            problems.push(format!(
                "host: found {:?}, expected a host name, an address, or the path of a Unix socket",
                self.host
            ));
        }
        problems.extend(out_of_range([
            ("connections_max", self.connections_max.into(), 1..=256),
            ("connect_timeout_ms", self.connect_timeout_ms, at_least(1)),
            ("port", self.port.into(), at_least(1)),
            // Limit of MySQL.
            ("statement_timeout_ms", self.statement_timeout_ms, 1..=u32::MAX.into()),
        ]));
        problems.extend(self.tls.as_ref().and_then(|tls| tls.client().err()));
        problems
    }
}

/// Returns a statement that limits the run time of further statements. MariaDB executes the first comment, MySQL the
/// second one. Versions without the limit ignore both.
fn statement_limit(limit_ms: u64) -> String {
    let (seconds, part_ms) = (limit_ms / 1000, limit_ms % 1000);
    format!(
        "SET @tidewire = 1 /*M!100101 , SESSION max_statement_time = {seconds}.{part_ms:03} */ \
         /*!50708 , SESSION max_execution_time = {limit_ms} */"
    )
}

/// Like [`TlsConfig::client`], which has checked the files: the client library takes certificates only.
fn tls_options(tls: &TlsConfig) -> SslOpts {
    let options = match &tls.ca_file {
        // The library needs certificates even if it does not use them.
        _ if !tls.verify => SslOpts::default().with_danger_accept_invalid_certs(true),
        Some(file) => SslOpts::default()
            .with_disable_built_in_roots(true)
            .with_root_certs(vec![file.clone().into()]),
        None => SslOpts::default()
            .with_disable_built_in_roots(true)
            .with_root_certs(system_certificates().into_iter().map(Into::into).collect()),
    };
    let identity = tls.cert_file.clone().zip(tls.key_file.clone());
    options.with_client_identity(identity.map(|(cert, key)| ClientIdentity::new(cert.into(), key.into())))
}

/// Returns the certificates that the operating system trusts, without those that rustls cannot use.
fn system_certificates() -> Vec<Vec<u8>> {
    let certificates = trust::system_certificates().into_iter();
    certificates
        .filter(|certificate| trust::roots(vec![certificate.clone()]).is_ok())
        .map(|certificate| certificate.to_vec())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(tls: Option<TlsConfig>) -> MysqlConnection {
        MysqlConnection {
            host: "localhost".to_owned(),
            port: 3306,
            database: "d".to_owned(),
            user: "u".to_owned(),
            password: None,
            connections_max: 1,
            connect_timeout_ms: 1000,
            statement_timeout_ms: 1500,
            tls,
        }
    }

    #[test]
    fn clear_text_passwords_need_verified_tls() {
        let unverified = TlsConfig {
            verify: false,
            ..TlsConfig::default()
        };
        for (tls, host, expected) in [
            (None, "localhost", false),
            (Some(unverified), "localhost", false),
            (Some(TlsConfig::default()), "localhost", true),
            // The client library uses no TLS for a socket.
            (Some(TlsConfig::default()), "/run/mysqld.sock", false),
        ] {
            let mut connection = connection(tls.clone());
            connection.host = host.to_owned();
            let options = connection.options().unwrap();
            assert_eq!(options.enable_cleartext_plugin(), expected, "{tls:?} {host}");
            assert!(options.secure_auth() && options.local_infile_handler().is_none());
            assert!(!options.prefer_socket());
            let checks = options
                .ssl_opts()
                .map(|ssl| (ssl.accept_invalid_certs(), ssl.skip_domain_validation()));
            assert_eq!(checks, tls.map(|tls| (!tls.verify, false)));
        }
    }

    #[test]
    fn invalid_fields_are_named() {
        let mut connection = connection(None);
        connection.host = "a host".to_owned();
        connection.user = String::new();
        connection.port = 0;
        let problems = connection.options().unwrap_err();
        for field in ["host: ", "user: ", "port: "] {
            assert!(problems.iter().any(|p| p.starts_with(field)), "{field}: {problems:?}");
        }
    }

    #[test]
    fn the_limit_of_statements_is_written_for_both_servers() {
        assert_eq!(
            statement_limit(1050),
            "SET @tidewire = 1 /*M!100101 , SESSION max_statement_time = 1.050 */ \
             /*!50708 , SESSION max_execution_time = 1050 */"
        );
    }
}
