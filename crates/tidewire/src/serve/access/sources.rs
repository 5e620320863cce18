//! Answers of the sources of `access.sources` about one login: the rules of its client, and decisions of the HTTP
//! service.
//!
//! It belongs to the login, so that it survives a change of the built-in rules, and ends with the next login. A data
//! stream of QUIC has a copy with decisions of its own, because its packets and subscriptions are its own. The shard
//! reads it and the threads that ask write it, each for a few operations under the lock.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use auth::{ClientRules, Credentials, RequestedAction};
use broker::AccessRequest;

/// Longer topics are not stored, because each session may store some of them.
const STORED_TOPIC_BYTES_MAX: usize = 512;

/// How long a decision can be used after it has expired, by the packet for which it was valid.
const GRACE: Duration = Duration::from_secs(1);

/// A decision of the HTTP service, the most restrictive one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    /// There is no answer, so the action is denied.
    Failed,
    Deny,
    /// The next source decides.
    Ignore,
    Allow,
}

/// How long decisions are stored.
#[derive(Debug)]
pub struct DecisionCache {
    /// Maximum number of decisions about topics of a session.
    pub size: usize,
    pub ttl: Duration,
    /// Decisions of an earlier generation are not valid.
    generation: AtomicU64,
}

/// A question to the sources about one client.
pub struct SourceQuestion {
    pub sources: Arc<SessionSources>,
    pub asked: Asked,
}

pub enum Asked {
    /// The rules of the client.
    Rules,
    /// Packets of the client.
    Actions(Vec<RequestedAction>),
    /// The will of a client that connects, and the filters of its session.
    Login(Vec<RequestedAction>),
}

/// The rules of a client, one list per source that has some.
pub type SourceRules = Vec<Option<Arc<ClientRules>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientRulesState {
    Missing,
    Known,
    Failed,
}

pub struct SessionSources {
    /// Without its password.
    client: Arc<Credentials>,
    state: Mutex<SourceState>,
}

struct SourceState {
    rules_state: ClientRulesState,
    rules: Arc<SourceRules>,
    will: Option<Decision>,
    /// Decisions about the packet that waits, by topic or filter.
    answered: HashMap<Box<str>, Vec<(ActionKind, Decision)>>,
    /// Filters of the packet that waits, without an answer, are denied.
    denies_others: bool,
    /// Decisions about topics, the newest first.
    recent: VecDeque<RecentDecision>,
    /// Decisions about filters of subscriptions.
    filters: HashMap<Box<str>, FilterDecision>,
}

/// Action, QoS and RETAIN: decisions about one topic may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ActionKind(u8);

struct RecentDecision {
    topic: Box<str>,
    kind: ActionKind,
    decision: Decision,
    stored: StoredAt,
}

struct FilterDecision {
    kind: ActionKind,
    decision: Decision,
    stored: StoredAt,
    /// The session has the filter. Otherwise the decision is only valid for a later SUBSCRIBE, until it expires.
    is_subscribed: bool,
}

#[derive(Clone, Copy)]
struct StoredAt {
    at: Instant,
    generation: u64,
}

impl DecisionCache {
    pub fn new(size: usize, ttl: Duration) -> DecisionCache {
        DecisionCache {
            size,
            ttl,
            generation: AtomicU64::new(0),
        }
    }

    /// Makes all stored decisions invalid.
    pub fn clear(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> StoredAt {
        StoredAt {
            at: Instant::now(),
            generation: self.generation.load(Ordering::Relaxed),
        }
    }

    /// Returns when a decision is stored. If it is not cached, it is never valid for a later packet.
    fn stored(&self, is_cached: bool) -> StoredAt {
        let now = self.now();
        match is_cached {
            true => now,
            false => StoredAt {
                generation: u64::MAX,
                ..now
            },
        }
    }

    fn is_valid(&self, stored: StoredAt, now: StoredAt, grace: Duration) -> bool {
        stored.generation == now.generation && now.at.saturating_duration_since(stored.at) < self.ttl + grace
    }
}

impl ActionKind {
    fn of(request: &AccessRequest<'_>) -> ActionKind {
        match request {
            AccessRequest::Publish { qos, retain, .. } => ActionKind(*qos as u8 | u8::from(*retain) << 2),
            AccessRequest::Subscribe { qos, .. } => ActionKind(*qos as u8 | ActionKind::SUBSCRIBE),
        }
    }

