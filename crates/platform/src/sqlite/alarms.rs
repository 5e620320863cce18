//! Alarms in SQL. `body` has the alarm's JSON; the other columns are for searching.

use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension, Transaction, params};

use super::entities::{WhereClause, count_where, direction, like, limit, number as entity_number};
use super::storage;
use crate::ids::{AlarmId, CustomerId, EntityType, Uuid};
use crate::model::{Alarm, AlarmStatus};
use crate::page::{PageData, PageLink};
use crate::repository::{AlarmSelection, RepositoryError};

fn parse(body: &str) -> Result<Alarm, RepositoryError> {
    serde_json::from_str(body).map_err(|error| RepositoryError::body(EntityType::Alarm, &error))
}

pub fn get(connection: &Connection, id: AlarmId) -> Result<Option<Alarm>, RepositoryError> {
    one(connection, "SELECT body FROM alarm WHERE id = ?1", params![id.0.0])
}

pub fn active(connection: &Connection, originator: Uuid, kind: &str) -> Result<Option<Alarm>, RepositoryError> {
    let query = "SELECT body FROM alarm WHERE originator = ?1 AND type = ?2 AND cleared = 0";
    one(connection, query, params![originator.0, kind])
}

fn one(connection: &Connection, query: &str, values: impl rusqlite::Params) -> Result<Option<Alarm>, RepositoryError> {
    let body: Option<String> = connection
        .prepare_cached(query)
        .and_then(|mut statement| statement.query_row(values, |row| row.get(0)).optional())
        .map_err(storage("read an alarm"))?;
    body.map(|body| parse(&body)).transpose()
}

pub fn types(connection: &Connection, tenant: Uuid) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare_cached("SELECT DISTINCT type FROM alarm WHERE tenant = ?1 ORDER BY type")?;
    let rows = statement.query_map([tenant.0], |row| row.get(0))?;
    rows.collect()
}

fn conditions(selection: &AlarmSelection, text_search: Option<&str>) -> WhereClause {
    let mut all = WhereClause::default();
    if let Some(tenant) = selection.tenant {
        all.and("tenant = ?", tenant.0);
    }
    if let Some(customer) = selection.customer {
        all.and("customer = ?", customer.0);
    }
    if let Some(entity) = selection.entity {
        all.and("id IN (SELECT alarm FROM entity_alarm WHERE entity = ?)", entity.0);
    }
    if let Some(assignee) = selection.assignee {
        all.and("assignee = ?", assignee.0);
    }
    if let Some(created) = &selection.created {
        all.and("created_ms >= ?", created.start);
        all.and("created_ms < ?", created.end);
    }
    any_of(&mut all, "type", selection.types.iter().cloned());
    any_of(
        &mut all,
        "severity",
        selection.severities.iter().map(|severity| *severity as i64),
    );
    any_of(
        &mut all,
        "(cleared * 2 + acknowledged)",
        selection.statuses.iter().map(|status| status_number(*status)),
    );
    if let Some(text) = text_search {
        all.and("type LIKE ? ESCAPE '\\'", like(text));
    }
    all
}

fn status_number(status: AlarmStatus) -> i64 {
    match status {
        AlarmStatus::ActiveUnack => 0,
        AlarmStatus::ActiveAck => 1,
        AlarmStatus::ClearedUnack => 2,
        AlarmStatus::ClearedAck => 3,
    }
}

fn any_of<T: ToSql + 'static>(all: &mut WhereClause, column: &str, values: impl Iterator<Item = T>) {
    let values: Vec<Box<dyn ToSql>> = values.map(|value| Box::new(value) as Box<dyn ToSql>).collect();
    if !values.is_empty() {
        let marks = vec!["?"; values.len()].join(", ");
        all.and_all(&format!("{column} IN ({marks})"), values);
    }
}

pub fn page(
    connection: &Connection,
    selection: &AlarmSelection,
    link: &PageLink,
) -> Result<PageData<Alarm>, RepositoryError> {
    let read = || -> rusqlite::Result<PageData<String>> {
        let mut conditions = conditions(selection, link.text_search.as_deref());
        let total = count_where(connection, "alarm", &conditions)?;
        let order = order(link);
        let query = format!(
            "SELECT body FROM alarm{} ORDER BY {order} LIMIT ? OFFSET ?",
            conditions.text()
        );
        limit(&mut conditions, link);
        let mut statement = connection.prepare_cached(&query)?;
        let rows = statement.query_map(&*conditions.parameters(), |row| row.get(0))?;
        Ok(PageData::new(rows.collect::<Result<_, _>>()?, total, link))
    };
    read().map_err(storage("list alarms"))?.try_map(|body| parse(&body))
}

