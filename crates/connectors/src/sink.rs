//! The boundary to what is outside: a sink takes batches of records, and says for each record how it went.
//!
//! A sink knows its target and nothing of buffers, retries, order or metrics: the pump has these. It
//! runs on an ordinary multi-threaded tokio runtime. Errors are texts for an operator: what, where, what to do; never a secret.

use std::future::Future;
use std::pin::Pin;

use crate::record::Record;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How the records of one batch went, one for each, in their order.
pub type Outcome = Vec<Result<(), Failure>>;

pub trait Sink: Send + Sync {
    /// Sends, and resolves when the target has confirmed or refused each record. When a record is [`Failure::Busy`], later
    /// ones of its key in the batch should be [`Failure::Untried`]: otherwise they overtake it. The future may be dropped before that, when the
    /// time for a request is over or the action is stopped hard: the records count as not sent.
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, Outcome>;

    /// Whether the target can be reached and takes our credentials; connects if there is no connection. The pump asks now and then
    /// while nothing is sent, and before it sends again after [`Failure::Away`].
    fn check(&self) -> BoxFuture<'_, Result<(), String>>;

    /// Why the target, which is there, does not take what is on its way, for a sink that sends such records again by itself, or a part of
    /// all records. It is told, also while others are taken.
    fn turned_away(&self) -> Option<String> {
        None
    }

    fn order(&self) -> Order {
        Order::ByPump
    }

    /// A batch is many requests, for each of which the sink sees to a time limit. Otherwise the pump sets one for the batch.
    fn limits_requests(&self) -> bool {
        false
    }

    /// The action ends: give up what is not confirmed, close what is open. No `send` follows.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// Who sees to it that records of one key arrive in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Batches may overtake each other: the pump never has two with records of the same key in flight.
    ByPump,
    /// What is given to `send` first arrives first, once the future has been polled for the first time. The pump polls futures for
    /// the first time one after the other, and sets no time limit for requests.
    BySink,
}

/// Why a record was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The target cannot be reached now, or not with our credentials: everything waits, and is sent again with back-off.
    Away(String),
    /// This record not now: it is sent again with back-off, until its tries are used up. Others go on.
    Busy(String),
    /// This record never: it is counted as failed, with the reason, and stops nothing else.
    Refused(String),
    /// The target has not seen it: it waits for one of its key before it, or there was no time left. It is sent again, with the one
    /// before it; this try does not count.
    Untried,
}

impl Failure {
    pub fn reason(&self) -> &str {
        match self {
            Failure::Away(reason) | Failure::Busy(reason) | Failure::Refused(reason) => reason,
            Failure::Untried => "it was not sent yet",
        }
    }
}

/// All of a batch for the same reason.
pub fn all(batch: &[Record], result: Result<(), Failure>) -> Outcome {
    vec![result; batch.len()]
}

/// A text that is filled in for each message, where the message is published. Field `index` of a record belongs to template `index`
/// of the action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// The configuration field that has it: for errors.
    pub field: String,
    pub text: String,
}

impl Template {
    pub fn new(field: impl Into<String>, text: impl Into<String>) -> Template {
        Template {
            field: field.into(),
            text: text.into(),
        }
    }
}