    fn of_action(action: &RequestedAction) -> ActionKind {
        match action {
            RequestedAction::Publish { qos, retain, .. } => ActionKind(*qos as u8 | u8::from(*retain) << 2),
            RequestedAction::Subscribe { qos, .. } => ActionKind(*qos as u8 | ActionKind::SUBSCRIBE),
        }
    }

    const SUBSCRIBE: u8 = 1 << 3;

    fn is_subscribe(self) -> bool {
        self.0 & ActionKind::SUBSCRIBE != 0
    }
}

impl SourceQuestion {
    /// Returns the memory of the question.
    pub fn bytes(&self) -> usize {
        let actions = match &self.asked {
            Asked::Rules => &[][..],
            Asked::Actions(actions) | Asked::Login(actions) => actions,
        };
        let topics: usize = actions.iter().map(|action| action.topic().len()).sum();
        size_of::<SourceQuestion>() + size_of_val(actions) + topics
    }
}

impl SessionSources {
    /// `needs_rules`: sources of rules must be asked about the client.
    pub fn new(client: Credentials, needs_rules: bool) -> SessionSources {
        SessionSources {
            client: Arc::new(client),
            state: Mutex::new(SourceState {
                rules_state: match needs_rules {
                    true => ClientRulesState::Missing,
                    false => ClientRulesState::Known,
                },
                rules: Arc::default(),
                will: None,
                answered: HashMap::new(),
                denies_others: false,
                recent: VecDeque::new(),
                filters: HashMap::new(),
            }),
        }
    }

    /// Returns the answers for a data stream of the client: the same rules, and no decisions yet.
    pub fn for_data_stream(&self) -> SessionSources {
        let state = self.lock();
        SessionSources {
            client: self.client.clone(),
            state: Mutex::new(SourceState {
                rules_state: state.rules_state,
                rules: state.rules.clone(),
                will: None,
                answered: HashMap::new(),
                denies_others: false,
                recent: VecDeque::new(),
                filters: HashMap::new(),
            }),
        }
    }

    pub fn client(&self) -> &Arc<Credentials> {
        &self.client
    }

    // Every update leaves the state valid, so a panic cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, SourceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn rules_state(&self) -> ClientRulesState {
        self.lock().rules_state
    }

    /// Returns the rules of the client if they are known.
    pub fn rules(&self) -> Option<Arc<SourceRules>> {
        let state = self.lock();
        (state.rules_state == ClientRulesState::Known).then(|| state.rules.clone())
    }

    /// Stores the rules of the client. `None`: a source has no answer.
    pub fn set_rules(&self, rules: Option<SourceRules>) {
        let mut state = self.lock();
        match rules {
            Some(rules) => {
                state.rules = Arc::new(rules);
                state.rules_state = ClientRulesState::Known;
            }
            None => state.rules_state = ClientRulesState::Failed,
        }
    }

    /// Returns whether there was no answer to a question of the login.
    pub fn has_failed(&self) -> bool {
        let state = self.lock();
        state.will == Some(Decision::Failed) || state.filters.values().any(|filter| filter.decision == Decision::Failed)
    }

