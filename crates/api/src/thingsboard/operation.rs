//! One operation: a path, who may call it, and a function that blocks. The function gets what it needs of the request as
//! typed values and runs on a thread that may wait for the disk; the reading around it is the same for all. One that waits for more than
//! the disk begins there and is waited for without a thread ([`Later`]): there are few of them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequestParts, Path, Query, Request, State};
use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Response};
use platform::ids::{EntityType, Uuid};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::call::{Call, Person};
use super::failure::Failure;
use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::guard::{BodyLimit, Need, Who};
use crate::problem::Problem;
use crate::strict::Strict;

/// What a handler gives: anything that is an answer, or why not.
pub type Outcome<T> = Result<axum::Json<T>, Failure>;

/// An operation without parameters in its query.
#[derive(Deserialize, JsonSchema)]
pub struct NoQuery {}

/// What a path's parameters become.
pub trait FromPath: Sized + Send + 'static {
    fn from_path(parameters: &[String]) -> Result<Self, Failure>;
}

/// What a body becomes.
pub trait FromBody: Sized + Send + 'static {
    const IS_READ: bool;

    fn from_body(bytes: &[u8]) -> Result<Self, Failure>;
}

/// A JSON body; what is not known in it is ignored.
pub struct Body<T>(pub T);

/// A body as it came.
pub struct Raw(pub Vec<u8>);

pub type Handler<P, Q, B, R> = fn(&Call, P, Q, B) -> Result<R, Failure>;

pub fn get<P: FromPath, Q: FromQuery, R: IntoResponse + 'static>(
    path: &'static str,
    id: &'static str,
    who: Who,
    handler: Handler<P, Q, (), R>,
) -> Endpoint {
    blocking(Method::GET, path, id, who, handler)
}

pub fn post<P: FromPath, Q: FromQuery, B: FromBody, R: IntoResponse + 'static>(
    path: &'static str,
    id: &'static str,
    who: Who,
    handler: Handler<P, Q, B, R>,
) -> Endpoint {
    blocking(Method::POST, path, id, who, handler)
}

pub fn put<P: FromPath, Q: FromQuery, B: FromBody, R: IntoResponse + 'static>(
    path: &'static str,
    id: &'static str,
    who: Who,
    handler: Handler<P, Q, B, R>,
) -> Endpoint {
    blocking(Method::PUT, path, id, who, handler)
}

pub fn delete<P: FromPath, Q: FromQuery, R: IntoResponse + 'static>(
    path: &'static str,
    id: &'static str,
    who: Who,
    handler: Handler<P, Q, (), R>,
) -> Endpoint {
    blocking(Method::DELETE, path, id, who, handler)
}

/// What a query's parameters become.
pub trait FromQuery: DeserializeOwned + JsonSchema + Send + 'static {}

impl<T: DeserializeOwned + JsonSchema + Send + 'static> FromQuery for T {}

/// What a handler has begun, to be waited for without a thread.
pub type Later = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// As [`post`]; answered when what was begun is done.
pub fn post_later<P: FromPath, Q: FromQuery, B: FromBody>(
    path: &'static str,
    id: &'static str,
    who: Who,
    handler: Handler<P, Q, B, Later>,
) -> Endpoint {
    waiting(Method::POST, path, id, who, handler)
}

/// As [`post_later`].
pub fn delete_later<P: FromPath, Q: FromQuery>(
    path: &'static str,
    id: &'static str,
    who: Who,
    handler: Handler<P, Q, (), Later>,
) -> Endpoint {
    waiting(Method::DELETE, path, id, who, handler)
}

/// What is left of a handler once its types are forgotten: so the machinery below is compiled once, not per operation.
type Job = Arc<dyn Fn(&Call, &Received) -> Result<Response, Failure> + Send + Sync>;

/// What came with a request.
struct Received {
    path: Vec<String>,
    uri: Uri,
    body: Bytes,
}

fn blocking<P: FromPath, Q: FromQuery, B: FromBody, R: IntoResponse + 'static>(
    method: Method,
    path: &'static str,
    id: &'static str,
    who: Who,
    handler: Handler<P, Q, B, R>,
) -> Endpoint {
    let run = move |call: &Call, received: &Received| {
        let path = P::from_path(&received.path)?;
        let query = query_of::<Q>(&received.uri)?;
        let body = B::from_body(&received.body)?;
        Ok(handler(call, path, query, body)?.into_response())
    };
    let of_job = method.clone();
    let job: Job = Arc::new(move |call, received| {
        let answer = run(call, received);
        super::audit_logs::note(call, &of_job, path, &received.path, answer.as_ref().err());
        answer
    });
    endpoint(method, path, id, who, job, B::IS_READ).query::<Q>()
}

/// As [`Job`].
type Beginning = Arc<dyn Fn(&Call, &Received) -> Result<Later, Failure> + Send + Sync>;

