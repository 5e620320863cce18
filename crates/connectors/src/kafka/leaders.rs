//! Partitions without a leader. Messages for them cannot be written and would stay in librdkafka.
//!
//! librdkafka does not report them, and they delay the other messages of their batch. Therefore the sink queries Kafka
//! when a batch takes long. While a partition has no leader, its messages are returned before they reach librdkafka;
//! messages of other partitions continue.
//!
//! Order is preserved: messages that librdkafka already has precede the returned ones. A recovered leader counts only
//! after all sent messages have returned ([`Leaders::set`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the sink checks for a new leader.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The partitions of a Kafka topic, from its metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TopicPartitions {
    pub partitions: u32,
    pub without_leader: BTreeSet<i32>,
}

#[derive(Default)]
pub(super) struct Leaders {
    is_any_missing: AtomicBool,
    state: Mutex<LeadersState>,
}

#[derive(Default)]
struct LeadersState {
    missing: BTreeMap<String, TopicPartitions>,
    /// librdkafka may have messages for a partition that has lost its leader.
    has_lost: bool,
    looked_up_at: Option<Instant>,
}

impl Leaders {
    #[inline]
    pub fn are_complete(&self) -> bool {
        !self.is_any_missing.load(Relaxed)
    }

    pub fn has(&self, kafka_topic: &str, partition: i32) -> bool {
        let state = self.state();
        let layout = state.missing.get(kafka_topic);
        layout.is_none_or(|layout| !layout.without_leader.contains(&partition))
    }

    /// Returns whether no partition of this Kafka topic can be written to.
    pub fn has_none(&self, kafka_topic: &str) -> bool {
        let state = self.state();
        let layout = state.missing.get(kafka_topic);
        layout.is_some_and(|layout| layout.without_leader.len() >= layout.partitions as usize)
    }

    /// Records partitions that have lost their leader. Returns a text if a partition has a leader again.
    pub fn update(&self, kafka_topic: &str, now: &TopicPartitions) -> Option<String> {
        let mut state = self.state();
        let known = state.missing.get(kafka_topic);
        let before = known.map(|known| known.without_leader.clone()).unwrap_or_default();
        let lost = now.without_leader.difference(&before).count();
        if lost > 0 {
            state.has_lost = true;
            let without_leader = before.union(&now.without_leader).copied().collect();
            let layout = TopicPartitions { without_leader, ..*now };
            let reason = reason(kafka_topic, &layout);
            tracing::warn!(reason, "Kafka partitions have no leader");
            state.missing.insert(kafka_topic.to_owned(), layout);
            self.is_any_missing.store(true, Release);
        }
        let back: Vec<i32> = before.difference(&now.without_leader).copied().collect();
        (!back.is_empty()).then(|| {
            let (partitions, have) = format_partitions(&back, "has", "have");
            format!("Kafka topic {kafka_topic:?}: {partitions} {have} a leader again; waiting messages are sent first")
        })
    }

    /// Sets the current metadata, after all sent messages have returned. `None` means that the topic was deleted.
    pub fn set(&self, kafka_topic: &str, now: Option<TopicPartitions>) {
        let mut state = self.state();
        match now.filter(|now| !now.without_leader.is_empty()) {
            Some(now) => _ = state.missing.insert(kafka_topic.to_owned(), now),
            None => _ = state.missing.remove(kafka_topic),
        }
        self.is_any_missing.store(!state.missing.is_empty(), Release);
    }

    /// Returns the Kafka topics with partitions that have no leader.
    pub fn kafka_topics(&self) -> Vec<String> {
        self.state().missing.keys().cloned().collect()
    }

    /// Like [`Leaders::kafka_topics`], but at most once per interval; empty in between.
    pub fn due_for_check(&self, now: Instant) -> Vec<String> {
        let mut state = self.state();
        if state
            .looked_up_at
            .is_some_and(|at| now.saturating_duration_since(at) < LOOK_EVERY)
        {
            return Vec::new();
        }
        state.looked_up_at = Some(now);
        state.missing.keys().cloned().collect()
    }

    /// Returns whether a partition has lost its leader since the last call.
    pub fn take_has_lost(&self) -> bool {
        std::mem::take(&mut self.state().has_lost)
    }

    /// Returns the affected partitions as a text for operators.
    pub fn reason(&self) -> Option<String> {
        if self.are_complete() {
            return None;
        }
        let state = self.state();
        let reasons: Vec<String> = state
            .missing
            .iter()
            .map(|(name, layout)| reason(name, layout))
            .collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    fn state(&self) -> MutexGuard<'_, LeadersState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reason(kafka_topic: &str, layout: &TopicPartitions) -> String {
    let without: Vec<i32> = layout.without_leader.iter().copied().collect();
    let (partitions, have) = format_partitions(&without, "has", "have");
    format!(
        "Kafka topic {kafka_topic:?}: {partitions} of {} {have} no leader; their messages wait",
        layout.partitions
    )
}

/// Lists at most 20 partitions, with the verb form that fits.
fn format_partitions(partitions: &[i32], one: &'static str, many: &'static str) -> (String, &'static str) {
    const SHOWN_MAX: usize = 20;
    if let [partition] = partitions {
        return (format!("partition {partition}"), one);
    }
    let shown: Vec<String> = partitions.iter().take(SHOWN_MAX).map(i32::to_string).collect();
    let more = partitions.len().saturating_sub(SHOWN_MAX);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    (format!("partitions {}{more}", shown.join(", ")), many)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(without_leader: &[i32]) -> TopicPartitions {
        TopicPartitions {
            partitions: 3,
            without_leader: without_leader.iter().copied().collect(),
        }
    }

    #[test]
    fn a_recovered_leader_counts_after_messages_returned() {
        let leaders = Leaders::default();
        assert_eq!(leaders.update("t", &layout(&[])), None);
        assert!(leaders.are_complete() && leaders.reason().is_none());
        assert_eq!(leaders.update("t", &layout(&[1])), None);
        assert!(leaders.take_has_lost() && !leaders.take_has_lost());
        assert!(leaders.has("t", 0) && !leaders.has("t", 1) && leaders.has("other", 1));
        let reason = "Kafka topic \"t\": partition 1 of 3 has no leader; their messages wait";
        assert_eq!(leaders.reason().as_deref(), Some(reason));
        // Another one is lost, and the first one recovers.
        let back = leaders.update("t", &layout(&[0, 2])).expect("a recovered leader");
        assert!(back.contains("partition 1 has a leader again"), "{back}");
        assert!(leaders.take_has_lost() && leaders.has_none("t") && !leaders.has("t", 1));
        leaders.set("t", Some(layout(&[0, 2])));
        assert!(leaders.has("t", 1) && !leaders.has_none("t"));
        let reason = leaders.reason().expect("a reason");
        assert!(reason.contains("partitions 0, 2 of 3 have no leader"), "{reason}");
        leaders.set("t", Some(layout(&[])));
        assert!(leaders.are_complete() && leaders.reason().is_none());
    }
}
