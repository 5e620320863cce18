//! Partitions without a leader: nothing can be written to them, and what librdkafka is given for them stays there.
//!
//! It tells nobody, and holds up the batches that such messages came in. So Kafka is asked when a batch takes long, and while a partition
//! has no leader its messages are turned back before librdkafka has them. Those of other partitions go on.
//!
//! Nothing is overtaken: what librdkafka has already goes before what is turned back, and that a partition has a leader again counts only
//! once all that was sent has come back ([`Leaders::are_now`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often it is looked whether there is a leader again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The partitions of a Kafka topic, as Kafka told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub partitions: u32,
    pub without_leader: BTreeSet<i32>,
}

#[derive(Default)]
pub(super) struct Leaders {
    is_any_missing: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    missing: BTreeMap<String, Layout>,
    /// librdkafka may have messages for one that has lost its leader.
    has_lost: bool,
    looked: Option<Instant>,
}

impl Leaders {
    #[inline]
    pub fn are_all_there(&self) -> bool {
        !self.is_any_missing.load(Relaxed)
    }

    pub fn has(&self, kafka_topic: &str, partition: i32) -> bool {
        let state = self.state();
        let layout = state.missing.get(kafka_topic);
        layout.is_none_or(|layout| !layout.without_leader.contains(&partition))
    }

    /// Nothing can be written to this Kafka topic at all.
    pub fn has_none(&self, kafka_topic: &str) -> bool {
        let state = self.state();
        let layout = state.missing.get(kafka_topic);
        layout.is_some_and(|layout| layout.without_leader.len() >= layout.partitions as usize)
    }

    /// Takes notice of those that have lost their leaders. If one has a leader again: says so.
    pub fn look(&self, kafka_topic: &str, now: &Layout) -> Option<String> {
        let mut state = self.state();
        let known = state.missing.get(kafka_topic);
        let before = known.map(|known| known.without_leader.clone()).unwrap_or_default();
        let lost = now.without_leader.difference(&before).count();
        if lost > 0 {
            state.has_lost = true;
            let without_leader = before.union(&now.without_leader).copied().collect();
            let layout = Layout { without_leader, ..*now };
            let reason = reason(kafka_topic, &layout);
            tracing::warn!(reason, "Kafka");
            state.missing.insert(kafka_topic.to_owned(), layout);
            self.is_any_missing.store(true, Release);
        }
        let back: Vec<i32> = before.difference(&now.without_leader).copied().collect();
        (!back.is_empty()).then(|| {
            let (partitions, have) = spelled(&back, "has", "have");
            format!("Kafka topic {kafka_topic:?}: {partitions} {have} a leader again; what waited for it goes first")
        })
    }

    /// What was sent has come back: from now on it is as Kafka told. None: the topic is gone.
    pub fn are_now(&self, kafka_topic: &str, now: Option<Layout>) {
        let mut state = self.state();
        match now.filter(|now| !now.without_leader.is_empty()) {
            Some(now) => _ = state.missing.insert(kafka_topic.to_owned(), now),
            None => _ = state.missing.remove(kafka_topic),
        }
        self.is_any_missing.store(!state.missing.is_empty(), Release);
    }

    /// Kafka topics with such partitions.
    pub fn kafka_topics(&self) -> Vec<String> {
        self.state().missing.keys().cloned().collect()
    }

    /// The same, now and then.
    pub fn to_look_at(&self, now: Instant) -> Vec<String> {
        let mut state = self.state();
        if state
            .looked
            .is_some_and(|at| now.saturating_duration_since(at) < LOOK_EVERY)
        {
            return Vec::new();
        }
        state.looked = Some(now);
        state.missing.keys().cloned().collect()
    }

    /// Whether one has lost its leader since this was asked.
    pub fn take_lost(&self) -> bool {
        std::mem::take(&mut self.state().has_lost)
    }

    /// For operators.
    pub fn reason(&self) -> Option<String> {
        if self.are_all_there() {
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn reason(kafka_topic: &str, layout: &Layout) -> String {
    let without: Vec<i32> = layout.without_leader.iter().copied().collect();
    let (partitions, have) = spelled(&without, "has", "have");
    format!(
        "Kafka topic {kafka_topic:?}: {partitions} of {} {have} no leader; what is for it waits",
        layout.partitions
    )
}

/// Some numbers of many are enough.
fn spelled(partitions: &[i32], one: &'static str, many: &'static str) -> (String, &'static str) {
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

    fn layout(without_leader: &[i32]) -> Layout {
        Layout {
            partitions: 3,
            without_leader: without_leader.iter().copied().collect(),
        }
    }

    #[test]
    fn a_leader_that_is_back_counts_when_all_has_come_back() {
        let leaders = Leaders::default();
        assert_eq!(leaders.look("t", &layout(&[])), None);
        assert!(leaders.are_all_there() && leaders.reason().is_none());
        assert_eq!(leaders.look("t", &layout(&[1])), None);
        assert!(leaders.take_lost() && !leaders.take_lost());
        assert!(leaders.has("t", 0) && !leaders.has("t", 1) && leaders.has("other", 1));
        let reason = "Kafka topic \"t\": partition 1 of 3 has no leader; what is for it waits";
        assert_eq!(leaders.reason().as_deref(), Some(reason));
        // Another one goes, and the first one is back.
        let back = leaders.look("t", &layout(&[0, 2])).expect("it is told");
        assert!(back.contains("partition 1 has a leader again"), "{back}");
        assert!(leaders.take_lost() && leaders.has_none("t") && !leaders.has("t", 1));
        leaders.are_now("t", Some(layout(&[0, 2])));
        assert!(leaders.has("t", 1) && !leaders.has_none("t"));
        let reason = leaders.reason().expect("there is one");
        assert!(reason.contains("partitions 0, 2 of 3 have no leader"), "{reason}");
        leaders.are_now("t", Some(layout(&[])));
        assert!(leaders.are_all_there() && leaders.reason().is_none());
    }
}
