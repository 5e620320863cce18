//! How many partitions the Kafka topics have that we send to, and which of them have no leader.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;

use super::leaders::Layout;

/// Topics of which something is known; with more, all is looked up again.
const TOPICS_MAX: usize = 10_000;
/// How long a topic counts as missing before it is looked up again.
const MISSING: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
struct Known {
    /// `None`: there is no such topic.
    partitions: Option<u32>,
    at: Instant,
}

pub(super) struct Topics {
    known: Mutex<HashMap<Arc<str>, Known>>,
    refresh: Duration,
}

/// What is known of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Partitions {
    Some(u32),
    /// There are so many, or were some time ago.
    Stale(u32),
    Missing,
    Unknown,
}

impl Topics {
    pub fn new(refresh: Duration) -> Topics {
        Topics {
            known: Mutex::default(),
            refresh,
        }
    }

    pub fn get(&self, name: &str, now: Instant) -> Partitions {
        match self.known().get(name) {
            Some(Known {
                partitions: Some(count),
                at,
            }) if now.saturating_duration_since(*at) < self.refresh => Partitions::Some(*count),
            Some(Known {
                partitions: Some(count),
                ..
            }) => Partitions::Stale(*count),
            Some(Known { partitions: None, at }) if now.saturating_duration_since(*at) < MISSING => Partitions::Missing,
            _ => Partitions::Unknown,
        }
    }

    pub fn forget(&self, name: &str) {
        self.known().remove(name);
    }

    /// Asks Kafka; waits for the answer. `Ok(None)`: there is no such topic.
    pub fn look_up<C: ClientContext>(
        &self,
        client: &Client<C>,
        name: &str,
        timeout: Duration,
    ) -> Result<Option<Layout>, KafkaError> {
        let metadata = client.fetch_metadata(Some(name), timeout)?;
        let topic = metadata.topics().iter().find(|topic| topic.name() == name);
        let layout = match topic {
            Some(topic) => match topic.error().map(RDKafkaErrorCode::from) {
                None => Some(layout(topic)).filter(|layout| layout.partitions > 0),
                Some(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic) => None,
                Some(code) => return Err(KafkaError::MetadataFetch(code)),
            },
            None => None,
        };
        let mut known = self.known();
        if known.len() >= TOPICS_MAX {
            known.clear();
        }
        let at = Instant::now();
        let partitions = layout.as_ref().map(|layout| layout.partitions);
        known.insert(name.into(), Known { partitions, at });
        Ok(layout)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Arc<str>, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn layout(topic: &MetadataTopic) -> Layout {
    let without_leader = topic.partitions().iter().filter(|partition| partition.leader() < 0);
    Layout {
        partitions: topic.partitions().len() as u32,
        without_leader: without_leader.map(|partition| partition.id()).collect(),
    }
}
