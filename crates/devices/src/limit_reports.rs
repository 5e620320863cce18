//! Log lines about tenants and devices that exceed a limit: one line per entity, limit and hour.

use std::sync::Mutex;

use hashbrown::HashMap;
use platform::ids::Uuid;

use crate::mutex::lock;

const PERIOD_MS: i64 = 3_600_000;
/// Entities that are remembered. Beyond that, no line is written until the hour of others is over.
const ENTITIES_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReportedLimit {
    /// Work for one message in rule chains.
    MessageWork,
    /// Keys of telemetry and attributes.
    Keys,
}

#[derive(Default)]
pub struct LimitReports(Mutex<HashMap<(ReportedLimit, Uuid), i64, foldhash::fast::RandomState>>);

impl LimitReports {
    /// Whether to write a line now.
    pub fn is_due(&self, limit: ReportedLimit, entity: Uuid, now_ms: i64) -> bool {
        let mut reported = lock(&self.0);
        let is_recent = |at_ms: &i64| now_ms.saturating_sub(*at_ms) < PERIOD_MS;
        if reported.get(&(limit, entity)).is_some_and(is_recent) {
            return false;
        }
        if reported.len() >= ENTITIES_MAX {
            reported.retain(|_, at_ms| is_recent(at_ms));
        }
        if reported.len() >= ENTITIES_MAX {
            return false;
        }
        reported.insert((limit, entity), now_ms);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entity_is_reported_once_per_hour() {
        let reports = LimitReports::default();
        let [one, other] = [1, 2].map(|n| Uuid([n; 16]));
        assert!(reports.is_due(ReportedLimit::Keys, one, 0));
        assert!(!reports.is_due(ReportedLimit::Keys, one, PERIOD_MS - 1));
        assert!(reports.is_due(ReportedLimit::Keys, other, 0));
        assert!(reports.is_due(ReportedLimit::MessageWork, one, 0));
        assert!(reports.is_due(ReportedLimit::Keys, one, PERIOD_MS));
    }
}
