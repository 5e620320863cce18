//! Options of the sources of access rules that ask other systems.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use connectors::Secret;

use super::http::{HttpAccessAnswer, HttpAccessBody, HttpAccessMethod};
use super::mongodb::{MongoReadFrom, MongoType};
use super::redis::RedisType;
use crate::config::key::KeySegment::Fixed;
use crate::config::option::{Apply, Kind, OptionDef, Section, section};
use crate::config::value::{Unset, choice};

choice! {
    /// Source of access rules.
    pub enum AccessSourceKind {
        /// `access.rules` and `access.acl_file`.
        Rules = "rules",
        /// An HTTP service.
        Http = "http",
        /// A table of PostgreSQL.
        Postgresql = "postgresql",
        /// A table of MySQL or MariaDB.
        Mysql = "mysql",
        /// A table of an SQLite file.
        Sqlite = "sqlite",
        /// A collection of MongoDB.
        Mongodb = "mongodb",
        /// Hashes of Redis.
        Redis = "redis",
    }
}

choice! {
    /// Decision if a source does not answer.
    pub enum OnSourceFailure {
        Deny = "deny",
        /// The next source decides.
        Ignore = "ignore",
    }
}

choice! {
    /// How the server handles a packet that the access rules deny.
    pub enum DenyAction { Ignore = "ignore", Disconnect = "disconnect" }
}

/// All options of the sources.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessSourcesConfig {
    pub http: HttpSourceOptions,
    pub http_headers: BTreeMap<String, Secret>,
    pub http_body: BTreeMap<String, String>,
    pub postgresql: PostgresqlSourceOptions,
    pub mysql: MysqlSourceOptions,
    pub sqlite: SqliteSourceOptions,
    pub mongodb: MongodbSourceOptions,
    pub redis: RedisSourceOptions,
}

section! {
    /// An HTTP service that decides whether a client may publish or subscribe. The server asks it if `access.sources`
    /// contains `http`. While it asks, it reads nothing from this client; other clients are not affected.
    pub struct HttpSourceOptions at [Fixed("access"), Fixed("source"), Fixed("http")] {
        /// URL of the service, for example `https://auth.example.org/acl?client=${clientid}`. Path and query may have
        /// placeholders: `${action}` (`publish` or `subscribe`), `${topic}`, `${qos}`, `${retain}`, `${username}`,
        /// `${clientid}`, `${peerhost}`, `${cert_common_name}` and `${cert_subject}`. Values are percent-encoded. The
        /// URL is shown to administrators: put secrets into `headers`.
        restart url: String = "";
        /// Method of the requests: `post`, or `get`, which adds the fields of `body` to the query.
        restart method: HttpAccessMethod = "post";
        /// Format of the body of a POST request: `json`, an object with strings, or `form`
        /// (`application/x-www-form-urlencoded`).
        restart body_format: HttpAccessBody = "json";
        /// The part of an answer that decides: `json`, the body of an answer with the status 200, as in EMQX; or
        /// `status`, the status alone, as in mosquitto-go-auth: 200 allows, 400 to 499 deny.
        restart answer: HttpAccessAnswer = "json";
        /// Trusted certificate authorities for `https`, as PEM. Empty: those of the operating system.
        restart ca_file: Unset<PathBuf> = "";
        /// Client certificate for `https`, as PEM.
        restart cert_file: Unset<PathBuf> = "";
        /// Private key of the client certificate, as PEM.
        restart key_file: Unset<PathBuf> = "";
        /// Verifies the certificate of the service. Without verification, an attacker on the network path can grant
        /// clients any access.
        restart verify: bool = "true";
        /// Maximum time of a question. A client that publishes waits as long if the service does not answer.
        restart timeout: Duration = "5s" ["10ms", "1m"];
        /// Maximum number of questions to the service at a time. Further questions wait.
        restart max_concurrent: u32 = "64" ["1", "1024"] in "questions";
        /// Maximum number of waiting questions. Further ones are denied.
        restart max_waiting: u32 = "10000" ["0", "1000000"] in "questions";
        /// Maximum number of decisions about topics that each session stores. A topic of more than 512 bytes is never
        /// stored. `0` asks for each message.
        restart cache_size: u32 = "32" ["0", "1000"] in "decisions";
        /// How long a stored decision is valid: a changed right takes effect after this time. A subscription keeps the
        /// decision with which it was made until the client connects again.
        restart cache_ttl: Duration = "1m" ["0s", "1d"];
        /// Decision if the service does not answer: `deny`, or `ignore`, which asks the next source. An answer that is
        /// not understood always denies.
        restart on_failure: OnSourceFailure = "deny";
    }
}

