//! Finds the rejected records of a batch that the target accepts only as a whole.
//!
//! Parts of the batch are sent from left to right, so that records keep their order. If the target names the rejected
//! record, the part is split there; otherwise it is halved. One bad record among 1000 costs about 20 more requests.
//!
//! A temporary error may have its cause in one record. Such a part is halved as well, until two single records have
//! failed in this way. Then the target itself is taken to be the cause.

use std::ops::Range;
use std::time::Duration;

use crate::sink::{BatchOutcome, BoxFuture, DeliveryFailure};

/// Maximum time for one batch. Afterwards no further part is sent; the results so far are returned and the rest is
/// retried.
pub(crate) const BATCH_TIME_MAX: Duration = Duration::from_secs(5);

/// Result of sending one part.
pub(crate) enum PartResult {
    Accepted,
    /// The target rejected at least one record. `at` is its index in the batch, if the target names it.
    Rejected {
        at: Option<usize>,
        reason: String,
    },
    /// Nothing was stored, possibly because of one record. The part must be sent again.
    Temporary(String),
    /// Nothing was stored, and no record is the cause.
    Failed(DeliveryFailure),
}

/// After this many single records with a temporary error, no further part is sent.
const TEMPORARY_FAILURES_MAX: usize = 2;

/// Sends the records `0..records` in parts. After a part that must be retried as a whole, nothing behind it is sent.
/// After a temporary error of a single record, no later record with its key is sent.
pub(crate) async fn isolate<'a>(
    records: usize,
    key: impl Fn(usize) -> u64,
    mut attempt: impl FnMut(Range<usize>) -> BoxFuture<'a, PartResult>,
) -> BatchOutcome {
    let mut outcome: BatchOutcome = vec![Ok(()); records];
    // Stack: the last part is sent next.
    let mut parts = Vec::new();
    parts.push(0..records);
    let mut failed_keys: Vec<u64> = Vec::new();
    while let Some(mut part) = parts.pop() {
        let is_behind = |index: &usize| failed_keys.contains(&key(*index));
        if !failed_keys.is_empty()
            && let Some(at) = part.clone().find(is_behind)
        {
            outcome[at] = Err(DeliveryFailure::NotSent);
            parts.push(at + 1..part.end);
            part.end = at;
        }
        if part.is_empty() {
            continue;
        }
        match attempt(part.clone()).await {
            PartResult::Accepted => {}
            PartResult::Rejected { at, reason } => match at.filter(|at| part.contains(at)) {
                Some(at) => {
                    outcome[at] = Err(DeliveryFailure::Refused(reason));
                    parts.push(at + 1..part.end);
                    parts.push(part.start..at);
                }
                None if part.len() == 1 => outcome[part.start] = Err(DeliveryFailure::Refused(reason)),
                None => {
                    let middle = part.start + part.len() / 2;
                    parts.push(middle..part.end);
                    parts.push(part.start..middle);
                }
            },
            PartResult::Temporary(reason) if part.len() == 1 => {
                outcome[part.start] = Err(DeliveryFailure::Temporary(reason));
                failed_keys.push(key(part.start));
                if failed_keys.len() == TEMPORARY_FAILURES_MAX {
                    parts
                        .drain(..)
                        .flatten()
                        .for_each(|index| outcome[index] = Err(DeliveryFailure::NotSent));
                }
            }
            PartResult::Temporary(_) => {
                let middle = part.start + part.len() / 2;
                parts.push(middle..part.end);
                parts.push(part.start..middle);
            }
            PartResult::Failed(failure @ DeliveryFailure::Refused(_)) => outcome[part].fill(Err(failure)),
            PartResult::Failed(failure) => {
                for index in parts.drain(..).flatten() {
                    outcome[index] = Err(failure_of_unsent(&failure));
                }
                outcome[part].fill(Err(failure));
            }
        }
    }
    outcome
}

