//! The keys of a scenario and what each may hold, for messages that name the key, the line and what was expected.
//!
//! The types in [`super`] are the definition; a test keeps this list equal to them. It exists because an error of `serde` stops at the
//! first mistake and does not know the name of the group that it is in.

use toml::Value;

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Text,
    /// A whole number up to this.
    Whole(i64),
    Number,
    Switch,
    Word(&'static [&'static str]),
    Table(&'static [Field]),
    Tables(&'static [Field]),
    /// A table with exactly one of these keys, or one of these words.
    Choice(&'static [Field], &'static [&'static str]),
}

#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    pub kind: Kind,
    /// Can be absent and has no value then; `--set key=none` removes it.
    pub is_optional: bool,
}

const fn field(name: &'static str, kind: Kind) -> Field {
    Field {
        name,
        kind,
        is_optional: false,
    }
}

const fn optional(name: &'static str, kind: Kind) -> Field {
    Field {
        name,
        kind,
        is_optional: true,
    }
}

const U8: i64 = u8::MAX as i64;
const U16: i64 = u16::MAX as i64;
const U32: i64 = u32::MAX as i64;

pub const SCENARIO: &[Field] = &[
    field("name", Kind::Text),
    field("about", Kind::Text),
    optional("published", Kind::Text),
    optional("kafka", Kind::Table(KAFKA)),
    optional("platform", Kind::Table(PLATFORM)),
    field("duration_s", Kind::Number),
    field("warm_up_s", Kind::Number),
    field("drain_s", Kind::Number),
    field("connect_rate", Kind::Number),
    field("connecting_max", Kind::Whole(U32)),
    field("group", Kind::Tables(GROUP)),
];

const KAFKA: &[Field] = &[
    field("sql", Kind::Text),
    field("kafka_topic", Kind::Text),
    field("partitions", Kind::Whole(U16)),
];

const PLATFORM: &[Field] = &[
    field("profile", Kind::Text),
    field("keys", Kind::Text),
    field("alarms_clear", Kind::Switch),
];

pub const GROUP: &[Field] = &[
    field("name", Kind::Text),
    field("clients", Kind::Whole(U32)),
    field("scales", Kind::Switch),
    field("start_number", Kind::Whole(U32)),
    field("client_id", Kind::Text),
    optional("user_name", Kind::Text),
    optional("password", Kind::Text),
    field("version", Kind::Whole(U8)),
    field("clean_start", Kind::Switch),
    field("session_expiry_s", Kind::Whole(U32)),
    field("keep_alive_s", Kind::Whole(U16)),
    field(
        "presence",
        Kind::Word(&["always", "after-publishing", "away-while-publishing"]),
    ),
    field("reconnects", Kind::Switch),
    optional("cycle", Kind::Table(CYCLE)),
    field("subscribe", Kind::Tables(SUBSCRIBE)),
    optional("publish", Kind::Table(PUBLISH)),
    optional("stall", Kind::Table(STALL)),
];

const CYCLE: &[Field] = &[field("stay_s", Kind::Number), field("is_abrupt", Kind::Switch)];

const SUBSCRIBE: &[Field] = &[field("filter", Kind::Text), field("qos", Kind::Whole(U8))];

const PUBLISH: &[Field] = &[
    field("topic", Kind::Text),
    field("qos", Kind::Whole(U8)),
    field("retain", Kind::Switch),
    optional("rate", Kind::Number),
    field("burst_s", Kind::Number),
    field("window", Kind::Whole(U32)),
    field("messages", Kind::Whole(i64::MAX)),
    field("payload", Kind::Choice(PAYLOAD, &["smart-meter"])),
];

const PAYLOAD: &[Field] = &[field("bytes", Kind::Whole(U32)), field("template", Kind::Text)];

const STALL: &[Field] = &[field("after_s", Kind::Number), field("for_s", Kind::Number)];

pub fn names(fields: &'static [Field]) -> impl Iterator<Item = &'static str> {
    fields.iter().map(|field| field.name)
}

pub fn find(fields: &'static [Field], name: &str) -> Option<&'static Field> {
    fields.iter().find(|field| field.name == name)
}

/// What a value should have been, in words.
pub fn expected(kind: &Kind) -> String {
    match kind {
        Kind::Text => "a text".into(),
        Kind::Whole(i64::MAX) => "a whole number from 0".into(),
        Kind::Whole(max) => format!("a whole number from 0 to {max}"),
        Kind::Number => "a number".into(),
        Kind::Switch => "true or false".into(),
        Kind::Word(words) => format!("one of \"{}\"", words.join("\", \"")),
        Kind::Table(fields) => format!("a table with {}", list(fields)),
        Kind::Tables(fields) => format!("a list of tables with {}", list(fields)),
        Kind::Choice(fields, words) => {
            let fields: Vec<String> = names(fields).map(|name| format!("{{ {name} = … }}")).collect();
            format!("{} or \"{}\"", fields.join(", "), words.join("\", \""))
        }
    }
}

fn list(fields: &'static [Field]) -> String {
    let names: Vec<String> = names(fields).map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// "not the text \"x\"".
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
    use crate::scenario::{Cycle, Fleet, Group, Payload, Publish, Scenario, Stall, Subscribe, ToKafka};

    fn keys(value: impl serde::Serialize) -> Vec<String> {
        let Value::Table(table) = Value::try_from(value).unwrap() else {
            panic!("no table")
        };
        table.keys().cloned().collect()
    }

    fn sorted(fields: &'static [Field]) -> Vec<&'static str> {
        let mut names: Vec<_> = names(fields).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn lists_the_keys_of_the_types() {
        let publish = Publish {
            rate: Some(1.0),
            ..Publish::default()
        };
        let subscribe = Subscribe {
            filter: "a".into(),
            qos: 0,
        };
        let cycle = Cycle {
            stay_s: 0.0,
            is_abrupt: false,
        };
        let stall = Stall {
            after_s: 0.0,
            for_s: 0.0,
        };
        let group = Group {
            user_name: Some(String::new()),
            password: Some(String::new()),
            cycle: Some(cycle.clone()),
            publish: Some(publish.clone()),
            stall: Some(stall.clone()),
            ..Group::default()
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
