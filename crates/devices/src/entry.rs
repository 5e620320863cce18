//! A record of the log: what a device said, or what happened to its connection.
//!
//! ```text
//! kind u8 | form u8 | device 16 bytes | received_ms i64 | id i32 | body        integers little-endian
//! ```

use platform::decode::{Form, Format, OtaKind, Uplink};
use platform::ids::{EntityId, EntityType, Uuid};
use platform::model::Scope;

const HEAD_BYTES: usize = 30;

/// Which kind of thing a record is. The numbers are on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Telemetry = 1,
    Attributes = 2,
    /// A call of the device to the server.
    RpcRequest = 3,
    /// The answer to a call of the server.
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
    /// To a topic of the device's profile: the body is the topic, a zero and the payload.
    OwnTopic = 17,
    /// Telemetry of any entity, saved past the chains. `id` is the type of the entity.
    Save = 18,
    /// Nothing: a position for what chains say by themselves.
    Mark = 19,
    /// As [`Kind::Save`]; before the body are the seconds for which it is kept, u32.
    SaveWithTtl = 20,
    /// A device wants a part of its firmware. The body is the number of the part, i32, and its size as a text.
    FirmwareChunk = 21,
    SoftwareChunk = 22,
    /// A user changes attributes of any entity, as JSON. `id` is the type of the entity, and from bit 8 on the scope.
    SaveAttributes = 23,
    /// As [`Kind::SaveAttributes`]; the body is an array of keys.
    DeleteAttributes = 24,
    /// As [`Kind::Save`]; texts that look like numbers stay texts.
    SaveTexts = 25,
}

const KINDS: [Kind; 25] = [
    Kind::Telemetry,
    Kind::Attributes,
    Kind::RpcRequest,
    Kind::RpcResponse,
    Kind::AttributesRequest,
    Kind::Claim,
    Kind::Provision,
    Kind::Connected,
    Kind::Disconnected,
    Kind::GatewayConnect,
    Kind::GatewayDisconnect,
    Kind::GatewayTelemetry,
    Kind::GatewayAttributes,
    Kind::GatewayAttributesRequest,
    Kind::GatewayRpc,
    Kind::GatewayClaim,
    Kind::OwnTopic,
    Kind::Save,
    Kind::Mark,
    Kind::SaveWithTtl,
    Kind::FirmwareChunk,
    Kind::SoftwareChunk,
    Kind::SaveAttributes,
    Kind::DeleteAttributes,
    Kind::SaveTexts,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub kind: Kind,
    pub form: Form,
    /// The device, or the entity of [`Kind::Save`], or the session that provisions.
    pub device: Uuid,
    pub received_ms: i64,
    /// Of a request.
    pub id: i32,
    pub body: &'a [u8],
}

impl<'a> Entry<'a> {
    pub fn new(kind: Kind, device: Uuid, received_ms: i64, body: &'a [u8]) -> Entry<'a> {
        Entry {
            kind,
            form: Form::Long,
            device,
            received_ms,
            id: 0,
            body,
        }
    }

    /// What a device says to a topic of the device interface; `None` for those that nobody here answers.
    pub fn of_uplink(uplink: Uplink, device: Uuid, received_ms: i64, body: &'a [u8]) -> Option<Entry<'a>> {
        let (kind, form, id) = match uplink {
            Uplink::Telemetry(form) => (Kind::Telemetry, form, 0),
            Uplink::Attributes(form) => (Kind::Attributes, form, 0),
            Uplink::AttributesRequest { form, id } => (Kind::AttributesRequest, form, id),
            Uplink::RpcResponse { form, id } => (Kind::RpcResponse, form, id),
            Uplink::RpcRequest { form, id } => (Kind::RpcRequest, form, id),
            Uplink::Claim => (Kind::Claim, Form::Long, 0),
            // [`Entry::of_chunk`].
            Uplink::Chunk { .. } => return None,
            Uplink::Provision => (Kind::Provision, Form::Long, 0),
            Uplink::GatewayConnect => (Kind::GatewayConnect, Form::Long, 0),
            Uplink::GatewayDisconnect => (Kind::GatewayDisconnect, Form::Long, 0),
            Uplink::GatewayTelemetry => (Kind::GatewayTelemetry, Form::Long, 0),
            Uplink::GatewayAttributes => (Kind::GatewayAttributes, Form::Long, 0),
            Uplink::GatewayAttributesRequest => (Kind::GatewayAttributesRequest, Form::Long, 0),
            Uplink::GatewayRpc => (Kind::GatewayRpc, Form::Long, 0),
            Uplink::GatewayClaim => (Kind::GatewayClaim, Form::Long, 0),
        };
        Some(Entry {
            kind,
            form,
            device,
            received_ms,
            id,
            body,
        })
    }

    /// A question for a part of a package; `body` holds what it needs besides the payload.
    pub fn of_chunk(
        uplink: Uplink,
        device: Uuid,
        received_ms: i64,
        payload: &[u8],
        body: &'a mut Vec<u8>,
    ) -> Option<Entry<'a>> {
        let Uplink::Chunk { kind, request, chunk } = uplink else {
            return None;
        };
        body.extend_from_slice(&chunk.to_le_bytes());
        body.extend_from_slice(payload);
        let kind = match kind {
            OtaKind::Firmware => Kind::FirmwareChunk,
            OtaKind::Software => Kind::SoftwareChunk,
        };
        Some(Entry {
            id: request,
            ..Entry::new(kind, device, received_ms, body)
        })
    }

    /// A change of a user.
    pub fn of_attributes(
        kind: Kind,
        (entity, scope): (EntityId, Scope),
        received_ms: i64,
        body: &'a [u8],
    ) -> Entry<'a> {
        let scope = Scope::ALL.iter().position(|known| *known == scope).unwrap_or_default();
        Entry {
            id: entity_type_number(entity.kind) | (scope as i32) << 8,
            ..Entry::new(kind, entity.id, received_ms, body)
        }
    }

