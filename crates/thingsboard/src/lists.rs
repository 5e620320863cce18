//! Lists: their common parameters, and pages of entities.

use std::collections::HashSet;

use axum::Json;
use platform::ids::Uuid;
use platform::model::{Customer, Entity};
use platform::repository::Selection;
use platform::{PageData, PageLink};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::operation::{FromParameter, HandlerResult};

/// Rows per read where all rows are needed.
const CHUNK: usize = 1000;
/// Rows per read of entities that may have megabytes each: dashboards, rule chains.
pub const LARGE_CHUNK: usize = 16;

/// Declares the common parameters of lists, and those of one list.
macro_rules! list_query {
    ($name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* }) => {
        #[derive(Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            /// Entities per page, at most 10,000.
            page_size: Option<i64>,
            /// Index of the page, from 0.
            page: Option<i64>,
            /// Text in name, label or type.
            text_search: Option<String>,
            /// Field to sort by, such as createdTime or name.
            sort_property: Option<String>,
            /// ASC or DESC.
            sort_order: Option<String>,
            $($(#[$attribute])* $field: $type,)*
        }

        impl $name {
            #[allow(dead_code, reason = "some ask for one entity only, or for pages only")]
            fn link(&self) -> Result<platform::PageLink, $crate::failure::ThingsboardError> {
                $crate::lists::link(
                    self.page_size,
                    self.page,
                    self.text_search.as_deref(),
                    self.sort_property.as_deref(),
                    self.sort_order.as_deref(),
                )
            }
        }
    };
}
pub(super) use list_query;

list_query!(PageQuery {});

impl PageQuery {
    pub fn page_link(&self) -> Result<PageLink, ThingsboardError> {
        self.link()
    }
}

pub fn link(
    page_size: Option<i64>,
    page: Option<i64>,
    text_search: Option<&str>,
    sort_property: Option<&str>,
    sort_order: Option<&str>,
) -> Result<PageLink, ThingsboardError> {
    let required =
        |name: &str| ThingsboardError::bad_request(format!("Required request parameter '{name}' is not present"));
    let page_size = page_size.ok_or_else(|| required("pageSize"))?;
    let page = page.ok_or_else(|| required("page"))?;
    Ok(PageLink::parse(
        page_size,
        page,
        text_search,
        sort_property,
        sort_order,
    )?)
}

pub fn page<E: Entity>(call: &ApiCall, selection: &Selection, link: &PageLink) -> HandlerResult<PageData<E>> {
    Ok(Json(call.entities().page(selection, link)?))
}

/// Like [`page`], for large entities. Reads a few of them at a time and stores only the result of the function.
pub fn page_of_large<E: Entity, T>(
    call: &ApiCall,
    selection: &Selection,
    link: &PageLink,
    convert: impl Fn(E) -> T,
) -> Result<PageData<T>, ThingsboardError> {
    let first = link.page.saturating_mul(link.page_size);
    let end = first.saturating_add(link.page_size);
    let mut converted = Vec::new();
    let mut number = first / LARGE_CHUNK;
    loop {
        let chunk = PageLink {
            page_size: LARGE_CHUNK,
            page: number,
            ..link.clone()
        };
        let start = number.saturating_mul(LARGE_CHUNK);
        let page = call.entities().page::<E>(selection, &chunk)?;
        let wanted = (start..)
            .zip(page.data)
            .filter(|(place, _)| (first..end).contains(place));
        converted.extend(wanted.map(|(_, entity)| convert(entity)));
        number += 1;
        if !page.has_next || number.saturating_mul(LARGE_CHUNK) >= end {
            return Ok(PageData::new(converted, page.total_elements, link));
        }
    }
}

/// Returns the tenant's entity with this name.
pub fn find_by_name<E: Entity>(call: &ApiCall, name: &str) -> HandlerResult<Value> {
    let found: Option<E> = call.entities().find_by_name(call.tenant().0, name)?;
    let entity = found.ok_or_else(ThingsboardError::not_found)?;
    Ok(Json(super::info::fields(&entity).into()))
}

/// Selects the entities of a customer, if the user may see the customer.
pub fn of_customer(call: &ApiCall, customer: Uuid) -> Result<Selection, ThingsboardError> {
    call.entity::<Customer>(customer, Verb::Read)?;
    Ok(Selection {
        customer: Some(customer),
        ..call.own_entities()
    })
}

/// Calls the function for each entity of a selection.
pub fn for_each<E: Entity>(
    call: &ApiCall,
    selection: &Selection,
    visit: &mut dyn FnMut(E) -> Result<(), ThingsboardError>,
) -> Result<(), ThingsboardError> {
    for number in 0.. {
        let page = call.entities().page(selection, &PageLink::new(CHUNK, number))?;
        for entity in page.data {
            visit(entity)?;
        }
        if !page.has_next {
            break;
        }
    }
    Ok(())
}

/// Parses a parameter that may be empty.
pub fn optional_id(text: Option<&str>) -> Result<Option<Uuid>, ThingsboardError> {
    text.filter(|text| !text.is_empty())
        .map(Uuid::from_parameter)
        .transpose()
}

pub fn non_empty(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// Limit of IDs per request.
const IDS_MAX: usize = 1000;

/// Returns the entities with these IDs, separated by commas, that the user may read.
pub fn by_ids<E: Entity>(call: &ApiCall, ids: &str, kind: &str) -> HandlerResult<Vec<E>> {
    let ids = comma_separated(ids);
    if ids.len() > IDS_MAX {
        let text = format!("More than {IDS_MAX} {kind} identifiers");
        return Err(ThingsboardError::bad_request(text));
    }
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        found.extend(call.entity(Uuid::from_parameter(id)?, Verb::Read).ok());
    }
    Ok(Json(found))
}

/// Splits `a,b,c`.
pub fn comma_separated(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect()
}

/// Removes duplicates, and preserves the order.
pub fn without_repeats(mut all: Vec<String>) -> Vec<String> {
    let mut seen = HashSet::new();
    all.retain(|item| seen.insert(item.clone()));
    all
}

/// Treats an empty parameter as absent.
pub fn empty_is_none<'de, D: Deserializer<'de>, T: std::str::FromStr>(deserializer: D) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    match text.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|_| serde::de::Error::custom(format!("{text:?} is not a valid value"))),
    }
}
