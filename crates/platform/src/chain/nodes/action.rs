//! Nodes that act: log, counter, generator, checkpoint, alarm rules of the profile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value as Json, json};

use super::transform::messages_of_result;
use super::{NodeOutcome, NodePosition};
use crate::alarm_rules::{AlarmEffect, AlarmTransition, FiredCondition};
use crate::chain::host::{Host, NodeError};
use crate::chain::message::{ALARM, ChainMessage, MessageData, Metadata, POST_TELEMETRY};
use crate::chain::script::Script;
use crate::ids::{EntityId, Uuid};

/// `text` is the result of the node's script. Without one the node logs the standard text.
pub fn log<'a>(
    text: Option<String>,
    at: NodePosition<'_>,
    message: Arc<ChainMessage<'a>>,
    host: &mut dyn Host,
) -> Result<NodeOutcome<'a>, NodeError> {
    let text = text.unwrap_or_else(|| {
        format!(
            "\nIncoming message:\n{}\nIncoming metadata:\n{}",
            message.json(),
            message.metadata.to_json()
        )
    });
    host.log(at.chain, &at.node.name, &text);
    Ok(NodeOutcome::success(message))
}

pub fn checkpoint<'a>(
    queue: &str,
    at: NodePosition<'_>,
    message: &ChainMessage<'a>,
    host: &mut dyn Host,
) -> Result<NodeOutcome<'a>, NodeError> {
    host.enqueue(queue, at.continuation(message))?;
    Ok(NodeOutcome::Done)
}

/// Emits a message for each changed alarm, before the message that caused the changes.
pub fn device_profile<'a>(message: Arc<ChainMessage<'a>>, host: &mut dyn Host) -> Result<NodeOutcome<'a>, NodeError> {
    let effects = host.apply_alarm_rules(&message)?;
    if effects.is_empty() {
        return Ok(NodeOutcome::success(message));
    }
    let mut all = Vec::with_capacity(effects.len() + 1);
    for effect in effects {
        all.push((
            effect.action.label().into(),
            Arc::new(alarm_message(&effect, &message)?),
        ));
    }
    all.push(("Success".into(), message));
    Ok(NodeOutcome::NextMany(all))
}

/// The alarm as a message, with metadata about the change.
pub fn alarm_message<'a>(effect: &AlarmEffect, cause: &ChainMessage<'a>) -> Result<ChainMessage<'a>, NodeError> {
    let mut metadata = cause.metadata.clone();
    let flags: &[&str] = match effect.action {
        AlarmTransition::Created => &["isNewAlarm"],
        AlarmTransition::Updated => &["isExistingAlarm"],
        AlarmTransition::SeverityUpdated => &["isExistingAlarm", "isSeverityUpdated"],
        AlarmTransition::Cleared => &["isClearedAlarm"],
    };
    for flag in flags {
        metadata.put(*flag, "true");
    }
    match effect.condition {
        FiredCondition::Simple => {}
        FiredCondition::Repeats(count) => metadata.put("alarmConditionRepeats", count.to_string()),
        FiredCondition::DurationMs(millis) => metadata.put("alarmConditionDuration", millis.to_string()),
    }
    let json = serde_json::to_value(&effect.alarm).map_err(|error| NodeError::new(error.to_string()))?;
    Ok(ChainMessage {
        kind: ALARM.into(),
        originator: effect.alarm.originator,
        customer: cause.customer,
        metadata,
        data: MessageData::Json(json),
        ts_ms: cause.ts_ms,
    })
}

#[derive(Debug)]
pub struct CountNode {
    prefix: String,
    pub interval_s: u64,
    count: AtomicU64,
}

impl CountNode {
    pub fn new(prefix: String, interval_s: u64) -> CountNode {
        CountNode {
            prefix,
            interval_s,
            count: AtomicU64::new(0),
        }
    }

    pub fn process<'a>(&self) -> NodeOutcome<'a> {
        self.count.fetch_add(1, Ordering::Relaxed);
        NodeOutcome::Done
    }

    /// Creates telemetry of the tenant with the count, and resets the count.
    pub fn tick(&self, tenant: Uuid, service: &str, now_ms: i64) -> ChainMessage<'static> {
        let count = self.count.swap(0, Ordering::Relaxed);
        let mut metadata = Metadata::default();
        metadata.put("delta", self.interval_s.saturating_mul(1000).to_string());
        ChainMessage {
            kind: POST_TELEMETRY.into(),
            metadata,
            data: MessageData::Json(json!({format!("{}_{service}", self.prefix): count})),
            ..ChainMessage::empty(tenant, now_ms)
        }
    }
}

#[derive(Debug)]
pub struct GeneratorNode {
    originator: Option<EntityId>,
    pub period_s: u64,
    /// 0 for unlimited.
    count_max: u64,
    script: Script,
    state: Mutex<Generated>,
}

/// Time after which a generator no longer waits for its script, in milliseconds. Scripts that wait longer have failed.
const GENERATING_MS_MAX: i64 = 120_000;

#[derive(Debug, Default)]
struct Generated {
    count: u64,
    /// The script runs, and is not started again before this time.
    running_until_ms: i64,
    last: Option<ChainMessage<'static>>,
}

impl GeneratorNode {
    pub fn new(originator: Option<EntityId>, period_s: u64, count_max: u64, script: Script) -> GeneratorNode {
        GeneratorNode {
            originator,
            period_s,
            count_max,
            script,
            state: Mutex::default(),
        }
    }

    pub fn script(&self) -> &Script {
        &self.script
    }

    fn state(&self) -> MutexGuard<'_, Generated> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the previous message, for the script. Returns `None` if all messages are generated, or while the script
    /// runs.
    pub fn begin(&self, tenant: Uuid, now_ms: i64) -> Option<ChainMessage<'static>> {
        let mut state = self.state();
        if (self.count_max != 0 && state.count >= self.count_max) || now_ms < state.running_until_ms {
            return None;
        }
        state.running_until_ms = now_ms.saturating_add(GENERATING_MS_MAX);
        let empty = ChainMessage::empty(tenant, now_ms);
        Some(state.last.take().unwrap_or_else(|| ChainMessage {
            originator: self.originator.unwrap_or(empty.originator),
            ..empty
        }))
    }

    /// Emits the message that the script made of the previous one.
    pub fn process<'a>(
        &self,
        result: Json,
        last: &ChainMessage<'a>,
        now_ms: i64,
    ) -> Result<NodeOutcome<'a>, NodeError> {
        self.fail();
        let made = messages_of_result(result, last)?.into_iter().next();
        let made = made.ok_or_else(|| NodeError::new("the script returned no message"))?;
        let made = ChainMessage { ts_ms: now_ms, ..made };
        let mut state = self.state();
        state.count += 1;
        state.last = Some(made.clone().into_owned());
        Ok(NodeOutcome::success(Arc::new(made)))
    }

    /// Lets the next tick start the script.
    pub fn fail(&self) {
        self.state().running_until_ms = 0;
    }
}
