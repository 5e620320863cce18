//! An operation: a path, the authorities that may call it, and a blocking function. The function receives the parts of
//! the request as typed values, and runs on a thread that may wait for the disk. All operations share the code that
//! reads requests. An operation that waits longer than for the disk returns a future ([`PendingResult`]), so that it
//! does not occupy a thread; there are few of these.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequestParts, Path, Query, Request, State};
use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Response};
use platform::ids::{EntityType, Uuid};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use web::body;
use web::guard::PeerAddress;
use web::limits::BodyLimits;
use web::problem::HttpProblem;
use web::strict::Strict;

use super::admission::for_users;
use super::authorities::Authorities;
use super::call::{ApiCall, CallServices};
use super::failure::ThingsboardError;
use super::platform_access::PendingResult;
use super::principal::Principal;
use crate::services::Endpoint;

/// Result of a handler.
pub type HandlerResult<T> = Result<axum::Json<T>, ThingsboardError>;

/// An operation without query parameters.
#[derive(Deserialize, JsonSchema)]
pub struct NoQuery {}

/// Conversion from the parameters of a path.
pub trait FromPath: Sized + Send + 'static {
    fn from_path(parameters: &[String]) -> Result<Self, ThingsboardError>;
}

/// Conversion from a body.
pub trait FromBody: Sized + Send + 'static {
    const IS_READ: bool;

    fn from_body(bytes: &[u8]) -> Result<Self, ThingsboardError>;
}

/// A JSON body; unknown fields are ignored.
pub struct JsonBody<T>(pub T);

/// The raw body.
pub struct RawBody(pub Vec<u8>);

pub type Handler<P, Q, B, R> = fn(&ApiCall, P, Q, B) -> Result<R, ThingsboardError>;

pub fn get<P: FromPath, Q: FromQuery, R: IntoResponse + 'static>(
    path: &'static str,
    id: &'static str,
    who: Authorities,
    handler: Handler<P, Q, (), R>,
) -> Endpoint {
    blocking(Method::GET, path, id, who, handler)
}

pub fn post<P: FromPath, Q: FromQuery, B: FromBody, R: IntoResponse + 'static>(
    path: &'static str,
    id: &'static str,
    who: Authorities,
    handler: Handler<P, Q, B, R>,
) -> Endpoint {
    blocking(Method::POST, path, id, who, handler)
}

pub fn put<P: FromPath, Q: FromQuery, B: FromBody, R: IntoResponse + 'static>(
    path: &'static str,
    id: &'static str,
    who: Authorities,
    handler: Handler<P, Q, B, R>,
) -> Endpoint {
    blocking(Method::PUT, path, id, who, handler)
}

pub fn delete<P: FromPath, Q: FromQuery, R: IntoResponse + 'static>(
    path: &'static str,
    id: &'static str,
    who: Authorities,
    handler: Handler<P, Q, (), R>,
) -> Endpoint {
    blocking(Method::DELETE, path, id, who, handler)
}

/// Conversion from query parameters.
pub trait FromQuery: DeserializeOwned + JsonSchema + Send + 'static {}

impl<T: DeserializeOwned + JsonSchema + Send + 'static> FromQuery for T {}

/// Like [`post`], for operations that return a future.
pub fn post_async<P: FromPath, Q: FromQuery, B: FromBody>(
    path: &'static str,
    id: &'static str,
    who: Authorities,
    handler: Handler<P, Q, B, PendingResult>,
) -> Endpoint {
    waiting(Method::POST, path, id, who, handler)
}

/// Like [`delete`], for operations that return a future.
pub fn delete_async<P: FromPath, Q: FromQuery>(
    path: &'static str,
    id: &'static str,
    who: Authorities,
    handler: Handler<P, Q, (), PendingResult>,
) -> Endpoint {
    waiting(Method::DELETE, path, id, who, handler)
}

/// A handler without its types, so that the code below is compiled once instead of once per operation.
type ErasedHandler = Arc<dyn Fn(&ApiCall, &RequestParts) -> Result<Response, ThingsboardError> + Send + Sync>;

/// The parts of a request.
struct RequestParts {
    path: Vec<String>,
    uri: Uri,
    body: Bytes,
}

fn blocking<P: FromPath, Q: FromQuery, B: FromBody, R: IntoResponse + 'static>(
    method: Method,
    path: &'static str,
    id: &'static str,
    who: Authorities,
    handler: Handler<P, Q, B, R>,
) -> Endpoint {
    let run = move |call: &ApiCall, received: &RequestParts| {
        let path = P::from_path(&received.path)?;
        let query = query_of::<Q>(&received.uri)?;
        let body = B::from_body(&received.body)?;
        Ok(handler(call, path, query, body)?.into_response())
    };
    let of_job = method.clone();
    let job: ErasedHandler = Arc::new(move |call, received| {
        let answer = run(call, received);
        super::operation_log::log_operation(call, &of_job, path, &received.path, answer.as_ref().err());
        answer
    });
    endpoint(method, path, id, who, job, B::IS_READ).query::<Q>()
}

