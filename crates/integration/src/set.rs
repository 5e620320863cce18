//! The current rules, compiled and indexed, as evaluating threads read them.
//!
//! There are two copies of the rule set: the current one, which readers use, and a spare one. A change is applied to
//! the spare copy, which then becomes current. The previous copy receives the same change when the next change is made.
//! The cost of a change therefore does not depend on the number of rules, and readers take no lock. If a reader still
//! uses the previous copy because it had no events, the change copies the whole set.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use broker::tap::TapEventMask;
use connectors::Action;
use mqtt::QoS;
use rules::{EventKind, Rule, RuleIndex, Template};

use crate::environment::RuleTime;
use crate::loops::MarkPolicy;
use crate::metrics::RuleMetrics;
use crate::tail::RuleTail;
use crate::timing::Timing;

/// A compiled rule. Metrics and tail survive changes of the rule.
pub struct LiveRule {
    pub id: String,
    /// Identifies the rule in the marks of messages that it republishes. Does not change while the rule exists. Not 0.
    pub mark: u32,
    pub rule: Arc<Rule>,
    pub outputs: Vec<RuleOutput>,
    pub metrics: Arc<RuleMetrics>,
    pub tail: Arc<RuleTail>,
    pub timing: Arc<Timing>,
}

/// A target of the outputs of a rule.
pub enum RuleOutput {
    /// Index into `RuleSet::actions`.
    Action(usize),
    Republish(Box<Republish>),
    /// Writes a line to the log.
    Console,
    /// An action id that does not exist or is disabled.
    OutOfService(String),
}

/// Templates of a republished message.
pub struct Republish {
    pub topic: Template,
    pub payload: Template,
    pub qos: FixedOrTemplate<QoS>,
    pub retain: FixedOrTemplate<bool>,
    pub user_properties: Vec<(Template, Template)>,
    /// Its value is a map or list of further user properties.
    pub user_properties_map: Option<Template>,
    pub content_type: Option<Template>,
    pub response_topic: Option<Template>,
    pub correlation_data: Option<Template>,
    pub payload_format: Option<Template>,
    pub message_expiry: Option<Template>,
    /// The message goes only to subscribers: no rule sees it, and it is not retained.
    pub direct_dispatch: FixedOrTemplate<bool>,
}

/// A value that is fixed, or that a template computes for each message.
pub enum FixedOrTemplate<T> {
    Fixed(T),
    Template(Template),
}

/// An action as rules see it: its templates and its buffer.
pub struct LiveAction {
    pub id: String,
    pub action: Arc<Action>,
    pub templates: Vec<Template>,
    /// Ordering key of its records. `None`: the client id of the publisher.
    pub ordering_key: Option<Template>,
    /// Whether publishers wait until its buffer has stored their messages.
    pub is_awaited: bool,
    /// Publishers have to wait if the buffer has less free space than this. `None` if the buffer drops messages
    /// instead.
    pub free_bytes_min: Option<u64>,
    /// Its running fallback actions.
    pub fallbacks: Vec<LiveFallback>,
    /// False while the action is being changed. Its records wait until it is open again.
    pub is_open: bool,
    pub bridge: MarkPolicy,
}

/// A fallback of an action.
pub struct LiveFallback {
    /// Name of the carried record for this fallback (`fallback_records.rs`).
    pub name: String,
    pub templates: FallbackTemplates,
}

/// How the data for a fallback is rendered.
pub enum FallbackTemplates {
    Action {
        templates: Vec<Template>,
        bridge: MarkPolicy,
    },
    Republish(Arc<Republish>),
}

impl LiveFallback {
    /// Returns whether it forwards the marks of bridges (`loops.rs`) that a record carries.
    pub fn is_bridge(&self) -> bool {
        matches!(&self.templates, FallbackTemplates::Action { bridge, .. } if bridge.is_bridge)
    }
}

/// The compiled rules and actions. Invalid or disabled rules are missing.
#[derive(Clone, Default)]
pub struct RuleSet {
    /// Rules by number; `None` for a deleted rule.
    rules: Vec<Option<Arc<LiveRule>>>,
    numbers: HashMap<String, u32>,
    free: Vec<u32>,
    /// Actions sorted by id.
    pub actions: Arc<[LiveAction]>,
    /// Maps sources to numbers of rules.
    pub index: RuleIndex<u32>,
    pub wants: TapEventMask,
    pub rule_time: RuleTime,
}

