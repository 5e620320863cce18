//! Options of authentication and authorization.

pub mod groups;
pub mod http;
pub mod jwt;
pub mod kerberos;
pub mod ldap;
pub mod mongodb;
pub mod mysql;
pub mod password_hash;
pub mod postgresql;
pub mod redis;
pub mod source;
pub mod sqlite;

use std::path::PathBuf;
use std::time::Duration;

use auth::{PasswordHash, ScramMethod};

use crate::config::attribute_source::AttributeSource;
use crate::config::key::KeySegment::Fixed;
use crate::config::option::{Apply, Kind, OptionDef, Section, section};
use crate::config::rules::CheckedRules;
use crate::config::value::{Unset, choice};
use source::{AccessSourceKind, DenyAction};

choice! {
    /// Which clients may connect without a user name.
    pub enum Anonymous { Never = "never", Loopback = "loopback", Always = "always" }
}

choice! {
    /// How the server handles a client whose user name is unknown.
    pub enum UnknownUsers { Reject = "reject", Anonymous = "anonymous" }
}

choice! {
    /// Source of the clients that may connect.
    pub enum ProviderKind {
        /// The users of the server.
        Users = "users",
        /// Client certificates of listeners that take the user name from them.
        Certificate = "certificate",
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
        /// JSON Web Tokens.
        Jwt = "jwt",
        /// An LDAP directory.
        Ldap = "ldap",
        /// Kerberos, with enhanced authentication.
        Kerberos = "kerberos",
    }
}

impl ProviderKind {
    /// Whether the provider may know user names that the server does not know.
    pub fn is_remote(self) -> bool {
        match self {
            ProviderKind::Users | ProviderKind::Certificate => false,
            ProviderKind::Http
            | ProviderKind::Jwt
            | ProviderKind::Kerberos
            | ProviderKind::Ldap
            | ProviderKind::Mongodb
            | ProviderKind::Mysql
            | ProviderKind::Postgresql
            | ProviderKind::Redis
            | ProviderKind::Sqlite => true,
        }
    }
}

choice! {
    /// Decision about a client if the system that a provider asks fails.
    pub enum OnFailure {
        Deny = "deny",
        /// The next provider decides.
        Ignore = "ignore",
        Allow = "allow",
    }
}

choice! {
    /// Method of enhanced authentication.
    pub enum ScramKind { Sha256 = "SCRAM-SHA-256", Sha512 = "SCRAM-SHA-512" }
}

impl ScramKind {
    pub fn method(self) -> ScramMethod {
        match self {
            ScramKind::Sha256 => ScramMethod::Sha256,
            ScramKind::Sha512 => ScramMethod::Sha512,
        }
    }
}

choice! {
    /// Decision if no access rule matches.
    pub enum NoMatch { Deny = "deny", Allow = "allow" }
}

choice! {
    /// How the server handles a subscription if the rules allow only some of its topics.
    pub enum PartialSubscription { Refuse = "refuse", Filter = "filter" }
}

choice! {
    /// Clients that may take over a session.
    pub enum SessionOwner {
        /// The user who opened it.
        SameUser = "same_user",
        Any = "any",
    }
}

