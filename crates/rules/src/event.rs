//! The input of rules: kinds of events, their columns, and the trait through which the caller provides them.
//!
//! The names of events and columns are those of EMQX, old (`$events/client_connected`) and new
//! (`$events/client/connected`).

use rule_values::{TimeLimit, Value};

use crate::kinds::Kinds;

macro_rules! columns {
    ($($variant:ident $name:literal $kinds:expr, $about:literal;)*) => {
        /// A field of an event that a rule can name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Column { $($variant),* }

        impl Column {
            pub const ALL: &'static [Column] = &[$(Column::$variant),*];

            pub fn name(self) -> &'static str {
                match self { $(Column::$variant => $name),* }
            }

            /// Returns the description for the reference, one line.
            pub fn about(self) -> &'static str {
                match self { $(Column::$variant => $about),* }
            }

            /// Returns the types that values of the column can have. Any column can also be undefined.
            pub fn kinds(self) -> Kinds {
                let kinds: Kinds = match self { $(Column::$variant => $kinds),* };
                kinds | Kinds::UNDEFINED
            }
        }
    };
}

columns! {
    Action "action" Kinds::TEXT, "`publish` or `subscribe`";
    ActivatedAt "activated_at" Kinds::INT, "when the alarm began, Unix milliseconds";
    AuthzSource "authz_source" Kinds::TEXT, "source of the decision: always `rules`";
    CleanStart "clean_start" Kinds::BOOL, "Clean Start of the CONNECT packet";
    ClientAttrs "client_attrs" Kinds::MAP, "attributes of the client";
    ClientId "clientid" Kinds::TEXT, "client id: of the publisher; of the subscriber in deliveries";
    ConnProps "conn_props" Kinds::MAP, "properties of the CONNECT packet";
    ConnectedAt "connected_at" Kinds::INT, "when the client connected, Unix milliseconds";
    DeactivatedAt "deactivated_at" Kinds::INT, "when the alarm ended, Unix milliseconds";
    Details "details" Kinds::MAP, "details of the alarm";
    DisconnProps "disconn_props" Kinds::MAP, "properties of the DISCONNECT packet";
    DisconnectedAt "disconnected_at" Kinds::INT, "when the connection ended, Unix milliseconds";
    Dup "dup" Kinds::BOOL, "DUP flag as received";
    Event "event" Kinds::TEXT, "name of the event, for example `message.publish`";
    ExpiryInterval "expiry_interval" Kinds::INT, "session expiry interval in seconds";
    Flags "flags" Kinds::MAP, "flags of the message: `retain`, `dup`, `sys`";
    FromClientId "from_clientid" Kinds::TEXT, "client id of the publisher";
    FromUsername "from_username" Kinds::TEXT, "user name of the publisher";
    Headers "headers" Kinds::MAP, "headers of a Kafka record";
    Id "id" Kinds::TEXT, "identifier of the message, hexadecimal";
    IsAnonymous "is_anonymous" Kinds::BOOL, "whether the client gave no credentials";
    IsBridge "is_bridge" Kinds::BOOL, "whether the client declares itself a bridge";
    IsSuperuser "is_superuser" Kinds::BOOL, "whether access rules are skipped for the client";
    KeepAlive "keepalive" Kinds::INT, "keep alive in seconds";
    Key "key" Kinds::TEXT, "key of a Kafka record";
    Message "message" Kinds::TEXT, "text of the alarm";
    MessageReceivedAt "message_received_at" Kinds::INT, "when a source received the message, Unix milliseconds";
    Metadata "metadata" Kinds::MAP, "`rule_id` of this rule";
    Mountpoint "mountpoint" Kinds::TEXT, "prefix of the client's topics";
    Name "name" Kinds::TEXT, "name of the alarm";
    Node "node" Kinds::TEXT, "name of the node of the event";
    Offset "offset" Kinds::INT, "offset of a Kafka record";
    Partition "partition" Kinds::INT, "partition of a Kafka record";
    Payload "payload" Kinds::TEXT, "payload; `payload.a.b` reads it as JSON";
    PeerHost "peerhost" Kinds::TEXT, "IP address of the client";
    PeerName "peername" Kinds::TEXT, "IP address and port of the client";
    ProtoName "proto_name" Kinds::TEXT, "protocol name of the CONNECT packet";
    ProtoVer "proto_ver" Kinds::INT, "protocol level: 3, 4 or 5";
    PubProps "pub_props" Kinds::MAP, "properties of the PUBLISH packet";
    PubackProps "puback_props" Kinds::MAP, "properties of the PUBACK packet";
    PublishReceivedAt "publish_received_at" Kinds::INT, "when the message arrived, Unix milliseconds";
    QoS "qos" Kinds::INT, "QoS: 0, 1 or 2";
    Reason "reason" Kinds::TEXT, "reason why the message was dropped or the client disconnected";
    ReasonCode "reason_code" Kinds::TEXT, "name of the reason code, `success` on success";
    ReceiveMaximum "receive_maximum" Kinds::INT, "Receive Maximum of the CONNECT packet";
    Result "result" Kinds::TEXT, "`allow` or `deny`";
    Retain "retain" Kinds::BOOL, "RETAIN flag as received";
    Server "server" Kinds::TEXT, "address of the remote MQTT broker, as configured in the connector";
    SockName "sockname" Kinds::TEXT, "IP address and port on which the listener of the client listens";
    SubProps "sub_props" Kinds::MAP, "properties of the SUBSCRIBE packet";
    Timestamp "timestamp" Kinds::INT, "time of the event, Unix milliseconds";
    Topic "topic" Kinds::TEXT, "topic name, topic filter of a subscription, or Kafka topic of a Kafka source";
    Transformation "transformation" Kinds::TEXT, "name of the transformation that failed";
    Ts "ts" Kinds::INT, "timestamp of a Kafka record";
    TsType "ts_type" Kinds::TEXT, "type of the timestamp of a Kafka record: `create`, `append` or `undefined`";
    UnsubProps "unsub_props" Kinds::MAP, "properties of the UNSUBSCRIBE packet";
    Username "username" Kinds::TEXT, "user name";
    Validation "validation" Kinds::TEXT, "name of the check that failed";
    Value "value" Kinds::TEXT, "value of a Kafka record";
}

