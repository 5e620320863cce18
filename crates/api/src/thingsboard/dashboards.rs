//! Dashboards. What is in their configuration is the matter of whoever draws it.

use axum::Json;
use platform::ids::{CustomerId, Uuid};
use platform::model::{Customer, Dashboard, Tenant};
use platform::repository::Selection;
use platform::{Page, PageLink};
use serde_json::{Value, json};

use super::call::{Call, Verb};
use super::failure::Failure;
use super::info::{is_public, only};
use super::lists::{self, PageQuery};
use super::operation::{Body, NoQuery, Outcome, delete, get, post};
use crate::endpoint::Endpoint;
use crate::guard::Who;

/// A dashboard without its configuration.
const INFO: &[&str] = &[
    "id",
    "createdTime",
    "tenantId",
    "title",
    "name",
    "image",
    "assignedCustomers",
    "mobileHide",
    "mobileOrder",
    "externalId",
    "version",
];

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        get("/api/dashboard/serverTime", "get_server_time", Who::ANY, server_time)
            .says("What time it is", "Milliseconds since 1970.")
            .returns_json("The time."),
        get(
            "/api/dashboard/maxDatapointsLimit",
            "get_max_datapoints_limit",
            Who::ANY,
            datapoints_limit,
        )
        .says("How many points a chart may ask for", "Of one key.")
        .returns_json("The number."),
        post("/api/dashboard", "save_dashboard", Who::TENANT_ADMIN, save)
            .says("Create or change a dashboard", "Any configuration is kept as it comes.")
            .returns_json("The dashboard."),
        get(
            "/api/dashboard/{dashboardId}",
            "get_dashboard",
            Who::TENANT.and_screens(),
            read,
        )
        .says("Read a dashboard", "With its configuration.")
        .returns_json("The dashboard."),
        get(
            "/api/dashboard/info/{dashboardId}",
            "get_dashboard_info",
            Who::TENANT,
            info,
        )
        .says("Read a dashboard in short", "Without its configuration.")
        .returns_json("The dashboard in short."),
        delete(
            "/api/dashboard/{dashboardId}",
            "delete_dashboard",
            Who::TENANT_ADMIN,
            remove,
        )
        .says("Delete a dashboard", "For everybody who sees it.")
        .returns_empty("Deleted."),
        get(
            "/api/tenant/dashboards",
            "get_tenant_dashboards",
            Who::TENANT_ADMIN,
            of_tenant,
        )
        .says("List dashboards", "Without their configurations.")
        .returns_json("A page of dashboards in short."),
        get(
            "/api/customer/{customerId}/dashboards",
            "get_customer_dashboards",
            Who::TENANT,
            of_customer,
        )
        .says(
            "List a customer's dashboards",
            "Those that are assigned to it, without their configurations.",
        )
        .returns_json("A page of dashboards in short."),
        post(
            "/api/customer/{customerId}/dashboard/{dashboardId}",
            "assign_dashboard",
            Who::TENANT_ADMIN,
            assign,
        )
        .says("Assign a dashboard to a customer", "Its users can see it from then on.")
        .returns_json("The dashboard."),
        delete(
            "/api/customer/{customerId}/dashboard/{dashboardId}",
            "unassign_dashboard",
            Who::TENANT_ADMIN,
            unassign,
        )
        .says("Take a dashboard from a customer", "Other customers keep it.")
        .returns_json("The dashboard."),
        get(
            "/api/tenant/{tenantId}/dashboards",
            "get_dashboards_of_tenant",
            Who::SYS_ADMIN,
            of_other_tenant,
        )
        .says("List a tenant's dashboards", "Without their configurations.")
        .returns_json("A page of dashboards in short."),
        post(
            "/api/dashboard/{dashboardId}/customers",
            "set_dashboard_customers",
            Who::TENANT_ADMIN,
            set_customers,
        )
        .says(
            "Say which customers have a dashboard",
            "A list of identifiers; it is taken from all others.",
        )
        .returns_json("The dashboard."),
        post(
            "/api/dashboard/{dashboardId}/customers/add",
            "add_dashboard_customers",
            Who::TENANT_ADMIN,
            add_customers,
        )
        .says("Assign a dashboard to customers", "A list of identifiers.")
        .returns_json("The dashboard."),
        post(
            "/api/dashboard/{dashboardId}/customers/remove",
            "remove_dashboard_customers",
            Who::TENANT_ADMIN,
            remove_customers,
        )
        .says("Take a dashboard from customers", "A list of identifiers.")
        .returns_json("The dashboard."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Dashboards")).collect()
}

