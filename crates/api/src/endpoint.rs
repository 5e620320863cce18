//! An endpoint of the list in `routes.rs`. It declares the route and its OpenAPI description together, so that
//! they cannot differ.

use std::pin::Pin;
use std::sync::Arc;

use axum::extract::Request;
use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, on};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::app::App;
use crate::audit::{self, AuditedOperation};
use crate::audit_body::KnownFields;
use crate::guard::{BodyLimit, RequiredAccess, guard};

/// Limit of a body that may be large, such as a dashboard or a rule chain.
const JSON_BYTES_MAX: usize = 16 << 20;

/// Audited operations besides the changes of administrators: downloads that contain secrets, and changes that all users
/// may make.
const ALSO_AUDITED: [&str; 2] = ["change_password", "download_backup"];

/// Makes the schema of a type, or a reference to it.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

pub struct Endpoint {
    pub method: Method,
    /// In the syntax of the router and of OpenAPI: `/api/v1/clients/{client_id}`. `{*topic}` also matches slashes.
    pub path: &'static str,
    pub operation: Operation,
    pub need: RequiredAccess,
    body_limit: BodyLimit,
    handler: AnyHandler,
}

/// A handler behind a trait object. The router and its layers are compiled once for this type, not once per handler:
/// that halves the time to compile this crate.
#[derive(Clone)]
struct AnyHandler(Arc<dyn Fn(Request, App) -> Handling + Send + Sync>);

type Handling = Pin<Box<dyn Future<Output = Response> + Send>>;

impl AnyHandler {
    fn new<H: Handler<T, App>, T: 'static>(handler: H) -> AnyHandler {
        AnyHandler(Arc::new(move |request, app| {
            Box::pin(handler.clone().call(request, app))
        }))
    }
}

/// The handler of a request that the guard has admitted.
pub struct AdmittedRequest {
    handler: AnyHandler,
    app: App,
}

impl AdmittedRequest {
    pub async fn run(self, request: Request) -> Response {
        (self.handler.0)(request, self.app).await
    }
}

/// The documentation of an endpoint.
pub struct Operation {
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

impl Endpoint {
    pub fn get<H: Handler<T, App>, T: 'static>(path: &'static str, id: &'static str, handler: H) -> Endpoint {
        Endpoint::new(Method::GET, path, id, AnyHandler::new(handler))
    }

