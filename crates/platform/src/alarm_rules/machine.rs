//! The state machine of alarm rules: `(state, event at a time) -> (state, effects)`.

use serde_json::{Value as Json, json};
use timeseries::PointValue;

use super::definition::{AlarmConditionSpec, AlarmDefinition, AlarmRule, AlarmRuleKey, AlarmRules, KeySource, Operand};
use super::predicate::{OwnerAttributeSource, Values, text, whole};
use crate::decode::KeyValue;
use crate::ids::{AlarmId, CustomerId, DeviceId, TenantId};
use crate::model::Alarm;

/// The rules' state for one device. A value stays set after its first message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AlarmRulesState {
    values: Box<[Option<PointValue>]>,
    /// Timestamp of the newest message.
    ts_ms: i64,
    alarms: Box<[AlarmState]>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct AlarmState {
    current: Option<Box<Alarm>>,
    /// In the order of the definition, the clear rule last.
    rules: Box<[AlarmRuleState]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AlarmRuleState {
    count: i64,
    last_ms: i64,
    duration_ms: i64,
}

#[derive(Clone, Copy, Debug)]
pub enum AlarmRuleEvent<'a> {
    /// Values with one timestamp.
    Telemetry {
        ts_ms: i64,
        values: &'a [KeyValue<'a>],
    },
    Attributes {
        values: &'a [KeyValue<'a>],
    },
    AttributesDeleted {
        keys: &'a [&'a str],
    },
    /// Time has passed, for durations.
    Tick,
    /// The alarm was cleared or deleted.
    AlarmEnded(AlarmId),
    AlarmAcknowledged {
        id: AlarmId,
        at_ms: i64,
    },
}

/// The device's owners, the source of identifiers, and the owners' attributes.
pub struct AlarmRuleContext<'a> {
    pub tenant: TenantId,
    pub customer: CustomerId,
    pub device: DeviceId,
    pub now_ms: i64,
    pub new_id: &'a dyn Fn() -> AlarmId,
    pub lookup: &'a dyn OwnerAttributeSource,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmTransition {
    Created,
    Updated,
    SeverityUpdated,
    Cleared,
}

impl AlarmTransition {
    /// Returns the connection of the device profile node through which the alarm leaves.
    pub fn label(self) -> &'static str {
        match self {
            AlarmTransition::Created => "Alarm Created",
            AlarmTransition::Updated => "Alarm Updated",
            AlarmTransition::SeverityUpdated => "Alarm Severity Updated",
            AlarmTransition::Cleared => "Alarm Cleared",
        }
    }
}

/// The counter of the fired rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FiredCondition {
    Simple,
    Repeats(i64),
    DurationMs(i64),
}

#[derive(Clone, Debug, PartialEq)]
pub struct AlarmEffect {
    pub action: AlarmTransition,
    pub alarm: Alarm,
    pub condition: FiredCondition,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ConditionResult {
    True,
    NotYet,
    False,
}

/// The cause of an evaluation: changed keys or a tick. A tick evaluates all rules.
struct RuleTrigger<'a> {
    changed: Option<&'a [bool]>,
    is_tick: bool,
    ctx: &'a AlarmRuleContext<'a>,
}

impl AlarmRulesState {
    /// `fetch` returns the stored value of a key, with which the new state begins.
    pub fn new(rules: &AlarmRules, mut fetch: impl FnMut(&AlarmRuleKey) -> Option<PointValue>) -> AlarmRulesState {
        let alarms = rules.alarms.iter().map(|alarm| AlarmState {
            current: None,
            rules: vec![AlarmRuleState::default(); alarm.rules().count()].into(),
        });
        AlarmRulesState {
            values: rules.keys().iter().map(&mut fetch).collect(),
            ts_ms: 0,
            alarms: alarms.collect(),
        }
    }

    /// Takes over an alarm that is already active.
    pub fn restore_alarm(&mut self, rules: &AlarmRules, alarm: Alarm) {
        let position = rules
            .alarms
            .iter()
            .position(|definition| *definition.kind == *alarm.kind);
        if let Some(position) = position {
            self.alarms[position].current = Some(Box::new(alarm));
        }
    }

    pub fn active_alarms(&self) -> impl Iterator<Item = &Alarm> {
        self.alarms.iter().filter_map(|alarm| alarm.current.as_deref())
    }

    /// Whether rules have counts or durations for [`AlarmRulesState::counters`].
    pub fn has_counters(&self) -> bool {
        self.alarms
            .iter()
            .any(|alarm| alarm.rules.iter().any(|rule| *rule != AlarmRuleState::default()))
    }

