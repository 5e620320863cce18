//! Retained messages of another broker as records of a journal, as a node with one shard would have written them.

use broker::durable::record::{JournalRecord, MessageRecord, RetainedTerms, Targets};
use broker::provenance::Provenance;
use mqtt::{Properties, PropertyContext, QoS, validate_topic_name};

use super::setup::PutRecord;

#[derive(Debug, Default)]
pub struct RetainedMessage {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    /// As in a PUBLISH, without their length.
    pub properties: Vec<u8>,
    /// `None`: never.
    pub expires_unix_ms: Option<u64>,
}

impl RetainedMessage {
    /// Returns why the message cannot be retained.
    pub fn problem(&self) -> Option<String> {
        if let Err(error) = validate_topic_name(&self.topic) {
            return Some(error.to_string());
        }
        if self.payload.is_empty() {
            return Some("an empty retained message deletes a message".to_owned());
        }
        Properties::parse(&self.properties, PropertyContext::Publish)
            .err()
            .map(|error| error.to_string())
    }
}

pub fn put_all(messages: &[RetainedMessage], now_unix_ms: u64, put: &mut PutRecord<'_>) {
    put(&JournalRecord::Boot {
        unix_ms: now_unix_ms,
        shards: 1,
        last_key: 0,
    });
    for message in messages {
        put(&JournalRecord::Message(MessageRecord {
            topic: &message.topic,
            payload: &message.payload,
            properties: &message.properties,
            qos: match message.qos {
                0 => QoS::AtMostOnce,
                1 => QoS::AtLeastOnce,
                _ => QoS::ExactlyOnce,
            },
            retain: true,
            expires_unix_ms: message.expires_unix_ms,
            publisher_hash: 0,
            shard: 0,
            others: 0,
            due_unix_ms: None,
            retained: Some(RetainedTerms {
                expires_unix_ms: message.expires_unix_ms,
            }),
            publisher: None,
            provenance: Provenance::NONE,
            owner: None,
            targets: Targets::from_written(&[]),
        }));
    }
}
