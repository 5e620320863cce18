//! The rules in force, compiled and indexed: what every thread that evaluates reads, and what changes when one of them does.
//!
//! There are two sets: readers have one, and a change is made to the other one, which then takes its place; what it missed is made
//! good at the next change. So a change costs what it changes, however many rules there are, and readers take no lock. A
//! reader that still has the older set, because nothing has happened there, costs one copy.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use broker::tap::Wants;
use connectors::Action;
use mqtt::QoS;
use rules::{EventKind, Rule, RuleIndex, Template};

use crate::loops::Bridge;
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
    /// To an action of this id, which does not exist or is not enabled.
    OutOfService(String),
}

/// Templates of a message that is published anew.
pub struct Republish {
    pub topic: Template,
    pub payload: Template,
    pub qos: Field<QoS>,
    pub retain: Field<bool>,
    pub user_properties: Vec<(Template, Template)>,
    /// Gives a map of others.
    pub more_user_properties: Option<Template>,
    pub content_type: Option<Template>,
    pub response_topic: Option<Template>,
    pub correlation_data: Option<Template>,
    pub payload_format: Option<Template>,
    pub message_expiry: Option<Template>,
    /// It goes to subscribers only: no rule sees it, and it is not retained.
    pub direct_dispatch: Field<bool>,
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
    /// Its buffer holds publishers back when there is no room for so many bytes in it; none if it drops messages for good instead.
    pub headroom: Option<u64>,
    /// What gets what it gives up, as far as that runs.
    pub fallbacks: Vec<LiveFallback>,
    /// It takes records. Else it is being changed, and what rules have for it waits until it is back.
    pub is_open: bool,
    pub bridge: Bridge,
}

/// What gets what an action gives up.
pub struct LiveFallback {
    /// Records carry what is for it under this name.
    pub name: String,
    pub fill: Fill,
}

/// What is filled in for it.
pub enum Fill {
    Action { templates: Vec<Template>, bridge: Bridge },
    Republish(Arc<Republish>),
}

impl LiveFallback {
    /// It hands on the marks of bridges (`loops.rs`) that a record has beside what is for it.
    pub fn is_bridge(&self) -> bool {
        matches!(&self.fill, Fill::Action { bridge, .. } if bridge.is_bridge)
    }
}

/// Of all definitions: some may not run.
#[derive(Clone, Default)]
pub struct RuleSet {
    /// By number; none where there is no rule any more.
    rules: Vec<Option<Arc<LiveRule>>>,
    numbers: HashMap<String, u32>,
    free: Vec<u32>,
    /// By id.
    pub actions: Arc<[LiveAction]>,
    /// Sources to numbers of rules.
    pub index: RuleIndex<u32>,
    pub wants: Wants,
}

impl RuleSet {
    /// `actions` are sorted by id.
    pub fn new(rules: Vec<LiveRule>, actions: Arc<[LiveAction]>) -> RuleSet {
        let mut set = RuleSet {
            actions,
            ..RuleSet::default()
        };
        for live in rules {
            set.insert(Arc::new(live));
        }
        set.wants = wants_of(&set.index);
        set
    }

    pub fn rule(&self, number: u32) -> Option<&Arc<LiveRule>> {
        self.rules.get(number as usize)?.as_ref()
    }

    /// Numbers are below this.
    pub fn numbers(&self) -> usize {
        self.rules.len()
    }

    /// Of an action.
    pub fn position(&self, id: &str) -> Option<usize> {
        self.actions.binary_search_by(|action| action.id.as_str().cmp(id)).ok()
    }

    fn apply(&mut self, change: &Change) {
        match change {
            Change::Rule(id, live) => {
                self.remove(id);
                live.iter().for_each(|live| self.insert(Arc::clone(live)));
                self.wants = wants_of(&self.index);
            }
            Change::Actions(actions) => self.actions = Arc::clone(actions),
        }
    }

    fn remove(&mut self, id: &str) {
        let Some(number) = self.numbers.remove(id) else {
            return;
        };
        if let Some(live) = self.rules[number as usize].take() {
            for source in live.rule.sources() {
                self.index.remove(source, number);
            }
        }
        self.free.push(number);
    }

    fn insert(&mut self, live: Arc<LiveRule>) {
        let number = self.free.pop().unwrap_or_else(|| {
            self.rules.push(None);
            self.rules.len() as u32 - 1
        });
        for source in live.rule.sources() {
            self.index.insert(source, number);
        }
        self.numbers.insert(live.id.clone(), number);
        self.rules[number as usize] = Some(live);
    }
}

fn wants_of(index: &RuleIndex<u32>) -> Wants {
    let messages = if index.has_topics() {
        Wants::MESSAGES
    } else {
        Wants::NOTHING
    };
    let events = EventKind::ALL.iter().filter(|kind| index.has_event(**kind));
    events.fold(messages, |all, kind| all | wants_of_event(*kind))
}

fn wants_of_event(kind: EventKind) -> Wants {
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
    /// Outputs that were accepted for actions that are no more.
    abandoned: AtomicU64,
}

#[derive(Default)]
struct Sets {
    now: Arc<RuleSet>,
    /// The set before, and what it has missed.
    other: Option<(Arc<RuleSet>, Change)>,
    /// Those before, until no reader has them: to take ten thousand rules apart is not for a thread of the data plane.
    before: Vec<Arc<RuleSet>>,
}