/// Like [`ErasedHandler`], for operations that return a future.
type ErasedAsyncHandler = Arc<dyn Fn(&ApiCall, &RequestParts) -> Result<PendingResult, ThingsboardError> + Send + Sync>;

fn waiting<P: FromPath, Q: FromQuery, B: FromBody>(
    method: Method,
    path: &'static str,
    id: &'static str,
    who: Authorities,
    handler: Handler<P, Q, B, PendingResult>,
) -> Endpoint {
    let begin: ErasedAsyncHandler = Arc::new(move |call, received| {
        let path = P::from_path(&received.path)?;
        let query = query_of::<Q>(&received.uri)?;
        let body = B::from_body(&received.body)?;
        handler(call, path, query, body)
    });
    async_endpoint(method, path, id, who, begin, B::IS_READ).query::<Q>()
}

fn async_endpoint(
    method: Method,
    path: &'static str,
    id: &'static str,
    who: Authorities,
    begin: ErasedAsyncHandler,
    reads_body: bool,
) -> Endpoint {
    let of_work = method.clone();
    let run = move |State(services): State<CallServices>, request: Request| {
        let (begin, operation) = (Arc::clone(&begin), (of_work.clone(), path));
        async move {
            let answer = answer_async(services, request, begin, operation, reads_body).await;
            answer.unwrap_or_else(ThingsboardError::into_response)
        }
    };
    described(for_users(method, path, id, who, run), path, reads_body)
}

fn endpoint(
    method: Method,
    path: &'static str,
    id: &'static str,
    who: Authorities,
    job: ErasedHandler,
    reads_body: bool,
) -> Endpoint {
    let run = move |State(services): State<CallServices>, request: Request| {
        let job = Arc::clone(&job);
        async move {
            let answer = answer(services, request, job, reads_body).await;
            answer.unwrap_or_else(ThingsboardError::into_response)
        }
    };
    described(for_users(method, path, id, who, run), path, reads_body)
}

fn described(endpoint: Endpoint, path: &'static str, reads_body: bool) -> Endpoint {
    let endpoint = path_parameters(endpoint, path);
    if reads_body { endpoint.takes_json() } else { endpoint }
}

/// Adds the parameters of the path. Their names determine their descriptions.
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
        "scope" => "CLIENT_SCOPE, SHARED_SCOPE or SERVER_SCOPE; any word for telemetry.",
        "ttl" => "Time to live of the values, in seconds.",
        "eventType" => "LC_EVENT, ERROR, STATS or DEBUG_RULE_NODE; other types have no events.",
        "componentType" => "FILTER, ENRICHMENT, TRANSFORMATION, ACTION, EXTERNAL or FLOW.",
        "clazz" => "Java class of a rule node, as in rule chains.",
        "type" => "FIRMWARE or SOFTWARE.",
        "queueName" => "Name of a queue.",
        "deviceName" => "Name of a device.",
        "enabledValue" => "true or false.",
        _ => "A UUID.",
    }
}

async fn answer(
    services: CallServices,
    request: Request,
    job: ErasedHandler,
    reads_body: bool,
) -> Result<Response, ThingsboardError> {
    let (call, received) = receive(&services, request, reads_body).await?;
    let turn = call.wait_for_thread().await;
    let work = move || {
        let _turn = turn;
        job(&call, &received)
    };
    web::block(work).await?
}

