//! Requests of gateways, which name the devices they speak for.

use platform::decode::{
    DeviceSubscription, Downlink, GatewayAttributesRequest, GatewayConnect, GatewayRpcResponse,
    gateway_attribute_response, gateway_parts, protobuf_gateway_attribute_response,
};
use platform::entities::{EntityError, ReceptionMode};
use platform::ids::DeviceId;
use platform::model::{AttributeScope, Device};

use super::{RequestError, RequestHandler};
use crate::clock::unix_ms;
use crate::entry::{EntryKind, IngestEntry};

impl RequestHandler {
    /// Handles a gateway's connect message for a device, after the platform processed it.
    pub fn gateway_connected(&self, entry: &IngestEntry<'_>) {
        if let Ok(connect) = GatewayConnect::decode(entry.body) {
            // The platform has already rejected gateways without permission.
            if let Ok(Some(device)) = self.gateway_device(entry, &connect.device) {
                self.hub.rpcs().deliver(device);
            }
        }
    }

    /// Handles a gateway's disconnect message for a device. The device gets no messages until the gateway connects it
    /// again.
    pub fn gateway_disconnected(&self, entry: &IngestEntry<'_>) {
        if let Ok(connect) = GatewayConnect::decode(entry.body) {
            self.hub.sessions().remove_gateway_device(entry.device, &connect.device);
        }
    }

    /// The device with this name behind the gateway.
    fn gateway_device(&self, entry: &IngestEntry<'_>, name: &str) -> Result<Option<DeviceId>, EntityError> {
        let entities = self.hub.platform().entities();
        let known = self.hub.sessions().gateway_device(entry.device, name).filter(|known| {
            // Ignores a device that has been renamed.
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
            self.hub.sessions().add_gateway_device(entry.device, name, id);
        }
        Ok(id)
    }

    /// Returns true for an attribute request that names an unknown device, which the request connects.
    pub fn requests_unknown_device(&self, entry: &IngestEntry<'_>) -> bool {
        entry.kind == EntryKind::GatewayAttributesRequest
            && GatewayAttributesRequest::decode(entry.body)
                .is_ok_and(|request| matches!(self.gateway_device(entry, &request.device), Ok(None)))
    }

    pub(super) fn gateway_attributes_request(&self, entry: &IngestEntry<'_>) -> Result<(), RequestError> {
        let request = GatewayAttributesRequest::decode(entry.body)?;
        let subscription = DeviceSubscription::GatewayAttributesResponse;
        let Some(target) = self.hub.sessions().requester(entry.device, subscription) else {
            return Ok(());
        };
        let Some(device) = self.gateway_device(entry, &request.device)? else {
            return Ok(());
        };
        let scope = match request.is_client_scope {
            true => AttributeScope::ClientScope,
            false => AttributeScope::SharedScope,
        };
        let keys: Vec<&str> = request.keys.iter().map(String::as_str).collect();
        let found = self.hub.platform().attributes(device.entity(), scope, Some(&keys))?;
        let body = match self.hub.transports().protobuf_of_gateway(entry.device) {
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
        self.hub
            .downlinks()
            .send_to(&target, &Downlink::GatewayAttributesResponse, body);
        Ok(())
    }

    pub(super) fn gateway_rpc(&self, entry: &IngestEntry<'_>, origin: ReceptionMode) -> Result<(), RequestError> {
        let response = GatewayRpcResponse::decode(entry.body)?;
        if let Some(device) = self.gateway_device(entry, &response.device)?
            && let Ok(id) = i32::try_from(response.id)
        {
            let rpcs = self.hub.rpcs();
            rpcs.handle_response(device, id, response.data.as_bytes(), origin);
        }
        Ok(())
    }

    /// Allows claims for all devices of the message. Returns the first error.
    pub(super) fn gateway_claim(&self, entry: &IngestEntry<'_>, origin: ReceptionMode) -> Result<(), RequestError> {
        let mut done = Ok(());
        let mut wanted = Vec::new();
        for part in gateway_parts(entry.body)? {
            let result = part.claim().map_err(RequestError::from).and_then(|claim| {
                let device = self.gateway_device(entry, &part.device)?;
                wanted.extend(device.map(|device| (device, claim)));
                Ok(())
            });
            done = done.and(result);
        }
        let origin = (origin, entry.received_ms);
        let allowed = self.hub.platform().entities().allow_claims(&wanted, origin, unix_ms());
        done.and(allowed.map_err(RequestError::from))
    }
}
