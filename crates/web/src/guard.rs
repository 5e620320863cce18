//! Authentication and authorization of a request before its endpoint runs.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::RequestExt;
use axum::body::{Body, to_bytes};
use axum::extract::{RawPathParams, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use schemars::{Schema, SchemaGenerator};
use serde_json::Value;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::access_changes::AccessWatch;
use crate::admins::{Admins, RequiredStep};
use crate::api_keys::{ApiKeys, KEY_PREFIX};
use crate::audit::{Audit, AuditEntry, AuditedOperation, SentBody};
use crate::audit_body::{KnownFields, OptionSchemas};
use crate::audit_state::{BoundStateReader, ChangeTarget, differences, shown};
use crate::blocking::block;
use crate::body;
use crate::endpoint::BoundHandler;
use crate::limits::BodyLimits;
use crate::logins::Logins;
use crate::problem::HttpProblem;
use crate::role::{AssignedRole, Namespace, Role};
use crate::scope::Scope;
use crate::sub_protocols::sub_protocols;
use crate::unix_ms;

/// Limit of a request's path and query in the audit log.
const TARGET_CHARACTERS_MAX: usize = 1000;
/// Limit of an answer with a created entity. Its request is smaller, and the entity has few further fields.
const CREATED_BYTES_MAX: usize = 64 << 20;
/// Limit of changes with a recorded state that run or wait for their turn.
const RECORDED_CHANGES_MAX: usize = 32;

/// The login that an endpoint requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredAccess {
    Nothing,
    /// A login, unless metrics are public.
    Metrics,
    /// A login; a one-time password is sufficient, and a second factor that is required may be missing.
    OneTime,
    /// A login; a second factor that is required may be missing.
    SetUp,
    Viewer,
    Operator,
    Admin,
    /// The handler authenticates a user of another kind. The text describes these users in the OpenAPI document.
    OtherUser(&'static str),
}

impl RequiredAccess {
    /// Returns the lowest role with access. `None`: the access does not depend on a role of the console.
    pub fn role(self) -> Option<Role> {
        match self {
            RequiredAccess::Viewer => Some(Role::Viewer),
            RequiredAccess::Operator => Some(Role::Operator),
            RequiredAccess::Admin => Some(Role::Admin),
            RequiredAccess::Nothing
            | RequiredAccess::Metrics
            | RequiredAccess::OneTime
            | RequiredAccess::SetUp
            | RequiredAccess::OtherUser(_) => None,
        }
    }

    /// `false`: operations without a login, or about the login itself.
    fn is_about_server(self) -> bool {
        match self {
            RequiredAccess::Nothing
            | RequiredAccess::OneTime
            | RequiredAccess::SetUp
            | RequiredAccess::OtherUser(_) => false,
            RequiredAccess::Metrics | RequiredAccess::Viewer | RequiredAccess::Operator | RequiredAccess::Admin => true,
        }
    }

    /// Returns whether a key with these scopes can use an operation with this access, as far as its role allows it.
    fn is_in_scopes(self, scopes: &[Scope], scope: Option<Scope>) -> bool {
        !self.is_about_server() || scope.is_some_and(|scope| scopes.contains(&scope))
    }
}

/// The login that an operation requires, and the scope if the login is an API key with scopes.
#[derive(Clone, Copy, Debug)]
pub struct Requirement {
    pub access: RequiredAccess,
    pub scope: Option<Scope>,
    /// The handler limits the operation to the namespace of the login.
    pub is_in_namespace: bool,
}

impl Requirement {
    /// Fails if the role of the login is too low or limited to a namespace, or an API key lacks the scope.
    fn check(self, login: &AuthenticatedUser) -> Result<(), HttpProblem> {
        if let Some(namespace) = &login.namespace
            && self.access.is_about_server()
            && !self.is_in_namespace
        {
            let name = namespace.name();
            return Err(HttpProblem::forbidden(format!(
                "this needs a role for the whole server; the role of this login is limited to the namespace `{name}`"
            )));
        }
        if self.access.role().is_some_and(|role| login.role < role) {
            return Err(HttpProblem::forbidden(match self.access {
                RequiredAccess::Operator => "this needs a login with the role `operator` or `admin`",
                _ => "this needs a login with the role `admin`",
            }));
        }
        let Some(scopes) = &login.scopes else { return Ok(()) };
        match (self.access.is_in_scopes(scopes, self.scope), self.scope) {
            (true, _) => Ok(()),
            (false, Some(scope)) => Err(HttpProblem::forbidden(format!(
                "this needs an API key with the scope `{}`, or without scopes",
                scope.name()
            ))),
            (false, None) => Err(HttpProblem::forbidden("API keys with scopes cannot do this")),
        }
    }
}

/// Address of the client, for limits per address. Unspecified if the client is this server.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub IpAddr);

/// The authenticated user. Endpoints receive it as an extension.
#[derive(Clone, Debug)]
pub struct AuthenticatedUser {
    pub user: Arc<str>,
    pub role: Role,
    /// The role is limited to this namespace.
    pub namespace: Option<Namespace>,
    /// ID of the login. `None`: an API key.
    pub login_id: Option<Arc<str>>,
    /// Scopes of an API key. `None`: all operations of the role.
    pub scopes: Option<Arc<[Scope]>>,
}

impl AuthenticatedUser {
    /// Returns whether a topic belongs to the namespace of the login, if it has one. The same applies to filters.
    pub fn has_topic(&self, topic: &str) -> bool {
        self.namespace
            .as_ref()
            .is_none_or(|namespace| namespace.contains(topic))
    }

    /// Fails if a topic or a filter is outside the namespace of the login.
    pub fn check_topic(&self, topic: &str) -> Result<(), HttpProblem> {
        match &self.namespace {
            Some(namespace) if !namespace.contains(topic) => Err(HttpProblem::forbidden(format!(
                "the role of this login is limited to the namespace `{}`: topics and filters must begin with `{}`",
                namespace.name(),
                namespace.prefix()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the prefix of the topics of the namespace.
    pub fn topic_prefix(&self) -> Option<String> {
        self.namespace.as_ref().map(|namespace| namespace.prefix().to_owned())
    }

    /// Returns the role with its namespace.
    pub fn assigned_role(&self) -> AssignedRole {
        AssignedRole {
            role: self.role,
            namespace: self.namespace.clone(),
        }
    }
}

/// Authenticates console users and API keys, and records their changes in the audit log. Cloning increments reference
/// counts.
#[derive(Clone)]
pub struct Guard {
    pub admins: Arc<Admins>,
    pub api_keys: Arc<ApiKeys>,
    pub logins: Arc<Logins>,
    pub audit: Arc<Audit>,
    /// For the audit log.
    pub option_schemas: OptionSchemas,
    pub metrics: MetricsAccess,
    pub recorded_changes: RecordedChanges,
}

/// Changes whose state the audit log records run one after another, so that the recorded state contains no other
/// change.
#[derive(Clone)]
pub struct RecordedChanges {
    turn: Arc<Mutex<()>>,
    places: Arc<Semaphore>,
}

impl Default for RecordedChanges {
    fn default() -> RecordedChanges {
        RecordedChanges {
            turn: Arc::default(),
            places: Arc::new(Semaphore::new(RECORDED_CHANGES_MAX)),
        }
    }
}

impl RecordedChanges {
    /// Waits until no other change runs. Fails if too many changes wait.
    async fn turn(&self) -> Result<ChangeTurn, HttpProblem> {
        let place = Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| HttpProblem::unavailable("too many changes are waiting for their turn; try again later"))?;
        Ok(ChangeTurn {
            _turn: Arc::clone(&self.turn).lock_owned().await,
            _place: place,
        })
    }
}

/// The turn of a change. The next change runs when it is dropped.
struct ChangeTurn {
    _turn: OwnedMutexGuard<()>,
    _place: OwnedSemaphorePermit,
}

/// Peers that may read metrics and statistics without a login.
#[derive(Clone, Copy, Debug)]
pub struct MetricsAccess {
    /// All peers.
    pub is_public: bool,
    /// Peers on loopback, because the port is on loopback.
    pub is_on_loopback: bool,
}

impl MetricsAccess {
    /// Connections of the server itself do not come from loopback ([`PeerAddress`]).
    pub fn is_open_for(self, peer: IpAddr) -> bool {
        self.is_public || (self.is_on_loopback && peer.to_canonical().is_loopback())
    }
}

/// Checks whether the login of a finished request is still valid, for a connection that outlives the request.
#[derive(Clone)]
pub struct LoginRecheck {
    guard: Guard,
    /// The role with which the connection was opened. A connection may have rights that follow from it, so it ends when
    /// the role is lowered.
    role: Role,
    namespace: Option<Namespace>,
    headers: HeaderMap,
    changes: AccessWatch,
}

impl LoginRecheck {
    pub fn is_valid(&self) -> bool {
        let is_enough = |login: AuthenticatedUser| {
            self.guard.admins.required_step(&login.user).is_none()
                && login.role >= self.role
                && (login.namespace.is_none() || login.namespace == self.namespace)
        };
        self.guard.login(&self.headers).is_ok_and(is_enough)
    }

    /// Returns when users, API keys or logins have changed.
    pub async fn changed(&mut self) {
        self.changes.changed().await;
    }
}

impl Guard {
    /// `audited`: the operation, if the audit log records it.
    pub async fn admit(
        &self,
        required: Requirement,
        audited: Option<&AuditedOperation>,
        mut request: Request,
        handler: BoundHandler,
    ) -> Response {
        let need = required.access;
        let is_open = match need {
            RequiredAccess::OtherUser(_) => return handler(request).await,
            RequiredAccess::Nothing => true,
            RequiredAccess::Metrics => {
                let peer = request.extensions().get::<PeerAddress>();
                peer.is_some_and(|peer| self.metrics.is_open_for(peer.0))
            }
            RequiredAccess::OneTime
            | RequiredAccess::SetUp
            | RequiredAccess::Viewer
            | RequiredAccess::Operator
            | RequiredAccess::Admin => false,
        };
        // Before the check of the login, so that no change after it is missed.
        let changes = AccessWatch::new([self.admins.changes(), self.api_keys.changes(), self.logins.changes()]);
        let login = self.login(request.headers());
        let checked = login.as_ref().map_or(Ok(()), |login| self.check_step(need, login));
        match (login, checked) {
            (Err(problem), _) if !is_open => return problem.into_response(),
            // A client that sends a token expects it to be valid.
            (Err(problem), _) if need == RequiredAccess::Metrics && bearer(request.headers()).is_some() => {
                return problem.into_response();
            }
            (Err(_), _) => {}
            (Ok(_), Err(problem)) if !is_open => return problem.into_response(),
            (Ok(_), Err(_)) => {}
            (Ok(login), Ok(())) => {
                if let Err(problem) = required.check(&login)
                    && !is_open
                {
                    return self.refused(problem, audited, &login, &mut request).await;
                }
                let change = audited.map(|operation| AuditedChange::new(operation, &login, &mut request));
                if request.headers().contains_key(header::UPGRADE) {
                    let recheck = LoginRecheck {
                        guard: self.clone(),
                        role: login.role,
                        namespace: login.namespace.clone(),
                        headers: request.headers().clone(),
                        changes,
                    };
                    request.extensions_mut().insert(recheck);
                }
                request.extensions_mut().insert(login);
                return match (change, audited) {
                    (Some(change), Some(operation)) => {
                        let operation = operation.clone();
                        run_to_completion(self.clone(), (required, operation, change), request, handler).await
                    }
                    _ => handler(request).await,
                };
            }
        }
        handler(request).await
    }

    /// Returns the answer to a request of a login with too few rights. Refused changes are in the audit log.
    async fn refused(
        &self,
        problem: HttpProblem,
        audited: Option<&AuditedOperation>,
        login: &AuthenticatedUser,
        request: &mut Request,
    ) -> Response {
        let refused = problem.into_response();
        if let Some(operation) = audited {
            let change = AuditedChange::new(operation, login, request);
            change.record(&self.audit, refused.status()).await;
        }
        refused
    }

    /// Waits for the turn of a change whose state the audit log records. Returns its request with the whole body, and
    /// with the login as it is after the wait.
    async fn turn(&self, required: Requirement, request: Request) -> Result<(ChangeTurn, Request), HttpProblem> {
        // Before the turn: a slow client must not delay the changes of others.
        let limits = BodyLimits::of(request.extensions());
        let (parts, unread) = request.into_parts();
        let bytes = body::read(unread, limits).await?;
        let turn = self.recorded_changes.turn().await?;
        let login = self.sufficient_login(required, &parts.headers)?;
        let mut request = Request::from_parts(parts, Body::from(bytes));
        request.extensions_mut().insert(login);
        Ok((turn, request))
    }

    /// Checks a login again, which may have ended or lost its role during a wait.
    fn sufficient_login(&self, required: Requirement, headers: &HeaderMap) -> Result<AuthenticatedUser, HttpProblem> {
        let login = self.login(headers)?;
        self.check_step(required.access, &login)?;
        required.check(&login)?;
        Ok(login)
    }

    /// Fails if the user must do something else first.
    fn check_step(&self, need: RequiredAccess, login: &AuthenticatedUser) -> Result<(), HttpProblem> {
        match (self.admins.required_step(&login.user), need) {
            (None, _) | (Some(_), RequiredAccess::OneTime) => Ok(()),
            (Some(RequiredStep::Password), _) => Err(HttpProblem::password_change_required()),
            (Some(RequiredStep::SecondFactor), RequiredAccess::SetUp) => Ok(()),
            (Some(RequiredStep::SecondFactor), _) => Err(HttpProblem::totp_set_up_required()),
        }
    }

    /// Looks the role up for each request, so that a change applies at once.
    fn login(&self, headers: &HeaderMap) -> Result<AuthenticatedUser, HttpProblem> {
        let token = bearer(headers).ok_or_else(|| {
            HttpProblem::unauthorized("send `Authorization: Bearer <token>`; POST /api/v1/login returns a token")
        })?;
        if ApiKeys::is_key(token) {
            let found = self.api_keys.find(token, unix_ms(SystemTime::now()));
            let key =
                found.ok_or_else(|| HttpProblem::unauthorized("the API key is unknown, disabled or has expired"))?;
            let of_issuer = self
                .admins
                .role(&key.issuer)
                .ok_or_else(|| HttpProblem::unauthorized("the user who issued the API key was deleted"))?;
            let role = key.role().limited_by(&of_issuer).ok_or_else(|| {
                HttpProblem::unauthorized("the user who issued the API key has a role in another namespace")
            })?;
            return Ok(AuthenticatedUser {
                user: format!("{KEY_PREFIX}{}", key.name).into(),
                role: role.role,
                namespace: role.namespace,
                login_id: None,
                scopes: key.scopes.map(Arc::from),
            });
        }
        let found = self.logins.find(token, Instant::now(), unix_ms(SystemTime::now()));
        let login = found.ok_or_else(|| HttpProblem::unauthorized("the token is unknown or has expired"))?;
        let role = login.provider_role.or_else(|| self.admins.role(&login.user));
        let role = role.ok_or_else(|| HttpProblem::unauthorized("this user was deleted"))?;
        Ok(AuthenticatedUser {
            role: role.role,
            namespace: role.namespace,
            user: login.user,
            login_id: Some(login.id),
            scopes: None,
        })
    }

    /// Returns the fields of a body or a query that the audit log may show.
    pub fn known_fields(&self, schema: Option<fn(&mut SchemaGenerator) -> Schema>) -> KnownFields {
        KnownFields::of(schema, self.option_schemas)
    }
}

/// Completes a change and its audit log entry even if the client disconnects. If it disconnects before the turn of the
/// change, the change is not made.
async fn run_to_completion(
    guard: Guard,
    (required, operation, change): (Requirement, AuditedOperation, AuditedChange),
    mut request: Request,
    handler: BoundHandler,
) -> Response {
    let mut turn = None;
    if operation.reader.is_some() {
        match guard.turn(required, request).await {
            Ok((own, checked)) => {
                turn = Some(own);
                request = checked;
            }
            Err(problem) => {
                let refused = problem.into_response();
                change.record(&guard.audit, refused.status()).await;
                return refused;
            }
        }
    }
    let work = tokio::spawn(async move {
        let (response, change) = match operation.reader.clone() {
            None => with_created(&operation, handler(request).await, change).await,
            Some(read) => with_states(read, change, request, handler).await,
        };
        drop(turn);
        change.record(&guard.audit, response.status()).await;
        response
    });
    let done = work.await;
    done.unwrap_or_else(|_| HttpProblem::internal("the request failed unexpectedly").into_response())
}

/// Runs the handler, and reads the state before and after.
async fn with_states(
    read: BoundStateReader,
    mut change: AuditedChange,
    mut request: Request,
    handler: BoundHandler,
) -> (Response, AuditedChange) {
    let parameters = request.extract_parts::<RawPathParams>().await;
    let parameters = parameters.map_or_else(
        |_| Vec::new(),
        |all| {
            all.iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect()
        },
    );
    let target = Arc::new(ChangeTarget::new(parameters));
    let state = || {
        let (read, target) = (read.clone(), target.clone());
        async move { block(move || read(&target)).await.ok().flatten() }
    };
    let before = state().await;
    let response = handler(request).await;
    if response.status().is_success() {
        (change.entry.before, change.entry.after) = differences(before, state().await);
    }
    (response, change)
}

/// Records the answer to a request that has created something.
async fn with_created(
    operation: &AuditedOperation,
    response: Response,
    mut change: AuditedChange,
) -> (Response, AuditedChange) {
    if response.status() != StatusCode::CREATED {
        return (response, change);
    }
    let (parts, body) = response.into_parts();
    match to_bytes(body, CREATED_BYTES_MAX).await {
        Ok(bytes) => {
            if let Ok(mut created) = serde_json::from_slice::<Value>(&bytes) {
                operation.body.retain(&mut created);
                change.entry.after = Some(shown(created));
            }
            (Response::from_parts(parts, Body::from(bytes)), change)
        }
        Err(_) => {
            let lost = HttpProblem::internal("the entity was created, but the answer is too long");
            (lost.into_response(), change)
        }
    }
}

/// A change that will be written to the audit log.
struct AuditedChange {
    entry: AuditEntry,
    sent: SentBody,
}

impl AuditedChange {
    fn new(operation: &AuditedOperation, login: &AuthenticatedUser, request: &mut Request) -> AuditedChange {
        let sent = SentBody::new(operation.body.clone());
        let address = request.extensions().get::<PeerAddress>().map(|peer| peer.0.to_string());
        let target = request.uri().path_and_query().map_or("", |target| target.as_str());
        let entry = AuditEntry {
            number: 0,
            at_unix_ms: unix_ms(SystemTime::now()),
            user: login.user.to_string(),
            namespace: login.namespace.clone().map(String::from),
            address: address.unwrap_or_default(),
            operation: operation.id.to_owned(),
            method: request.method().to_string(),
            path: operation
                .query
                .redact_target(target)
                .chars()
                .take(TARGET_CHARACTERS_MAX)
                .collect(),
            body: None,
            before: None,
            after: None,
            status: 0,
        };
        request.extensions_mut().insert(sent.clone());
        AuditedChange { entry, sent }
    }

    /// The entry is on disk when this returns.
    async fn record(mut self, audit: &Arc<Audit>, status: StatusCode) {
        self.entry.body = self.sent.take();
        self.entry.status = status.as_u16();
        let audit = audit.clone();
        // `write` reports failures in the server log and as an alarm.
        let _ = block(move || audit.write(self.entry)).await;
    }
}

/// Returns the token of the header. Web pages that open a WebSocket cannot set headers; they offer it as a
/// sub-protocol.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let Some(header) = headers.get(header::AUTHORIZATION) else {
        return sub_protocols(headers).find_map(|offered| offered.strip_prefix("bearer."));
    };
    let (scheme, token) = header.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_changes_are_bounded() {
        let changes = RecordedChanges::default();
        let first = changes.turn().await.ok();
        assert!(first.is_some());
        let wait = |_| {
            let changes = changes.clone();
            tokio::spawn(async move { changes.turn().await.is_ok() })
        };
        let waiting: Vec<_> = (1..RECORDED_CHANGES_MAX).map(wait).collect();
        while changes.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(changes.turn().await.err().map(|problem| problem.status), Some(503));
        drop(first);
        for change in waiting {
            assert!(change.await.unwrap());
        }
        assert!(changes.turn().await.is_ok());
    }

    #[tokio::test]
    async fn cancelled_change_leaves_its_place() {
        let changes = RecordedChanges::default();
        let first = changes.turn().await.ok();
        let other = changes.clone();
        let waiting = tokio::spawn(async move { other.turn().await.is_ok() });
        while changes.places.available_permits() > RECORDED_CHANGES_MAX - 2 {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        assert_eq!(changes.places.available_permits(), RECORDED_CHANGES_MAX - 1);
        drop(first);
        assert!(changes.turn().await.is_ok());
    }

    #[test]
    fn role_in_a_namespace_reaches_only_marked_operations() {
        let login = AuthenticatedUser {
            user: "ada".into(),
            role: Role::Admin,
            namespace: Some("acme".parse().unwrap()),
            login_id: None,
            scopes: None,
        };
        let is_refused = |access, is_in_namespace| {
            let requirement = Requirement {
                access,
                scope: None,
                is_in_namespace,
            };
            requirement.check(&login).is_err()
        };
        for access in [
            RequiredAccess::Metrics,
            RequiredAccess::Viewer,
            RequiredAccess::Operator,
            RequiredAccess::Admin,
        ] {
            assert!(is_refused(access, false) && !is_refused(access, true), "{access:?}");
        }
        assert!(!is_refused(RequiredAccess::OneTime, false) && !is_refused(RequiredAccess::SetUp, false));
        assert!(login.check_topic("acme/x").is_ok() && login.check_topic("acme-x/x").is_err());
    }

    #[test]
    fn operations_without_a_scope_are_refused() {
        let own = [Scope::Connections];
        for need in [RequiredAccess::Metrics, RequiredAccess::Viewer, RequiredAccess::Admin] {
            assert!(need.is_in_scopes(&own, Some(Scope::Connections)));
            assert!(!need.is_in_scopes(&own, Some(Scope::Publish)));
            assert!(!need.is_in_scopes(&own, None));
            assert!(!need.is_in_scopes(&[], Some(Scope::Connections)));
        }
        assert!(RequiredAccess::OneTime.is_in_scopes(&own, None));
    }
}
