//! Messages of gateways about their devices. An unknown device is created for the gateway's tenant. The message has
//! been acknowledged, so an error in one device's part does not affect the other parts.

use std::fmt;
use std::sync::Arc;

use super::chain_event::ChainEvent;
use super::host::PlatformCall;
use super::ingest::{MessageRejection, SendingDevice};
use super::{HashMap, HashSet};
use crate::decode::{GatewayConnect, GatewayPart, PayloadDecodeError, gateway_parts};
use crate::entities::EntityError;
use crate::ids::{CustomerId, DeviceId};
use crate::model::Device;

/// Largest number of cached device names, over all gateways.
pub(super) const NAMES_MAX: usize = 200_000;

/// The device profile used if the gateway names none.
const DEFAULT_TYPE: &str = "default";

const NOT_CREATED: &str = "cannot create the device: the tenant's device limit is reached, or the name is invalid";

/// Error during a replay. The original run created the device, so it has been deleted or renamed since.
const DELETED_SINCE: &str = "the device has been deleted or renamed since";

/// New devices that are stored in one transaction.
const DEVICES_PER_TRANSACTION: usize = 1000;

impl PlatformCall<'_> {
    pub fn gateway_telemetry(
        &mut self,
        gateway: &SendingDevice,
        body: &[u8],
        at_ms: i64,
    ) -> Result<(), MessageRejection> {
        let limits = self.platform.options.limits;
        let done = self.of_each(
            gateway,
            gateway_parts(body)?,
            |part| part.telemetry(at_ms, &limits),
            |visit, device, telemetry| {
                visit.connect_gateway_device(gateway, device, at_ms);
                visit.telemetry(device, &telemetry, at_ms);
            },
        );
        self.record_activity(gateway, at_ms);
        done
    }

    pub fn gateway_attributes(
        &mut self,
        gateway: &SendingDevice,
        body: &[u8],
        at_ms: i64,
    ) -> Result<(), MessageRejection> {
        let limits = self.platform.options.limits;
        let done = self.of_each(
            gateway,
            gateway_parts(body)?,
            |part| part.attributes(&limits),
            |visit, device, values| {
                visit.connect_gateway_device(gateway, device, at_ms);
                visit.client_attributes(device, &values, at_ms);
            },
        );
        self.record_activity(gateway, at_ms);
        done
    }

    fn of_each<'b, T>(
        &mut self,
        gateway: &SendingDevice,
        parts: Vec<GatewayPart<'b>>,
        read: impl Fn(&GatewayPart<'b>) -> Result<T, PayloadDecodeError>,
        mut take: impl FnMut(&mut Self, &SendingDevice, T),
    ) -> Result<(), MessageRejection> {
        let mut done = Ok(());
        let mut decoded = Vec::with_capacity(parts.len());
        for part in parts {
            match read(&part) {
                Ok(value) => decoded.push((part.device, value)),
                Err(error) => done = done.and(Err(of_device(&part.device, &error))),
            }
        }
        let names: Vec<&str> = decoded.iter().map(|(name, _)| &**name).collect();
        let found = self.gateway_devices(gateway, &names, DEFAULT_TYPE);
        for ((name, value), found) in decoded.into_iter().zip(found) {
            match found.and_then(|id| self.sender(id)) {
                Ok(device) => take(self, &device, value),
                Err(problem) => done = done.and(Err(of_device(&name, &problem))),
            }
        }
        done
    }

    pub fn gateway_connect(
        &mut self,
        gateway: &SendingDevice,
        body: &[u8],
        at_ms: i64,
    ) -> Result<(), MessageRejection> {
        let connect = GatewayConnect::decode(body)?;
        let device = self.gateway_device(gateway, &connect.device, connect.kind.as_deref())?;
        self.connect_gateway_device(gateway, &device, at_ms);
        self.record_activity(&device, at_ms);
        Ok(())
    }

    /// Connects the device on the gateway's first message about it.
    fn connect_gateway_device(&mut self, gateway: &SendingDevice, device: &SendingDevice, at_ms: i64) {
        if self.core.gateway_devices.connect(gateway.id, device.id) {
            self.connected(device, at_ms);
            self.outlet
                .gateway_device_connected(gateway.id, device.id, &device.entry.name);
        }
    }

    pub fn gateway_disconnect(
        &mut self,
        gateway: &SendingDevice,
        body: &[u8],
        at_ms: i64,
    ) -> Result<(), MessageRejection> {
        let name = GatewayConnect::decode(body)?.device;
        // Disconnecting an unknown device does not create it.
        let is_known = self
            .find_gateway_device(gateway, &name)
            .map_err(MessageRejection::Gateway)?;
        let known = self.core.gateway_names.get(&(gateway.id, Box::from(&*name)));
        if let Some(device) = known.copied().filter(|_| is_known) {
            self.disconnect_gateway_device(gateway.id, device, at_ms);
        }
        Ok(())
    }

    fn disconnect_gateway_device(&mut self, gateway: DeviceId, device: DeviceId, at_ms: i64) {
        if self.core.gateway_devices.disconnect(gateway, device)
            && let Ok(device) = self.sender(device)
        {
            self.disconnected(&device, at_ms);
        }
    }

    /// The gateway has disconnected, and so have all devices behind it.
    pub fn disconnect_gateway_devices(&mut self, gateway: DeviceId, at_ms: i64) {
        for device in self.core.gateway_devices.disconnect_all(gateway) {
            if let Ok(device) = self.sender(device) {
                self.disconnected(&device, at_ms);
            }
        }
    }

    /// Records activity of the devices behind a gateway whose `additionalInfo` has `overwriteActivityTime`.
    pub fn record_gateway_device_activity(&mut self, gateway: &SendingDevice, at_ms: i64) {
        if !gateway.entry.is_gateway || !gateway.entry.overwrites_activity_time {
            return;
        }
        let behind: Vec<DeviceId> = self.core.gateway_devices.of(gateway.id).collect();
        for device in behind {
            if let Ok(device) = self.sender(device) {
                self.record_activity(&device, at_ms);
            }
        }
    }

    fn gateway_device(
        &mut self,
        gateway: &SendingDevice,
        name: &str,
        kind: Option<&str>,
    ) -> Result<SendingDevice, MessageRejection> {
        let mut found = self.gateway_devices(gateway, &[name], kind.unwrap_or(DEFAULT_TYPE));
        self.sender(found.remove(0)?)
    }

    /// Returns the devices in the order of the names. Creates unknown ones with this type, unless this is a replay.
    fn gateway_devices(
        &mut self,
        gateway: &SendingDevice,
        names: &[&str],
        kind: &str,
    ) -> Vec<Result<DeviceId, MessageRejection>> {
        if self.core.gateway_names.len() + names.len() > NAMES_MAX {
            self.core.gateway_names.clear();
        }
        let mut unknown: Vec<&str> = Vec::new();
        let mut looked_up: HashSet<&str> = HashSet::default();
        let mut problems: HashMap<&str, String> = HashMap::default();
        for name in names.iter().filter(|name| looked_up.insert(name)) {
            match self.find_gateway_device(gateway, name) {
                Ok(true) => {}
                Ok(false) if self.is_replay => _ = problems.insert(name, DELETED_SINCE.to_owned()),
                Ok(false) => unknown.push(name),
                Err(problem) => _ = problems.insert(name, problem),
            }
        }
        for names in unknown.chunks(DEVICES_PER_TRANSACTION) {
            if let Err(error) = self.create_gateway_devices(gateway, names, kind) {
                let problem = error.to_string();
                problems.extend(names.iter().map(|name| (*name, problem.clone())));
            }
        }
        let names = names.iter().map(|name| {
            let known = self.core.gateway_names.get(&(gateway.id, Box::from(*name)));
            known.copied().ok_or_else(|| {
                let problem = problems.get(name).map_or(NOT_CREATED, String::as_str);
                MessageRejection::Gateway(problem.to_owned())
            })
        });
        names.collect()
    }

    /// Looks up a device and caches its name. Returns false if there is no such device.
    fn find_gateway_device(&mut self, gateway: &SendingDevice, name: &str) -> Result<bool, String> {
        if !gateway.entry.is_gateway {
            return Err("the device is not a gateway: set \"gateway\" to true in its additionalInfo".to_owned());
        }
        let entities = &self.platform.entities;
        let key = (gateway.id, Box::from(name));
        if let Some(known) = self.core.gateway_names.get(&key) {
            // Ignores a cached device that has been renamed.
            let is_meant = entities
                .directory()
                .device(*known)
                .is_some_and(|entry| &*entry.name == name);
            if is_meant {
                return Ok(true);
            }
            self.core.gateway_names.remove(&key);
        }
        let found = entities.find_by_name::<Device>(gateway.entry.tenant.0, name);
        let found = found.map_err(|error| error.to_string())?;
        let id = found.and_then(|device| device.id);
        if let Some(id) = id {
            self.core.gateway_names.insert(key, id);
        }
        Ok(id.is_some())
    }

    fn create_gateway_devices(
        &mut self,
        gateway: &SendingDevice,
        names: &[&str],
        kind: &str,
    ) -> Result<(), EntityError> {
        let tenant = gateway.entry.tenant;
        let like = Device {
            tenant_id: tenant,
            customer_id: Some(gateway.entry.customer),
            kind: kind.to_owned(),
            additional_info: Some(serde_json::json!({"lastConnectedGateway": gateway.id.0})),
            ..Device::default()
        };
        let entities = Arc::clone(&self.platform.entities);
        for device in entities.create_gateway_devices(gateway.id.entity(), like, names, self.now_ms)? {
            let id = device.id.ok_or(EntityError::NotFound)?;
            self.core
                .gateway_names
                .insert((gateway.id, Box::from(&*device.name)), id);
            let mut metadata = vec![("gatewayId", gateway.id.to_string())];
            if gateway.entry.customer != CustomerId::NULL {
                metadata.push(("customerId", gateway.entry.customer.to_string()));
            }
            self.send_event(ChainEvent {
                kind: "ENTITY_CREATED",
                entity: id.entity(),
                tenant,
                metadata,
                data: serde_json::to_value(&device).unwrap_or_default(),
            });
        }
        Ok(())
    }
}

fn of_device(name: &str, problem: &dyn fmt::Display) -> MessageRejection {
    let name: String = name.chars().take(100).collect();
    MessageRejection::Gateway(format!("device {name:?}: {problem}"))
}