impl RuleSet {
    /// Creates a set. `actions` must be sorted by id.
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

    /// Returns a number that is greater than the number of every rule.
    pub fn numbers(&self) -> usize {
        self.rules.len()
    }

    /// Returns the index of an action.
    pub fn position(&self, id: &str) -> Option<usize> {
        self.actions.binary_search_by(|action| action.id.as_str().cmp(id)).ok()
    }

    fn apply(&mut self, change: &RuleSetChange) {
        match change {
            RuleSetChange::Rule(id, live) => {
                self.remove(id);
                live.iter().for_each(|live| self.insert(Arc::clone(live)));
                self.wants = wants_of(&self.index);
            }
            RuleSetChange::Actions(actions) => self.actions = Arc::clone(actions),
            RuleSetChange::RuleTime(rule_time) => self.rule_time = *rule_time,
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

fn wants_of(index: &RuleIndex<u32>) -> TapEventMask {
    let messages = if index.has_topics() {
        TapEventMask::MESSAGES
    } else {
        TapEventMask::NOTHING
    };
    let events = EventKind::ALL.iter().filter(|kind| index.has_event(**kind));
    events.fold(messages, |all, kind| all | wants_of_event(*kind))
}

fn wants_of_event(kind: EventKind) -> TapEventMask {
    match kind {
        EventKind::ClientConnected => TapEventMask::CONNECTED,
        EventKind::ClientDisconnected => TapEventMask::DISCONNECTED,
        EventKind::ClientConnack => TapEventMask::CONNACK,
        EventKind::AuthzComplete => TapEventMask::AUTHORIZED,
        EventKind::SessionSubscribed => TapEventMask::SUBSCRIBED,
        EventKind::SessionUnsubscribed => TapEventMask::UNSUBSCRIBED,
        EventKind::MessageDropped => TapEventMask::DROPPED,
        EventKind::MessageDelivered => TapEventMask::DELIVERED,
        EventKind::MessageAcked => TapEventMask::ACKED,
        EventKind::DeliveryDropped => TapEventMask::DELIVERY_DROPPED,
        EventKind::AuthnComplete => TapEventMask::AUTHENTICATED,
        EventKind::ClientPing => TapEventMask::PING,
        _ => TapEventMask::NOTHING,
    }
}

/// The current rule set. Readers compare its number, and take the lock only when it has changed.
#[derive(Default)]
pub struct ActiveRules {
    number: AtomicU64,
    sets: Mutex<RuleSetVersions>,
    /// Number of outputs that were dropped because their action was disabled or deleted.
    discarded: AtomicU64,
}

#[derive(Default)]
struct RuleSetVersions {
    current: Arc<RuleSet>,
    /// The spare copy: the previous set, and the change that it lacks.
    previous: Option<(Arc<RuleSet>, RuleSetChange)>,
    /// Older sets that a reader may still have. They are freed here, because freeing thousands of rules would block a
    /// thread of the data plane.
    old_sets: Vec<Arc<RuleSet>>,
}

enum RuleSetChange {
    /// A rule by id; `None` if it was deleted or disabled.
    Rule(String, Option<Arc<LiveRule>>),
    /// New states of the same actions.
    Actions(Arc<[LiveAction]>),
    RuleTime(RuleTime),
}

impl ActiveRules {
    /// Replaces all rules and actions.
    pub fn replace(&self, set: RuleSet) {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut sets.current, Arc::new(set));
        sets.old_sets.push(before);
        let other = sets.previous.take();
        sets.old_sets.extend(other.map(|(set, _)| set));
        self.number.fetch_add(1, Ordering::Release);
        let unused = sets.unused();
        drop(sets);
        drop(unused);
    }

    /// Replaces or removes the rule of this id.
    pub fn put_rule(&self, id: &str, live: Option<LiveRule>) {
        self.change(RuleSetChange::Rule(id.to_owned(), live.map(Arc::new)));
    }

    /// Replaces the states of the same actions.
    pub fn put_actions(&self, actions: Arc<[LiveAction]>) {
        self.change(RuleSetChange::Actions(actions));
    }

    /// Returns the current set and its number, or `None` if the caller already has this number.
    pub fn newer_than(&self, known: u64) -> Option<(u64, Arc<RuleSet>)> {
        let number = self.number.load(Ordering::Acquire);
        (number != known).then(|| (number, self.get()))
    }

    pub fn add_discarded(&self, outputs: u64) {
        self.discarded.fetch_add(outputs, Ordering::Relaxed);
    }

    pub fn discarded(&self) -> u64 {
        self.discarded.load(Ordering::Relaxed)
    }

    pub fn get(&self) -> Arc<RuleSet> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner).current.clone()
    }

