//! What gateways say of the devices behind them. A device that nobody knows is created for the gateway's tenant. What is said of one
//! device and not understood keeps nothing from the others: the message was acknowledged.

use std::sync::Arc;

use super::host::Visit;
use super::ingest::{Refused, Sender};
use super::news::News;
use crate::decode::{GatewayConnect, gateway_parts};
use crate::entities::EntityError;
use crate::ids::{CustomerId, DeviceId, EntityId};
use crate::model::{Device, Relation, RelationGroup};

/// Names of devices that are remembered, over all gateways.
const NAMES_MAX: usize = 200_000;

/// The profile of a device whose gateway did not say one.
const DEFAULT_TYPE: &str = "default";

impl Visit<'_> {
    pub fn gateway_telemetry(&mut self, gateway: &Sender, body: &[u8], at_ms: i64) -> Result<(), Refused> {
        let limits = self.platform.options.limits;
        let mut done = Ok(());
        for part in gateway_parts(body)? {
            let taken = part.telemetry(at_ms, &limits).map_err(Refused::from);
            let taken = taken.and_then(|telemetry| {
                let device = self.behind(gateway, &part.device, None)?;
                self.telemetry(&device, &telemetry, at_ms);
                Ok(())
            });
            done = done.and(taken.map_err(|problem| of_device(&part.device, &problem)));
        }
        self.heard(gateway, at_ms);
        done
    }

    pub fn gateway_attributes(&mut self, gateway: &Sender, body: &[u8], at_ms: i64) -> Result<(), Refused> {
        let limits = self.platform.options.limits;
        let mut done = Ok(());
        for part in gateway_parts(body)? {
            let taken = part.attributes(&limits).map_err(Refused::from);
            let taken = taken.and_then(|values| {
                let device = self.behind(gateway, &part.device, None)?;
                self.client_attributes(&device, &values, at_ms);
                Ok(())
            });
            done = done.and(taken.map_err(|problem| of_device(&part.device, &problem)));
        }
        self.heard(gateway, at_ms);
        done
    }

    pub fn gateway_connect(&mut self, gateway: &Sender, body: &[u8], at_ms: i64) -> Result<(), Refused> {
        let connect = GatewayConnect::decode(body)?;
        let device = self.behind(gateway, &connect.device, connect.kind.as_deref())?;
        self.connected(&device, at_ms);
        self.heard(&device, at_ms);
        Ok(())
    }

    pub fn gateway_disconnect(&mut self, gateway: &Sender, body: &[u8], at_ms: i64) -> Result<(), Refused> {
        let connect = GatewayConnect::decode(body)?;
        let device = self.behind(gateway, &connect.device, None)?;
        self.disconnected(&device, at_ms);
        Ok(())
    }

    fn behind(&mut self, gateway: &Sender, name: &str, kind: Option<&str>) -> Result<Sender, Refused> {
        if !gateway.entry.is_gateway {
            return Err(Refused::Gateway(
                "the device is no gateway: set \"gateway\" in its additionalInfo".to_owned(),
            ));
        }
        let key = (gateway.id, Box::from(name));
        let known = self.core.gateway_names.get(&key).copied();
        // One that has another name by now is not meant.
        let known = known.and_then(|id| self.sender(id).ok());
        if let Some(sender) = known.filter(|sender| &*sender.entry.name == name) {
            return Ok(sender);
        }
        let id = self
            .find_or_create(gateway, name, kind)
            .map_err(|error| Refused::Gateway(error.to_string()))?;
        if self.core.gateway_names.len() >= NAMES_MAX {
            self.core.gateway_names.clear();
        }
        self.core.gateway_names.insert(key, id);
        self.sender(id)
    }

    fn find_or_create(&mut self, gateway: &Sender, name: &str, kind: Option<&str>) -> Result<DeviceId, EntityError> {
        let entities = Arc::clone(&self.platform.entities);
        let tenant = gateway.entry.tenant;
        if let Some(device) = entities.find_by_name::<Device>(tenant.0, name)? {
            return device.id.ok_or(EntityError::NotFound);
        }
        let device = Device {
            tenant_id: tenant,
            customer_id: Some(gateway.entry.customer),
            name: name.to_owned(),
            kind: kind.unwrap_or(DEFAULT_TYPE).to_owned(),
            additional_info: Some(serde_json::json!({"lastConnectedGateway": gateway.id.0})),
            ..Device::default()
        };
        let device = entities.save_device(device, None, self.now_ms)?;
        let id = device.id.ok_or(EntityError::NotFound)?;
        entities.save_relation(&created(gateway.id.entity(), id.entity()))?;
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
        Ok(id)
    }
}

fn of_device(name: &str, problem: &Refused) -> Refused {
    let name: String = name.chars().take(100).collect();
    Refused::Gateway(format!("device {name:?}: {problem}"))
}

fn created(from: EntityId, to: EntityId) -> Relation {
    Relation {
        from,
        to,
        kind: Relation::CREATED.to_owned(),
        group: RelationGroup::Common,
        additional_info: None,
    }
}