    /// Serializes counts and durations, by names that survive a profile change. Values and alarms are stored
    /// elsewhere.
    pub fn counters(&self, rules: &AlarmRules) -> Vec<u8> {
        let alarms = rules.alarms.iter().zip(&self.alarms).map(|(definition, alarm)| {
            let rules = definition.rule_names().zip(&alarm.rules);
            let rules =
                rules.map(|(name, rule)| (name.to_owned(), json!([rule.count, rule.last_ms, rule.duration_ms])));
            (definition.id.to_string(), Json::Object(rules.collect()))
        });
        Json::Object(alarms.collect()).to_string().into_bytes()
    }

    /// Restores counts and durations. Skips invalid data and removed rules.
    pub fn restore_counters(&mut self, rules: &AlarmRules, bytes: &[u8]) {
        let stored: Json = serde_json::from_slice(bytes).unwrap_or_default();
        for (definition, alarm) in rules.alarms.iter().zip(&mut self.alarms) {
            for (name, rule) in definition.rule_names().zip(&mut alarm.rules) {
                let number = |index: usize| stored[&*definition.id][name][index].as_i64().unwrap_or(0);
                *rule = AlarmRuleState {
                    count: number(0),
                    last_ms: number(1),
                    duration_ms: number(2),
                };
            }
        }
    }

    /// Heap size, without the texts of active alarms.
    pub fn heap_bytes(&self) -> usize {
        let rules = self.alarms.iter().map(|alarm| {
            let current = if alarm.current.is_some() { size_of::<Alarm>() } else { 0 };
            current + size_of_val(&*alarm.rules)
        });
        size_of_val(&*self.values) + size_of_val(&*self.alarms) + rules.sum::<usize>()
    }

    /// Processes an event. Effects are in the order of the rules.
    pub fn handle(
        &mut self,
        rules: &AlarmRules,
        event: AlarmRuleEvent<'_>,
        ctx: &AlarmRuleContext<'_>,
        effects: &mut Vec<AlarmEffect>,
    ) {
        let (changed, is_tick) = match event {
            AlarmRuleEvent::Telemetry { ts_ms, values } => {
                (self.merge(rules, KeySource::TimeSeries, ts_ms, values), false)
            }
            AlarmRuleEvent::Attributes { values } => {
                (self.merge(rules, KeySource::Attribute, ctx.now_ms, values), false)
            }
            AlarmRuleEvent::AttributesDeleted { keys } => (self.remove_values(rules, keys), false),
            AlarmRuleEvent::Tick => (None, true),
            AlarmRuleEvent::AlarmEnded(id) => return self.end(id),
            AlarmRuleEvent::AlarmAcknowledged { id, at_ms } => return self.acknowledge(id, at_ms),
        };
        if !is_tick && changed.is_none() {
            return;
        }
        let trial = RuleTrigger {
            changed: changed.as_deref(),
            is_tick,
            ctx,
        };
        for (definition, alarm) in rules.alarms.iter().zip(&mut self.alarms) {
            effects.extend(alarm.process(definition, &self.values, self.ts_ms, &trial));
        }
    }

    /// Merges values and returns which keys changed; `None` if no key did.
    fn merge(
        &mut self,
        rules: &AlarmRules,
        source: KeySource,
        ts_ms: i64,
        values: &[KeyValue<'_>],
    ) -> Option<Vec<bool>> {
        let is_new_time = self.ts_ms != ts_ms;
        let mut changed: Option<Vec<bool>> = None;
        for value in values {
            let Some(number) = rules.key_number(source, &value.key) else {
                continue;
            };
            let known = &mut self.values[number];
            if is_new_time || known.as_ref() != Some(&value.value) {
                changed.get_or_insert_with(|| vec![false; rules.keys().len()])[number] = true;
            }
            *known = Some(value.value.clone());
        }
        self.ts_ms = ts_ms;
        changed
    }

    fn remove_values(&mut self, rules: &AlarmRules, keys: &[&str]) -> Option<Vec<bool>> {
        let mut changed: Option<Vec<bool>> = None;
        for number in keys
            .iter()
            .filter_map(|key| rules.key_number(KeySource::Attribute, key))
        {
            self.values[number] = None;
            changed.get_or_insert_with(|| vec![false; rules.keys().len()])[number] = true;
        }
        changed
    }

    fn end(&mut self, id: AlarmId) {
        for alarm in &mut self.alarms {
            if alarm.current.as_ref().is_some_and(|current| current.id == Some(id)) {
                alarm.current = None;
                alarm.rules.fill(AlarmRuleState::default());
            }
        }
    }

    fn acknowledge(&mut self, id: AlarmId, at_ms: i64) {
        let alarms = self.alarms.iter_mut().filter_map(|alarm| alarm.current.as_mut());
        for current in alarms.filter(|current| current.id == Some(id)) {
            current.acknowledged = true;
            current.ack_ts = at_ms;
        }
    }
}

impl AlarmDefinition {
    fn rule_names(&self) -> impl Iterator<Item = &'static str> {
        let create = self.create.iter().map(|(severity, _)| severity.name());
        create.chain(self.clear.iter().map(|_| "CLEAR"))
    }
}

