//! What brokers say of messages that librdkafka sends again by itself.
//!
//! A message that Kafka does not take for now (too few replicas in sync, for example) comes back when it is delivered and not before,
//! and librdkafka tells the reason to nobody but its debug log. It is read from there, so that an operator sees why nothing goes.
//! Once per request, not per message. If its text changes, nothing is told.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

/// What has to be in librdkafka's option `debug`.
pub(super) const DEBUG: &str = "msg";

#[derive(Default)]
pub(super) struct TurnedAway {
    is_known: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl TurnedAway {
    /// A line of the log, which may be about something else.
    pub fn hear(&self, facility: &str, line: &str) {
        if facility == "MSGSET"
            && let Some(reason) = reason(line)
        {
            self.set(Some(reason));
            self.is_known.store(true, Release);
        }
    }

    /// Kafka has taken a message.
    #[inline]
    pub fn delivered(&self) {
        if self.is_known.load(Relaxed) {
            self.is_known.store(false, Relaxed);
            self.set(None);
        }
    }

    /// Why nothing has been taken since, if something was turned away.
    pub fn reason(&self) -> Option<String> {
        let is_known = self.is_known.load(Acquire);
        is_known.then(|| self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone())?
    }

    fn set(&self, reason: Option<String>) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}

/// `…: TOPIC [PARTITION]: MessageSet with … encountered error: ERROR (actions Retry,…)`.
fn reason(line: &str) -> Option<String> {
    let (place, what) = line.split_once("]: MessageSet with ")?;
    let (kafka_topic, _) = place
        .rsplit_once(": ")
        .map_or(place, |(_, place)| place)
        .rsplit_once(" [")?;
    let (_, error) = what.split_once("encountered error: ")?;
    let (error, actions) = error.rsplit_once(" (actions ")?;
    let is_sent_again = actions.contains("Retry");
    is_sent_again.then(|| format!("Kafka topic {kafka_topic:?}: {error}; it is tried again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "[thrd:127.0.0.1:9092/1]: 127.0.0.1:9092/1: out.2 [0]: MessageSet with 1 message(s) (MsgId 0, BaseSeq -1) \
                        encountered error: Broker: Not enough in-sync replicas (actions Retry,MsgNotPersisted)";

    #[test]
    fn what_is_sent_again_is_known_until_something_is_delivered() {
        let turned_away = TurnedAway::default();
        turned_away.hear("PRODUCE", LINE);
        assert_eq!(turned_away.reason(), None);
        turned_away.hear("MSGSET", LINE);
        let reason = "Kafka topic \"out.2\": Broker: Not enough in-sync replicas; it is tried again";
        assert_eq!(turned_away.reason().as_deref(), Some(reason));
        turned_away.delivered();
        assert_eq!(turned_away.reason(), None);
        turned_away.hear("MSGSET", LINE);
        assert_eq!(turned_away.reason().as_deref(), Some(reason));
    }

    #[test]
    fn what_comes_back_is_told_elsewhere() {
        let turned_away = TurnedAway::default();
        turned_away.hear("MSGSET", &LINE.replace("Retry", "Permanent"));
        turned_away.hear("MSGSET", "127.0.0.1:9092/1: something else");
        assert_eq!(turned_away.reason(), None);
    }
}
