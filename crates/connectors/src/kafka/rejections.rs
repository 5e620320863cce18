//! Reasons why brokers reject messages that librdkafka resends by itself.
//!
//! If Kafka temporarily rejects a message, for example because too few replicas are in sync, librdkafka reports the
//! reason only in its debug log. It is parsed from there, once per request, so that operators see why nothing is
//! delivered. If librdkafka changes the text, no reason is reported.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

/// The required value of librdkafka's option `debug`.
pub(super) const DEBUG: &str = "msg";

#[derive(Default)]
pub(super) struct Rejections {
    is_known: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Rejections {
    /// Parses a line of the debug log.
    pub fn parse_log(&self, facility: &str, line: &str) {
        if facility == "MSGSET"
            && let Some(reason) = reason(line)
        {
            self.set(Some(reason));
            self.is_known.store(true, Release);
        }
    }

    /// Clears the reason after a message was delivered.
    #[inline]
    pub fn delivered(&self) {
        if self.is_known.load(Relaxed) {
            self.is_known.store(false, Relaxed);
            self.set(None);
        }
    }

    /// Returns the reason of the last rejection, if nothing was delivered since.
    pub fn reason(&self) -> Option<String> {
        let is_known = self.is_known.load(Acquire);
        is_known.then(|| self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone())?
    }

    fn set(&self, reason: Option<String>) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}

/// Parses `…: TOPIC [PARTITION]: MessageSet with … encountered error: ERROR (actions Retry,…)`.
fn reason(line: &str) -> Option<String> {
    let (prefix, result) = line.split_once("]: MessageSet with ")?;
    let (kafka_topic, _) = prefix
        .rsplit_once(": ")
        .map_or(prefix, |(_, partition)| partition)
        .rsplit_once(" [")?;
    let (_, error) = result.split_once("encountered error: ")?;
    let (error, actions) = error.rsplit_once(" (actions ")?;
    let is_retried = actions.contains("Retry");
    is_retried.then(|| format!("Kafka topic {kafka_topic:?}: {error}; retrying"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "[thrd:127.0.0.1:9092/1]: 127.0.0.1:9092/1: out.2 [0]: MessageSet with 1 message(s) (MsgId 0, BaseSeq -1) \
                        encountered error: Broker: Not enough in-sync replicas (actions Retry,MsgNotPersisted)";

    #[test]
    fn the_reason_of_a_retry_is_known_until_a_delivery() {
        let rejections = Rejections::default();
        rejections.parse_log("PRODUCE", LINE);
        assert_eq!(rejections.reason(), None);
        rejections.parse_log("MSGSET", LINE);
        let reason = "Kafka topic \"out.2\": Broker: Not enough in-sync replicas; retrying";
        assert_eq!(rejections.reason().as_deref(), Some(reason));
        rejections.delivered();
        assert_eq!(rejections.reason(), None);
        rejections.parse_log("MSGSET", LINE);
        assert_eq!(rejections.reason().as_deref(), Some(reason));
    }

    #[test]
    fn permanent_errors_and_other_lines_are_ignored() {
        let rejections = Rejections::default();
        rejections.parse_log("MSGSET", &LINE.replace("Retry", "Permanent"));
        rejections.parse_log("MSGSET", "127.0.0.1:9092/1: something else");
        assert_eq!(rejections.reason(), None);
    }
}