/// Returns the result of records that were not sent because an earlier record must be retried first.
pub(crate) fn failure_of_unsent(before: &DeliveryFailure) -> DeliveryFailure {
    match before {
        DeliveryFailure::Unreachable(reason) => DeliveryFailure::Unreachable(reason.clone()),
        _ => DeliveryFailure::NotSent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(records: usize, mut try_part: impl FnMut(Range<usize>) -> PartResult) -> BatchOutcome {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        // Each key has two records.
        let key = |index: usize| index as u64 / 2;
        runtime.block_on(isolate(records, key, |part| {
            let result = try_part(part);
            Box::pin(async move { result })
        }))
    }

    fn refused(outcome: &BatchOutcome) -> Vec<usize> {
        let is_refused = |index: &usize| matches!(outcome[*index], Err(DeliveryFailure::Refused(_)));
        (0..outcome.len()).filter(is_refused).collect()
    }

    #[test]
    fn bad_records_are_rejected_and_others_accepted_in_order() {
        for names in [true, false] {
            let (bad, mut taken, mut tries) = ([0, 3, 4, 99], Vec::new(), 0);
            let outcome = run(100, |part| {
                tries += 1;
                match part.clone().find(|index| bad.contains(index)) {
                    Some(at) => PartResult::Rejected {
                        at: names.then_some(at),
                        reason: "bad".to_owned(),
                    },
                    None => {
                        taken.extend(part);
                        PartResult::Accepted
                    }
                }
            });
            assert_eq!(refused(&outcome), bad);
            let good: Vec<usize> = (0..100).filter(|index| !bad.contains(index)).collect();
            assert_eq!(taken, good);
            assert!(tries <= 60, "{tries} tries");
        }
    }

    #[test]
    fn records_to_retry_are_not_overtaken() {
        let outcome = run(4, |part| match part.len() {
            4 => PartResult::Rejected {
                at: Some(1),
                reason: "bad".to_owned(),
            },
            _ => PartResult::Failed(DeliveryFailure::Temporary("locked".to_owned())),
        });
        assert_eq!(outcome[0], Err(DeliveryFailure::Temporary("locked".to_owned())));
        assert_eq!(outcome[1], Err(DeliveryFailure::Refused("bad".to_owned())));
        assert!(
            outcome[2..]
                .iter()
                .all(|result| *result == Err(DeliveryFailure::NotSent))
        );
    }

    #[test]
    fn a_temporary_error_delays_only_records_of_its_key() {
        let (bad, mut taken, mut tries) = (400, Vec::new(), 0);
        let outcome = run(1000, |part| {
            tries += 1;
            match part.contains(&bad) {
                true => PartResult::Temporary("500".to_owned()),
                false => {
                    taken.extend(part);
                    PartResult::Accepted
                }
            }
        });
        assert_eq!(outcome[bad], Err(DeliveryFailure::Temporary("500".to_owned())));
        assert_eq!(outcome[bad + 1], Err(DeliveryFailure::NotSent));
        let others: Vec<usize> = (0..1000).filter(|index| *index != bad && *index != bad + 1).collect();
        assert_eq!(taken, others);
        assert!(tries <= 22, "{tries} tries");
    }

    #[test]
    fn a_failing_target_receives_only_a_few_requests() {
        let mut tries = 0;
        let outcome = run(1000, |_| {
            tries += 1;
            PartResult::Temporary("500".to_owned())
        });
        let busy = outcome
            .iter()
            .filter(|result| matches!(result, Err(DeliveryFailure::Temporary(_))))
            .count();
        let untried = outcome
            .iter()
            .filter(|result| **result == Err(DeliveryFailure::NotSent))
            .count();
        assert_eq!((busy, untried), (2, 998));
        assert!(tries <= 14, "{tries} tries");
    }

    #[test]
    fn nothing_is_sent_after_the_target_becomes_unreachable() {
        let mut tries = 0;
        let outcome = run(8, |part| {
            tries += 1;
            match tries {
                1 => PartResult::Rejected {
                    at: Some(2),
                    reason: "bad".to_owned(),
                },
                2 => PartResult::Accepted,
                _ => {
                    assert_eq!(part, 3..8);
                    PartResult::Failed(DeliveryFailure::Unreachable("gone".to_owned()))
                }
            }
        });
        assert_eq!((tries, refused(&outcome)), (3, vec![2]));
        assert!(outcome[..2].iter().all(Result::is_ok));
        assert!(
            outcome[3..]
                .iter()
                .all(|result| matches!(result, Err(DeliveryFailure::Unreachable(_))))
        );
    }
}
