//! Scripts of nodes: JavaScript with limits of memory, stack and CPU time. A script that repeatedly exceeds them is
//! paused. A [`ScriptRunner`] runs the scripts, in the server in processes that can be killed.
//!
//! TBEL is similar to JavaScript but not compatible. A node in TBEL runs if its JavaScript has the same text, and is
//! disabled otherwise.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::host::NodeError;
use super::message::ChainMessage;
#[cfg(feature = "script")]
use super::realm::check;
#[cfg(feature = "script")]
pub(super) use super::realm::run_in_thread;
use crate::ids::TenantId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptKind {
    Filter,
    Switch,
    Transform,
    Text,
    Details,
    Generator,
}

impl ScriptKind {
    /// Parses the name used by ThingsBoard's editor.
    pub fn parse(name: &str) -> Option<ScriptKind> {
        Some(match name {
            "filter" => ScriptKind::Filter,
            "switch" => ScriptKind::Switch,
            "update" => ScriptKind::Transform,
            "string" => ScriptKind::Text,
            "json" => ScriptKind::Details,
            "generate" => ScriptKind::Generator,
            _ => return None,
        })
    }

    /// Names of the function's parameters.
    fn arguments(self) -> &'static str {
        match self {
            ScriptKind::Generator => "prevMsg, prevMetadata, prevMsgType",
            _ => "msg, metadata, msgType",
        }
    }
}

/// Largest script, arguments and result, in bytes.
pub const SOURCE_BYTES_MAX: usize = 50_000;
pub const ARGUMENT_BYTES_MAX: usize = 1 << 20;
pub const RESULT_BYTES_MAX: usize = 300_000;

/// CPU time of one call.
pub(super) const TIME_MAX: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptError {
    /// The script failed, or did not run.
    Failed(String),
    /// The script exceeded a limit.
    Limit(String),
    /// The script could not be interrupted, so its process was killed.
    Killed,
}

/// The text that a script returned, and the CPU time of the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptAnswer {
    pub result: Result<String, ScriptError>,
    pub cpu: Duration,
}

impl ScriptAnswer {
    /// The answer of a script that did not run.
    pub fn failed(error: impl Into<String>) -> ScriptAnswer {
        ScriptAnswer {
            result: Err(ScriptError::Failed(error.into())),
            cpu: Duration::ZERO,
        }
    }
}

/// Runs scripts outside of the thread of the rule chains. Calls of one tenant run one after the other, in order.
pub trait ScriptRunner: fmt::Debug + Send + Sync {
    /// Runs a script. Returns `None` if it takes long: then [`ScriptRunner::take_answers`] returns its answer with this
    /// number. The caller limits the number of such calls.
    fn run(&self, call: ScriptCall, number: u64) -> Option<ScriptAnswer>;

    /// Runs a script and waits for its answer.
    fn run_blocking(&self, call: ScriptCall) -> ScriptAnswer;

    /// As [`ScriptRunner::run`], and waits for the answer however long it takes. For the replay of the log.
    fn run_in_replay(&self, call: ScriptCall) -> ScriptAnswer;

    /// Drops a call if it does not run yet.
    fn cancel(&self, tenant: TenantId, number: u64);

    /// Returns answers since the last call.
    fn take_answers(&self) -> Vec<(u64, ScriptAnswer)>;

    fn usage(&self) -> ScriptUsage;

    /// Counts time of other nodes toward the CPU time of the tenant.
    fn add_node_time(&self, _tenant: TenantId, _took: Duration) {}

    /// Removes the CPU time of a deleted tenant.
    fn tenant_deleted(&self, _tenant: TenantId) {}

    /// Time until the tenant has CPU time, and zero if it has.
    fn budget_pause(&self, _tenant: TenantId) -> Duration {
        Duration::ZERO
    }
}

