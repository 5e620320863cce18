//! Options of the Redis connector and its action.

use std::path::Path;

use redis::{ClientTlsConfig, TlsCertificates};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{address, at_least, out_of_range};
use crate::secret::Secret;
use crate::sink::FieldTemplate;
use crate::tls::TlsConfig;

/// Connection to Redis or Valkey.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisConnectorConfig {
    /// Kind of installation.
    #[serde(default)]
    pub mode: RedisMode,
    /// Addresses as `host:port`: of the server, of some nodes of the cluster, or of the sentinels.
    pub servers: Vec<String>,
    /// Name of the master at the sentinels.
    #[serde(default)]
    pub sentinel_master: Option<String>,
    /// User name at the sentinels, if they have access control lists.
    #[serde(default, alias = "sentinel_username")]
    pub sentinel_user: Option<String>,
    /// Password of the sentinels. It is independent of `password`, which is that of the master.
    #[serde(default)]
    pub sentinel_password: Option<Secret>,
    /// User name, for servers with access control lists.
    #[serde(default)]
    pub user: Option<String>,
    /// Password of the user.
    #[serde(default)]
    pub password: Option<Secret>,
    /// Number of the database. A cluster has only database 0.
    #[serde(default)]
    pub database: u32,
    /// Maximum time to connect, in milliseconds.
    #[serde(default = "crate::config::connect_timeout_ms")]
    #[schemars(range(min = 1))]
    pub connect_timeout_ms: u64,
    /// How long the server may take to respond to a batch, in milliseconds.
    #[serde(default = "answer_timeout_ms")]
    #[schemars(range(min = 1))]
    pub answer_timeout_ms: u64,
    /// TLS settings, also for the sentinels. Without them, all data including the password is sent unencrypted.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RedisMode {
    /// One server.
    #[default]
    Single,
    /// A cluster.
    Cluster,
    /// A master that sentinels monitor.
    Sentinel,
}

fn answer_timeout_ms() -> u64 {
    10_000
}

/// Command that the action runs for each message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisActionConfig {
    /// The command and its arguments, for example `["HSET", "device:${clientid}", "temp", "${payload.temp}"]`.
    /// Arguments may be templates. A message can never add an argument or command. There is one exception: HSET and
    /// HMSET take fields and values from a list in the last argument, as in
    /// `["HSET", "device:${clientid}", "${fields}"]` with the SQL `map_to_redis_hset_args(payload) as fields`.
    pub command: Vec<String>,
}

impl RedisConnectorConfig {
    /// Returns one message per invalid field: the field, its value and the expected value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.servers.is_empty() || (self.mode == RedisMode::Single && self.servers.len() > 1) {
            problems.push("servers: must name one host:port; a cluster or sentinels may have more".to_owned());
        }
        for server in &self.servers {
            if address(server).is_none() {
                problems.push(format!("servers: found {server:?}, expected host:port"));
            }
        }
        if (self.mode == RedisMode::Sentinel) != self.sentinel_master.is_some() {
            problems.push("sentinel_master: must be set if and only if mode is sentinel".to_owned());
        }
        if self.mode == RedisMode::Cluster && self.database != 0 {
            problems.push("database: must be 0, the only database of a cluster".to_owned());
        }
        if self.user.is_some() && self.password.is_none() {
            problems.push("password: missing; user needs a password".to_owned());
        }
        if self.sentinel_user.is_some() && self.sentinel_password.is_none() {
            problems.push("sentinel_password: missing; sentinel_user needs a password".to_owned());
        }
        if self.mode != RedisMode::Sentinel && self.sentinel_password.is_some() {
            problems.push("sentinel_password: has no effect unless mode is sentinel".to_owned());
        }
        problems.extend(out_of_range([
            ("connect_timeout_ms", self.connect_timeout_ms, at_least(1)),
            ("answer_timeout_ms", self.answer_timeout_ms, at_least(1)),
        ]));
        problems.extend(self.certificates().err());
        problems
    }

    /// Reads the files of `tls`, as the Redis client needs their content.
    pub(super) fn certificates(&self) -> Result<Option<TlsCertificates>, String> {
        let Some(tls) = &self.tls else {
            return Ok(None);
        };
        // Checks the files with the same errors as the other connectors.
        tls.client()?;
        let read =
            |file: &Path| std::fs::read(file).map_err(|error| format!("tls: cannot read {}: {error}", file.display()));
        let client_tls = match (&tls.cert_file, &tls.key_file) {
            (Some(cert), Some(key)) => Some(ClientTlsConfig {
                client_cert: read(cert)?,
                client_key: read(key)?,
            }),
            _ => None,
        };
        let root_cert = tls.ca_file.as_deref().map(read).transpose()?;
        Ok(Some(TlsCertificates { client_tls, root_cert }))
    }
}

