//! Nodes that act: log, count, generate, send elsewhere, alarm rules of the profile.

use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;

use super::transform::made_of;
use super::{At, Outcome};
use crate::alarm_rules::{Action, Condition, Effect};
use crate::chain::host::{Host, NodeError};
use crate::chain::message::{ALARM, Data, Message, Metadata, POST_TELEMETRY};
use crate::chain::script::Script;
use crate::ids::{EntityId, Uuid};

pub fn log<'a>(
    script: Option<&Script>,
    at: At<'_>,
    message: Rc<Message<'a>>,
    host: &mut dyn Host,
) -> Result<Outcome<'a>, NodeError> {
    let text = match script {
        Some(script) => script.text(&message)?,
        None => format!(
            "\nIncoming message:\n{}\nIncoming metadata:\n{}",
            message.json(),
            message.metadata.to_json()
        ),
    };
    host.log(at.chain, &at.node.name, &text);
    Ok(Outcome::success(message))
}

pub fn checkpoint<'a>(
    queue: &str,
    at: At<'_>,
    message: &Message<'a>,
    host: &mut dyn Host,
) -> Result<Outcome<'a>, NodeError> {
    host.enqueue(queue, at.then(message))?;
    Ok(Outcome::Ends)
}

/// What became of alarms goes on as messages of its own, before the message that caused it.
pub fn device_profile<'a>(message: Rc<Message<'a>>, host: &mut dyn Host) -> Result<Outcome<'a>, NodeError> {
    let effects = host.apply_alarm_rules(&message)?;
    if effects.is_empty() {
        return Ok(Outcome::success(message));
    }
    let mut all = Vec::with_capacity(effects.len() + 1);
    for effect in effects {
        all.push((effect.action.label().into(), Rc::new(alarm_message(&effect, &message)?)));
    }
    all.push(("Success".into(), message));
    Ok(Outcome::GoesMany(all))
}

/// The alarm as a message, with metadata that says what became of it.
pub fn alarm_message<'a>(effect: &Effect, cause: &Message<'a>) -> Result<Message<'a>, NodeError> {
    let mut metadata = cause.metadata.clone();
    let flags: &[&str] = match effect.action {
        Action::Created => &["isNewAlarm"],
        Action::Updated => &["isExistingAlarm"],
        Action::SeverityUpdated => &["isExistingAlarm", "isSeverityUpdated"],
        Action::Cleared => &["isClearedAlarm"],
    };
    for flag in flags {
        metadata.put(*flag, "true");
    }
    match effect.condition {
        Condition::Simple => {}
        Condition::Repeats(count) => metadata.put("alarmConditionRepeats", count.to_string()),
        Condition::DurationMs(millis) => metadata.put("alarmConditionDuration", millis.to_string()),
    }
    let json = serde_json::to_value(&effect.alarm).map_err(|error| NodeError::new(error.to_string()))?;
    Ok(Message {
        kind: ALARM.into(),
        originator: effect.alarm.originator,
        customer: cause.customer,
        metadata,
        data: Data::Json(json),
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

    pub fn process<'a>(&self) -> Outcome<'a> {
        self.count.fetch_add(1, Ordering::Relaxed);
        Outcome::Ends
    }

    /// Telemetry of the tenant, and the count begins anew.
    pub fn tick(&self, tenant: Uuid, service: &str, now_ms: i64) -> Message<'static> {
        let count = self.count.swap(0, Ordering::Relaxed);
        let mut metadata = Metadata::default();
        metadata.put("delta", self.interval_s.saturating_mul(1000).to_string());
        Message {
            kind: POST_TELEMETRY.into(),
            metadata,
            data: Data::Json(json!({format!("{}_{service}", self.prefix): count})),
            ..Message::empty(tenant, now_ms)
        }
    }
}

#[derive(Debug)]
pub struct GeneratorNode {
    originator: Option<EntityId>,
    pub period_s: u64,
    /// 0: without end.
    count_max: u64,
    script: Script,
    state: Mutex<Generated>,
}

#[derive(Debug, Default)]
struct Generated {
    count: u64,
    last: Option<Message<'static>>,
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

    /// The script gets what it made last.
    pub fn tick(&self, tenant: Uuid, now_ms: i64) -> Result<Option<Message<'static>>, NodeError> {
        let mut state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if self.count_max != 0 && state.count >= self.count_max {
            return Ok(None);
        }
        let empty = Message::empty(tenant, now_ms);
        let last = state.last.take().unwrap_or_else(|| Message {
            originator: self.originator.unwrap_or(empty.originator),
            ..empty
        });
        let made = made_of(self.script.run(&last)?, &last)?.into_iter().next();
        let made = made.ok_or_else(|| NodeError::new("the script made nothing"))?;
        let made = Message { ts_ms: now_ms, ..made };
        state.count += 1;
        state.last = Some(made.clone());
        Ok(Some(made))
    }
}
