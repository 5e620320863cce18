//! A token bucket that connections on several threads share.
//!
//! It is the generic cell rate algorithm: one atomic word is the time at which the bucket will be full. Taking tokens
//! moves this time forward, and returning them moves it back. No lock is taken, and a time that has passed needs no
//! update, so an idle bucket costs nothing.
//!
//! Fairness: a caller that must wait reserves its tokens at once, and learns when they are available. Later callers
//! reserve behind it. So callers wait in the order of their requests, whatever thread they are on, and none of them can
//! take tokens that another one waits for. While several callers wait, each reserves an equal part of what flows in. It
//! may find more than that, because timers are late. Then it takes an equal part, and lets the others take theirs.
//!
//! A request above the capacity of the bucket waits until the bucket is full, and leaves a debt for which later callers
//! wait. The bucket never limits the size of a request.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::timer::TICK_MS;

const NS_PER_MS: u64 = 1_000_000;

/// Longest period, so that times do not overflow.
const YEAR_MS: u64 = 365 * 86_400_000;

/// At most this part of the available tokens is granted in advance, so that callers on other threads find some.
const ADVANCE_PART: u64 = 8;

/// An amount per period. After a period without use, the whole amount is available at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRate {
    pub amount: u64,
    pub period_ms: u64,
}

impl TokenRate {
    fn period_ns(self) -> u64 {
        self.period_ms.clamp(1, YEAR_MS) * NS_PER_MS
    }

    /// Returns the time in which so many tokens flow in.
    fn cost_ns(self, tokens: u64) -> u64 {
        (tokens as f64 * self.period_ns() as f64 / self.amount.max(1) as f64).floor() as u64
    }

    fn tokens_in(self, ns: u64) -> u64 {
        (ns as f64 * self.amount as f64 / self.period_ns() as f64) as u64
    }

    /// Distinguishes rates. Not 0, which stands for a bucket without a rate.
    fn tag(self) -> u64 {
        (self.amount.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.period_ms) | 1
    }
}

/// Tokens that a caller owns from `ready_at_ms` on, in monotonic milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedTokens {
    pub tokens: u64,
    /// Not in the future if the tokens are available now.
    pub ready_at_ms: u64,
}

#[derive(Debug, Default)]
pub struct TokenBucket {
    /// Time at which the bucket is full, in nanoseconds of the monotonic clock.
    full_at_ns: AtomicU64,
    /// `TokenRate::tag` of the rate that `full_at_ns` belongs to.
    rate: AtomicU64,
    /// Number of callers that wait for their tokens.
    waiting: AtomicU32,
}

