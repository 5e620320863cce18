//! Dashboards. Their configuration is only interpreted by clients.

use axum::Json;
use platform::ids::{CustomerId, Uuid};
use platform::model::{Customer, Dashboard, Tenant};
use platform::repository::Selection;
use platform::{PageData, PageLink};
use serde_json::{Value, json};

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::info::{is_public, only};
use super::lists::{self, PageQuery};
use super::operation::{HandlerResult, JsonBody, NoQuery, delete, get, post};
use crate::services::Endpoint;

/// Fields of a dashboard without its configuration.
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
        get(
            "/api/dashboard/serverTime",
            "get_server_time",
            Authorities::ANY,
            server_time,
        )
        .describe("Server time", "Milliseconds since 1970.")
        .returns_json("The time."),
        get(
            "/api/dashboard/maxDatapointsLimit",
            "get_max_datapoints_limit",
            Authorities::ANY,
            datapoints_limit,
        )
        .describe("Limit of points per chart", "For one key.")
        .returns_json("The number."),
        post("/api/dashboard", "save_dashboard", Authorities::TENANT_ADMIN, save)
            .describe("Create or change a dashboard", "The configuration is stored unchanged.")
            .returns_json("The dashboard."),
        get(
            "/api/dashboard/{dashboardId}",
            "get_dashboard",
            Authorities::TENANT.and_screens(),
            read,
        )
        .describe("Read a dashboard", "With its configuration.")
        .returns_json("The dashboard."),
        get(
            "/api/dashboard/info/{dashboardId}",
            "get_dashboard_info",
            Authorities::TENANT,
            info,
        )
        .describe("Read a dashboard's summary", "Without its configuration.")
        .returns_json("The summary."),
        delete(
            "/api/dashboard/{dashboardId}",
            "delete_dashboard",
            Authorities::TENANT_ADMIN,
            remove,
        )
        .describe("Delete a dashboard", "For all users.")
        .returns_empty("Deleted."),
        get(
            "/api/tenant/dashboards",
            "get_tenant_dashboards",
            Authorities::TENANT_ADMIN,
            of_tenant,
        )
        .describe("List dashboards", "Without their configurations.")
        .returns_json("A page of summaries."),
        get(
            "/api/customer/{customerId}/dashboards",
            "get_customer_dashboards",
            Authorities::TENANT,
            of_customer,
        )
        .describe(
            "List a customer's dashboards",
            "Dashboards that are assigned to the customer, without their configurations.",
        )
        .returns_json("A page of summaries."),
        post(
            "/api/customer/{customerId}/dashboard/{dashboardId}",
            "assign_dashboard",
            Authorities::TENANT_ADMIN,
            assign,
        )
        .describe(
            "Assign a dashboard to a customer",
            "The customer's users can then see it.",
        )
        .returns_json("The dashboard."),
        delete(
            "/api/customer/{customerId}/dashboard/{dashboardId}",
            "unassign_dashboard",
            Authorities::TENANT_ADMIN,
            unassign,
        )
        .describe("Unassign a dashboard from a customer", "Other assignments stay.")
        .returns_json("The dashboard."),
        get(
            "/api/tenant/{tenantId}/dashboards",
            "get_dashboards_of_tenant",
            Authorities::SYS_ADMIN,
            of_other_tenant,
        )
        .describe("List a tenant's dashboards", "Without their configurations.")
        .returns_json("A page of summaries."),
        post(
            "/api/dashboard/{dashboardId}/customers",
            "set_dashboard_customers",
            Authorities::TENANT_ADMIN,
            set_customers,
        )
        .describe(
            "Set the customers of a dashboard",
            "The body is a list of customer IDs. The dashboard is unassigned from all other customers.",
        )
        .returns_json("The dashboard."),
        post(
            "/api/dashboard/{dashboardId}/customers/add",
            "add_dashboard_customers",
            Authorities::TENANT_ADMIN,
            add_customers,
        )
        .describe("Assign a dashboard to customers", "The body is a list of customer IDs.")
        .returns_json("The dashboard."),
        post(
            "/api/dashboard/{dashboardId}/customers/remove",
            "remove_dashboard_customers",
            Authorities::TENANT_ADMIN,
            remove_customers,
        )
        .describe(
            "Unassign a dashboard from customers",
            "The body is a list of customer IDs.",
        )
        .returns_json("The dashboard."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Dashboards")).collect()
}

fn server_time(call: &ApiCall, (): (), _: NoQuery, (): ()) -> HandlerResult<i64> {
    Ok(Json(call.now_ms))
}

fn datapoints_limit(_: &ApiCall, (): (), _: NoQuery, (): ()) -> HandlerResult<usize> {
    Ok(Json(super::telemetry::POINTS_MAX))
}

/// Saving does not change the assigned customers; assigning does.
fn save(call: &ApiCall, (): (), _: NoQuery, JsonBody(mut dashboard): JsonBody<Dashboard>) -> HandlerResult<Dashboard> {
    dashboard.assigned_customers = match dashboard.id {
        Some(id) => call.entity::<Dashboard>(id.0, Verb::Write)?.assigned_customers,
        None => None,
    };
    dashboard.tenant_id = call.tenant();
    let is_new = dashboard.id.is_none();
    Ok(call.saved(is_new, call.entities().save_dashboard(dashboard, call.now_ms)?))
}

