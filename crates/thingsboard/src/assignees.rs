//! Users to whom an alarm can be assigned: administrators of the tenant, and users of the alarm's customer. A customer
//! user can only assign it to users of the same customer.

use axum::Json;
use platform::ids::{AlarmId, CustomerId, Uuid};
use platform::model::{Authority, User};
use platform::repository::Selection;
use platform::{PAGE_SIZE_MAX, PageData, PageLink};
use serde_json::Value;

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::lists::PageQuery;
use super::operation::{HandlerResult, get};
use super::users::short_info;
use crate::services::Endpoint;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        get("/api/users/assign/{alarmId}", "get_users_for_assign", Authorities::TENANT, list)
            .describe(
                "List users to whom an alarm can be assigned",
                "Administrators of the tenant first, then users of the alarm's customer, each in the requested order. Customer users get the users of their customer.",
            )
            .returns_json("A page of `id`, `email`, `firstName` and `lastName`."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Users")).collect()
}

fn list(call: &ApiCall, id: Uuid, query: PageQuery, (): ()) -> HandlerResult<PageData<Value>> {
    let alarm = call.alarm(AlarmId(id), Verb::Read)?;
    let link = query.page_link()?;
    let mut groups = Vec::new();
    if call.principal.authority == Authority::TenantAdmin {
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
    let people = found.iter().map(short_info);
    Ok(Json(PageData::new(people.collect(), total, &link)))
}

/// Returns the first `wanted` users of a customer. With 0, only their number.
fn of(
    call: &ApiCall,
    customer: CustomerId,
    link: &PageLink,
    wanted: usize,
) -> Result<PageData<User>, ThingsboardError> {
    if wanted > PAGE_SIZE_MAX {
        return Err(ThingsboardError::bad_request(format!(
            "page: only the first {PAGE_SIZE_MAX} users can be listed; use textSearch to narrow the list"
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
