//! Clients in a table of PostgreSQL.

use super::faults::uncached;
use super::*;
use crate::support::shared::POSTGRES;

/// A table in the PostgreSQL that all tests share.
pub struct Table {
    pub name: String,
    pub address: String,
}

impl Table {
    /// Creates the table of EMQX's documentation, without clients.
    fn at(address: String) -> Table {
        let name = unique(&format!("clients_{}", std::process::id())).replace('-', "_");
        let table = Table { name, address };
        table.sql(&format!(
            "CREATE TABLE {} (id serial PRIMARY KEY, username text NOT NULL UNIQUE, password_hash text, salt text, \
             is_superuser boolean DEFAULT false, created timestamp with time zone DEFAULT NOW())",
            table.name
        ));
        table
    }

    /// A table with the superuser `root` in another server.
    pub fn with_root(address: String) -> Table {
        let table = Table::at(address);
        table.insert("root", Some(SECRET), "salt", true);
        table
    }

    pub fn sql(&self, sql: &str) -> String {
        let (host, port) = host_and_port(&self.address);
        let mut command = Command::new("psql");
        command
            .env("PGPASSWORD", "tidewire")
            .args(["-U", "postgres", "-At", "-F", " "]);
        output(command.args(["-h", host, "-p", port, "-c", sql]))
    }
}

impl Clients for Table {
    const PROVIDER: &'static str = "postgresql";

    fn empty() -> Table {
        Table::at(POSTGRES.value("TIDEWIRE_POSTGRES"))
    }

    fn insert(&self, user: &str, hash: Option<&str>, salt: &str, is_superuser: bool) {
        self.sql(&format!(
            "INSERT INTO {} (username, password_hash, salt, is_superuser) VALUES ({}, {}, {}, {is_superuser})",
            self.name,
            quoted(user),
            hash.map_or("NULL".to_owned(), quoted),
            quoted(salt),
        ));
    }

    fn change(&self, user: &str, hash: &str) {
        self.sql(&format!(
            "UPDATE {} SET password_hash = {}, salt = 'salt' WHERE username = {}",
            self.name,
            quoted(hash),
            quoted(user)
        ));
    }

    fn delete(&self, user: &str) {
        self.sql(&format!("DELETE FROM {} WHERE username = {}", self.name, quoted(user)));
    }

    fn insert_many(&self, count: u64) {
        self.sql(&format!(
            "INSERT INTO {} (username, password_hash, salt) SELECT 'meter-' || n, '{SECRET}', 'salt' \
             FROM generate_series(1, {count}) AS n",
            self.name
        ));
    }

    fn count(&self) -> usize {
        let count = self.sql(&format!("SELECT count(*) FROM {}", self.name));
        count.trim().parse().expect("a number")
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    /// With the default query for this table.
    fn place(&self) -> Vec<(&'static str, String)> {
        let (host, port) = host_and_port(&self.address);
        let query = "SELECT password_hash, salt, is_superuser FROM clients WHERE username = ${username} LIMIT 1";
        vec![
            ("host", text(host)),
            ("port", port.to_owned()),
            ("database", text("postgres")),
            ("user", text("postgres")),
            ("password", text("tidewire")),
            ("query", text(&query.replace("clients", &self.name))),
        ]
    }

    fn query_with_quotes(&self) -> Option<String> {
        let query = "SELECT password_hash, salt, is_superuser FROM clients WHERE username = '${username}' AND \
                     'client ' || ${clientid} <> '${clientid}' LIMIT 1";
        Some(query.replace("clients", &self.name))
    }
}

#[test]
fn a_changed_password_of_the_account_is_noticed() {
    let table = Table::new();
    let reader = format!("{}_reader", table.name);
    table.sql(&format!(
        "CREATE ROLE {reader} LOGIN PASSWORD 'right-one'; GRANT SELECT ON {} TO {reader}",
        table.name
    ));
    let as_reader = |password: &str| {
        let account = [("user", text(&reader)), ("password", text(password))];
        table.start(&[&uncached()[..], &account].concat())
    };
    let server = as_reader("right-one");
    assert_eq!(login(&server, "user", "public"), ADMITTED);
    table.sql(&format!("ALTER ROLE {reader} PASSWORD 'rotated'"));
    // Existing connections do not need the password, so they are ended.
    table.sql(&format!(
        "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE usename = '{reader}'"
    ));
    for _ in 0..3 {
        assert_eq!(login(&server, "user", "public"), UNAVAILABLE);
    }
    let log = server.log();
    assert!(!log.contains("right-one"), "{log}");
    let server = as_reader("rotated");
    assert_eq!(login(&server, "user", "public"), ADMITTED);
}

#[test]
fn a_query_can_exclude_expired_and_revoked_rows() {
    let table = Table::new();
    let query = format!(
        "SELECT password_hash, salt, is_superuser FROM {} WHERE username = ${{username}} AND created > NOW()",
        table.name
    );
    let server = table.start(&[&uncached()[..], &[("query", text(&query))]].concat());
    assert_eq!(login(&server, "user", "public"), WRONG);
    table.sql(&format!("UPDATE {} SET created = NOW() + INTERVAL '1 day'", table.name));
    assert_eq!(login(&server, "user", "public"), ADMITTED);
    table.delete("user");
    assert_eq!(login(&server, "user", "public"), WRONG);
    assert_eq!(login(&server, "root", "secret"), ADMITTED);
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