/// Use of the processor by scripts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScriptUsage {
    /// By tenant, in the order of the identifiers.
    pub tenants: Vec<TenantScriptUsage>,
    /// Processes that were killed, because their script could not be interrupted.
    pub killed_total: u64,
    /// Calls that wait for a process, or for CPU time of their tenant.
    pub waiting: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TenantScriptUsage {
    pub tenant: TenantId,
    pub cpu: Duration,
    /// The scripts or rule chains had to wait recently, because they had used the tenant's CPU time.
    pub is_over_budget: bool,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScriptError::Failed(text) | ScriptError::Limit(text) => f.write_str(text),
            ScriptError::Killed => {
                write!(
                    f,
                    "the script took longer than {} ms and could not be interrupted: its process was killed",
                    TIME_MAX.as_millis()
                )
            }
        }
    }
}

/// A call of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptCall {
    pub tenant: TenantId,
    /// A JavaScript function.
    pub source: Arc<str>,
    /// The function's arguments, as JSON and text.
    pub data: String,
    pub metadata: String,
    pub kind: String,
}

#[derive(Clone)]
pub struct Script {
    tenant: TenantId,
    kind: ScriptKind,
    /// A JavaScript function.
    source: Arc<str>,
    health: Arc<Mutex<ScriptHealth>>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({:?}, {} bytes)", self.kind, self.source.len())
    }
}

impl Script {
    /// Parses a script of a node's configuration, given the names of its members.
    pub fn parse(tenant: TenantId, json: &Json, [js, tbel]: [&str; 2], kind: ScriptKind) -> Result<Script, String> {
        let source = json[js].as_str().unwrap_or_default();
        if json["scriptLang"].as_str() == Some("TBEL")
            && json[tbel].as_str().unwrap_or_default().trim() != source.trim()
        {
            return Err("the script is in TBEL, which is not supported: write it in JavaScript".to_owned());
        }
        Script::new(tenant, source, kind)
    }

    /// `source` is the body of a function.
    pub fn new(tenant: TenantId, source: &str, kind: ScriptKind) -> Result<Script, String> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(format!("the script has more than {SOURCE_BYTES_MAX} bytes"));
        }
        check(kind.arguments(), source)?;
        Ok(Script {
            tenant,
            kind,
            source: function(kind.arguments(), source).into(),
            health: Arc::default(),
        })
    }

    /// Makes the call for a message, or returns why the script cannot run.
    pub fn call(&self, message: &ChainMessage<'_>) -> Result<ScriptCall, NodeError> {
        let data = message.json().to_string();
        let metadata = message.metadata.to_json().to_string();
        if data.len() + metadata.len() > ARGUMENT_BYTES_MAX {
            return Err(NodeError::new(format!(
                "the message is too large for a script: more than {ARGUMENT_BYTES_MAX} bytes"
            )));
        }
        self.health().check_allowed(Instant::now())?;
        Ok(ScriptCall {
            tenant: self.tenant,
            source: Arc::clone(&self.source),
            data,
            metadata,
            kind: message.kind.to_string(),
        })
    }

    /// Parses the answer of a call.
    pub fn result(&self, answer: ScriptAnswer) -> Result<Json, NodeError> {
        self.health().record_result(Instant::now(), &answer.result);
        let result = answer.result.map_err(|error| NodeError::new(error.to_string()))?;
        if result.len() > RESULT_BYTES_MAX {
            return Err(NodeError::new(format!(
                "the script returned more than {RESULT_BYTES_MAX} bytes"
            )));
        }
        serde_json::from_str(&result)
            .map_err(|error| NodeError::new(format!("the script did not return JSON: {error}")))
    }

    /// Runs the script and waits for its result. Without a runner the script runs in this thread, where only QuickJS
    /// limits it.
    pub fn run(&self, message: &ChainMessage<'_>, runner: Option<&dyn ScriptRunner>) -> Result<Json, NodeError> {
        let call = self.call(message)?;
        self.result(match runner {
            Some(runner) => runner.run_blocking(call),
            None => run_in_thread(&call),
        })
    }

    fn health(&self) -> std::sync::MutexGuard<'_, ScriptHealth> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of a filter.
