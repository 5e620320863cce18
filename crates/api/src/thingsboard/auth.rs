//! Logging in, going on with a refresh token, logging out, passwords; and the guard of all other operations.

use std::time::{Instant, SystemTime};

use auth::Password;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use platform::ids::{CustomerId, TenantId};
use platform::model::{Authority, User};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use zeroize::Zeroize;

use super::call::{Call, Person, now_ms};
use super::failure::{Code, Failure};
use super::operation::{Body, FromBody, NoQuery, Outcome, get, post, query_of};
use super::shares::Admitted;
use super::world::{TokenPair, World};
use crate::api_keys::ApiKeys;
use crate::app::{ApiCounters, App, unix_ms};
use crate::body;
use crate::endpoint::Endpoint;
use crate::guard::{BodyLimit, Need, Who};
use crate::server::PeerAddress;
use std::sync::Arc;

const TAG: &str = "Login";
const BODY_MAX: usize = 16 * 1024;
/// As ThingsBoard's default policy.
const PASSWORD_CHARACTERS_MIN: usize = 6;

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::post("/api/auth/login", "login", login)
            .tag(TAG)
            .says(
                "Log in",
                "Gives an access token, good for 9,000 s, and a refresh token, good for seven days. Administrators of the node \
                 log in with their name and are system administrators. Failed attempts are limited per address.",
            )
            .needs(Need::NoPerson)
            .takes_limited_json(BODY_MAX)
            .returns_json("The tokens: `token` and `refreshToken`."),
        Endpoint::post("/api/auth/token", "refresh_token", refresh)
            .tag(TAG)
            .says("Get new tokens", "For a refresh token that has not expired.")
            .needs(Need::NoPerson)
            .takes_limited_json(BODY_MAX)
            .returns_json("The tokens: `token` and `refreshToken`."),
        get("/api/auth/user", "get_user", Who::ANY, user)
            .tag(TAG)
            .says("Who am I", "The user of the token.")
            .returns_json("The user."),
        post("/api/auth/logout", "logout", Who::ANY, logout)
            .tag(TAG)
            .says("Log out", "All tokens of this session are worth nothing afterwards.")
            .returns_empty("Logged out."),
        Endpoint::post("/api/auth/changePassword", "change_password", change_password)
            .tag(TAG)
            .says(
                "Change one's own password",
                "All tokens given before are worth nothing afterwards; the answer has new ones.",
            )
            .needs(Need::Person(Who::ANY))
            .takes_limited_json(BODY_MAX)
            .returns_json("The tokens: `token` and `refreshToken`."),
        Endpoint::post("/api/noauth/activate", "activate_user", activate)
            .tag(TAG)
            .says(
                "Set the first password",
                "By the token of an activation link. No mail is sent, whatever `sendActivationMail` says.",
            )
            .needs(Need::NoPerson)
            .query::<ActivationQuery>()
            .takes_limited_json(BODY_MAX)
            .returns_json("The tokens of the user, who is logged in: `token` and `refreshToken`."),
        Endpoint::get("/api/noauth/userPasswordPolicy", "password_policy", policy)
            .tag(TAG)
            .says("What passwords have to be", "Only their length is asked for.")
            .needs(Need::NoPerson)
            .returns_json("The policy."),
    ]
}

/// Text that is wiped when it goes, and that nothing prints.
#[derive(Deserialize)]
#[serde(transparent)]
struct Secret(String);

