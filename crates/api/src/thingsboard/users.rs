//! Users: tenant administrators, whom system administrators make, and customers' users, whom tenant administrators make.

use axum::Json;
use axum::http::HeaderMap;
use platform::Page;
use platform::ids::{CustomerId, TenantId, UserId, Uuid};
use platform::model::{Authority, Customer, Tenant, User};
use platform::repository::Selection;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::call::{Call, Person, Verb};
use super::failure::Failure;
use super::let_in;
use super::lists::{self, PageQuery};
use super::operation::{Body, NoQuery, Outcome, delete, get, post};
use crate::endpoint::Endpoint;
use crate::guard::Who;

pub fn endpoints() -> Vec<Endpoint> {
    let all = vec![
        post("/api/user", "save_user", Who::ANY, save)
            .says(
                "Create or change a user",
                "A new one has no password yet: its activation link leads to one. No mail is sent.",
            )
            .returns_json("The user."),
        get("/api/user/{userId}", "get_user_by_id", Who::ANY, read)
            .says("Read a user", "By its identifier.")
            .returns_json("The user."),
        get(
            "/api/user/{userId}/activationLink",
            "get_activation_link",
            Who::ADMINS,
            activation_link,
        )
        .says(
            "Get a user's activation link",
            "Whoever has it can set the first password with POST /api/noauth/activate.",
        )
        .returns_text("text/plain", "The link."),
        get("/api/user/{userId}/token", "get_user_token", Who::ADMINS, token)
            .says(
                "Get tokens of a user",
                "To act as that user: a system administrator as a tenant's, who as a customer's user. They end as others do.",
            )
            .returns_json("`token` and `refreshToken`."),
        delete("/api/user/{userId}", "delete_user", Who::ADMINS, remove)
            .says(
                "Delete a user",
                "All of its tokens and keys are worth nothing afterwards.",
            )
            .returns_empty("Deleted."),
        get("/api/users", "get_users", Who::ADMINS, list)
            .says("List users", "Those that whoever asks administers.")
            .returns_json("A page of users."),
        get("/api/users/info", "find_users_by_query", Who::TENANT, infos)
            .says("List users in short", "Address and name of those of the tenant, or of the customer.")
            .returns_json("A page of users in short."),
        get(
            "/api/tenant/{tenantId}/users",
            "get_tenant_admins",
            Who::SYS_ADMIN,
            of_tenant,
        )
        .says("List a tenant's administrators", "Not the users of its customers.")
        .returns_json("A page of users."),
        get(
            "/api/customer/{customerId}/users",
            "get_customer_users",
            Who::TENANT_ADMIN,
            of_customer,
        )
        .says("List a customer's users", "All of them.")
        .returns_json("A page of users."),
    ];
    all.into_iter().map(|endpoint| endpoint.tag("Users")).collect()
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct MailQuery {
    /// Whether a mail should be sent, which is not done.
    #[allow(dead_code, reason = "part of the interface; there is no mail")]
    send_activation_mail: Option<String>,
}

/// Only of those below whoever asks.
fn token(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<Value> {
    let user: User = call.entity(id, Verb::Read)?;
    let is_below = match call.person.authority {
        Authority::SysAdmin => user.authority == Authority::TenantAdmin,
        Authority::TenantAdmin => user.authority == Authority::CustomerUser,
        Authority::CustomerUser => false,
    };
    if !is_below {
        return Err(Failure::permission());
    }
    let person = Person {
        session: call.entities().new_id(call.now_ms).to_string(),
        by: call.person.is_node_admin().then(|| call.person.name.clone()),
        ..Person::of(&user)
    };
    let pair = call.world.issue(call.app.admins(), &person, call.now_ms);
    let pair = pair.map_err(|_| Failure::bad_request("The user is not active."))?;
    tracing::info!(by = %call.person.name, user = %user.email, "tokens of a user were given to an administrator");
    Ok(Json(json!({"token": pair.token, "refreshToken": pair.refresh_token})))
}

/// Whoever is no administrator can change the own name only.
fn save(call: &Call, (): (), _: MailQuery, Body(mut user): Body<User>) -> Outcome<User> {
    let stored: Option<User> = match user.id {
        Some(id) => Some(call.entity(id.0, Verb::Write)?),
        None => None,
    };
    match (&stored, call.person.authority) {
        (Some(stored), _) => {
            (user.tenant_id, user.customer_id, user.authority) =
                (stored.tenant_id, stored.customer_id, stored.authority);
        }
        (None, Authority::SysAdmin) => prepare_for_admin(call, &mut user)?,
        (None, Authority::TenantAdmin) => {
            user.tenant_id = call.tenant();
            if user.authority == Authority::SysAdmin {
                return Err(Failure::permission());
            }
        }
        (None, Authority::CustomerUser) => return Err(Failure::permission()),
    }
    if call.person.authority != Authority::SysAdmin {
        check_email(&user.email, stored.as_ref())?;
    }
    let (saved, _) = call.entities().save_user(user, call.now_ms)?;
    Ok(call.saved(stored.is_none(), saved))
}

/// Nobody gets the address of a user whom the console has let in, and such a user keeps it: it says whom the user stands for.
fn check_email(email: &str, stored: Option<&User>) -> Result<(), Failure> {
    let known = stored.map(|stored| stored.email.as_str());
    let is_guarded = let_in::looks_let_in(email) || known.is_some_and(let_in::looks_let_in);
    if is_guarded && known != Some(email) {
        return Err(Failure::bad_request(
            "Addresses of users whom the console lets in are made and changed by the console only",
        ));
    }
    Ok(())
}

fn prepare_for_admin(call: &Call, user: &mut User) -> Result<(), Failure> {
    match user.authority {
        Authority::SysAdmin => {
            (user.tenant_id, user.customer_id) = (TenantId::NULL, None);
            Ok(())
        }
        Authority::TenantAdmin => call.entity::<Tenant>(user.tenant_id.0, Verb::Read).map(drop),
        Authority::CustomerUser => Err(Failure::permission()),
    }
}

fn read(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Outcome<User> {
    Ok(Json(call.entity(id, Verb::Read)?))
}

fn activation_link(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<String, Failure> {
    call.entity::<User>(id, Verb::Write)?;
    let credentials = call.entities().user_credentials(UserId(id))?;
    let token = credentials
        .activate_token
        .filter(|_| !credentials.enabled)
        .ok_or_else(|| Failure::bad_request("User is already activated!"))?;
    Ok(format!("{}/api/noauth/activate?activateToken={token}", call.base_url()))
}

fn remove(call: &Call, id: Uuid, _: NoQuery, (): ()) -> Result<(), Failure> {
    let user: User = call.entity(id, Verb::Delete)?;
    if call.person.id == UserId(id) {
        return Err(Failure::bad_request("Users can't delete themselves!"));
    }
    call.entities().delete_user(UserId(id))?;
    call.deleted(&user);
    Ok(())
}

fn list(call: &Call, (): (), query: PageQuery, (): ()) -> Outcome<Page<User>> {
    let selection = match call.person.authority {
        Authority::SysAdmin => Selection {
            customer: Some(CustomerId::NULL.0),
            ..Selection::default()
        },
        _ => call.own(),
    };
    lists::page(call, &selection, &query.page_link()?)
}

/// As lists to choose from have it.
pub fn short(user: &User) -> Value {
    json!({"id": user.id, "email": user.email, "firstName": user.first_name, "lastName": user.last_name})
}

fn infos(call: &Call, (): (), query: PageQuery, (): ()) -> Outcome<Page<Value>> {
    let page = call.entities().page::<User>(&call.own(), &query.page_link()?)?;
    Ok(Json(page.try_map(|user| Ok::<_, Failure>(short(&user)))?))
}

fn of_tenant(call: &Call, tenant: Uuid, query: PageQuery, (): ()) -> Outcome<Page<User>> {
    call.entity::<Tenant>(tenant, Verb::Read)?;
    let selection = Selection {
        tenant: Some(tenant),
        customer: Some(CustomerId::NULL.0),
        ..Selection::default()
    };
    lists::page(call, &selection, &query.page_link()?)
}

fn of_customer(call: &Call, customer: Uuid, query: PageQuery, (): ()) -> Outcome<Page<User>> {
    call.entity::<Customer>(customer, Verb::Read)?;
    let selection = Selection {
        customer: Some(customer),
        ..call.own()
    };
    lists::page(call, &selection, &query.page_link()?)
}

/// Where the one who asks has reached this node.
pub fn base_url(headers: &HeaderMap, is_tls: bool) -> String {
    let host = headers
        .get("host")
        .and_then(|host| host.to_str().ok())
        .unwrap_or("localhost");
    format!("{}://{host}", if is_tls { "https" } else { "http" })
}
