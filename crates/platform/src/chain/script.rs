//! Scripts of nodes: JavaScript, with limits of memory, stack and time. One that goes beyond them again and again rests: one thread
//! processes the messages of all tenants.
//!
//! TBEL looks like JavaScript but is not: a node in TBEL runs if its JavaScript has the same text, and else is disabled.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

use super::host::NodeError;
use super::message::Message;
use super::nodes::made_of;
#[cfg(feature = "script")]
use super::{realm::check, worker};
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
    /// As ThingsBoard's editor calls it.
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

    /// Names of the function's arguments.
    fn arguments(self) -> &'static str {
        match self {
            ScriptKind::Generator => "prevMsg, prevMetadata, prevMsgType",
            _ => "msg, metadata, msgType",
        }
    }
}

/// Bytes of a script, of what goes into it, and of what it gives.
pub const SOURCE_BYTES_MAX: usize = 50_000;
pub const ARGUMENT_BYTES_MAX: usize = 1 << 20;
pub const RESULT_BYTES_MAX: usize = 300_000;

pub(super) const TIME_MAX: Duration = Duration::from_millis(500);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScriptError {
    /// It is wrong.
    Failed(String),
    /// It took too much.
    Limit(String),
    /// It runs still.
    Endless,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScriptError::Failed(text) | ScriptError::Limit(text) => f.write_str(text),
            ScriptError::Endless => {
                write!(
                    f,
                    "the script took longer than {} ms and could not be ended",
                    TIME_MAX.as_millis()
                )
            }
        }
    }
}

pub(super) struct Call {
    pub tenant: TenantId,
    /// A JavaScript function.
    pub source: Arc<str>,
    /// Its arguments, as JSON and as text.
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
    health: Arc<Mutex<Health>>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({:?}, {} bytes)", self.kind, self.source.len())
    }
}

impl Script {
    /// From a node's configuration, by the names of its members.
    pub fn parse(tenant: TenantId, json: &Json, [js, tbel]: [&str; 2], kind: ScriptKind) -> Result<Script, String> {
        let source = json[js].as_str().unwrap_or_default();
        if json["scriptLang"].as_str() == Some("TBEL")
            && json[tbel].as_str().unwrap_or_default().trim() != source.trim()
        {
            return Err("its script is in TBEL, which is not supported: write it in JavaScript".to_owned());
        }
        Script::new(tenant, source, kind)
    }

    /// `source` is the body of a function.
    pub fn new(tenant: TenantId, source: &str, kind: ScriptKind) -> Result<Script, String> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(format!("its script has more than {SOURCE_BYTES_MAX} bytes"));
        }
        check(kind.arguments(), source)?;
        Ok(Script {
            tenant,
            kind,
            source: function(kind.arguments(), source).into(),
            health: Arc::default(),
        })
    }

    /// What the function returns.
    pub fn run(&self, message: &Message<'_>) -> Result<Json, NodeError> {
        let data = message.json().to_string();
        let metadata = message.metadata.to_json().to_string();
        if data.len() + metadata.len() > ARGUMENT_BYTES_MAX {
            return Err(NodeError::new(format!(
                "the message has more than {ARGUMENT_BYTES_MAX} bytes: no script gets it"
            )));
        }
        let call = Call {
            tenant: self.tenant,
            source: Arc::clone(&self.source),
            data,
            metadata,
            kind: message.kind.to_string(),
        };
        self.health().may_run(Instant::now())?;
        let result = worker::call(call);
        self.health().ran(Instant::now(), &result);
        let result = result.map_err(|error| NodeError::new(error.to_string()))?;
        if result.len() > RESULT_BYTES_MAX {
            return Err(NodeError::new(format!(
                "the script gave more than {RESULT_BYTES_MAX} bytes"
            )));
        }
        serde_json::from_str(&result).map_err(|error| NodeError::new(format!("the script gave no JSON: {error}")))
    }

    fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn filter(&self, message: &Message<'_>) -> Result<bool, NodeError> {
        self.run(message)?
            .as_bool()
            .ok_or_else(|| NodeError::new("Wrong result type: a filter has to return a boolean"))
    }

    pub fn labels(&self, message: &Message<'_>) -> Result<Vec<String>, NodeError> {
        let wrong = || NodeError::new("Wrong result type: a switch has to return a string or an array of strings");
        match self.run(message)? {
            Json::String(label) => Ok(vec![label]),
            Json::Array(labels) => labels
                .iter()
                .map(|label| label.as_str().map(str::to_owned).ok_or_else(wrong))
                .collect(),
            _ => Err(wrong()),
        }
    }

    pub fn text(&self, message: &Message<'_>) -> Result<String, NodeError> {
        Ok(super::message::plain(&self.run(message)?))
    }

    pub fn transform<'a>(&self, message: &Message<'a>) -> Result<Vec<Message<'a>>, NodeError> {
        made_of(self.run(message)?, message)
    }
}