impl Column {
    pub fn from_name(name: &str) -> Option<Column> {
        Column::ALL.iter().copied().find(|column| column.name() == name)
    }
}

macro_rules! events {
    ($($variant:ident $name:literal [$($topic:literal),*] $about:literal: $($column:ident)*;)*) => {
        /// The kind of an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum EventKind { $($variant),* }

        impl EventKind {
            pub const ALL: &'static [EventKind] = &[$(EventKind::$variant),*];

            /// Returns the value of the column `event`.
            pub fn name(self) -> &'static str {
                match self { $(EventKind::$variant => $name),* }
            }

            /// Returns the names for FROM, the preferred name first.
            pub fn topics(self) -> &'static [&'static str] {
                match self { $(EventKind::$variant => &[$($topic),*]),* }
            }

            /// Returns the description for the reference, one line.
            pub fn about(self) -> &'static str {
                match self { $(EventKind::$variant => $about),* }
            }

            /// Returns the columns in addition to `event`, `timestamp`, `node` and `metadata`, which all events have.
            pub fn own_columns(self) -> &'static [Column] {
                match self { $(EventKind::$variant => &[$(Column::$column),*]),* }
            }
        }
    };
}

events! {
    MessagePublish "message.publish" ["$events/message_publish"] "a client published; FROM names topic filters":
        Id ClientId Username Payload PeerHost PeerName Topic QoS Flags PubProps PublishReceivedAt ClientAttrs;
    MessageDelivered "message.delivered" ["$events/message/delivered", "$events/message_delivered"] "a message was sent to a subscriber":
        Id FromClientId FromUsername ClientId Username Payload PeerHost PeerName Topic QoS Flags PubProps PublishReceivedAt;
    MessageAcked "message.acked" ["$events/message/acked", "$events/message_acked"] "a subscriber acknowledged a message":
        Id FromClientId FromUsername ClientId Username Payload PeerHost PeerName Topic QoS Flags PubProps PubackProps PublishReceivedAt;
    MessageDropped "message.dropped" ["$events/message/dropped", "$events/message_dropped"] "a message had no subscribers":
        Id Reason ClientId Username Payload PeerHost PeerName Topic QoS Flags PubProps PublishReceivedAt;
    DeliveryDropped "delivery.dropped" ["$events/message/delivery_dropped", "$events/delivery_dropped"] "a message was dropped for one subscriber":
        Id Reason FromClientId FromUsername ClientId Username Payload PeerHost PeerName Topic QoS Flags PubProps PublishReceivedAt;
    ClientConnected "client.connected" ["$events/client/connected", "$events/client_connected"] "a client connected":
        ClientId Username Mountpoint PeerName SockName ProtoName ProtoVer KeepAlive CleanStart ReceiveMaximum ExpiryInterval IsBridge ConnProps ConnectedAt ClientAttrs;
    ClientDisconnected "client.disconnected" ["$events/client/disconnected", "$events/client_disconnected"] "a connection ended":
        Reason ClientId Username PeerName SockName ProtoName ProtoVer DisconnProps ConnectedAt DisconnectedAt ClientAttrs;
    ClientConnack "client.connack" ["$events/client/connack", "$events/client_connack"] "a CONNACK was sent":
        ReasonCode ClientId Username PeerName SockName ProtoName ProtoVer KeepAlive CleanStart ExpiryInterval ConnectedAt ConnProps;
    ClientPing "client.ping" ["$events/client/ping"] "a PINGREQ arrived":
        ClientId Username PeerName SockName ProtoName ProtoVer KeepAlive CleanStart ExpiryInterval ConnectedAt ConnProps;
    AuthnComplete "client.check_authn_complete" ["$events/auth/check_authn_complete", "$events/client_check_authn_complete"] "the credentials of a client were checked":
        ClientId Username PeerName ReasonCode IsSuperuser IsAnonymous ClientAttrs;
    AuthzComplete "client.check_authz_complete" ["$events/auth/check_authz_complete", "$events/client_check_authz_complete"] "a permission was checked":
        ClientId Username PeerHost PeerName Topic Action AuthzSource Result ClientAttrs;
    SessionSubscribed "session.subscribed" ["$events/session/subscribed", "$events/session_subscribed"] "a client subscribed":
        ClientId Username PeerHost PeerName Topic QoS SubProps ClientAttrs;
    SessionUnsubscribed "session.unsubscribed" ["$events/session/unsubscribed", "$events/session_unsubscribed"] "a client unsubscribed":
        ClientId Username PeerHost PeerName Topic QoS UnsubProps ClientAttrs;
    AlarmActivated "alarm.activated" ["$events/sys/alarm_activated"] "an alarm of the node began":
        Name Details Message ActivatedAt;
    AlarmDeactivated "alarm.deactivated" ["$events/sys/alarm_deactivated"] "an alarm of the node ended":
        Name Details Message ActivatedAt DeactivatedAt;
    SchemaValidationFailed "schema.validation_failed" ["$events/schema_validation/failed", "$events/schema_validation_failed"] "a payload did not match its schema":
        Validation Id ClientId Username Payload PeerHost PeerName Topic QoS Flags PubProps PublishReceivedAt;
    TransformationFailed "message.transformation_failed" ["$events/message_transformation/failed", "$events/message_transformation_failed"] "a message could not be transformed":
        Transformation Id ClientId Username Payload PeerName Topic QoS Flags PubProps PublishReceivedAt;
    Source "source" [] "a message came from a source; FROM names it: `$bridges/mqtt:name`, `$bridges/kafka_consumer:name`, `$sources/…`":
        Id Server Payload Topic QoS Dup Retain PubProps MessageReceivedAt Headers Key Offset Partition Ts TsType Value;
}

