//! Relations, attributes and states in SQL.

use rusqlite::types::{ToSqlOutput, Value as SqlValue};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use timeseries::PointValue;

use super::entities::WhereClause;
use crate::ids::{EntityId, EntityType, Uuid};
use crate::model::{Attribute, AttributeScope, Relation, RelationGroup};
use crate::repository::{RelationSelection, StateKind};

pub fn relations(connection: &Connection, selection: &RelationSelection) -> rusqlite::Result<Vec<Relation>> {
    let mut conditions = WhereClause::default();
    if let Some(from) = selection.from {
        conditions.and("from_id = ?", from.id.0);
        conditions.and("from_kind = ?", from.kind.name());
    }
    if let Some(to) = selection.to {
        conditions.and("to_id = ?", to.id.0);
        conditions.and("to_kind = ?", to.kind.name());
    }
    if let Some(kind) = &selection.kind {
        conditions.and("type = ?", kind.clone());
    }
    if let Some(group) = selection.group {
        conditions.and("type_group = ?", group.name());
    }
    let query = format!(
        "SELECT from_kind, from_id, to_kind, to_id, type, type_group, info FROM relation{}
         ORDER BY type, from_id, to_id",
        conditions.text()
    );
    let mut statement = connection.prepare_cached(&query)?;
    let rows = statement.query_map(&*conditions.parameters(), relation)?;
    rows.collect()
}

fn relation(row: &Row<'_>) -> rusqlite::Result<Relation> {
    let info: Option<String> = row.get(6)?;
    Ok(Relation {
        from: entity_id(row, 0)?,
        to: entity_id(row, 2)?,
        kind: row.get(4)?,
        group: group(row, 5)?,
        additional_info: info.and_then(|info| serde_json::from_str(&info).ok()),
    })
}

fn entity_id(row: &Row<'_>, at: usize) -> rusqlite::Result<EntityId> {
    let kind: String = row.get(at)?;
    let kind = EntityType::parse(&kind).ok_or(rusqlite::Error::InvalidQuery)?;
    Ok(EntityId::new(kind, Uuid(row.get(at + 1)?)))
}

fn group(row: &Row<'_>, at: usize) -> rusqlite::Result<RelationGroup> {
    let name: String = row.get(at)?;
    serde_json::from_value(serde_json::Value::String(name)).map_err(|_| rusqlite::Error::InvalidQuery)
}

pub fn put_relation(transaction: &Transaction<'_>, relation: &Relation) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO relation (from_kind, from_id, to_kind, to_id, type, type_group, info)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            relation.from.kind.name(),
            relation.from.id.0,
            relation.to.kind.name(),
            relation.to.id.0,
            relation.kind,
            relation.group.name(),
            relation.additional_info.as_ref().map(ToString::to_string),
        ])?;
    Ok(())
}

pub fn delete_relation(transaction: &Transaction<'_>, relation: &Relation) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "DELETE FROM relation WHERE from_kind = ?1 AND from_id = ?2 AND to_kind = ?3 AND to_id = ?4 AND type = ?5
             AND type_group = ?6",
        )?
        .execute(params![
            relation.from.kind.name(),
            relation.from.id.0,
            relation.to.kind.name(),
            relation.to.id.0,
            relation.kind,
            relation.group.name(),
        ])?;
    Ok(())
}

pub fn delete_relations_of(transaction: &Transaction<'_>, entity: EntityId) -> rusqlite::Result<()> {
    for side in ["from", "to"] {
        transaction
            .prepare_cached(&format!(
                "DELETE FROM relation WHERE {side}_id = ?1 AND {side}_kind = ?2"
            ))?
            .execute(params![entity.id.0, entity.kind.name()])?;
    }
    Ok(())
}

fn attribute(row: &Row<'_>) -> rusqlite::Result<Attribute> {
    let kind: i64 = row.get(1)?;
    let text = |row: &Row<'_>| row.get::<_, String>(2).map(String::into_boxed_str);
    let value = match kind {
        0 => PointValue::Bool(row.get(2)?),
        1 => PointValue::Long(row.get(2)?),
        2 => PointValue::Double(row.get(2)?),
        3 => PointValue::String(text(row)?),
        _ => PointValue::Json(text(row)?),
    };
    Ok(Attribute {
        key: row.get(0)?,
        value,
        last_update_ms: row.get(3)?,
    })
}

