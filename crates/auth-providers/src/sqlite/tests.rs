//! Tests of rows and errors with real files.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use connectors::sql::LookupValue;
use rusqlite::Connection;

use super::*;

const QUERY: &str = "SELECT password_hash, salt, is_superuser FROM mqtt_user WHERE username = ${username}";

struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tidewire-sqlite-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    /// Creates a database with the client `u`.
    fn database(&self, name: &str, hash: &str) -> PathBuf {
        let path = self.0.join(name);
        let connection = Connection::open(&path).unwrap();
        connection
            .execute_batch(&format!(
                "CREATE TABLE mqtt_user (username TEXT PRIMARY KEY, password_hash TEXT, salt TEXT, is_superuser INTEGER);
                 INSERT INTO mqtt_user VALUES ('u', '{hash}', x'00ff', 1);
                 CREATE VIEW clients AS SELECT * FROM mqtt_user;"
            ))
            .unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn config(file: &Path) -> SqliteFile {
    SqliteFile {
        path: file.to_owned(),
        connections_max: 2,
        busy_timeout: Duration::ZERO,
        query_timeout: Duration::from_secs(60),
    }
}

fn lookup(file: &Path, query: &str) -> SqliteLookup {
    SqliteLookup::new(&config(file), query, PASSWORD_COLUMNS).unwrap()
}

/// Returns at most `max` rows for a user.
fn rows_of(lookup: &SqliteLookup, user: &str, max: usize) -> Result<Vec<LookupRow>, LookupError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(lookup.rows(&[user.as_bytes().to_vec()], max))
}

/// Returns the `password_hash` of a user.
fn hash_of(lookup: &SqliteLookup, user: &str) -> Result<Option<String>, LookupError> {
    let row = rows_of(lookup, user, 1)?.pop();
    Ok(row.map(|mut row| match row.take("password_hash") {
        Some(LookupValue::Bytes(bytes)) => String::from_utf8(bytes).unwrap(),
        other => format!("{other:?}"),
    }))
}

