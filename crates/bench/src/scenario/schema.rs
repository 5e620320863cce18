//! The keys of a scenario and the types of their values, for messages that name the key, the line and the
//! expected value.
//!
//! The types in [`super`] are the definition; a test checks that this list equals them. The list exists because an
//! error of `serde` stops at the first mistake and does not contain the name of the group.

use toml::Value;

#[derive(Clone, Copy, Debug)]
pub enum FieldType {
    Text,
    /// A whole number from 0 to this.
    Whole(i64),
    Number,
    Switch,
    Word(&'static [&'static str]),
    Table(&'static [ScenarioField]),
    Tables(&'static [ScenarioField]),
    /// A table with exactly one of these keys, or one of these words.
    Choice(&'static [ScenarioField], &'static [&'static str]),
}

#[derive(Clone, Copy, Debug)]
pub struct ScenarioField {
    pub name: &'static str,
    pub kind: FieldType,
    /// May be absent and then has no value; `--set key=none` removes it.
    pub is_optional: bool,
}

const fn field(name: &'static str, kind: FieldType) -> ScenarioField {
    ScenarioField {
        name,
        kind,
        is_optional: false,
    }
}

const fn optional(name: &'static str, kind: FieldType) -> ScenarioField {
    ScenarioField {
        name,
        kind,
        is_optional: true,
    }
}

const U8: i64 = u8::MAX as i64;
const U16: i64 = u16::MAX as i64;
const U32: i64 = u32::MAX as i64;

pub const SCENARIO: &[ScenarioField] = &[
    field("name", FieldType::Text),
    field("about", FieldType::Text),
    optional("published", FieldType::Text),
    optional("kafka", FieldType::Table(KAFKA)),
    optional("platform", FieldType::Table(PLATFORM)),
    field("duration_s", FieldType::Number),
    field("warm_up_s", FieldType::Number),
    field("drain_s", FieldType::Number),
    field("connect_rate", FieldType::Number),
    field("connecting_max", FieldType::Whole(U32)),
    field("group", FieldType::Tables(GROUP)),
];

const KAFKA: &[ScenarioField] = &[
    field("sql", FieldType::Text),
    field("kafka_topic", FieldType::Text),
    field("partitions", FieldType::Whole(U16)),
];

const PLATFORM: &[ScenarioField] = &[
    field("profile", FieldType::Text),
    field("keys", FieldType::Text),
    field("alarms_clear", FieldType::Switch),
];

pub const GROUP: &[ScenarioField] = &[
    field("name", FieldType::Text),
    field("clients", FieldType::Whole(U32)),
    field("scales", FieldType::Switch),
    field("start_number", FieldType::Whole(U32)),
    field("client_id", FieldType::Text),
    optional("user_name", FieldType::Text),
    optional("password", FieldType::Text),
    field("version", FieldType::Whole(U8)),
    field("clean_start", FieldType::Switch),
    field("session_expiry_s", FieldType::Whole(U32)),
    field("keep_alive_s", FieldType::Whole(U16)),
    field(
        "presence",
        FieldType::Word(&["always", "after-publishing", "away-while-publishing"]),
    ),
    field("reconnects", FieldType::Switch),
    optional("cycle", FieldType::Table(CYCLE)),
    field("subscribe", FieldType::Tables(SUBSCRIBE)),
    optional("publish", FieldType::Table(PUBLISH)),
    optional("stall", FieldType::Table(STALL)),
];

const CYCLE: &[ScenarioField] = &[
    field("stay_s", FieldType::Number),
    field("is_abrupt", FieldType::Switch),
];

const SUBSCRIBE: &[ScenarioField] = &[field("filter", FieldType::Text), field("qos", FieldType::Whole(U8))];

const PUBLISH: &[ScenarioField] = &[
    field("topic", FieldType::Text),
    field("qos", FieldType::Whole(U8)),
    field("retain", FieldType::Switch),
    optional("rate", FieldType::Number),
    field("burst_s", FieldType::Number),
    field("window", FieldType::Whole(U32)),
    field("messages", FieldType::Whole(i64::MAX)),
    field("payload", FieldType::Choice(PAYLOAD, &["smart-meter"])),
];

const PAYLOAD: &[ScenarioField] = &[
    field("bytes", FieldType::Whole(U32)),
    field("template", FieldType::Text),
];

const STALL: &[ScenarioField] = &[field("after_s", FieldType::Number), field("for_s", FieldType::Number)];

pub fn names(fields: &'static [ScenarioField]) -> impl Iterator<Item = &'static str> {
    fields.iter().map(|field| field.name)
}

pub fn find(fields: &'static [ScenarioField], name: &str) -> Option<&'static ScenarioField> {
    fields.iter().find(|field| field.name == name)
}

/// Describes the values that a type allows.
pub fn expected(kind: &FieldType) -> String {
    match kind {
        FieldType::Text => "a text".into(),
        FieldType::Whole(i64::MAX) => "a whole number from 0".into(),
        FieldType::Whole(max) => format!("a whole number from 0 to {max}"),
        FieldType::Number => "a number".into(),
        FieldType::Switch => "true or false".into(),
        FieldType::Word(words) => format!("one of \"{}\"", words.join("\", \"")),
        FieldType::Table(fields) => format!("a table with {}", list(fields)),
        FieldType::Tables(fields) => format!("a list of tables with {}", list(fields)),
        FieldType::Choice(fields, words) => {
            let fields: Vec<String> = names(fields).map(|name| format!("{{ {name} = … }}")).collect();
            format!("{} or \"{}\"", fields.join(", "), words.join("\", \""))
        }
    }
}

fn list(fields: &'static [ScenarioField]) -> String {
    let names: Vec<String> = names(fields).map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// Describes a wrong value, as in "not the text \"x\"".
pub fn describe(value: &Value) -> String {
    match value {
        Value::String(text) => format!("not the text {text:?}"),
        Value::Integer(number) => format!("not {number}"),
        Value::Float(number) => format!("not {number}"),
        Value::Boolean(value) => format!("not {value}"),
        Value::Datetime(_) => "not a date".into(),
        Value::Array(_) => "not a list".into(),
        Value::Table(_) => "not a table".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{
        ClientGroup, ConnectCycle, Fleet, Payload, PublishSpec, Scenario, Stall, SubscribeSpec, ToKafka,
    };

    fn keys(value: impl serde::Serialize) -> Vec<String> {
        let Value::Table(table) = Value::try_from(value).unwrap() else {
            panic!("no table")
        };
        table.keys().cloned().collect()
    }

    fn sorted(fields: &'static [ScenarioField]) -> Vec<&'static str> {
        let mut names: Vec<_> = names(fields).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn schema_has_all_keys_of_types() {
        let publish = PublishSpec {
            rate: Some(1.0),
            ..PublishSpec::default()
        };
        let subscribe = SubscribeSpec {
            filter: "a".into(),
            qos: 0,
        };
        let cycle = ConnectCycle {
            stay_s: 0.0,
            is_abrupt: false,
        };
        let stall = Stall {
            after_s: 0.0,
            for_s: 0.0,
        };
        let group = ClientGroup {
            user_name: Some(String::new()),
            password: Some(String::new()),
            cycle: Some(cycle.clone()),
            publish: Some(publish.clone()),
            stall: Some(stall.clone()),
            ..ClientGroup::default()
        };
        let kafka = ToKafka {
            sql: String::new(),
            kafka_topic: String::new(),
            partitions: 1,
        };
        let fleet = Fleet {
            profile: String::new(),
            keys: String::new(),
            alarms_clear: true,
        };
        let scenario = Scenario {
            kafka: Some(kafka.clone()),
            platform: Some(fleet.clone()),
            published: Some(String::new()),
            ..Scenario::default()
        };
        assert_eq!(keys(scenario), sorted(SCENARIO));
        assert_eq!(keys(group), sorted(GROUP));
        assert_eq!(keys(publish), sorted(PUBLISH));
        assert_eq!(keys(subscribe), sorted(SUBSCRIBE));
        assert_eq!(keys(kafka), sorted(KAFKA));
        assert_eq!(keys(fleet), sorted(PLATFORM));
        assert_eq!(keys(cycle), sorted(CYCLE));
        assert_eq!(keys(stall), sorted(STALL));
        let payloads = [Payload::Bytes(1), Payload::Template(String::new())];
        assert_eq!(payloads.map(keys).concat(), sorted(PAYLOAD));
        assert_eq!(Value::try_from(Payload::SmartMeter).unwrap(), "smart-meter".into());
    }
}