fn server_time(call: &Call, (): (), _: NoQuery, (): ()) -> Outcome<i64> {
    Ok(Json(call.now_ms))
}

fn datapoints_limit(_: &Call, (): (), _: NoQuery, (): ()) -> Outcome<usize> {
    Ok(Json(super::telemetry::POINTS_MAX))
}

/// Who sees it is changed by assigning, not by saving.
fn save(call: &Call, (): (), _: NoQuery, Body(mut dashboard): Body<Dashboard>) -> Outcome<Dashboard> {
    dashboard.assigned_customers = match dashboard.id {
        Some(id) => call.entity::<Dashboard>(id.0, Verb::Write)?.assigned_customers,
        None => None,
    };
    dashboard.tenant_id = call.tenant();
    let is_new = dashboard.id.is_none();
    Ok(call.saved(is_new, call.entities().save_dashboard(dashboard, call.now_ms)?))
}

fn read(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Dashboard> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn info(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Value> {
    Ok(Json(only(&call.entity::<Dashboard>(id, Verb::Read)?, INFO)))
}

fn remove(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    let dashboard: Dashboard = call.entity(id, Verb::Delete)?;
    call.entities().delete_dashboard(&dashboard)?;
    call.deleted(&dashboard);
    Ok(())
}

fn of_tenant(call: &Call, (): (), query: PageQuery, (): ()) -> Outcome<Page<Value>> {
    in_short(call, &call.own(), &query.page_link()?).map(Json)
}

fn in_short(call: &Call, selection: &Selection, link: &PageLink) -> Result<Page<Value>, Failure> {
    lists::page_of_large(call, selection, link, |dashboard: Dashboard| only(&dashboard, INFO))
}

/// Who sees a dashboard is inside of it: all of the tenant's are looked at.
fn of_customer(call: &Call, customer: Uuid, query: PageQuery, (): ()) -> Outcome<Page<Value>> {
    let customer: Customer = call.entity(customer, Verb::Read)?;
    let id = customer.id.unwrap_or_default();
    let link = query.page_link()?;
    let selection = Selection {
        tenant: Some(call.tenant().0),
        ..Selection::default()
    };
    let all = PageLink {
        page: 0,
        page_size: platform::PAGE_SIZE_MAX,
        ..link.clone()
    };
    let info_if_shown = |dashboard: Dashboard| {
        let is_shown = assigned(&dashboard).iter().any(|known| is_customer(known, id));
        is_shown.then(|| only(&dashboard, INFO))
    };
    let all = lists::page_of_large(call, &selection, &all, info_if_shown)?;
    let shown: Vec<Value> = all.data.into_iter().flatten().collect();
    let total = shown.len();
    let skipped = link.page.saturating_mul(link.page_size);
    let data = shown.into_iter().skip(skipped).take(link.page_size).collect();
    Ok(Json(Page::new(data, total, &link)))
}

fn assign(call: &Call, (customer, dashboard): (Uuid, Uuid), _: NoQuery, (): ()) -> Outcome<Dashboard> {
    let customer: Customer = call.entity(customer, Verb::Read)?;
    let id = customer.id.unwrap_or_default();
    change_assigned(call, dashboard, (Some(id), None), |assigned| {
        if !assigned.iter().any(|known| is_customer(known, id)) {
            assigned.push(assignment(&customer));
        }
    })
}

fn unassign(call: &Call, (customer, dashboard): (Uuid, Uuid), _: NoQuery, (): ()) -> Outcome<Dashboard> {
    call.entity::<Customer>(customer, Verb::Read)?;
    change_assigned(call, dashboard, (None, Some(CustomerId(customer))), |assigned| {
        assigned.retain(|known| !is_customer(known, CustomerId(customer)));
    })
}

fn of_other_tenant(call: &Call, tenant: Uuid, query: PageQuery, (): ()) -> Outcome<Page<Value>> {
    call.entity::<Tenant>(tenant, Verb::Read)?;
    let selection = Selection {
        tenant: Some(tenant),
        ..Selection::default()
    };
    in_short(call, &selection, &query.page_link()?).map(Json)
}

/// In one request.
const CUSTOMERS_MAX: usize = 1_000;

fn customers_of(call: &Call, ids: &[Uuid]) -> Result<Vec<Customer>, Failure> {
    if ids.len() > CUSTOMERS_MAX {
        return Err(Failure::bad_request(format!("More than {CUSTOMERS_MAX} customers")));
    }
    ids.iter().map(|id| call.entity(*id, Verb::Read)).collect()
}

fn set_customers(call: &Call, id: Uuid, _: NoQuery, Body(ids): Body<Vec<Uuid>>) -> Outcome<Dashboard> {
    let dashboard: Dashboard = call.entity(id, Verb::Assign)?;
    let wanted = customers_of(call, &ids)?;
    let is_wanted = |known: &Value| ids.iter().any(|id| is_customer(known, CustomerId(*id)));
    let gone = assigned(&dashboard).iter().filter(|known| !is_wanted(known));
    let gone = gone
        .filter_map(|known| Uuid::parse(known["customerId"]["id"].as_str()?))
        .map(CustomerId);
    assign_all(call, dashboard.clone(), wanted, gone.collect())
}

fn add_customers(call: &Call, id: Uuid, _: NoQuery, Body(ids): Body<Vec<Uuid>>) -> Outcome<Dashboard> {
    let dashboard: Dashboard = call.entity(id, Verb::Assign)?;
    assign_all(call, dashboard, customers_of(call, &ids)?, Vec::new())
}

fn remove_customers(call: &Call, id: Uuid, _: NoQuery, Body(ids): Body<Vec<Uuid>>) -> Outcome<Dashboard> {
    let dashboard: Dashboard = call.entity(id, Verb::Assign)?;
    let gone = ids.into_iter().map(CustomerId).collect();
    assign_all(call, dashboard, Vec::new(), gone)
}

/// Only what differs is changed, all of it or nothing; each customer's change is news.
fn assign_all(call: &Call, mut dashboard: Dashboard, new: Vec<Customer>, gone: Vec<CustomerId>) -> Outcome<Dashboard> {
    let mut all = assigned(&dashboard).to_vec();
    let mut changes = Vec::new();
    for customer in new {
        let id = customer.id.unwrap_or_default();
        if !all.iter().any(|known| is_customer(known, id)) {
            all.push(assignment(&customer));
            changes.push((Some(id), None));
        }
    }
    for customer in gone {
        let count = all.len();
        all.retain(|known| !is_customer(known, customer));
        if all.len() < count {
            changes.push((None, Some(customer)));
        }
    }
    if changes.is_empty() {
        return Ok(Json(dashboard));
    }
    dashboard.assigned_customers = Some(all.into());
    let saved = call.entities().save_dashboard(dashboard, call.now_ms)?;
    for (to, from) in changes {
        drop(call.given(saved.clone(), to, from));
    }
    Ok(Json(saved))
}

fn assignment(customer: &Customer) -> Value {
    json!({"customerId": customer.id.unwrap_or_default(), "title": customer.title, "public": is_public(customer)})
}

/// `to` and `from`: who sees it now and who does not any more.
fn change_assigned(
    call: &Call,
    id: Uuid,
    (to, from): (Option<CustomerId>, Option<CustomerId>),
    change: impl FnOnce(&mut Vec<Value>),
) -> Outcome<Dashboard> {
    let mut dashboard: Dashboard = call.entity(id, Verb::Assign)?;
    let mut all = assigned(&dashboard).to_vec();
    change(&mut all);
    dashboard.assigned_customers = Some(all.into());
    let saved = call.entities().save_dashboard(dashboard, call.now_ms)?;
    Ok(call.given(saved, to, from))
}

fn assigned(dashboard: &Dashboard) -> &[Value] {
    let assigned = dashboard.assigned_customers.as_ref().and_then(Value::as_array);
    assigned.map_or(&[], Vec::as_slice)
}

fn is_customer(assigned: &Value, customer: CustomerId) -> bool {
    assigned["customerId"]["id"] == customer.to_string().as_str()
}
