//! Answers of a source, for a limited time.
//!
//! Denials have a space of their own, so that a client that tries many passwords does not evict the answers that let
//! known clients reconnect. Each space evicts its oldest answer.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use auth::ProviderOutcome;

use crate::source::QuestionKey;

/// Part of the cache for answers that deny or ignore.
const DENIED_PART: usize = 4;
/// Maximum number of expired answers that are removed when one is stored. More would delay the workers.
const REMOVED_MAX: usize = 8;

pub(super) struct CacheLimits {
    pub size: usize,
    pub allowed: Duration,
    pub denied: Duration,
}

pub(super) struct AnswerCache {
    allowed: AnswerSpace,
    denied: AnswerSpace,
}

/// Answers of one kind, in the order in which they were stored.
struct AnswerSpace {
    size: usize,
    lifetime: Duration,
    answers: HashMap<QuestionKey, CachedAnswer>,
    /// May contain keys whose answer was replaced.
    order: VecDeque<(QuestionKey, u64)>,
    next_number: u64,
}

struct CachedAnswer {
    outcome: ProviderOutcome,
    until: Instant,
    number: u64,
}

impl AnswerCache {
    pub fn new(limits: CacheLimits) -> AnswerCache {
        let denied = limits.size.div_ceil(DENIED_PART);
        AnswerCache {
            allowed: AnswerSpace::new((limits.size - denied).max(limits.size.min(1)), limits.allowed),
            denied: AnswerSpace::new(denied, limits.denied),
        }
    }

    /// Returns the answer if it is still valid.
    pub fn get(&mut self, key: &QuestionKey, now: Instant, time: SystemTime) -> Option<ProviderOutcome> {
        let outcome = self.allowed.get(key, now).or_else(|| self.denied.get(key, now))?;
        // The clock may have been set since the answer was stored.
        (!is_expired(&outcome, time)).then_some(outcome)
    }

    /// Returns the number of answers, including expired ones that are not removed yet.
    pub fn len(&self) -> usize {
        self.allowed.answers.len() + self.denied.answers.len()
    }

    pub fn clear(&mut self) {
        for space in [&mut self.allowed, &mut self.denied] {
            space.answers.clear();
            space.order.clear();
        }
    }

    pub fn insert(&mut self, key: QuestionKey, outcome: &ProviderOutcome, now: Instant, time: SystemTime) {
        let (space, other) = match outcome {
            ProviderOutcome::Allow(_) => (&mut self.allowed, &mut self.denied),
            ProviderOutcome::Deny(_) | ProviderOutcome::Ignore => (&mut self.denied, &mut self.allowed),
        };
        other.answers.remove(&key);
        let lifetime = remaining(outcome, time).map_or(space.lifetime, |left| left.min(space.lifetime));
        space.insert(key, outcome, now, lifetime);
    }
}

impl AnswerSpace {
    fn new(size: usize, lifetime: Duration) -> AnswerSpace {
        AnswerSpace {
            size,
            lifetime,
            answers: HashMap::new(),
            order: VecDeque::new(),
            next_number: 0,
        }
    }

    fn get(&self, key: &QuestionKey, now: Instant) -> Option<ProviderOutcome> {
        let answer = self.answers.get(key).filter(|answer| now < answer.until)?;
        Some(answer.outcome.clone())
    }

    fn insert(&mut self, key: QuestionKey, outcome: &ProviderOutcome, now: Instant, lifetime: Duration) {
        self.answers.remove(&key);
        for _ in 0..REMOVED_MAX {
            let Some((oldest, number)) = self.order.front().copied() else {
                break;
            };
            let answer = self.answers.get(&oldest).filter(|answer| answer.number == number);
            if self.order.len() < self.size && answer.is_some_and(|answer| now < answer.until) {
                break;
            }
            if answer.is_some() {
                self.answers.remove(&oldest);
            }
            self.order.pop_front();
        }
        let until = now
            .checked_add(lifetime)
            .filter(|_| !lifetime.is_zero() && self.size > 0);
        let Some(until) = until else {
            return;
        };
        let number = self.next_number;
        self.next_number += 1;
        let outcome = outcome.clone();
        self.answers.insert(key, CachedAnswer { outcome, until, number });
        self.order.push_back((key, number));
    }
}

fn is_expired(outcome: &ProviderOutcome, time: SystemTime) -> bool {
    remaining(outcome, time).is_some_and(|left| left.is_zero())
}

/// Returns the time until the login expires, if it does.
fn remaining(outcome: &ProviderOutcome, time: SystemTime) -> Option<Duration> {
    match outcome {
        ProviderOutcome::Allow(login) => login.expires_at.map(|at| at.duration_since(time).unwrap_or_default()),
        ProviderOutcome::Deny(_) | ProviderOutcome::Ignore => None,
    }
}

#[cfg(test)]
mod tests {
    use auth::{DenyReason, Login};

    use super::*;

    const ALLOWED: Duration = Duration::from_secs(60);
    const DENIED: Duration = Duration::from_secs(10);

    struct Clock {
        now: Instant,
        time: SystemTime,
    }

