//! Alarm rules as they are in a profile's JSON (`profileData.alarms`), compiled: names become numbers, what cannot be
//! evaluated is an error when the profile is saved and not when a message comes.

use std::fmt;

use serde_json::Value as Json;

use super::predicate::{Dynamic, Predicate, parse_predicate};
use super::schedule::Schedule;
use crate::model::AlarmSeverity;

/// What a value is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeySource {
    TimeSeries,
    /// Of any scope; the one that changed last counts.
    Attribute,
    /// Name, type or label of the device.
    Field,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub source: KeySource,
    pub name: Box<str>,
}

/// All alarm rules of a profile.
#[derive(Debug, Default)]
pub struct Rules {
    pub(super) alarms: Vec<AlarmDefinition>,
    keys: Vec<Key>,
}

#[derive(Debug)]
pub(super) struct AlarmDefinition {
    pub id: Box<str>,
    pub kind: Box<str>,
    /// Worst severity first.
    pub create: Vec<(AlarmSeverity, Rule)>,
    pub clear: Option<Rule>,
    pub propagate: bool,
    pub propagate_to_owner: bool,
    pub propagate_to_tenant: bool,
    pub propagate_relation_types: Option<Vec<String>>,
}

#[derive(Debug)]
pub(super) struct Rule {
    pub filters: Vec<Filter>,
    pub spec: Spec,
    pub schedule: Schedule,
    pub details: Option<Box<str>>,
    pub dashboard: Option<Box<str>>,
    /// Numbers of keys whose change makes the rule be tried.
    pub keys: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Filter {
    /// Of the key; details of an alarm refer to it.
    pub name: Box<str>,
    pub operand: Operand,
    pub predicate: Predicate,
}

#[derive(Debug)]
pub(super) enum Operand {
    Key(usize),
    Constant(timeseries::Value),
}

#[derive(Debug)]
pub(super) enum Spec {
    Simple,
    /// In milliseconds, `unit_ms` per unit of what is configured.
    Duration {
        unit_ms: i64,
        length: Number,
    },
    Repeating {
        count: Number,
    },
}

#[derive(Debug)]
pub(super) struct Number {
    pub default: i64,
    pub dynamic: Option<Dynamic>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    pub alarm: String,
    pub problem: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Alarm rule \"{}\" cannot be evaluated: {}", self.alarm, self.problem)
    }
}

impl std::error::Error for RuleError {}

/// Numbers of keys, given out as they are met.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    keys: Vec<Key>,
}

impl KeyTable {
    pub fn number(&mut self, source: KeySource, name: &str) -> usize {
        let known = self
            .keys
            .iter()
            .position(|key| key.source == source && *key.name == *name);
        known.unwrap_or_else(|| {
            self.keys.push(Key {
                source,
                name: name.into(),
            });
            self.keys.len() - 1
        })
    }
}

impl Rules {
    pub fn parse(alarms: &[Json]) -> Result<Rules, RuleError> {
        let mut table = KeyTable::default();
        let mut parsed = Vec::with_capacity(alarms.len());
        for alarm in alarms {
            parsed.push(parse_alarm(alarm, &mut table).map_err(|problem| RuleError {
                alarm: alarm["alarmType"].as_str().unwrap_or_default().to_owned(),
                problem,
            })?);
        }
        Ok(Rules {
            alarms: parsed,
            keys: table.keys,
        })
    }

    /// What the rules look at; a state has a value for each.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    pub fn is_empty(&self) -> bool {
        self.alarms.is_empty()
    }

    /// Whether time alone can make a rule true.
    pub fn has_durations(&self) -> bool {
        self.alarms
            .iter()
            .any(|alarm| alarm.rules().any(|rule| matches!(rule.spec, Spec::Duration { .. })))
    }

    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.alarms.iter().map(|alarm| &*alarm.kind)
    }

    pub(super) fn key_number(&self, source: KeySource, name: &str) -> Option<usize> {
        self.keys
            .iter()
            .position(|key| key.source == source && *key.name == *name)
    }
}

impl AlarmDefinition {
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.create.iter().map(|(_, rule)| rule).chain(&self.clear)
    }
}

