//! To whom an alarm can be given: who administers the tenant, and users of the customer that the alarm belongs to. A customer's users
//! give it among themselves.

use axum::Json;
use platform::ids::{AlarmId, CustomerId, Uuid};
use platform::model::{Authority, User};
use platform::repository::Selection;
use platform::{PAGE_SIZE_MAX, Page, PageLink};
use serde_json::Value;

use super::call::{Call, Verb};
use super::failure::Failure;
use super::lists::PageQuery;
use super::operation::{Outcome, get};
use super::users::short;
use crate::endpoint::Endpoint;
use crate::guard::Who;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        get("/api/users/assign/{alarmId}", "get_users_for_assign", Who::TENANT, list)
            .says(
                "List users to whom an alarm can be assigned",
                "Administrators of the tenant first, then users of the alarm's customer, each in the order that was asked for; a customer's user gets those of the own customer.",
            )
            .returns_json("A page of `id`, `email`, `firstName` and `lastName`."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Users")).collect()
}

fn list(call: &Call, id: Uuid, query: PageQuery, (): ()) -> Outcome<Page<Value>> {
    let alarm = call.alarm(AlarmId(id), Verb::Read)?;
    let link = query.page_link()?;
    let mut groups = Vec::new();
    if call.person.authority == Authority::TenantAdmin {
        groups.push(CustomerId::NULL);
    }
    groups.extend(alarm.customer_id.filter(|customer| *customer != CustomerId::NULL));
    let first = link.page.saturating_mul(link.page_size);
    let (mut found, mut total) = (Vec::new(), 0);
    for customer in groups {
        let wanted = first.saturating_add(link.page_size).saturating_sub(total);
        let users = of(call, customer, &link, wanted)?;
        let skipped = first.saturating_sub(total);
        found.extend(users.data.into_iter().skip(skipped));
        total += users.total_elements;
    }
    found.truncate(link.page_size);
    let people = found.iter().map(short);
    Ok(Json(Page::new(people.collect(), total, &link)))
}

/// The first so many; of none, how many there are.
fn of(call: &Call, customer: CustomerId, link: &PageLink, wanted: usize) -> Result<Page<User>, Failure> {
    if wanted > PAGE_SIZE_MAX {
        return Err(Failure::bad_request(format!(
            "page: only the first {PAGE_SIZE_MAX} users can be listed; narrow them down with textSearch"
        )));
    }
    let selection = Selection {
        customer: Some(customer.0),
        tenant: Some(call.tenant().0),
        ..Selection::default()
    };
    let first = PageLink {
        page_size: wanted.max(1),
        page: 0,
        ..link.clone()
    };
    Ok(call.entities().page(&selection, &first)?)
}
