//! Clients in a table of an SQLite file.

use std::fs;
use std::path::PathBuf;

use rusqlite::{Connection, params};

use super::*;

/// A file with a table. It is removed when dropped.
pub struct Table {
    directory: PathBuf,
    pub file: PathBuf,
}

impl Table {
    pub fn connection(&self) -> Connection {
        Connection::open(&self.file).expect("the file is a database")
    }

    fn execute(&self, sql: &str, values: impl rusqlite::Params) {
        self.connection().execute(sql, values).expect("a valid statement");
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Clients for Table {
    const PROVIDER: &'static str = "sqlite";

    fn empty() -> Table {
        let directory = std::env::temp_dir().join(unique(&format!("tidewire-sqlite-{}", std::process::id())));
        fs::create_dir_all(&directory).expect("the directory for temporary files can be written to");
        let file = directory.join("clients.db");
        let table = Table { directory, file };
        table.execute(
            "CREATE TABLE mqtt_user (username TEXT PRIMARY KEY, password_hash TEXT, salt TEXT, is_superuser BOOLEAN)",
            [],
        );
        table
    }

    fn insert(&self, user: &str, hash: Option<&str>, salt: &str, is_superuser: bool) {
        let values = params![user, hash, salt, is_superuser];
        self.execute("INSERT INTO mqtt_user VALUES (?, ?, ?, ?)", values);
    }

    fn change(&self, user: &str, hash: &str) {
        let sql = "UPDATE mqtt_user SET password_hash = ?, salt = 'salt' WHERE username = ?";
        self.execute(sql, [hash, user]);
    }

    fn delete(&self, user: &str) {
        self.execute("DELETE FROM mqtt_user WHERE username = ?", [user]);
    }

    fn insert_many(&self, count: u64) {
        let sql = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?1) \
                   INSERT INTO mqtt_user SELECT 'meter-' || n, ?2, 'salt', FALSE FROM numbers";
        let count = i64::try_from(count).expect("a small number");
        self.execute(sql, params![count, SECRET]);
    }

    fn count(&self) -> usize {
        let sql = "SELECT count(*) FROM mqtt_user";
        let count: i64 = self
            .connection()
            .query_row(sql, [], |row| row.get(0))
            .expect("a number");
        count as usize
    }

    fn address(&self) -> String {
        self.file.display().to_string()
    }

    fn place(&self) -> Vec<(&'static str, String)> {
        vec![("file", text(&self.address()))]
    }

    fn query_with_quotes(&self) -> Option<String> {
        let query = "SELECT password_hash, salt, is_superuser FROM `mqtt_user` WHERE username = '${username}' AND \
                     'client ' || ${clientid} <> '${clientid}' LIMIT 1";
        Some(query.to_owned())
    }
}

#[test]
fn a_query_can_exclude_expired_rows() {
    let table = Table::new();
    table.execute("ALTER TABLE mqtt_user ADD COLUMN expires TEXT DEFAULT '9999-12-31'", []);
    let query = "SELECT password_hash, salt FROM mqtt_user WHERE username = ${username} AND expires > date('now')";
    let server = table.start(&[("query", text(query)), ("cache_allowed", text("0s"))]);
    assert_eq!(login(&server, "user", "public"), ADMITTED);
    table.execute("UPDATE mqtt_user SET expires = '2001-01-01'", []);
    assert_eq!(login(&server, "user", "public"), WRONG);
}

#[test]
fn a_missing_locked_or_replaced_file_is_noticed() {
    let table = Table::new();
    let server = table.start(&[
        ("cache_allowed", text("0s")),
        ("cache_denied", text("0s")),
        ("timeout", text("1s")),
    ]);
    assert_eq!(login(&server, "user", "public"), ADMITTED);

    let writer = table.connection();
    writer.execute_batch("BEGIN EXCLUSIVE").expect("a lock");
    assert_eq!(login(&server, "user", "public"), UNAVAILABLE);
    // The next provider does not decide either: `ann` could be a user of the file.
    assert_eq!(login(&server, "ann", "local"), UNAVAILABLE);
    writer.execute_batch("COMMIT").expect("the end of the lock");
    assert_eq!(login(&server, "user", "public"), ADMITTED);

    let other = Table::new();
    other.change("user", SECRET);
    fs::rename(&other.file, &table.file).expect("both files are in one file system");
    assert_eq!(login(&server, "user", "public"), WRONG);
    assert_eq!(login(&server, "user", "secret"), ADMITTED);

    fs::rename(&table.file, &other.file).expect("the file exists");
    assert_eq!(login(&server, "user", "secret"), UNAVAILABLE);
    fs::write(&table.file, "garbage ".repeat(1000)).expect("a file can be written");
    assert_eq!(login(&server, "user", "secret"), UNAVAILABLE);
    fs::rename(&other.file, &table.file).expect("the file exists");
    assert_eq!(login(&server, "user", "secret"), ADMITTED);
    let log = server.log();
    for expected in [
        &table.address(),
        "another program has locked the database",
        "works again",
    ] {
        assert!(log.contains(expected), "{expected}: {log}");
    }
}

#[test]
fn an_unusable_file_or_query_prevents_the_start() {
    let table = Table::new();
    let garbage = table.directory.join("garbage.db");
    fs::write(&garbage, "garbage ".repeat(1000)).expect("a file can be written");
    let missing = table.directory.join("missing.db");
    let path = |file: &PathBuf| text(&file.display().to_string());
    for (option, value, expected) in [
        ("file", path(&missing), "missing.db: No such file"),
        ("file", path(&garbage), "garbage.db: file is not a database"),
        ("file", text(""), "is missing: `sqlite` of `access.providers` needs it"),
        (
            "query",
            text("SELECT salt FROM mqtt_user WHERE username = ${username}"),
            "no column password_hash",
        ),
        (
            "query",
            text("SELECT password_hash FROM users WHERE username = ${username}"),
            "no such table: users",
        ),
        (
            "query",
            text("DELETE FROM mqtt_user WHERE username = ${username} RETURNING *"),
            "more than reading",
        ),
    ] {
        let file = table.directory.join("tidewire.toml");
        fs::write(&file, table.options(&[(option, value)])).expect("a file can be written");
        let output = Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .arg("--config")
            .arg(&file)
            .current_dir(&table.directory)
            .output()
            .expect("the server runs");
        let errors = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        assert!(
            !output.status.success() && errors.contains(expected),
            "{option}: {errors}"
        );
        assert!(
            errors.contains("sqlite") && errors.contains(option),
            "{option}: {errors}"
        );
    }
    assert_eq!(table.count(), 2);
}
