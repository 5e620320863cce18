//! Login, logout and password changes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use auth::{LoginAttempt, LoginKind, LoginLimiter, PASSWORD_CHARACTERS_MIN, Password};
use axum::extract::{FromRef, State};
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::{error, info, warn};
use web::PasswordHashing;
use web::admins::{AcceptedCode, Admins, AdminsError, RequiredStep, is_of_app};
use web::api_keys::ApiKeys;
use web::audit::{Audit, AuditEntry};
use web::body;
use web::guard::{AuthenticatedUser, PeerAddress, RequiredAccess, bearer};
use web::guarded_login::GuardedLogin;
use web::limits::ApiCounters;
use web::logins::{Logins, NewLogin, is_provider_user};
use web::problem::HttpProblem;
use web::role::AssignedRole;
use web::unix_ms;
use zeroize::{Zeroize, Zeroizing};

use super::console_users::ConsoleUsers;
use super::totp::not_written;
use crate::app::{App, Endpoint};
use crate::config::TokenLifetime;

const BODY_MAX: usize = 4 * 1024;

/// Credentials of a user.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginRequest {
    user: String,
    password: PasswordInput,
    /// Code of the authenticator app, or a recovery code, of a user with a second factor.
    #[schemars(extend("writeOnly" = true))]
    code: Option<PasswordInput>,
}

/// A login. The token is sent as `Authorization: Bearer <token>`.
#[derive(Serialize, JsonSchema)]
pub struct LoginAnswer {
    pub token: String,
    pub expires_at_unix_ms: u64,
    pub user: String,
    pub role: AssignedRole,
    /// The password is the generated one of the first start. It is stored in the data directory until it is changed.
    pub has_first_password: bool,
    /// Another user generated the password: only `change_password` is allowed until it is changed.
    pub must_change_password: bool,
    /// The server requires a second factor, which the user has not set up yet: nothing else is allowed until then.
    pub must_set_up_totp: bool,
}

/// The user of a request.
#[derive(Serialize, JsonSchema)]
pub struct OwnLogin {
    /// The console user, `oidc:` and a user of the identity provider, or `key:` and the name of the API key.
    pub user: String,
    pub role: AssignedRole,
    /// Another user generated the password: only `change_password` is allowed until it is changed.
    pub must_change_password: bool,
    /// The server requires a second factor, which the user has not set up yet: nothing else is allowed until then.
    pub must_set_up_totp: bool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordChange {
    current_password: PasswordInput,
    /// At least 8 characters, not a common password, and not the user name.
    #[schemars(length(min = 8))]
    new_password: PasswordInput,
}

/// The answer to a change of the password.
#[derive(Serialize, JsonSchema)]
pub struct PasswordChanged {
    /// Names of the API keys that the user issued. They are still valid: delete those that you do not know.
    pub api_keys: Vec<String>,
}

/// Text that is never printed, and is wiped when it is dropped.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(rename = "Secret")]
pub struct PasswordInput(String);

impl PasswordInput {
    /// Rejects short and common passwords.
    pub fn check_strength(&self, field: &'static str) -> Result<(), HttpProblem> {
        auth::check_new_password(&self.0).map_err(|weak| {
            let expected = format!("at least {PASSWORD_CHARACTERS_MIN} characters that are not a common password");
            HttpProblem::invalid(field, weak.to_string()).expected(expected)
        })
    }

    pub fn read<R>(&self, read: impl FnOnce(&str) -> R) -> R {
        read(&self.0)
    }