    pub fn post<H: Handler<T, App>, T: 'static>(path: &'static str, id: &'static str, handler: H) -> Endpoint {
        Endpoint::new(Method::POST, path, id, AnyHandler::new(handler))
    }

    pub fn put<H: Handler<T, App>, T: 'static>(path: &'static str, id: &'static str, handler: H) -> Endpoint {
        Endpoint::new(Method::PUT, path, id, AnyHandler::new(handler))
    }

    pub fn delete<H: Handler<T, App>, T: 'static>(path: &'static str, id: &'static str, handler: H) -> Endpoint {
        Endpoint::new(Method::DELETE, path, id, AnyHandler::new(handler))
    }

    pub fn of<H: Handler<T, App>, T: 'static>(
        method: Method,
        path: &'static str,
        id: &'static str,
        handler: H,
    ) -> Endpoint {
        Endpoint::new(method, path, id, AnyHandler::new(handler))
    }

    /// Requests that change something need an admin by default, others a viewer.
    fn new(method: Method, path: &'static str, id: &'static str, handler: AnyHandler) -> Endpoint {
        let need = if method == Method::GET {
            RequiredAccess::Viewer
        } else {
            RequiredAccess::Admin
        };
        Endpoint {
            method,
            path,
            operation: Operation {
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
            },
            need,
            body_limit: BodyLimit::default(),
            handler,
        }
    }

    pub fn tag(mut self, tag: &'static str) -> Endpoint {
        self.operation.tag = tag;
        self
    }

    pub fn describe(mut self, summary: &'static str, description: &'static str) -> Endpoint {
        self.operation.summary = summary;
        self.operation.description = description;
        self
    }

    pub fn needs(mut self, need: RequiredAccess) -> Endpoint {
        self.need = need;
        self
    }

    pub fn path_parameter(mut self, name: &'static str, description: &'static str) -> Endpoint {
        self.operation.path_parameters.push((name, description));
        self
    }

    /// Query parameters are the properties of `T`.
    pub fn query<T: JsonSchema>(mut self) -> Endpoint {
        self.operation.query = Some(|generator| T::json_schema(generator));
        self
    }

    pub fn takes<T: JsonSchema>(mut self, limit_bytes: usize) -> Endpoint {
        self.operation.body = Some(|generator| generator.subschema_for::<T>());
        self.body_limit = BodyLimit(limit_bytes);
        self
    }

    /// The handler checks `IfMatch`.
    pub fn takes_if_match(mut self) -> Endpoint {
        self.operation.takes_if_match = true;
        self.fails(StatusCode::PRECONDITION_FAILED)
    }

    /// The handler answers with `Tagged`.
    pub fn has_etag(mut self) -> Endpoint {
        self.operation.has_etag = true;
        self
    }

    /// Any JSON. Only the description explains its structure.
    pub fn takes_json(self) -> Endpoint {
        self.takes_limited_json(JSON_BYTES_MAX)
    }

    pub fn takes_limited_json(self, limit_bytes: usize) -> Endpoint {
        self.takes::<serde_json::Value>(limit_bytes)
    }

    pub fn returns_json(self, description: &'static str) -> Endpoint {
        self.returns::<serde_json::Value>(description)
    }

    pub fn returns<T: JsonSchema>(self, description: &'static str) -> Endpoint {
        self.answer(
            StatusCode::OK,
            description,
            Some(ResponseContent::Json(|generator| generator.subschema_for::<T>())),
        )
    }

    pub fn creates<T: JsonSchema>(self, description: &'static str) -> Endpoint {
        self.answer(
            StatusCode::CREATED,
            description,
            Some(ResponseContent::Json(|generator| generator.subschema_for::<T>())),
        )
    }

    /// An answer that is neither a success nor a problem.
    pub fn answers_with<T: JsonSchema>(self, status: StatusCode, description: &'static str) -> Endpoint {
        self.answer(
            status,
            description,
            Some(ResponseContent::Json(|generator| generator.subschema_for::<T>())),
        )
    }

    pub fn returns_text(self, content_type: &'static str, description: &'static str) -> Endpoint {
        self.answer(StatusCode::OK, description, Some(ResponseContent::Text(content_type)))
    }

    /// Status 200 without a body, for protocols that require it instead of 204.
    pub fn returns_empty(self, description: &'static str) -> Endpoint {
        self.answer(StatusCode::OK, description, None)
    }

    pub fn returns_nothing(self, description: &'static str) -> Endpoint {
        self.answer(StatusCode::NO_CONTENT, description, None)
    }

    /// The connection changes its protocol.
    pub fn upgrades(self, description: &'static str) -> Endpoint {
        self.answer(StatusCode::SWITCHING_PROTOCOLS, description, None)
    }

    fn answer(mut self, status: StatusCode, description: &'static str, content: Option<ResponseContent>) -> Endpoint {
        self.operation.answers.push(DocumentedResponse {
            status,
            description,
            content,
        });
        self
    }

    /// Adds a failure to those that follow from the login and the body.
    pub fn fails(mut self, status: StatusCode) -> Endpoint {
        self.operation.failures.push(status);
        self
    }

    /// Returns the handler behind the guard.
    pub fn into_route(self, app: &App) -> (&'static str, MethodRouter<App>) {
        let (app, need, limit) = (app.clone(), self.need, self.body_limit);
        let is_change =
            self.method != Method::GET && need == RequiredAccess::Admin && audit::is_change(self.operation.id);
        let is_audited = is_change || ALSO_AUDITED.contains(&self.operation.id);
        let audited = is_audited.then(|| AuditedOperation {
            id: self.operation.id,
            body: KnownFields::of(self.operation.body),
            query: KnownFields::of(self.operation.query),
        });
        let filter = MethodFilter::try_from(self.method).expect("an endpoint has a standard method");
        let handler = self.handler;
        let guarded = move |mut request: Request| async move {
            request.extensions_mut().insert(limit);
            let next = AdmittedRequest {
                handler,
                app: app.clone(),
            };
            guard(&app, need, audited.as_ref(), request, next).await
        };
        (self.path, on(filter, guarded))
    }
}