fn waiting<P: FromPath, Q: FromQuery, B: FromBody>(
    method: Method,
    path: &'static str,
    id: &'static str,
    who: Who,
    handler: Handler<P, Q, B, Later>,
) -> Endpoint {
    let begin: Beginning = Arc::new(move |call, received| {
        let path = P::from_path(&received.path)?;
        let query = query_of::<Q>(&received.uri)?;
        let body = B::from_body(&received.body)?;
        handler(call, path, query, body)
    });
    endpoint_later(method, path, id, who, begin, B::IS_READ).query::<Q>()
}

fn endpoint_later(
    method: Method,
    path: &'static str,
    id: &'static str,
    who: Who,
    begin: Beginning,
    reads_body: bool,
) -> Endpoint {
    let of_work = method.clone();
    let run = move |State(app): State<App>, request: Request| {
        let (begin, operation) = (Arc::clone(&begin), (of_work.clone(), path));
        async move {
            let answer = answer_later(app, request, begin, operation, reads_body).await;
            answer.unwrap_or_else(Failure::into_response)
        }
    };
    described(Endpoint::of(method, path, id, run), path, who, reads_body)
}

fn endpoint(method: Method, path: &'static str, id: &'static str, who: Who, job: Job, reads_body: bool) -> Endpoint {
    let run = move |State(app): State<App>, request: Request| {
        let job = Arc::clone(&job);
        async move {
            let answer = answer(app, request, job, reads_body).await;
            answer.unwrap_or_else(Failure::into_response)
        }
    };
    described(Endpoint::of(method, path, id, run), path, who, reads_body)
}

fn described(endpoint: Endpoint, path: &'static str, who: Who, reads_body: bool) -> Endpoint {
    let endpoint = path_parameters(endpoint.needs(Need::Person(who)), path);
    if reads_body { endpoint.takes_json() } else { endpoint }
}

/// Named as in the path; what they are follows from their names.
pub fn path_parameters(mut endpoint: Endpoint, path: &'static str) -> Endpoint {
    for part in path.split('/') {
        if let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            endpoint = endpoint.path_parameter(name, describe(name));
        }
    }
    endpoint
}

fn describe(name: &str) -> &'static str {
    match name {
        "entityType" | "fromType" | "toType" => "Type of an entity, such as DEVICE.",
        "scope" => "CLIENT_SCOPE, SHARED_SCOPE or SERVER_SCOPE; any word where telemetry is meant.",
        "ttl" => "How long values are kept, in seconds.",
        "eventType" => "LC_EVENT, ERROR, STATS or DEBUG_RULE_NODE; of others there are none.",
        "componentType" => "FILTER, ENRICHMENT, TRANSFORMATION, ACTION, EXTERNAL or FLOW.",
        "clazz" => "A Java class, as rule chains have it.",
        "type" => "FIRMWARE or SOFTWARE.",
        "queueName" => "Name of a queue.",
        "deviceName" => "Name of a device.",
        "enabledValue" => "true or false.",
        _ => "A UUID.",
    }
}

async fn answer(app: App, request: Request, job: Job, reads_body: bool) -> Result<Response, Failure> {
    let (call, received) = receive(&app, request, reads_body).await?;
    let turn = call.turn().await;
    let work = move || {
        let _turn = turn;
        job(&call, &received)
    };
    app.block(work).await?
}

