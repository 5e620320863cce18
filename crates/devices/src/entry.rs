//! A record of the device log: a message of a device, or a change of its connection.
//!
//! ```text
//! kind u8 | form u8 | device 16 bytes | received_ms i64 | id i32 | body        integers little-endian
//! ```
//!
//! The kind is the version of a record: a changed layout gets a new kind, and the reader of the former one stays.

use platform::decode::{OtaKind, PayloadFormat, TopicForm, Uplink};
use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::AttributeScope;

const HEAD_BYTES: usize = 30;

/// Version of the record kinds, stored in each block of the log. A new kind or form raises it, so that an earlier
/// program rejects the log.
pub const RECORD_VERSION: u32 = 1;

/// Record types. The numbers are stored on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    Telemetry = 1,
    Attributes = 2,
    /// RPC request of the device to the server.
    RpcRequest = 3,
    /// Response of the device to an RPC request of the server.
    RpcResponse = 4,
    AttributesRequest = 5,
    Claim = 6,
    Provision = 7,
    Connected = 8,
    Disconnected = 9,
    GatewayConnect = 10,
    GatewayDisconnect = 11,
    GatewayTelemetry = 12,
    GatewayAttributes = 13,
    GatewayAttributesRequest = 14,
    GatewayRpc = 15,
    GatewayClaim = 16,
    /// Message to a topic defined by the device profile. The body is the topic, a zero byte and the payload.
    OwnTopic = 17,
    /// Telemetry of any entity, stored without running a rule chain. `id` is the entity type.
    Save = 18,
    /// No content. Provides a log position for points that rule chains create without an incoming message.
    Mark = 19,
    /// As [`EntryKind::Save`]; the body begins with the time to live in seconds, u32.
    SaveWithTtl = 20,
    /// Request for a firmware chunk. The body is the chunk number, i32, and the chunk size as text.
    FirmwareChunk = 21,
    SoftwareChunk = 22,
    /// A user's change of attributes of any entity, as JSON. Bits 0-7 of `id` are the entity type, bits 8 and up the
    /// scope.
    SaveAttributes = 23,
    /// As [`EntryKind::SaveAttributes`]; the body is an array of keys.
    DeleteAttributes = 24,
    /// As [`EntryKind::Save`], but strings that look like numbers are not converted.
    SaveTexts = 25,
}

const KINDS: [EntryKind; 25] = [
    EntryKind::Telemetry,
    EntryKind::Attributes,
    EntryKind::RpcRequest,
    EntryKind::RpcResponse,
    EntryKind::AttributesRequest,
    EntryKind::Claim,
    EntryKind::Provision,
    EntryKind::Connected,
    EntryKind::Disconnected,
    EntryKind::GatewayConnect,
    EntryKind::GatewayDisconnect,
    EntryKind::GatewayTelemetry,
    EntryKind::GatewayAttributes,
    EntryKind::GatewayAttributesRequest,
    EntryKind::GatewayRpc,
    EntryKind::GatewayClaim,
    EntryKind::OwnTopic,
    EntryKind::Save,
    EntryKind::Mark,
    EntryKind::SaveWithTtl,
    EntryKind::FirmwareChunk,
    EntryKind::SoftwareChunk,
    EntryKind::SaveAttributes,
    EntryKind::DeleteAttributes,
    EntryKind::SaveTexts,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IngestEntry<'a> {
    pub kind: EntryKind,
    pub form: TopicForm,
    /// The device, the entity of [`EntryKind::Save`], or the provisioning session.
    pub device: Uuid,
    pub received_ms: i64,
    /// Request id, or the fields described at [`EntryKind`].
    pub id: i32,
    pub body: &'a [u8],
}

