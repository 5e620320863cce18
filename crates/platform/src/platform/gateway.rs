//! What gateways say of the devices behind them. A device that nobody knows is created for the gateway's tenant. What is said of one
//! device and not understood keeps nothing from the others: the message was acknowledged.

use std::fmt;
use std::sync::Arc;

use super::host::Visit;
use super::ingest::{Refused, Sender};
use super::news::News;
use super::{HashMap, HashSet};
use crate::decode::{DecodeError, GatewayConnect, GatewayPart, gateway_parts};
use crate::entities::EntityError;
use crate::ids::{CustomerId, DeviceId};
use crate::model::Device;

/// Names of devices that are remembered, over all gateways.
const NAMES_MAX: usize = 200_000;

/// The profile of a device whose gateway did not say one.
const DEFAULT_TYPE: &str = "default";

const NOT_CREATED: &str = "it cannot be created: the tenant may have no more devices, or that is no name of a device";

/// In a replay: all that were made then are there, unless somebody has done something to them since.
const GONE: &str = "the device was deleted since, or has another name";

/// New devices that are stored together.
const CREATED_AT_ONCE: usize = 1000;

impl Visit<'_> {
    pub fn gateway_telemetry(&mut self, gateway: &Sender, body: &[u8], at_ms: i64) -> Result<(), Refused> {
        let limits = self.platform.options.limits;
        let done = self.of_each(
            gateway,
            gateway_parts(body)?,
            |part| part.telemetry(at_ms, &limits),
            |visit, device, telemetry| {
                visit.came(gateway, device, at_ms);
                visit.telemetry(device, &telemetry, at_ms);
            },
        );
        self.heard(gateway, at_ms);
        done
    }

    pub fn gateway_attributes(&mut self, gateway: &Sender, body: &[u8], at_ms: i64) -> Result<(), Refused> {
        let limits = self.platform.options.limits;
        let done = self.of_each(
            gateway,
            gateway_parts(body)?,
            |part| part.attributes(&limits),
            |visit, device, values| {
                visit.came(gateway, device, at_ms);
                visit.client_attributes(device, &values, at_ms);
            },
        );
        self.heard(gateway, at_ms);
        done
    }

    fn of_each<'b, T>(
        &mut self,
        gateway: &Sender,
        parts: Vec<GatewayPart<'b>>,
        read: impl Fn(&GatewayPart<'b>) -> Result<T, DecodeError>,
        mut take: impl FnMut(&mut Self, &Sender, T),
    ) -> Result<(), Refused> {
        let mut done = Ok(());
        let mut understood = Vec::with_capacity(parts.len());
        for part in parts {
            match read(&part) {
                Ok(said) => understood.push((part.device, said)),
                Err(error) => done = done.and(Err(of_device(&part.device, &error))),
            }
        }
        let names: Vec<&str> = understood.iter().map(|(name, _)| &**name).collect();
        let found = self.all_behind(gateway, &names, DEFAULT_TYPE);
        for ((name, said), found) in understood.into_iter().zip(found) {
            match found.and_then(|id| self.sender(id)) {
                Ok(device) => take(self, &device, said),
                Err(problem) => done = done.and(Err(of_device(&name, &problem))),
            }
        }
        done
    }

    pub fn gateway_connect(&mut self, gateway: &Sender, body: &[u8], at_ms: i64) -> Result<(), Refused> {
        let connect = GatewayConnect::decode(body)?;
        let device = self.behind(gateway, &connect.device, connect.kind.as_deref())?;
        self.came(gateway, &device, at_ms);
        self.heard(&device, at_ms);
        Ok(())
    }

    /// The first word of a gateway about a device connects it.
    fn came(&mut self, gateway: &Sender, device: &Sender, at_ms: i64) {
        if self.core.behind.came(gateway.id, device.id) {
            self.connected(device, at_ms);
            self.outlet.came_behind(gateway.id, device.id, &device.entry.name);
        }
    }

    pub fn gateway_disconnect(&mut self, gateway: &Sender, body: &[u8], at_ms: i64) -> Result<(), Refused> {
        let name = GatewayConnect::decode(body)?.device;
        // Leaving one that there is not makes none.
        let is_known = self.known_behind(gateway, &name).map_err(Refused::Gateway)?;
        let known = self.core.gateway_names.get(&(gateway.id, Box::from(&*name)));
        if let Some(device) = known.copied().filter(|_| is_known) {
            self.went(gateway.id, device, at_ms);
        }
        Ok(())
    }

    fn went(&mut self, gateway: DeviceId, device: DeviceId, at_ms: i64) {
        if self.core.behind.went(gateway, device)
            && let Ok(device) = self.sender(device)
        {
            self.disconnected(&device, at_ms);
        }
    }

    /// The gateway has gone, and with it all devices that it spoke for.
    pub fn all_went(&mut self, gateway: DeviceId, at_ms: i64) {
        for device in self.core.behind.all_went(gateway) {
            if let Ok(device) = self.sender(device) {
                self.disconnected(&device, at_ms);
            }
        }
    }

    /// Whoever the gateway speaks for is heard with it, if its `additionalInfo` says `overwriteActivityTime`.
    pub fn heard_behind(&mut self, gateway: &Sender, at_ms: i64) {
        if !gateway.entry.is_gateway || !gateway.entry.overwrites_activity_time {
            return;
        }
        let behind: Vec<DeviceId> = self.core.behind.of(gateway.id).collect();
        for device in behind {
            if let Ok(device) = self.sender(device) {
                self.heard(&device, at_ms);
            }
        }
    }

    fn behind(&mut self, gateway: &Sender, name: &str, kind: Option<&str>) -> Result<Sender, Refused> {
        let mut found = self.all_behind(gateway, &[name], kind.unwrap_or(DEFAULT_TYPE));
        self.sender(found.remove(0)?)
    }

    /// In the order of the names. Those that nobody knows are created, of this type, unless this is a replay.
    fn all_behind(&mut self, gateway: &Sender, names: &[&str], kind: &str) -> Vec<Result<DeviceId, Refused>> {
        if self.core.gateway_names.len() + names.len() > NAMES_MAX {
            self.core.gateway_names.clear();
        }
        let mut unknown: Vec<&str> = Vec::new();
        let mut looked_up: HashSet<&str> = HashSet::default();
        let mut problems: HashMap<&str, String> = HashMap::default();
        for name in names.iter().filter(|name| looked_up.insert(name)) {
            match self.known_behind(gateway, name) {
                Ok(true) => {}
                Ok(false) if self.is_replay => _ = problems.insert(name, GONE.to_owned()),
                Ok(false) => unknown.push(name),
                Err(problem) => _ = problems.insert(name, problem),
            }
        }
        for names in unknown.chunks(CREATED_AT_ONCE) {
            if let Err(error) = self.create_behind(gateway, names, kind) {
                let problem = error.to_string();
                problems.extend(names.iter().map(|name| (*name, problem.clone())));
            }
        }
        let names = names.iter().map(|name| {
            let known = self.core.gateway_names.get(&(gateway.id, Box::from(*name)));
            known.copied().ok_or_else(|| {
                let problem = problems.get(name).map_or(NOT_CREATED, String::as_str);
                Refused::Gateway(problem.to_owned())
            })
        });
        names.collect()
    }

    /// Afterwards it is among the names that are remembered; false: there is none.
    fn known_behind(&mut self, gateway: &Sender, name: &str) -> Result<bool, String> {
        if !gateway.entry.is_gateway {
            return Err("the device is no gateway: set \"gateway\" in its additionalInfo".to_owned());
        }
        let entities = &self.platform.entities;
        let key = (gateway.id, Box::from(name));
        if let Some(known) = self.core.gateway_names.get(&key) {
            // One that has another name by now is not meant.
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

    fn create_behind(&mut self, gateway: &Sender, names: &[&str], kind: &str) -> Result<(), EntityError> {
        let tenant = gateway.entry.tenant;
        let like = Device {
            tenant_id: tenant,
            customer_id: Some(gateway.entry.customer),
            kind: kind.to_owned(),
            additional_info: Some(serde_json::json!({"lastConnectedGateway": gateway.id.0})),
            ..Device::default()
        };
        let entities = Arc::clone(&self.platform.entities);
        for device in entities.create_behind(gateway.id.entity(), like, names, self.now_ms)? {
            let id = device.id.ok_or(EntityError::NotFound)?;
            self.core
                .gateway_names
                .insert((gateway.id, Box::from(&*device.name)), id);
            let mut metadata = vec![("gatewayId", gateway.id.to_string())];
            if gateway.entry.customer != CustomerId::NULL {
                metadata.push(("customerId", gateway.entry.customer.to_string()));
            }
            self.tell(News {
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

fn of_device(name: &str, problem: &dyn fmt::Display) -> Refused {
    let name: String = name.chars().take(100).collect();
    Refused::Gateway(format!("device {name:?}: {problem}"))
}
