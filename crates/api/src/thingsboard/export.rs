//! Time series as CSV or Parquet, straight from the store to the socket: nothing is collected, whatever its length.
//!
//! A thread of its own reads the store and waits for the reader; the connection's limits end a reader that stalls, and with it
//! the thread. What goes wrong in the middle ends the connection, so that nobody takes a part for all of it.

use std::io::{self, Write};
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
use timeseries::{export_csv, export_parquet};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::call::{Call, Verb};
use super::failure::{Code, Failure};
use super::lists::comma_separated;
use super::operation::get;
use super::shares::Turn;
use crate::endpoint::Endpoint;
use crate::guard::Who;

/// Exports at the same time, of all who ask.
pub const EXPORTS_MAX: usize = 4;

/// Written at once, and so many of them wait for a slow reader.
const PIECE_BYTES: usize = 64 << 10;
const PIECES_MAX: usize = 4;

const CSV: &str = "text/csv";
const PARQUET: &str = "application/vnd.apache.parquet";

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        get(
            "/api/plugins/telemetry/{entityType}/{entityId}/export/timeseries",
            "export_timeseries",
            Who::ANY,
            export,
        )
        .tag("Telemetry")
        .says(
            "Export telemetry as CSV or Parquet",
            "All points of the range, of one key after the other, oldest first. As CSV `key,ts,type,value` with a header, as RFC 4180 has \
             it, times in milliseconds since 1970; with `format=parquet` a file with the columns `key`, `ts`, `bool_v`, `long_v`, `dbl_v`, \
             `str_v` and `json_v`, of the last five of which each row has one. It is not in ThingsBoard's Community Edition.",
        )
        .fails(StatusCode::TOO_MANY_REQUESTS)
        .returns_text(CSV, "The points.")
        .returns_text(PARQUET, "The points."),
    ]
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct ExportQuery {
    /// Keys, with commas between them; all of them without it.
    keys: Option<String>,
    /// From this time on, in milliseconds since 1970; from the first point on without it.
    start_ts: Option<i64>,
    /// Before this time; to the last point without it.
    end_ts: Option<i64>,
    /// What it is written as.
    #[serde(default)]
    format: Format,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Format {
    #[default]
    Csv,
    Parquet,
}

fn export(call: &Call, (kind, id): (EntityType, Uuid), query: ExportQuery, (): ()) -> Result<Response, Failure> {
    call.check_id(EntityId::new(kind, id), Verb::ReadTelemetry)?;
    let range = query.start_ts.unwrap_or(i64::MIN)..query.end_ts.unwrap_or(i64::MAX);
    if range.start >= range.end {
        return Err(Failure::bad_request(format!(
            "startTs {} is not before endTs {}",
            range.start, range.end
        )));
    }
    let store = call.platform().store();
    let keys: Vec<Box<str>> = match query.keys.as_deref().map(comma_separated) {
        Some(keys) if !keys.is_empty() => keys.into_iter().map(Box::from).collect(),
        _ => store.keys(id.into())?,
    };
    let store = Arc::clone(store);
    let format = query.format;
    let body = streamed(call, move |out| {
        let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
        let exported = match format {
            Format::Csv => export_csv(&*store, id.into(), &keys, range, out),
            Format::Parquet => export_parquet(&*store, id.into(), &keys, range, out),
        };
        exported.map(drop).map_err(|error| devices::error_chain(&error))
    })?;
    let (content_type, extension) = match format {
        Format::Csv => ("text/csv; charset=utf-8; header=present", "csv"),
        Format::Parquet => (PARQUET, "parquet"),
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

/// One of few that may be under way at the same time, for all and for the tenant.
pub struct Permit {
    _of_all: OwnedSemaphorePermit,
    _of_tenant: Turn,
}

pub fn permit(call: &Call) -> Result<Permit, Failure> {
    let of_tenant = call.world.shares().transfer(call.tenant())?;
    let of_all = Arc::clone(call.world.exports()).try_acquire_owned().map_err(|_| {
        Failure::new(
            Code::TooManyRequests,
            format!("{EXPORTS_MAX} exports or packages are under way; try again when one has ended"),
        )
        .retry_after(1)
    })?;
    Ok(Permit {
        _of_all: of_all,
        _of_tenant: of_tenant,
    })
}

/// What a thread of its own writes, as fast as it is read.
pub fn streamed(
    call: &Call,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<(), String> + Send + 'static,
) -> Result<Body, Failure> {
    let permit = permit(call)?;
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    let write = move || {
        let mut out = Pieces::new(sender);
        let ended = match write(&mut out) {
            Ok(()) => out.flush(),
            Err(error) => {
                tracing::debug!(error, "an export has ended before its end");
                Err(io::Error::other(error))
            }
        };
        if let Err(error) = ended {
            // Whoever has gone is not told.
            let _ = out.sender.blocking_send(Err(error));
        }
    };
    thread::Builder::new()
        .name("export".to_owned())
        .spawn(write)
        .map_err(|error| Failure::new(Code::General, format!("no thread for the export: {error}")))?;
    Ok(Body::new(Streamed {
        receiver,
        _permit: permit,
    }))
}

type Piece = io::Result<Bytes>;

/// Gathers what is written into pieces.
struct Pieces {
    sender: mpsc::Sender<Piece>,
    gathered: Vec<u8>,
}

impl Pieces {
    fn new(sender: mpsc::Sender<Piece>) -> Pieces {
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

/// What the socket is given.
struct Streamed {
    receiver: mpsc::Receiver<Piece>,
    _permit: Permit,
}

impl hyper::body::Body for Streamed {
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
