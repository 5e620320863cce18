//! Customers of a tenant.

use axum::Json;
use platform::PageData;
use platform::ids::{CustomerId, Uuid};
use platform::model::Customer;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::ThingsboardError;
use super::info::{fields, is_public};
use super::lists::{self, PageQuery};
use super::operation::{HandlerResult, JsonBody, NoQuery, delete, get, post};
use crate::services::Endpoint;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/customer", "save_customer", Authorities::TENANT_ADMIN, save)
            .describe("Create or change a customer", "Without an ID, creates a customer.")
            .returns_json("The customer."),
        get("/api/customer/{customerId}", "get_customer", Authorities::TENANT, read)
            .describe("Read a customer", "Customer users can only read their own customer.")
            .returns_json("The customer."),
        get(
            "/api/customer/{customerId}/shortInfo",
            "get_customer_short_info",
            Authorities::TENANT,
            short_info,
        )
        .describe("Read a customer's summary", "Its title, and whether it is public.")
        .returns_json("The summary."),
        get(
            "/api/customer/{customerId}/title",
            "get_customer_title",
            Authorities::TENANT,
            title,
        )
        .describe("Read a customer's title", "As text.")
        .returns_text("text/plain", "The title."),
        delete(
            "/api/customer/{customerId}",
            "delete_customer",
            Authorities::TENANT_ADMIN,
            remove,
        )
        .describe(
            "Delete a customer",
            "Also deletes its users. Its devices and assets become unassigned.",
        )
        .returns_empty("Deleted."),
        get("/api/customers", "get_customers", Authorities::TENANT_ADMIN, list)
            .describe("List customers", "All customers of the tenant.")
            .returns_json("A page of customers."),
        get(
            "/api/tenant/customers",
            "get_tenant_customer",
            Authorities::TENANT_ADMIN,
            by_title,
        )
        .describe("Find a customer by title", "The title must match exactly.")
        .returns_json("The customer."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Customers")).collect()
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TitleQuery {
    /// Title of the customer.
    customer_title: String,
}

fn save(call: &ApiCall, (): (), _: NoQuery, JsonBody(mut customer): JsonBody<Customer>) -> HandlerResult<Customer> {
    if let Some(id) = customer.id {
        call.entity::<Customer>(id.0, Verb::Write)?;
    }
    customer.tenant_id = call.tenant();
    let is_new = customer.id.is_none();
    Ok(call.saved(is_new, call.entities().save_customer(customer, call.now_ms)?))
}

fn read(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Customer> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn short_info(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
    let customer: Customer = call.entity(id, Verb::Read)?;
    Ok(Json(json!({"title": customer.title, "isPublic": is_public(&customer)})))
}

fn title(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<String, ThingsboardError> {
    Ok(call.entity::<Customer>(id, Verb::Read)?.title)
}

fn remove(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    let customer: Customer = call.entity(id, Verb::Delete)?;
    call.entities().delete_customer(CustomerId(id), call.now_ms)?;
    call.deleted(&customer);
    Ok(())
}

fn list(call: &ApiCall, (): (), query: PageQuery, (): ()) -> HandlerResult<PageData<Customer>> {
    lists::page(call, &call.own_entities(), &query.page_link()?)
}

fn by_title(call: &ApiCall, (): (), query: TitleQuery, (): ()) -> HandlerResult<Value> {
    let customer: Option<Customer> = call.entities().find_by_name(call.tenant().0, &query.customer_title)?;
    let customer = customer.ok_or_else(ThingsboardError::not_found)?;
    Ok(Json(fields(&customer).into()))
}