/// A table with free keys, so not a struct.
pub const HEADERS: Section = Section {
    path: &[Fixed("access"), Fixed("source"), Fixed("http"), Fixed("headers")],
    doc: &[" Headers of the requests to the service of `access.source.http`. The values are never shown."],
    options: &[OptionDef {
        name: "<header>",
        doc: &[" Value, which may contain the placeholders of `access.source.http.url`."],
        default: "",
        range: None,
        unit: None,
        apply: Apply::Restart,
        kind: Kind::of::<Secret>(),
    }],
};

/// A table with free keys, so not a struct.
pub const BODY: Section = Section {
    path: &[Fixed("access"), Fixed("source"), Fixed("http"), Fixed("body")],
    doc: &[" Fields of the body of the requests to the service of `access.source.http`."],
    options: &[OptionDef {
        name: "<field>",
        doc: &[
            " Value, which may contain the placeholders of `access.source.http.url`, for example",
            " `topic = \"${topic}\"`. A value that the client does not have is empty.",
        ],
        default: "",
        range: None,
        unit: None,
        apply: Apply::Restart,
        kind: Kind::of::<String>(),
    }],
};

section! {
    /// Access rules in a table of PostgreSQL. The server reads them when a client connects, if `access.sources`
    /// contains `postgresql`.
    pub struct PostgresqlSourceOptions at [Fixed("access"), Fixed("source"), Fixed("postgresql")] {
        /// Host name or address of the server, or the directory of its Unix socket.
        restart host: String = "127.0.0.1";
        /// Port of the server.
        restart port: u16 = "5432" ["1", "65535"];
        /// Name of the database.
        restart database: String = "";
        /// User name at the database. It needs the right to read the table only.
        restart user: String = "";
        /// Password of the user.
        restart password: Unset<Secret> = "";
        /// Maximum number of connections.
        restart pool_size: u32 = "8" ["1", "256"] in "connections";
        /// SELECT statement that returns the rules of a client, in the order in which they are checked: the columns
        /// `permission`, `action`, `topic`, and optionally `qos`, `retain` and `ipaddress`. Add ORDER BY if rules deny.
        /// Placeholders are `${username}`, `${clientid}`, `${peerhost}`, `${cert_common_name}` and `${cert_subject}`.
        /// Their values become parameters and are never part of the statement.
        restart query: String = "SELECT permission, action, topic, qos, retain FROM mqtt_acl WHERE username = ${username} ORDER BY id";
        /// Whether connections use TLS.
        restart tls: bool = "false";
        /// Trusted certificate authorities for `tls`, as PEM. Empty: those of the operating system.
        restart ca_file: Unset<PathBuf> = "";
        /// Client certificate for `tls`, as PEM.
        restart cert_file: Unset<PathBuf> = "";
        /// Private key of the client certificate, as PEM.
        restart key_file: Unset<PathBuf> = "";
        /// Verifies the certificate of the database. Without verification, an attacker on the network path can grant
        /// clients any access.
        restart verify: bool = "true";
        /// Maximum time of a question.
        restart timeout: Duration = "5s" ["10ms", "1m"];
        /// Maximum number of questions at a time. Further questions wait. A value above `pool_size` has no effect.
        restart max_concurrent: u32 = "64" ["1", "1024"] in "questions";
        /// Maximum number of waiting questions. Clients with further questions are rejected (0x88, Server unavailable).
        restart max_waiting: u32 = "10000" ["0", "1000000"] in "questions";
        /// Maximum number of clients whose rules are cached.
        restart cache_size: u32 = "100000" ["0", "10000000"] in "clients";
        /// How long cached rules are valid for further connections of the client. A connected client keeps the rules
        /// with which it has connected. `0s` asks for each connection.
        restart cache_ttl: Duration = "1m" ["0s", "1d"];
        /// Decision if the database does not answer: `deny` rejects the client (0x88, Server unavailable), `ignore`
        /// leaves the decision to the other sources. Rules that are not understood always reject the client.
        restart on_failure: OnSourceFailure = "deny";
    }
}

