//! Delivers the messages that an action gives up to its fallback actions. `fallback_records.rs` describes the data that
//! they receive.

use std::sync::Weak;
use std::time::{Duration, Instant};

use broker::tap::TapPublication;
use connectors::{BoxFuture, Fallback, FallbackOutcome, Record, Records};

use super::EngineShared;
use super::fallback::BufferAccess;
use crate::compile_action::FallbackTarget;
use crate::fallback_records::{looped_record_name, message_of};
use crate::loops;
use crate::republish::{PendingPublishes, publish_all};

/// Interval of attempts while an action does not run or its buffer is full.
const RETRY_EVERY: Duration = Duration::from_millis(100);

/// Typical duration of a buffer commit.
const COMMIT: Duration = Duration::from_millis(2);

/// Maximum time for the server to store published messages. Without a limit, the action could wait forever: storing may
/// depend on a rule that sends the messages to this same action.
const PUBLISH_WITHIN: Duration = Duration::from_secs(60);

/// The fallbacks of one action.
pub struct FallbackActions {
    pub engine: Weak<EngineShared>,
    pub targets: Vec<FallbackTarget>,
}

impl Fallback for FallbackActions {
    fn take<'a>(&'a self, given_up: &'a [Record]) -> BoxFuture<'a, FallbackOutcome> {
        Box::pin(async move {
            let mut fell_back = FallbackOutcome::default();
            for target in &self.targets {
                match target {
                    FallbackTarget::Action(id) => self.append(id, given_up, &mut fell_back).await,
                    FallbackTarget::Republish { name, .. } => self.publish(name, given_up, &mut fell_back).await,
                }
            }
            fell_back
        })
    }
}

fn no_record_message(name: &str) -> String {
    format!(
        "fallback action {name}: the messages contain no data for it, because it was defined later or its templates \
         could not be rendered"
    )
}

impl FallbackActions {
    /// Returns when the action has stored its records, or no longer exists.
    async fn append(&self, id: &str, given_up: &[Record], fell_back: &mut FallbackOutcome) {
        let mut records = Records::new();
        let mut looped = 0;
        for record in given_up {
            match record.carried(id) {
                Some(own) => {
                    records.push_copy(&own);
                    loops::copy_marks(&mut records, record);
                }
                None => looped += u64::from(record.carried(&looped_record_name(id)).is_some()),
            }
        }
        let messages = u64::from(records.count());
        fell_back.add_lost(given_up.len() as u64 - messages - looped, || no_record_message(id));
        fell_back.add_lost(looped, || {
            format!("fallback action {id}: the message has already passed its connector and would loop")
        });
        while !records.is_empty() {
            let reached = match self.engine.upgrade() {
                Some(engine) => engine.with_buffer(id, |buffer| {
                    let ticket = buffer.append(&mut records).ok()?;
                    Some((buffer.clone(), ticket))
                }),
                None => BufferAccess::Unavailable,
            };
            match reached {
                BufferAccess::Done((buffer, ticket)) => {
                    while buffer.stored() < ticket {
                        tokio::time::sleep(COMMIT).await;
                    }
                    fell_back.taken += messages;
                }
                BufferAccess::Unavailable => tokio::time::sleep(RETRY_EVERY).await,
                BufferAccess::NoSuchAction => {
                    let reason = || format!("fallback action {id}: does not exist or is disabled");
                    return fell_back.add_lost(messages, reason);
                }
            }
        }
    }

    async fn publish(&self, name: &str, given_up: &[Record], fell_back: &mut FallbackOutcome) {
        let carried = given_up.iter().filter_map(|record| record.carried(name));
        let messages: Vec<TapPublication> = carried.filter_map(|record| message_of(&record)).collect();
        let count = messages.len() as u64;
        fell_back.add_lost(given_up.len() as u64 - count, || no_record_message(name));
        if count == 0 {
            return;
        }
        match self.publish_with_timeout(messages).await {
            Ok(()) => fell_back.taken += count,
            Err(error) => fell_back.add_lost(count, || format!("fallback action {name}: {error}")),
        }
    }

    async fn publish_with_timeout(&self, mut messages: Vec<TapPublication>) -> Result<(), String> {
        let until = Instant::now() + PUBLISH_WITHIN;
        let mut unpublished = None;
        loop {
            let net = self.engine.upgrade().and_then(|engine| engine.server());
            let published = match net {
                Some(net) => {
                    let rest =
                        unpublished.get_or_insert_with(|| PendingPublishes::new(&net, std::mem::take(&mut messages)));
                    tokio::time::timeout_at(until.into(), publish_all(&net, rest)).await
                }
                None => Ok(Err("the server is not running".to_owned())),
            };
            match published {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(_)) if Instant::now() < until => tokio::time::sleep(RETRY_EVERY).await,
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    return Err(format!(
                        "the server did not store the messages within {} s",
                        PUBLISH_WITHIN.as_secs()
                    ));
                }
            }
        }
    }
}
