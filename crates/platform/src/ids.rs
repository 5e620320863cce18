//! Identifiers are UUIDs of version 1, as in ThingsBoard. Such an id contains its creation time, and fits a `timeuuid`
//! column of Cassandra. In JSON an entity is identified by its type and UUID.

use std::fmt;
use std::sync::Mutex;

use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};

/// Ticks of 100 ns from 1582-10-15, the epoch of version 1, to 1970.
const EPOCH_TICKS: u64 = 0x01B2_1DD2_1381_4000;
const TICKS_PER_MS: u64 = 10_000;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// ThingsBoard's value for no customer or no tenant.
    pub const NULL: Uuid = Uuid([
        0x13, 0x81, 0x40, 0x00, 0x1d, 0xd2, 0x11, 0xb2, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80,
    ]);

    pub fn is_null(self) -> bool {
        self == Uuid::NULL
    }

    /// Parses five groups of hexadecimal digits.
    pub fn parse(text: &str) -> Option<Uuid> {
        let bytes = text.as_bytes();
        if bytes.len() != 36 {
            return None;
        }
        let mut uuid = [0; 16];
        let mut at = 0;
        for (index, byte) in uuid.iter_mut().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                if bytes[at] != b'-' {
                    return None;
                }
                at += 1;
            }
            let high = char::from(bytes[at]).to_digit(16)?;
            let low = char::from(bytes[at + 1]).to_digit(16)?;
            *byte = u8::try_from(high * 16 + low).ok()?;
            at += 2;
        }
        Some(Uuid(uuid))
    }

    /// Creation time in milliseconds since 1970; 0 if the UUID is not version 1.
    pub fn created_ms(self) -> i64 {
        let b = self.0;
        if b[6] >> 4 != 1 {
            return 0;
        }
        let ticks = u64::from_be_bytes([b[6] & 0x0f, b[7], b[4], b[5], b[0], b[1], b[2], b[3]]);
        let millis = ticks.saturating_sub(EPOCH_TICKS) / TICKS_PER_MS;
        i64::try_from(millis).unwrap_or(i64::MAX)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [b'-'; 36];
        let mut at = 0;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                at += 1;
            }
            text[at] = DIGITS[usize::from(byte >> 4)];
            text[at + 1] = DIGITS[usize::from(byte & 15)];
            at += 2;
        }
        f.write_str(std::str::from_utf8(&text).expect("hexadecimal digits are ASCII"))
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Uuid> for timeseries::TelemetryEntityId {
    fn from(uuid: Uuid) -> timeseries::TelemetryEntityId {
        timeseries::TelemetryEntityId(uuid.0)
    }
}

impl Serialize for Uuid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Uuid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Uuid, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Uuid::parse(&text).ok_or_else(|| de::Error::custom(format!("Invalid UUID string: {text}")))
    }
}

/// Creates increasing identifiers. Identifiers of the same millisecond differ in their ticks. The caller passes in the
/// time.
#[derive(Debug)]
pub struct IdMaker {
    node: [u8; 8],
    last_tick: Mutex<u64>,
}

impl IdMaker {
    /// `node` distinguishes processes. It must be random.
    pub fn new(mut node: [u8; 8]) -> IdMaker {
        node[0] = (node[0] & 0x3f) | 0x80;
        // The multicast bit marks the node as not being a network card's address.
        node[2] |= 1;
        IdMaker {
            node,
            last_tick: Mutex::new(0),
        }
    }

    pub fn next(&self, now_ms: i64) -> Uuid {
        let millis = u64::try_from(now_ms).unwrap_or(0);
        let now = EPOCH_TICKS.saturating_add(millis.saturating_mul(TICKS_PER_MS));
        let mut last = self.last_tick.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let tick = now.max(last.saturating_add(1));
        *last = tick;
        let t = tick.to_be_bytes();
        let n = self.node;
        let version_and_high = 0x10 | (t[0] & 0x0f);
        Uuid([
            t[4],
            t[5],
            t[6],
            t[7],
            t[2],
            t[3],
            version_and_high,
            t[1],
            n[0],
            n[1],
            n[2],
            n[3],
            n[4],
            n[5],
            n[6],
            n[7],
        ])
    }
}

/// Defines an enum whose values have a name each, mostly that of ThingsBoard's JSON.
macro_rules! named_enum {
    ($(#[$meta:meta])* pub enum $type:ident { $($(#[$doc:meta])* $value:ident $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $type { $($(#[$doc])* $value,)* }

        impl $type {
            pub const ALL: [$type; [$($text),*].len()] = [$($type::$value),*];

            pub fn name(self) -> &'static str {
                match self { $($type::$value => $text,)* }
            }

            pub fn parse(text: &str) -> Option<$type> {
                match text { $($text => Some($type::$value),)* _ => None }
            }
        }
    };
}
pub(crate) use named_enum;

