//! Options of the Redis connector and its action.

use std::path::Path;

use redis::{ClientTlsConfig, TlsCertificates};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{address, at_least, out_of_range};
use crate::secret::Secret;
use crate::sink::Template;
use crate::tls::TlsConfig;

/// Which Redis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisConnectorConfig {
    #[serde(default)]
    pub mode: RedisMode,
    /// `host:port` of the server, of some nodes of the cluster, or of the sentinels.
    pub servers: Vec<String>,
    /// The name by which the sentinels know the master.
    #[serde(default)]
    pub sentinel_master: Option<String>,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub password: Option<Secret>,
    /// Number of the database. A cluster has only 0.
    #[serde(default)]
    pub database: u32,
    /// How long connecting may take, in milliseconds.
    #[serde(default = "crate::config::connect_timeout_ms")]
    #[schemars(range(min = 1))]
    pub connect_timeout_ms: u64,
    /// How long the server may take to answer a batch, in milliseconds.
    #[serde(default = "answer_timeout_ms")]
    #[schemars(range(min = 1))]
    pub answer_timeout_ms: u64,
    /// TLS. None: what is sent, the password included, can be read on the way.
    #[serde(default)]
    pub tls: Option<TlsConfig>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RedisMode {
    #[default]
    Single,
    Cluster,
    Sentinel,
}

fn answer_timeout_ms() -> u64 {
    10_000
}

/// The command for each message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisActionConfig {
    /// The command and its arguments, such as `["HSET", "device:${clientid}", "temp", "${payload.temp}"]`. The arguments are
    /// templates. Nothing in a message can become another argument or command.
    pub command: Vec<String>,
}

impl RedisConnectorConfig {
    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.servers.is_empty() || (self.mode == RedisMode::Single && self.servers.len() > 1) {
            problems.push("servers: must name one host:port, and may name more for a cluster or sentinels".to_owned());
        }
        for server in &self.servers {
            if address(server).is_none() {
                problems.push(format!("servers: `{server}` must be host:port"));
            }
        }
        if (self.mode == RedisMode::Sentinel) != self.sentinel_master.is_some() {
            problems.push("sentinel_master: must be given exactly if mode is sentinel".to_owned());
        }
        if self.mode == RedisMode::Cluster && self.database != 0 {
            problems.push("database: must be 0, which is all that a cluster has".to_owned());
        }
        if self.user.is_some() && self.password.is_none() {
            problems.push("password: is missing; user needs it".to_owned());
        }
        problems.extend(out_of_range([
            ("connect_timeout_ms", self.connect_timeout_ms, at_least(1)),
            ("answer_timeout_ms", self.answer_timeout_ms, at_least(1)),
        ]));
        problems.extend(self.certificates().err());
        problems
    }

    /// The files of `tls`, which the client wants as text.
    pub(super) fn certificates(&self) -> Result<Option<TlsCertificates>, String> {
        let Some(tls) = &self.tls else {
            return Ok(None);
        };
        // Says what is wrong in the words of the other connectors.
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
    /// All that is wrong with it: the field and what it should be.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        match self.command.first().map(String::as_str) {
            None | Some("") => problems.push("command: must begin with the name of a command".to_owned()),
            Some(name) if is_template(name) => problems.push("command: its name must not be a template".to_owned()),
            Some(name) if CONNECTION_COMMANDS.iter().any(|other| name.eq_ignore_ascii_case(other)) => {
                problems.push(format!(
                    "command: {name} changes the connection, which all actions share"
                ));
            }
            Some(_) => {}
        }
        problems
    }

    /// The templates to fill in for each message: the arguments that are templates, in their order.
    pub fn templates(&self) -> Vec<Template> {
        let arguments = self.command.iter().enumerate().skip(1);
        arguments
            .filter(|(_, text)| is_template(text))
            .map(|(index, text)| Template::new(format!("command[{index}]"), text))
            .collect()
    }
}

/// Others are the same for every message and are not kept with it.
pub(super) fn is_template(text: &str) -> bool {
    text.contains("${")
}

/// Commands after which the connection is another one, or is blocked, for everybody.
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
