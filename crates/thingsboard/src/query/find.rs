//! Runs a query: conditions, sort order, one page.

use std::cmp::Ordering;

use platform::{PageData, SortDirection};
use serde_json::{Value as Json, json};
use timeseries::PointValue;

use super::super::call::ApiCall;
use super::super::failure::ThingsboardError;
use super::super::values;
use super::candidates::candidates;
use super::keys::{QueriedEntity, values_json};
use super::{EntityDataQuery, Filters, QueryAnswerBudget};

/// A page of entities, and the total number.
pub struct FoundEntities {
    pub rows: Vec<QueriedEntity>,
    pub total: usize,
}

pub fn find(call: &ApiCall, query: &EntityDataQuery) -> Result<FoundEntities, ThingsboardError> {
    let link = query.link()?;
    let filters = query.filters(call)?;
    let text = link.text_search.as_deref().map(str::to_lowercase);
    let mut rows = Vec::new();
    candidates(call, &query.entity_filter)?.for_each(call, &mut |record| {
        let mut row = QueriedEntity::new(call, record)?;
        if filters.take(call, &mut row)? && has_text(call, query, &mut row, text.as_deref())? {
            rows.push(row);
        }
        Ok(())
    })?;
    let total = rows.len();
    let rows = sorted(call, query, rows)?;
    let skipped = link.page.saturating_mul(link.page_size);
    let rows = rows.into_iter().skip(skipped).take(link.page_size).collect();
    Ok(FoundEntities { rows, total })
}

pub fn count(call: &ApiCall, query: &EntityDataQuery) -> Result<usize, ThingsboardError> {
    let filters = query.filters(call)?;
    let mut count = 0;
    candidates(call, &query.entity_filter)?.for_each(call, &mut |record| {
        count += usize::from(filters.take(call, &mut QueriedEntity::new(call, record)?)?);
        Ok(())
    })?;
    Ok(count)
}

impl Filters {
    fn take(&self, call: &ApiCall, row: &mut QueriedEntity) -> Result<bool, ThingsboardError> {
        for (key, condition) in &self.0 {
            let value = row.value(call, key)?.map(|(_, value)| value);
            if !condition.matches(value.as_ref()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Searches the text in the requested fields and values.
fn has_text(
    call: &ApiCall,
    query: &EntityDataQuery,
    row: &mut QueriedEntity,
    text: Option<&str>,
) -> Result<bool, ThingsboardError> {
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

fn sorted(
    call: &ApiCall,
    query: &EntityDataQuery,
    rows: Vec<QueriedEntity>,
) -> Result<Vec<QueriedEntity>, ThingsboardError> {
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
        let by_value = if order == SortDirection::Descending {
            by_value.reverse()
        } else {
            by_value
        };
        by_value.then_with(|| row_a.record.row.id.cmp(&row_b.record.row.id))
    });
    Ok(keyed.into_iter().map(|(_, row)| row).collect())
}

/// Compares numbers by value and other values as text. Missing values are first.
fn compare(a: Option<&PointValue>, b: Option<&PointValue>) -> Ordering {
    let number = |value: &PointValue| match value {
        #[expect(clippy::cast_precision_loss, reason = "an order, not a sum")]
        PointValue::Long(value) => Some(*value as f64),
        PointValue::Double(value) => Some(*value),
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

impl FoundEntities {
    /// Returns the entities with their requested values, for answers and subscriptions.
    pub fn page(
        &mut self,
        call: &ApiCall,
        query: &EntityDataQuery,
        budget: &mut QueryAnswerBudget,
    ) -> Result<PageData<Json>, ThingsboardError> {
        let link = query.link()?;
        let mut data = Vec::with_capacity(self.rows.len());
        for row in &mut self.rows {
            let keys = query.entity_fields.iter().chain(&query.latest_values).flatten();
            let latest = values_json(call, row, keys, budget)?;
            data.push(json!({"entityId": row.id(), "latest": latest, "timeseries": {}, "aggLatest": {}}));
        }
        Ok(PageData::new(data, self.total, &link))
    }
}
