//! Queues of rule chains, which define the handling of failed messages.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Entity, IndexColumns, identity, or_default, row};
use crate::ids::{EntityType, QueueId, TenantId, Uuid};

/// Which messages wait while another message of the queue waits for its retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum SubmitKind {
    #[default]
    Burst,
    Batch,
    SequentialByOriginator,
    SequentialByTenant,
    Sequential,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ProcessingKind {
    #[default]
    SkipAllFailures,
    SkipAllFailuresAndTimedOut,
    RetryAll,
    RetryFailed,
    RetryTimedOut,
    RetryFailedAndTimedOut,
}

impl ProcessingKind {
    /// Messages have no processing timeout here, so only failures are retried.
    pub fn retries_failed(self) -> bool {
        matches!(
            self,
            ProcessingKind::RetryAll | ProcessingKind::RetryFailed | ProcessingKind::RetryFailedAndTimedOut
        )
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SubmitStrategy {
    #[serde(rename = "type")]
    pub kind: SubmitKind,
    pub batch_size: i64,
}

impl Default for SubmitStrategy {
    fn default() -> SubmitStrategy {
        SubmitStrategy {
            kind: SubmitKind::Burst,
            batch_size: 1000,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessingStrategy {
    #[serde(rename = "type")]
    pub kind: ProcessingKind,
    /// 0 for unlimited.
    pub retries: i64,
    /// If more than this percentage of a batch failed, the failed messages are not retried; 0 always retries.
    pub failure_percentage: f64,
    /// In seconds.
    pub pause_between_retries: i64,
    /// Upper limit of the pause, which doubles with each retry.
    pub max_pause_between_retries: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Queue {
    pub id: Option<QueueId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub topic: String,
    #[serde(deserialize_with = "or_default")]
    pub poll_interval: i64,
    #[serde(deserialize_with = "or_default")]
    pub partitions: i64,
    #[serde(deserialize_with = "or_default")]
    pub consumer_per_partition: bool,
    #[serde(deserialize_with = "or_default")]
    pub pack_processing_timeout: i64,
    pub submit_strategy: Option<SubmitStrategy>,
    pub processing_strategy: Option<ProcessingStrategy>,
    pub additional_info: Option<Value>,
    pub version: Option<i64>,
}

/// The queue of messages whose profile has none.
pub const MAIN_QUEUE: &str = "Main";

impl Queue {
    /// ThingsBoard's three default queues.
    pub fn defaults() -> [Queue; 3] {
        let queue = |name: &str, topic: &str, submit: SubmitStrategy, processing: ProcessingStrategy| Queue {
            name: name.to_owned(),
            topic: format!("tb_rule_engine.{topic}"),
            poll_interval: 25,
            partitions: 10,
            consumer_per_partition: true,
            pack_processing_timeout: 2000,
            submit_strategy: Some(submit),
            processing_strategy: Some(processing),
            ..Queue::default()
        };
        let submit = |kind, batch_size| SubmitStrategy { kind, batch_size };
        let processing = |kind, retries, pause| ProcessingStrategy {
            kind,
            retries,
            failure_percentage: 0.0,
            pause_between_retries: pause,
            max_pause_between_retries: pause,
        };
        [
            queue(
                MAIN_QUEUE,
                "main",
                submit(SubmitKind::Burst, 1000),
                processing(ProcessingKind::SkipAllFailures, 3, 3),
            ),
            queue(
                "HighPriority",
                "hp",
                submit(SubmitKind::Burst, 100),
                processing(ProcessingKind::RetryFailedAndTimedOut, 0, 5),
            ),
            queue(
                "SequentialByOriginator",
                "sq",
                submit(SubmitKind::SequentialByOriginator, 100),
                processing(ProcessingKind::RetryFailedAndTimedOut, 3, 5),
            ),
        ]
    }

    pub fn is_retrying(&self) -> bool {
        let strategy = self.processing_strategy.as_ref();
        strategy.is_some_and(|strategy| strategy.kind.retries_failed())
    }

    pub fn submit(&self) -> SubmitKind {
        self.submit_strategy
            .as_ref()
            .map(|submit| submit.kind)
            .unwrap_or_default()
    }
}

impl Entity for Queue {
    const KIND: EntityType = EntityType::Queue;

    identity!(QueueId);

    fn row(&self) -> IndexColumns {
        row(self.id(), Uuid::NULL, &self.name)
    }
}
