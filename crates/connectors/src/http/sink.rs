//! The HTTP action: assigns records to requests, and limits the concurrency.
//!
//! Requests with the same ordering key are sent one after another. Requests with different keys are sent concurrently,
//! up to the number of connections.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::client::{HttpConnector, RequestFailure};
use super::config::HttpActionConfig;
use super::request::RequestTemplate;
use super::status::{StatusResult, Statuses, classify};
use crate::isolate::{BATCH_TIME_MAX, PartResult, failure_of_unsent, isolate};
use crate::record::Record;
use crate::sink::{BatchOutcome, BoxFuture, DeliveryFailure, FieldTemplate, Sink};

pub struct HttpSink {
    connector: Arc<HttpConnector>,
    form: RequestTemplate,
    templates: Vec<FieldTemplate>,
    timeout: Duration,
    answer_bytes_max: usize,
    retried: Statuses,
}

impl HttpSink {
    /// Creates the sink. The errors name the fields.
    pub fn new(connector: Arc<HttpConnector>, config: &HttpActionConfig) -> Result<HttpSink, Vec<String>> {
        let problems = config.problems();
        let form = match RequestTemplate::new(config) {
            Some(form) if problems.is_empty() => form,
            _ => return Err(problems),
        };
        Ok(HttpSink {
            connector,
            form,
            templates: config.templates(),
            timeout: Duration::from_millis(config.timeout_ms),
            answer_bytes_max: usize::try_from(config.answer_bytes_max).unwrap_or(usize::MAX),
            retried: Statuses::new(&config.retry_statuses)?,
        })
    }

    pub fn templates(&self) -> &[FieldTemplate] {
        &self.templates
    }

    async fn send_all(&self, batch: &[Record]) -> BatchOutcome {
        let mut outcome: BatchOutcome = vec![Ok(()); batch.len()];
        let mut good = Vec::with_capacity(batch.len());
        for (index, record) in batch.iter().enumerate() {
            match self.form.refusal(self.connector.base(), record) {
                Some(reason) => outcome[index] = Err(DeliveryFailure::Refused(reason)),
                None => good.push(index),
            }
        }
        let round = Instant::now() + BATCH_TIME_MAX;
        let lanes = lanes(batch, &good, |one, other| self.form.can_share_request(one, other));
        let results = join_all(lanes.iter().map(|lane| self.send_lane(batch, lane, round))).await;
        for (index, result) in results.into_iter().flatten() {
            outcome[index] = result;
        }
        outcome
    }

    /// Sends requests one after another. After a request that must be retried, the rest of the lane waits, so that it
    /// does not overtake.
    async fn send_lane(
        &self,
        batch: &[Record],
        lane: &[Vec<usize>],
        round: Instant,
    ) -> Vec<(usize, Result<(), DeliveryFailure>)> {
        let mut results = Vec::new();
        let mut stopped: Option<DeliveryFailure> = None;
        for group in lane {
            if let Some(failure) = &stopped {
                results.extend(group.iter().map(|&index| (index, Err(failure_of_unsent(failure)))));
                continue;
            }
            let records: Vec<Record> = group.iter().map(|&index| batch[index].clone()).collect();
            let key = |index: usize| records[index].key_hash();
            let outcome = isolate(records.len(), key, |part| self.attempt(&records, part, round)).await;
            let again = |result: &Result<(), DeliveryFailure>| match result {
                Err(
                    failure @ (DeliveryFailure::Unreachable(_)
                    | DeliveryFailure::Temporary(_)
                    | DeliveryFailure::NotSent),
                ) => Some(failure.clone()),
                _ => None,
            };
            stopped = outcome.iter().find_map(again);
            results.extend(group.iter().copied().zip(outcome));
        }
        results
    }

    fn attempt<'a>(&'a self, records: &[Record], part: Range<usize>, round: Instant) -> BoxFuture<'a, PartResult> {
        let request = self.form.request(&self.connector, &records[part]);
        Box::pin(async move {
            let request = match request {
                Ok(request) => request,
                Err(reason) => return PartResult::Rejected { at: None, reason },
            };
            if let Some(reason) = self.connector.pause_reason() {
                return PartResult::Failed(DeliveryFailure::Unreachable(reason));
            }
            let answer = self
                .connector
                .request(request, round, self.timeout, self.answer_bytes_max)
                .await;
            match answer.map(|answer| classify(&answer, &self.retried)) {
                Ok(result) => self.part(result),
                Err(RequestFailure::NotStarted) => PartResult::Failed(DeliveryFailure::NotSent),
                Err(RequestFailure::Unreachable(reason)) => PartResult::Failed(DeliveryFailure::Unreachable(reason)),
                Err(RequestFailure::ConnectionLost(reason) | RequestFailure::TimedOut(reason)) => {
                    PartResult::Failed(DeliveryFailure::Temporary(reason))
                }
            }
        })
    }

    fn part(&self, result: StatusResult) -> PartResult {
        match result {
            StatusResult::Accepted => PartResult::Accepted,
            StatusResult::Unreachable { reason, pause } => {
                if let Some(pause) = pause {
                    self.connector.pause_for(pause);
                }
                PartResult::Failed(DeliveryFailure::Unreachable(reason))
            }
            StatusResult::Temporary(reason) => PartResult::Temporary(reason),
            StatusResult::Rejected(reason) => PartResult::Failed(DeliveryFailure::Refused(reason)),
            StatusResult::RecordRejected(reason) => PartResult::Rejected { at: None, reason },
        }
    }
}

/// Returns lanes, which may run concurrently, of groups, which share a request. A group consists of record indexes.
///
/// Without batches a lane is an ordering key, and a group one record. With batches, neighbouring records that fit
/// together share a group regardless of their key. There is one lane then, because each group may contain any key.
fn lanes(batch: &[Record], good: &[usize], fit: impl Fn(&Record, &Record) -> bool) -> Vec<Vec<Vec<usize>>> {
    let is_batched = good.first().is_some_and(|&first| fit(&batch[first], &batch[first]));
    if is_batched {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for &index in good {
            match groups.last_mut() {
                Some(group) if fit(&batch[group[0]], &batch[index]) => group.push(index),
                _ => groups.push(vec![index]),
            }
        }
        return vec![groups];
    }
    let mut lane_of_key = HashMap::new();
    let mut lanes: Vec<Vec<Vec<usize>>> = Vec::new();
    for &index in good {
        let lane = *lane_of_key.entry(batch[index].key_hash()).or_insert_with(|| {
            lanes.push(Vec::new());
            lanes.len() - 1
        });
        lanes[lane].push(vec![index]);
    }
    lanes
}

impl Sink for HttpSink {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome> {
        Box::pin(self.send_all(batch))
    }

    fn limits_requests(&self) -> bool {
        true
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.connector.check())
    }
}
