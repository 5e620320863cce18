//! Requests of gateways, which speak for devices by their names.

use platform::decode::{
    Downlink, GatewayAttributesRequest, GatewayConnect, GatewayRpcResponse, Subscription, gateway_attribute_response,
    gateway_parts, protobuf_gateway_attribute_response,
};
use platform::entities::{EntityError, Said};
use platform::ids::DeviceId;
use platform::model::{Device, Scope};

use crate::entry::{Entry, Kind};
use crate::hub::{Hub, unix_ms};
use crate::requests::Unanswered;

impl Hub {
    /// The platform has taken the message by which a gateway begins to speak for a device.
    pub fn gateway_connected(&self, entry: &Entry<'_>) {
        if let Ok(connect) = GatewayConnect::decode(entry.body) {
            // A gateway that may not was refused by the platform.
            if let Ok(Some(device)) = self.behind(entry, &connect.device) {
                self.deliver_calls(device);
            }
        }
    }

    /// It speaks for the device no more: until it does again, there is no way to tell the device anything.
    pub fn gateway_disconnected(&self, entry: &Entry<'_>) {
        if let Ok(connect) = GatewayConnect::decode(entry.body) {
            self.sessions.remove_behind(entry.device, &connect.device);
        }
    }

    /// The device of this name that the gateway speaks for.
    fn behind(&self, entry: &Entry<'_>, name: &str) -> Result<Option<DeviceId>, EntityError> {
        let entities = self.platform.entities();
        let known = self.sessions.behind(entry.device, name).filter(|known| {
            // One that has another name by now is not meant.
            let directory = entities.directory();
            directory.device(*known).is_some_and(|known| &*known.name == name)
        });
        if known.is_some() {
            return Ok(known);
        }
        let tenant = {
            let directory = entities.directory();
            let gateway = directory.device(DeviceId(entry.device));
            match gateway.filter(|gateway| gateway.is_gateway) {
                Some(gateway) => gateway.tenant,
                None => return Ok(None),
            }
        };
        let device: Option<Device> = entities.find_by_name(tenant.0, name)?;
        let id = device.and_then(|device| device.id);
        if let Some(id) = id {
            self.sessions.put_behind(entry.device, name, id);
        }
        Ok(id)
    }

    /// Whether it asks for attributes of a device that there is not yet, which this connects.
    pub fn asks_for_new(&self, entry: &Entry<'_>) -> bool {
        entry.kind == Kind::GatewayAttributesRequest
            && GatewayAttributesRequest::decode(entry.body)
                .is_ok_and(|request| matches!(self.behind(entry, &request.device), Ok(None)))
    }

    pub fn gateway_attributes_request(&self, entry: &Entry<'_>) -> Result<(), Unanswered> {
        let request = GatewayAttributesRequest::decode(entry.body)?;
        let subscription = Subscription::GatewayAttributesResponse;
        let Some(target) = self.sessions.asker(entry.device, subscription) else {
            return Ok(());
        };
        let Some(device) = self.behind(entry, &request.device)? else {
            return Ok(());
        };
        let scope = match request.is_client_scope {
            true => Scope::ClientScope,
            false => Scope::SharedScope,
        };
        let keys: Vec<&str> = request.keys.iter().map(String::as_str).collect();
        let found = self.platform.attributes(device.entity(), scope, Some(&keys))?;
        let body = match self.protobuf_of_gateway(entry.device) {
            Some(_) => {
                let (client, shared) = match request.is_client_scope {
                    true => (&found[..], &[][..]),
                    false => (&[][..], &found[..]),
                };
                let id = i32::try_from(request.id).unwrap_or_default();
                protobuf_gateway_attribute_response(&request.device, id, client, shared)
            }
            None => gateway_attribute_response(request.id, &request.device, &found, request.is_list).into_bytes(),
        };
        self.out(entry.received_ms)
            .send(target, Downlink::GatewayAttributesResponse, body);
        Ok(())
    }

    pub fn gateway_rpc(&self, entry: &Entry<'_>, said: Said) -> Result<(), Unanswered> {
        let response = GatewayRpcResponse::decode(entry.body)?;
        if let Some(device) = self.behind(entry, &response.device)?
            && let Ok(id) = i32::try_from(response.id)
        {
            self.answered(device, id, response.data.as_bytes(), said);
        }
        Ok(())
    }

    /// All devices of the message at once; the error is that of the first that may not be claimed.
    pub fn gateway_claim(&self, entry: &Entry<'_>, said: Said) -> Result<(), Unanswered> {
        let mut done = Ok(());
        let mut wanted = Vec::new();
        for part in gateway_parts(entry.body)? {
            let taken = part.claim().map_err(Unanswered::from).and_then(|claim| {
                let device = self.behind(entry, &part.device)?;
                wanted.extend(device.map(|device| (device, claim)));
                Ok(())
            });
            done = done.and(taken);
        }
        let said = (said, entry.received_ms);
        let allowed = self.platform.entities().allow_claims(&wanted, said, unix_ms());
        done.and(allowed.map_err(Unanswered::from))
    }
}