    /// Returns whether a request of a packet can be decided now.
    pub fn is_decided(&self, cache: &DecisionCache, request: &AccessRequest<'_>) -> bool {
        let kind = ActionKind::of(request);
        match request {
            AccessRequest::Publish { topic, .. } => self.published(cache, topic, kind, Duration::ZERO).is_some(),
            AccessRequest::Subscribe { filter, .. } => {
                let state = self.lock();
                let stored = state.filters.get(*filter).filter(|stored| stored.kind == kind);
                state.denies_others
                    || state.answer(filter, kind).is_some()
                    || stored.is_some_and(|stored| cache.is_valid(stored.stored, cache.now(), Duration::ZERO))
            }
        }
    }

    /// Returns whether a request of a login is decided.
    pub fn is_login_decided(&self, request: &AccessRequest<'_>) -> bool {
        let state = self.lock();
        match request {
            AccessRequest::Publish { .. } => state.will.is_some(),
            AccessRequest::Subscribe { filter, .. } => state.filters.contains_key(*filter),
        }
    }

    pub fn decision_to_publish(&self, cache: &DecisionCache, request: &AccessRequest<'_>) -> Option<Decision> {
        let AccessRequest::Publish { topic, .. } = request else {
            return None;
        };
        // The decision was valid when `is_decided` was called for this packet. It must not expire before it is used.
        self.published(cache, topic, ActionKind::of(request), GRACE)
    }

    fn published(&self, cache: &DecisionCache, topic: &str, kind: ActionKind, grace: Duration) -> Option<Decision> {
        let mut state = self.lock();
        if let Some(answer) = state.answer(topic, kind) {
            return Some(answer);
        }
        let is_same = |recent: &RecentDecision| recent.kind == kind && *recent.topic == *topic;
        let index = state.recent.iter().position(is_same)?;
        if !cache.is_valid(state.recent[index].stored, cache.now(), grace) {
            state.recent.remove(index);
            return None;
        }
        let decision = state.recent[index].decision;
        if index > 0
            && let Some(recent) = state.recent.remove(index)
        {
            state.recent.push_front(recent);
        }
        Some(decision)
    }

    /// Returns the answer to a question about a packet that was not handled.
    pub fn answer(&self, action: &RequestedAction) -> Option<Decision> {
        self.lock().answer(action.topic(), ActionKind::of_action(action))
    }

    pub fn will(&self) -> Option<Decision> {
        self.lock().will
    }

    /// Returns the decision about a filter. In a packet that contains it with different QoS, the most restrictive one.
    pub fn decision_to_subscribe(&self, filter: &str) -> Option<Decision> {
        let state = self.lock();
        state
            .answered_filter(filter)
            .or_else(|| state.filters.get(filter).map(|stored| stored.decision))
    }

    /// Returns the decision about a filter, without the answer to a question about a packet that was not handled.
    pub fn stored_decision(&self, filter: &str) -> Option<Decision> {
        self.lock().filters.get(filter).map(|stored| stored.decision)
    }

    /// Returns the decision about a message with this topic, which is delivered through one of the filters of the
    /// session. A filter that it does not have any more allows nothing.
    pub fn decision_to_receive(&self, topic: &str) -> Option<Decision> {
        let state = self.lock();
        let literal = state.filters.get(topic).filter(|stored| stored.is_subscribed);
        let literal = literal.map(|stored| stored.decision);
        if literal == Some(Decision::Allow) {
            return literal;
        }
        let matching = state.filters.iter().filter(|(_, stored)| stored.is_subscribed);
        let matching =
            matching.filter(|(filter, _)| mqtt::has_wildcards(filter) && mqtt::filter_matches(filter, topic));
        matching.map(|(_, stored)| stored.decision).chain(literal).max()
    }

    /// Stores the answer to a question of a login.
    pub fn record_login(&self, cache: &DecisionCache, action: &RequestedAction, decision: Decision, is_cached: bool) {
        let mut state = self.lock();
        let (kind, stored) = (ActionKind::of_action(action), cache.stored(is_cached));
        match action {
            RequestedAction::Publish { .. } => state.will = Some(decision),
            RequestedAction::Subscribe { filter, .. } => {
                // A session may have a filter with several kinds of subscriptions.
                let decision = state
                    .filters
                    .get(filter)
                    .map_or(decision, |other| decision.min(other.decision));
                state.set_filter(filter.clone(), kind, decision, stored);
            }
        }
    }

