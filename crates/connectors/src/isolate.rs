//! Finds the records that a target refuses when it takes a batch whole or not at all.
//!
//! Parts of the batch are tried, left to right, so that records keep their order. Where the target names the record, the part
//! is cut there; where it does not, the part is halved. One bad record among 1000 costs some 20 more tries.
//!
//! A target that stumbles over a part may stumble over one record of it, every time: such a part is halved as well, until two records
//! alone were stumbled over. Then it is the target.

use std::ops::Range;
use std::time::Duration;

use crate::sink::{BoxFuture, Failure, Outcome};

/// After it no part of a batch is begun: what has been done is told, and the rest begins anew.
pub(crate) const ROUND: Duration = Duration::from_secs(5);

/// How a part went that was taken whole or not at all.
pub(crate) enum Part {
    Taken,
    /// One record at least is refused. `at`: its index in the batch, if the target says.
    Poisoned {
        at: Option<usize>,
        reason: String,
    },
    /// None was taken, and one record may be why: it is to be sent again.
    Stumbled(String),
    /// None was taken, for a reason that is no record's fault.
    Failed(Failure),
}

/// Records alone over which the target may stumble before nothing else is tried.
const STUMBLES_MAX: usize = 2;

/// Tries `0..records`. When a part is to be sent again nothing behind it is tried; when it is one record that is stumbled over, nothing of its key.
pub(crate) async fn isolate<'a>(
    records: usize,
    key: impl Fn(usize) -> u64,
    mut attempt: impl FnMut(Range<usize>) -> BoxFuture<'a, Part>,
) -> Outcome {
    let mut outcome: Outcome = vec![Ok(()); records];
    // The next part is the last one here.
    let mut parts = Vec::new();
    parts.push(0..records);
    let mut stumbled: Vec<u64> = Vec::new();
    while let Some(mut part) = parts.pop() {
        let is_behind = |index: &usize| stumbled.contains(&key(*index));
        if !stumbled.is_empty()
            && let Some(at) = part.clone().find(is_behind)
        {
            outcome[at] = Err(Failure::Untried);
            parts.push(at + 1..part.end);
            part.end = at;
        }
        if part.is_empty() {
            continue;
        }
        match attempt(part.clone()).await {
            Part::Taken => {}
            Part::Poisoned { at, reason } => match at.filter(|at| part.contains(at)) {
                Some(at) => {
                    outcome[at] = Err(Failure::Refused(reason));
                    parts.push(at + 1..part.end);
                    parts.push(part.start..at);
                }
                None if part.len() == 1 => outcome[part.start] = Err(Failure::Refused(reason)),
                None => {
                    let middle = part.start + part.len() / 2;
                    parts.push(middle..part.end);
                    parts.push(part.start..middle);
                }
            },
            Part::Stumbled(reason) if part.len() == 1 => {
                outcome[part.start] = Err(Failure::Busy(reason));
                stumbled.push(key(part.start));
                if stumbled.len() == STUMBLES_MAX {
                    parts
                        .drain(..)
                        .flatten()
                        .for_each(|index| outcome[index] = Err(Failure::Untried));
                }
            }
            Part::Stumbled(_) => {
                let middle = part.start + part.len() / 2;
                parts.push(middle..part.end);
                parts.push(part.start..middle);
            }
            Part::Failed(failure @ Failure::Refused(_)) => outcome[part].fill(Err(failure)),
            Part::Failed(failure) => {
                for index in parts.drain(..).flatten() {
                    outcome[index] = Err(held_back(&failure));
                }
                outcome[part].fill(Err(failure));
            }
        }
    }
    outcome
}

/// For records that were not tried, so as not to overtake one that is to be sent again.
pub(crate) fn held_back(before: &Failure) -> Failure {
    match before {
        Failure::Away(reason) => Failure::Away(reason.clone()),
        _ => Failure::Untried,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(records: usize, mut try_part: impl FnMut(Range<usize>) -> Part) -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        // Two records have a key.
        let key = |index: usize| index as u64 / 2;
        runtime.block_on(isolate(records, key, |part| {
            let result = try_part(part);
            Box::pin(async move { result })
        }))
    }

    fn refused(outcome: &Outcome) -> Vec<usize> {
        let is_refused = |index: &usize| matches!(outcome[*index], Err(Failure::Refused(_)));
        (0..outcome.len()).filter(is_refused).collect()
    }

    #[test]
    fn the_bad_ones_are_refused_and_all_others_are_taken_in_order() {
        for names in [true, false] {
            let (bad, mut taken, mut tries) = ([0, 3, 4, 99], Vec::new(), 0);
            let outcome = run(100, |part| {
                tries += 1;
                match part.clone().find(|index| bad.contains(index)) {
                    Some(at) => Part::Poisoned {
                        at: names.then_some(at),
                        reason: "bad".to_owned(),
                    },
                    None => {
                        taken.extend(part);
                        Part::Taken
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
    fn what_is_to_be_sent_again_is_not_overtaken() {
        let outcome = run(4, |part| match part.len() {
            4 => Part::Poisoned {
                at: Some(1),
                reason: "bad".to_owned(),
            },
            _ => Part::Failed(Failure::Busy("locked".to_owned())),
        });
        assert_eq!(outcome[0], Err(Failure::Busy("locked".to_owned())));
        assert_eq!(outcome[1], Err(Failure::Refused("bad".to_owned())));
        assert!(outcome[2..].iter().all(|result| *result == Err(Failure::Untried)));
    }

    #[test]
    fn one_that_is_stumbled_over_holds_back_its_key_alone() {
        let (bad, mut taken, mut tries) = (400, Vec::new(), 0);
        let outcome = run(1000, |part| {
            tries += 1;
            match part.contains(&bad) {
                true => Part::Stumbled("500".to_owned()),
                false => {
                    taken.extend(part);
                    Part::Taken
                }
            }
        });
        assert_eq!(outcome[bad], Err(Failure::Busy("500".to_owned())));
        assert_eq!(outcome[bad + 1], Err(Failure::Untried));
        let others: Vec<usize> = (0..1000).filter(|index| *index != bad && *index != bad + 1).collect();
        assert_eq!(taken, others);
        assert!(tries <= 22, "{tries} tries");
    }

    #[test]
    fn a_target_that_stumbles_over_everything_is_not_asked_for_each_record() {
        let mut tries = 0;
        let outcome = run(1000, |_| {
            tries += 1;
            Part::Stumbled("500".to_owned())
        });
        let busy = outcome
            .iter()
            .filter(|result| matches!(result, Err(Failure::Busy(_))))
            .count();
        let untried = outcome
            .iter()
            .filter(|result| **result == Err(Failure::Untried))
            .count();
        assert_eq!((busy, untried), (2, 998));
        assert!(tries <= 14, "{tries} tries");
    }

    #[test]
    fn nothing_is_tried_after_the_target_went_away() {
        let mut tries = 0;
        let outcome = run(8, |part| {
            tries += 1;
            match tries {
                1 => Part::Poisoned {
                    at: Some(2),
                    reason: "bad".to_owned(),
                },
                2 => Part::Taken,
                _ => {
                    assert_eq!(part, 3..8);
                    Part::Failed(Failure::Away("gone".to_owned()))
                }
            }
        });
        assert_eq!((tries, refused(&outcome)), (3, vec![2]));
        assert!(outcome[..2].iter().all(Result::is_ok));
        assert!(
            outcome[3..]
                .iter()
                .all(|result| matches!(result, Err(Failure::Away(_))))
        );
    }
}