impl TokenBucket {
    /// Takes `needed` tokens, or reserves them for later. The caller can use up to `spare` more. It gets some of them
    /// if the tokens are available now. If it must wait, it may get more than it needs, and returns the rest.
    pub fn take(&self, rate: TokenRate, now_ms: u64, needed: u64, spare: u64) -> GrantedTokens {
        self.set_rate(rate);
        let now_ns = now_ms.saturating_mul(NS_PER_MS);
        let capacity_ns = rate.period_ns();
        let mut before = self.full_at_ns.load(Ordering::Relaxed);
        loop {
            let start = before.max(now_ns);
            let ready_ns = |tokens| {
                let cost_ns = rate.cost_ns(tokens).min(capacity_ns);
                start.saturating_sub(capacity_ns - cost_ns)
            };
            let wait_ns = ready_ns(needed).saturating_sub(now_ns);
            let tokens = match wait_ns {
                0 => needed + spare.min(rate.tokens_in(now_ns - ready_ns(needed)) / ADVANCE_PART),
                _ => needed.max(self.turn(rate)),
            };
            let ready_ns = if wait_ns == 0 { now_ns } else { ready_ns(tokens) };
            let after = start.saturating_add(rate.cost_ns(tokens));
            let exchanged = self
                .full_at_ns
                .compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed);
            match exchanged {
                Ok(_) => {
                    let ready_at_ms = ready_ns.div_ceil(NS_PER_MS);
                    return GrantedTokens { tokens, ready_at_ms };
                }
                Err(actual) => before = actual,
            }
        }
    }

    /// Takes one token if it is available now.
    pub fn try_take(&self, rate: TokenRate, now_ms: u64) -> bool {
        self.set_rate(rate);
        let now_ns = now_ms.saturating_mul(NS_PER_MS);
        let taken = self
            .full_at_ns
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |full_at_ns| {
                let after = full_at_ns.max(now_ns).saturating_add(rate.cost_ns(1));
                (after <= now_ns.saturating_add(rate.period_ns())).then_some(after)
            });
        taken.is_ok()
    }

    /// Returns tokens that the caller has not used.
    pub fn give_back(&self, rate: TokenRate, tokens: u64) {
        if tokens == 0 || self.rate.load(Ordering::Relaxed) != rate.tag() {
            return;
        }
        let cost_ns = rate.cost_ns(tokens);
        let _ = self
            .full_at_ns
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |full_at_ns| {
                Some(full_at_ns.saturating_sub(cost_ns))
            });
    }

    /// A caller begins to wait for its tokens.
    pub fn begin_wait(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// A caller waits no longer.
    pub fn end_wait(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether the bucket is full, so that a new one would behave in the same way.
    pub fn is_full(&self, now_ms: u64) -> bool {
        self.full_at_ns.load(Ordering::Relaxed) <= now_ms.saturating_mul(NS_PER_MS)
    }

    /// Returns whether other callers wait for tokens.
    pub fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Returns the equal part of a caller while others wait: what flows in during a tick of the timers, divided by all.
    /// At least 1.
    pub fn turn(&self, rate: TokenRate) -> u64 {
        let callers = u64::from(self.waiting.load(Ordering::Relaxed)) + 1;
        rate.tokens_in(TICK_MS * NS_PER_MS / callers)
            .clamp(1, rate.amount.max(1))
    }

    /// Fills the bucket if its rate has changed, because a debt lasts for another time at the new rate. While shards
    /// apply a change one after the other, the bucket may be filled several times.
    fn set_rate(&self, rate: TokenRate) {
        let tag = rate.tag();
        if self.rate.load(Ordering::Relaxed) != tag {
            self.rate.store(tag, Ordering::Relaxed);
            self.full_at_ns.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START_MS: u64 = 1 << 42;
    const TEN_PER_S: TokenRate = TokenRate {
        amount: 10,
        period_ms: 1000,
    };

    /// Takes one token and returns how long the caller waits for it.
    fn wait_ms(bucket: &TokenBucket, rate: TokenRate, at_ms: u64) -> u64 {
        bucket.take(rate, at_ms, 1, 0).ready_at_ms.saturating_sub(at_ms)
    }

    #[test]
    fn burst_is_one_period_and_then_the_rate() {
        let bucket = TokenBucket::default();
        let waits: Vec<u64> = (0..13).map(|_| wait_ms(&bucket, TEN_PER_S, START_MS)).collect();
        assert_eq!(waits, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100, 200, 300]);
        assert_eq!(wait_ms(&bucket, TEN_PER_S, START_MS + 300), 100);
        assert!(!bucket.is_full(START_MS + 1399) && bucket.is_full(START_MS + 1400));
        let later = START_MS + 1_000_000;
        let free = (0..20).filter(|_| wait_ms(&bucket, TEN_PER_S, later) == 0).count();
        assert_eq!(free, 10, "at most one period accumulates");
    }

    #[test]
    fn whole_amount_is_available_if_it_does_not_divide_the_period() {
        for amount in [3, 6, 7, 15, 60, 90, 600, 999] {
            let rate = TokenRate {
                amount,
                period_ms: 1000,
            };
            let (bucket, waited) = (TokenBucket::default(), TokenBucket::default());
            for token in 1..=amount {
                assert!(bucket.try_take(rate, START_MS), "{token} of {amount}");
                assert_eq!(wait_ms(&waited, rate, START_MS), 0, "{token} of {amount}");
            }
            assert!(!bucket.try_take(rate, START_MS), "{amount}");
        }
    }

    #[test]
    fn large_request_waits_for_a_full_bucket_and_leaves_a_debt() {
        let bucket = TokenBucket::default();
        let large = |at_ms| bucket.take(TEN_PER_S, at_ms, 35, 0).ready_at_ms;
        assert_eq!(large(START_MS), START_MS, "the bucket is full");
        assert_eq!(wait_ms(&bucket, TEN_PER_S, START_MS), 2600);
        assert_eq!(large(START_MS + 100), START_MS + 3600, "full after 3.6 s");
        assert_eq!(wait_ms(&bucket, TEN_PER_S, START_MS + 100), 6100);
    }

    #[test]
    fn clock_jumps_grant_at_most_one_burst() {
        let bucket = TokenBucket::default();
        (0..10).for_each(|_| assert_eq!(wait_ms(&bucket, TEN_PER_S, START_MS), 0));
        // Another thread reads the clock a little earlier.
        assert_eq!(wait_ms(&bucket, TEN_PER_S, START_MS - 5), 105);
        let free = |at_ms| (0..30).filter(|_| wait_ms(&bucket, TEN_PER_S, at_ms) == 0).count();
        assert_eq!(free(START_MS + 86_400_000), 10);
        assert_eq!(free(START_MS), 0, "the clock has gone back");
    }

    #[test]
    fn times_far_in_the_future_do_not_overflow() {
        for amount in [1, 10] {
            let slow = TokenRate {
                amount,
                period_ms: u64::MAX,
            };
            let bucket = TokenBucket::default();
            assert_eq!(wait_ms(&bucket, slow, START_MS), 0);
            bucket.take(slow, START_MS, u64::MAX, 0);
            for _ in 0..1000 {
                assert!(wait_ms(&bucket, slow, START_MS) > 86_400_000);
            }
        }
    }

    #[test]
    fn unused_tokens_are_returned() {
        let bucket = TokenBucket::default();
        let rate = TokenRate {
            amount: 8000,
            period_ms: 1000,
        };
        let granted = bucket.take(rate, START_MS, 1, 2000);
        assert_eq!(granted.tokens, 1 + 7999 / ADVANCE_PART, "only a part in advance");
        assert_eq!(granted.ready_at_ms, START_MS);
        bucket.give_back(rate, granted.tokens - 1);
        assert_eq!(bucket.take(rate, START_MS, 7999, 0).ready_at_ms, START_MS);
        assert!(bucket.take(rate, START_MS, 1, 0).ready_at_ms > START_MS);
    }

    #[test]
    fn changed_rate_clears_the_debt() {
        let bucket = TokenBucket::default();
        bucket.take(TEN_PER_S, START_MS, 10_000, 0);
        let faster = TokenRate {
            amount: 20,
            ..TEN_PER_S
        };
        bucket.give_back(faster, 10);
        assert_eq!(wait_ms(&bucket, faster, START_MS), 0);
        bucket.give_back(TEN_PER_S, 1000);
        assert!(!bucket.is_full(START_MS));
    }

    #[test]
    fn waiting_callers_get_equal_parts() {
        let rate = TokenRate {
            amount: 16_000,
            period_ms: 1000,
        };
        let bucket = TokenBucket::default();
        bucket.take(rate, START_MS, 16_000, 0);
        let mut total = [0; 4];
        let mut due = [START_MS; 4];
        let mut waits = [false; 4];
        for at_ms in (START_MS..START_MS + 4000).step_by(16) {
            for caller in 0..4 {
                // Each caller uses everything that it gets, for as long as it gets something.
                while due[caller] <= at_ms {
                    if std::mem::take(&mut waits[caller]) {
                        bucket.end_wait();
                    }
                    let granted = bucket.take(rate, at_ms, 1, 0);
                    total[caller] += granted.tokens;
                    due[caller] = granted.ready_at_ms;
                    if granted.ready_at_ms > at_ms {
                        waits[caller] = true;
                        bucket.begin_wait();
                    }
                }
            }
        }
        let sum: u64 = total.iter().sum();
        assert!((63_000..=65_000).contains(&sum), "{sum}");
        assert!(total.iter().all(|part| (14_000..=18_000).contains(part)), "{total:?}");
    }

    #[test]
    fn threads_together_get_the_rate() {
        let bucket = TokenBucket::default();
        let rate = TokenRate {
            amount: 1000,
            period_ms: 1000,
        };
        let taken: usize = std::thread::scope(|scope| {
            let take = || (0..5000).filter(|_| wait_ms(&bucket, rate, START_MS) == 0).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("the thread does not panic"))
                .sum()
        });
        assert_eq!(taken, 1000);
    }
}