    /// Stores the answer to a question about a packet. If `is_cached`, it is valid for later packets as well.
    pub fn record(&self, cache: &DecisionCache, action: &RequestedAction, decision: Decision, is_cached: bool) {
        let mut state = self.lock();
        let (kind, stored) = (ActionKind::of_action(action), cache.now());
        let topic: Box<str> = action.topic().into();
        let answers = state.answered.entry(topic.clone()).or_default();
        answers.retain(|(answered, _)| *answered != kind);
        answers.push((kind, decision));
        if decision == Decision::Failed {
            return;
        }
        if kind.is_subscribe() {
            let decision = state.answered_filter(&topic).unwrap_or(decision);
            let stored = cache.stored(is_cached);
            state.set_filter(topic, kind, decision, stored);
        } else if is_cached && cache.size > 0 && !cache.ttl.is_zero() && topic.len() <= STORED_TOPIC_BYTES_MAX {
            state
                .recent
                .retain(|recent| recent.kind != kind || recent.topic != topic);
            state.recent.truncate(cache.size - 1);
            state.recent.push_front(RecentDecision {
                topic,
                kind,
                decision,
                stored,
            });
        }
    }

    /// Denies the filters of the packet that waits, except those about which the service is asked.
    pub fn deny_others(&self) {
        self.lock().denies_others = true;
    }

    /// The packet of the last question was handled, or will not be handled.
    pub fn forget_answers(&self) {
        // With its memory: a SUBSCRIBE may have many filters.
        let mut state = self.lock();
        state.answered = HashMap::new();
        state.denies_others = false;
    }

    /// A packet about which the service has not decided is not handled.
    pub fn forget_failures(&self) {
        self.lock().answered.retain(|_, answers| {
            answers.retain(|(_, decision)| *decision != Decision::Failed);
            !answers.is_empty()
        });
    }

    pub fn stored_filters(&self) -> usize {
        self.lock().filters.len()
    }

    pub fn retain_filters(&self, is_subscribed: &dyn Fn(&str) -> bool) {
        let mut state = self.lock();
        // The packet of an answer may subscribe to its filter.
        let SourceState { filters, answered, .. } = &mut *state;
        filters.retain(|filter, stored| {
            stored.is_subscribed = is_subscribed(filter);
            stored.is_subscribed || answered.contains_key(filter)
        });
        state.filters.shrink_to_fit();
    }

    /// The session has, or no longer has, a filter.
    pub fn set_subscribed(&self, filter: &str, is_subscribed: bool) {
        if let Some(stored) = self.lock().filters.get_mut(filter) {
            stored.is_subscribed = is_subscribed;
        }
    }
}

impl SourceState {
    /// Stores the decision about a filter. The broker reports later whether the session has it.
    fn set_filter(&mut self, filter: Box<str>, kind: ActionKind, decision: Decision, stored: StoredAt) {
        let is_subscribed = self.filters.get(&filter).is_some_and(|known| known.is_subscribed);
        let found = FilterDecision {
            kind,
            decision,
            stored,
            is_subscribed,
        };
        self.filters.insert(filter, found);
    }

    fn answer(&self, topic: &str, kind: ActionKind) -> Option<Decision> {
        let answers = self.answered.get(topic)?;
        let answer = answers.iter().find(|(answered, _)| *answered == kind);
        answer.map(|(_, decision)| *decision)
    }

    fn answered_filter(&self, filter: &str) -> Option<Decision> {
        let answers = self.answered.get(filter)?.iter();
        let of_filter = answers.filter(|(kind, _)| kind.is_subscribe());
        of_filter.map(|(_, decision)| *decision).min()
    }
}

#[cfg(test)]
mod tests;
