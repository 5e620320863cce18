//! Compiles alarm rules from a profile's JSON (`profileData.alarms`). Names become indexes. A rule that cannot be
//! evaluated is rejected when the profile is saved, not when a message arrives.

use std::fmt;

use serde_json::Value as Json;

use super::predicate::{DynamicValue, Predicate, parse_predicate};
use super::schedule::AlarmSchedule;
use crate::model::AlarmSeverity;

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeySource {
    TimeSeries,
    /// An attribute of any scope. If several have the name, the last changed one applies.
    Attribute,
    /// Name, type or label of the device.
    Field,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AlarmRuleKey {
    pub source: KeySource,
    pub name: Box<str>,
}

/// All alarm rules of a profile.
#[derive(Debug, Default)]
pub struct AlarmRules {
    pub(super) alarms: Vec<AlarmDefinition>,
    keys: Vec<AlarmRuleKey>,
}

#[derive(Debug)]
pub(super) struct AlarmDefinition {
    pub id: Box<str>,
    pub kind: Box<str>,
    /// From the worst severity.
    pub create: Vec<(AlarmSeverity, AlarmRule)>,
    pub clear: Option<AlarmRule>,
    pub propagate: bool,
    pub propagate_to_owner: bool,
    pub propagate_to_tenant: bool,
    pub propagate_relation_types: Option<Vec<String>>,
}

#[derive(Debug)]
pub(super) struct AlarmRule {
    pub filters: Vec<AlarmConditionFilter>,
    pub spec: AlarmConditionSpec,
    pub schedule: AlarmSchedule,
    pub details: Option<Box<str>>,
    pub dashboard: Option<Box<str>>,
    /// Indexes of the keys whose changes trigger the rule.
    pub keys: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct AlarmConditionFilter {
    /// Name of the key, to which alarm details may refer.
    pub name: Box<str>,
    pub operand: Operand,
    pub predicate: Predicate,
}

#[derive(Debug)]
pub(super) enum Operand {
    Key(usize),
    Constant(timeseries::PointValue),
}

#[derive(Debug)]
pub(super) enum AlarmConditionSpec {
    Simple,
    /// The length is in units of `unit_ms` milliseconds.
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
    pub dynamic: Option<DynamicValue>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlarmRuleError {
    pub alarm: String,
    pub problem: String,
}

impl fmt::Display for AlarmRuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Alarm rule \"{}\" cannot be evaluated: {}", self.alarm, self.problem)
    }
}

impl std::error::Error for AlarmRuleError {}

/// Assigns indexes to keys.
#[derive(Debug, Default)]
pub(super) struct KeyTable {
    keys: Vec<AlarmRuleKey>,
}

impl KeyTable {
    pub fn number(&mut self, source: KeySource, name: &str) -> usize {
        let known = self
            .keys
            .iter()
            .position(|key| key.source == source && *key.name == *name);
        known.unwrap_or_else(|| {
            self.keys.push(AlarmRuleKey {
                source,
                name: name.into(),
            });
            self.keys.len() - 1
        })
    }
}

impl AlarmRules {
    pub fn parse(alarms: &[Json]) -> Result<AlarmRules, AlarmRuleError> {
        let mut table = KeyTable::default();
        let mut parsed = Vec::with_capacity(alarms.len());
        for alarm in alarms {
            parsed.push(parse_alarm(alarm, &mut table).map_err(|problem| AlarmRuleError {
                alarm: alarm["alarmType"].as_str().unwrap_or_default().to_owned(),
                problem,
            })?);
        }
        Ok(AlarmRules {
            alarms: parsed,
            keys: table.keys,
        })
    }

    /// The keys used by the rules. A state has a value for each.
    pub fn keys(&self) -> &[AlarmRuleKey] {
        &self.keys
    }

    pub fn is_empty(&self) -> bool {
        self.alarms.is_empty()
    }