const COMMON: &[Column] = &[Column::Event, Column::Timestamp, Column::Node, Column::Metadata];

impl EventKind {
    pub fn columns(self) -> impl Iterator<Item = Column> {
        self.own_columns().iter().chain(COMMON).copied()
    }

    pub fn has(self, column: Column) -> bool {
        self.own_columns().contains(&column) || COMMON.contains(&column)
    }

    /// Returns the event with this name in FROM.
    pub fn from_topic(topic: &str) -> Option<EventKind> {
        EventKind::ALL
            .iter()
            .copied()
            .find(|kind| kind.topics().contains(&topic) && *kind != EventKind::MessagePublish)
    }
}

/// An event. A column is read only if a rule names it; it can be read several times.
pub trait RuleEvent {
    fn kind(&self) -> EventKind;

    /// Returns `Undefined` for a column that the event does not have. Never called for `payload` and `metadata`.
    fn column(&self, column: Column) -> Value;

    /// Returns an empty slice for events without a payload.
    fn payload(&self) -> &[u8];
}

/// The external inputs of functions. The crate itself reads no clock and generates no random numbers.
pub trait Environment {
    /// Nanoseconds since the Unix epoch. `now_timestamp()` is constant during one message only if this value is.
    fn unix_nanoseconds(&self) -> i128;

    fn random(&mut self) -> u64;

    /// Maximum duration of the evaluation of a rule. `None`: only the steps limit it.
    fn time_limit(&self) -> Option<TimeLimit> {
        None
    }

    /// Offset of local time east of Greenwich. Used for `local` and RFC 3339 texts.
    fn utc_offset_seconds(&self) -> i32 {
        0
    }

    /// Returns an environment variable. `getenv('A')` reads `A`; the implementation adds its prefix.
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    /// Returns the store for `kv_store_get` and related functions. With `None`, these functions fail.
    fn store(&mut self) -> Option<&mut dyn ValueStore> {
        None
    }
}

/// Values that are stored between messages. The implementation limits their size.
pub trait ValueStore {
    fn get(&self, key: &[u8]) -> Option<Value>;

    /// Returns an error if the store is full.
    fn put(&mut self, key: &[u8], value: Value) -> Result<(), &'static str>;

    fn delete(&mut self, key: &[u8]);
}
