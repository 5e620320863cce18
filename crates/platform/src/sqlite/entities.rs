//! Entities in SQL: by id, key and name, and in pages.

use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension, params};

use crate::ids::{EntityId, EntityType, Uuid};
use crate::model::IndexColumns;
use crate::page::{PageData, PageLink, SortDirection};
use crate::repository::{EntityRecord, Selection};

const COLUMNS: &str = "id, tenant, customer, parent, name, subtype, label, unique_key, version, body";

/// The number of an entity type in the database. Must never change.
pub fn number(kind: EntityType) -> i64 {
    match kind {
        EntityType::Tenant => 1,
        EntityType::TenantProfile => 2,
        EntityType::Customer => 3,
        EntityType::User => 4,
        EntityType::Dashboard => 5,
        EntityType::Asset => 6,
        EntityType::AssetProfile => 7,
        EntityType::Device => 8,
        EntityType::DeviceProfile => 9,
        EntityType::Alarm => 10,
        EntityType::RuleChain => 11,
        EntityType::RuleNode => 12,
        EntityType::Rpc => 13,
        EntityType::ApiUsageState => 14,
        EntityType::QueueStats => 15,
        EntityType::ApiKey => 16,
        EntityType::DeviceCredentials => 17,
        EntityType::UserCredentials => 18,
        EntityType::AlarmComment => 19,
        EntityType::Queue => 20,
        EntityType::OtaPackage => 21,
        EntityType::AuditLog => 22,
    }
}

fn record(kind: EntityType, row: &rusqlite::Row<'_>) -> rusqlite::Result<EntityRecord> {
    Ok(EntityRecord {
        kind,
        row: IndexColumns {
            id: Uuid(row.get(0)?),
            tenant: Uuid(row.get(1)?),
            customer: Uuid(row.get(2)?),
            parent: Uuid(row.get(3)?),
            name: row.get(4)?,
            subtype: row.get(5)?,
            label: row.get(6)?,
            unique_key: row.get(7)?,
        },
        version: row.get(8)?,
        body: row.get(9)?,
    })
}

pub fn get(connection: &Connection, id: EntityId) -> rusqlite::Result<Option<EntityRecord>> {
    connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM entity WHERE kind = ?1 AND id = ?2"))?
        .query_row(params![number(id.kind), id.id.0], |row| record(id.kind, row))
        .optional()
}

pub fn find_by_key(connection: &Connection, kind: EntityType, key: &str) -> rusqlite::Result<Option<EntityRecord>> {
    connection
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM entity WHERE kind = ?1 AND unique_key = ?2"
        ))?
        .query_row(params![number(kind), key], |row| record(kind, row))
        .optional()
}

pub fn find_by_name(
    connection: &Connection,
    kind: EntityType,
    tenant: Uuid,
    name: &str,
) -> rusqlite::Result<Option<EntityRecord>> {
    connection
        .prepare_cached(&by_name())?
        .query_row(params![number(kind), tenant.0, name], |row| record(kind, row))
        .optional()
}

/// The plus sign prevents SQLite from scanning all entities of the tenant by creation time to find the name.
fn by_name() -> String {
    format!("SELECT {COLUMNS} FROM entity WHERE kind = ?1 AND tenant = ?2 AND name = ?3 ORDER BY +created_ms LIMIT 1")
}

pub fn for_each(
    connection: &Connection,
    kind: EntityType,
    visit: &mut dyn FnMut(EntityRecord),
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM entity WHERE kind = ?1 ORDER BY created_ms, rowid"
    ))?;
    let mut rows = statement.query([number(kind)])?;
    while let Some(row) = rows.next()? {
        visit(record(kind, row)?);
    }
    Ok(())
}

/// SQL conditions with their values, in the same order.
#[derive(Default)]
pub struct WhereClause {
    text: String,
    pub values: Vec<Box<dyn ToSql>>,
}

impl WhereClause {
    /// `condition` has a `?` for the value.
    pub fn and(&mut self, condition: &str, value: impl ToSql + 'static) {
        self.and_all(condition, vec![Box::new(value)]);
    }