fn read(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Dashboard> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn info(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
    Ok(Json(only(&call.entity::<Dashboard>(id, Verb::Read)?, INFO)))
}

fn remove(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    let dashboard: Dashboard = call.entity(id, Verb::Delete)?;
    call.entities().delete_dashboard(&dashboard)?;
    call.deleted(&dashboard);
    Ok(())
}

fn of_tenant(call: &ApiCall, (): (), query: PageQuery, (): ()) -> HandlerResult<PageData<Value>> {
    dashboard_infos(call, &call.own_entities(), &query.page_link()?).map(Json)
}

fn dashboard_infos(
    call: &ApiCall,
    selection: &Selection,
    link: &PageLink,
) -> Result<PageData<Value>, ThingsboardError> {
    lists::page_of_large(call, selection, link, |dashboard: Dashboard| only(&dashboard, INFO))
}

/// The dashboard contains its customers, so this reads all dashboards of the tenant.
fn of_customer(call: &ApiCall, customer: Uuid, query: PageQuery, (): ()) -> HandlerResult<PageData<Value>> {
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
    Ok(Json(PageData::new(data, total, &link)))
}

fn assign(call: &ApiCall, (customer, dashboard): (Uuid, Uuid), _: NoQuery, (): ()) -> HandlerResult<Dashboard> {
    let customer: Customer = call.entity(customer, Verb::Read)?;
    let id = customer.id.unwrap_or_default();
    change_assigned(call, dashboard, (Some(id), None), |assigned| {
        if !assigned.iter().any(|known| is_customer(known, id)) {
            assigned.push(assignment(&customer));
        }
    })
}

fn unassign(call: &ApiCall, (customer, dashboard): (Uuid, Uuid), _: NoQuery, (): ()) -> HandlerResult<Dashboard> {
    call.entity::<Customer>(customer, Verb::Read)?;
    change_assigned(call, dashboard, (None, Some(CustomerId(customer))), |assigned| {
        assigned.retain(|known| !is_customer(known, CustomerId(customer)));
    })
}

fn of_other_tenant(call: &ApiCall, tenant: Uuid, query: PageQuery, (): ()) -> HandlerResult<PageData<Value>> {
    call.entity::<Tenant>(tenant, Verb::Read)?;
    let selection = Selection {
        tenant: Some(tenant),
        ..Selection::default()
    };
    dashboard_infos(call, &selection, &query.page_link()?).map(Json)
}

/// Limit of one request.
const CUSTOMERS_MAX: usize = 1_000;

fn customers_of(call: &ApiCall, ids: &[Uuid]) -> Result<Vec<Customer>, ThingsboardError> {
    if ids.len() > CUSTOMERS_MAX {
        return Err(ThingsboardError::bad_request(format!(
            "More than {CUSTOMERS_MAX} customers"
        )));
    }
    ids.iter().map(|id| call.entity(*id, Verb::Read)).collect()
}

fn set_customers(call: &ApiCall, id: Uuid, _: NoQuery, JsonBody(ids): JsonBody<Vec<Uuid>>) -> HandlerResult<Dashboard> {
    let dashboard: Dashboard = call.entity(id, Verb::Assign)?;
    let wanted = customers_of(call, &ids)?;
    let is_wanted = |known: &Value| ids.iter().any(|id| is_customer(known, CustomerId(*id)));
    let gone = assigned(&dashboard).iter().filter(|known| !is_wanted(known));
    let gone = gone
        .filter_map(|known| Uuid::parse(known["customerId"]["id"].as_str()?))
        .map(CustomerId);
    assign_all(call, dashboard.clone(), wanted, gone.collect())
}

fn add_customers(call: &ApiCall, id: Uuid, _: NoQuery, JsonBody(ids): JsonBody<Vec<Uuid>>) -> HandlerResult<Dashboard> {
    let dashboard: Dashboard = call.entity(id, Verb::Assign)?;
    assign_all(call, dashboard, customers_of(call, &ids)?, Vec::new())
}

fn remove_customers(
    call: &ApiCall,
    id: Uuid,
    _: NoQuery,
    JsonBody(ids): JsonBody<Vec<Uuid>>,
) -> HandlerResult<Dashboard> {
    let dashboard: Dashboard = call.entity(id, Verb::Assign)?;
    let gone = ids.into_iter().map(CustomerId).collect();
    assign_all(call, dashboard, Vec::new(), gone)
}

/// Applies only the differences, all or none. Each customer's change causes an event for rule chains.
fn assign_all(
    call: &ApiCall,
    mut dashboard: Dashboard,
    new: Vec<Customer>,
    gone: Vec<CustomerId>,
) -> HandlerResult<Dashboard> {
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
        drop(call.customer_changed(saved.clone(), to, from));
    }
    Ok(Json(saved))
}

fn assignment(customer: &Customer) -> Value {
    json!({"customerId": customer.id.unwrap_or_default(), "title": customer.title, "public": is_public(customer)})
}

/// `to` is assigned, `from` is unassigned.
fn change_assigned(
    call: &ApiCall,
    id: Uuid,
    (to, from): (Option<CustomerId>, Option<CustomerId>),
    change: impl FnOnce(&mut Vec<Value>),
) -> HandlerResult<Dashboard> {
    let mut dashboard: Dashboard = call.entity(id, Verb::Assign)?;
    let mut all = assigned(&dashboard).to_vec();
    change(&mut all);
    dashboard.assigned_customers = Some(all.into());
    let saved = call.entities().save_dashboard(dashboard, call.now_ms)?;
    Ok(call.customer_changed(saved, to, from))
}

fn assigned(dashboard: &Dashboard) -> &[Value] {
    let assigned = dashboard.assigned_customers.as_ref().and_then(Value::as_array);
    assigned.map_or(&[], Vec::as_slice)
}

fn is_customer(assigned: &Value, customer: CustomerId) -> bool {
    assigned["customerId"]["id"] == customer.to_string().as_str()
}