/// Goes on to its end, with the entry in the audit log, also when whoever asked has gone.
async fn answer_later(
    app: App,
    request: Request,
    begin: Beginning,
    operation: (Method, &'static str),
    reads_body: bool,
) -> Result<Response, Failure> {
    let (call, received) = receive(&app, request, reads_body).await?;
    let work = tokio::spawn(begin_and_wait(app, call, received, begin, operation));
    let done = work.await;
    done.unwrap_or_else(|_| Err(Problem::internal("the request failed unexpectedly").into()))
}

async fn begin_and_wait(
    app: App,
    call: Call,
    received: Received,
    begin: Beginning,
    (method, path): (Method, &'static str),
) -> Result<Response, Failure> {
    let turn = call.turn().await;
    let begun = app.block(move || {
        let _turn = turn;
        let begun = begin(&call, &received);
        (call, received, begun)
    });
    let (call, received, begun) = begun.await?;
    let done = match begun {
        Ok(later) => later.await,
        Err(failure) => Err(failure),
    };
    app.block(move || {
        super::audit_logs::note(&call, &method, path, &received.path, done.as_ref().err());
        done.map(IntoResponse::into_response)
    })
    .await?
}

async fn receive(app: &App, request: Request, reads_body: bool) -> Result<(Call, Received), Failure> {
    let (mut parts, body) = request.into_parts();
    let Path(path) = Path::<Vec<String>>::from_request_parts(&mut parts, &())
        .await
        .map_err(|rejection| Failure::bad_request(rejection.body_text()))?;
    let body = if reads_body {
        let BodyLimit(limit) = parts.extensions.get().copied().unwrap_or_default();
        body::read(body, limit, app).await?
    } else {
        Bytes::new()
    };
    let person = parts.extensions.remove::<Person>().ok_or_else(Failure::unauthorized)?;
    let call = Call::new(app, person, &parts.headers)?;
    let received = Received {
        path,
        uri: parts.uri,
        body,
    };
    Ok((call, received))
}

pub fn query_of<Q: DeserializeOwned>(uri: &Uri) -> Result<Q, Failure> {
    let found = Query::<Q>::try_from_uri(uri).or_else(|rejection| match with_plain_flags(uri) {
        Some(uri) => Query::<Q>::try_from_uri(&uri),
        None => Err(rejection),
    });
    let Query(query) = found.map_err(|rejection| {
        let text = rejection.body_text();
        let text = text.rsplit("query string: ").next().unwrap_or(&text);
        match text.split('`').nth(1).filter(|_| text.contains("missing field")) {
            Some(name) => Failure::bad_request(format!("Required request parameter '{name}' is not present")),
            None => Failure::bad_request(text),
        }
    })?;
    Ok(query)
}

/// Clients in Python write `True`, which ThingsBoard takes for what is meant. `None`: nothing is written so.
fn with_plain_flags(uri: &Uri) -> Option<Uri> {
    let is_flag = |value: &str| ["true", "false"].iter().any(|flag| value.eq_ignore_ascii_case(flag));
    let plain = |part: &str| match part.split_once('=') {
        Some((name, value)) if is_flag(value) => format!("{name}={}", value.to_ascii_lowercase()),
        _ => part.to_owned(),
    };
    let query = uri.query()?;
    let changed: Vec<String> = query.split('&').map(plain).collect();
    let changed = changed.join("&");
    (changed != query).then(|| format!("{}?{changed}", uri.path()).parse().ok())?
}

impl FromBody for () {
    const IS_READ: bool = false;

    fn from_body(_: &[u8]) -> Result<(), Failure> {
        Ok(())
    }
}

impl FromBody for Raw {
    const IS_READ: bool = true;

    fn from_body(bytes: &[u8]) -> Result<Raw, Failure> {
        Ok(Raw(bytes.to_vec()))
    }
}

impl<T: DeserializeOwned + Send + 'static> FromBody for Body<T> {
    const IS_READ: bool = true;

    fn from_body(bytes: &[u8]) -> Result<Body<T>, Failure> {
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        serde_path_to_error::deserialize(Strict(&mut deserializer))
            .map(Body)
            .map_err(|error| {
                Failure::bad_request(format!(
                    "Failed to read the body at {}: {}",
                    error.path(),
                    error.inner()
                ))
            })
    }
}

/// One parameter of a path.
pub trait FromParameter: Sized + Send + 'static {
    fn from_parameter(text: &str) -> Result<Self, Failure>;
}

impl FromParameter for Uuid {
    fn from_parameter(text: &str) -> Result<Uuid, Failure> {
        Uuid::parse(text).ok_or_else(|| Failure::bad_request(format!("Invalid UUID string: {text}")))
    }
}

impl FromParameter for String {
    fn from_parameter(text: &str) -> Result<String, Failure> {
        Ok(text.to_owned())
    }
}

impl FromParameter for EntityType {
    fn from_parameter(text: &str) -> Result<EntityType, Failure> {
        EntityType::parse(text).ok_or_else(|| Failure::bad_request(format!("Unsupported entity type: {text}")))
    }
}

impl FromParameter for i64 {
    fn from_parameter(text: &str) -> Result<i64, Failure> {
        text.parse()
            .map_err(|_| Failure::bad_request(format!("For input string: \"{text}\"")))
    }
}

impl FromPath for () {
    fn from_path(_: &[String]) -> Result<(), Failure> {
        Ok(())
    }
}

impl<A: FromParameter> FromPath for A {
    fn from_path(parameters: &[String]) -> Result<A, Failure> {
        A::from_parameter(parameters.first().map_or("", String::as_str))
    }
}

macro_rules! from_path_of_tuples {
    ($($name:ident $at:literal),+) => {
        impl<$($name: FromParameter),+> FromPath for ($($name,)+) {
            fn from_path(parameters: &[String]) -> Result<Self, Failure> {
                Ok(($($name::from_parameter(parameters.get($at).map_or("", String::as_str))?,)+))
            }
        }
    };
}

from_path_of_tuples!(A 0, B 1);
from_path_of_tuples!(A 0, B 1, C 2);
from_path_of_tuples!(A 0, B 1, C 2, D 3);