    /// Whose attributes are changed.
    pub fn attributes_of(&self) -> Option<(EntityId, Scope)> {
        let kind = EntityType::ALL.get(usize::try_from(self.id & 0xFF).ok()?)?;
        let scope = Scope::ALL.get(usize::try_from(self.id >> 8).ok()?)?;
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

    /// `None`: not written by this version.
    pub fn read(bytes: &'a [u8]) -> Option<Entry<'a>> {
        let (head, body) = bytes.split_at_checked(HEAD_BYTES)?;
        Some(Entry {
            kind: *KINDS.get(usize::from(head[0]).checked_sub(1)?)?,
            form: form_of(head[1])?,
            device: Uuid(head[2..18].try_into().ok()?),
            received_ms: i64::from_le_bytes(head[18..26].try_into().ok()?),
            id: i32::from_le_bytes(head[26..30].try_into().ok()?),
            body,
        })
    }
}

/// As records have it.
pub fn entity_type_number(kind: EntityType) -> i32 {
    EntityType::ALL
        .iter()
        .position(|known| *known == kind)
        .unwrap_or_default() as i32
}

fn form_number(form: Form) -> u8 {
    match form {
        Form::Long => 0,
        Form::Short(Format::Profile) => 1,
        Form::Short(Format::Json) => 2,
        Form::Short(Format::Protobuf) => 3,
    }
}

fn form_of(number: u8) -> Option<Form> {
    Some(match number {
        0 => Form::Long,
        1 => Form::Short(Format::Profile),
        2 => Form::Short(Format::Json),
        3 => Form::Short(Format::Protobuf),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_attributes_say_whose_they_are() {
        for kind in EntityType::ALL.iter().copied() {
            for scope in Scope::ALL {
                let of = (EntityId::new(kind, Uuid([3; 16])), scope);
                let entry = Entry::of_attributes(Kind::SaveAttributes, of, 5, b"{}");
                assert_eq!(entry.attributes_of(), Some(of));
            }
        }
        let broken = Entry {
            id: -1,
            ..Entry::new(Kind::SaveAttributes, Uuid::NULL, 0, b"{}")
        };
        assert_eq!(broken.attributes_of(), None);
    }

    #[test]
    fn what_is_written_is_read() {
        for (index, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind as usize, index + 1);
            let entry = Entry {
                kind,
                form: form_of(index as u8 % 4).unwrap(),
                device: Uuid([7; 16]),
                received_ms: -5,
                id: 42,
                body: b"body",
            };
            let mut bytes = Vec::new();
            entry.write(&mut bytes);
            assert_eq!(Entry::read(&bytes), Some(entry));
            assert_eq!(Entry::read(&bytes[..29]), None);
        }
        assert_eq!(Entry::read(&[0; 40]), None);
        assert_eq!(Entry::read(&[23; 40]), None);
    }
}
