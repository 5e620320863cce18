//! An endpoint declares a route, the role that it needs and its OpenAPI description together, so that they cannot
//! differ. [`Routes`] makes a router of endpoints.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::audit::{self, AuditedOperation};
use crate::audit_state::{BoundStateReader, ChangeTarget, StateReader};
use crate::guard::{Guard, RequiredAccess, Requirement};
use crate::limits::BodyLimits;
use crate::scope::Scope;

/// Limit of a body that may be large, such as a dashboard or a rule chain.
const JSON_BYTES_MAX: usize = 16 << 20;

/// Audited operations besides the changes of administrators: downloads that contain secrets, and changes that all users
/// may make.
const ALSO_AUDITED: [&str; 7] = [
    "change_password",
    "confirm_totp",
    "download_backup",
    "end_own_login",
    "end_other_logins",
    "renew_recovery_codes",
    "turn_off_totp",
];

/// Makes the schema of a type, or a reference to it.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// `S` is the state of the handler.
pub struct Endpoint<S> {
    operation: Operation,
    body_bytes_max: usize,
    handler: AnyHandler<S>,
    /// Reads the state that a change replaces, for the audit log.
    state_reader: Option<StateReader<S>>,
}

/// A handler behind a trait object. The router and its layers are compiled once for this type, not once per handler:
/// that halves the time to compile the endpoints.
type AnyHandler<S> = Box<dyn Fn(Request, S) -> Handling + Send + Sync>;

type Handling = Pin<Box<dyn Future<Output = Response> + Send>>;

/// A handler with its state.
pub type BoundHandler = Arc<dyn Fn(Request) -> Handling + Send + Sync>;

fn any_handler<S: 'static, H: Handler<T, S>, T: 'static>(handler: H) -> AnyHandler<S> {
    Box::new(move |request, state| Box::pin(handler.clone().call(request, state)))
}

/// The description of an endpoint.
pub struct Operation {
    pub method: Method,
    /// In the syntax of the router and of OpenAPI: `/api/v1/clients/{client_id}`. `{*topic}` also matches slashes.
    pub path: &'static str,
    pub need: RequiredAccess,
    /// Scope that an API key with scopes needs. `None`: such a key cannot use the operation.
    pub scope: Option<Scope>,
    /// Logins with a role in a namespace can use the operation: the handler limits it to their namespace.
    pub is_in_namespace: bool,
    pub id: &'static str,
    pub tag: &'static str,
    pub summary: &'static str,
    pub description: &'static str,
    pub path_parameters: Vec<(&'static str, &'static str)>,
    pub query: Option<SchemaOf>,
    pub body: Option<SchemaOf>,
    /// `If-Match` may contain the ETag of the expected version.
    pub takes_if_match: bool,
    /// Answers have an `ETag`.
    pub has_etag: bool,
    pub answers: Vec<DocumentedResponse>,
    pub failures: Vec<StatusCode>,
    /// The audit log records the state before and after a change.
    pub records_state: bool,
}

impl Operation {
    /// Whether the operation changes the state of the server for others than the user of the login.
    pub fn is_change(&self) -> bool {
        self.method != Method::GET && matches!(self.need, RequiredAccess::Operator | RequiredAccess::Admin)
    }

    pub fn is_audited(&self) -> bool {
        (self.is_change() && audit::is_change(self.id)) || ALSO_AUDITED.contains(&self.id)
    }
}

pub struct DocumentedResponse {
    pub status: StatusCode,
    pub description: &'static str,
    pub content: Option<ResponseContent>,
}