    pub fn to_password(&self) -> Password {
        Password::new(self.0.as_bytes())
    }
}

impl Drop for PasswordInput {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::post("/api/v1/login", "login", RequiredAccess::Nothing, login)
            .tag("Login")
            .describe(
                "Log in",
                "Returns a bearer token. A user with a second factor also sends a code: without it, the answer is 401 with the type \
                 `urn:tidewire:problem:totp-required`. Failed attempts are limited per address: ten, then one every six seconds.",
            )
            .takes::<LoginRequest>(BODY_MAX)
            .fails(StatusCode::UNAUTHORIZED)
            .fails(StatusCode::TOO_MANY_REQUESTS)
            .returns::<LoginAnswer>("Logged in."),
        Endpoint::get("/api/v1/login", "own_login", RequiredAccess::OneTime, own_login)
            .tag("Login")
            .describe("Your user and role", "The user or API key of the request, and its role now.")
            .returns::<OwnLogin>("The user and the role."),
        Endpoint::post("/api/v1/logout", "logout", RequiredAccess::OneTime, logout)
            .tag("Login")
            .describe("Log out", "The token stops working.")
            .returns_nothing("Logged out."),
        Endpoint::post("/api/v1/password", "change_password", RequiredAccess::OneTime, change_password)
            .tag("Login")
            .describe(
                "Change your own password",
                "Ends all logins of this user, including this one. Limited like logins. The new password must differ from the old one. \
                 API keys stay valid: the answer lists those that the user issued.",
            )
            .takes::<PasswordChange>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::TOO_MANY_REQUESTS)
            .returns::<PasswordChanged>("Changed."),
    ]
}

/// Checks passwords and codes of console users, and limits and counts failed logins.
pub(super) struct PasswordCheck {
    pub(super) admins: Arc<Admins>,
    hashing: Arc<PasswordHashing>,
    limiter: Arc<LoginLimiter>,
    counters: Arc<ApiCounters>,
}

impl FromRef<App> for PasswordCheck {
    fn from_ref(app: &App) -> PasswordCheck {
        PasswordCheck {
            admins: app.part(),
            hashing: app.part(),
            limiter: app.part(),
            counters: app.part(),
        }
    }
}

/// Issues logins, and records them.
pub struct LoginIssuer {
    logins: Arc<Logins>,
    audit: Arc<Audit>,
    counters: Arc<ApiCounters>,
    lifetime: Duration,
}

impl FromRef<App> for LoginIssuer {
    fn from_ref(app: &App) -> LoginIssuer {
        let TokenLifetime(lifetime) = app.part();
        LoginIssuer {
            logins: app.part(),
            audit: app.part(),
            counters: app.part(),
            lifetime,
        }
    }
}

/// An authenticated user.
pub struct NewUserLogin<'a> {
    pub user: &'a str,
    pub role: &'a AssignedRole,
    /// Path of the request, for the audit log.
    pub path: &'static str,
    /// For the audit log.
    pub body: Option<Value>,
}

pub struct IssuedLogin {
    pub token: Zeroizing<String>,
    pub expires_at_unix_ms: u64,
}

impl LoginIssuer {
    /// The entry of the audit log is written when this returns.
    pub async fn issue(&self, address: IpAddr, new: NewUserLogin<'_>) -> Result<IssuedLogin, HttpProblem> {
        let token = self.logins.issue(NewLogin {
            user: new.user,
            provider_role: is_provider_user(new.user).then_some(new.role),
            address,
            now: Instant::now(),
            now_unix_ms: unix_ms(SystemTime::now()),
            lifetime: self.lifetime,
        });
        let token = token.ok_or_else(|| HttpProblem::internal("the operating system returned no random bytes"))?;
        ApiCounters::add(&self.counters.logins);
        info!(user = %new.user, %address, "API login succeeded");
        let entry = AuditEntry {
            number: 0,
            at_unix_ms: unix_ms(SystemTime::now()),
            user: new.user.to_owned(),
            namespace: new.role.namespace.clone().map(String::from),
            address: address.to_string(),
            operation: "login".into(),
            method: "POST".into(),
            path: new.path.into(),
            body: new.body,
            before: None,
            after: None,
            status: StatusCode::OK.as_u16(),
        };
        let audit = self.audit.clone();
        web::block(move || audit.write(entry)).await?;
        Ok(IssuedLogin {
            token,
            expires_at_unix_ms: unix_ms(SystemTime::now() + self.lifetime),
        })
    }
}

