//! Users: tenant administrators, created by system administrators, and customer users, created by tenant
//! administrators.

use axum::Json;
use platform::PageData;
use platform::ids::{CustomerId, TenantId, UserId, Uuid};
use platform::model::{Authority, Customer, Tenant, User};
use platform::repository::Selection;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::console_access;
use super::failure::ThingsboardError;
use super::lists::{self, PageQuery};
use super::operation::{HandlerResult, JsonBody, NoQuery, delete, get, post};
use super::principal::Principal;
use crate::services::Endpoint;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/user", "save_user", Authorities::ANY, save)
            .describe(
                "Create or change a user",
                "A new user has no password; the activation link lets the user set it. No mail is sent.",
            )
            .returns_json("The user."),
        get("/api/user/{userId}", "get_user_by_id", Authorities::ANY, read)
            .describe("Read a user", "By its ID.")
            .returns_json("The user."),
        get(
            "/api/user/{userId}/activationLink",
            "get_activation_link",
            Authorities::ADMINS,
            activation_link,
        )
        .describe(
            "Get a user's activation link",
            "With this link, the first password can be set through POST /api/noauth/activate.",
        )
        .returns_text("text/plain", "The link."),
        get("/api/user/{userId}/token", "get_user_token", Authorities::ADMINS, token)
            .describe(
                "Get tokens of a user",
                "Lets an administrator act as that user: a system administrator as a tenant administrator, a tenant administrator as a customer user. The tokens expire like others.",
            )
            .returns_json("`token` and `refreshToken`."),
        delete("/api/user/{userId}", "delete_user", Authorities::ADMINS, remove)
            .describe(
                "Delete a user",
                "All tokens and keys of the user become invalid.",
            )
            .returns_empty("Deleted."),
        get("/api/users", "get_users", Authorities::ADMINS, list)
            .describe("List users", "Users whom the calling user administers.")
            .returns_json("A page of users."),
        get("/api/users/info", "find_users_by_query", Authorities::TENANT, infos)
            .describe("List summaries of users", "Address and names of the users of the tenant or the customer.")
            .returns_json("A page of summaries."),
        get(
            "/api/tenant/{tenantId}/users",
            "get_tenant_admins",
            Authorities::SYS_ADMIN,
            of_tenant,
        )
        .describe("List a tenant's administrators", "Without users of customers.")
        .returns_json("A page of users."),
        get(
            "/api/customer/{customerId}/users",
            "get_customer_users",
            Authorities::TENANT_ADMIN,
            of_customer,
        )
        .describe("List a customer's users", "All users of the customer.")
        .returns_json("A page of users."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Users")).collect()
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct MailQuery {
    /// Ignored: no mail is sent.
    #[allow(dead_code, reason = "part of the interface; there is no mail")]
    send_activation_mail: Option<String>,
}

/// Only for users below the calling user.
fn token(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<Value> {
    let user: User = call.entity(id, Verb::Read)?;
    if !call.principal.administers(&user) {
        return Err(ThingsboardError::permission());
    }
    let principal = Principal {
        session: call.entities().new_id(call.now_ms).to_string(),
        console_login: call.principal.console_login.clone(),
        login_at: call.principal.login_at,
        issuers: call.principal.issuers_with_self(),
        ..Principal::of(&user)
    };
    let pair = call
        .platform_access
        .issue(&call.services.admins, &principal, call.now_ms);
    let pair = pair.map_err(|_| ThingsboardError::bad_request("The user is not active."))?;
    tracing::info!(by = %call.principal.name_with_issuers(), user = %user.email, "issued tokens of a user to an administrator");
    Ok(Json(json!({"token": pair.token, "refreshToken": pair.refresh_token})))
}

/// Users without administration rights can only change their own name.
fn save(call: &ApiCall, (): (), _: MailQuery, JsonBody(mut user): JsonBody<User>) -> HandlerResult<User> {
    let stored: Option<User> = match user.id {
        Some(id) => Some(call.entity(id.0, Verb::Write)?),
        None => None,
    };
    match (&stored, call.principal.authority) {
        (Some(stored), _) => {
            (user.tenant_id, user.customer_id, user.authority) =
                (stored.tenant_id, stored.customer_id, stored.authority);
        }
        (None, Authority::SysAdmin) => prepare_for_admin(call, &mut user)?,
        (None, Authority::TenantAdmin) => {
            user.tenant_id = call.tenant();
            if user.authority == Authority::SysAdmin {
                return Err(ThingsboardError::permission());
            }
        }
        (None, Authority::CustomerUser) => return Err(ThingsboardError::permission()),
    }
    if call.principal.authority != Authority::SysAdmin {
        check_email(&user.email, stored.as_ref())?;
    }
    let (saved, _) = call.entities().save_user(user, call.now_ms)?;
    if let (None, Some(id), Some(login)) = (&stored, saved.id, &call.principal.console_login)
        && console_access::administrator(&saved.email).is_some()
    {
        call.platform_access.console_logins().created_user(id, login.clone());
    }
    Ok(call.saved(stored.is_none(), saved))
}

/// Addresses of users that the console creates are reserved. They cannot be changed, because they contain the name of
/// the administrator.
fn check_email(email: &str, stored: Option<&User>) -> Result<(), ThingsboardError> {
    let known = stored.map(|stored| stored.email.as_str());
    let is_guarded = console_access::resembles_console_address(email)
        || known.is_some_and(console_access::resembles_console_address);
    if is_guarded && known != Some(email) {
        return Err(ThingsboardError::bad_request(
            "Addresses of users that the console creates are reserved for the console",
        ));
    }
    Ok(())
}

fn prepare_for_admin(call: &ApiCall, user: &mut User) -> Result<(), ThingsboardError> {
    match user.authority {
        Authority::SysAdmin => {
            (user.tenant_id, user.customer_id) = (TenantId::NULL, None);
            Ok(())
        }
        Authority::TenantAdmin => call.entity::<Tenant>(user.tenant_id.0, Verb::Read).map(drop),
        Authority::CustomerUser => Err(ThingsboardError::permission()),
    }
}

fn read(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> HandlerResult<User> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn activation_link(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<String, ThingsboardError> {
    call.entity::<User>(id, Verb::Write)?;
    let max_age_ms = call.platform_access.options().activation_link_max_age_ms();
    let token = call.entities().activation_token(UserId(id), max_age_ms, call.now_ms)?;
    let token = token.ok_or_else(|| ThingsboardError::bad_request("User is already activated!"))?;
    Ok(format!("{}/api/noauth/activate?activateToken={token}", call.base_url()))
}

fn remove(call: &ApiCall, id: Uuid, _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    let user: User = call.entity(id, Verb::Delete)?;
    if call.principal.id == UserId(id) {
        return Err(ThingsboardError::bad_request("Users can't delete themselves!"));
    }
    call.entities().delete_user(UserId(id))?;
    call.deleted(&user);
    Ok(())
}

fn list(call: &ApiCall, (): (), query: PageQuery, (): ()) -> HandlerResult<PageData<User>> {
    let selection = match call.principal.authority {
        Authority::SysAdmin => Selection {
            customer: Some(CustomerId::NULL.0),
            ..Selection::default()
        },
        _ => call.own_entities(),
    };
    lists::page(call, &selection, &query.page_link()?)
}

/// Returns the fields that lists for a selection contain.
pub fn short_info(user: &User) -> Value {
    json!({"id": user.id, "email": user.email, "firstName": user.first_name, "lastName": user.last_name})
}

fn infos(call: &ApiCall, (): (), query: PageQuery, (): ()) -> HandlerResult<PageData<Value>> {
    let page = call
        .entities()
        .page::<User>(&call.own_entities(), &query.page_link()?)?;
    Ok(Json(page.try_map(|user| Ok::<_, ThingsboardError>(short_info(&user)))?))
}

fn of_tenant(call: &ApiCall, tenant: Uuid, query: PageQuery, (): ()) -> HandlerResult<PageData<User>> {
    call.entity::<Tenant>(tenant, Verb::Read)?;
    let selection = Selection {
        tenant: Some(tenant),
        customer: Some(CustomerId::NULL.0),
        ..Selection::default()
    };
    lists::page(call, &selection, &query.page_link()?)
}

fn of_customer(call: &ApiCall, customer: Uuid, query: PageQuery, (): ()) -> HandlerResult<PageData<User>> {
    call.entity::<Customer>(customer, Verb::Read)?;
    let selection = Selection {
        customer: Some(customer),
        ..call.own_entities()
    };
    lists::page(call, &selection, &query.page_link()?)
}
