//! Converts a persistence file of Mosquitto to journal records, as a node with one shard would have written them.
//!
//! In Mosquitto, a QoS 2 message that its publisher has not released is not delivered to subscribers yet. tidewire
//! delivers a message when it arrives. So the first start routes such a message, and its packet identifier stays in
//! use until the publisher releases it. The file does not contain the MQTT version of a client; the next CONNECT tells
//! it.

use std::collections::{BTreeMap, HashMap, HashSet};

use broker::durable::record::{
    AcknowledgedEntry, ConnectSettings, GroupKey, JournalRecord, MessageRecord, Recipient, RecordTarget, RetainedTerms,
    SessionKey, SessionRecord, SettledItems, SubscriptionRecord, Targets,
};
use broker::provenance::Provenance;
use mqtt::{Properties, Property, PropertyContext, QoS, RetainHandling, SubscriptionOptions};

use super::mosquitto::{
    Database, MosquittoClient, MosquittoQueued, MosquittoState, MosquittoSubscription, StoreId, StoredMessage,
};
use super::queue::ImportedQueue;
use super::report::Outcome;
use crate::journal_command::summary::count;

/// Session Expiry Interval: never.
const NEVER: u32 = u32::MAX;

/// All shards of a node with one shard.
const THE_SHARD: u64 = 1;

/// Counts data that is not imported, or not queued yet.
#[derive(Debug, Default)]
pub struct NotImported {
    pub expired_sessions: usize,
    pub messages_without_session: usize,
    pub without_session: usize,
    pub released_by_arrival: usize,
}

impl NotImported {
    /// Returns the rows of a report about data that is left out, or that changes.
    pub fn rows(&self) -> Vec<(String, Outcome)> {
        let refused = |because: &str| Outcome::NotSupported {
            because: because.to_owned(),
        };
        let delivered = Outcome::Changed {
            to: "data/journal".to_owned(),
            because: "their publishers had not released them; the first start delivers them".to_owned(),
        };
        let (expired, unreleased) = (self.expired_sessions, self.released_by_arrival);
        let (without_recipient, without_session) = (self.messages_without_session, self.without_session);
        [
            (expired, "session", "expired", refused("they have expired")),
            (
                without_recipient,
                "message",
                "without a recipient",
                refused("no session receives them, and they are not retained"),
            ),
            (
                without_session,
                "record",
                "of other sessions",
                refused("their session has expired or is missing in the file"),
            ),
            (unreleased, "message", "at QoS 2", delivered),
        ]
        .into_iter()
        .filter(|(number, ..)| *number > 0)
        .map(|(number, noun, kind, outcome)| (format!("{} {kind}", count(number, noun)), outcome))
        .collect()
    }
}

pub struct Conversion<'a, 'd> {
    database: &'a Database<'d>,
    now_unix_ms: u64,
    sessions: Vec<ImportedSession<'a, 'd>>,
    /// By share name and filter.
    groups: BTreeMap<(&'d str, &'d str), GroupKey>,
    left: NotImported,
}

struct ImportedSession<'a, 'd> {
    key: SessionKey,
    client: &'a MosquittoClient<'d>,
    subscriptions: Vec<&'a MosquittoSubscription<'d>>,
    outgoing: Vec<&'a MosquittoQueued<'d>>,
    incoming: Vec<&'a MosquittoQueued<'d>>,
}

/// Recipient of a message.
#[derive(Default)]
struct Recipients {
    targets: Vec<u8>,
    is_unrouted: bool,
}

impl<'a, 'd> Conversion<'a, 'd> {
    pub fn new(database: &'a Database<'d>, now_unix_ms: u64) -> Conversion<'a, 'd> {
        let mut conversion = Conversion {
            database,
            now_unix_ms,
            sessions: Vec::new(),
            groups: BTreeMap::new(),
            left: NotImported::default(),
        };
        let mut by_client_id = conversion.add_sessions();
        conversion.add_subscriptions(&by_client_id);
        conversion.add_queued(&by_client_id);
        by_client_id.clear();
        conversion
    }