async fn login(
    State(passwords): State<PasswordCheck>,
    State(issuer): State<LoginIssuer>,
    Extension(peer): Extension<PeerAddress>,
    body::Json(request): body::Json<LoginRequest>,
) -> Result<Json<LoginAnswer>, HttpProblem> {
    let role = passwords.verify(peer, &request.user, &request.password).await?;
    let role = role.ok_or_else(|| HttpProblem::unauthorized("wrong user name or password"))?;
    let mut body = None;
    if passwords.admins.has_totp(&request.user) {
        let code = request.code.ok_or_else(HttpProblem::totp_required)?;
        let accepted = passwords.verify_code(peer, &request.user, code).await?;
        let second_factor = match accepted.ok_or_else(HttpProblem::wrong_totp_code)? {
            AcceptedCode::Totp => "code",
            AcceptedCode::Recovery => "recovery code",
        };
        body = Some(json!({ "second_factor": second_factor }));
    }
    let new = NewUserLogin {
        user: &request.user,
        role: &role,
        path: "/api/v1/login",
        body,
    };
    let issued = issuer.issue(peer.0, new).await?;
    let step = passwords.admins.required_step(&request.user);
    Ok(Json(LoginAnswer {
        token: issued.token.to_string(),
        expires_at_unix_ms: issued.expires_at_unix_ms,
        must_change_password: step == Some(RequiredStep::Password),
        must_set_up_totp: step == Some(RequiredStep::SecondFactor),
        has_first_password: passwords.admins.has_first_password(&request.user),
        user: request.user,
        role,
    }))
}

impl PasswordCheck {
    /// Takes as long for an unknown user as for a known one. Counts and logs failures.
    async fn verify(
        &self,
        peer: PeerAddress,
        user: &str,
        password: &PasswordInput,
    ) -> Result<Option<AssignedRole>, HttpProblem> {
        let login = GuardedLogin {
            limiter: self.limiter.clone(),
            kind: LoginKind::ConsoleUser,
            address: peer.0,
            user_name: user.to_owned(),
            password: password.to_password(),
        };
        let limited = |wait| self.limited(wait);
        login.admit().map_err(limited)?;
        let role = self.hashing.run({
            let admins = self.admins.clone();
            move || login.check(|name, password| Ok::<_, HttpProblem>(admins.verify(name, password)))
        });
        let role = role.await?.map_err(limited)??;
        if role.is_none() {
            ApiCounters::add(&self.counters.logins_failed);
            // The name may be a password typed into the wrong field. It is logged only if it is a user's name.
            let is_known = self.admins.role(user).is_some();
            info!(user = if is_known { user } else { "unknown" }, address = %peer.0, "API login failed");
        }
        Ok(role)
    }

    /// Checks the password of a logged-in user.
    pub(super) async fn require(
        &self,
        peer: PeerAddress,
        user: &str,
        password: &PasswordInput,
    ) -> Result<(), HttpProblem> {
        match self.verify(peer, user, password).await? {
            Some(_) => Ok(()),
            None => Err(HttpProblem::invalid("password", "wrong password")),
        }
    }

