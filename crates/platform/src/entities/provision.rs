//! Provisioning: devices register themselves with the key and secret of a profile.

use timeseries::PointValue;

use super::{Entities, EntityError, random_text};
use crate::decode::Provision;
use crate::ids::DeviceId;
use crate::model::{
    Attribute, AttributeScope, CredentialsType, Device, DeviceCredentials, DeviceProfile, MqttBasic, ProvisionType,
};
use crate::repository::RepositoryChange;

/// Server attribute of a provisioned device.
const PROVISION_STATE: &str = "provisionState";
const PROVISIONED: &str = "provisioned";

#[derive(Clone, Debug, PartialEq)]
pub enum ProvisionOutcome {
    Success {
        credentials: DeviceCredentials,
        is_new: bool,
    },
    /// No profile has this key and secret.
    NotFound,
    /// The device cannot be provisioned. Contains the device if it exists already.
    Failure(Option<DeviceId>),
}

impl Entities {
    pub fn provision(&self, request: &Provision, now_ms: i64) -> Result<ProvisionOutcome, EntityError> {
        if request.key.is_empty() || request.secret.is_empty() {
            return Ok(ProvisionOutcome::NotFound);
        }
        let profile: Option<DeviceProfile> = self.find_by_key(&request.key)?;
        let profile = profile.filter(|profile| profile.provision_secret() == Some(&request.secret));
        let Some(profile) = profile else {
            return Ok(ProvisionOutcome::NotFound);
        };
        let name = request.device_name.trim();
        if name.is_empty() && !request.device_name.is_empty() {
            return Ok(ProvisionOutcome::Failure(None));
        }
        let device: Option<Device> = match name {
            "" => None,
            name => self.find_by_name(profile.tenant_id.0, name)?,
        };
        match (profile.provision_strategy(), device) {
            (ProvisionType::AllowCreateNewDevices, None) => self.provision_new(request, &profile, now_ms),
            (ProvisionType::CheckPreProvisionedDevices, Some(device)) if device.device_profile_id == profile.id => {
                self.provision_known(&device, now_ms)
            }
            (ProvisionType::AllowCreateNewDevices, Some(device)) => Ok(ProvisionOutcome::Failure(device.id)),
            (ProvisionType::CheckPreProvisionedDevices, _) => Ok(ProvisionOutcome::Failure(None)),
            (ProvisionType::Disabled | ProvisionType::X509CertificateChain, _) => Ok(ProvisionOutcome::NotFound),
        }
    }

    fn provision_new(
        &self,
        request: &Provision,
        profile: &DeviceProfile,
        now_ms: i64,
    ) -> Result<ProvisionOutcome, EntityError> {
        let name = request.device_name.trim();
        let device = Device {
            tenant_id: profile.tenant_id,
            name: if name.is_empty() {
                random_text()
            } else {
                name.to_owned()
            },
            device_profile_id: profile.id,
            additional_info: request.gateway.then(|| serde_json::json!({"gateway": true})),
            ..Device::default()
        };
        let saved = self.save_device_with_credentials(device, wanted_credentials(request), now_ms);
        let device = match saved {
            Ok(device) => device.id.unwrap_or_default(),
            Err(EntityError::Invalid(_)) => return Ok(ProvisionOutcome::Failure(None)),
            Err(error) => return Err(error),
        };
        self.mark_provisioned(device, now_ms)?;
        Ok(ProvisionOutcome::Success {
            credentials: self.device_credentials(device)?,
            is_new: true,
        })
    }

    fn provision_known(&self, device: &Device, now_ms: i64) -> Result<ProvisionOutcome, EntityError> {
        let id = device.id.unwrap_or_default();
        let state = self
            .repository
            .attributes(id.0, AttributeScope::ServerScope, Some(&[PROVISION_STATE]))?;
        if !state.is_empty() {
            return Ok(ProvisionOutcome::Failure(Some(id)));
        }
        self.mark_provisioned(id, now_ms)?;
        Ok(ProvisionOutcome::Success {
            credentials: self.device_credentials(id)?,
            is_new: false,
        })
    }

    fn mark_provisioned(&self, device: DeviceId, now_ms: i64) -> Result<(), EntityError> {
        let attribute = Attribute {
            key: PROVISION_STATE.to_owned(),
            value: PointValue::String(PROVISIONED.into()),
            last_update_ms: now_ms,
        };
        Ok(self.repository.apply(&[RepositoryChange::PutAttribute {
            entity: device.0,
            scope: AttributeScope::ServerScope,
            attribute,
        }])?)
    }

    /// Returns a random password for a first start. It is known only after the server has printed it.
    pub fn random_password() -> String {
        random_text()
    }
}

fn wanted_credentials(request: &Provision) -> DeviceCredentials {
    let credentials = DeviceCredentials {
        credentials_type: request.credentials_type,
        ..DeviceCredentials::default()
    };
    match request.credentials_type {
        CredentialsType::X509Certificate => DeviceCredentials {
            credentials_value: request.certificate.clone(),
            ..credentials
        },
        CredentialsType::MqttBasic => {
            let basic = MqttBasic {
                client_id: request.client_id.clone(),
                user_name: request.user_name.clone(),
                password: request.password.clone(),
            };
            DeviceCredentials {
                credentials_value: serde_json::to_string(&basic).ok(),
                ..credentials
            }
        }
        CredentialsType::AccessToken | CredentialsType::Lwm2mCredentials => {
            let token = request.token.clone().filter(|token| !token.is_empty());
            DeviceCredentials {
                credentials_id: Some(token.unwrap_or_else(random_text)),
                ..credentials
            }
        }
    }
}