    impl Clock {
        fn new() -> Clock {
            Clock {
                now: Instant::now(),
                time: SystemTime::now(),
            }
        }

        fn advance(&mut self, by: Duration) {
            self.now += by;
            self.time += by;
        }
    }

    fn cache(size: usize) -> AnswerCache {
        AnswerCache::new(CacheLimits {
            size,
            allowed: ALLOWED,
            denied: DENIED,
        })
    }

    fn key(number: u32) -> QuestionKey {
        QuestionKey::of(&[&number.to_le_bytes()])
    }

    fn allow() -> ProviderOutcome {
        ProviderOutcome::Allow(Box::new(Login::new(false)))
    }

    fn deny() -> ProviderOutcome {
        ProviderOutcome::Deny(DenyReason::NotAuthorized)
    }

    fn has(cache: &mut AnswerCache, number: u32, clock: &Clock) -> bool {
        cache.get(&key(number), clock.now, clock.time).is_some()
    }

    #[test]
    fn each_kind_of_answer_has_its_lifetime() {
        let (mut cache, mut clock) = (cache(100), Clock::new());
        for (number, outcome) in [(1, allow()), (2, deny()), (3, ProviderOutcome::Ignore)] {
            cache.insert(key(number), &outcome, clock.now, clock.time);
        }
        clock.advance(DENIED - Duration::from_millis(1));
        assert_eq!([1, 2, 3].map(|n| has(&mut cache, n, &clock)), [true, true, true]);
        clock.advance(Duration::from_millis(1));
        assert_eq!([1, 2, 3].map(|n| has(&mut cache, n, &clock)), [true, false, false]);
        clock.advance(ALLOWED - DENIED);
        assert!(!has(&mut cache, 1, &clock));
    }

    #[test]
    fn an_allowed_answer_ends_with_the_login() {
        let (mut cache, mut clock) = (cache(100), Clock::new());
        let mut login = Login::new(false);
        login.expires_at = Some(clock.time + Duration::from_secs(5));
        cache.insert(key(1), &ProviderOutcome::Allow(Box::new(login)), clock.now, clock.time);
        clock.advance(Duration::from_secs(4));
        assert!(has(&mut cache, 1, &clock));
        // The system clock is set forward; the monotonic one is not.
        clock.time += Duration::from_secs(1);
        assert!(!has(&mut cache, 1, &clock));
        clock.time -= Duration::from_secs(1);
        clock.advance(Duration::from_secs(1));
        assert!(!has(&mut cache, 1, &clock));
    }

    #[test]
    fn a_full_cache_evicts_the_oldest_answer_of_the_kind() {
        let (mut cache, clock) = (cache(8), Clock::new());
        for number in 0..7 {
            cache.insert(key(number), &allow(), clock.now, clock.time);
        }
        for number in 100..200 {
            cache.insert(key(number), &deny(), clock.now, clock.time);
        }
        assert!(!has(&mut cache, 0, &clock));
        assert!((1..7).all(|number| has(&mut cache, number, &clock)));
        assert_eq!(
            (100..200).filter(|n| has(&mut cache, *n, &clock)).collect::<Vec<_>>(),
            [198, 199]
        );
    }

    #[test]
    fn expired_answers_are_removed_a_few_at_a_time() {
        let (mut cache, mut clock) = (cache(1000), Clock::new());
        for number in 0..100 {
            cache.insert(key(number), &allow(), clock.now, clock.time);
        }
        clock.advance(ALLOWED);
        cache.insert(key(100), &allow(), clock.now, clock.time);
        assert_eq!(cache.allowed.answers.len(), 101 - REMOVED_MAX);
        for number in 101..120 {
            cache.insert(key(number), &allow(), clock.now, clock.time);
        }
        assert_eq!(cache.allowed.answers.len(), 20);
    }

    #[test]
    fn a_new_answer_replaces_the_old_one() {
        let (mut cache, clock) = (cache(8), Clock::new());
        cache.insert(key(1), &allow(), clock.now, clock.time);
        cache.insert(key(1), &deny(), clock.now, clock.time);
        let answer = cache.get(&key(1), clock.now, clock.time);
        assert!(matches!(answer, Some(ProviderOutcome::Deny(_))), "{answer:?}");
        for _ in 0..1000 {
            cache.insert(key(1), &allow(), clock.now, clock.time);
        }
        assert!(cache.allowed.order.len() <= 8 && cache.allowed.answers.len() == 1);
        assert!(matches!(
            cache.get(&key(1), clock.now, clock.time),
            Some(ProviderOutcome::Allow(_))
        ));
    }

    #[test]
    fn a_lifetime_or_a_size_of_zero_stores_nothing() {
        let clock = Clock::new();
        for (size, allowed) in [(0, ALLOWED), (8, Duration::ZERO)] {
            let denied = DENIED;
            let mut cache = AnswerCache::new(CacheLimits { size, allowed, denied });
            cache.insert(key(1), &allow(), clock.now, clock.time);
            assert!(!has(&mut cache, 1, &clock));
            assert!(cache.allowed.order.is_empty() && cache.allowed.answers.is_empty());
        }
    }
}
