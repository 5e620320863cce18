//! Entity data queries: entities of a kind or along relations, filtered by their fields, attributes and latest values,
//! sorted, in pages, with what of them is wanted.
//!
//! All entities that the filter names are read, at most [`CANDIDATES_MAX`].

mod candidates;
mod conditions;
mod endpoints;
mod find;
mod keys;
mod room;

pub use candidates::CANDIDATES_MAX;
pub use endpoints::{alarms_page, count_of_alarms, endpoints};
pub use find::{count, find};
pub use keys::{EntityKey, KeyType, Row, values_json};
pub use room::Room;

use platform::{PAGE_SIZE_MAX, PageLink, SortOrder};
use serde::Deserialize;
use serde_json::Value;

use super::call::Call;
use super::failure::Failure;
use conditions::Condition;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EntityDataQuery {
    pub entity_filter: Value,
    pub page_link: QueryPageLink,
    pub entity_fields: Option<Vec<EntityKey>>,
    pub latest_values: Option<Vec<EntityKey>>,
    pub key_filters: Option<Vec<KeyFilter>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QueryPageLink {
    page_size: i64,
    page: i64,
    text_search: Option<String>,
    sort_order: Option<QuerySort>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuerySort {
    key: EntityKey,
    #[serde(default)]
    direction: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyFilter {
    key: EntityKey,
    predicate: Value,
}

/// Each is asked of every entity.
const KEY_FILTERS_MAX: usize = 100;

/// The filters of a query, ready to be asked.
struct Filters(Vec<(EntityKey, Condition)>);

impl EntityDataQuery {
    fn filters(&self, call: &Call) -> Result<Filters, Failure> {
        let all = self.key_filters.as_deref().unwrap_or_default();
        if all.len() > KEY_FILTERS_MAX {
            return Err(Failure::bad_request(format!(
                "The query has {} key filters: expected {KEY_FILTERS_MAX} at most",
                all.len()
            )));
        }
        let all = all.iter().map(|filter| {
            let condition = Condition::parse(call, &filter.predicate)?;
            Ok((filter.key.clone(), condition))
        });
        Ok(Filters(all.collect::<Result<_, Failure>>()?))
    }

    fn link(&self) -> Result<PageLink, Failure> {
        let link = &self.page_link;
        let size = link.page_size.min(i64::try_from(PAGE_SIZE_MAX).unwrap_or(i64::MAX));
        Ok(PageLink::parse(
            size,
            link.page,
            link.text_search.as_deref(),
            None,
            None,
        )?)
    }

    fn order(&self) -> Option<(&EntityKey, SortOrder)> {
        let sort = self.page_link.sort_order.as_ref()?;
        let is_descending = sort
            .direction
            .as_deref()
            .is_some_and(|direction| direction.eq_ignore_ascii_case("DESC"));
        let order = if is_descending {
            SortOrder::Descending
        } else {
            SortOrder::Ascending
        };
        Some((&sort.key, order))
    }
}
