//! The authentication providers and the sources of access rules: their order, state and figures, tests of logins, and
//! checks of their options.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, Request, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tracing::info;
use web::audit::SentBody;
use web::body;
use web::guard::{AuthenticatedUser, PeerAddress, RequiredAccess};
use web::problem::HttpProblem;
use web::role::Role;
use web::unix_ms;

use super::access_test::REASON_FOR_VIEWERS;
use super::configuration::{changeable, problem};
use super::login::PasswordInput;
use crate::access_admin::{
    AccessAdmin, AccessOrder, AccessSystem, AuthProviderFigures, LoginTest, LoginTestError, LoginTestOutcome,
    LoginTestStep, LoginVerdict, TestedLogin,
};
use crate::app::Endpoint;
use crate::concurrency::SourceQuestions;
use crate::config_admin::ConfigAdmin;

const BODY_MAX: usize = 64 * 1024;
/// Longer credentials do not fit into an MQTT packet field.
const CREDENTIAL_BYTES_MAX: usize = 65_535;

/// Authentication providers and sources of access rules, each in the order in which they are asked.
#[derive(Serialize, JsonSchema)]
pub struct AccessProviders {
    /// Clients that may connect without a user name: `never`, `loopback` or `always`. Decided before all providers.
    pub anonymous: String,
    /// Devices of the platform are found by their credentials before all providers.
    pub has_devices: bool,
    /// `access.providers`, and then providers that only listeners name.
    pub providers: Vec<AccessProvider>,
    /// Listeners with an order of their own.
    pub listeners: Vec<ListenerProviders>,
    /// `access.sources`.
    pub sources: Vec<AccessProvider>,
}

/// The providers of a listener.
#[derive(Serialize, JsonSchema)]
pub struct ListenerProviders {
    /// Name of the listener, such as `tcp.default`.
    pub listener: String,
    pub providers: Vec<String>,
}

/// An authentication provider, or a source of access rules.
#[derive(Serialize, JsonSchema)]
pub struct AccessProvider {
    /// Kind, which is the name in `access.providers` or `access.sources`.
    pub kind: String,
    /// The system that it asks, without credentials, or the file that it reads. `null`: this server decides.
    pub address: Option<String>,
    pub state: ProviderState,
    /// The last failure since the start of the server, also if it works again.
    pub last_failure: Option<ProviderFailure>,
    /// `null`: it asks no other system for single clients.
    pub figures: Option<ProviderFigures>,
}

#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProviderState {
    /// This server decides.
    Local,
    /// It was not asked since the start of the server.
    NotAsked,
    /// It answered the last question.
    Working,
    /// The last question failed.
    Failing,
}

#[derive(Serialize, JsonSchema)]
pub struct ProviderFailure {
    pub at_unix_ms: u64,
    /// Only for operators and administrators: the error of another system can contain values of clients.
    pub reason: String,
}

/// Figures since the start of the server.
#[derive(Serialize, JsonSchema)]
pub struct ProviderFigures {
    /// Questions that were answered, failed or timed out.
    pub questions: u64,
    pub allowed: u64,
    pub denied: u64,
    /// Answers that leave the decision to the next one.
    pub ignored: u64,
    pub failed: u64,
    pub timed_out: u64,
    /// Clients that were denied because too many questions waited.
    pub overloaded: u64,
    /// Clients that got a cached answer.
    pub cache_hits: u64,
    /// Clients that got the answer to an equal question of another client.
    pub shared: u64,
    /// Cached answers now. May include some that have expired.
    pub cached_answers: u64,
    /// Maximum number of cached answers. 0: this provider does not cache.
    pub cache_size: u64,
    pub waiting: u64,
    pub in_progress: u64,
    /// Mean time of a question.
    pub mean_ms: Option<f64>,
    /// Half of the questions took at most this time. Rounded up.
    pub p50_ms: Option<u64>,
    /// 99 of 100 questions took at most this time. Rounded up.
    pub p99_ms: Option<u64>,
    /// Time limit of a question.
    pub timeout_ms: u64,
    /// Decision about a client if the other system fails: `deny`, `ignore` (the next one decides), or `allow`, which
    /// admits the client without a check.
    pub on_failure: String,
}

