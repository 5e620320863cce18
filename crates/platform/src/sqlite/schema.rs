//! Tables of the entity database, and the settings of a connection. Version 2 added the table `part`, version 3 the
//! table `generation`.
//!
//! ```text
//! entity        all entity types: columns for searching, the rest as JSON in body
//! relation      from, to, type, group
//! attribute     entity, scope, key; value by its type: integer column (bool, long), real, text (string, JSON)
//! alarm         columns for searching, the rest as JSON in body
//! entity_alarm  entities that show an alarm: its originator and those it is propagated to
//! state         state that components save for the next start
//! part          parts of OTA packages, 1 MiB each except the last
//! generation    one row: the number of transactions so far (generation.rs)
//! ```

use rusqlite::{Connection, Transaction};

pub const VERSION: i64 = 3;

const TABLES: &str = "
CREATE TABLE entity (
    kind INTEGER NOT NULL,
    id BLOB NOT NULL,
    tenant BLOB NOT NULL,
    customer BLOB NOT NULL,
    parent BLOB NOT NULL,
    name TEXT NOT NULL,
    subtype TEXT NOT NULL,
    label TEXT NOT NULL,
    unique_key TEXT,
    has_unique_name INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    version INTEGER NOT NULL,
    body TEXT NOT NULL
);
CREATE UNIQUE INDEX entity_id ON entity (kind, id);
CREATE UNIQUE INDEX entity_unique_key ON entity (kind, unique_key) WHERE unique_key IS NOT NULL;
CREATE UNIQUE INDEX entity_unique_name ON entity (kind, tenant, name) WHERE has_unique_name;
CREATE INDEX entity_name ON entity (kind, tenant, name);
CREATE INDEX entity_created ON entity (kind, tenant, created_ms);
CREATE INDEX entity_parent ON entity (kind, parent);
CREATE INDEX entity_customer ON entity (kind, customer);

CREATE TABLE relation (
    from_kind TEXT NOT NULL,
    from_id BLOB NOT NULL,
    type_group TEXT NOT NULL,
    type TEXT NOT NULL,
    to_kind TEXT NOT NULL,
    to_id BLOB NOT NULL,
    info TEXT,
    PRIMARY KEY (from_id, type_group, type, to_id, from_kind, to_kind)
) WITHOUT ROWID;
CREATE INDEX relation_to ON relation (to_id, type_group, type);

CREATE TABLE attribute (
    entity BLOB NOT NULL,
    scope INTEGER NOT NULL,
    key TEXT NOT NULL,
    value_type INTEGER NOT NULL,
    value NOT NULL,
    last_update_ms INTEGER NOT NULL,
    PRIMARY KEY (entity, scope, key)
) WITHOUT ROWID;

CREATE TABLE alarm (
    id BLOB NOT NULL PRIMARY KEY,
    tenant BLOB NOT NULL,
    customer BLOB NOT NULL,
    originator BLOB NOT NULL,
    type TEXT NOT NULL,
    severity INTEGER NOT NULL,
    acknowledged INTEGER NOT NULL,
    cleared INTEGER NOT NULL,
    assignee BLOB,
    created_ms INTEGER NOT NULL,
    body TEXT NOT NULL
);
CREATE UNIQUE INDEX alarm_active ON alarm (originator, type) WHERE cleared = 0;
CREATE INDEX alarm_originator ON alarm (originator);
CREATE INDEX alarm_tenant ON alarm (tenant, created_ms);

CREATE TABLE entity_alarm (
    entity BLOB NOT NULL,
    alarm BLOB NOT NULL,
    PRIMARY KEY (entity, alarm)
) WITHOUT ROWID;
CREATE INDEX entity_alarm_alarm ON entity_alarm (alarm);