enum Change {
    /// By id; none: there is no such rule any more, or it is not enabled.
    Rule(String, Option<Arc<LiveRule>>),
    /// The same ones by id.
    Actions(Arc<[LiveAction]>),
}

impl InForce {
    /// Other rules and actions altogether.
    pub fn replace(&self, set: RuleSet) {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut sets.now, Arc::new(set));
        sets.before.push(before);
        let other = sets.other.take();
        sets.before.extend(other.map(|(set, _)| set));
        self.number.fetch_add(1, Ordering::Release);
        let unused = sets.unused();
        drop(sets);
        drop(unused);
    }

    /// Another rule of this name, or none.
    pub fn put_rule(&self, id: &str, live: Option<LiveRule>) {
        self.change(Change::Rule(id.to_owned(), live.map(Arc::new)));
    }

    /// The same actions in another state.
    pub fn put_actions(&self, actions: Arc<[LiveAction]>) {
        self.change(Change::Actions(actions));
    }

    /// The set and its number, unless that is `known`.
    pub fn newer_than(&self, known: u64) -> Option<(u64, Arc<RuleSet>)> {
        let number = self.number.load(Ordering::Acquire);
        (number != known).then(|| (number, self.get()))
    }

    pub fn abandon(&self, outputs: u64) {
        self.abandoned.fetch_add(outputs, Ordering::Relaxed);
    }

    pub fn abandoned(&self) -> u64 {
        self.abandoned.load(Ordering::Relaxed)
    }

    pub fn get(&self) -> Arc<RuleSet> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner).now.clone()
    }

    fn change(&self, change: Change) {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = sets.spare();
        Arc::get_mut(&mut next)
            .expect("nobody else has a set that is not in force and was found unused, or was just made")
            .apply(&change);
        let before = std::mem::replace(&mut sets.now, next);
        sets.other = Some((before, change));
        self.number.fetch_add(1, Ordering::Release);
        let unused = sets.unused();
        drop(sets);
        drop(unused);
    }
}

impl Sets {
    /// A set like the one in force that nobody reads.
    fn spare(&mut self) -> Arc<RuleSet> {
        if let Some((mut set, missed)) = self.other.take() {
            match Arc::get_mut(&mut set) {
                Some(unused) => {
                    unused.apply(&missed);
                    return set;
                }
                None => self.before.push(set),
            }
        }
        Arc::new(RuleSet::clone(&self.now))
    }

    fn unused(&mut self) -> Vec<Arc<RuleSet>> {
        self.before.extract_if(.., |set| Arc::strong_count(set) == 1).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rules::{Limits, Rule};

    use super::*;

    fn live(id: &str, filter: &str) -> LiveRule {
        let sql = format!("SELECT * FROM \"{filter}\"");
        LiveRule {
            id: id.to_owned(),
            mark: 1,
            rule: Arc::new(Rule::compile(&sql, &Limits::default()).expect("a rule")),
            outputs: Vec::new(),
            metrics: Arc::default(),
            tail: Arc::default(),
        }
    }

    fn found(set: &RuleSet, topic: &str) -> Vec<String> {
        let mut numbers = Vec::new();
        set.index.publish(topic, &mut numbers);
        let rules = numbers.iter().filter_map(|number| set.rule(*number));
        let mut ids: Vec<String> = rules.map(|rule| rule.id.clone()).collect();
        ids.sort();
        ids
    }

    #[test]
    fn a_change_is_in_force_and_readers_of_an_older_set_keep_theirs() {
        let in_force = InForce::default();
        let mut held = Vec::new();
        for round in 0..3 {
            for n in 0..20 {
                in_force.put_rule(
                    &format!("r{n}"),
                    Some(live(&format!("r{n}"), &format!("t/{n}/{round}"))),
                );
                // Some readers stay behind.
                if n % 7 == 0 {
                    held.push((in_force.get(), n, round));
                }
            }
            in_force.put_rule("r3", None);
        }
        for (set, n, round) in held {
            assert_eq!(found(&set, &format!("t/{n}/{round}")), [format!("r{n}")]);
            assert_eq!(found(&set, &format!("t/{}/{round}", n + 1)), [""; 0]);
        }
        let now = in_force.get();
        assert_eq!(found(&now, "t/4/2"), ["r4"]);
        assert_eq!((found(&now, "t/4/1"), found(&now, "t/3/2")), (vec![], vec![]));
        assert_eq!(now.numbers(), 20, "numbers are used again");
        assert_eq!(now.wants, Wants::MESSAGES);
    }

    #[test]
    fn what_no_rule_asks_for_any_more_is_not_wanted() {
        let in_force = InForce::default();
        for id in ["a", "b"] {
            in_force.put_rule(id, Some(live(id, "$events/client_connected")));
        }
        in_force.put_rule("a", None);
        assert_eq!(in_force.get().wants, Wants::CONNECTED);
        in_force.put_rule("b", None);
        assert_eq!(in_force.get().wants, Wants::NOTHING);
    }

    #[test]
    fn sets_that_nobody_reads_are_gone() {
        let in_force = InForce::default();
        for n in 0..10 {
            let reader = in_force.get();
            in_force.put_rule("r", Some(live("r", &format!("t/{n}"))));
            drop(reader);
        }
        let sets = in_force.sets.lock().expect("no panic");
        assert!(sets.before.is_empty(), "{}", sets.before.len());
    }
}
