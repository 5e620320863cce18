//! Clients in a table of PostgreSQL.

use super::*;
use crate::support::shared::POSTGRES;

/// A table in the PostgreSQL that all tests share.
pub struct Table {
    pub name: String,
    pub address: String,
}

impl Table {
    /// Creates the table of EMQX's documentation, with the user `user` (password `public`, SHA-256 with the salt after
    /// it) and the superuser `root` (password `secret`).
    pub fn new() -> Table {
        Table::at(POSTGRES.value("TIDEWIRE_POSTGRES"))
    }

    pub fn at(address: String) -> Table {
        let name = unique(&format!("clients_{}", std::process::id())).replace('-', "_");
        let table = Table { name, address };
        table.sql(&format!(
            "CREATE TABLE {} (id serial PRIMARY KEY, username text NOT NULL UNIQUE, password_hash text, salt text, \
             is_superuser boolean DEFAULT false, created timestamp with time zone DEFAULT NOW())",
            table.name
        ));
        let public = "44edc2d57cde8d79c98145003e105b90a14f1460b79186ea9cfe83942fc5abb5";
        table.insert("user", Some(public), "slat_foo123", false);
        let secret = "f84fa2149dbb62ed4e0cf1f550d2949b33a6513d3a7707e08502511c79ccb0ee";
        table.insert("root", Some(secret), "salt", true);
        table
    }

    pub fn insert(&self, user: &str, hash: Option<&str>, salt: &str, is_superuser: bool) {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let hash = hash.map_or("NULL".to_owned(), quoted);
        self.sql(&format!(
            "INSERT INTO {} (username, password_hash, salt, is_superuser) VALUES ({}, {hash}, {}, {is_superuser})",
            self.name,
            quoted(user),
            quoted(salt),
        ));
    }

    pub fn sql(&self, sql: &str) -> String {
        let (host, port) = self.address.rsplit_once(':').expect("an address");
        let mut command = Command::new("psql");
        command
            .env("PGPASSWORD", "tidewire")
            .args(["-U", "postgres", "-At", "-F", " "]);
        output(command.args(["-h", host, "-p", port, "-c", sql]))
    }

    /// Options of a server, with the default query for this table.
    pub fn options(&self, more: &[(&str, String)]) -> String {
        let (host, port) = self.address.rsplit_once(':').expect("an address");
        let query = "SELECT password_hash, salt, is_superuser FROM clients WHERE username = ${username} LIMIT 1";
        let mut all = vec![
            ("host", text(host)),
            ("port", port.to_owned()),
            ("database", text("postgres")),
            ("user", text("postgres")),
            ("password", text("tidewire")),
        ];
        if !more.iter().any(|(name, _)| *name == "query") {
            all.push(("query", text(&query.replace("clients", &self.name))));
        }
        if !more.iter().any(|(name, _)| *name == "password_hash_algorithm") {
            all.push(("salt_position", text("suffix")));
        }
        all.extend(more.iter().cloned());
        options("postgresql", &all)
    }

    pub fn start(&self, more: &[(&str, String)]) -> Server {
        Server::start(&Config::new(self.options(more)))
    }
}

#[test]
fn the_row_of_the_user_decides() {
    let table = Table::new();
    table.insert("nothing", None, "", false);
    table.insert("broken", Some("not a hash"), "", true);
    let server = table.start(&[]);
    for (name, password, code) in [
        ("user", "public", ADMITTED),
        ("user", "Public", WRONG),
        ("user", "", WRONG),
        ("root", "secret", ADMITTED),
        // The next provider knows the user `ann` and not this one.
        ("nobody", "public", WRONG),
        ("ann", "local", ADMITTED),
        ("ann", "public", WRONG),
        ("nothing", "public", 0x87),
        ("broken", "not a hash", WRONG),
    ] {
        // The second answer is from a cache.
        for _ in 0..2 {
            assert_eq!(login(&server, name, password), code, "{name} {password}");
        }
    }
    assert!(is_superuser(&server, "root", "secret"));
    assert!(!is_superuser(&server, "user", "public"));
    assert!(!is_superuser(&server, "ann", "local"));
    let log = server.log();
    assert!(log.contains("its user cannot log in"), "{log}");
    for secret in ["public", "44edc2d57c", "slat_foo123", "not a hash"] {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}

#[test]
fn every_algorithm_verifies_passwords() {
    let table = Table::new();
    for (index, (options, hash, salt, password)) in ALGORITHMS.iter().enumerate() {
        let name = format!("user-{index}");
        table.insert(&name, Some(hash), salt, false);
        let server = table.start(&algorithm_options(options));
        assert_eq!(login(&server, &name, password), ADMITTED, "{options:?}");
        assert_eq!(login(&server, &name, format!("{password}x")), WRONG, "{options:?}");
        assert_eq!(login(&server, "nobody", password), WRONG, "{options:?}");
        let is_weak = ["plain", "md5", "sha"].contains(&options[0].1);
        assert_eq!(server.log().contains("weak password hashes"), is_weak, "{options:?}");
    }
}

#[test]
fn values_of_clients_are_never_part_of_a_statement() {
    let table = Table::new();
    let query = "SELECT password_hash, salt, is_superuser FROM clients WHERE username = '${username}' AND \
                 'client ' || ${clientid} <> '${clientid}' LIMIT 1";
    let server = table.start(&[("query", text(&query.replace("clients", &table.name)))]);
    assert_eq!(login(&server, "user", "public"), ADMITTED);
    let connect_as = |client: &str, name: &str| {
        let connect = Connect::new(V5, client).user(name, "public");
        server.connect().handshake(&connect).code
    };
    for attempt in INJECTIONS {
        assert_eq!(login(&server, attempt, "public"), WRONG, "{attempt}");
        assert_eq!(connect_as(attempt, "nobody"), WRONG, "{attempt}");
        assert_eq!(connect_as(attempt, "user"), ADMITTED, "{attempt}");
        // The text as the name of a user.
        let public = "44edc2d57cde8d79c98145003e105b90a14f1460b79186ea9cfe83942fc5abb5";
        table.insert(&format!("{attempt}!"), Some(public), "slat_foo123", false);
        assert_eq!(login(&server, format!("{attempt}!"), "public"), ADMITTED, "{attempt}");
    }
    assert_eq!(login(&server, "x".repeat(60_000), "public"), WRONG);
    assert_eq!(login(&server, "user", [b'x', 0, 0xFF]), WRONG);
    assert_eq!(table.sql(&format!("SELECT count(*) FROM {}", table.name)).trim(), "16");
}

#[test]
fn values_that_a_column_cannot_have_belong_to_no_row() {
    let table = Table::new();
    let query = format!(
        "SELECT password_hash, salt FROM {} WHERE id = ${{username}}",
        table.name
    );
    let server = table.start(&[("query", text(&query)), ("on_failure", text("allow"))]);
    assert_eq!(login(&server, "1", "public"), ADMITTED);
    for name in ["one", "1; DROP TABLE x", "99999999999999999999", "", " ", "1.5"] {
        assert_eq!(login(&server, name, "public"), WRONG, "{name:?}");
    }
    // The placeholder of a password may have any bytes.
    let query = format!(
        "SELECT password_hash, salt FROM {} WHERE username = ${{username}} AND ${{password}} <> ''",
        table.name
    );
    let server = table.start(&[("query", text(&query)), ("on_failure", text("allow"))]);
    assert_eq!(login(&server, "user", "public"), ADMITTED);
    assert_eq!(login(&server, "user", [b'p', 0]), WRONG);
    assert_eq!(login(&server, "user", [0xFF]), WRONG);
}