pub enum ResponseContent {
    Json(SchemaOf),
    Text(&'static str),
}

impl<S: Clone + Send + Sync + 'static> Endpoint<S> {
    pub fn get<H: Handler<T, S>, T: 'static>(
        path: &'static str,
        id: &'static str,
        need: RequiredAccess,
        handler: H,
    ) -> Endpoint<S> {
        Endpoint::of(Method::GET, path, id, need, handler)
    }

    pub fn post<H: Handler<T, S>, T: 'static>(
        path: &'static str,
        id: &'static str,
        need: RequiredAccess,
        handler: H,
    ) -> Endpoint<S> {
        Endpoint::of(Method::POST, path, id, need, handler)
    }

    pub fn put<H: Handler<T, S>, T: 'static>(
        path: &'static str,
        id: &'static str,
        need: RequiredAccess,
        handler: H,
    ) -> Endpoint<S> {
        Endpoint::of(Method::PUT, path, id, need, handler)
    }

    pub fn delete<H: Handler<T, S>, T: 'static>(
        path: &'static str,
        id: &'static str,
        need: RequiredAccess,
        handler: H,
    ) -> Endpoint<S> {
        Endpoint::of(Method::DELETE, path, id, need, handler)
    }

    /// `need` is not optional, so no endpoint can be without a role.
    pub fn of<H: Handler<T, S>, T: 'static>(
        method: Method,
        path: &'static str,
        id: &'static str,
        need: RequiredAccess,
        handler: H,
    ) -> Endpoint<S> {
        Endpoint {
            operation: Operation {
                method,
                path,
                need,
                scope: None,
                is_in_namespace: false,
                id,
                tag: "",
                summary: "",
                description: "",
                path_parameters: Vec::new(),
                query: None,
                body: None,
                takes_if_match: false,
                has_etag: false,
                answers: Vec::new(),
                failures: Vec::new(),
                records_state: false,
            },
            body_bytes_max: BodyLimits::BYTES_DEFAULT,
            handler: any_handler(handler),
            state_reader: None,
        }
    }

    pub fn tag(mut self, tag: &'static str) -> Endpoint<S> {
        self.operation.tag = tag;
        self
    }

    pub fn scope(mut self, scope: Scope) -> Endpoint<S> {
        self.operation.scope = Some(scope);
        self
    }

    /// Admits logins with a role in a namespace. The handler must limit the operation to their namespace.
    pub fn in_namespace(mut self) -> Endpoint<S> {
        self.operation.is_in_namespace = true;
        self
    }

    pub fn describe(mut self, summary: &'static str, description: &'static str) -> Endpoint<S> {
        self.operation.summary = summary;
        self.operation.description = description;
        self
    }

    /// The audit log records what `read` returns before and after the change. `read` runs on a blocking thread.
    pub fn changes(mut self, read: StateReader<S>) -> Endpoint<S> {
        self.operation.records_state = true;
        self.state_reader = Some(read);
        self
    }

    pub fn path_parameter(mut self, name: &'static str, description: &'static str) -> Endpoint<S> {
        self.operation.path_parameters.push((name, description));
        self
    }

    /// Query parameters are the properties of `T`.
    pub fn query<T: JsonSchema>(mut self) -> Endpoint<S> {
        self.operation.query = Some(|generator| T::json_schema(generator));
        self
    }

    pub fn takes<T: JsonSchema>(mut self, limit_bytes: usize) -> Endpoint<S> {
        self.operation.body = Some(|generator| generator.subschema_for::<T>());
        self.body_bytes_max = limit_bytes;
        self
    }

    /// The handler checks `IfMatch`.
    pub fn takes_if_match(mut self) -> Endpoint<S> {
        self.operation.takes_if_match = true;
        self.fails(StatusCode::PRECONDITION_FAILED)
    }

    /// The handler answers with `Tagged`.
    pub fn has_etag(mut self) -> Endpoint<S> {
        self.operation.has_etag = true;
        self
    }

    /// Any JSON. Only the description explains its structure.
    pub fn takes_json(self) -> Endpoint<S> {
        self.takes_limited_json(JSON_BYTES_MAX)
    }

    pub fn takes_limited_json(self, limit_bytes: usize) -> Endpoint<S> {
        self.takes::<serde_json::Value>(limit_bytes)
    }

    pub fn returns_json(self, description: &'static str) -> Endpoint<S> {
        self.returns::<serde_json::Value>(description)
    }

    pub fn returns<T: JsonSchema>(self, description: &'static str) -> Endpoint<S> {
        self.answer(
            StatusCode::OK,
            description,
            Some(ResponseContent::Json(|generator| generator.subschema_for::<T>())),
        )
    }

    pub fn creates<T: JsonSchema>(self, description: &'static str) -> Endpoint<S> {
        self.answer(
            StatusCode::CREATED,
            description,
            Some(ResponseContent::Json(|generator| generator.subschema_for::<T>())),
        )
    }

    /// An answer that is neither a success nor a problem.
    pub fn answers_with<T: JsonSchema>(self, status: StatusCode, description: &'static str) -> Endpoint<S> {
        self.answer(
            status,
            description,
            Some(ResponseContent::Json(|generator| generator.subschema_for::<T>())),
        )
    }

    pub fn returns_text(self, content_type: &'static str, description: &'static str) -> Endpoint<S> {
        self.answer(StatusCode::OK, description, Some(ResponseContent::Text(content_type)))
    }

    /// Status 200 without a body, for protocols that require it instead of 204.
    pub fn returns_empty(self, description: &'static str) -> Endpoint<S> {
        self.answer(StatusCode::OK, description, None)
    }

    pub fn returns_nothing(self, description: &'static str) -> Endpoint<S> {
        self.answer(StatusCode::NO_CONTENT, description, None)
    }

    /// The connection changes its protocol.
    pub fn upgrades(self, description: &'static str) -> Endpoint<S> {
        self.answer(StatusCode::SWITCHING_PROTOCOLS, description, None)
    }

    fn answer(
        mut self,
        status: StatusCode,
        description: &'static str,
        content: Option<ResponseContent>,
    ) -> Endpoint<S> {
        self.operation.answers.push(DocumentedResponse {
            status,
            description,
            content,
        });
        self
    }

    /// Adds a failure to those that follow from the login and the body.
    pub fn fails(mut self, status: StatusCode) -> Endpoint<S> {
        self.operation.failures.push(status);
        self
    }

    /// Returns the description, for the OpenAPI document.
    pub fn into_operation(self) -> Operation {
        self.operation
    }
}