section! {
    /// Access rules in a table of MySQL or MariaDB. The server reads them when a client connects, if `access.sources`
    /// contains `mysql`.
    pub struct MysqlSourceOptions at [Fixed("access"), Fixed("source"), Fixed("mysql")] {
        /// Host name or address of the server, or the path of its Unix socket.
        restart host: String = "127.0.0.1";
        /// Port of the server.
        restart port: u16 = "3306" ["1", "65535"];
        /// Name of the database.
        restart database: String = "";
        /// User name at the database. It needs the right to read the table only.
        restart user: String = "";
        /// Password of the user.
        restart password: Unset<Secret> = "";
        /// Maximum number of connections.
        restart pool_size: u32 = "8" ["1", "256"] in "connections";
        /// SELECT statement that returns the rules of a client, in the order in which they are checked: the columns
        /// `permission`, `action`, `topic`, and optionally `qos`, `retain` and `ipaddress`. Add ORDER BY if rules deny.
        /// Placeholders are `${username}`, `${clientid}`, `${peerhost}`, `${cert_common_name}` and `${cert_subject}`.
        /// Their values become parameters and are never part of the statement. `=` ignores case in the usual collations
        /// of MySQL; `BINARY` compares exactly, so that `METER` does not have the rules of `meter`.
        restart query: String = "SELECT permission, action, topic, qos, retain FROM mqtt_acl WHERE username = ${username} AND BINARY username = ${username} ORDER BY id";
        /// Whether connections use TLS.
        restart tls: bool = "false";
        /// Trusted certificate authorities for `tls`, as PEM. Empty: those of the operating system.
        restart ca_file: Unset<PathBuf> = "";
        /// Client certificate for `tls`, as PEM.
        restart cert_file: Unset<PathBuf> = "";
        /// Private key of the client certificate, as PEM.
        restart key_file: Unset<PathBuf> = "";
        /// Verifies the certificate of the database. Without verification, an attacker on the network path can grant
        /// clients any access.
        restart verify: bool = "true";
        /// Maximum time of a question.
        restart timeout: Duration = "5s" ["10ms", "1m"];
        /// Maximum number of questions at a time. Further questions wait. A value above `pool_size` has no effect.
        restart max_concurrent: u32 = "64" ["1", "1024"] in "questions";
        /// Maximum number of waiting questions. Clients with further questions are rejected (0x88, Server unavailable).
        restart max_waiting: u32 = "10000" ["0", "1000000"] in "questions";
        /// Maximum number of clients whose rules are cached.
        restart cache_size: u32 = "100000" ["0", "10000000"] in "clients";
        /// How long cached rules are valid for further connections of the client. A connected client keeps the rules
        /// with which it has connected. `0s` asks for each connection.
        restart cache_ttl: Duration = "1m" ["0s", "1d"];
        /// Decision if the database does not answer: `deny` rejects the client (0x88, Server unavailable), `ignore`
        /// leaves the decision to the other sources. Rules that are not understood always reject the client.
        restart on_failure: OnSourceFailure = "deny";
    }
}

