//! Tables of the entity database, and the settings of a connection. Version 1.
//!
//! ```text
//! entity        all kinds: what they are found by in columns, the rest as JSON in body
//! relation      from, to, type, group
//! attribute     entity, scope, key; value by its type: integer column (bool, long), real, text (string, JSON)
//! alarm         what they are searched by in columns, the rest as JSON in body
//! entity_alarm  who shows an alarm: its originator and those it is propagated to
//! state         what machines keep between starts
//! ```

use rusqlite::Connection;

pub const VERSION: i64 = 1;

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

PRAGMA user_version = 1;
";

/// Write-ahead log, synced with every commit: what `apply` did is durable.
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

pub fn create(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(TABLES)?;
    transaction.commit()
}
