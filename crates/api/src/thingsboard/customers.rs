//! Customers of a tenant.

use axum::Json;
use platform::Page;
use platform::ids::{CustomerId, Uuid};
use platform::model::Customer;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{Call, Verb};
use super::failure::Failure;
use super::info::{fields, is_public};
use super::lists::{self, PageQuery};
use super::operation::{Body, NoQuery, Outcome, delete, get, post};
use crate::endpoint::Endpoint;
use crate::guard::Who;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/customer", "save_customer", Who::TENANT_ADMIN, save)
            .says("Create or change a customer", "Without an id it is new.")
            .returns_json("The customer."),
        get("/api/customer/{customerId}", "get_customer", Who::TENANT, read)
            .says("Read a customer", "Users of a customer can read the own one only.")
            .returns_json("The customer."),
        get(
            "/api/customer/{customerId}/shortInfo",
            "get_customer_short_info",
            Who::TENANT,
            short,
        )
        .says("Read a customer in short", "Its title, and whether it is public.")
        .returns_json("The customer in short."),
        get(
            "/api/customer/{customerId}/title",
            "get_customer_title",
            Who::TENANT,
            title,
        )
        .says("Read a customer's title", "As text.")
        .returns_text("text/plain", "The title."),
        delete(
            "/api/customer/{customerId}",
            "delete_customer",
            Who::TENANT_ADMIN,
            remove,
        )
        .says(
            "Delete a customer",
            "With its users. Its devices and assets belong to the tenant again.",
        )
        .returns_empty("Deleted."),
        get("/api/customers", "get_customers", Who::TENANT_ADMIN, list)
            .says("List customers", "All of the tenant.")
            .returns_json("A page of customers."),
        get(
            "/api/tenant/customers",
            "get_tenant_customer",
            Who::TENANT_ADMIN,
            by_title,
        )
        .says("Find a customer by title", "The one of exactly this title.")
        .returns_json("The customer."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Customers")).collect()
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct TitleQuery {
    /// The customer's title.
    customer_title: String,
}

fn save(call: &Call, (): (), _: NoQuery, Body(mut customer): Body<Customer>) -> Outcome<Customer> {
    if let Some(id) = customer.id {
        call.entity::<Customer>(id.0, Verb::Write)?;
    }
    customer.tenant_id = call.tenant();
    let is_new = customer.id.is_none();
    Ok(call.saved(is_new, call.entities().save_customer(customer, call.now_ms)?))
}

fn read(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Customer> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn short(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Value> {
    let customer: Customer = call.entity(id, Verb::Read)?;
    Ok(Json(json!({"title": customer.title, "isPublic": is_public(&customer)})))
}

fn title(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<String, Failure> {
    Ok(call.entity::<Customer>(id, Verb::Read)?.title)
}

fn remove(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    let customer: Customer = call.entity(id, Verb::Delete)?;
    call.entities().delete_customer(CustomerId(id), call.now_ms)?;
    call.deleted(&customer);
    Ok(())
}

fn list(call: &Call, (): (), query: PageQuery, (): ()) -> Outcome<Page<Customer>> {
    lists::page(call, &call.own(), &query.page_link()?)
}

fn by_title(call: &Call, (): (), query: TitleQuery, (): ()) -> Outcome<Value> {
    let customer: Option<Customer> = call.entities().find_by_name(call.tenant().0, &query.customer_title)?;
    let customer = customer.ok_or_else(Failure::not_found)?;
    Ok(Json(fields(&customer).into()))
}
