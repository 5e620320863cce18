//! Applies one change in a transaction, and maps constraint violations to errors.

use rusqlite::{ErrorCode, OptionalExtension, Transaction, params};

use super::{alarms, entities, storage, values};
use crate::ids::EntityType;
use crate::repository::{EntityRecord, RepositoryChange, RepositoryError, UniqueConstraint, has_unique_names};

pub fn apply(transaction: &Transaction<'_>, change: &RepositoryChange) -> Result<(), RepositoryError> {
    let done = match change {
        RepositoryChange::Put { record, replaces } => return put(transaction, record, *replaces),
        RepositoryChange::PutAlarm { alarm, propagated_to } => {
            return alarms::put(transaction, alarm, propagated_to)
                .map_err(|error| explain(EntityType::Alarm, error, "write an alarm"));
        }
        RepositoryChange::Delete(id) => transaction
            .prepare_cached("DELETE FROM entity WHERE kind = ?1 AND id = ?2")
            .and_then(|mut statement| statement.execute(params![entities::number(id.kind), id.id.0]))
            .map(|_| ()),
        RepositoryChange::PutRelation(relation) => values::put_relation(transaction, relation),
        RepositoryChange::DeleteRelation(relation) => values::delete_relation(transaction, relation),
        RepositoryChange::DeleteRelationsOf(entity) => values::delete_relations_of(transaction, *entity),
        RepositoryChange::PutAttribute {
            entity,
            scope,
            attribute,
        } => values::put_attribute(transaction, *entity, *scope, attribute),
        RepositoryChange::DeleteAttribute { entity, scope, key } => {
            values::delete_attribute(transaction, *entity, *scope, key)
        }
        RepositoryChange::DeleteAttributesOf(entity) => values::delete_attributes_of(transaction, *entity),
        RepositoryChange::DeleteAlarm(id) => alarms::delete(transaction, *id),
        RepositoryChange::DeleteAlarmsOf(originator) => alarms::delete_of(transaction, *originator),
        RepositoryChange::PutPart {
            owner: of,
            number,
            bytes,
        } => values::put_part(transaction, *of, *number, bytes),
        RepositoryChange::DeleteParts(of) => values::delete_parts(transaction, *of),
        RepositoryChange::PutState { state, id, bytes } => {
            values::put_state(transaction, *state, *id, bytes.as_deref())
        }
    };
    done.map_err(storage("write a change"))
}

fn put(transaction: &Transaction<'_>, record: &EntityRecord, replaces: Option<i64>) -> Result<(), RepositoryError> {
    if let Some(version) = replaces {
        check_version(transaction, record, version)?;
    }
    let row = &record.row;
    transaction
        .prepare_cached(
            "INSERT INTO entity (kind, id, tenant, customer, parent, name, subtype, label, unique_key, has_unique_name,
                                 created_ms, version, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
             ON CONFLICT (kind, id) DO UPDATE SET tenant = ?3, customer = ?4, parent = ?5, name = ?6, subtype = ?7,
                 label = ?8, unique_key = ?9, version = ?12, body = ?13",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                entities::number(record.kind),
                row.id.0,
                row.tenant.0,
                row.customer.0,
                row.parent.0,
                row.name,
                row.subtype,
                row.label,
                row.unique_key,
                has_unique_names(record.kind),
                row.id.created_ms(),
                record.version,
                record.body,
            ])
        })
        .map_err(|error| explain(record.kind, error, "write an entity"))?;
    // The customer may have changed.
    if matches!(record.kind, EntityType::Device | EntityType::Asset | EntityType::User) {
        alarms::set_customer(transaction, row.id, row.customer).map_err(storage("write the customer of alarms"))?;
    }
    Ok(())
}

fn check_version(transaction: &Transaction<'_>, record: &EntityRecord, version: i64) -> Result<(), RepositoryError> {
    let stored: Option<i64> = transaction
        .prepare_cached("SELECT version FROM entity WHERE kind = ?1 AND id = ?2")
        .and_then(|mut statement| {
            statement
                .query_row(params![entities::number(record.kind), record.row.id.0], |row| {
                    row.get(0)
                })
                .optional()
        })
        .map_err(storage("read a version"))?;
    match stored {
        Some(stored) if stored == version => Ok(()),
        _ => Err(RepositoryError::Version {
            kind: record.kind,
            id: record.row.id,
        }),
    }
}

/// SQLite's error names the columns of the violated unique index.
fn explain(kind: EntityType, error: rusqlite::Error, doing: &'static str) -> RepositoryError {
    if let rusqlite::Error::SqliteFailure(failure, Some(text)) = &error
        && failure.code == ErrorCode::ConstraintViolation
    {
        let what = [
            ("entity.unique_key", UniqueConstraint::Key),
            ("entity.name", UniqueConstraint::Name),
            ("alarm.originator", UniqueConstraint::ActiveAlarm),
        ];
        if let Some((_, what)) = what.into_iter().find(|(column, _)| text.contains(column)) {
            return RepositoryError::Unique { kind, constraint: what };
        }
    }
    storage(doing)(error)
}