pub(super) fn function(arguments: &str, body: &str) -> String {
    format!("(function({arguments}) {{ \"use strict\";\n{body}\n}})")
}

/// How often in a row a script went beyond its limits. As ThingsBoard does it: after the third time it is not run for a minute.
#[derive(Debug, Default)]
struct Health {
    over_limit: u32,
    rests_until: Option<Instant>,
    is_endless: bool,
}

const OVER_LIMIT_MAX: u32 = 3;
const REST: Duration = Duration::from_secs(60);

impl Health {
    fn may_run(&mut self, now: Instant) -> Result<(), NodeError> {
        if self.is_endless {
            return Err(NodeError::new(
                "the script could not be ended: it is not run again until it was changed or the server was started again",
            ));
        }
        match self.rests_until.filter(|until| now < *until) {
            Some(until) => Err(NodeError::new(format!(
                "the script went beyond its limits {OVER_LIMIT_MAX} times in a row: it is run again in {} s",
                (until - now).as_secs() + 1
            ))),
            None => Ok(()),
        }
    }

    fn ran(&mut self, now: Instant, result: &Result<String, ScriptError>) {
        match result {
            Err(ScriptError::Limit(_)) => {
                self.over_limit += 1;
                // Once more is enough after a rest.
                self.rests_until = (self.over_limit >= OVER_LIMIT_MAX).then(|| now + REST);
            }
            Err(ScriptError::Endless) => self.is_endless = true,
            Ok(_) | Err(ScriptError::Failed(_)) => self.over_limit = 0,
        }
    }
}

/// A program without scripts takes none.
#[cfg(not(feature = "script"))]
fn check(_arguments: &str, _body: &str) -> Result<(), String> {
    Err("this program was built without scripts (feature `script`)".to_owned())
}

#[cfg(not(feature = "script"))]
mod worker {
    pub fn call(_call: super::Call) -> Result<String, super::ScriptError> {
        Err(super::ScriptError::Failed(
            "this program was built without scripts".to_owned(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_beyond_its_limits_rests_for_a_minute() {
        let mut health = Health::default();
        let start = Instant::now();
        let over = Err(ScriptError::Limit("too long".to_owned()));
        health.ran(start, &over);
        health.ran(start, &over);
        health.ran(start, &Ok("1".to_owned()));
        for _ in 0..3 {
            assert_eq!(health.may_run(start), Ok(()));
            health.ran(start, &over);
        }
        let refusal = health.may_run(start + Duration::from_secs(1)).unwrap_err();
        assert_eq!(
            refusal.0,
            "the script went beyond its limits 3 times in a row: it is run again in 60 s"
        );
        let later = start + REST;
        assert_eq!(health.may_run(later), Ok(()));
        health.ran(later, &over);
        assert!(health.may_run(later + Duration::from_secs(59)).is_err());
        assert_eq!(health.may_run(later + REST), Ok(()));
        health.ran(later + REST, &Ok("1".to_owned()));
        health.ran(later + REST, &over);
        assert_eq!(health.may_run(later + REST), Ok(()), "it counts anew");
    }

    #[test]
    fn an_endless_script_is_not_run_again() {
        let mut health = Health::default();
        let now = Instant::now();
        health.ran(now, &Err(ScriptError::Endless));
        assert!(health.may_run(now + 10 * REST).is_err());
    }
}
