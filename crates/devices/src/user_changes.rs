//! Changes of users in the device log: telemetry and attributes of any entity. They do not go through the batches.

use platform::decode::{DecodeLimits, Telemetry, attributes};
use platform::ids::{EntityId, EntityType};
use platform::{AttributesChange, IngestError};
use timeseries::LogPosition;

use crate::clock::unix_ms;
use crate::entry::{EntryKind, IngestEntry};
use crate::hub::Hub;
use crate::log::begin;
use crate::stats::DeviceCounters;

/// Applies a user's attribute change of any entity. Returns false if the record cannot be decoded.
pub fn change_attributes(hub: &Hub, entry: &IngestEntry<'_>, at: LogPosition) -> Result<bool, IngestError> {
    let Some((entity, scope)) = entry.attributes_of() else {
        report_undecodable(hub, entry, "entity or scope missing");
        return Ok(false);
    };
    let (values, keys);
    let change = if entry.kind == EntryKind::DeleteAttributes {
        keys = match serde_json::from_slice::<Vec<String>>(entry.body) {
            Ok(keys) => keys,
            Err(error) => {
                report_undecodable(hub, entry, &error.to_string());
                return Ok(false);
            }
        };
        AttributesChange::Delete(&keys)
    } else {
        values = match attributes(entry.body, &DecodeLimits::of_users()) {
            Ok(values) => values,
            Err(error) => {
                report_undecodable(hub, entry, &error.to_string());
                return Ok(false);
            }
        };
        AttributesChange::Save(&values)
    };
    let mut out = hub.outlet(entry.received_ms);
    let when = (at, entry.received_ms);
    let refused = hub
        .platform()
        .change_attributes(entity, (scope, change), when, unix_ms(), &mut out)?;
    if let Some(refused) = refused {
        hub.processed().set_refused(begin(at), refused.to_string());
    }
    Ok(true)
}

/// Counts and logs a user's change that was acknowledged but cannot be decoded. It should have been rejected
/// before.
fn report_undecodable(hub: &Hub, entry: &IngestEntry<'_>, problem: &str) {
    DeviceCounters::add(&hub.counters().refused_messages, 1);
    tracing::warn!(entity = %entry.device, problem, "a change of a user in the device log cannot be decoded and has no effect");
}

/// Stores telemetry of any entity without running a rule chain. Returns false if it cannot be decoded.
pub fn save(hub: &Hub, entry: &IngestEntry<'_>, at: LogPosition) -> Result<bool, IngestError> {
    let kind = usize::try_from(entry.id)
        .ok()
        .and_then(|index| EntityType::ALL.get(index));
    let (ttl_s, body) = match (entry.kind, entry.body.split_first_chunk()) {
        (EntryKind::SaveWithTtl, Some((ttl_s, body))) => (u32::from_le_bytes(*ttl_s), body),
        _ => (0, entry.body),
    };
    let limits = DecodeLimits {
        casts_texts: entry.kind != EntryKind::SaveTexts,
        ..hub.options().platform.limits
    };
    let telemetry = Telemetry::decode(body, entry.received_ms, &limits);
    match (kind, telemetry) {
        (Some(kind), Ok(telemetry)) => {
            let entity = EntityId::new(*kind, entry.device);
            let when = (at, entry.received_ms);
            let mut out = hub.outlet(entry.received_ms);
            hub.platform()
                .save_telemetry(entity, &telemetry, ttl_s, when, &mut out)
                .map(|()| true)
        }
        (None, _) => {
            report_undecodable(hub, entry, "entity missing");
            Ok(false)
        }
        (_, Err(error)) => {
            report_undecodable(hub, entry, &error.to_string());
            Ok(false)
        }
    }
}
