//! Login, token refresh, logout and passwords.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use auth::{LoginKind, LoginLimiter, PASSWORD_CHARACTERS_MIN, Password, WeakPassword};
use axum::Json;
use axum::extract::{FromRef, Request, State};
use axum::http::Method;
use platform::ids::{CustomerId, TenantId};
use platform::model::{Authority, User};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use web::PasswordHashing;
use web::admins::Admins;
use web::body;
use web::guard::{PeerAddress, RequiredAccess};
use web::guarded_login::GuardedLogin;
use web::limits::{ApiCounters, BodyLimits};
use zeroize::Zeroize;

use super::admission::for_users;
use super::api_keys::without_hash;
use super::authorities::Authorities;
use super::call::{ApiCall, now_ms};
use super::failure::{ThingsboardError, ThingsboardErrorCode};
use super::operation::{FromBody, HandlerResult, JsonBody, NoQuery, get, post, query_of};
use super::platform_access::{PlatformAccess, TokenPair, VerifiedLogin};
use super::principal::Principal;
use crate::services::{Endpoint, ServiceState};

const TAG: &str = "Login";
const BODY_MAX: usize = 16 * 1024;

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::post("/api/auth/login", "login", RequiredAccess::Nothing, login)
            .tag(TAG)
            .describe(
                "Log in",
                "Returns an access token, valid for 9,000 s, and a refresh token, valid for seven days. Administrators of the node \
                 log in with their name and are system administrators. Failed attempts are limited per address.",
            )
            .takes_limited_json(BODY_MAX)
            .returns_json("The tokens: `token` and `refreshToken`."),
        Endpoint::post("/api/auth/token", "refresh_token", RequiredAccess::Nothing, refresh)
            .tag(TAG)
            .describe(
                "Get new tokens",
                "With a valid refresh token, which becomes invalid. If a refresh token is used twice, the login ends.",
            )
            .takes_limited_json(BODY_MAX)
            .returns_json("The tokens: `token` and `refreshToken`."),
        get("/api/auth/user", "get_user", Authorities::ANY, user)
            .tag(TAG)
            .describe("Current user", "The user of the token.")
            .returns_json("The user."),
        post("/api/auth/logout", "logout", Authorities::ANY, logout)
            .tag(TAG)
            .describe("Log out", "All tokens of this session become invalid.")
            .returns_empty("Logged out."),
        for_users(Method::POST, "/api/auth/changePassword", "change_password", Authorities::ANY, change_password)
            .tag(TAG)
            .describe(
                "Change your own password",
                "All existing tokens become invalid; the answer contains new ones. API keys stay valid: `apiKeys` lists the keys of \
                 the user and those that the user issued, without their values. Delete the keys that you do not know.",
            )
            .takes_limited_json(BODY_MAX)
            .returns_json("The tokens: `token` and `refreshToken`; and `apiKeys`."),
        Endpoint::post("/api/noauth/activate", "activate_user", RequiredAccess::Nothing, activate)
            .tag(TAG)
            .describe(
                "Set the first password",
                "With the token of an activation link. No mail is sent, whatever `sendActivationMail` is.",
            )
            .query::<ActivationQuery>()
            .takes_limited_json(BODY_MAX)
            .returns_json("The user is logged in. The tokens: `token` and `refreshToken`."),
        Endpoint::get("/api/noauth/userPasswordPolicy", "password_policy", RequiredAccess::Nothing, policy)
            .tag(TAG)
            .describe(
                "Password policy",
                "Besides the length, common passwords such as 12345678 are rejected.",
            )
            .returns_json("The policy."),
    ]
}

/// Text that is never printed, and is wiped when it is dropped.
#[derive(Deserialize)]
#[serde(transparent)]
struct SecretInput(String);

impl SecretInput {
    fn to_password(&self) -> Password {
        Password::new(self.0.as_bytes())
    }
}

