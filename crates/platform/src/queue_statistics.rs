//! Results of messages per tenant and queue, counted as in ThingsBoard's rule engine.

use hashbrown::HashMap;

use crate::ids::{RuleChainId, TenantId};

/// Counts since the last call of `QueueStatistics::take`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueCounts {
    pub queue: Box<str>,
    pub successful: u64,
    /// Dropped after a failure.
    pub failed: u64,
    /// Failed attempts after which the message is retried.
    pub will_retry: u64,
    /// The last error.
    pub exception: Option<Exception>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Exception {
    pub chain: RuleChainId,
    pub node: String,
    pub message: String,
}

#[derive(Clone, Copy, Debug)]
pub enum MessageResult {
    Successful,
    Failed,
    WillRetry,
}

impl QueueCounts {
    pub fn total(&self) -> u64 {
        self.successful + self.failed + self.will_retry
    }
}

#[derive(Debug, Default)]
pub struct QueueStatistics(HashMap<TenantId, Vec<QueueCounts>>);

impl QueueStatistics {
    pub fn count(
        &mut self,
        tenant: TenantId,
        queue: &str,
        result: MessageResult,
        exception: impl FnOnce() -> Option<Exception>,
    ) {
        // A linear search, because a tenant has few queues.
        let queues = self.0.entry(tenant).or_default();
        let index = queues.iter().position(|counts| &*counts.queue == queue);
        let index = index.unwrap_or_else(|| {
            queues.push(QueueCounts {
                queue: queue.into(),
                ..QueueCounts::default()
            });
            queues.len() - 1
        });
        let counts = &mut queues[index];
        match result {
            MessageResult::Successful => counts.successful += 1,
            MessageResult::Failed => counts.failed += 1,
            MessageResult::WillRetry => counts.will_retry += 1,
        }
        if let Some(exception) = exception() {
            counts.exception = Some(exception);
        }
    }

    /// Returns and resets the counts. Queues without messages are not included.
    pub fn take(&mut self) -> Vec<(TenantId, Vec<QueueCounts>)> {
        std::mem::take(&mut self.0).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uuid;

    #[test]
    fn messages_are_counted_by_tenant_and_queue() {
        let (a, b) = (TenantId(Uuid([1; 16])), TenantId(Uuid([2; 16])));
        let mut statistics = QueueStatistics::default();
        let exception = |message: &str| Exception {
            chain: RuleChainId::NULL,
            node: "n".to_owned(),
            message: message.to_owned(),
        };
        statistics.count(a, "Main", MessageResult::Successful, || None);
        statistics.count(a, "HighPriority", MessageResult::WillRetry, || Some(exception("first")));
        statistics.count(a, "HighPriority", MessageResult::Failed, || Some(exception("last")));
        statistics.count(a, "HighPriority", MessageResult::Successful, || None);
        statistics.count(b, "Main", MessageResult::Successful, || None);
        let mut all = statistics.take();
        all.sort_by_key(|(tenant, _)| tenant.0);
        assert_eq!((all.len(), all[0].1.len(), all[1].1[0].total()), (2, 2, 1));
        let high = &all[0].1[1];
        assert_eq!(
            (&*high.queue, high.successful, high.failed, high.will_retry),
            ("HighPriority", 1, 1, 1)
        );
        assert_eq!(high.exception, Some(exception("last")));
        assert!(statistics.take().is_empty());
    }
}