    /// Checks a code of a user with a second factor, after the password, and uses it up. A right code does not exempt
    /// the client from later limits: the next one is another secret.
    pub(super) async fn verify_code(
        &self,
        peer: PeerAddress,
        user: &str,
        code: PasswordInput,
    ) -> Result<Option<AcceptedCode>, HttpProblem> {
        let (admins, limiter, name) = (self.admins.clone(), self.limiter.clone(), user.to_owned());
        let checked = web::block(move || {
            let attempt = LoginAttempt {
                kind: match is_of_app(&code.0) {
                    true => LoginKind::SecondFactor,
                    false => LoginKind::RecoveryCode,
                },
                address: peer.0,
                user_name: Some(&name),
                secret: code.0.as_bytes(),
            };
            limiter.admit(&attempt, Instant::now())?;
            let accepted = admins.use_code(&name, &code.0, SystemTime::now());
            if matches!(accepted, Ok(None)) {
                let now = Instant::now();
                limiter.record_failure(&attempt, now);
                if limiter.is_code_limit_reached(&attempt, now) {
                    // The sender of codes knows the password.
                    warn!(user = name, address = %peer.0, "too many wrong codes of a second factor; the password may be known to others");
                }
            }
            Ok(accepted)
        });
        let accepted = checked.await?.map_err(|wait| self.limited(wait))?;
        let accepted = accepted.map_err(|error| not_written(&error))?;
        match accepted {
            Some(AcceptedCode::Recovery) => {
                let left = self.admins.recovery_codes_left(user);
                info!(user, address = %peer.0, left, "recovery code used");
            }
            Some(AcceptedCode::Totp) => {}
            None => {
                ApiCounters::add(&self.counters.logins_failed);
                info!(user, address = %peer.0, "wrong code of a second factor");
            }
        }
        Ok(accepted)
    }

    fn limited(&self, wait: Duration) -> HttpProblem {
        ApiCounters::add(&self.counters.logins_limited);
        HttpProblem::too_many_failures("too many failed logins from this address", wait)
    }
}

async fn own_login(
    State(admins): State<Arc<Admins>>,
    Extension(login): Extension<AuthenticatedUser>,
) -> Json<OwnLogin> {
    let step = admins.required_step(&login.user);
    Json(OwnLogin {
        must_change_password: step == Some(RequiredStep::Password),
        must_set_up_totp: step == Some(RequiredStep::SecondFactor),
        user: login.user.to_string(),
        role: login.assigned_role(),
    })
}

async fn logout(State(logins): State<Arc<Logins>>, headers: HeaderMap) -> StatusCode {
    if let Some(token) = bearer(&headers) {
        logins.revoke(token);
    }
    StatusCode::NO_CONTENT
}

async fn change_password(
    State(passwords): State<PasswordCheck>,
    State(users): State<ConsoleUsers>,
    State(logins): State<Arc<Logins>>,
    State(keys): State<Arc<ApiKeys>>,
    Extension(peer): Extension<PeerAddress>,
    Extension(login): Extension<AuthenticatedUser>,
    body::Json(change): body::Json<PasswordChange>,
) -> Result<Json<PasswordChanged>, HttpProblem> {
    if is_provider_user(&login.user) {
        return Err(HttpProblem::forbidden(
            "the identity provider manages the password of this user",
        ));
    }
    change.new_password.check_strength("new_password")?;
    if change.new_password.0 == change.current_password.0 {
        return Err(HttpProblem::invalid(
            "new_password",
            "must differ from the current password",
        ));
    }
    if change.new_password.0.to_lowercase() == login.user.to_lowercase() {
        return Err(HttpProblem::invalid("new_password", "must differ from the user name"));
    }
    if passwords
        .verify(peer, &login.user, &change.current_password)
        .await?
        .is_none()
    {
        return Err(HttpProblem::invalid("current_password", "wrong password"));
    }
    let (user, password) = (login.user.clone(), change.new_password.to_password());
    let changed = users
        .change(move |admins| admins.set_password(&user, &password))
        .await?;
    changed.map_err(|problem| {
        error!(error = %problem, "writing a new admin password failed");
        match problem {
            AdminsError::Password(detail) => HttpProblem::invalid("new_password", detail.to_string()),
            _ => HttpProblem::internal("cannot write the new password to disk"),
        }
    })?;
    logins.revoke_user(&login.user);
    info!(user = %login.user, address = %peer.0, "password of an API user changed");
    Ok(Json(PasswordChanged {
        api_keys: keys.names_of(&login.user),
    }))
}
