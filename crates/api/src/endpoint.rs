//! One endpoint as the list in `routes.rs` declares it: what the router serves and what the OpenAPI document says, together,
//! so that they cannot drift apart.

use axum::extract::Request;
use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::routing::{MethodFilter, MethodRouter, on};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use crate::app::App;
use crate::audit;
use crate::guard::{BodyLimit, Need, guard};

/// Of a body that may be large: a dashboard, a rule chain.
const JSON_BYTES_MAX: usize = 16 << 20;

/// Beside what an administrator changes: what takes secrets along, and what everybody may change.
const ALSO_AUDITED: [&str; 2] = ["change_password", "download_backup"];

/// Makes the schema of a type, or a reference to it.
pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

pub struct Endpoint {
    pub method: Method,
    /// As the router and OpenAPI write it: `/api/v1/clients/{client_id}`. `{*topic}` takes slashes, too.
    pub path: &'static str,
    pub operation: Operation,
    pub need: Need,
    body_limit: BodyLimit,
    handler: MethodRouter<App>,
}

/// The documented side.
pub struct Operation {
    pub id: &'static str,
    pub tag: &'static str,
    pub summary: &'static str,
    pub description: &'static str,
    pub path_parameters: Vec<(&'static str, &'static str)>,
    pub query: Option<SchemaOf>,
    pub body: Option<SchemaOf>,
    /// `If-Match` may say what is expected to be there.
    pub takes_if_match: bool,
    /// Answers have an `ETag`.
    pub has_etag: bool,
    pub answers: Vec<Answer>,
    pub failures: Vec<StatusCode>,
}

pub struct Answer {
    pub status: StatusCode,
    pub description: &'static str,
    pub content: Option<Content>,
}

pub enum Content {
    Json(SchemaOf),
    Text(&'static str),
}

impl Endpoint {
    pub fn get<H: Handler<T, App>, T: 'static>(path: &'static str, id: &'static str, handler: H) -> Endpoint {
        Endpoint::new(Method::GET, path, id, on(MethodFilter::GET, handler))
    }

    pub fn post<H: Handler<T, App>, T: 'static>(path: &'static str, id: &'static str, handler: H) -> Endpoint {
        Endpoint::new(Method::POST, path, id, on(MethodFilter::POST, handler))
    }

    pub fn put<H: Handler<T, App>, T: 'static>(path: &'static str, id: &'static str, handler: H) -> Endpoint {
        Endpoint::new(Method::PUT, path, id, on(MethodFilter::PUT, handler))
    }

    pub fn delete<H: Handler<T, App>, T: 'static>(path: &'static str, id: &'static str, handler: H) -> Endpoint {
        Endpoint::new(Method::DELETE, path, id, on(MethodFilter::DELETE, handler))
    }

    pub fn of<H: Handler<T, App>, T: 'static>(
        method: Method,
        path: &'static str,
        id: &'static str,
        handler: H,
    ) -> Endpoint {
        let filter = MethodFilter::try_from(method.clone()).expect("an endpoint has one of the usual methods");
        Endpoint::new(method, path, id, on(filter, handler))
    }

    /// What changes something needs an admin, unless said otherwise.
    fn new(method: Method, path: &'static str, id: &'static str, handler: MethodRouter<App>) -> Endpoint {
        let need = if method == Method::GET {
            Need::Viewer
        } else {
            Need::Admin
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

    pub fn says(mut self, summary: &'static str, description: &'static str) -> Endpoint {
        self.operation.summary = summary;
        self.operation.description = description;
        self
    }

    pub fn needs(mut self, need: Need) -> Endpoint {
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

    /// The handler looks at `IfMatch`.
    pub fn takes_if_match(mut self) -> Endpoint {
        self.operation.takes_if_match = true;
        self.fails(StatusCode::PRECONDITION_FAILED)
    }

    /// The handler answers with `Tagged`.
    pub fn has_etag(mut self) -> Endpoint {
        self.operation.has_etag = true;
        self
    }

    /// Any JSON, of which only the description tells.
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
            Some(Content::Json(|generator| generator.subschema_for::<T>())),
        )
    }

    pub fn creates<T: JsonSchema>(self, description: &'static str) -> Endpoint {
        self.answer(
            StatusCode::CREATED,
            description,
            Some(Content::Json(|generator| generator.subschema_for::<T>())),
        )
    }

    /// An answer that is not a success and yet not a problem.
    pub fn answers_with<T: JsonSchema>(self, status: StatusCode, description: &'static str) -> Endpoint {
        self.answer(
            status,
            description,
            Some(Content::Json(|generator| generator.subschema_for::<T>())),
        )
    }

    pub fn returns_text(self, content_type: &'static str, description: &'static str) -> Endpoint {
        self.answer(StatusCode::OK, description, Some(Content::Text(content_type)))
    }

    /// 200 without a body, where a protocol wants that instead of 204.
    pub fn returns_empty(self, description: &'static str) -> Endpoint {
        self.answer(StatusCode::OK, description, None)
    }

    pub fn returns_nothing(self, description: &'static str) -> Endpoint {
        self.answer(StatusCode::NO_CONTENT, description, None)
    }

    /// The connection becomes something else.
    pub fn upgrades(self, description: &'static str) -> Endpoint {
        self.answer(StatusCode::SWITCHING_PROTOCOLS, description, None)
    }

    fn answer(mut self, status: StatusCode, description: &'static str, content: Option<Content>) -> Endpoint {
        self.operation.answers.push(Answer {
            status,
            description,
            content,
        });
        self
    }

    /// Beside those that follow from what it needs and takes.
    pub fn fails(mut self, status: StatusCode) -> Endpoint {
        self.operation.failures.push(status);
        self
    }

    /// The handler behind the guard.
    pub fn into_route(self, app: &App) -> (&'static str, MethodRouter<App>) {
        let (app, need, limit) = (app.clone(), self.need, self.body_limit);
        let is_change = self.method != Method::GET && need == Need::Admin && audit::is_change(self.operation.id);
        let audited = (is_change || ALSO_AUDITED.contains(&self.operation.id)).then_some(self.operation.id);
        let guarded = move |mut request: Request, next: Next| {
            let app = app.clone();
            async move {
                request.extensions_mut().insert(limit);
                guard(&app, need, audited, request, next).await
            }
        };
        (self.path, self.handler.layer(from_fn(guarded)))
    }
}