impl Secret {
    fn to_password(&self) -> Password {
        Password::new(self.0.as_bytes())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

#[derive(Deserialize)]
struct LoginBody {
    username: String,
    password: Secret,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RefreshBody {
    refresh_token: Secret,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChangeBody {
    current_password: Secret,
    new_password: Secret,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ActivateBody {
    activate_token: String,
    password: Secret,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ActivationQuery {
    /// Whether a mail should say that the account is active.
    #[allow(dead_code, reason = "part of the interface; there is no mail")]
    send_activation_mail: Option<bool>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tokens {
    token: String,
    refresh_token: String,
    scope: Option<String>,
}

impl From<TokenPair> for Tokens {
    fn from(pair: TokenPair) -> Tokens {
        Tokens {
            token: pair.token,
            refresh_token: pair.refresh_token,
            scope: None,
        }
    }
}

/// Before any operation of a person.
pub async fn admit(app: &App, who: Who, mut request: Request, next: Next) -> Response {
    match person(app, request.headers()).await {
        Err(failure) => return failure.into_response(),
        Ok(person) if !who.has(person.authority) => return Failure::permission().into_response(),
        Ok(person) if person.screen.is_some() && !who.has_screens() => return Failure::permission().into_response(),
        Ok(person) => _ = request.extensions_mut().insert(person),
    }
    let admitted = request.extensions().get().map(|person| share(app, person, &request));
    match admitted.transpose() {
        Ok(_admitted) => next.run(request).await,
        Err(failure) => failure.into_response(),
    }
}

/// What the person's tenant may take with this request.
fn share(app: &App, person: &Person, request: &Request) -> Result<Option<Admitted>, Failure> {
    let world = world(app)?;
    let limits = world.devices().entities().directory().limits(person.tenant).cloned();
    if let Some(limits) = limits {
        world.shares().check_rates(person, &limits, now_ms())?;
    }
    // It waits for a device, and takes nothing.
    if super::is_waiting(request.uri().path()) {
        return Ok(None);
    }
    world.shares().admit(person.tenant, app.config().limits.requests_max)
}

async fn person(app: &App, headers: &HeaderMap) -> Result<Person, Failure> {
    let header = headers.get("x-authorization").or_else(|| headers.get("authorization"));
    let header = header
        .and_then(|value| value.to_str().ok())
        .ok_or_else(Failure::unauthorized)?;
    let (scheme, token) = header.split_once(' ').ok_or_else(Failure::unauthorized)?;
    let is_key = scheme.eq_ignore_ascii_case("apikey");
    if !is_key && !scheme.eq_ignore_ascii_case("bearer") {
        return Err(Failure::unauthorized());
    }
    person_of(app, token.trim().to_owned(), is_key).await
}

pub async fn person_of(app: &App, token: String, is_key: bool) -> Result<Person, Failure> {
    let world = world(app)?;
    let screen = ApiKeys::is_key(&token).then(|| app.api_keys().find_screen(&token, unix_ms(SystemTime::now())));
    if let Some(screen) = screen {
        let (key, dashboard) = screen.ok_or_else(Failure::unauthorized)?;
        return app.block(move || world.person_of_screen(&key, dashboard)).await?;
    }
    let looked_up = app.block({
        let app = app.clone();
        move || match is_key {
            true => world.person_of_key(app.admins(), &token, now_ms()),
            false => world.person_of_token(app.admins(), &token, now_ms()),
        }
    });
    looked_up.await?
}

fn world(app: &App) -> Result<Arc<World>, Failure> {
    app.world().cloned().ok_or_else(Failure::not_found)
}

async fn login(State(app): State<App>, request: Request) -> Result<Json<Tokens>, Failure> {
    let peer = request.extensions().get::<PeerAddress>().copied();
    let LoginBody { username, password } = read(&app, request).await?;
    let person = verify(&app, peer, username, password.to_password()).await?;
    let person = person.ok_or_else(|| Failure::new(Code::Authentication, "Invalid username or password"))?;
    ApiCounters::add(&app.counters().logins);
    tokens(&app, person).await
}

async fn read<T: serde::de::DeserializeOwned + Send + 'static>(app: &App, request: Request) -> Result<T, Failure> {
    let BodyLimit(limit) = request.extensions().get().copied().unwrap_or_default();
    let bytes = body::read(request.into_body(), limit, app).await?;
    Ok(Body::<T>::from_body(&bytes)?.0)
}

/// Takes as long for users that do not exist; attempts of one address are limited.
async fn verify(
    app: &App,
    peer: Option<PeerAddress>,
    name: String,
    password: Password,
) -> Result<Option<Person>, Failure> {
    let address = peer.map(|peer| peer.0);
    if let Some(Err(wait)) = address.map(|address| app.login_limiter().admit(address, Instant::now())) {
        ApiCounters::add(&app.counters().logins_limited);
        let message = "Too many failed logins from this address";
        return Err(Failure::new(Code::TooManyRequests, message).retry_after(wait.as_secs() + 1));
    }
    let world = world(app)?;
    let checked = app.hash({
        let app = app.clone();
        move || world.login(app.admins(), &name, password)
    });
    let person = checked.await??;
    match (&person, address) {
        (Some(_), Some(address)) => app.login_limiter().refund(address),
        (None, _) => ApiCounters::add(&app.counters().logins_failed),
        _ => {}
    }
    Ok(person)
}

/// Of a new session.
async fn tokens(app: &App, mut person: Person) -> Result<Json<Tokens>, Failure> {
    let world = world(app)?;
    let issued = app.block({
        let app = app.clone();
        move || {
            if person.session.is_empty() {
                person.session = world.platform().entities().new_id(now_ms()).to_string();
            }
            world.issue(app.admins(), &person, now_ms())
        }
    });
    Ok(Json(issued.await??.into()))
}

async fn refresh(State(app): State<App>, request: Request) -> Result<Json<Tokens>, Failure> {
    let body: RefreshBody = read(&app, request).await?;
    let world = world(&app)?;
    let found = app.block({
        let app = app.clone();
        move || world.person_of_refresh_token(app.admins(), &body.refresh_token.0, now_ms())
    });
    let person = found.await??;
    tokens(&app, person).await
}

fn user(call: &Call, (): (), _: NoQuery, (): ()) -> Outcome<Value> {
    Ok(Json(user_json(call)?))
}

/// An administrator of the node is shown as a user without an address.
fn user_json(call: &Call) -> Result<Value, Failure> {
    if !call.person.is_node_admin() {
        let user: User = call.entities().get(call.person.id.0)?;
        return Ok(serde_json::to_value(user).unwrap_or_default());
    }
    let (tenant, customer) = (TenantId::NULL, CustomerId::NULL);
    Ok(json!({
        "id": call.person.id, "createdTime": 0, "tenantId": tenant, "customerId": customer, "email": call.person.name,
        "name": call.person.name, "authority": Authority::SysAdmin, "firstName": null, "lastName": null, "phone": null,
        "additionalInfo": null,
    }))
}

fn logout(call: &Call, (): (), _: NoQuery, (): ()) -> Result<(), Failure> {
    call.world.log_out(&call.person.session, call.now_ms);
    Ok(())
}

async fn change_password(State(app): State<App>, mut request: Request) -> Result<Json<Tokens>, Failure> {
    let peer = request.extensions().get::<PeerAddress>().copied();
    let person = request
        .extensions_mut()
        .remove::<Person>()
        .ok_or_else(Failure::unauthorized)?;
    let body: ChangeBody = read(&app, request).await?;
    if person.is_node_admin() {
        let message = "The password of an administrator of the node is changed with POST /api/v1/password";
        return Err(Failure::bad_request(message));
    }
    check_password(&body.new_password)?;
    let known = verify(&app, peer, person.name.clone(), body.current_password.to_password()).await?;
    if known.is_none() {
        return Err(Failure::bad_request("Current password doesn't match!"));
    }
    if body.current_password.0 == body.new_password.0 {
        return Err(Failure::bad_request("New password should be different from existing!"));
    }
    set_password(&app, person, body.new_password.to_password()).await
}

/// Changes the stamp of tokens, so that old ones are worth nothing.
async fn set_password(app: &App, person: Person, password: Password) -> Result<Json<Tokens>, Failure> {
    let (world, id) = (world(app)?, person.id);
    app.hash(move || world.platform().entities().set_password(id, &password, now_ms()))
        .await??;
    tokens(app, person).await
}

fn check_password(password: &Secret) -> Result<(), Failure> {
    if password.0.chars().count() < PASSWORD_CHARACTERS_MIN {
        let message = format!("Password must be {PASSWORD_CHARACTERS_MIN} or more characters in length.");
        return Err(Failure::bad_request(message));
    }
    Ok(())
}

async fn activate(State(app): State<App>, request: Request) -> Result<Json<Tokens>, Failure> {
    query_of::<ActivationQuery>(request.uri())?;
    let body: ActivateBody = read(&app, request).await?;
    check_password(&body.password)?;
    let (world, password) = (world(&app)?, body.password.to_password());
    let activated = app.hash(move || {
        let entities = world.platform().entities();
        entities.activate_user(&body.activate_token, &password, now_ms())
    });
    let user = activated.await??;
    tokens(&app, Person::of(&user)).await
}

async fn policy() -> Json<Value> {
    Json(
        json!({"minimumLength": PASSWORD_CHARACTERS_MIN, "maximumLength": 72, "minimumUppercaseLetters": null,
        "minimumLowercaseLetters": null, "minimumDigits": null, "minimumSpecialCharacters": null,
        "allowWhitespaces": true, "forceUserToResetPasswordIfNotValid": false}),
    )
}