pub(super) fn filter_result(result: &Json) -> Result<bool, NodeError> {
    result
        .as_bool()
        .ok_or_else(|| NodeError::new("Wrong result type: a filter has to return a boolean"))
}

/// The result of a switch.
pub(super) fn labels_result(result: Json) -> Result<Vec<String>, NodeError> {
    let wrong_type = || NodeError::new("Wrong result type: a switch has to return a string or an array of strings");
    match result {
        Json::String(label) => Ok(vec![label]),
        Json::Array(labels) => labels
            .iter()
            .map(|label| label.as_str().map(str::to_owned).ok_or_else(wrong_type))
            .collect(),
        _ => Err(wrong_type()),
    }
}

pub(super) fn function(arguments: &str, body: &str) -> String {
    format!("(function({arguments}) {{ \"use strict\";\n{body}\n}})")
}

/// How often in a row a script exceeded its limits. As in ThingsBoard, it is paused for a minute after the third
/// time.
#[derive(Debug, Default)]
struct ScriptHealth {
    over_limit: u32,
    paused_until: Option<Instant>,
    was_killed: bool,
}

const OVER_LIMIT_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_secs(60);

impl ScriptHealth {
    fn check_allowed(&mut self, now: Instant) -> Result<(), NodeError> {
        if self.was_killed {
            return Err(NodeError::new(
                "the script could not be interrupted: it runs again only after it is changed or the server is restarted",
            ));
        }
        match self.paused_until.filter(|until| now < *until) {
            Some(until) => Err(NodeError::new(format!(
                "the script exceeded its limits {OVER_LIMIT_MAX} times in a row: paused for {} s",
                (until - now).as_secs() + 1
            ))),
            None => Ok(()),
        }
    }

    fn record_result(&mut self, now: Instant, result: &Result<String, ScriptError>) {
        match result {
            Err(ScriptError::Limit(_)) => {
                self.over_limit += 1;
                // After a pause, exceeding the limits once is enough for the next one.
                self.paused_until = (self.over_limit >= OVER_LIMIT_MAX).then(|| now + PAUSE);
            }
            Err(ScriptError::Killed) => self.was_killed = true,
            Ok(_) | Err(ScriptError::Failed(_)) => self.over_limit = 0,
        }
    }
}

/// A program built without scripts rejects them.
#[cfg(not(feature = "script"))]
fn check(_arguments: &str, _body: &str) -> Result<(), String> {
    Err("this program was built without script support (feature `script`)".to_owned())
}

#[cfg(not(feature = "script"))]
pub(super) fn run_in_thread(_call: &ScriptCall) -> ScriptAnswer {
    ScriptAnswer::failed("this program was built without script support")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_over_its_limits_is_paused_for_a_minute() {
        let mut health = ScriptHealth::default();
        let start = Instant::now();
        let over = Err(ScriptError::Limit("too long".to_owned()));
        health.record_result(start, &over);
        health.record_result(start, &over);
        health.record_result(start, &Ok("1".to_owned()));
        for _ in 0..3 {
            assert_eq!(health.check_allowed(start), Ok(()));
            health.record_result(start, &over);
        }
        let refusal = health.check_allowed(start + Duration::from_secs(1)).unwrap_err();
        assert_eq!(
            refusal.0,
            "the script exceeded its limits 3 times in a row: paused for 60 s"
        );
        let later = start + PAUSE;
        assert_eq!(health.check_allowed(later), Ok(()));
        health.record_result(later, &over);
        assert!(health.check_allowed(later + Duration::from_secs(59)).is_err());
        assert_eq!(health.check_allowed(later + PAUSE), Ok(()));
        health.record_result(later + PAUSE, &Ok("1".to_owned()));
        health.record_result(later + PAUSE, &over);
        assert_eq!(health.check_allowed(later + PAUSE), Ok(()), "the count starts over");
    }

    #[test]
    fn killed_script_does_not_run_again() {
        let mut health = ScriptHealth::default();
        let now = Instant::now();
        health.record_result(now, &Err(ScriptError::Killed));
        assert!(health.check_allowed(now + 10 * PAUSE).is_err());
    }
}
