//! Exponential back-off. Each pause is twice the previous one, up to a maximum. A random jitter of up to 20 % keeps
//! clients of the same target from retrying at the same moment.

use std::time::Duration;

use crate::config::RetryConfig;

/// The jitter is at most `1 / JITTER` of a pause, in either direction.
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

    /// Returns the next pause, and doubles the one after it.
    pub fn pause(&mut self) -> Duration {
        let pause_ms = self.next_ms.min(self.longest_ms);
        self.next_ms = pause_ms.saturating_mul(2);
        let spread = pause_ms / JITTER;
        let jitter = match spread {
            0 => 0,
            // Without a random number the pause has no jitter.
            _ => getrandom::u64().unwrap_or(spread) % (2 * spread + 1),
        };
        Duration::from_millis(pause_ms - spread + jitter)
    }

    /// Resets the pause after a success.
    pub fn reset(&mut self) {
        self.next_ms = self.first_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum_until_reset() {
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