impl<'a> IngestEntry<'a> {
    pub fn new(kind: EntryKind, device: Uuid, received_ms: i64, body: &'a [u8]) -> IngestEntry<'a> {
        IngestEntry {
            kind,
            form: TopicForm::Long,
            device,
            received_ms,
            id: 0,
            body,
        }
    }

    /// Makes the record of a message to a topic of the device API; `None` for topics without a handler here.
    pub fn of_uplink(uplink: Uplink, device: Uuid, received_ms: i64, body: &'a [u8]) -> Option<IngestEntry<'a>> {
        let (kind, form, id) = match uplink {
            Uplink::Telemetry(form) => (EntryKind::Telemetry, form, 0),
            Uplink::Attributes(form) => (EntryKind::Attributes, form, 0),
            Uplink::AttributesRequest { form, id } => (EntryKind::AttributesRequest, form, id),
            Uplink::RpcResponse { form, id } => (EntryKind::RpcResponse, form, id),
            Uplink::RpcRequest { form, id } => (EntryKind::RpcRequest, form, id),
            Uplink::Claim => (EntryKind::Claim, TopicForm::Long, 0),
            // See [`IngestEntry::of_chunk`].
            Uplink::Chunk { .. } => return None,
            Uplink::Provision => (EntryKind::Provision, TopicForm::Long, 0),
            Uplink::GatewayConnect => (EntryKind::GatewayConnect, TopicForm::Long, 0),
            Uplink::GatewayDisconnect => (EntryKind::GatewayDisconnect, TopicForm::Long, 0),
            Uplink::GatewayTelemetry => (EntryKind::GatewayTelemetry, TopicForm::Long, 0),
            Uplink::GatewayAttributes => (EntryKind::GatewayAttributes, TopicForm::Long, 0),
            Uplink::GatewayAttributesRequest => (EntryKind::GatewayAttributesRequest, TopicForm::Long, 0),
            Uplink::GatewayRpc => (EntryKind::GatewayRpc, TopicForm::Long, 0),
            Uplink::GatewayClaim => (EntryKind::GatewayClaim, TopicForm::Long, 0),
        };
        Some(IngestEntry {
            kind,
            form,
            device,
            received_ms,
            id,
            body,
        })
    }

    /// Makes the record of a chunk request. `body` is the buffer for the record's body.
    pub fn of_chunk(
        uplink: Uplink,
        device: Uuid,
        received_ms: i64,
        payload: &[u8],
        body: &'a mut Vec<u8>,
    ) -> Option<IngestEntry<'a>> {
        let Uplink::Chunk { kind, request, chunk } = uplink else {
            return None;
        };
        body.extend_from_slice(&chunk.to_le_bytes());
        body.extend_from_slice(payload);
        let kind = match kind {
            OtaKind::Firmware => EntryKind::FirmwareChunk,
            OtaKind::Software => EntryKind::SoftwareChunk,
        };
        Some(IngestEntry {
            id: request,
            ..IngestEntry::new(kind, device, received_ms, body)
        })
    }

    /// Makes the record of a user's attribute change.
    pub fn of_attributes(
        kind: EntryKind,
        (entity, scope): (EntityId, AttributeScope),
        received_ms: i64,
        body: &'a [u8],
    ) -> IngestEntry<'a> {
        let scope = AttributeScope::ALL
            .iter()
            .position(|known| *known == scope)
            .unwrap_or_default();
        IngestEntry {
            id: entity_type_number(entity.kind) | (scope as i32) << 8,
            ..IngestEntry::new(kind, entity.id, received_ms, body)
        }
    }

    /// The entity and scope of a user's attribute change.
    pub fn attributes_of(&self) -> Option<(EntityId, AttributeScope)> {
        let kind = EntityType::ALL.get(usize::try_from(self.id & 0xFF).ok()?)?;
        let scope = AttributeScope::ALL.get(usize::try_from(self.id >> 8).ok()?)?;
        Some((EntityId::new(*kind, self.device), *scope))
    }

    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(self.kind as u8);
        out.push(form_number(self.form));
        out.extend_from_slice(&self.device.0);
        out.extend_from_slice(&self.received_ms.to_le_bytes());
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(self.body);
    }

    /// Returns `None` for a record that this version does not write.
    pub fn read(bytes: &'a [u8]) -> Option<IngestEntry<'a>> {
        let (head, body) = bytes.split_at_checked(HEAD_BYTES)?;
        Some(IngestEntry {
            kind: *KINDS.get(usize::from(head[0]).checked_sub(1)?)?,
            form: form_of(head[1])?,
            device: Uuid(head[2..18].try_into().ok()?),
            received_ms: i64::from_le_bytes(head[18..26].try_into().ok()?),
            id: i32::from_le_bytes(head[26..30].try_into().ok()?),
            body,
        })
    }
}

/// The number of an entity type in records.
pub fn entity_type_number(kind: EntityType) -> i32 {
    EntityType::ALL
        .iter()
        .position(|known| *known == kind)
        .unwrap_or_default() as i32
}

fn form_number(form: TopicForm) -> u8 {
    match form {
        TopicForm::Long => 0,
        TopicForm::Short(PayloadFormat::Profile) => 1,
        TopicForm::Short(PayloadFormat::Json) => 2,
        TopicForm::Short(PayloadFormat::Protobuf) => 3,
    }
}

fn form_of(number: u8) -> Option<TopicForm> {
    Some(match number {
        0 => TopicForm::Long,
        1 => TopicForm::Short(PayloadFormat::Profile),
        2 => TopicForm::Short(PayloadFormat::Json),
        3 => TopicForm::Short(PayloadFormat::Protobuf),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_changes_name_entity_and_scope() {
        for kind in EntityType::ALL.iter().copied() {
            for scope in AttributeScope::ALL {
                let of = (EntityId::new(kind, Uuid([3; 16])), scope);
                let entry = IngestEntry::of_attributes(EntryKind::SaveAttributes, of, 5, b"{}");
                assert_eq!(entry.attributes_of(), Some(of));
            }
        }
        let broken = IngestEntry {
            id: -1,
            ..IngestEntry::new(EntryKind::SaveAttributes, Uuid::NULL, 0, b"{}")
        };
        assert_eq!(broken.attributes_of(), None);
    }

    #[test]
    fn entries_survive_write_and_read() {
        for (index, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, index + 1);
            let entry = IngestEntry {
                kind,
                form: form_of(index as u8 % 4).unwrap(),
                device: Uuid([7; 16]),
                received_ms: -5,
                id: 42,
                body: b"body",
            };
            let mut bytes = Vec::new();
            entry.write(&mut bytes);
            assert_eq!(IngestEntry::read(&bytes), Some(entry));
            assert_eq!(IngestEntry::read(&bytes[..29]), None);
        }
        assert_eq!(IngestEntry::read(&[0; 40]), None);
        assert_eq!(IngestEntry::read(&[23; 40]), None);
    }
}
