//! Records of waiting messages in the entity database, as JSON.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::lanes::{ProcessingLane, SCRIPT_LANE};
use super::{PendingRetry, RetryWork};
use crate::chain::{
    ChainMessage, ChainRun, Continuation, FailedAt, MessageData, Metadata, NodeFailure, PausedRun, PausedTask,
};
use crate::ids::{CustomerId, RuleChainId, Uuid};

impl RetryWork {
    pub fn to_json(&self) -> Json {
        match self {
            RetryWork::Message { chain, message } => {
                json!({"kind": "message", "chain": chain, "message": message_json(message)})
            }
            RetryWork::Resume(then) => json!({
                "kind": "resume", "chain": then.chain, "node": then.node, "name": then.name, "returns": then.returns, "message": message_json(&then.message),
            }),
            RetryWork::Failed(all) => {
                let all = all.iter().map(|(chain, at)| {
                    json!({
                        "chain": chain, "node": at.node, "name": at.name, "returns": at.returns, "message": message_json(&at.message),
                    })
                });
                json!({"kind": "failed", "at": all.collect::<Vec<_>>()})
            }
            RetryWork::Paused(rest) => {
                let (messages, indexes) = rest.messages();
                let messages = messages.into_iter().map(|message| message_json(message));
                let tasks = rest.tasks.iter().zip(indexes).map(|(task, index)| {
                    json!({
                        "chain": task.chain, "node": task.node, "name": &*task.name, "returns": &*task.returns, "message": index,
                    })
                });
                json!({
                    "kind": "paused", "messages": messages.collect::<Vec<_>>(), "at": tasks.collect::<Vec<_>>(), "steps": rest.steps,
                })
            }
        }
    }
}

impl PendingRetry {
    pub fn to_bytes(&self) -> Vec<u8> {
        let waiting = json!({
            "queue": self.queue,
            "tenant": self.tenant,
            "tries": self.tries,
            "pause": self.pause_s,
            "due": self.due_after_restart(),
            "lane": self.lane.as_ref().map(|lane| lane.key),
            "waitsForScripts": self.lane.as_ref().is_some_and(ProcessingLane::is_of_scripts),
            "firstRecord": self.first_record,
            "failures": self.failures,
            "failedBefore": self.failed_before(),
            "work": self.stored_by.as_ref().unwrap_or(&self.work).to_json(),
        });
        waiting.to_string().into_bytes()
    }

    /// Failures before the pause of a run, which a restart does not repeat.
    fn failed_before(&self) -> Vec<(RuleChainId, &str, &str)> {
        let failures: &[NodeFailure] = match self.work {
            RetryWork::Paused(_) => &self.failed.failures,
            _ => &[],
        };
        let failures = failures.iter();
        failures
            .map(|failure| (failure.chain, &*failure.node, &*failure.error))
            .collect()
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<PendingRetry> {
        let json: Json = serde_json::from_slice(bytes).ok()?;
        let queue: Box<str> = json["queue"].as_str()?.into();
        let of: Option<Uuid> = serde_json::from_value(json["lane"].clone()).ok()?;
        let work = &json["work"];
        let chain = |json: &Json| serde_json::from_value(json["chain"].clone()).ok();
        let node = |json: &Json| usize::try_from(json["node"].as_u64()?).ok();
        let work = match work["kind"].as_str()? {
            "message" => RetryWork::Message {
                chain: chain(work)?,
                message: message_of(&work["message"])?,
            },
            "resume" => RetryWork::Resume(Continuation {
                chain: chain(work)?,
                node: node(work)?,
                name: work["name"].as_str().map(str::to_owned),
                message: message_of(&work["message"])?,
                // Records of earlier versions have no `returns`.
                returns: serde_json::from_value(work["returns"].clone()).unwrap_or_default(),
            }),
            "failed" => {
                let at = |json: &Json| {
                    let at = FailedAt {
                        message: message_of(&json["message"])?,
                        node: node(json)?,
                        name: json["name"].as_str()?.to_owned(),
                        returns: serde_json::from_value(json["returns"].clone()).ok()?,
                    };
                    Some((chain(json)?, at))
                };
                RetryWork::Failed(work["at"].as_array()?.iter().map(at).collect::<Option<_>>()?)
            }
            "paused" => {
                let messages = work["messages"].as_array()?.iter();
                let messages: Vec<_> = messages
                    .map(|json| message_of(json).map(Arc::new))
                    .collect::<Option<_>>()?;
                let task = |json: &Json| {
                    let returns: Vec<(RuleChainId, usize)> = serde_json::from_value(json["returns"].clone()).ok()?;
                    let message = messages.get(usize::try_from(json["message"].as_u64()?).ok()?)?;
                    Some(PausedTask {
                        chain: chain(json)?,
                        node: node(json)?,
                        name: json["name"].as_str()?.into(),
                        message: Arc::clone(message),
                        returns: returns.into(),
                    })
                };
                RetryWork::Paused(PausedRun {
                    tasks: work["at"].as_array()?.iter().map(task).collect::<Option<_>>()?,
                    made_bytes: 0,
                    steps: work["steps"].as_u64()?,
                })
            }
            _ => return None,
        };
        // Records of earlier versions have no `failedBefore`.
        let failed: Vec<(RuleChainId, String, String)> =
            serde_json::from_value(json["failedBefore"].clone()).unwrap_or_default();
        let failed = failed.into_iter().map(|(chain, node, error)| NodeFailure {
            chain,
            node,
            error,
            at: None,
        });
        Some(PendingRetry {
            failed: ChainRun {
                failures: failed.collect(),
                ..ChainRun::default()
            },
            lane: of.map(|of| ProcessingLane {
                queue: match json["waitsForScripts"].as_bool() {
                    Some(true) => SCRIPT_LANE.into(),
                    _ => queue.clone(),
                },
                key: of,
            }),
            first_record: json["firstRecord"].as_u64(),
            tries: json["tries"].as_i64()?,
            pause_s: json["pause"].as_i64()?,
            due_ms: json["due"].as_i64()?,
            failures: serde_json::from_value(json["failures"].clone()).ok()?,
            bytes: bytes.len(),
            ..PendingRetry::new(&queue, serde_json::from_value(json["tenant"].clone()).ok()?, work)
        })
    }
}

fn message_json(message: &ChainMessage<'_>) -> Json {
    json!({
        "type": message.kind,
        "originator": message.originator,
        "customer": message.customer,
        "metadata": message.metadata.to_json(),
        "data": message.json(),
        "ts": message.ts_ms,
    })
}

fn message_of(json: &Json) -> Option<ChainMessage<'static>> {
    Some(ChainMessage {
        kind: json["type"].as_str()?.to_owned().into(),
        originator: serde_json::from_value(json["originator"].clone()).ok()?,
        customer: serde_json::from_value::<CustomerId>(json["customer"].clone()).ok()?,
        metadata: Metadata::from_json(&json["metadata"]),
        data: MessageData::Json(json["data"].clone()),
        ts_ms: json["ts"].as_i64()?,
    })
}