impl AlarmState {
    fn process(
        &mut self,
        definition: &AlarmDefinition,
        values: &[Option<PointValue>],
        ts_ms: i64,
        trial: &RuleTrigger<'_>,
    ) -> Option<AlarmEffect> {
        let known = Values {
            values,
            lookup: trial.ctx.lookup,
        };
        for (index, (_, rule)) in definition.create.iter().enumerate() {
            match self.rules[index].verdict(rule, &known, ts_ms, trial) {
                Some(ConditionResult::True) => {
                    let effect = self.raise(definition, index, &known, ts_ms, trial.ctx);
                    self.reset_clear(definition);
                    return effect;
                }
                Some(ConditionResult::False) => self.rules[index] = AlarmRuleState::default(),
                Some(ConditionResult::NotYet) | None => {}
            }
        }
        self.try_clear(definition, &known, ts_ms, trial)
    }

    fn reset_clear(&mut self, definition: &AlarmDefinition) {
        if definition.clear.is_some() {
            self.rules[definition.create.len()] = AlarmRuleState::default();
        }
    }

    fn raise(
        &mut self,
        definition: &AlarmDefinition,
        index: usize,
        values: &Values<'_>,
        ts_ms: i64,
        ctx: &AlarmRuleContext<'_>,
    ) -> Option<AlarmEffect> {
        let (severity, rule) = &definition.create[index];
        let condition = self.rules[index].condition(rule);
        if let Some(current) = &mut self.current {
            current.end_ts = ctx.now_ms;
            if *severity > current.severity {
                return None;
            }
            let is_raised = *severity < current.severity;
            current.severity = *severity;
            current.details = Some(details(rule, values, current.details.take()));
            return Some(AlarmEffect {
                action: if is_raised {
                    AlarmTransition::SeverityUpdated
                } else {
                    AlarmTransition::Updated
                },
                alarm: Alarm::clone(current),
                condition,
            });
        }
        let start_ts = if ts_ms == 0 { ctx.now_ms } else { ts_ms.min(ctx.now_ms) };
        let mut alarm = Alarm::new(ctx.tenant, ctx.device.entity(), &definition.kind, *severity);
        let id = (ctx.new_id)();
        alarm.id = Some(id);
        alarm.created_time = id.0.created_ms();
        alarm.customer_id = Some(ctx.customer);
        alarm.start_ts = start_ts;
        alarm.end_ts = start_ts;
        alarm.details = Some(details(rule, values, None));
        alarm.propagate = definition.propagate;
        alarm.propagate_to_owner = definition.propagate_to_owner;
        alarm.propagate_to_tenant = definition.propagate_to_tenant;
        alarm
            .propagate_relation_types
            .clone_from(&definition.propagate_relation_types);
        self.current = Some(Box::new(alarm.clone()));
        Some(AlarmEffect {
            action: AlarmTransition::Created,
            alarm,
            condition,
        })
    }

    fn try_clear(
        &mut self,
        definition: &AlarmDefinition,
        values: &Values<'_>,
        ts_ms: i64,
        trial: &RuleTrigger<'_>,
    ) -> Option<AlarmEffect> {
        let rule = definition.clear.as_ref()?;
        let mut alarm = self.current.take()?;
        let index = definition.create.len();
        let verdict = self.rules[index].verdict(rule, values, ts_ms, trial);
        if verdict != Some(ConditionResult::True) {
            if verdict == Some(ConditionResult::False) {
                self.rules[index] = AlarmRuleState::default();
            }
            self.current = Some(alarm);
            return None;
        }
        let condition = self.rules[index].condition(rule);
        self.rules.fill(AlarmRuleState::default());
        alarm.cleared = true;
        alarm.clear_ts = trial.ctx.now_ms;
        alarm.details = Some(details(rule, values, alarm.details.take()));
        Some(AlarmEffect {
            action: AlarmTransition::Cleared,
            alarm: *alarm,
            condition,
        })
    }
}

impl AlarmRuleState {
    /// Returns `None` if the event changed no key of the rule.
    fn verdict(
        &mut self,
        rule: &AlarmRule,
        values: &Values<'_>,
        ts_ms: i64,
        trial: &RuleTrigger<'_>,
    ) -> Option<ConditionResult> {
        if trial.is_tick {
            return Some(self.tick(rule, values, trial.ctx.now_ms));
        }
        let changed = trial.changed.unwrap_or_default();
        if !rule.keys.iter().any(|key| changed[*key]) {
            return None;
        }
        let at_ms = if ts_ms == 0 { trial.ctx.now_ms } else { ts_ms };
        let is_true = rule.schedule.is_active(at_ms, values) && rule.matches(values);
        Some(match &rule.spec {
            _ if !is_true => ConditionResult::False,
            AlarmConditionSpec::Simple => ConditionResult::True,
            AlarmConditionSpec::Repeating { count } => {
                self.count += 1;
                verdict(self.count >= required(count, values))
            }
            AlarmConditionSpec::Duration { unit_ms, length } => {
                self.add_elapsed_time(ts_ms);
                verdict(self.duration_ms > required(length, values).saturating_mul(*unit_ms))
            }
        })
    }