/// Credentials to test.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginToTest {
    #[serde(default)]
    client_id: String,
    /// Absent: the client sends none.
    #[serde(default)]
    user_name: Option<String>,
    /// Absent: the client sends none.
    #[serde(default)]
    password: Option<PasswordInput>,
    /// IP address of the client. Default: 127.0.0.1.
    #[serde(default)]
    address: Option<IpAddr>,
    /// Listener whose providers are asked, such as `tcp.default`. Absent: those of `access.providers`.
    #[serde(default)]
    listener: Option<String>,
}

/// The decision about a login, and how it came about.
#[derive(Serialize, JsonSchema)]
pub struct LoginTestResult {
    pub is_allowed: bool,
    pub reason: String,
    /// The verdicts in their order.
    pub steps: Vec<LoginStep>,
    /// Rights and attributes of the client. `null`: it is rejected.
    pub login: Option<LoginDetails>,
}

/// The verdict of a provider, or of a check before or after the providers.
#[derive(Serialize, JsonSchema)]
pub struct LoginStep {
    /// Name in `access.providers`, or `bans`, `devices`, `anonymous`, `unknown_users` or `access_rules`.
    pub provider: String,
    pub verdict: TestedVerdict,
    pub reason: String,
    /// Where the answer comes from: `asked`, `cache`, `shared` or `overloaded`. `null`: this server decides.
    pub origin: Option<String>,
    pub took_ms: Option<f64>,
}

#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TestedVerdict {
    /// The provider admits the client.
    Right,
    /// The user exists, and the password is wrong.
    Wrong,
    /// The provider rejects the client for another reason.
    Rejected,
    /// The provider does not know the credentials.
    Unknown,
    /// The other system does not answer, or its answer is not understood.
    Failed,
    /// The provider checks credentials of another kind.
    NotApplicable,
    /// A provider before it has decided.
    NotAsked,
}

#[derive(Serialize, JsonSchema)]
pub struct LoginDetails {
    /// Access rules do not apply.
    pub is_superuser: bool,
    /// User name of the session, if it differs from that of the credentials.
    pub user_name: Option<String>,
    pub attributes: Vec<LoginAttribute>,
    pub groups: Vec<String>,
    /// Number of access rules that the login has brought.
    pub rules: usize,
    /// When the client will be disconnected.
    pub expires_at_unix_ms: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
pub struct LoginAttribute {
    pub name: String,
    pub value: String,
}

/// Options as TOML.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessOptions {
    /// Tables below `access`, as in a configuration file.
    #[schemars(length(max = 65536))]
    // They contain passwords, so the audit log must not show them.
    #[schemars(extend("writeOnly" = true))]
    options: String,
}

#[derive(Serialize, JsonSchema)]
pub struct CheckedAccessOptions {
    /// Options of the text that have no effect, because the environment or the command line sets another value.
    pub overridden: Vec<OverriddenOption>,
}

#[derive(Serialize, JsonSchema)]
pub struct OverriddenOption {
    pub key: String,
    /// Origin of the value that is in effect.
    pub origin: String,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/access/providers", "access_providers", RequiredAccess::Viewer, list)
            .tag("Access")
            .describe(
                "Authentication providers and sources of access rules",
                "In the order in which they are asked, with their state, their last failure and figures since the start of the server. Contains no secrets. Viewers do not see why a question has failed.",
            )
            .returns::<AccessProviders>("The providers and sources."),
        Endpoint::post("/api/v1/access/test-login", "test_login", RequiredAccess::Admin, test_login)
            .tag("Access")
            .describe(
                "Test the login of an MQTT client",
                "Asks the providers as for a client that connects, and returns the verdict of each. A wrong password counts as a failed login of your address, with the limits of `access.max_login_failures`. The audit log records the test without the password. Does not test client certificates, SCRAM and the limits of connections.",
            )
            .takes::<LoginToTest>(2 * BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::TOO_MANY_REQUESTS)
            .returns::<LoginTestResult>("The decision and the verdict of each provider."),
        Endpoint::post("/api/v1/access/check", "check_access_options", RequiredAccess::Admin, check)
            .tag("Access")
            .describe(
                "Check options of providers and sources",
                "Checks the configuration that results from adding these options to the present one, as `tidewire check` does. Accepts `access.providers`, `access.sources` and the tables of providers and sources. Asks no other system, and changes nothing. The audit log records the check without the options.",
            )
            .takes::<AccessOptions>(2 * BODY_MAX)
            .fails(StatusCode::CONFLICT)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<CheckedAccessOptions>("The options are valid."),
    ]
}