section! {
    /// Access rules in a table of an SQLite file. The server reads them when a client connects, if `access.sources`
    /// contains `sqlite`.
    pub struct SqliteSourceOptions at [Fixed("access"), Fixed("source"), Fixed("sqlite")] {
        /// File with the database. Another program may write it while the server runs, or replace it by renaming
        /// another file. The server opens it for reading only, and does not start if it is missing or no database.
        restart file: Unset<PathBuf> = "";
        /// Maximum number of queries at a time. Each occupies a thread. A query waits for a program that has locked the
        /// database, for at most half of `timeout`.
        restart pool_size: u32 = "4" ["1", "64"] in "queries";
        /// SELECT statement that returns the rules of a client, in the order in which they are checked: the columns
        /// `permission`, `action`, `topic`, and optionally `qos`, `retain` and `ipaddress`. Add ORDER BY if rules deny.
        /// Placeholders are `${username}`, `${clientid}`, `${peerhost}`, `${cert_common_name}` and `${cert_subject}`.
        /// Their values become parameters and are never part of the statement. It may only read tables of this file.
        restart query: String = "SELECT permission, action, topic, qos, retain FROM mqtt_acl WHERE username = ${username} ORDER BY id";
        /// Maximum time of a question.
        restart timeout: Duration = "5s" ["10ms", "1m"];
        /// Maximum number of questions at a time. Further questions wait. A value above `pool_size` has no effect.
        restart max_concurrent: u32 = "64" ["1", "1024"] in "questions";
        /// Maximum number of waiting questions. Clients with further questions are rejected (0x88, Server unavailable).
        restart max_waiting: u32 = "10000" ["0", "1000000"] in "questions";
        /// Maximum number of clients whose rules are cached.
        restart cache_size: u32 = "100000" ["0", "10000000"] in "clients";
        /// How long cached rules are valid for further connections of the client. A connected client keeps the rules
        /// with which it has connected. `0s` asks for each connection.
        restart cache_ttl: Duration = "1m" ["0s", "1d"];
        /// Decision if the file cannot be read in time: `deny` rejects the client (0x88, Server unavailable), `ignore`
        /// leaves the decision to the other sources. Rules that are not understood always reject the client.
        restart on_failure: OnSourceFailure = "deny";
    }
}

section! {
    /// Access rules in a collection of MongoDB. The server reads them when a client connects, if `access.sources`
    /// contains `mongodb`.
    pub struct MongodbSourceOptions at [Fixed("access"), Fixed("source"), Fixed("mongodb")] {
        /// Kind of the installation: one server (`single`), a replica set (`rs`), or the routers (`mongos`) of a
        /// sharded cluster (`sharded`).
        restart mongo_type: MongoType = "single";
        /// Addresses as `host:port`: of the server, of some members of the replica set, or of the routers.
        restart servers: Vec<String> = "127.0.0.1:27017";
        /// Name of the replica set.
        restart replica_set_name: Unset<String> = "";
        /// Members of a replica set that are asked: only the primary (`master`), or the first one that can be reached
        /// (`slave_ok`), whose data may be older.
        restart r_mode: MongoReadFrom = "master";
        /// Name of the database.
        restart database: String = "";
        /// User name at the database. It needs the right to read the collection only.
        restart user: Unset<String> = "";
        /// Password of the user.
        restart password: Unset<Secret> = "";
        /// Database that contains the user.
        restart auth_source: String = "admin";
        /// Maximum number of connections.
        restart pool_size: u32 = "8" ["1", "256"] in "connections";
        /// Collection with the rules.
        restart collection: String = "mqtt_acl";
        /// Filter that selects the rules of a client, as JSON. A document is a rule with the fields `permission`,
        /// `action`, `topics` or `topic`, and optionally `qos`, `retain` and `ipaddress`. Values may have the
        /// placeholders `${username}`, `${clientid}`, `${peerhost}`, `${cert_common_name}` and `${cert_subject}`.
        restart filter: String = "{\"username\": \"${username}\"}";
        /// Fields that give the order in which the rules are checked. A `-` in front of a name makes the order
        /// descending: `["priority", "-_id"]`. `_id` is the order in which the documents were inserted, unless the
        /// application chooses other ids. Empty: the order of the database, which may change.
        restart sort: Vec<String> = "_id";
        /// Whether connections use TLS.
        restart tls: bool = "false";
        /// Trusted certificate authorities for `tls`, as PEM. Empty: those of the operating system.
        restart ca_file: Unset<PathBuf> = "";
        /// Client certificate for `tls`, as PEM.
        restart cert_file: Unset<PathBuf> = "";
        /// Private key of the client certificate, as PEM.
        restart key_file: Unset<PathBuf> = "";
        /// Verifies the certificate of the database. Without verification, an attacker on the network path can grant
        /// clients any access.
        restart verify: bool = "true";
        /// Maximum time of a question.
        restart timeout: Duration = "5s" ["10ms", "1m"];
        /// Maximum number of questions at a time. Further questions wait. A value above `pool_size` has no effect.
        restart max_concurrent: u32 = "64" ["1", "1024"] in "questions";
        /// Maximum number of waiting questions. Clients with further questions are rejected (0x88, Server unavailable).
        restart max_waiting: u32 = "10000" ["0", "1000000"] in "questions";
        /// Maximum number of clients whose rules are cached.
        restart cache_size: u32 = "100000" ["0", "10000000"] in "clients";
        /// How long cached rules are valid for further connections of the client. A connected client keeps the rules
        /// with which it has connected. `0s` asks for each connection.
        restart cache_ttl: Duration = "1m" ["0s", "1d"];
        /// Decision if the database does not answer: `deny` rejects the client (0x88, Server unavailable), `ignore`
        /// leaves the decision to the other sources. Rules that are not understood always reject the client.
        restart on_failure: OnSourceFailure = "deny";
    }
}