/// The routes of a port.
pub struct Routes {
    router: Router,
    guard: Guard,
    body_timeout: Duration,
}

impl Routes {
    /// `body_timeout`: limit of the time from the header to the end of a body.
    pub fn new(guard: Guard, body_timeout: Duration) -> Routes {
        Routes {
            router: Router::new(),
            guard,
            body_timeout,
        }
    }

    /// Adds endpoints, whose handlers receive `state`.
    pub fn add<S: Clone + Send + Sync + 'static>(
        mut self,
        endpoints: impl IntoIterator<Item = Endpoint<S>>,
        state: &S,
    ) -> Routes {
        for endpoint in endpoints {
            let reader = endpoint.state_reader.map(|read| {
                let state = state.clone();
                Arc::new(move |target: &ChangeTarget| read(&state, target)) as BoundStateReader
            });
            let (handler, state) = (endpoint.handler, state.clone());
            let bound: BoundHandler = Arc::new(move |request| handler(request, state.clone()));
            let limits = BodyLimits {
                bytes: endpoint.body_bytes_max,
                timeout: self.body_timeout,
            };
            let route = guarded(self.guard.clone(), &endpoint.operation, limits, (bound, reader));
            self.router = self.router.route(endpoint.operation.path, route);
        }
        self
    }

    pub fn into_router(self) -> Router {
        self.router
    }
}

/// Returns the handler behind the guard.
fn guarded(
    guard: Guard,
    operation: &Operation,
    limits: BodyLimits,
    (handler, reader): (BoundHandler, Option<BoundStateReader>),
) -> MethodRouter {
    let required = Requirement {
        access: operation.need,
        scope: operation.scope,
        is_in_namespace: operation.is_in_namespace,
    };
    let audited = operation.is_audited().then(|| AuditedOperation {
        id: operation.id,
        body: guard.known_fields(operation.body),
        query: guard.known_fields(operation.query),
        reader,
    });
    let filter = MethodFilter::try_from(operation.method.clone()).expect("an endpoint has a standard method");
    let run = move |mut request: Request| async move {
        request.extensions_mut().insert(limits);
        guard.admit(required, audited.as_ref(), request, handler).await
    };
    on(filter, run)
}