impl Drop for SecretInput {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

#[derive(Deserialize)]
struct LoginBody {
    username: String,
    password: SecretInput,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RefreshBody {
    refresh_token: SecretInput,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ChangeBody {
    current_password: SecretInput,
    new_password: SecretInput,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ActivateBody {
    activate_token: String,
    password: SecretInput,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ActivationQuery {
    /// Whether to send a mail after the activation.
    #[allow(dead_code, reason = "part of the interface; there is no mail")]
    send_activation_mail: Option<bool>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tokens {
    token: String,
    refresh_token: String,
    scope: Option<String>,
    /// After a change of the password.
    #[serde(skip_serializing_if = "Option::is_none")]
    api_keys: Option<Vec<Value>>,
}

impl From<TokenPair> for Tokens {
    fn from(pair: TokenPair) -> Tokens {
        Tokens {
            token: pair.token,
            refresh_token: pair.refresh_token,
            scope: None,
            api_keys: None,
        }
    }
}

/// Checks passwords of users and issues tokens. Limits and counts failed logins.
struct UserLogins {
    platform_access: Arc<PlatformAccess>,
    admins: Arc<Admins>,
    hashing: Arc<PasswordHashing>,
    limiter: Arc<LoginLimiter>,
    counters: Arc<ApiCounters>,
}

impl FromRef<ServiceState> for UserLogins {
    fn from_ref(state: &ServiceState) -> UserLogins {
        UserLogins {
            platform_access: state.part(),
            admins: state.part(),
            hashing: state.part(),
            limiter: state.part(),
            counters: state.part(),
        }
    }
}

impl UserLogins {
    /// Takes as long for an unknown user as for a known one. Limits the attempts of an address.
    async fn verify(
        &self,
        peer: Option<PeerAddress>,
        name: String,
        password: Password,
    ) -> Result<Option<VerifiedLogin>, ThingsboardError> {
        let access = self.platform_access.clone();
        let login = GuardedLogin {
            limiter: self.limiter.clone(),
            kind: LoginKind::PlatformUser,
            // A request without an address shares the limit of the unspecified address.
            address: peer.map_or(Ipv6Addr::UNSPECIFIED.into(), |peer| peer.0),
            user_name: name,
            password,
        };
        let limited = |wait: Duration| {
            ApiCounters::add(&self.counters.logins_limited);
            let message = "Too many failed logins from this address; try again later";
            ThingsboardError::new(ThingsboardErrorCode::TooManyRequests, message).retry_after(wait.as_secs() + 1)
        };
        login.admit().map_err(limited)?;
        let checked = self.hashing.run({
            let admins = self.admins.clone();
            move || login.check(|name, password| access.login(&admins, name, password))
        });
        let principal = checked.await?.map_err(limited)??;
        if principal.is_none() {
            ApiCounters::add(&self.counters.logins_failed);
        }
        Ok(principal)
    }

    /// Returns the tokens of a new session.
    async fn tokens(&self, login: VerifiedLogin) -> Result<Json<Tokens>, ThingsboardError> {
        let access = self.platform_access.clone();
        let issued = web::block({
            let admins = self.admins.clone();
            move || access.issue_after_login(&admins, login, now_ms())
        });
        Ok(Json(issued.await??.into()))
    }

    /// Also changes the stamp of tokens, which makes existing tokens invalid.
    async fn set_password(
        &self,
        mut principal: Principal,
        password: Password,
    ) -> Result<Json<Tokens>, ThingsboardError> {
        let (access, id) = (self.platform_access.clone(), principal.id);
        let keys = self.hashing.run(move || {
            let entities = access.platform().entities();
            entities.set_password(id, &password, now_ms())?;
            entities.api_keys_of(id)
        });
        let keys = keys.await??;
        principal.login_at = None;
        let login = VerifiedLogin { principal, stamp: None };
        let Json(tokens) = self.tokens(login).await?;
        Ok(Json(Tokens {
            api_keys: Some(keys.iter().map(without_hash).collect()),
            ..tokens
        }))
    }
}

async fn login(State(logins): State<UserLogins>, request: Request) -> Result<Json<Tokens>, ThingsboardError> {
    let peer = request.extensions().get::<PeerAddress>().copied();
    let LoginBody { username, password } = read(request).await?;
    let principal = logins.verify(peer, username, password.to_password()).await?;
    let principal = principal
        .ok_or_else(|| ThingsboardError::new(ThingsboardErrorCode::Authentication, "Invalid username or password"))?;
    ApiCounters::add(&logins.counters.logins);
    logins.tokens(principal).await
}

async fn read<T: serde::de::DeserializeOwned + Send + 'static>(request: Request) -> Result<T, ThingsboardError> {
    let limits = BodyLimits::of(request.extensions());
    let bytes = body::read(request.into_body(), limits).await?;
    Ok(JsonBody::<T>::from_body(&bytes)?.0)
}

async fn refresh(
    State(access): State<Arc<PlatformAccess>>,
    State(admins): State<Arc<Admins>>,
    request: Request,
) -> Result<Json<Tokens>, ThingsboardError> {
    let body: RefreshBody = read(request).await?;
    let issued = web::block(move || access.refresh(&admins, &body.refresh_token.0, now_ms()));
    Ok(Json(issued.await??.into()))
}

fn user(call: &ApiCall, (): (), _: NoQuery, (): ()) -> HandlerResult<Value> {
    Ok(Json(user_json(call)?))
}

/// An administrator of the node is represented as a user without an e-mail address.
fn user_json(call: &ApiCall) -> Result<Value, ThingsboardError> {
    if !call.principal.is_node_admin() {
        let user: User = call.entities().get(call.principal.id.0)?;
        return Ok(serde_json::to_value(user).unwrap_or_default());
    }
    let (tenant, customer) = (TenantId::NULL, CustomerId::NULL);
    Ok(json!({
        "id": call.principal.id, "createdTime": 0, "tenantId": tenant, "customerId": customer, "email": call.principal.name,
        "name": call.principal.name, "authority": Authority::SysAdmin, "firstName": null, "lastName": null, "phone": null,
        "additionalInfo": null,
    }))
}

fn logout(call: &ApiCall, (): (), _: NoQuery, (): ()) -> Result<(), ThingsboardError> {
    call.platform_access.log_out(&call.principal.session, call.now_ms);
    Ok(())
}

async fn change_password(
    State(logins): State<UserLogins>,
    mut request: Request,
) -> Result<Json<Tokens>, ThingsboardError> {
    let peer = request.extensions().get::<PeerAddress>().copied();
    let principal = request
        .extensions_mut()
        .remove::<Principal>()
        .ok_or_else(ThingsboardError::unauthorized)?;
    let body: ChangeBody = read(request).await?;
    if principal.is_node_admin() {
        let message = "Change the password of an administrator of the node with POST /api/v1/password";
        return Err(ThingsboardError::bad_request(message));
    }
    check_password(&body.new_password)?;
    let current_password = body.current_password.to_password();
    let known = logins.verify(peer, principal.name.clone(), current_password).await?;
    if known.is_none() {
        return Err(ThingsboardError::bad_request("Current password doesn't match!"));
    }
    if body.current_password.0 == body.new_password.0 {
        return Err(ThingsboardError::bad_request(
            "New password should be different from existing!",
        ));
    }
    logins.set_password(principal, body.new_password.to_password()).await
}

fn check_password(password: &SecretInput) -> Result<(), ThingsboardError> {
    auth::check_new_password(&password.0).map_err(|weak| {
        ThingsboardError::bad_request(match weak {
            // The text of ThingsBoard.
            WeakPassword::Short => format!("Password must be {PASSWORD_CHARACTERS_MIN} or more characters in length."),
            WeakPassword::Common => weak.to_string(),
        })
    })
}

async fn activate(State(logins): State<UserLogins>, request: Request) -> Result<Json<Tokens>, ThingsboardError> {
    query_of::<ActivationQuery>(request.uri())?;
    let body: ActivateBody = read(request).await?;
    check_password(&body.password)?;
    let (access, password) = (logins.platform_access.clone(), body.password.to_password());
    let max_age_ms = access.options().activation_link_max_age_ms();
    let activated = logins.hashing.run(move || {
        let entities = access.platform().entities();
        entities.activate_user(&body.activate_token, &password, max_age_ms, now_ms())
    });
    let user = activated.await??;
    logins
        .tokens(VerifiedLogin {
            principal: Principal::of(&user),
            stamp: None,
        })
        .await
}

async fn policy() -> Json<Value> {
    Json(
        json!({"minimumLength": PASSWORD_CHARACTERS_MIN, "maximumLength": 72, "minimumUppercaseLetters": null,
        "minimumLowercaseLetters": null, "minimumDigits": null, "minimumSpecialCharacters": null,
        "allowWhitespaces": true, "forceUserToResetPasswordIfNotValid": false}),
    )
}
