//! The tasks that the pump spawns: sending a batch, checking the target, calling the fallback.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::lane::LaneEntry;
use crate::buffer::DroppedChunk;
use crate::fallback::{Fallback, FallbackOutcome};
use crate::record::Record;
use crate::sink::{BatchOutcome, DeliveryFailure, Sink};

pub(super) enum FinishedTask {
    Batch(FinishedBatch),
    Check(Result<(), String>),
    /// The fallback has processed these entries.
    FallbackFinished(Vec<LaneEntry>, FallbackOutcome),
    /// The fallback has processed the records that the buffer dropped.
    DiversionFinished(FallbackOutcome),
}

/// A batch with its results.
pub(super) struct FinishedBatch {
    pub lane: usize,
    pub entries: Vec<LaneEntry>,
    pub outcome: BatchOutcome,
    pub duration: Duration,
}

/// Orders the batches of a sink that preserves order: each is passed after the previous one.
pub(super) struct SendTurn {
    pub previous: Option<oneshot::Receiver<()>>,
    pub passed: oneshot::Sender<()>,
}

/// Sends a batch. With `turn`, the sink preserves the order and limits the time itself. `time_limit` is `None` if the
/// sink limits each request.
pub(super) async fn send(
    sink: Arc<dyn Sink>,
    lane: usize,
    entries: Vec<LaneEntry>,
    time_limit: Option<Duration>,
    turn: Option<SendTurn>,
) -> FinishedTask {
    let started = Instant::now();
    let records: Vec<Record> = entries.iter().map(|entry| entry.record.clone()).collect();
    let outcome = match (turn, time_limit) {
        (Some(turn), _) => send_in_turn(&*sink, &records, turn).await,
        (None, None) => sink.send(&records).await,
        (None, Some(time_limit)) => match timeout(time_limit, sink.send(&records)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let reason = format!(
                    "no response from the target within {} ms (request_timeout_ms)",
                    time_limit.as_millis()
                );
                crate::sink::all(&records, Err(DeliveryFailure::Temporary(reason)))
            }
        },
    };
    FinishedTask::Batch(FinishedBatch {
        lane,
        entries,
        outcome,
        duration: started.elapsed(),
    })
}

async fn send_in_turn(sink: &dyn Sink, records: &[Record], turn: SendTurn) -> BatchOutcome {
    if let Some(before) = turn.previous {
        // An error means that the previous batch was abandoned.
        let _ = before.await;
    }
    let mut sending = sink.send(records);
    let first = poll_fn(|context| Poll::Ready(sending.as_mut().poll(context))).await;
    // There may be no next batch.
    let _ = turn.passed.send(());
    match first {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => sending.await,
    }
}

pub(super) async fn fall_back(fallback: Arc<dyn Fallback>, entries: Vec<LaneEntry>) -> FinishedTask {
    let records: Vec<Record> = entries.iter().map(|entry| entry.record.clone()).collect();
    let fell_back = fallback.take(&records).await;
    FinishedTask::FallbackFinished(entries, fell_back)
}

pub(super) async fn divert(fallback: Arc<dyn Fallback>, chunks: Vec<DroppedChunk>) -> FinishedTask {
    let mut records = Vec::new();
    for chunk in chunks {
        chunk.records(&mut |record| records.push(record));
    }
    FinishedTask::DiversionFinished(fallback.take(&records).await)
}

pub(super) async fn check(sink: Arc<dyn Sink>, time_limit: Duration) -> FinishedTask {
    let answer = timeout(time_limit, sink.check()).await;
    FinishedTask::Check(answer.unwrap_or_else(|_| {
        Err(format!(
            "no response from the target within {} ms (request_timeout_ms)",
            time_limit.as_millis()
        ))
    }))
}
