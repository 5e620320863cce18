//! Caches the number of partitions of the Kafka topics that the sink writes to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;

use super::leaders::TopicPartitions;

/// Maximum number of cached topics. The cache is cleared when it is full.
const TOPICS_MAX: usize = 10_000;
/// How long a topic counts as missing before it is looked up again.
const MISSING: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
struct KnownTopic {
    /// `None` if the topic does not exist.
    partitions: Option<u32>,
    at: Instant,
}

pub(super) struct TopicCache {
    known: Mutex<HashMap<Arc<str>, KnownTopic>>,
    refresh: Duration,
}

/// The cached state of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CachedPartitions {
    Known(u32),
    /// The number may be outdated.
    Stale(u32),
    Missing,
    Unknown,
}

impl TopicCache {
    pub fn new(refresh: Duration) -> TopicCache {
        TopicCache {
            known: Mutex::default(),
            refresh,
        }
    }

    pub fn get(&self, name: &str, now: Instant) -> CachedPartitions {
        match self.known().get(name) {
            Some(KnownTopic {
                partitions: Some(count),
                at,
            }) if now.saturating_duration_since(*at) < self.refresh => CachedPartitions::Known(*count),
            Some(KnownTopic {
                partitions: Some(count),
                ..
            }) => CachedPartitions::Stale(*count),
            Some(KnownTopic { partitions: None, at }) if now.saturating_duration_since(*at) < MISSING => {
                CachedPartitions::Missing
            }
            _ => CachedPartitions::Unknown,
        }
    }

    pub fn forget(&self, name: &str) {
        self.known().remove(name);
    }

    /// Queries Kafka and waits for the response. Returns `Ok(None)` if the topic does not exist.
    pub fn look_up<C: ClientContext>(
        &self,
        client: &Client<C>,
        name: &str,
        timeout: Duration,
    ) -> Result<Option<TopicPartitions>, KafkaError> {
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
        known.insert(name.into(), KnownTopic { partitions, at });
        Ok(layout)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Arc<str>, KnownTopic>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn layout(topic: &MetadataTopic) -> TopicPartitions {
    let without_leader = topic.partitions().iter().filter(|partition| partition.leader() < 0);
    TopicPartitions {
        partitions: topic.partitions().len() as u32,
        without_leader: without_leader.map(|partition| partition.id()).collect(),
    }
}
