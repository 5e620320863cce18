//! The rules in force, compiled and indexed: what every thread that evaluates reads, and what replaces it when one changes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use broker::tap::Wants;
use connectors::Action;
use mqtt::QoS;
use rules::{EventKind, Rule, RuleIndex, Source, Template};

use crate::metrics::RuleMetrics;
use crate::tail::Tail;

/// A rule in force. Metrics and tail outlive a change of the rule.
pub struct LiveRule {
    pub id: String,
    /// Tells it from others in the marks of messages that it makes, also when the rules in force are others by then. Not 0.
    pub mark: u32,
    pub rule: Arc<Rule>,
    pub outputs: Vec<Output>,
    pub metrics: Arc<RuleMetrics>,
    pub tail: Arc<Tail>,
}

/// What is done with what a rule puts out.
pub enum Output {
    /// Index into `RuleSet::actions`.
    Action(usize),
    Republish(Box<Republish>),
    /// A line in the log.
    Console,
}

/// Templates of a message that is published anew.
pub struct Republish {
    pub topic: Template,
    pub payload: Template,
    pub qos: Field<QoS>,
    pub retain: Field<bool>,
    pub user_properties: Vec<(Template, Template)>,
    pub content_type: Option<Template>,
    pub response_topic: Option<Template>,
    pub correlation_data: Option<Template>,
}

/// A value, or where to find it.
pub enum Field<T> {
    Fixed(T),
    Template(Template),
}

/// An action as rules see it: templates in, records to its buffer.
pub struct LiveAction {
    pub id: String,
    pub action: Arc<Action>,
    pub templates: Vec<Template>,
    /// What its records are kept in order by; none for the client that published.
    pub ordering_key: Option<Template>,
    /// Publishers wait until its buffer has their messages.
    pub is_kept: bool,
    /// Its buffer holds publishers back when there is no room for so many bytes in it; none if it drops messages instead.
    pub headroom: Option<u64>,
    /// It takes records. Else it is being changed, and what rules have for it waits until it is back.
    pub is_open: bool,
}

#[derive(Default)]
pub struct RuleSet {
    pub rules: Vec<LiveRule>,
    pub actions: Vec<LiveAction>,
    /// Sources to indexes of rules.
    pub index: RuleIndex<u32>,
    pub wants: Wants,
}

impl RuleSet {
    pub fn new(rules: Vec<LiveRule>, actions: Vec<LiveAction>) -> RuleSet {
        let mut set = RuleSet {
            actions,
            ..RuleSet::default()
        };
        for (index, live) in rules.iter().enumerate() {
            for source in live.rule.sources() {
                set.index.insert(source, index as u32);
                set.wants = set.wants | wants_of(source);
            }
        }
        set.rules = rules;
        set
    }
}

fn wants_of(source: &Source) -> Wants {
    let Source::Event(kind) = source else {
        return match source {
            Source::Topic(_) => Wants::MESSAGES,
            _ => Wants::NOTHING,
        };
    };
    match kind {
        EventKind::ClientConnected => Wants::CONNECTED,
        EventKind::ClientDisconnected => Wants::DISCONNECTED,
        EventKind::ClientConnack => Wants::CONNACK,
        EventKind::AuthzComplete => Wants::AUTHORIZED,
        EventKind::SessionSubscribed => Wants::SUBSCRIBED,
        EventKind::SessionUnsubscribed => Wants::UNSUBSCRIBED,
        EventKind::MessageDropped => Wants::DROPPED,
        EventKind::MessageDelivered => Wants::DELIVERED,
        EventKind::MessageAcked => Wants::ACKED,
        EventKind::DeliveryDropped => Wants::DELIVERY_DROPPED,
        EventKind::AuthnComplete => Wants::AUTHENTICATED,
        EventKind::ClientPing => Wants::PING,
        _ => Wants::NOTHING,
    }
}

/// The set in force. Readers look at a number and take the lock only when it has changed.
#[derive(Default)]
pub struct InForce {
    number: AtomicU64,
    sets: Mutex<Sets>,
}

#[derive(Default)]
struct Sets {
    now: Arc<RuleSet>,
    /// Those before, until no reader has them: to take ten thousand rules apart is not for a thread of the data plane.
    before: Vec<Arc<RuleSet>>,
}

impl InForce {
    pub fn replace(&self, set: RuleSet) {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut sets.now, Arc::new(set));
        sets.before.push(before);
        let unused: Vec<_> = sets.before.extract_if(.., |set| Arc::strong_count(set) == 1).collect();
        self.number.fetch_add(1, Ordering::Release);
        drop(sets);
        drop(unused);
    }

    /// The set and its number, unless that is `known`.
    pub fn newer_than(&self, known: u64) -> Option<(u64, Arc<RuleSet>)> {
        let number = self.number.load(Ordering::Acquire);
        (number != known).then(|| (number, self.get()))
    }

    pub fn get(&self) -> Arc<RuleSet> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner).now.clone()
    }
}
