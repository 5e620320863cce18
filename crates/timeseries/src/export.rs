//! Export of points as CSV, one series after another. Points are streamed to the output and not collected.
//!
//! RFC 4180 with the header `key,ts,type,value`. Times are Unix milliseconds. Keys and texts that a spreadsheet would
//! execute as a formula begin with an apostrophe.

use std::io::{self, Write};
use std::ops::{ControlFlow, Range};
use std::{error, fmt};

use crate::error::StoreError;
use crate::store::{PointOrder, Series, TimeseriesStore};
use crate::value::{TelemetryEntityId, ValueRef};

#[derive(Debug)]
pub enum ExportError {
    Store(StoreError),
    /// Writing to the output failed.
    Output(io::Error),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportError::Store(_) => f.write_str("cannot read the points to export"),
            ExportError::Output(_) => f.write_str("cannot write the exported points"),
        }
    }
}

impl error::Error for ExportError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            ExportError::Store(error) => Some(error),
            ExportError::Output(error) => Some(error),
        }
    }
}

/// Writes the points of `keys` in `range` as CSV. Returns the number of points.
pub fn export_csv(
    store: &dyn TimeseriesStore,
    entity: TelemetryEntityId,
    keys: &[&str],
    range: Range<i64>,
    out: &mut dyn Write,
) -> Result<u64, ExportError> {
    out.write_all(b"key,ts,type,value\r\n").map_err(ExportError::Output)?;
    for_each_point(store, entity, keys, range, &mut |key, ts_ms, value| {
        write_row(out, key, ts_ms, value)
    })
}

/// Passes each point to `take`, and stops if it fails. Returns the number of points.
pub(crate) fn for_each_point(
    store: &dyn TimeseriesStore,
    entity: TelemetryEntityId,
    keys: &[&str],
    range: Range<i64>,
    take: &mut dyn FnMut(&str, i64, ValueRef<'_>) -> io::Result<()>,
) -> Result<u64, ExportError> {
    let mut points = 0;
    for key in keys {
        let mut failed = None;
        let mut visit = |ts_ms: i64, value: ValueRef<'_>| match take(key, ts_ms, value) {
            Ok(()) => {
                points += 1;
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        };
        let series = Series { entity, key };
        store
            .scan(series, range.clone(), PointOrder::Ascending, &mut visit)
            .map_err(ExportError::Store)?;
        if let Some(error) = failed {
            return Err(ExportError::Output(error));
        }
    }
    Ok(points)
}

fn write_row(out: &mut dyn Write, key: &str, ts_ms: i64, value: ValueRef<'_>) -> io::Result<()> {
    write_field(out, key)?;
    write!(out, ",{ts_ms},")?;
    match value {
        ValueRef::Bool(value) => write!(out, "bool,{value}")?,
        ValueRef::Long(value) => write!(out, "long,{value}")?,
        ValueRef::Double(value) => write!(out, "double,{value:?}")?,
        ValueRef::String(text) => {
            out.write_all(b"string,")?;
            write_field(out, text)?;
        }
        ValueRef::Json(text) => {
            out.write_all(b"json,")?;
            write_field(out, text)?;
        }
    }
    out.write_all(b"\r\n")
}

/// A spreadsheet would execute a text that begins with one of these characters as a formula. An apostrophe prevents it.
const FORMULA_STARTS: [char; 6] = ['=', '+', '-', '@', '\t', '\r'];

fn write_field(out: &mut dyn Write, text: &str) -> io::Result<()> {
    if text.starts_with(FORMULA_STARTS) {
        return write_quoted(out, &format!("'{text}"));
    }
    write_quoted(out, text)
}

fn write_quoted(out: &mut dyn Write, text: &str) -> io::Result<()> {
    if !text.contains([',', '"', '\r', '\n']) {
        return out.write_all(text.as_bytes());
    }
    write!(out, "\"{}\"", text.replace('"', "\"\""))
}