pub fn page_of(
    connection: &Connection,
    entities: &[Uuid],
    selection: &AlarmSelection,
    link: &PageLink,
) -> Result<PageData<(Uuid, Alarm)>, RepositoryError> {
    const SHOWN: &str = "entity_alarm JOIN alarm ON alarm.id = entity_alarm.alarm";
    let read = || -> rusqlite::Result<PageData<(Uuid, String)>> {
        let mut conditions = conditions(selection, link.text_search.as_deref());
        let digits = |id: &Uuid| id.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let entities = serde_json::Value::from_iter(entities.iter().map(digits)).to_string();
        conditions.and("entity IN (SELECT unhex(value) FROM json_each(?))", entities);
        let total = count_where(connection, SHOWN, &conditions)?;
        let order = order(link);
        let query = format!(
            "SELECT entity, body FROM {SHOWN}{} ORDER BY {order}, entity LIMIT ? OFFSET ?",
            conditions.text()
        );
        limit(&mut conditions, link);
        let mut statement = connection.prepare_cached(&query)?;
        let rows = statement.query_map(&*conditions.parameters(), |row| Ok((Uuid(row.get(0)?), row.get(1)?)))?;
        Ok(PageData::new(rows.collect::<Result<_, _>>()?, total, link))
    };
    let page = read().map_err(storage("list alarms"))?;
    page.try_map(|(entity, body)| Ok((entity, parse(&body)?)))
}

fn order(link: &PageLink) -> String {
    let Some(sort) = &link.sort else {
        return "created_ms DESC, id".to_owned();
    };
    let column = match sort.property.as_str() {
        "createdTime" => "created_ms".to_owned(),
        "type" => "type COLLATE NOCASE".to_owned(),
        "severity" => "severity".to_owned(),
        "status" => "cleared * 2 + acknowledged".to_owned(),
        property => format!("json_extract(body, '$.{property}')"),
    };
    format!("{column} {}, id", direction(sort.order))
}

/// Writes an alarm. It belongs to the present customer of its originator, also if the originator was assigned to
/// another customer after the caller read it.
pub fn put(transaction: &Transaction<'_>, alarm: &Alarm, propagated_to: &[Uuid]) -> rusqlite::Result<()> {
    let id = alarm.id.unwrap_or_default();
    let owned;
    let alarm = match customer_of(transaction, alarm)? {
        Some(customer) if customer != alarm.customer_id.unwrap_or_default() => {
            owned = Alarm {
                customer_id: Some(customer),
                ..alarm.clone()
            };
            &owned
        }
        _ => alarm,
    };
    let body = serde_json::to_string(alarm).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    transaction
        .prepare_cached(
            "INSERT INTO alarm (id, tenant, customer, originator, type, severity, acknowledged, cleared, assignee,
                                created_ms, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
             ON CONFLICT (id) DO UPDATE SET customer = ?3, severity = ?6, acknowledged = ?7, cleared = ?8, assignee = ?9,
                                            body = ?11",
        )?
        .execute(params![
            id.0.0,
            alarm.tenant_id.0.0,
            alarm.customer_id.unwrap_or_default().0.0,
            alarm.originator.id.0,
            alarm.kind,
            alarm.severity as i64,
            alarm.acknowledged,
            alarm.cleared,
            alarm.assignee_id.map(|user| user.0.0),
            alarm.created_time,
            body,
        ])?;
    let mut statement =
        transaction.prepare_cached("INSERT OR IGNORE INTO entity_alarm (entity, alarm) VALUES (?1, ?2)")?;
    statement.execute(params![alarm.originator.id.0, id.0.0])?;
    for entity in propagated_to {
        statement.execute(params![entity.0, id.0.0])?;
    }
    Ok(())
}

/// `None`: the originator is missing.
fn customer_of(transaction: &Transaction<'_>, alarm: &Alarm) -> rusqlite::Result<Option<CustomerId>> {
    let originator = alarm.originator;
    transaction
        .prepare_cached("SELECT customer FROM entity WHERE kind = ?1 AND id = ?2")?
        .query_row(params![entity_number(originator.kind), originator.id.0], |row| {
            row.get(0)
        })
        .optional()
        .map(|customer| customer.map(|customer| CustomerId(Uuid(customer))))
}

/// Gives the alarms of an entity to the entity's customer.
pub fn set_customer(transaction: &Transaction<'_>, originator: Uuid, customer: Uuid) -> rusqlite::Result<()> {
    let shown = serde_json::to_string(&CustomerId(customer))
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    transaction
        .prepare_cached(
            "UPDATE alarm SET customer = ?2, body = json_set(body, '$.customerId', json(?3))
             WHERE originator = ?1 AND customer <> ?2",
        )?
        .execute(params![originator.0, customer.0, shown])?;
    Ok(())
}

pub fn delete(transaction: &Transaction<'_>, id: AlarmId) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("DELETE FROM alarm WHERE id = ?1")?
        .execute([id.0.0])?;
    transaction
        .prepare_cached("DELETE FROM entity_alarm WHERE alarm = ?1")?
        .execute([id.0.0])?;
    Ok(())
}

pub fn delete_of(transaction: &Transaction<'_>, originator: Uuid) -> rusqlite::Result<()> {
    transaction
        .prepare_cached("DELETE FROM entity_alarm WHERE alarm IN (SELECT id FROM alarm WHERE originator = ?1)")?
        .execute([originator.0])?;
    transaction
        .prepare_cached("DELETE FROM entity_alarm WHERE entity = ?1")?
        .execute([originator.0])?;
    transaction
        .prepare_cached("DELETE FROM alarm WHERE originator = ?1")?
        .execute([originator.0])?;
    Ok(())
}
