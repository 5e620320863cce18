//! Running a query: conditions, order, one page.

use std::cmp::Ordering;

use platform::{Page, SortOrder};
use serde_json::{Value as Json, json};
use timeseries::Value;

use super::super::call::Call;
use super::super::failure::Failure;
use super::super::values;
use super::candidates::candidates;
use super::keys::{Row, values_json};
use super::{EntityDataQuery, Filters, Room};

/// One page of entities, and how many there are.
pub struct Found {
    pub rows: Vec<Row>,
    pub total: usize,
}

pub fn find(call: &Call, query: &EntityDataQuery) -> Result<Found, Failure> {
    let link = query.link()?;
    let filters = query.filters(call)?;
    let text = link.text_search.as_deref().map(str::to_lowercase);
    let mut rows = Vec::new();
    candidates(call, &query.entity_filter)?.for_each(call, &mut |record| {
        let mut row = Row::new(record);
        if filters.take(call, &mut row)? && has_text(call, query, &mut row, text.as_deref())? {
            rows.push(row);
        }
        Ok(())
    })?;
    let total = rows.len();
    let rows = sorted(call, query, rows)?;
    let skipped = link.page.saturating_mul(link.page_size);
    let rows = rows.into_iter().skip(skipped).take(link.page_size).collect();
    Ok(Found { rows, total })
}

pub fn count(call: &Call, query: &EntityDataQuery) -> Result<usize, Failure> {
    let filters = query.filters(call)?;
    let mut count = 0;
    candidates(call, &query.entity_filter)?.for_each(call, &mut |record| {
        count += usize::from(filters.take(call, &mut Row::new(record))?);
        Ok(())
    })?;
    Ok(count)
}

impl Filters {
    fn take(&self, call: &Call, row: &mut Row) -> Result<bool, Failure> {
        for (key, condition) in &self.0 {
            let value = row.value(call, key)?.map(|(_, value)| value);
            if !condition.holds(value.as_ref()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// In any of the fields and values that are asked for.
fn has_text(call: &Call, query: &EntityDataQuery, row: &mut Row, text: Option<&str>) -> Result<bool, Failure> {
    let Some(text) = text else { return Ok(true) };
    let fields = query.entity_fields.iter().chain(&query.latest_values).flatten();
    for key in fields {
        if let Some((_, value)) = row.value(call, key)?
            && values::text(&value).to_lowercase().contains(text)
        {
            return Ok(true);
        }
    }
    Ok(row.record.row.name.to_lowercase().contains(text))
}

fn sorted(call: &Call, query: &EntityDataQuery, rows: Vec<Row>) -> Result<Vec<Row>, Failure> {
    let Some((key, order)) = query.order() else {
        return Ok(rows);
    };
    let mut keyed = Vec::with_capacity(rows.len());
    for mut row in rows {
        let value = row.value(call, key)?.map(|(_, value)| value);
        keyed.push((value, row));
    }
    keyed.sort_by(|(a, row_a), (b, row_b)| {
        let by_value = compare(a.as_ref(), b.as_ref());
        let by_value = if order == SortOrder::Descending {
            by_value.reverse()
        } else {
            by_value
        };
        by_value.then_with(|| row_a.record.row.id.cmp(&row_b.record.row.id))
    });
    Ok(keyed.into_iter().map(|(_, row)| row).collect())
}

/// Numbers by size, everything else as text; what is missing comes first.
fn compare(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    let number = |value: &Value| match value {
        #[expect(clippy::cast_precision_loss, reason = "an order, not a sum")]
        Value::Long(value) => Some(*value as f64),
        Value::Double(value) => Some(*value),
        _ => None,
    };
    match (a, b) {
        (Some(a), Some(b)) => match (number(a), number(b)) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            _ => values::text(a).to_lowercase().cmp(&values::text(b).to_lowercase()),
        },
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

impl Found {
    /// Entities with what is asked of them, as answers and subscriptions have it.
    pub fn page(&mut self, call: &Call, query: &EntityDataQuery, room: &mut Room) -> Result<Page<Json>, Failure> {
        let link = query.link()?;
        let mut data = Vec::with_capacity(self.rows.len());
        for row in &mut self.rows {
            let keys = query.entity_fields.iter().chain(&query.latest_values).flatten();
            let latest = values_json(call, row, keys, room)?;
            data.push(json!({"entityId": row.id(), "latest": latest, "timeseries": {}, "aggLatest": {}}));
        }
        Ok(Page::new(data, self.total, &link))
    }
}