fn failure(result: Result<Option<String>, LookupError>) -> String {
    match result {
        Err(LookupError::Failed(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_row_of_the_user_is_read() {
    let directory = Directory::new();
    let file = directory.database("a.db", "first");
    let lookup = lookup(&file, QUERY);
    let row = rows_of(&lookup, "u", 1).unwrap().pop().unwrap();
    let bytes = |value: &[u8]| LookupValue::Bytes(value.to_vec());
    assert_eq!(
        row.columns,
        [
            ("password_hash".to_owned(), bytes(b"first")),
            ("salt".to_owned(), bytes(&[0, 0xFF])),
            ("is_superuser".to_owned(), bytes(b"1")),
        ]
    );
    assert_eq!(hash_of(&lookup, "v"), Ok(None));
    assert_eq!(hash_of(&lookup, "' OR 1=1 --"), Ok(None));
    assert_eq!(hash_of(&lookup, "u\0"), Err(LookupError::InvalidValue));
    let view = self::lookup(
        &file,
        "SELECT password_hash FROM clients WHERE username = '${username}'",
    );
    assert_eq!(hash_of(&view, "u"), Ok(Some("first".to_owned())));
}

#[test]
fn a_changed_or_replaced_file_is_noticed() {
    let directory = Directory::new();
    let file = directory.database("a.db", "first");
    let lookup = lookup(&file, QUERY);
    assert_eq!(hash_of(&lookup, "u"), Ok(Some("first".to_owned())));
    let writer = Connection::open(&file).unwrap();
    writer
        .execute("UPDATE mqtt_user SET password_hash = 'second'", [])
        .unwrap();
    drop(writer);
    assert_eq!(hash_of(&lookup, "u"), Ok(Some("second".to_owned())));

    fs::rename(directory.database("b.db", "third"), &file).unwrap();
    assert_eq!(hash_of(&lookup, "u"), Ok(Some("third".to_owned())));
    // Overwritten in place, with a file of another size.
    let long = "fourth".repeat(10_000);
    fs::copy(directory.database("c.db", &long), &file).unwrap();
    assert_eq!(hash_of(&lookup, "u"), Ok(Some(long)));

    fs::remove_file(&file).unwrap();
    let reason = failure(hash_of(&lookup, "u"));
    assert!(reason.contains("a.db") && reason.contains("No such file"), "{reason}");
    fs::write(&file, "not a database, but longer than the header of one".repeat(30)).unwrap();
    let reason = failure(hash_of(&lookup, "u"));
    assert!(reason.contains("a.db: file is not a database"), "{reason}");
    fs::rename(directory.database("d.db", "fifth"), &file).unwrap();
    assert_eq!(hash_of(&lookup, "u"), Ok(Some("fifth".to_owned())));
}

#[test]
fn changes_in_wal_mode_are_read() {
    let directory = Directory::new();
    let file = directory.database("a.db", "first");
    let writer = Connection::open(&file).unwrap();
    writer.execute_batch("PRAGMA journal_mode = WAL").unwrap();
    let lookup = lookup(&file, QUERY);
    writer
        .execute("UPDATE mqtt_user SET password_hash = 'second'", [])
        .unwrap();
    assert_eq!(hash_of(&lookup, "u"), Ok(Some("second".to_owned())));
    // The reader does not prevent writes, and the lock of the writer does not prevent reading.
    writer
        .execute_batch("BEGIN EXCLUSIVE; UPDATE mqtt_user SET password_hash = 'third'")
        .unwrap();
    assert_eq!(hash_of(&lookup, "u"), Ok(Some("second".to_owned())));
    writer.execute_batch("COMMIT").unwrap();
    assert_eq!(hash_of(&lookup, "u"), Ok(Some("third".to_owned())));
}

#[test]
fn a_locked_file_is_a_failure_until_the_lock_ends() {
    let directory = Directory::new();
    let file = directory.database("a.db", "first");
    let lookup = lookup(&file, QUERY);
    let writer = Connection::open(&file).unwrap();
    writer.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let reason = failure(hash_of(&lookup, "u"));
    assert!(reason.ends_with("another program has locked the database"), "{reason}");
    // The server starts nevertheless.
    let started = self::lookup(&file, QUERY);
    assert_eq!(check_file(&file), Ok(()));
    writer.execute_batch("COMMIT").unwrap();
    for lookup in [&lookup, &started] {
        assert_eq!(hash_of(lookup, "u"), Ok(Some("first".to_owned())));
    }
}

#[test]
fn a_slow_query_ends_at_its_limit() {
    let directory = Directory::new();
    let file = directory.database("a.db", "first");
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
                   SELECT ${username} AS password_hash FROM n WHERE i < 0";
    let limited = SqliteFile {
        query_timeout: Duration::from_millis(20),
        ..config(&file)
    };
    let lookup = SqliteLookup::new(&limited, endless, PASSWORD_COLUMNS).unwrap();
    let reason = failure(hash_of(&lookup, "u"));
    assert!(reason.ends_with("the query took too long"), "{reason}");
}

#[test]
fn unusable_files_and_queries_are_errors_at_the_start() {
    let directory = Directory::new();
    let file = directory.database("a.db", "first");
    let garbage = directory.0.join("garbage.db");
    fs::write(&garbage, "x".repeat(4096)).unwrap();
    let other = directory.0.join("other.db");
    let attach = format!("ATTACH '{}' AS ${{username}}", other.display());
    let by_name = "SELECT password_hash FROM mqtt_user WHERE username = ${username}";
    for (path, query, expected) in [
        (&directory.0.join("missing.db"), by_name, "file: cannot read"),
        (&directory.0, by_name, "not a file"),
        (&garbage, by_name, "file is not a database"),
        (
            &file,
            "SELECT salt FROM mqtt_user WHERE username = ${username}",
            "no column password_hash",
        ),
        (
            &file,
            "SELECT password_hash FROM users WHERE username = ${username}",
            "no such table: users",
        ),
        (
            &file,
            "SELECT password_hash FROM mqtt_user WHERE username = ${username} AND salt = :salt",
            "`:name`",
        ),
        (
            &file,
            "DELETE FROM mqtt_user WHERE username = ${username} RETURNING password_hash",
            "more than reading",
        ),
        (
            &file,
            "UPDATE mqtt_user SET salt = ${username} RETURNING password_hash",
            "more than reading",
        ),
        (&file, &attach, "more than reading"),
        (
            &file,
            "SELECT load_extension(${username}) AS password_hash",
            "load_extension",
        ),
        (
            &file,
            "SELECT password_hash FROM mqtt_user",
            "query: needs at least one",
        ),
    ] {
        let lookup = SqliteLookup::new(&config(path), query, PASSWORD_COLUMNS);
        let error = lookup.map(drop).expect_err(query);
        assert!(error.contains(expected), "{query}: {error}");
        assert!(error.starts_with("file: ") || error.starts_with("query: "), "{error}");
    }
    assert!(!other.exists());
    assert!(check_file(&garbage).unwrap_err().contains("file is not a database"));
    assert_eq!(check_file(&file), Ok(()));
}

#[test]
fn rows_have_the_order_of_the_query_up_to_a_maximum() {
    let directory = Directory::new();
    let file = directory.database("a.db", "first");
    let query = "SELECT 'b' AS topic WHERE ${username} <> '' UNION ALL SELECT 'a' UNION ALL SELECT 'c'";
    let lookup = SqliteLookup::new(&config(&file), query, RULE_COLUMNS).unwrap();
    let topics = |max| {
        let rows = rows_of(&lookup, "u", max).unwrap().into_iter();
        rows.map(|mut row| row.take("topic").unwrap()).collect::<Vec<_>>()
    };
    let expected = ["b", "a", "c"].map(|topic| LookupValue::Bytes(topic.into()));
    assert_eq!(topics(10), expected);
    assert_eq!(topics(2), expected[..2]);
}