async fn list(
    State(access): State<Arc<dyn AccessAdmin>>,
    Extension(login): Extension<AuthenticatedUser>,
) -> Result<Json<AccessProviders>, HttpProblem> {
    let read = move || (access.access_order(), access.auth_providers(), access.access_sources());
    let (order, of_providers, of_sources) = web::block(read).await?;
    let AccessOrder {
        providers,
        listeners,
        sources,
        anonymous,
        has_devices,
    } = order;
    let shown = |systems: Vec<AccessSystem>, figures: &[AuthProviderFigures]| {
        let shown = systems.into_iter().map(|mut system| {
            if let Some(failure) = system.last_failure.as_mut().filter(|_| login.role == Role::Viewer) {
                failure.reason = REASON_FOR_VIEWERS.to_owned();
            }
            let figures = figures.iter().find(|one| one.name == system.name);
            provider(system, figures)
        });
        shown.collect()
    };
    Ok(Json(AccessProviders {
        anonymous: anonymous.into(),
        has_devices,
        providers: shown(providers, &of_providers),
        listeners: listeners
            .into_iter()
            .map(|(listener, providers)| ListenerProviders {
                listener,
                providers: providers.into_iter().map(str::to_owned).collect(),
            })
            .collect(),
        sources: shown(sources, &of_sources),
    }))
}

fn provider(system: AccessSystem, figures: Option<&AuthProviderFigures>) -> AccessProvider {
    let figures = figures.map(shown_figures);
    let was_asked = figures.as_ref().is_none_or(|figures| figures.questions > 0);
    AccessProvider {
        kind: system.name.into(),
        state: match system.is_failing {
            None => ProviderState::Local,
            Some(true) => ProviderState::Failing,
            Some(false) if was_asked => ProviderState::Working,
            Some(false) => ProviderState::NotAsked,
        },
        address: system.address,
        last_failure: system.last_failure.map(|failure| ProviderFailure {
            at_unix_ms: unix_ms(failure.at),
            reason: failure.reason,
        }),
        figures,
    }
}

