//! Clients whose passwords are in PostgreSQL, MySQL, SQLite, MongoDB or Redis, with real servers and the real binary.
//!
//! `decisions`, `outages` and `reconnects` have the tests that run with each database, and `faults` others with
//! databases that fail, are slow or change. `sources` has those of access rules. The files of the databases have the
//! rest.

/// Makes a module of tests for each database.
macro_rules! for_each_database {
    ($($test:ident),+ $(,)?) => {
        for_each_database!(@ postgresql mysql sqlite mongodb redis: $($test),+);
    };
    (@ $($database:ident)+: $($test:ident),+) => {
        for_each_database!(@@ [$($database)+] [$($test),+]);
    };
    (@@ [$first:ident $($rest:ident)*] [$($test:ident),+]) => {
        mod $first {
            $(
                #[test]
                fn $test() {
                    super::$test::<crate::database_logins::$first::Table>();
                }
            )+
        }
        for_each_database!(@@ [$($rest)*] [$($test),+]);
    };
    (@@ [] [$($test:ident),+]) => {};
}

mod decisions;
pub mod faults;
mod mongodb;
pub mod mysql;
mod outages;
pub mod postgresql;
pub mod reconnects;
mod redis;
mod rules;
mod sources;
mod sqlite;

use std::fmt::Write;
use std::process::Command;

use crate::support::*;

/// Codes of a CONNACK.
const ADMITTED: u8 = 0;
const WRONG: u8 = 0x86;
const UNAVAILABLE: u8 = 0x88;

/// User `ann` of the server itself, the next provider, with the password `local`: SHA-256 of `saltlocal`.
const NEXT_PROVIDER: &str = "ann = \"$sha256$salt$b59b7ac2be21b3e64c40079c89466f265f0b53252b947544337412cba708ce7f\"";

/// `password_hash` of `public` with the salt `slat_foo123` after it, in the documentation of EMQX.
const PUBLIC: &str = "44edc2d57cde8d79c98145003e105b90a14f1460b79186ea9cfe83942fc5abb5";

/// `password_hash` of `secret` with the salt `salt` after it.
const SECRET: &str = "f84fa2149dbb62ed4e0cf1f550d2949b33a6513d3a7707e08502511c79ccb0ee";

/// Clients in a database.
trait Clients: Sized {
    const PROVIDER: &'static str;

    /// Creates a place for clients.
    fn empty() -> Self;

    /// Adds a client. Without a hash, the client has no password.
    fn insert(&self, user: &str, hash: Option<&str>, salt: &str, is_superuser: bool);

    /// Sets the hash of a client, with the salt `salt`.
    fn change(&self, user: &str, hash: &str);

    fn delete(&self, user: &str);

    /// Adds the clients `meter-1` and so on. Their hash is [`SECRET`].
    fn insert_many(&self, count: u64);

    fn count(&self) -> usize;

    /// Text with which errors name the database.
    fn address(&self) -> String;