    fn add_sessions(&mut self) -> HashMap<&'d str, usize> {
        let mut by_client_id = HashMap::new();
        for client in &self.database.clients {
            if client.client_id.is_empty() || self.is_expired(client) {
                self.left.expired_sessions += 1;
            } else if !by_client_id.contains_key(client.client_id) {
                by_client_id.insert(client.client_id, self.sessions.len());
                self.sessions.push(ImportedSession {
                    key: SessionKey(self.sessions.len() as u64 + 1),
                    client,
                    subscriptions: Vec::new(),
                    outgoing: Vec::new(),
                    incoming: Vec::new(),
                });
            }
        }
        by_client_id
    }

    fn is_expired(&self, client: &MosquittoClient<'_>) -> bool {
        let is_over = client.expires_unix_s > 0 && client.expires_unix_s as u64 <= self.now_unix_ms / 1000;
        client.expiry_s == 0 || client.expiry_s != NEVER && is_over
    }

    fn add_subscriptions(&mut self, by_client_id: &HashMap<&str, usize>) {
        for subscription in &self.database.subscriptions {
            let Some(&at) = by_client_id.get(subscription.client_id) else {
                self.left.without_session += 1;
                continue;
            };
            self.sessions[at].subscriptions.push(subscription);
            if let Some(shared) = shared_of(subscription.filter) {
                let next = GroupKey(self.groups.len() as u64 + 1);
                self.groups.entry(shared).or_insert(next);
            }
        }
    }

    fn add_queued(&mut self, by_client_id: &HashMap<&str, usize>) {
        for queued in &self.database.queued {
            let Some(&at) = by_client_id.get(queued.client_id) else {
                self.left.without_session += 1;
                continue;
            };
            let session = &mut self.sessions[at];
            match queued.is_incoming {
                true => session.incoming.push(queued),
                false => session.outgoing.push(queued),
            }
        }
    }

    pub fn write(mut self, put: &mut dyn FnMut(&JournalRecord<'_>)) -> NotImported {
        let last_key = self.sessions.len().max(self.groups.len()) as u64;
        put(&JournalRecord::Boot {
            unix_ms: self.now_unix_ms,
            shards: 1,
            last_key,
        });
        for ((share_name, filter), group) in &self.groups {
            put(&JournalRecord::Group {
                group: *group,
                share_name,
                filter,
            });
        }
        let mut recipients: HashMap<StoreId, Recipients> = HashMap::new();
        let mut released = Vec::new();
        for session in &self.sessions {
            let queue = ImportedQueue::new(&session.outgoing);
            put(&JournalRecord::Session(self.session_record(session, &queue)));
            session.note_recipients(&queue, &mut recipients, &mut released);
        }
        self.write_messages(&recipients, put);
        if !released.is_empty() {
            put(&JournalRecord::Settled(SettledItems::from_written(&released)));
        }
        self.left
    }

    fn session_record(&self, session: &ImportedSession<'_, 'd>, queue: &ImportedQueue<'_, '_>) -> SessionRecord<'d> {
        let client = session.client;
        let mut received: Vec<u16> = session.incoming.iter().map(|queued| queued.packet_id).collect();
        received.sort_unstable();
        received.dedup();
        SessionRecord {
            session: session.key,
            client_id: client.client_id,
            created_unix_ms: self.now_unix_ms,
            left_unix_ms: Some(self.left_unix_ms(client)),
            terms: ConnectSettings {
                user_name: client.user_name,
                version: session.likely_version(),
                expiry_s: client.expiry_s,
                ..ConnectSettings::default()
            },
            next_seq: queue.next_seq,
            started: queue.started,
            subscriptions: session
                .subscriptions
                .iter()
                .map(|one| subscription_record(one))
                .collect(),
            received,
        }
    }

    fn left_unix_ms(&self, client: &MosquittoClient<'_>) -> u64 {
        if client.expiry_s == NEVER || client.expires_unix_s <= 0 {
            return self.now_unix_ms;
        }
        let left_unix_s = (client.expires_unix_s as u64).saturating_sub(u64::from(client.expiry_s));
        left_unix_s.saturating_mul(1000).min(self.now_unix_ms)
    }

    /// In the order in which Mosquitto received them.
    fn write_messages(&mut self, recipients: &HashMap<StoreId, Recipients>, put: &mut dyn FnMut(&JournalRecord<'_>)) {
        let retained: HashSet<StoreId> = self.database.retained.iter().copied().collect();
        let mut messages: Vec<&StoredMessage<'_>> = self.database.messages.iter().collect();
        messages.sort_by_key(|message| message.id);
        messages.dedup_by_key(|message| message.id);
        let nobody = Recipients::default();
        for message in messages {
            let is_retained = retained.contains(&message.id);
            let recipients = recipients.get(&message.id);
            if recipients.is_none() && !is_retained {
                self.left.messages_without_session += 1;
                continue;
            }
            let recipients = recipients.unwrap_or(&nobody);
            self.left.released_by_arrival += usize::from(recipients.is_unrouted);
            put_message(message, recipients, is_retained, put);
        }
    }
}

