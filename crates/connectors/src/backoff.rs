//! Pauses between tries: each twice as long as the one before, up to a longest one, give or take a fifth, so that many that
//! lost the same target do not come back together.

use std::time::Duration;

use crate::config::RetryConfig;

/// How far a pause is shortened or lengthened at most: one part in so many.
const JITTER: u64 = 5;

#[derive(Clone, Debug)]
pub struct Backoff {
    first_ms: u64,
    longest_ms: u64,
    next_ms: u64,
}

impl Backoff {
    pub fn new(config: &RetryConfig) -> Backoff {
        Backoff {
            first_ms: config.first_ms.max(1),
            longest_ms: config.longest_ms.max(1),
            next_ms: config.first_ms.max(1),
        }
    }

    /// How long to wait now.
    pub fn pause(&mut self) -> Duration {
        let pause_ms = self.next_ms.min(self.longest_ms);
        self.next_ms = pause_ms.saturating_mul(2);
        let spread = pause_ms / JITTER;
        let jitter = match spread {
            0 => 0,
            // Without randomness pauses are only less spread.
            _ => getrandom::u64().unwrap_or(spread) % (2 * spread + 1),
        };
        Duration::from_millis(pause_ms - spread + jitter)
    }

    /// It went well: the next pause is a first one.
    pub fn reset(&mut self) {
        self.next_ms = self.first_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_begin_anew() {
        let config = RetryConfig {
            first_ms: 100,
            longest_ms: 1000,
            tries_max: None,
        };
        let mut backoff = Backoff::new(&config);
        for expected in [100, 200, 400, 800, 1000, 1000] {
            let pause = backoff.pause().as_millis() as u64;
            assert!(pause.abs_diff(expected) <= expected / 5, "{pause} for {expected}");
        }
        backoff.reset();
        assert!(backoff.pause().as_millis() <= 120);
    }
}