    /// Adds the time since the last matching event. An older event adds nothing.
    fn add_elapsed_time(&mut self, ts_ms: i64) {
        if self.last_ms <= 0 {
            self.last_ms = ts_ms;
            self.duration_ms = 0;
        } else if ts_ms > self.last_ms {
            self.duration_ms += ts_ms - self.last_ms;
            self.last_ms = ts_ms;
        }
    }

    fn tick(self, rule: &AlarmRule, values: &Values<'_>, now_ms: i64) -> ConditionResult {
        let AlarmConditionSpec::Duration { unit_ms, length } = &rule.spec else {
            return ConditionResult::NotYet;
        };
        let required = required(length, values).saturating_mul(*unit_ms);
        if required <= 0 || self.last_ms <= 0 || now_ms <= self.last_ms || !rule.schedule.is_active(now_ms, values) {
            return ConditionResult::False;
        }
        verdict(self.duration_ms + (now_ms - self.last_ms) > required)
    }

    fn condition(self, rule: &AlarmRule) -> FiredCondition {
        match rule.spec {
            AlarmConditionSpec::Simple => FiredCondition::Simple,
            AlarmConditionSpec::Repeating { .. } => FiredCondition::Repeats(self.count),
            AlarmConditionSpec::Duration { .. } => FiredCondition::DurationMs(self.duration_ms),
        }
    }
}

fn verdict(is_reached: bool) -> ConditionResult {
    if is_reached {
        ConditionResult::True
    } else {
        ConditionResult::NotYet
    }
}

fn required(number: &super::definition::Number, values: &Values<'_>) -> i64 {
    let dynamic = number.dynamic.as_ref().and_then(|dynamic| dynamic.resolve(values));
    dynamic.and_then(|value| whole(&value)).unwrap_or(number.default)
}

impl AlarmRule {
    fn matches(&self, values: &Values<'_>) -> bool {
        self.filters.iter().all(|filter| match &filter.operand {
            Operand::Key(number) => {
                let value = values.values[*number].as_ref();
                value.is_some_and(|value| filter.predicate.is_true(value, values))
            }
            Operand::Constant(value) => filter.predicate.is_true(value, values),
        })
    }
}

/// The details text with `${key}` replaced, and the dashboard; without either, the previous details.
fn details(rule: &AlarmRule, values: &Values<'_>, old: Option<Json>) -> Json {
    if rule.details.is_none() && rule.dashboard.is_none() {
        return old.unwrap_or_else(|| json!({}));
    }
    let mut details = serde_json::Map::new();
    if let Some(pattern) = &rule.details {
        details.insert("data".to_owned(), rule.fill(pattern, values).into());
    }
    if let Some(dashboard) = &rule.dashboard {
        details.insert("dashboardId".to_owned(), Json::from(&**dashboard));
    }
    Json::Object(details)
}

/// Largest filled details text. A value may occur in it many times.
const DETAILS_BYTES_MAX: usize = 1 << 20;

impl AlarmRule {
    /// Replaces the keys in a details text, and truncates a long result. Inserted values are not searched for keys.
    fn fill(&self, pattern: &str, values: &Values<'_>) -> String {
        let mut filled = String::new();
        let mut rest = pattern;
        while let Some(at) = rest.find("${") {
            if filled.len() + at > DETAILS_BYTES_MAX {
                break;
            }
            filled.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some((value, behind)) = self.replacement(rest, values) {
                filled.push_str(&value);
                rest = behind;
            } else {
                filled.push_str("${");
                rest = &rest[2..];
            }
        }
        filled.push_str(rest);
        filled.truncate(filled.floor_char_boundary(DETAILS_BYTES_MAX));
        filled
    }

    /// Parses `${key}` at the start of the text. Returns the value of the key and the rest of the text.
    fn replacement<'p>(&self, pattern: &'p str, values: &Values<'_>) -> Option<(String, &'p str)> {
        let named = pattern.strip_prefix("${")?;
        self.filters.iter().find_map(|filter| {
            let behind = named.strip_prefix(&*filter.name)?.strip_prefix('}')?;
            let Operand::Key(number) = &filter.operand else {
                return None;
            };
            let value = values.values[*number].as_ref()?;
            Some((text(value), behind))
        })
    }
}
