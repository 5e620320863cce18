//! Estimate of the offset between an agent's clock and the run clock, from round trips: the shortest one is the most
//! exact.
//!
//! The agent reads its clock at some time between the sending of a ping and the arrival of its answer. The estimate is
//! the middle; its error is at most half the round trip, whatever the two one-way delays are.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Run clock minus the agent's clock.
    pub offset_ns: i64,
    pub error_ns: u64,
}

impl Estimate {
    pub fn of_round_trip(sent_ns: u64, received_ns: u64, agent_ns: u64) -> Estimate {
        let middle_ns = sent_ns + received_ns.saturating_sub(sent_ns) / 2;
        Estimate {
            offset_ns: middle_ns as i64 - agent_ns as i64,
            error_ns: received_ns.saturating_sub(sent_ns).div_ceil(2),
        }
    }

    /// Returns the more exact of two estimates.
    pub fn or(self, other: Estimate) -> Estimate {
        if other.error_ns < self.error_ns { other } else { self }
    }

    /// Returns the error of this estimate over a run, given another estimate from the end of the run.
    pub fn error_with_drift(self, later: Estimate) -> u64 {
        let moved_ns = self.offset_ns.abs_diff(later.offset_ns);
        // A difference within the error of the later estimate does not prove a drift.
        self.error_ns.max(moved_ns.saturating_sub(later.error_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn or_returns_shorter_round_trip() {
        let slow = Estimate::of_round_trip(1_000, 9_000, 500_000);
        let fast = Estimate::of_round_trip(20_000, 20_400, 515_300);
        assert_eq!((fast.offset_ns, fast.error_ns), (-495_100, 200));
        assert_eq!(slow.or(fast), fast);
        assert_eq!(fast.or(slow), fast);
    }

    #[test]
    fn error_with_drift_counts_drift_beyond_error() {
        let first = Estimate {
            offset_ns: 100,
            error_ns: 20,
        };
        assert_eq!(
            first.error_with_drift(Estimate {
                offset_ns: 110,
                error_ns: 30
            }),
            20
        );
        assert_eq!(
            first.error_with_drift(Estimate {
                offset_ns: 600,
                error_ns: 30
            }),
            470
        );
    }
}