section! {
    /// Authentication and access rules.
    pub struct Access at [Fixed("access")] {
        /// Clients that may connect without a user name: `never`, from `loopback` only, or `always`. Behind a proxy
        /// or tunnel on this machine, all clients appear to come from loopback: use the PROXY protocol
        /// (`proxy_protocol`) or `trusted_proxies`, or set `never`.
        restart anonymous: Anonymous = "loopback";
        /// How the server handles a client whose user name is unknown: `reject`, or admit it as an anonymous client
        /// (`anonymous`), for devices that send a user name without a configured user. They may connect where
        /// `anonymous` allows it. Access rules treat them as clients without a user name; the log, `session_owner` and
        /// the rule engine see the name that the client sent. After a user is deleted, any client that sends the
        /// deleted name can take over the user's sessions.
        restart unknown_users: UnknownUsers = "reject";
        /// Authentication providers in the order in which they are asked. The first one that knows the user name
        /// decides. `users`: `password_file`, the table `users`, and the users of the API. `jwt`: JSON Web Tokens
        /// (`access.jwt`). `http`: the service of `access.http`. `postgresql`, `mysql`: the database of
        /// `access.postgresql` or `access.mysql`. `sqlite`: the file of `access.sqlite`. `mongodb`: the collection of
        /// `access.mongodb`. `redis`: the server of `access.redis`. `ldap`: the directory of `access.ldap`. `kerberos`:
        /// MQTT 5 clients with the Authentication Method `GSSAPI-KERBEROS` (`access.kerberos`), in any order.
        /// `certificate`: a client whose TLS listener takes the user name from the client certificate
        /// (`peer_cert_as_user_name`) needs no password; it must be the first provider. Such a client is never a
        /// superuser.
        restart providers: Vec<ProviderKind> = "users";
        /// Methods of enhanced authentication (MQTT 5): `SCRAM-SHA-256`, `SCRAM-SHA-512`. The client proves that it
        /// knows the password and does not send it. Requires `users` in `providers`. Only users whose hash is a SCRAM
        /// verifier of the method can use it: `tidewire passwd --scram`, the API and the console create one, the latter
        /// two for the first method of this list. With such a hash, a login with the password works as well.
        restart scram: Vec<ScramKind> = "";
        /// Users and hashed passwords, one `user:hash` per line, as written by `tidewire passwd` and
        /// `mosquitto_passwd`. SIGHUP reloads the file and disconnects clients whose user was removed or has a new
        /// hash.
        live password_file: Unset<PathBuf> = "";
        /// Access rules in the format of Mosquitto (`user`, `topic`, `pattern`). They are checked after `rules`. If
        /// the file contains no rule, `no_match` decides.
        live acl_file: Unset<PathBuf> = "";
        /// Access rules. The first rule that matches decides. Each rule is a table: `{ permission = "allow", action =
        /// "subscribe", topics = ["devices/%c/#"], users = ["alice"] }`. `permission` is `allow` or `deny`; `action` is
        /// `publish`, `subscribe`, `all` (both) or `connect`. Conditions are `users`, `clients`, `addresses`,
        /// `anonymous`, `attributes` (`{ role = ["admin"] }`), `groups` (of LDAP, a token or an HTTP service; the
        /// client must be a member of one), `certificate_names` and `certificate_subjects` (of the client certificate)
        /// and, for publishing, `qos` and `retain`. In a topic, `%c` stands for the client ID, `%u` for the user name,
        /// and `${client_attrs.NAME}` for an attribute that an authentication provider has returned; a topic after `eq
        /// ` is compared literally. `#` leaves out topics that begin with `$`: a rule for all topics has `topics =
        /// ["#", "$SYS/#"]`. `$SYS/#` includes the names and addresses of clients. Without a rule for topics, every
        /// client may publish and subscribe to all topics except those of the server. Rules for `connect` bind client
        /// IDs to users: `{ permission = "allow", action = "connect", clients = ["%u", "%u:*"] }` allows a user the IDs
        /// that equal its name or begin with its name and a colon. With such a rule, clients that no `connect` rule
        /// matches may not connect (0x85). Superusers and devices of the platform always may.
        live rules: CheckedRules = "";
        /// Sources of access rules in the order in which they are checked. The first one that decides about an action
        /// decides. `rules`: the options `rules` and `acl_file`. `postgresql`, `mysql`, `sqlite`, `mongodb` and
        /// `redis`: rules of the client in the database of `access.source.postgresql` and so on. `http`: the service of
        /// `access.source.http`. Superusers are not checked. Rules that the login has brought, such as the claim `acl`
        /// of a token, come before all sources. With another source than `rules`, `no_match` decides even if there are
        /// no rules.
        restart sources: Vec<AccessSourceKind> = "rules";
        /// How the server handles a PUBLISH or SUBSCRIBE that is denied: `ignore` rejects it (MQTT 5 clients get the
        /// reason code 0x87), `disconnect` also disconnects the client.
        live deny_action: DenyAction = "ignore";
        /// Decision if no rule matches: `deny` or `allow`.
        live no_match: NoMatch = "deny";
        /// Whether the rules see the topics of a client with the `mountpoint` of its listener. `false`: they see the
        /// topics that the client sees, which is the default of EMQX.
        restart include_mountpoint: bool = "true";
        /// How the server handles a subscription if the rules allow only some of its topics: `refuse` it, as EMQX
        /// does, or `filter` the deliveries, as Mosquitto does.
        live partial_subscription: PartialSubscription = "refuse";
        /// The user that may take over a session: the `same_user` that opened it, or `any` client with this client ID.
        live session_owner: SessionOwner = "same_user";
        /// Number of wrong passwords, tokens and other secrets from an address until it is locked out, for all logins:
        /// MQTT, HTTP device API, console, ThingsBoard API, provisioning and claims. The server forgets one failure
        /// every 6 seconds. A /64 of IPv6 counts as one address. A device that repeats the same wrong credentials
        /// counts once. A locked-out address may still use credentials that it has used successfully since the start.
        /// `0` disables the limit: set it if a proxy hides the addresses of the clients.
        restart max_login_failures: u32 = "10" ["0", "1000"] in "failures";
        /// Duration of the first lock-out of an address. MQTT 5 clients get the reason code 0x97 (Quota exceeded),
        /// older ones 3, and HTTP clients 429. Each further lock-out takes twice as long.
        restart login_lockout: Duration = "5s" ["1s", "1d"];
        /// Maximum duration of a lock-out. An address whose last lock-out ended this long ago starts again with
        /// `login_lockout`.
        restart max_login_lockout: Duration = "15m" ["1s", "1d"];
        /// Publishes the will of a client that a ban disconnects. EMQX does not publish it either.
        live publish_will_of_banned: bool = "false";
    }
}