    /// Options that lead to the database.
    fn place(&self) -> Vec<(&'static str, String)>;

    /// A query with placeholders in quotes and the client ID, as another value of `query`.
    fn query_with_quotes(&self) -> Option<String>;

    /// Creates a place with the user `user` (password `public`) and the superuser `root` (password `secret`). Both
    /// have SHA-256 with the salt after the password.
    fn new() -> Self {
        let clients = Self::empty();
        clients.insert("user", Some(PUBLIC), "slat_foo123", false);
        clients.insert("root", Some(SECRET), "salt", true);
        clients
    }

    /// Options of a server with these clients.
    fn options(&self, more: &[(&str, String)]) -> String {
        let mut all = self.place();
        all.retain(|(name, _)| !more.iter().any(|(other, _)| other == name));
        if !more.iter().any(|(name, _)| *name == "password_hash_algorithm") {
            all.push(("salt_position", text("suffix")));
        }
        options(Self::PROVIDER, &[&all, more].concat())
    }

    fn start(&self, more: &[(&str, String)]) -> Server {
        Server::start(&Config::new(self.options(more)))
    }
}

/// An SQL string.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The host and the port of an address.
fn host_and_port(address: &str) -> (&str, &str) {
    address.rsplit_once(':').expect("an address")
}

/// Replaces the address of a database in its options.
fn at(place: &[(&'static str, String)], address: &str) -> Vec<(&'static str, String)> {
    if place.iter().any(|(name, _)| *name == "servers") {
        return vec![("servers", format!("[{}]", text(address)))];
    }
    let (host, port) = host_and_port(address);
    vec![("host", text(host)), ("port", port.to_owned())]
}

/// Options of a server whose clients are in a database and then in `access.users`. Only superusers may subscribe to
/// `closed/#`.
fn options(provider: &str, more: &[(&str, String)]) -> String {
    let mut text = format!(
        "[access]\nanonymous = \"never\"\nproviders = [\"{provider}\", \"users\"]\nmax_login_failures = 0\n\
         rules = [{{ permission = \"deny\", action = \"subscribe\", topics = [\"closed/#\"] }}, \
         {{ permission = \"allow\", action = \"all\", topics = [\"#\"] }}]\n\
         [access.users]\n{NEXT_PROVIDER}\n[access.{provider}]\n"
    );
    for (name, value) in more {
        writeln!(text, "{name} = {value}").expect("a string grows");
    }
    let has = |option: &str| more.iter().any(|(name, _)| *name == option);
    if has("on_failure") || provider == "mongodb" && !has("timeout") {
        // A slow answer of a busy machine would be a failure.
        text.push_str("timeout = \"1m\"\n");
    }
    text
}

/// A TOML string.
fn text(value: &str) -> String {
    format!("'''{value}'''")
}

fn login(server: &Server, name: impl AsRef<[u8]>, password: impl AsRef<[u8]>) -> u8 {
    let connect = Connect::new(V5, unique("client")).user(name, password);
    server.connect().handshake(&connect).code
}

/// Whether a client may subscribe where only superusers may.
fn is_superuser(server: &Server, name: &str, password: &str) -> bool {
    let mut client = server.session(&Connect::new(V5, unique("client")).user(name, password));
    client.subscribe_code("closed/door", 0) == 0
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("the client of the database is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// Algorithm with its options, `password_hash`, `salt` and password, mostly from the documentation of EMQX.
type Algorithm = (
    &'static [(&'static str, &'static str)],
    &'static str,
    &'static str,
    &'static str,
);

const ALGORITHMS: [Algorithm; 8] = [
    (
        &[("password_hash_algorithm", "plain"), ("salt_position", "disable")],
        "public",
        "",
        "public",
    ),
    (
        &[("password_hash_algorithm", "md5"), ("salt_position", "suffix")],
        "99cd2e5a95d555ee7be3b038a4a84625",
        "salt",
        "secret",
    ),
    (
        &[("password_hash_algorithm", "sha"), ("salt_position", "disable")],
        "e5e9fa1ba31ecd1ae84f75caaa474f3a663f05f4",
        "",
        "secret",
    ),
    (
        &[("password_hash_algorithm", "sha256"), ("salt_position", "suffix")],
        "44edc2d57cde8d79c98145003e105b90a14f1460b79186ea9cfe83942fc5abb5",
        "slat_foo123",
        "public",
    ),
    (
        &[("password_hash_algorithm", "sha512")],
        "a1509ab67bfacbad020927b5ac9d91e9100a82e33a0ebb01459367ce921c0aa8157aa5652f94bc84fa3babc08283e44887d61c48bcf8ad7b\
         cb3259ee7d0eafcd",
        "salt",
        "sha512",
    ),
    (
        &[("password_hash_algorithm", "bcrypt")],
        "$2b$12$wtY3h20mUjjmeaClpqZVveDWGlHzCGsvuThMlneGHA7wVeFYyns2u",
        "",
        "bcrypt",
    ),
    (
        &[
            ("password_hash_algorithm", "pbkdf2"),
            ("mac_fun", "sha"),
            ("iterations", "2"),
            ("dk_length", "32"),
        ],
        "01dbee7f4a9e243e988b62c73cda935da05378b93244ec8f48a99e61ad799d86",
        "ATHENA.MIT.EDUraeburn",
        "password",
    ),
    (
        &[("password_hash_algorithm", "argon2")],
        "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4",
        "",
        "password",
    ),
];

/// The options of an algorithm as TOML values.
fn algorithm_options(options: &[(&'static str, &str)]) -> Vec<(&'static str, String)> {
    let value = |name: &str, value: &str| match name {
        "iterations" | "dk_length" => value.to_owned(),
        _ => text(value),
    };
    options
        .iter()
        .map(|(name, found)| (*name, value(name, found)))
        .collect()
}

/// User names and client IDs that would change a statement or a command if they were part of its text.
const INJECTIONS: [&str; 19] = [
    "' OR '1'='1",
    "' OR 1=1 --",
    "' OR 1=1 LIMIT 1 --",
    "ann' --",
    "'; DROP TABLE clients; --",
    "' UNION SELECT 'public', '', true --",
    "\\' OR 1=1 --",
    "\" OR \"\"=\"",
    "$1",
    "${username}",
    "$$ OR 1=1 $$",
    "user\r\nHMGET mqtt_user:user password_hash salt is_superuser",
    "user password_hash",
    "*",
    "{\"$ne\": null}",
    "{ $gt: '' }",
    "$where",
    "user.password_hash",
    "true; return true",
];