    /// Whether elapsed time alone can fire a rule.
    pub fn has_durations(&self) -> bool {
        self.alarms.iter().any(|alarm| {
            alarm
                .rules()
                .any(|rule| matches!(rule.spec, AlarmConditionSpec::Duration { .. }))
        })
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
    pub fn rules(&self) -> impl Iterator<Item = &AlarmRule> {
        self.create.iter().map(|(_, rule)| rule).chain(&self.clear)
    }
}

fn parse_alarm(json: &Json, table: &mut KeyTable) -> Result<AlarmDefinition, String> {
    let kind = json["alarmType"].as_str().ok_or("alarmType is missing")?;
    let mut create = Vec::new();
    for (severity, rule) in json["createRules"].as_object().into_iter().flatten() {
        let severity =
            AlarmSeverity::parse(severity).ok_or_else(|| format!("{severity:?} is not an alarm severity"))?;
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

fn parse_rule(json: &Json, table: &mut KeyTable) -> Result<AlarmRule, String> {
    let condition = &json["condition"];
    let mut keys = Vec::new();
    let mut filters = Vec::new();
    for filter in condition["condition"].as_array().into_iter().flatten() {
        filters.push(parse_filter(filter, table, &mut keys)?);
    }
    keys.sort_unstable();
    keys.dedup();
    let text = |name: &str| json[name].as_str().filter(|text| !text.is_empty()).map(Into::into);
    Ok(AlarmRule {
        filters,
        spec: parse_spec(&condition["spec"], table)?,
        schedule: AlarmSchedule::parse(&json["schedule"], table)?,
        details: text("alarmDetails"),
        dashboard: json["dashboardId"]["id"].as_str().map(Into::into),
        keys,
    })
}

fn parse_filter(json: &Json, table: &mut KeyTable, keys: &mut Vec<usize>) -> Result<AlarmConditionFilter, String> {
    let name = json["key"]["key"].as_str().unwrap_or_default();
    let kind = json["key"]["type"].as_str().unwrap_or_default();
    let source = match kind {
        "TIME_SERIES" => Some(KeySource::TimeSeries),
        "ATTRIBUTE" | "CLIENT_ATTRIBUTE" | "SHARED_ATTRIBUTE" | "SERVER_ATTRIBUTE" => Some(KeySource::Attribute),
        "ENTITY_FIELD" => Some(KeySource::Field),
        "CONSTANT" => None,
        other => return Err(format!("key type {other:?} is not supported")),
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
    Ok(AlarmConditionFilter {
        name: name.into(),
        operand,
        predicate: parse_predicate(&json["predicate"], is_constant, table, keys)?,
    })
}

fn constant(json: &Json) -> Result<timeseries::PointValue, String> {
    use timeseries::PointValue;
    let text = match &json["value"] {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    };
    let invalid = || format!("{text:?} is not a valid constant of its type");
    Ok(match json["valueType"].as_str() {
        Some("NUMERIC") => PointValue::Double(text.parse().map_err(|_| invalid())?),
        Some("DATE_TIME") => PointValue::Long(text.parse().map_err(|_| invalid())?),
        Some("BOOLEAN") => PointValue::Bool(text.eq_ignore_ascii_case("true")),
        _ => PointValue::String(text.into()),
    })
}

fn parse_spec(json: &Json, table: &mut KeyTable) -> Result<AlarmConditionSpec, String> {
    match json["type"].as_str() {
        None | Some("SIMPLE") => Ok(AlarmConditionSpec::Simple),
        Some("DURATION") => Ok(AlarmConditionSpec::Duration {
            unit_ms: unit_ms(json["unit"].as_str().unwrap_or_default())?,
            length: parse_number(json, "value", table)?,
        }),
        Some("REPEATING") => Ok(AlarmConditionSpec::Repeating {
            count: parse_number(json, "count", table)?,
        }),
        Some(other) => Err(format!("condition type {other:?} is not supported")),
    }
}

fn unit_ms(unit: &str) -> Result<i64, String> {
    Ok(match unit {
        "MILLISECONDS" => 1,
        "SECONDS" => 1000,
        "MINUTES" => 60_000,
        "HOURS" => 3_600_000,
        "DAYS" => 86_400_000,
        other => return Err(format!("{other:?} is not a unit of time")),
    })
}

/// Parses the number in `predicate`, or the plain number under `old_name` in profiles of old versions.
fn parse_number(json: &Json, old_name: &str, table: &mut KeyTable) -> Result<Number, String> {
    let predicate = &json["predicate"];
    let default = predicate["defaultValue"].as_i64().or_else(|| json[old_name].as_i64());
    let dynamic = DynamicValue::parse(&predicate["dynamicValue"], table)?.map(|(dynamic, _)| dynamic);
    Ok(Number {
        default: default.ok_or("the duration or count is not a whole number")?,
        dynamic,
    })
}
