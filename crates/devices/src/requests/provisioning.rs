//! Provisioning requests: new devices that ask for credentials.

use platform::ChainEvent;
use platform::decode::{
    DeviceSubscription, Downlink, PayloadDecodeError, Provision, Provisioned, protobuf_provision, protobuf_provisioned,
    provision_failure, provision_not_found, provision_success,
};
use platform::entities::{EntityError, ProvisionOutcome};
use platform::ids::{DeviceId, EntityId, EntityType};
use platform::model::Device;

use super::RequestHandler;
use crate::entry::IngestEntry;

impl RequestHandler {
    pub(super) fn provision(&self, entry: &IngestEntry<'_>, now_ms: i64) {
        let (request, is_protobuf) = match Provision::decode(entry.body) {
            // A body that is not JSON is read as ThingsBoard's Protobuf message, and answered in Protobuf.
            Err(PayloadDecodeError::NotJson { .. }) if let Ok(request) = protobuf_provision(entry.body) => {
                (Ok(request), true)
            }
            request => (request, false),
        };
        let outcome = match request {
            Ok(request) => {
                let secret = request.key_and_secret();
                match self.hub.provisioners().admit(entry.device, &secret) {
                    true => {
                        let (outcome, is_known) = self.provisioned(&request, now_ms);
                        if let Some(is_known) = is_known {
                            self.hub.provisioners().record(entry.device, &secret, is_known);
                        }
                        outcome
                    }
                    false => {
                        tracing::info!("provisioning request refused: too many wrong secrets from its address");
                        Provisioned::Failure
                    }
                }
            }
            Err(error) => {
                tracing::info!(%error, "provisioning request could not be decoded");
                Provisioned::Failure
            }
        };
        let body = match is_protobuf {
            true => protobuf_provisioned(&outcome),
            false => json_provisioned(&outcome).into_bytes(),
        };
        self.reply(entry.device, DeviceSubscription::Provision, &Downlink::Provision, body);
    }

    /// Returns the response to a provisioning request, as JSON, and whether its key and secret are known. `None` if
    /// that could not be checked.
    pub fn answer_provisioning(&self, request: &Provision, now_ms: i64) -> (String, Option<bool>) {
        let (outcome, is_known) = self.provisioned(request, now_ms);
        (json_provisioned(&outcome), is_known)
    }

    fn provisioned(&self, request: &Provision, now_ms: i64) -> (Provisioned, Option<bool>) {
        match self.hub.platform().entities().provision(request, now_ms) {
            Ok(ProvisionOutcome::Success { credentials, is_new }) => {
                if is_new {
                    self.send_provisioning_event("ENTITY_CREATED", credentials.device_id, now_ms);
                }
                self.send_provisioning_event("PROVISION_SUCCESS", credentials.device_id, now_ms);
                (Provisioned::Success(credentials), Some(true))
            }
            Ok(ProvisionOutcome::NotFound) => (Provisioned::NotFound, Some(false)),
            Ok(ProvisionOutcome::Failure(known)) => {
                if let Some(device) = known {
                    self.send_provisioning_event("PROVISION_FAILURE", device, now_ms);
                }
                (Provisioned::Failure, Some(true))
            }
            Err(error) => {
                tracing::warn!(%error, "provisioning a device failed");
                (Provisioned::Failure, None)
            }
        }
    }

    /// Sends a provisioning event with the device as data to the device's rule chain.
    fn send_provisioning_event(&self, kind: &'static str, device: DeviceId, now_ms: i64) {
        let found: Result<Option<Device>, EntityError> = self.hub.platform().entities().find(device.0);
        let Ok(Some(device)) = found else { return };
        let event = ChainEvent {
            kind,
            entity: EntityId::new(EntityType::Device, device.id.unwrap_or_default().0),
            tenant: device.tenant_id,
            metadata: Vec::new(),
            data: serde_json::to_value(&device).unwrap_or_default(),
        };
        self.hub.send_event(event, now_ms);
    }
}

fn json_provisioned(outcome: &Provisioned) -> String {
    match outcome {
        Provisioned::Success(credentials) => provision_success(credentials),
        Provisioned::NotFound => provision_not_found(),
        Provisioned::Failure => provision_failure(),
    }
}
