//! Clients in a table of MySQL, with MariaDB.

use super::*;
use crate::support::shared::MARIADB;

/// A table in the MariaDB that all tests share.
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
            "CREATE TABLE {} (id int UNSIGNED AUTO_INCREMENT PRIMARY KEY, username varchar(100) NOT NULL UNIQUE, \
             password_hash varchar(200), salt varchar(35), is_superuser tinyint(1) DEFAULT 0, created datetime) \
             DEFAULT CHARSET = utf8mb4",
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
        let mut command = Command::new("mariadb");
        command.arg("--no-defaults").env("MYSQL_PWD", "tidewire").args([
            "--default-character-set=utf8mb4",
            "-h",
            host,
            "-P",
            port,
            "-u",
            "tidewire",
        ]);
        output(command.args(["-N", "tidewire", "-e", sql]))
    }
}

/// An SQL string of MySQL, where a backslash is an escape.
pub fn escaped(text: &str) -> String {
    quoted(&text.replace('\\', "\\\\"))
}

impl Clients for Table {
    const PROVIDER: &'static str = "mysql";

    fn empty() -> Table {
        Table::at(MARIADB.value("TIDEWIRE_MARIADB"))
    }

    fn insert(&self, user: &str, hash: Option<&str>, salt: &str, is_superuser: bool) {
        self.sql(&format!(
            "INSERT INTO {} (username, password_hash, salt, is_superuser) VALUES ({}, {}, {}, {is_superuser})",
            self.name,
            escaped(user),
            hash.map_or("NULL".to_owned(), escaped),
            escaped(salt),
        ));
    }

    fn change(&self, user: &str, hash: &str) {
        self.sql(&format!(
            "UPDATE {} SET password_hash = {}, salt = 'salt' WHERE username = {}",
            self.name,
            escaped(hash),
            escaped(user)
        ));
    }

    fn delete(&self, user: &str) {
        self.sql(&format!("DELETE FROM {} WHERE username = {}", self.name, escaped(user)));
    }

    fn insert_many(&self, count: u64) {
        self.sql(&format!(
            "INSERT INTO {} (username, password_hash, salt) SELECT CONCAT('meter-', seq), '{SECRET}', 'salt' \
             FROM seq_1_to_{count}",
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
        let query = "SELECT password_hash, salt, is_superuser FROM clients WHERE username = ${username} \
                     AND BINARY username = ${username} LIMIT 1";
        vec![
            ("host", text(host)),
            ("port", port.to_owned()),
            ("database", text("tidewire")),
            ("user", text("tidewire")),
            ("password", text("tidewire")),
            ("query", text(&query.replace("clients", &self.name))),
        ]
    }

    fn query_with_quotes(&self) -> Option<String> {
        let query = "SELECT password_hash, salt, is_superuser FROM `clients` WHERE BINARY username = '${username}' AND \
                     CONCAT('client ', ${clientid}) <> '${clientid}' LIMIT 1";
        Some(query.replace("clients", &self.name))
    }
}

#[test]
fn a_query_can_exclude_expired_rows() {
    let table = Table::new();
    let query = format!(
        "SELECT password_hash, salt FROM {} WHERE BINARY username = ${{username}} AND (created IS NULL OR created > NOW())",
        table.name
    );
    let server = table.start(&[("query", text(&query)), ("cache_allowed", text("0s"))]);
    assert_eq!(login(&server, "user", "public"), ADMITTED);
    table.sql(&format!("UPDATE {} SET created = '2001-01-01'", table.name));
    assert_eq!(login(&server, "user", "public"), WRONG);
}

#[test]
fn a_slow_query_ends_and_delays_no_other_client() {
    let table = Table::new();
    table.insert("slow", Some(SECRET), "salt", false);
    let query = format!(
        "SELECT password_hash, salt FROM {} WHERE BINARY username = ${{username}} \
         AND (username <> 'slow' OR SLEEP(10) = 0)",
        table.name
    );
    let server = table.start(&[("query", text(&query)), ("timeout", text("500ms"))]);
    let mut slow: Vec<Peer> = Vec::new();
    for _ in 0..3 {
        let mut client = server.connect().speak(V5);
        client.send(&Connect::new(V5, unique("slow")).user("slow", "secret").bytes());
        slow.push(client);
    }
    assert_eq!(login(&server, "user", "public"), ADMITTED);
    for client in &mut slow {
        assert_eq!(client.expect_packet().connack(V5).code, UNAVAILABLE);
    }
    // The database has ended the statement, too.
    server.wait_until("the database runs no query", |_| {
        let running = format!(
            "SELECT count(*) FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID() AND INFO LIKE '%{}%'",
            table.name
        );
        table.sql(&running).trim() == "0"
    });
}

#[test]
fn a_server_on_another_machine_without_tls_is_warned_of() {
    for (host, is_warned_of) in [("192.0.2.1", true), ("127.0.0.1", false)] {
        let server = Server::start(&Config::new(format!(
            "[access]\nproviders = [\"mysql\"]\n\
             [access.mysql]\nhost = \"{host}\"\ndatabase = \"clients\"\nuser = \"tidewire\"\n"
        )));
        let log = server.log();
        assert_eq!(log.contains("caching_sha2_password"), is_warned_of, "{host}: {log}");
    }
}