section! {
    /// Bans clients that connect and disconnect too often, such as two devices with the same client ID. The names and
    /// defaults are those of EMQX's `flapping_detect`.
    pub struct FlappingOptions at [Fixed("access"), Fixed("flapping")] {
        /// Enables the detection.
        restart enabled: bool = "false";
        /// Time in which the disconnects of a client are counted, from the first of them.
        restart window: Duration = "1m" ["1s", "1d"];
        /// Number of disconnects within `window` with which a client is banned. Disconnects by an administrator do not
        /// count.
        restart max_count: u32 = "15" ["2", "1000000"] in "disconnects";
        /// Duration of the ban. The client ID appears in the list of bans, where an administrator can remove it.
        restart ban_time: Duration = "5m" ["1s", "365d"];
    }
}

/// A table with free keys, so not a struct.
pub const CLIENT_ATTRS: Section = Section {
    path: &[Fixed("access"), Fixed("client_attrs")],
    doc: &[
        " Attributes of clients from their names, for `mountpoint`, access rules (`${client_attrs.NAME}`) and events, as",
        " EMQX's `client_attrs_init`.",
    ],
    options: &[OptionDef {
        name: "<name>",
        doc: &[
            " Expression with the value. `clientid`, `username`, and `cn` or `dn` of the client certificate are whole fields.",
            " `nth(1, tokens(clientid, '-'))` is the first part of the client ID, which is split at hyphens.",
            " `regex_extract(cn, '^meter-([0-9]+)$')` is the group of a regular expression. Without a value, the client does",
            " not have the attribute. An attribute with the same name that an authentication provider returns comes first.",
            " Clients choose their client ID: bind it to the user with a `connect` rule before you trust it.",
        ],
        default: "",
        range: None,
        unit: None,
        apply: Apply::Restart,
        kind: Kind::of::<AttributeSource>(),
    }],
};

/// `access.users.<user>`: a table with free keys, so not a struct.
pub const USERS: Section = Section {
    path: &[Fixed("access"), Fixed("users")],
    doc: &[" Users in addition to those of `access.password_file`."],
    options: &[OptionDef {
        name: "<user>",
        doc: &[" Hashed password, as `tidewire passwd` prints it."],
        default: "",
        range: None,
        unit: None,
        apply: Apply::Live,
        kind: Kind::of::<PasswordHash>(),
    }],
};