impl RedisActionConfig {
    /// Returns one message per invalid field: the field, its value and the expected value.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        match self.command.first().map(String::as_str) {
            None | Some("") => problems.push("command: must begin with a command name".to_owned()),
            Some(name) if is_template(name) => problems.push("command: the name must not be a template".to_owned()),
            Some(name) if CONNECTION_COMMANDS.iter().any(|other| name.eq_ignore_ascii_case(other)) => {
                problems.push(format!(
                    "command: {name} is not allowed, because it changes or blocks the shared connection"
                ));
            }
            Some(name) if is_hash_set(name) && self.needs_field_list() && self.field_list().is_none() => {
                problems.push(format!(
                    "command: {name} needs a key and pairs of fields and values, or a placeholder with a list of them"
                ));
            }
            Some(_) => {}
        }
        problems
    }

    /// Returns the index of the argument that is a list of fields and values.
    pub(super) fn field_list(&self) -> Option<usize> {
        let (name, last) = (self.command.first()?, self.command.last()?);
        let has_key = self.command.len() > 2;
        let is_list = has_key && is_hash_set(name) && self.needs_field_list() && is_placeholder(last);
        is_list.then_some(self.command.len() - 1)
    }

    /// Returns whether the arguments after the key are not pairs.
    fn needs_field_list(&self) -> bool {
        self.command.len() < 3 || self.command.len() % 2 == 1
    }

    /// Returns the arguments that are templates, in order.
    pub fn templates(&self) -> Vec<FieldTemplate> {
        let arguments = self.command.iter().enumerate().skip(1);
        arguments
            .filter(|(_, text)| is_template(text))
            .map(|(index, text)| FieldTemplate::document(format!("command[{index}]"), text))
            .collect()
    }
}

/// Returns whether an argument is a template. Other arguments are constant and not stored in records.
pub(super) fn is_template(text: &str) -> bool {
    text.contains("${")
}

/// Returns whether an argument is a single placeholder.
fn is_placeholder(text: &str) -> bool {
    let inner = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    inner.is_some_and(|inner| !inner.contains(['$', '{', '}']))
}

fn is_hash_set(command: &str) -> bool {
    command.eq_ignore_ascii_case("HSET") || command.eq_ignore_ascii_case("HMSET")
}

/// Commands that change or block the connection for all actions.
const CONNECTION_COMMANDS: &[&str] = &[
    "AUTH",
    "BLMOVE",
    "BLMPOP",
    "BLPOP",
    "BRPOP",
    "BRPOPLPUSH",
    "BZMPOP",
    "BZPOPMAX",
    "BZPOPMIN",
    "CLIENT",
    "DISCARD",
    "EXEC",
    "HELLO",
    "MONITOR",
    "MULTI",
    "PSUBSCRIBE",
    "QUIT",
    "RESET",
    "SELECT",
    "SSUBSCRIBE",
    "SUBSCRIBE",
    "SYNC",
    "PSYNC",
    "WAIT",
    "WAITAOF",
    "WATCH",
    "XREAD",
    "XREADGROUP",
];