fn shown_figures(figures: &AuthProviderFigures) -> ProviderFigures {
    let of = |name: &str| {
        let found = figures.results.iter().find(|(result, _)| *result == name);
        found.map_or(0, |(_, count)| *count)
    };
    let asked = ["allowed", "denied", "ignored", "failed", "timed_out"];
    let questions: u64 = asked.into_iter().map(of).sum();
    let ms = |time: Duration| time.as_millis() as u64;
    ProviderFigures {
        questions,
        allowed: of("allowed"),
        denied: of("denied"),
        ignored: of("ignored"),
        failed: of("failed"),
        timed_out: of("timed_out"),
        overloaded: of("overloaded"),
        cache_hits: of("cached"),
        shared: of("shared"),
        cached_answers: figures.cached_answers,
        cache_size: figures.cache_size,
        waiting: figures.waiting,
        in_progress: figures.in_progress,
        mean_ms: (questions > 0).then(|| milliseconds(figures.answer_time) / questions as f64),
        p50_ms: figures.answer_time_p50.map(ms),
        p99_ms: figures.answer_time_p99.map(ms),
        timeout_ms: ms(figures.timeout),
        on_failure: figures.on_failure.into(),
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Stores the body for the audit log itself: the user name may be a token.
async fn test_login(
    State(access): State<Arc<dyn AccessAdmin>>,
    State(questions): State<SourceQuestions>,
    Extension(peer): Extension<PeerAddress>,
    Extension(login): Extension<AuthenticatedUser>,
    mut request: Request,
) -> Result<Json<LoginTestResult>, HttpProblem> {
    let sent = request.extensions_mut().remove::<SentBody>();
    let body::Json(test) = body::Json::<LoginToTest>::from_request(request, &()).await?;
    let test = checked(test, peer.0)?;
    let user_name = test.user_name.as_deref().map(|name| access.audited_user_name(name));
    if let Some(sent) = sent {
        let shown = json!({
            "client_id": test.client_id, "user_name": user_name, "address": test.address, "listener": test.listener,
        });
        sent.store(shown.to_string().as_bytes());
    }
    let permit = questions.admit(login.role)?;
    let ask = move || {
        let _permit = permit;
        access.test_login(&test)
    };
    let outcome = web::block(ask).await?.map_err(|error| match error {
        LoginTestError::LockedOut(wait) => {
            let detail = "too many failed logins from your address, including tests with a wrong password";
            HttpProblem::too_many_failures(detail, wait)
        }
        LoginTestError::UnknownListener => HttpProblem::invalid("listener", "no enabled listener has this name")
            .expected("a name such as `tcp.default`"),
    })?;
    info!(user = %login.user, is_allowed = outcome.is_allowed, "MQTT login tested");
    Ok(Json(result(outcome)))
}

fn checked(test: LoginToTest, tester: IpAddr) -> Result<LoginTest, HttpProblem> {
    let password = test.password.map(|password| password.to_password());
    let lengths = [
        ("client_id", test.client_id.len()),
        ("user_name", test.user_name.as_ref().map_or(0, String::len)),
        (
            "password",
            password.as_ref().map_or(0, |password| password.expose().len()),
        ),
    ];
    if let Some((field, _)) = lengths.into_iter().find(|(_, bytes)| *bytes > CREDENTIAL_BYTES_MAX) {
        let expected = format!("at most {CREDENTIAL_BYTES_MAX} bytes");
        return Err(HttpProblem::invalid(field, "too long").expected(expected));
    }
    Ok(LoginTest {
        client_id: test.client_id,
        user_name: test.user_name,
        password,
        address: test.address.unwrap_or(IpAddr::from([127, 0, 0, 1])),
        tester,
        listener: test.listener,
    })
}

fn result(outcome: LoginTestOutcome) -> LoginTestResult {
    LoginTestResult {
        is_allowed: outcome.is_allowed,
        reason: outcome.reason,
        steps: outcome.steps.into_iter().map(step).collect(),
        login: outcome.login.map(details),
    }
}

fn step(step: LoginTestStep) -> LoginStep {
    LoginStep {
        provider: step.provider.into(),
        verdict: match step.verdict {
            LoginVerdict::Right => TestedVerdict::Right,
            LoginVerdict::Wrong => TestedVerdict::Wrong,
            LoginVerdict::Rejected => TestedVerdict::Rejected,
            LoginVerdict::Unknown => TestedVerdict::Unknown,
            LoginVerdict::Failed => TestedVerdict::Failed,
            LoginVerdict::NotApplicable => TestedVerdict::NotApplicable,
            LoginVerdict::NotAsked => TestedVerdict::NotAsked,
        },
        reason: step.reason,
        origin: step.origin.map(str::to_owned),
        took_ms: step.time.map(milliseconds),
    }
}

fn details(login: TestedLogin) -> LoginDetails {
    let attributes = login.attributes.into_iter();
    LoginDetails {
        is_superuser: login.is_superuser,
        user_name: login.user_name,
        attributes: attributes.map(|(name, value)| LoginAttribute { name, value }).collect(),
        groups: login.groups,
        rules: login.rules,
        expires_at_unix_ms: login.expires_at_unix_ms,
    }
}

async fn check(
    State(admin): State<Option<Arc<dyn ConfigAdmin>>>,
    body::Json(request): body::Json<AccessOptions>,
) -> Result<Json<CheckedAccessOptions>, HttpProblem> {
    if request.options.len() > BODY_MAX {
        let expected = format!("at most {BODY_MAX} bytes");
        return Err(HttpProblem::invalid("options", "too long").expected(expected));
    }
    let admin = changeable(admin)?;
    let check = move || admin.check_access_options(&request.options);
    let overridden = web::block(check).await?.map_err(|error| problem("options", error))?;
    let overridden = overridden.into_iter();
    Ok(Json(CheckedAccessOptions {
        overridden: overridden
            .map(|(key, origin)| OverriddenOption { key, origin })
            .collect(),
    }))
}