/// Completes the operation and its audit log entry even if the client disconnects.
async fn answer_async(
    services: CallServices,
    request: Request,
    begin: ErasedAsyncHandler,
    operation: (Method, &'static str),
    reads_body: bool,
) -> Result<Response, ThingsboardError> {
    let (call, received) = receive(&services, request, reads_body).await?;
    let work = tokio::spawn(begin_and_wait(call, received, begin, operation));
    let done = work.await;
    done.unwrap_or_else(|_| Err(HttpProblem::internal("the request failed unexpectedly").into()))
}

async fn begin_and_wait(
    call: ApiCall,
    received: RequestParts,
    begin: ErasedAsyncHandler,
    (method, path): (Method, &'static str),
) -> Result<Response, ThingsboardError> {
    let turn = call.wait_for_thread().await;
    let begun = web::block(move || {
        let _turn = turn;
        let begun = begin(&call, &received);
        (call, received, begun)
    });
    let (call, received, begun) = begun.await?;
    let done = match begun {
        Ok(later) => later.await,
        Err(failure) => Err(failure),
    };
    web::block(move || {
        super::operation_log::log_operation(&call, &method, path, &received.path, done.as_ref().err());
        done.map(IntoResponse::into_response)
    })
    .await?
}

async fn receive(
    services: &CallServices,
    request: Request,
    reads_body: bool,
) -> Result<(ApiCall, RequestParts), ThingsboardError> {
    let (mut parts, body) = request.into_parts();
    let Path(path) = Path::<Vec<String>>::from_request_parts(&mut parts, &())
        .await
        .map_err(|rejection| ThingsboardError::bad_request(rejection.body_text()))?;
    let body = if reads_body {
        body::read(body, BodyLimits::of(&parts.extensions)).await?
    } else {
        Bytes::new()
    };
    let principal = parts
        .extensions
        .remove::<Principal>()
        .ok_or_else(ThingsboardError::unauthorized)?;
    let mut call = services.call(principal, &parts.headers);
    call.address = parts.extensions.get::<PeerAddress>().map(|peer| peer.0);
    let received = RequestParts {
        path,
        uri: parts.uri,
        body,
    };
    Ok((call, received))
}

pub fn query_of<Q: DeserializeOwned>(uri: &Uri) -> Result<Q, ThingsboardError> {
    let found = Query::<Q>::try_from_uri(uri).or_else(|rejection| match with_plain_flags(uri) {
        Some(uri) => Query::<Q>::try_from_uri(&uri),
        None => Err(rejection),
    });
    let Query(query) = found.map_err(|rejection| {
        let text = rejection.body_text();
        let text = text.rsplit("query string: ").next().unwrap_or(&text);
        match text.split('`').nth(1).filter(|_| text.contains("missing field")) {
            Some(name) => ThingsboardError::bad_request(format!("Required request parameter '{name}' is not present")),
            None => ThingsboardError::bad_request(input_errors::plain(text)),
        }
    })?;
    Ok(query)
}

/// Clients in Python write `True`, which ThingsBoard accepts. `None`: the query contains no such value.
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

    fn from_body(_: &[u8]) -> Result<(), ThingsboardError> {
        Ok(())
    }
}

impl FromBody for RawBody {
    const IS_READ: bool = true;

    fn from_body(bytes: &[u8]) -> Result<RawBody, ThingsboardError> {
        Ok(RawBody(bytes.to_vec()))
    }
}

impl<T: DeserializeOwned + Send + 'static> FromBody for JsonBody<T> {
    const IS_READ: bool = true;

    fn from_body(bytes: &[u8]) -> Result<JsonBody<T>, ThingsboardError> {
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        serde_path_to_error::deserialize(Strict(&mut deserializer))
            .map(JsonBody)
            .map_err(|error| {
                let (path, inner) = (error.path().to_string(), input_errors::plain(error.inner()));
                // "." is the whole body, and "?" an unknown place.
                ThingsboardError::bad_request(match path.as_str() {
                    "." | "?" => format!("Failed to read the body: {inner}"),
                    _ => format!("Failed to read the body at {path}: {inner}"),
                })
            })
    }
}

/// Conversion from one parameter of a path.
pub trait FromParameter: Sized + Send + 'static {
    fn from_parameter(text: &str) -> Result<Self, ThingsboardError>;
}

impl FromParameter for Uuid {
    fn from_parameter(text: &str) -> Result<Uuid, ThingsboardError> {
        Uuid::parse(text).ok_or_else(|| ThingsboardError::bad_request(format!("Invalid UUID string: {text}")))
    }
}

impl FromParameter for String {
    fn from_parameter(text: &str) -> Result<String, ThingsboardError> {
        Ok(text.to_owned())
    }
}

impl FromParameter for EntityType {
    fn from_parameter(text: &str) -> Result<EntityType, ThingsboardError> {
        EntityType::parse(text).ok_or_else(|| ThingsboardError::bad_request(format!("Unsupported entity type: {text}")))
    }
}

impl FromParameter for i64 {
    fn from_parameter(text: &str) -> Result<i64, ThingsboardError> {
        text.parse()
            .map_err(|_| ThingsboardError::bad_request(format!("For input string: \"{text}\"")))
    }
}

impl FromPath for () {
    fn from_path(_: &[String]) -> Result<(), ThingsboardError> {
        Ok(())
    }
}

impl<A: FromParameter> FromPath for A {
    fn from_path(parameters: &[String]) -> Result<A, ThingsboardError> {
        A::from_parameter(parameters.first().map_or("", String::as_str))
    }
}

macro_rules! from_path_of_tuples {
    ($($name:ident $at:literal),+) => {
        impl<$($name: FromParameter),+> FromPath for ($($name,)+) {
            fn from_path(parameters: &[String]) -> Result<Self, ThingsboardError> {
                Ok(($($name::from_parameter(parameters.get($at).map_or("", String::as_str))?,)+))
            }
        }
    };
}

from_path_of_tuples!(A 0, B 1);
from_path_of_tuples!(A 0, B 1, C 2);
from_path_of_tuples!(A 0, B 1, C 2, D 3);
