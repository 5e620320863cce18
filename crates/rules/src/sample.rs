//! A sample event for trying out a rule, and for tests.

use rule_values::{
    Map, Value,
    json::{self, JsonForm},
};

use crate::event::{Column, EventKind, RuleEvent};

#[derive(Clone, Debug)]
pub struct SampleEvent {
    kind: EventKind,
    columns: Vec<(Column, Value)>,
    payload: Vec<u8>,
}

impl SampleEvent {
    /// Returns an event with no column except its name.
    pub fn with_name_only(kind: EventKind) -> SampleEvent {
        SampleEvent {
            kind,
            columns: vec![(Column::Event, Value::from(kind.name()))],
            payload: Vec::new(),
        }
    }

    /// Returns an event with a value in every column of its kind.
    pub fn example(kind: EventKind, unix_ms: u64) -> SampleEvent {
        let mut event = SampleEvent::with_name_only(kind);
        for column in kind.columns() {
            let value = example(column, kind, unix_ms);
            event.set(column, value);
        }
        event
    }

    /// Sets columns by name. `payload` can be a string, or any other value, which is encoded as JSON.
    ///
    /// # Errors
    /// Returns an error with the name that is not a column of this kind of event.
    pub fn set_all(&mut self, columns: &Map) -> Result<(), String> {
        for (name, value) in columns.iter() {
            let column = name
                .as_str()
                .and_then(Column::from_name)
                .filter(|column| self.kind.has(*column));
            let Some(column) = column else {
                return Err(format!("the event {} has no column {name:?}", self.kind.name()));
            };
            self.set(column, value.clone());
        }
        Ok(())
    }

    pub fn set(&mut self, column: Column, value: Value) {
        match (column, value) {
            (Column::Payload, Value::Text(text)) => self.payload = text.to_vec(),
            (Column::Payload, value) => self.payload = json::encode(&value, JsonForm::default()),
            (column, value) => match self.columns.iter_mut().find(|entry| entry.0 == column) {
                Some(entry) => entry.1 = value,
                None => self.columns.push((column, value)),
            },
        }
    }
}

impl RuleEvent for SampleEvent {
    fn kind(&self) -> EventKind {
        self.kind
    }

    fn column(&self, column: Column) -> Value {
        let found = self.columns.iter().find(|entry| entry.0 == column);
        found.map(|entry| entry.1.clone()).unwrap_or_default()
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }
}

fn example(column: Column, kind: EventKind, unix_ms: u64) -> Value {
    match column {
        Column::Event => Value::from(kind.name()),
        Column::ClientId => Value::from("c_example"),
        Column::Username => Value::from("u_example"),
        Column::FromClientId => Value::from("c_publisher"),
        Column::FromUsername => Value::from("u_publisher"),
        Column::Payload => Value::from(r#"{"msg": "hello"}"#),
        Column::Topic => Value::from("t/a"),
        Column::QoS => Value::Int(1),
        Column::Id => Value::from("0005F8C4A6C2D3B1F440000000070001"),
        Column::PeerHost => Value::from("192.168.0.10"),
        Column::PeerName => Value::from("192.168.0.10:32781"),
        Column::SockName => Value::from("0.0.0.0:1883"),
        Column::Server => Value::from("192.168.0.10:1883"),
        Column::ProtoName => Value::from("MQTT"),
        Column::ProtoVer => Value::Int(5),
        Column::KeepAlive => Value::Int(60),
        Column::ReceiveMaximum => Value::Int(65_535),
        Column::ExpiryInterval => Value::Int(3600),
        Column::CleanStart | Column::IsSuperuser => Value::Bool(true),
        Column::IsBridge | Column::IsAnonymous | Column::Dup | Column::Retain => Value::Bool(false),
        Column::Reason => Value::from(if kind == EventKind::ClientDisconnected {
            "normal"
        } else {
            "queue_full"
        }),
        Column::ReasonCode => Value::from("success"),
        Column::Action => Value::from("publish"),
        Column::Result => Value::from("allow"),
        Column::AuthzSource => Value::from("rules"),
        Column::Node => Value::from("tidewire@127.0.0.1"),
        Column::Name => Value::from("disk_full"),
        Column::Message => Value::from("the journal is full"),
        Column::Validation => Value::from("my_check"),
        Column::Transformation => Value::from("my_transformation"),
        Column::Key | Column::Value => Value::from("hello"),
        Column::TsType => Value::from("create"),
        Column::Offset => Value::Int(42),
        Column::Partition => Value::Int(0),
        Column::Mountpoint => Value::Undefined,
        Column::ActivatedAt
        | Column::ConnectedAt
        | Column::DeactivatedAt
        | Column::DisconnectedAt
        | Column::MessageReceivedAt
        | Column::PublishReceivedAt
        | Column::Timestamp
        | Column::Ts => Value::from(unix_ms),
        Column::PubProps
        | Column::PubackProps
        | Column::ConnProps
        | Column::DisconnProps
        | Column::SubProps
        | Column::UnsubProps => properties(),
        Column::ClientAttrs | Column::Details | Column::Flags | Column::Headers | Column::Metadata => {
            Value::Map(Map::new())
        }
    }
}

fn properties() -> Value {
    let user = Map::from_entries(vec![("foo".into(), Value::from("bar"))]);
    let pair = [("key", "foo"), ("value", "bar")];
    let pair = pair
        .into_iter()
        .map(|(name, text)| (name.into(), Value::from(text)))
        .collect();
    Value::Map(Map::from_entries(vec![
        ("User-Property".into(), Value::Map(user)),
        ("User-Property-Pairs".into(), Value::array(vec![Value::Map(pair)])),
    ]))
}