CREATE TABLE state (
    kind INTEGER NOT NULL,
    id BLOB NOT NULL,
    bytes BLOB NOT NULL,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;
";

const PARTS: &str = "
CREATE TABLE part (
    owner BLOB NOT NULL,
    number INTEGER NOT NULL,
    bytes BLOB NOT NULL,
    UNIQUE (owner, number)
);
";

const GENERATION: &str = "
CREATE TABLE generation (
    value INTEGER NOT NULL
);
INSERT INTO generation (value) VALUES (0);
PRAGMA user_version = 3;
";

/// Version 1 stored a package as one state of kind 6.
const INTO_PARTS: &str = "
INSERT INTO part (owner, number, bytes)
WITH RECURSIVE cut (id, number) AS (
    SELECT id, 0 FROM state WHERE kind = 6
    UNION ALL
    SELECT cut.id, cut.number + 1 FROM cut JOIN state ON state.kind = 6 AND state.id = cut.id
    WHERE (cut.number + 1) * 1048576 < length(state.bytes)
)
SELECT cut.id, cut.number, substr(state.bytes, cut.number * 1048576 + 1, 1048576)
FROM cut JOIN state ON state.kind = 6 AND state.id = cut.id;
DELETE FROM state WHERE kind = 6;
";

/// Write-ahead log, synced at every commit, so that applied changes are durable.
pub fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(
        "PRAGMA journal_mode = WAL;
         PRAGMA synchronous = FULL;
         PRAGMA busy_timeout = 5000;
         PRAGMA cache_size = -4096;
         PRAGMA temp_store = MEMORY;
         PRAGMA wal_autocheckpoint = 2000;
         PRAGMA journal_size_limit = 67108864;",
    )?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

pub fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Returns the number of transactions. 0 for a database of an earlier version.
pub fn generation(connection: &Connection) -> rusqlite::Result<u64> {
    match version(connection)? {
        ..3 => Ok(0),
        _ => connection.query_row("SELECT value FROM generation", [], |row| {
            row.get::<_, i64>(0).map(i64::cast_unsigned)
        }),
    }
}

/// Counts a transaction, and returns the new number.
pub fn count_transaction(transaction: &Transaction<'_>) -> rusqlite::Result<u64> {
    let mut statement = transaction.prepare_cached("UPDATE generation SET value = value + 1 RETURNING value")?;
    statement.query_row([], |row| row.get::<_, i64>(0).map(i64::cast_unsigned))
}

pub fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(TABLES)?;
    transaction.execute_batch(PARTS)?;
    transaction.execute_batch(GENERATION)?;
    transaction.commit()
}

/// Migrates in one transaction.
pub fn migrate(connection: &mut Connection, from: i64) -> rusqlite::Result<()> {
    if from >= VERSION {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    if from < 2 {
        transaction.execute_batch(PARTS)?;
        transaction.execute_batch(INTO_PARTS)?;
    }
    transaction.execute_batch(GENERATION)?;
    transaction.commit()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn version_1_packages_are_migrated_to_parts() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(TABLES).unwrap();
        let bytes: Vec<u8> = (0..2_500_000_u32).map(|n| (n % 251) as u8).collect();
        for (kind, id, bytes) in [(6, [1_u8; 16], &bytes[..]), (6, [2; 16], b"ab"), (2, [1; 16], b"usage")] {
            let sql = "INSERT INTO state (kind, id, bytes) VALUES (?1, ?2, ?3)";
            connection.execute(sql, rusqlite::params![kind, id, bytes]).unwrap();
        }
        migrate(&mut connection, 1).unwrap();
        assert_eq!(version(&connection).unwrap(), VERSION);
        let parts = |id: [u8; 16]| -> Vec<Vec<u8>> {
            let mut statement = connection
                .prepare("SELECT bytes FROM part WHERE owner = ?1 ORDER BY number")
                .unwrap();
            let rows = statement.query_map([id], |row| row.get(0)).unwrap();
            rows.map(Result::unwrap).collect()
        };
        let first = parts([1; 16]);
        assert_eq!(
            first.iter().map(Vec::len).collect::<Vec<_>>(),
            [1 << 20, 1 << 20, 402_848]
        );
        assert!(first.concat() == bytes);
        assert_eq!(parts([2; 16]), [b"ab"]);
        let left: i64 = connection
            .query_row("SELECT count(*) FROM state", [], |row| row.get(0))
            .unwrap();
        assert_eq!(left, 1);
    }
}
