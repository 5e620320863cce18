//! Lists: the parameters that all of them have, and pages of entities.

use std::collections::HashSet;

use axum::Json;
use platform::ids::Uuid;
use platform::model::{Customer, Entity};
use platform::repository::Selection;
use platform::{Page, PageLink};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::call::{Call, Verb};
use super::failure::Failure;
use super::operation::{FromParameter, Outcome};

/// Rows that are read at once where all are needed.
const CHUNK: usize = 1000;
/// The same of what may have megabytes each: dashboards, rule chains.
pub const LARGE_CHUNK: usize = 16;

/// Parameters of a list, and those of one kind of list.
macro_rules! list_query {
    ($name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* }) => {
        #[derive(Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            /// Entities per page, at most 10,000.
            page_size: Option<i64>,
            /// From 0.
            page: Option<i64>,
            /// Anywhere in name, label or type.
            text_search: Option<String>,
            /// A field, such as createdTime or name.
            sort_property: Option<String>,
            /// ASC or DESC.
            sort_order: Option<String>,
            $($(#[$attribute])* $field: $type,)*
        }

        impl $name {
            #[allow(dead_code, reason = "some ask for one entity only, or for pages only")]
            fn link(&self) -> Result<platform::PageLink, $crate::thingsboard::failure::Failure> {
                $crate::thingsboard::lists::link(
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
    pub fn page_link(&self) -> Result<PageLink, Failure> {
        self.link()
    }
}

pub fn link(
    page_size: Option<i64>,
    page: Option<i64>,
    text_search: Option<&str>,
    sort_property: Option<&str>,
    sort_order: Option<&str>,
) -> Result<PageLink, Failure> {
    let required = |name: &str| Failure::bad_request(format!("Required request parameter '{name}' is not present"));
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

pub fn page<E: Entity>(call: &Call, selection: &Selection, link: &PageLink) -> Outcome<Page<E>> {
    Ok(Json(call.entities().page(selection, link)?))
}

/// As [`page`], of what may be large by itself: a few of them are read at a time, of which this much is kept.
pub fn page_of_large<E: Entity, T>(
    call: &Call,
    selection: &Selection,
    link: &PageLink,
    keep: impl Fn(E) -> T,
) -> Result<Page<T>, Failure> {
    let first = link.page.saturating_mul(link.page_size);
    let end = first.saturating_add(link.page_size);
    let mut kept = Vec::new();
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
        kept.extend(wanted.map(|(_, entity)| keep(entity)));
        number += 1;
        if !page.has_next || number.saturating_mul(LARGE_CHUNK) >= end {
            return Ok(Page::new(kept, page.total_elements, link));
        }
    }
}

/// One of the tenant's, by its name.
pub fn named<E: Entity>(call: &Call, name: &str) -> Outcome<Value> {
    let found: Option<E> = call.entities().find_by_name(call.tenant().0, name)?;
    let entity = found.ok_or_else(Failure::not_found)?;
    Ok(Json(super::info::fields(&entity).into()))
}

/// What a customer has, for somebody who may see the customer.
pub fn of_customer(call: &Call, customer: Uuid) -> Result<Selection, Failure> {
    call.entity::<Customer>(customer, Verb::Read)?;
    Ok(Selection {
        customer: Some(customer),
        ..call.own()
    })
}

/// All of a selection, one after the other.
pub fn for_each<E: Entity>(
    call: &Call,
    selection: &Selection,
    visit: &mut dyn FnMut(E) -> Result<(), Failure>,
) -> Result<(), Failure> {
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

/// A parameter that may be empty.
pub fn optional_id(text: Option<&str>) -> Result<Option<Uuid>, Failure> {
    text.filter(|text| !text.is_empty())
        .map(Uuid::from_parameter)
        .transpose()
}

pub fn filled(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// `a,b,c`.
pub fn comma_separated(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect()
}

/// Each once, where it is first.
pub fn without_repeats(mut all: Vec<String>) -> Vec<String> {
    let mut seen = HashSet::new();
    all.retain(|item| seen.insert(item.clone()));
    all
}

/// An empty parameter is as good as an absent one.
pub fn empty_is_none<'de, D: Deserializer<'de>, T: std::str::FromStr>(deserializer: D) -> Result<Option<T>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    match text.as_deref() {
        None | Some("") => Ok(None),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|_| serde::de::Error::custom(format!("{text:?} is not what is expected here"))),
    }
}
