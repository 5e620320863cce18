//! Entity data queries: entities of a type or along relations, filtered by their fields, attributes and latest values,
//! sorted, in pages, with the requested fields and values.
//!
//! A query reads all entities that its filter selects, at most [`CANDIDATES_MAX`].

mod answer_budget;
mod candidates;
mod conditions;
mod endpoints;
mod find;
mod keys;

pub use answer_budget::QueryAnswerBudget;
pub use candidates::CANDIDATES_MAX;
pub use endpoints::{alarms_page, count_of_alarms, endpoints};
pub use find::{count, find};
pub use keys::{EntityKey, KeyType, QueriedEntity, values_json};

use platform::{PAGE_SIZE_MAX, PageLink, SortDirection};
use serde::Deserialize;
use serde_json::Value;

use super::call::ApiCall;
use super::failure::ThingsboardError;
use conditions::QueryCondition;

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

/// Each filter is evaluated for every entity.
const KEY_FILTERS_MAX: usize = 100;

/// The parsed key filters of a query.
struct Filters(Vec<(EntityKey, QueryCondition)>);

impl EntityDataQuery {
    fn filters(&self, call: &ApiCall) -> Result<Filters, ThingsboardError> {
        let all = self.key_filters.as_deref().unwrap_or_default();
        if all.len() > KEY_FILTERS_MAX {
            return Err(ThingsboardError::bad_request(format!(
                "The query has {} key filters: at most {KEY_FILTERS_MAX} are allowed",
                all.len()
            )));
        }
        let all = all.iter().map(|filter| {
            let condition = QueryCondition::parse(call, &filter.predicate)?;
            Ok((filter.key.clone(), condition))
        });
        Ok(Filters(all.collect::<Result<_, ThingsboardError>>()?))
    }

    fn link(&self) -> Result<PageLink, ThingsboardError> {
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

    fn order(&self) -> Option<(&EntityKey, SortDirection)> {
        let sort = self.page_link.sort_order.as_ref()?;
        let is_descending = sort
            .direction
            .as_deref()
            .is_some_and(|direction| direction.eq_ignore_ascii_case("DESC"));
        let order = if is_descending {
            SortDirection::Descending
        } else {
            SortDirection::Ascending
        };
        Some((&sort.key, order))
    }
}