fn parse_alarm(json: &Json, table: &mut KeyTable) -> Result<AlarmDefinition, String> {
    let kind = json["alarmType"].as_str().ok_or("it has no alarmType")?;
    let mut create = Vec::new();
    for (severity, rule) in json["createRules"].as_object().into_iter().flatten() {
        let severity = AlarmSeverity::parse(severity).ok_or_else(|| format!("{severity:?} is no severity"))?;
        create.push((severity, parse_rule(rule, table)?));
    }
    create.sort_by_key(|(severity, _)| *severity);
    let clear = match &json["clearRule"] {
        Json::Null => None,
        rule => Some(parse_rule(rule, table)?),
    };
    let types = json["propagateRelationTypes"].as_array();
    Ok(AlarmDefinition {
        id: json["id"].as_str().unwrap_or(kind).into(),
        kind: kind.into(),
        create,
        clear,
        propagate: json["propagate"].as_bool().unwrap_or(false),
        propagate_to_owner: json["propagateToOwner"].as_bool().unwrap_or(false),
        propagate_to_tenant: json["propagateToTenant"].as_bool().unwrap_or(false),
        propagate_relation_types: types.map(|types| types.iter().filter_map(Json::as_str).map(str::to_owned).collect()),
    })
}

fn parse_rule(json: &Json, table: &mut KeyTable) -> Result<Rule, String> {
    let condition = &json["condition"];
    let mut keys = Vec::new();
    let mut filters = Vec::new();
    for filter in condition["condition"].as_array().into_iter().flatten() {
        filters.push(parse_filter(filter, table, &mut keys)?);
    }
    keys.sort_unstable();
    keys.dedup();
    let text = |name: &str| json[name].as_str().filter(|text| !text.is_empty()).map(Into::into);
    Ok(Rule {
        filters,
        spec: parse_spec(&condition["spec"], table)?,
        schedule: Schedule::parse(&json["schedule"], table)?,
        details: text("alarmDetails"),
        dashboard: json["dashboardId"]["id"].as_str().map(Into::into),
        keys,
    })
}

fn parse_filter(json: &Json, table: &mut KeyTable, keys: &mut Vec<usize>) -> Result<Filter, String> {
    let name = json["key"]["key"].as_str().unwrap_or_default();
    let kind = json["key"]["type"].as_str().unwrap_or_default();
    let source = match kind {
        "TIME_SERIES" => Some(KeySource::TimeSeries),
        "ATTRIBUTE" | "CLIENT_ATTRIBUTE" | "SHARED_ATTRIBUTE" | "SERVER_ATTRIBUTE" => Some(KeySource::Attribute),
        "ENTITY_FIELD" => Some(KeySource::Field),
        "CONSTANT" => None,
        other => return Err(format!("{other:?} is no type of a key")),
    };
    let operand = match source {
        Some(source) => {
            let number = table.number(source, name);
            keys.push(number);
            Operand::Key(number)
        }
        None => Operand::Constant(constant(json)?),
    };
    let is_constant = source.is_none();
    Ok(Filter {
        name: name.into(),
        operand,
        predicate: parse_predicate(&json["predicate"], is_constant, table, keys)?,
    })
}

fn constant(json: &Json) -> Result<timeseries::Value, String> {
    use timeseries::Value;
    let text = match &json["value"] {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    };
    let wrong = || format!("{text:?} is no constant of its type");
    Ok(match json["valueType"].as_str() {
        Some("NUMERIC") => Value::Double(text.parse().map_err(|_| wrong())?),
        Some("DATE_TIME") => Value::Long(text.parse().map_err(|_| wrong())?),
        Some("BOOLEAN") => Value::Bool(text.eq_ignore_ascii_case("true")),
        _ => Value::String(text.into()),
    })
}

fn parse_spec(json: &Json, table: &mut KeyTable) -> Result<Spec, String> {
    match json["type"].as_str() {
        None | Some("SIMPLE") => Ok(Spec::Simple),
        Some("DURATION") => Ok(Spec::Duration {
            unit_ms: unit_ms(json["unit"].as_str().unwrap_or_default())?,
            length: parse_number(json, "value", table)?,
        }),
        Some("REPEATING") => Ok(Spec::Repeating {
            count: parse_number(json, "count", table)?,
        }),
        Some(other) => Err(format!("{other:?} is no type of a condition")),
    }
}

fn unit_ms(unit: &str) -> Result<i64, String> {
    Ok(match unit {
        "MILLISECONDS" => 1,
        "SECONDS" => 1000,
        "MINUTES" => 60_000,
        "HOURS" => 3_600_000,
        "DAYS" => 86_400_000,
        other => return Err(format!("{other:?} is no unit of time")),
    })
}

/// In `predicate`; profiles of old versions have the bare number instead, under `old_name`.
fn parse_number(json: &Json, old_name: &str, table: &mut KeyTable) -> Result<Number, String> {
    let predicate = &json["predicate"];
    let default = predicate["defaultValue"].as_i64().or_else(|| json[old_name].as_i64());
    let dynamic = Dynamic::parse(&predicate["dynamicValue"], table)?.map(|(dynamic, _)| dynamic);
    Ok(Number {
        default: default.ok_or("its duration or count is no whole number")?,
        dynamic,
    })
}