section! {
    /// Access rules in hashes of Redis or Valkey. The server reads them when a client connects, if `access.sources`
    /// contains `redis`.
    pub struct RedisSourceOptions at [Fixed("access"), Fixed("source"), Fixed("redis")] {
        /// Kind of the installation: one server (`single`), a `cluster`, or a master that sentinels monitor
        /// (`sentinel`).
        restart redis_type: RedisType = "single";
        /// Addresses as `host:port`: of the server, of some nodes of the cluster, or of the sentinels.
        restart servers: Vec<String> = "127.0.0.1:6379";
        /// Name of the master at the sentinels.
        restart sentinel_master: Unset<String> = "";
        /// User name at the sentinels, if they have access control lists.
        restart sentinel_user: Unset<String> = "";
        /// Password of the sentinels. It is independent of `password`, which is that of the master.
        restart sentinel_password: Unset<Secret> = "";
        /// User name, for servers with access control lists.
        restart user: Unset<String> = "";
        /// Password of the user.
        restart password: Unset<Secret> = "";
        /// Number of the database. A cluster has only database 0.
        restart database: u32 = "0";
        /// Command that returns the rules of a client: `HGETALL` and a key with placeholders. A field is a topic
        /// filter, and its value the action that is allowed: `publish`, `subscribe`, `all`, or a JSON object with
        /// `action`, `qos` and `retain`. Placeholders are `${username}`, `${clientid}`, `${peerhost}`,
        /// `${cert_common_name}` and `${cert_subject}`.
        restart cmd: String = "HGETALL mqtt_acl:${username}";
        /// Whether connections use TLS.
        restart tls: bool = "false";
        /// Trusted certificate authorities for `tls`, as PEM. Empty: those of the operating system.
        restart ca_file: Unset<PathBuf> = "";
        /// Client certificate for `tls`, as PEM.
        restart cert_file: Unset<PathBuf> = "";
        /// Private key of the client certificate, as PEM.
        restart key_file: Unset<PathBuf> = "";
        /// Verifies the certificate of the server. Without verification, an attacker on the network path can grant
        /// clients any access.
        restart verify: bool = "true";
        /// Maximum time of a question.
        restart timeout: Duration = "5s" ["10ms", "1m"];
        /// Maximum number of questions at a time. Further questions wait.
        restart max_concurrent: u32 = "64" ["1", "1024"] in "questions";
        /// Maximum number of waiting questions. Clients with further questions are rejected (0x88, Server unavailable).
        restart max_waiting: u32 = "10000" ["0", "1000000"] in "questions";
        /// Maximum number of clients whose rules are cached.
        restart cache_size: u32 = "100000" ["0", "10000000"] in "clients";
        /// How long cached rules are valid for further connections of the client. A connected client keeps the rules
        /// with which it has connected. `0s` asks for each connection.
        restart cache_ttl: Duration = "1m" ["0s", "1d"];
        /// Decision if the server does not answer: `deny` rejects the client (0x88, Server unavailable), `ignore`
        /// leaves the decision to the other sources. Rules that are not understood always reject the client.
        restart on_failure: OnSourceFailure = "deny";
    }
}