    pub fn and_all(&mut self, condition: &str, values: Vec<Box<dyn ToSql>>) {
        self.text
            .push_str(if self.text.is_empty() { " WHERE " } else { " AND " });
        self.text.push_str(condition);
        self.values.extend(values);
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn parameters(&self) -> Vec<&dyn ToSql> {
        self.values.iter().map(|value| &**value).collect()
    }
}

fn conditions(kind: EntityType, selection: &Selection, text_search: Option<&str>) -> WhereClause {
    let mut conditions = WhereClause::default();
    conditions.and("kind = ?", number(kind));
    if let Some(tenant) = selection.tenant {
        conditions.and("tenant = ?", tenant.0);
    }
    if let Some(customer) = selection.customer {
        conditions.and("customer = ?", customer.0);
    }
    if let Some(parent) = selection.parent {
        conditions.and("parent = ?", parent.0);
    }
    if let Some(subtype) = &selection.subtype {
        conditions.and("subtype = ?", subtype.clone());
    }
    if !selection.subtypes.is_empty() {
        let marks = vec!["?"; selection.subtypes.len()].join(", ");
        let values = selection.subtypes.iter().cloned();
        let values = values.map(|subtype| Box::new(subtype) as Box<dyn ToSql>).collect();
        conditions.and_all(&format!("subtype IN ({marks})"), values);
    }
    if let Some(label) = &selection.label {
        conditions.and("substr(label, 1, length(?)) = ?", label.clone());
        conditions.values.push(Box::new(label.clone()));
    }
    if let Some(created) = &selection.created {
        conditions.and("created_ms >= ?", created.start);
        conditions.and("created_ms < ?", created.end);
    }
    if let Some(text) = text_search {
        conditions.and(
            "(name || char(10) || label || char(10) || subtype) LIKE ? ESCAPE '\\'",
            like(text),
        );
    }
    conditions
}

/// A pattern that matches the text anywhere.
pub fn like(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
    format!("%{escaped}%")
}

pub fn count(connection: &Connection, kind: EntityType, selection: &Selection) -> rusqlite::Result<usize> {
    count_where(connection, "entity", &conditions(kind, selection, None))
}

pub fn count_where(connection: &Connection, table: &str, conditions: &WhereClause) -> rusqlite::Result<usize> {
    let query = format!("SELECT count(*) FROM {table}{}", conditions.text());
    let mut statement = connection.prepare_cached(&query)?;
    let count: i64 = statement.query_row(&*conditions.parameters(), |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

pub fn page(
    connection: &Connection,
    kind: EntityType,
    selection: &Selection,
    link: &PageLink,
) -> rusqlite::Result<PageData<EntityRecord>> {
    let mut conditions = conditions(kind, selection, link.text_search.as_deref());
    let total = count_where(connection, "entity", &conditions)?;
    // Sorts without the bodies. Otherwise SQLite would also load the bodies of all earlier pages.
    let order = order(link);
    let query = format!(
        "SELECT {COLUMNS} FROM entity
         WHERE rowid IN (SELECT rowid FROM entity{} ORDER BY {order} LIMIT ? OFFSET ?)
         ORDER BY {order}",
        conditions.text(),
    );
    limit(&mut conditions, link);
    let mut statement = connection.prepare_cached(&query)?;
    let rows = statement.query_map(&*conditions.parameters(), |row| record(kind, row))?;
    Ok(PageData::new(rows.collect::<Result<_, _>>()?, total, link))
}

pub fn limit(conditions: &mut WhereClause, link: &PageLink) {
    let number = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
    conditions.values.push(Box::new(number(link.page_size)));
    conditions.values.push(Box::new(number(link.offset())));
}

/// The order is always total, so that pages do not overlap. The property has been checked to be a plain name.
fn order(link: &PageLink) -> String {
    let Some(sort) = &link.sort else {
        return "created_ms, id".to_owned();
    };
    let column = match sort.property.as_str() {
        "createdTime" => "created_ms".to_owned(),
        "name" | "title" | "email" => "name COLLATE NOCASE".to_owned(),
        "type" => "subtype COLLATE NOCASE".to_owned(),
        "label" => "label COLLATE NOCASE".to_owned(),
        property => format!("json_extract(body, '$.{property}') COLLATE NOCASE"),
    };
    format!("{column} {}, id", direction(sort.order))
}

pub fn direction(order: SortDirection) -> &'static str {
    match order {
        SortDirection::Ascending => "ASC",
        SortDirection::Descending => "DESC",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn name_lookup_uses_the_index() {
        let mut connection = Connection::open_in_memory().unwrap();
        super::super::schema::create(&mut connection).unwrap();
        let plan: String = connection
            .query_row(
                &format!("EXPLAIN QUERY PLAN {}", by_name()),
                params![8, [1_u8; 16], "name"],
                |row| row.get(3),
            )
            .unwrap();
        assert_eq!(
            plan,
            "SEARCH entity USING INDEX entity_name (kind=? AND tenant=? AND name=?)"
        );
    }
}
