//! The interface to a target: a sink sends batches of records and returns a result per record.
//!
//! A sink knows only its target. The pump handles buffers, retries, order and metrics. Sinks run on a multi-threaded
//! tokio runtime. Errors are texts for an operator: what failed, where, what to do. They never contain secrets.

use std::future::Future;
use std::pin::Pin;

use crate::record::Record;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One result per record of a batch, in the same order.
pub type BatchOutcome = Vec<Result<(), DeliveryFailure>>;

pub trait Sink: Send + Sync {
    /// Sends a batch, and resolves when the target has confirmed or rejected each record. If a record is
    /// [`DeliveryFailure::Temporary`], later records with its key in the batch should be [`DeliveryFailure::NotSent`],
    /// so that they do not overtake it. The pump drops the future when the request times out or the action stops. The
    /// records then count as not sent.
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome>;

    /// Checks that the target is reachable and accepts our credentials. Connects if there is no connection. The pump
    /// calls it periodically while it sends nothing, and before it sends again after [`DeliveryFailure::Unreachable`].
    fn check(&self) -> BoxFuture<'_, Result<(), String>>;

    /// Returns why a reachable target rejects in-flight records, for a sink that resends some or all records by itself.
    /// The pump reports it, also while other records are accepted.
    fn rejection(&self) -> Option<String> {
        None
    }

    /// Returns whether the sink itself is replacing its connection, for example by one with smaller batches. The pump
    /// then does not report the target as unreachable.
    fn is_replacing_connection(&self) -> bool {
        false
    }

    /// Returns the number of records since the last call that the sink has accepted and not sent, because they came
    /// from their own target. The pump counts them.
    fn take_skipped_echoes(&self) -> u64 {
        0
    }

    fn order(&self) -> OrderGuarantee {
        OrderGuarantee::ByPump
    }

    /// Returns whether the sink limits the time of each request of a batch itself. Otherwise the pump limits the time
    /// of the batch.
    fn limits_requests(&self) -> bool {
        false
    }

    /// Stops the sink: gives up unconfirmed records and closes connections. No `send` follows.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// Which part preserves the order of records with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderGuarantee {
    /// Batches may overtake each other. The pump never has two batches in flight with records of the same key.
    ByPump,
    /// Batches arrive in the order in which their `send` futures were first polled. The pump polls them in order, and
    /// does not limit the time of requests.
    BySink,
}

/// Why a record was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryFailure {
    /// The target is unreachable or rejects our credentials. All records wait and are retried with back-off.
    Unreachable(String),
    /// A temporary error of this record. It is retried with back-off up to `tries_max`; other records continue.
    Temporary(String),
    /// The target rejects this record permanently. It counts as failed; other records continue.
    Refused(String),
    /// The record was not sent, because it waits for an earlier record with its key or the time was up. It is retried
    /// without counting an attempt.
    NotSent,
}

impl DeliveryFailure {
    pub fn reason(&self) -> &str {
        match self {
            DeliveryFailure::Unreachable(reason)
            | DeliveryFailure::Temporary(reason)
            | DeliveryFailure::Refused(reason) => reason,
            DeliveryFailure::NotSent => "not sent yet",
        }
    }
}

/// Returns the same result for every record of a batch.
pub fn all(batch: &[Record], result: Result<(), DeliveryFailure>) -> BatchOutcome {
    vec![result; batch.len()]
}

/// A text that the publishing thread renders for each message. Field `index` of a record is the rendered template
/// `index` of the action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldTemplate {
    /// The configuration field of the template, for errors.
    pub field: String,
    pub text: String,
    /// If the text is a JSON object or array, values are encoded as JSON.
    pub is_document: bool,
}

impl FieldTemplate {
    /// Creates a template that inserts values unchanged.
    pub fn new(field: impl Into<String>, text: impl Into<String>) -> FieldTemplate {
        FieldTemplate {
            field: field.into(),
            text: text.into(),
            is_document: false,
        }
    }

    /// Creates a template of a payload, body or stored value, which may be JSON.
    pub fn document(field: impl Into<String>, text: impl Into<String>) -> FieldTemplate {
        FieldTemplate {
            is_document: true,
            ..FieldTemplate::new(field, text)
        }
    }
}
