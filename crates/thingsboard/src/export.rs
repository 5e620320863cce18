//! Exports time series as CSV or Parquet. Streams them from the store to the socket, so an export of any size needs
//! little memory.
//!
//! A thread of its own reads the store and waits for the client. The time limits of the connection end a stalled
//! client, and thus the thread. An error closes the connection, so that a truncated export is not mistaken for a
//! complete one.

use std::io::{self, Write};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use platform::ids::{EntityId, EntityType, Uuid};
use schemars::JsonSchema;
use serde::Deserialize;
use timeseries::{ExportError, TimeseriesStore, export_csv};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::authorities::Authorities;
use super::call::{ApiCall, Verb};
use super::failure::{ThingsboardError, ThingsboardErrorCode};
use super::lists::comma_separated;
use super::operation::get;
use super::platform_access::EXPORTS_MAX;
use super::quotas::QuotaPermit;
use crate::services::Endpoint;

/// Size of a piece, and limit of pieces that wait for a slow client.
const PIECE_BYTES: usize = 64 << 10;
const PIECES_MAX: usize = 4;

const CSV: &str = "text/csv";
const PARQUET: &str = "application/vnd.apache.parquet";

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        get(
            "/api/plugins/telemetry/{entityType}/{entityId}/export/timeseries",
            "export_timeseries",
            Authorities::ANY,
            export,
        )
        .tag("Telemetry")
        .describe(
            "Export telemetry as CSV or Parquet",
            "All points of the range, key by key, oldest first. CSV: `key,ts,type,value` with a header, in the format of RFC 4180, \
             times in milliseconds since 1970. With `format=parquet`: a file with the columns `key`, `ts`, `bool_v`, `long_v`, `dbl_v`, \
             `str_v` and `json_v`; each row has one of the last five. ThingsBoard's Community Edition does not have this operation.",
        )
        .fails(StatusCode::TOO_MANY_REQUESTS)
        .returns_text(CSV, "The points.")
        .returns_text(PARQUET, "The points."),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ExportQuery {
    /// Keys, separated by commas. Default: all.
    keys: Option<String>,
    /// Only points at or after this time, in milliseconds since 1970. Default: from the first point on.
    start_ts: Option<i64>,
    /// Only points before this time. Default: to the last point.
    end_ts: Option<i64>,
    /// Format of the file.
    #[serde(default)]
    format: ExportFormat,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "Format")]
enum ExportFormat {
    #[default]
    Csv,
    Parquet,
}

fn export(
    call: &ApiCall,
    (kind, id): (EntityType, Uuid),
    query: ExportQuery,
    (): (),
) -> Result<Response, ThingsboardError> {
    call.check_id(EntityId::new(kind, id), Verb::ReadTelemetry)?;
    let range = query.start_ts.unwrap_or(i64::MIN)..query.end_ts.unwrap_or(i64::MAX);
    if range.start >= range.end {
        return Err(ThingsboardError::bad_request(format!(
            "startTs {} must be less than endTs {}",
            range.start, range.end
        )));
    }
    let store = call.platform().store();
    let keys: Vec<Box<str>> = match query.keys.as_deref().map(comma_separated) {
        Some(keys) if !keys.is_empty() => keys.into_iter().map(Box::from).collect(),
        _ => store.keys(id.into())?,
    };
    let store = Arc::clone(store);
    let write: ExportWriter = match query.format {
        ExportFormat::Csv => |store, entity, keys, range, out| export_csv(store, entity, keys, range, out),
        ExportFormat::Parquet => parquet_writer()?,
    };
    let body = streamed(call, move |out| {
        let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
        let exported = write(&*store, id.into(), &keys, range, out);
        exported.map(drop).map_err(|error| devices::error_chain(&error))
    })?;
    let (content_type, extension) = match query.format {
        ExportFormat::Csv => ("text/csv; charset=utf-8; header=present", "csv"),
        ExportFormat::Parquet => (PARQUET, "parquet"),
    };
    let headers = [
        (header::CONTENT_TYPE, content_type.to_owned()),
        (
            header::CONTENT_DISPOSITION,
            format!("attachment; filename=\"{id}.{extension}\""),
        ),
    ];
    Ok((headers, body).into_response())
}

/// Writes the points of an entity's keys in a range of times, and returns their number.
type ExportWriter = fn(
    &dyn TimeseriesStore,
    timeseries::TelemetryEntityId,
    &[&str],
    Range<i64>,
    &mut (dyn Write + Send),
) -> Result<u64, ExportError>;

#[cfg(feature = "parquet")]
fn parquet_writer() -> Result<ExportWriter, ThingsboardError> {
    Ok(timeseries::export_parquet)
}

#[cfg(not(feature = "parquet"))]
fn parquet_writer() -> Result<ExportWriter, ThingsboardError> {
    Err(ThingsboardError::bad_request(
        "this build has no Parquet support; build with --features parquet",
    ))
}

/// Permit for an export. Counts for the server and for the tenant.
pub struct Permit {
    _of_all: OwnedSemaphorePermit,
    _of_tenant: QuotaPermit,
}

pub fn permit(call: &ApiCall) -> Result<Permit, ThingsboardError> {
    let of_tenant = call.platform_access.quotas().transfer(call.tenant())?;
    let of_all = Arc::clone(call.platform_access.exports())
        .try_acquire_owned()
        .map_err(|_| {
            ThingsboardError::new(
                ThingsboardErrorCode::TooManyRequests,
                format!("{EXPORTS_MAX} exports or package transfers are running; try again when one has ended"),
            )
            .retry_after(1)
        })?;
    Ok(Permit {
        _of_all: of_all,
        _of_tenant: of_tenant,
    })
}

/// Returns a body that a separate thread writes, as fast as the client reads it.
pub fn streamed(
    call: &ApiCall,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<(), String> + Send + 'static,
) -> Result<Body, ThingsboardError> {
    let permit = permit(call)?;
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    let write = move || {
        let mut out = Pieces::new(sender);
        let ended = match write(&mut out) {
            Ok(()) => out.flush(),
            Err(error) => {
                tracing::debug!(error, "an export was aborted");
                Err(io::Error::other(error))
            }
        };
        if let Err(error) = ended {
            // Sending fails if the client has disconnected.
            let _ = out.sender.blocking_send(Err(error));
        }
    };
    thread::Builder::new()
        .name("export".to_owned())
        .spawn(write)
        .map_err(|error| {
            ThingsboardError::new(
                ThingsboardErrorCode::General,
                format!("no thread for the export: {error}"),
            )
        })?;
    Ok(Body::new(ExportBody {
        receiver,
        _permit: permit,
    }))
}

type ExportPiece = io::Result<Bytes>;

/// Collects written bytes into pieces.
struct Pieces {
    sender: mpsc::Sender<ExportPiece>,
    gathered: Vec<u8>,
}

impl Pieces {
    fn new(sender: mpsc::Sender<ExportPiece>) -> Pieces {
        Pieces {
            sender,
            gathered: Vec::with_capacity(PIECE_BYTES),
        }
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.gathered, Vec::with_capacity(PIECE_BYTES));
        let sent = self.sender.blocking_send(Ok(piece.into()));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// The body of the answer.
struct ExportBody {
    receiver: mpsc::Receiver<ExportPiece>,
    _permit: Permit,
}

impl hyper::body::Body for ExportBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.receiver
            .poll_recv(context)
            .map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
