//! The action: which records share a request, and what goes on at a time.
//!
//! Records of one ordering key go one request after the other; keys go side by side, as far as the connector has connections.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::client::{HttpConnector, NoAnswer};
use super::config::HttpActionConfig;
use super::request::Form;
use super::status::{Statuses, Verdict, verdict};
use crate::isolate::{Part, ROUND, held_back, isolate};
use crate::record::Record;
use crate::sink::{BoxFuture, Failure, Outcome, Sink, Template};

pub struct HttpSink {
    connector: Arc<HttpConnector>,
    form: Form,
    templates: Vec<Template>,
    timeout: Duration,
    answer_bytes_max: usize,
    retried: Statuses,
}

impl HttpSink {
    /// The errors name the fields.
    pub fn new(connector: Arc<HttpConnector>, config: &HttpActionConfig) -> Result<HttpSink, Vec<String>> {
        let problems = config.problems();
        let form = match Form::new(config) {
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

    pub fn templates(&self) -> &[Template] {
        &self.templates
    }

    async fn send_all(&self, batch: &[Record]) -> Outcome {
        let mut outcome: Outcome = vec![Ok(()); batch.len()];
        let mut good = Vec::with_capacity(batch.len());
        for (index, record) in batch.iter().enumerate() {
            match self.form.refusal(record) {
                Some(reason) => outcome[index] = Err(Failure::Refused(reason)),
                None => good.push(index),
            }
        }
        let round = Instant::now() + ROUND;
        let lanes = lanes(batch, &good, |one, other| self.form.fit_together(one, other));
        let results = join_all(lanes.iter().map(|lane| self.send_lane(batch, lane, round))).await;
        for (index, result) in results.into_iter().flatten() {
            outcome[index] = result;
        }
        outcome
    }

    /// One request after the other. Behind one that is to be sent again the rest of the lane waits: it must not overtake.
    async fn send_lane(
        &self,
        batch: &[Record],
        lane: &[Vec<usize>],
        round: Instant,
    ) -> Vec<(usize, Result<(), Failure>)> {
        let mut results = Vec::new();
        let mut stopped: Option<Failure> = None;
        for group in lane {
            if let Some(failure) = &stopped {
                results.extend(group.iter().map(|&index| (index, Err(held_back(failure)))));
                continue;
            }
            let records: Vec<Record> = group.iter().map(|&index| batch[index].clone()).collect();
            let key = |index: usize| records[index].key_hash();
            let outcome = isolate(records.len(), key, |part| self.attempt(&records, part, round)).await;
            let again = |result: &Result<(), Failure>| match result {
                Err(failure @ (Failure::Away(_) | Failure::Busy(_) | Failure::Untried)) => Some(failure.clone()),
                _ => None,
            };
            stopped = outcome.iter().find_map(again);
            results.extend(group.iter().copied().zip(outcome));
        }
        results
    }

    fn attempt<'a>(&'a self, records: &[Record], part: Range<usize>, round: Instant) -> BoxFuture<'a, Part> {
        let request = self.form.request(&self.connector, &records[part]);
        Box::pin(async move {
            let request = match request {
                Ok(request) => request,
                Err(reason) => return Part::Poisoned { at: None, reason },
            };
            if let Some(reason) = self.connector.silence() {
                return Part::Failed(Failure::Away(reason));
            }
            let answer = self
                .connector
                .request(request, round, self.timeout, self.answer_bytes_max)
                .await;
            match answer.map(|answer| verdict(&answer, &self.retried)) {
                Ok(verdict) => self.part(verdict),
                Err(NoAnswer::NotBegun) => Part::Failed(Failure::Untried),
                Err(NoAnswer::Unreachable(reason)) => Part::Failed(Failure::Away(reason)),
                Err(NoAnswer::Lost(reason) | NoAnswer::Late(reason)) => Part::Failed(Failure::Busy(reason)),
            }
        })
    }

    fn part(&self, verdict: Verdict) -> Part {
        match verdict {
            Verdict::Taken => Part::Taken,
            Verdict::Away { reason, pause } => {
                if let Some(pause) = pause {
                    self.connector.be_silent_for(pause);
                }
                Part::Failed(Failure::Away(reason))
            }
            Verdict::Busy(reason) => Part::Stumbled(reason),
            Verdict::Refused(reason) => Part::Failed(Failure::Refused(reason)),
            Verdict::Poisoned(reason) => Part::Poisoned { at: None, reason },
        }
    }
}

/// Indexes of records: lanes that may run side by side, of groups that share a request.
///
/// Without batches a lane is an ordering key, and a group one record. With batches records that fit together share a
/// group whatever their key; then there is one lane, as a key may be in any group.
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
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, Outcome> {
        Box::pin(self.send_all(batch))
    }

    fn limits_requests(&self) -> bool {
        true
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.connector.check())
    }
}