    pub fn put_rule_time(&self, rule_time: RuleTime) {
        self.change(RuleSetChange::RuleTime(rule_time));
    }

    fn change(&self, change: RuleSetChange) {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = sets.take_unused();
        Arc::get_mut(&mut next)
            .expect("a spare set has no other owner")
            .apply(&change);
        let before = std::mem::replace(&mut sets.current, next);
        sets.previous = Some((before, change));
        self.number.fetch_add(1, Ordering::Release);
        let unused = sets.unused();
        drop(sets);
        drop(unused);
    }
}

impl RuleSetVersions {
    /// Returns an unused set with the content of the current one.
    fn take_unused(&mut self) -> Arc<RuleSet> {
        if let Some((mut set, missed)) = self.previous.take() {
            match Arc::get_mut(&mut set) {
                Some(unused) => {
                    unused.apply(&missed);
                    return set;
                }
                None => self.old_sets.push(set),
            }
        }
        Arc::new(RuleSet::clone(&self.current))
    }

    fn unused(&mut self) -> Vec<Arc<RuleSet>> {
        self.old_sets
            .extract_if(.., |set| Arc::strong_count(set) == 1)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rules::{Rule, RuleLimits};

    use super::*;

    fn live(id: &str, filter: &str) -> LiveRule {
        let sql = format!("SELECT * FROM \"{filter}\"");
        LiveRule {
            id: id.to_owned(),
            mark: 1,
            rule: Arc::new(Rule::compile(&sql, &RuleLimits::default()).expect("a rule")),
            outputs: Vec::new(),
            metrics: Arc::default(),
            tail: Arc::default(),
            timing: Arc::default(),
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
    fn changes_do_not_affect_readers_of_older_sets() {
        let active_rules = ActiveRules::default();
        let mut held = Vec::new();
        for round in 0..3 {
            for n in 0..20 {
                active_rules.put_rule(
                    &format!("r{n}"),
                    Some(live(&format!("r{n}"), &format!("t/{n}/{round}"))),
                );
                // Some readers keep an older set.
                if n % 7 == 0 {
                    held.push((active_rules.get(), n, round));
                }
            }
            active_rules.put_rule("r3", None);
        }
        for (set, n, round) in held {
            assert_eq!(found(&set, &format!("t/{n}/{round}")), [format!("r{n}")]);
            assert_eq!(found(&set, &format!("t/{}/{round}", n + 1)), [""; 0]);
        }
        let now = active_rules.get();
        assert_eq!(found(&now, "t/4/2"), ["r4"]);
        assert_eq!((found(&now, "t/4/1"), found(&now, "t/3/2")), (vec![], vec![]));
        assert_eq!(now.numbers(), 20, "numbers are reused");
        assert_eq!(now.wants, TapEventMask::MESSAGES);
    }

    #[test]
    fn events_without_rules_are_not_requested() {
        let active_rules = ActiveRules::default();
        for id in ["a", "b"] {
            active_rules.put_rule(id, Some(live(id, "$events/client_connected")));
        }
        active_rules.put_rule("a", None);
        assert_eq!(active_rules.get().wants, TapEventMask::CONNECTED);
        active_rules.put_rule("b", None);
        assert_eq!(active_rules.get().wants, TapEventMask::NOTHING);
    }

    #[test]
    fn unused_sets_are_freed() {
        let active_rules = ActiveRules::default();
        for n in 0..10 {
            let reader = active_rules.get();
            active_rules.put_rule("r", Some(live("r", &format!("t/{n}"))));
            drop(reader);
        }
        let sets = active_rules.sets.lock().expect("no panic");
        assert!(sets.old_sets.is_empty(), "{}", sets.old_sets.len());
    }
}