fn put_message(
    message: &StoredMessage<'_>,
    recipients: &Recipients,
    is_retained: bool,
    put: &mut dyn FnMut(&JournalRecord<'_>),
) {
    let expires_unix_ms = (message.expires_unix_s > 0).then(|| (message.expires_unix_s as u64).saturating_mul(1000));
    let mut properties = Vec::new();
    // The standard does not know these properties of later Mosquitto versions. They are omitted, and the message is
    // imported.
    if let Ok(found) = Properties::parse(message.properties, PropertyContext::Publish) {
        found.append_forwarded(&mut properties);
    }
    put(&JournalRecord::Message(MessageRecord {
        topic: message.topic,
        payload: message.payload,
        properties: &properties,
        qos: qos(message.qos),
        retain: message.retain || is_retained,
        expires_unix_ms,
        publisher_hash: 0,
        shard: 0,
        others: if recipients.is_unrouted { THE_SHARD } else { 0 },
        due_unix_ms: None,
        retained: is_retained.then_some(RetainedTerms { expires_unix_ms }),
        publisher: None,
        provenance: Provenance::NONE,
        owner: None,
        targets: Targets::from_written(&recipients.targets),
    }));
}

impl ImportedSession<'_, '_> {
    /// Properties that only MQTT 5 has show the version.
    fn likely_version(&self) -> u8 {
        let is_of_5 = |one: &&MosquittoSubscription<'_>| one.identifier != 0 || one.options & !0b11 != 0;
        match self.client.expiry_s != NEVER || self.subscriptions.iter().any(is_of_5) {
            true => 5,
            false => 4,
        }
    }

    fn note_recipients(
        &self,
        queue: &ImportedQueue<'_, '_>,
        recipients: &mut HashMap<StoreId, Recipients>,
        released: &mut Vec<u8>,
    ) {
        for &(seq, queued) in &queue.entries {
            let target = RecordTarget {
                to: Recipient::Session(self.key),
                seq,
                qos: qos(queued.qos),
                retain: queued.retain,
                group: None,
                identifiers: identifiers(queued.properties),
            };
            target.put(&mut recipients.entry(queued.message).or_default().targets);
            if queued.state == MosquittoState::Released {
                AcknowledgedEntry {
                    session: self.key,
                    seq,
                    is_release: true,
                }
                .put(released);
            }
        }
        for queued in &self.incoming {
            recipients.entry(queued.message).or_default().is_unrouted = true;
        }
    }
}

fn identifiers(properties: &[u8]) -> Vec<u32> {
    let Ok(properties) = Properties::parse(properties, PropertyContext::Publish) else {
        return Vec::new();
    };
    let identifier = |property| match property {
        Property::SubscriptionIdentifier(identifier) => Some(identifier),
        _ => None,
    };
    properties.iter().filter_map(identifier).collect()
}

fn subscription_record<'d>(subscription: &MosquittoSubscription<'d>) -> SubscriptionRecord<'d> {
    let options = subscription.options;
    SubscriptionRecord {
        filter: subscription.filter,
        options: SubscriptionOptions {
            maximum_qos: qos(options & 0b11),
            no_local: options & 1 << 2 != 0,
            retain_as_published: options & 1 << 3 != 0,
            retain_handling: match options >> 4 & 0b11 {
                0 => RetainHandling::SendAtSubscribe,
                1 => RetainHandling::SendIfNew,
                _ => RetainHandling::DoNotSend,
            },
        },
        identifier: (subscription.identifier != 0).then_some(subscription.identifier),
        is_replaying: false,
    }
}

/// Returns share name and filter of `$share/name/filter`.
fn shared_of(filter: &str) -> Option<(&str, &str)> {
    filter.strip_prefix("$share/")?.split_once('/')
}

fn qos(bits: u8) -> QoS {
    match bits {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    }
}