named_enum! {
    /// Types of entities, with the names of ThingsBoard's JSON.
    pub enum EntityType {
        Tenant "TENANT",
        TenantProfile "TENANT_PROFILE",
        Customer "CUSTOMER",
        User "USER",
        Dashboard "DASHBOARD",
        Asset "ASSET",
        AssetProfile "ASSET_PROFILE",
        Device "DEVICE",
        DeviceProfile "DEVICE_PROFILE",
        Alarm "ALARM",
        RuleChain "RULE_CHAIN",
        RuleNode "RULE_NODE",
        Rpc "RPC",
        ApiUsageState "API_USAGE_STATE",
        QueueStats "QUEUE_STATS",
        ApiKey "API_KEY",
        /// Stored like an entity, but not named in ThingsBoard's JSON.
        DeviceCredentials "DEVICE_CREDENTIALS",
        /// Stored like an entity, but not named in ThingsBoard's JSON.
        UserCredentials "USER_CREDENTIALS",
        /// Stored like an entity, but not named in ThingsBoard's JSON.
        AlarmComment "ALARM_COMMENT",
        Queue "QUEUE",
        OtaPackage "OTA_PACKAGE",
        /// Stored like an entity, but not named in ThingsBoard's JSON.
        AuditLog "AUDIT_LOG",
    }
}

impl fmt::Display for EntityType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for EntityType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for EntityType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<EntityType, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        EntityType::parse(&text).ok_or_else(|| de::Error::custom(format!("unknown entity type: {text}")))
    }
}

/// In JSON `{"entityType":"DEVICE","id":"…"}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntityId {
    pub kind: EntityType,
    pub id: Uuid,
}

impl EntityId {
    pub fn new(kind: EntityType, id: Uuid) -> EntityId {
        EntityId { kind, id }
    }
}

impl Serialize for EntityId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("EntityId", 2)?;
        fields.serialize_field("entityType", &self.kind)?;
        fields.serialize_field("id", &self.id)?;
        fields.end()
    }
}

impl<'de> Deserialize<'de> for EntityId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<EntityId, D::Error> {
        let (kind, id) = deserializer.deserialize_map(IdFields)?;
        let kind = kind.ok_or_else(|| de::Error::missing_field("entityType"))?;
        Ok(EntityId { kind, id })
    }
}

struct IdFields;

impl<'de> Visitor<'de> for IdFields {
    type Value = (Option<EntityType>, Uuid);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with entityType and id")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut kind, mut id) = (None, None);
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match &*key {
                "entityType" => kind = map.next_value()?,
                "id" => id = Some(map.next_value()?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok((kind, id.ok_or_else(|| de::Error::missing_field("id"))?))
    }
}

macro_rules! typed_ids {
    ($($name:ident $kind:ident,)*) => {$(
        /// Serialized like [`TelemetryEntityId`]. The type may be missing in JSON that is read.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub Uuid);

        impl $name {
            pub const NULL: $name = $name(Uuid::NULL);

            pub fn entity(self) -> EntityId {
                EntityId::new(EntityType::$kind, self.0)
            }
        }

        impl Default for $name {
            fn default() -> $name {
                $name::NULL
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.entity().serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                Ok($name(deserializer.deserialize_map(IdFields)?.1))
            }
        }
    )*};
}

typed_ids! {
    TenantId Tenant,
    TenantProfileId TenantProfile,
    CustomerId Customer,
    UserId User,
    DashboardId Dashboard,
    AssetId Asset,
    AssetProfileId AssetProfile,
    DeviceId Device,
    DeviceProfileId DeviceProfile,
    AlarmId Alarm,
    RuleChainId RuleChain,
    RuleNodeId RuleNode,
    RpcId Rpc,
    OtaPackageId OtaPackage,
    ApiKeyId ApiKey,
    ApiUsageStateId ApiUsageState,
    QueueId Queue,
    QueueStatsId QueueStats,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifier_contains_its_creation_time() {
        let ids = IdMaker::new([7; 8]);
        let (first, second) = (ids.next(1_640_995_200_123), ids.next(1_640_995_200_123));
        assert_eq!(first.created_ms(), 1_640_995_200_123);
        assert_eq!(second.created_ms(), 1_640_995_200_123);
        assert_ne!(first, second);
        assert_eq!(Uuid::NULL.created_ms(), 0);
    }

    #[test]
    fn identifiers_are_unique_when_the_clock_steps_back() {
        let ids = IdMaker::new([1; 8]);
        let all: std::collections::HashSet<Uuid> = [5_000, 4_000, 5_000, 1].map(|now| ids.next(now)).into();
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn uuid_survives_format_and_parse() {
        let text = "784f394c-42b6-435a-983c-b7beff2784f9";
        assert_eq!(Uuid::parse(text).unwrap().to_string(), text);
        for bad in [
            "",
            "784f394c42b6435a983cb7beff2784f9",
            "784f394c-42b6-435a-983c-b7beff2784fg",
            "é84f394c-42b6-435a-983c-b7beff2784f9",
        ] {
            assert_eq!(Uuid::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn identifiers_have_thingsboards_json() {
        let id: DeviceId = serde_json::from_str(r#"{"id":"784f394c-42b6-435a-983c-b7beff2784f9","more":1}"#).unwrap();
        assert_eq!(
            serde_json::to_string(&id).unwrap(),
            r#"{"entityType":"DEVICE","id":"784f394c-42b6-435a-983c-b7beff2784f9"}"#
        );
        assert!(serde_json::from_str::<EntityId>(r#"{"id":"784f394c-42b6-435a-983c-b7beff2784f9"}"#).is_err());
    }
}
