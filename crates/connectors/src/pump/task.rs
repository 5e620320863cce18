//! What runs beside the pump: a batch on its way, or a look whether the target is there.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::lane::Entry;
use crate::buffer::DroppedChunk;
use crate::fallback::{Fallback, FellBack};
use crate::record::Record;
use crate::sink::{Failure, Outcome, Sink};

pub(super) enum Done {
    Batch(Batch),
    Check(Result<(), String>),
    /// These were given up, and the fallback has done with them what it can.
    FellBack(Vec<Entry>, FellBack),
    /// The fallback has done what it can with what had no room in the buffer.
    Diverted(FellBack),
}

/// A batch that came back.
pub(super) struct Batch {
    pub lane: usize,
    pub entries: Vec<Entry>,
    pub outcome: Outcome,
    pub took: Duration,
}

/// When a batch may be handed to a sink that keeps the order.
pub(super) struct Turn {
    pub before: Option<oneshot::Receiver<()>>,
    pub mine: oneshot::Sender<()>,
}

/// `turn`: the sink keeps the order, and sees to time limits itself. `time_limit`: none if the sink limits each request.
pub(super) async fn send(
    sink: Arc<dyn Sink>,
    lane: usize,
    entries: Vec<Entry>,
    time_limit: Option<Duration>,
    turn: Option<Turn>,
) -> Done {
    let started = Instant::now();
    let records: Vec<Record> = entries.iter().map(|entry| entry.record.clone()).collect();
    let outcome = match (turn, time_limit) {
        (Some(turn), _) => send_in_turn(&*sink, &records, turn).await,
        (None, None) => sink.send(&records).await,
        (None, Some(time_limit)) => match timeout(time_limit, sink.send(&records)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let reason = format!("the target has not answered within {} ms", time_limit.as_millis());
                crate::sink::all(&records, Err(Failure::Busy(reason)))
            }
        },
    };
    Done::Batch(Batch {
        lane,
        entries,
        outcome,
        took: started.elapsed(),
    })
}

async fn send_in_turn(sink: &dyn Sink, records: &[Record], turn: Turn) -> Outcome {
    if let Some(before) = turn.before {
        // An error: the batch before was given up.
        let _ = before.await;
    }
    let mut sending = sink.send(records);
    let first = poll_fn(|context| Poll::Ready(sending.as_mut().poll(context))).await;
    // Nobody may wait for it.
    let _ = turn.mine.send(());
    match first {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => sending.await,
    }
}

pub(super) async fn fall_back(fallback: Arc<dyn Fallback>, entries: Vec<Entry>) -> Done {
    let records: Vec<Record> = entries.iter().map(|entry| entry.record.clone()).collect();
    let fell_back = fallback.take(&records).await;
    Done::FellBack(entries, fell_back)
}

pub(super) async fn divert(fallback: Arc<dyn Fallback>, chunks: Vec<DroppedChunk>) -> Done {
    let mut records = Vec::new();
    for chunk in chunks {
        chunk.records(&mut |record| records.push(record));
    }
    Done::Diverted(fallback.take(&records).await)
}

pub(super) async fn check(sink: Arc<dyn Sink>, time_limit: Duration) -> Done {
    let answer = timeout(time_limit, sink.check()).await;
    Done::Check(answer.unwrap_or_else(|_| {
        Err(format!(
            "the target has not answered within {} ms",
            time_limit.as_millis()
        ))
    }))
}