pub fn attributes(
    connection: &Connection,
    entity: Uuid,
    scope: AttributeScope,
    keys: Option<&[&str]>,
) -> rusqlite::Result<Vec<Attribute>> {
    const QUERY: &str = "SELECT key, value_type, value, last_update_ms FROM attribute WHERE entity = ?1 AND scope = ?2";
    let Some(keys) = keys else {
        let mut statement = connection.prepare_cached(&format!("{QUERY} ORDER BY key"))?;
        let rows = statement.query_map(params![entity.0, scope as i64], attribute)?;
        return rows.collect();
    };
    let mut statement = connection.prepare_cached(&format!("{QUERY} AND key = ?3"))?;
    let mut found = Vec::new();
    for key in keys {
        found.extend(
            statement
                .query_row(params![entity.0, scope as i64, key], attribute)
                .optional()?,
        );
    }
    found.sort_by(|a, b| a.key.cmp(&b.key));
    found.dedup_by(|a, b| a.key == b.key);
    Ok(found)
}

pub fn attribute_count(connection: &Connection, entity: Uuid) -> rusqlite::Result<usize> {
    let mut statement = connection.prepare_cached("SELECT COUNT(*) FROM attribute WHERE entity = ?1")?;
    let count: i64 = statement.query_row([entity.0], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

pub fn put_attribute(
    transaction: &Transaction<'_>,
    entity: Uuid,
    scope: AttributeScope,
    attribute: &Attribute,
) -> rusqlite::Result<()> {
    let (kind, value): (i64, ToSqlOutput<'_>) = match &attribute.value {
        PointValue::Bool(value) => (0, ToSqlOutput::Owned(SqlValue::Integer(i64::from(*value)))),
        PointValue::Long(value) => (1, ToSqlOutput::Owned(SqlValue::Integer(*value))),
        PointValue::Double(value) => (2, ToSqlOutput::Owned(SqlValue::Real(*value))),
        PointValue::String(text) => (3, ToSqlOutput::from(&**text)),
        PointValue::Json(text) => (4, ToSqlOutput::from(&**text)),
    };
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO attribute (entity, scope, key, value_type, value, last_update_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![
            entity.0,
            scope as i64,
            attribute.key,
            kind,
            value,
            attribute.last_update_ms
        ])?;
    Ok(())
}

pub fn delete_attribute(
    transaction: &Transaction<'_>,
    entity: Uuid,
    scope: AttributeScope,
    key: &str,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("DELETE FROM attribute WHERE entity = ?1 AND scope = ?2 AND key = ?3")?
        .execute(params![entity.0, scope as i64, key])?;
    Ok(())
}

pub fn delete_attributes_of(transaction: &Transaction<'_>, entity: Uuid) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("DELETE FROM attribute WHERE entity = ?1")?
        .execute([entity.0])?;
    Ok(())
}

pub fn state(connection: &Connection, state: StateKind, id: Uuid) -> rusqlite::Result<Option<Vec<u8>>> {
    connection
        .prepare_cached("SELECT bytes FROM state WHERE kind = ?1 AND id = ?2")?
        .query_row(params![state as i64, id.0], |row| row.get(0))
        .optional()
}

pub fn part(connection: &Connection, of: Uuid, number: u32) -> rusqlite::Result<Option<Vec<u8>>> {
    connection
        .prepare_cached("SELECT bytes FROM part WHERE owner = ?1 AND number = ?2")?
        .query_row(params![of.0, number], |row| row.get(0))
        .optional()
}

pub fn put_part(transaction: &Transaction<'_>, of: Uuid, number: u32, bytes: &[u8]) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("INSERT OR REPLACE INTO part (owner, number, bytes) VALUES (?1, ?2, ?3)")?
        .execute(params![of.0, number, bytes])?;
    Ok(())
}

pub fn delete_parts(transaction: &Transaction<'_>, of: Uuid) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("DELETE FROM part WHERE owner = ?1")?
        .execute([of.0])?;
    Ok(())
}

pub fn for_each_state(
    connection: &Connection,
    state: StateKind,
    visit: &mut dyn FnMut(Uuid, &[u8]),
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached("SELECT id, bytes FROM state WHERE kind = ?1")?;
    let mut rows = statement.query([state as i64])?;
    while let Some(row) = rows.next()? {
        visit(Uuid(row.get(0)?), row.get_ref(1)?.as_blob()?);
    }
    Ok(())
}

pub fn put_state(
    transaction: &Transaction<'_>,
    state: StateKind,
    id: Uuid,
    bytes: Option<&[u8]>,
) -> rusqlite::Result<()> {
    match bytes {
        Some(bytes) => transaction
            .prepare_cached("INSERT OR REPLACE INTO state (kind, id, bytes) VALUES (?1, ?2, ?3)")?
            .execute(params![state as i64, id.0, bytes])?,
        None => transaction
            .prepare_cached("DELETE FROM state WHERE kind = ?1 AND id = ?2")?
            .execute(params![state as i64, id.0])?,
    };
    Ok(())
}
