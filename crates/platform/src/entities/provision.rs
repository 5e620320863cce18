//! Devices that come by themselves: provisioning with the key and secret of a profile, and claiming by a customer's user.

use std::collections::HashMap;

use timeseries::Value;

use super::{Entities, EntityError, random_text};
use crate::decode::{Claim, Provision};
use crate::ids::{CustomerId, DeviceId};
use crate::model::{
    Attribute, CredentialsType, Device, DeviceCredentials, DeviceProfile, MqttBasic, ProvisionType, Scope,
};
use crate::repository::Change;

/// Server attribute of a device that was provisioned.
const PROVISION_STATE: &str = "provisionState";
const PROVISIONED: &str = "provisioned";

/// How long a claim may wait for its user, if the device does not say.
const CLAIM_MS_DEFAULT: i64 = 86_400_000;

/// Devices that wait to be claimed; more than these push out the oldest.
const CLAIMS_MAX: usize = 100_000;

#[derive(Clone, Debug, PartialEq)]
pub enum ProvisionOutcome {
    Success {
        credentials: DeviceCredentials,
        is_new: bool,
    },
    /// No profile has this key with this secret.
    NotFound,
    /// With the device, if there is one that cannot be provisioned once more.
    Failure(Option<DeviceId>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum ClaimOutcome {
    Success(Box<Device>),
    /// A wrong or old secret, or the device never asked.
    Failure,
    /// It has an owner already.
    Claimed,
}

#[derive(Debug, Default)]
pub(super) struct Claims {
    waiting: HashMap<DeviceId, WaitingClaim>,
}

#[derive(Debug)]
struct WaitingClaim {
    secret: String,
    expires_ms: i64,
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
            .attributes(id.0, Scope::ServerScope, Some(&[PROVISION_STATE]))?;
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
            value: Value::String(PROVISIONED.into()),
            last_update_ms: now_ms,
        };
        Ok(self.repository.apply(&[Change::PutAttribute {
            entity: device.0,
            scope: Scope::ServerScope,
            attribute,
        }])?)
    }

    /// The device says that it may be claimed. Claims are in memory: after a restart the device says it again.
    pub fn allow_claim(&self, device: DeviceId, claim: &Claim, now_ms: i64) -> Result<(), EntityError> {
        let stored: Device = self.get(device.0)?;
        if stored.customer_id.unwrap_or_default() != CustomerId::NULL {
            return Err(EntityError::invalid(format!(
                "Device [{}] has been already claimed!",
                stored.name
            )));
        }
        let duration_ms = if claim.duration_ms > 0 {
            claim.duration_ms
        } else {
            CLAIM_MS_DEFAULT
        };
        let mut claims = self.claims.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        claims.make_room(now_ms);
        claims.waiting.entry(device).or_insert_with(|| WaitingClaim {
            secret: claim.secret_key.clone(),
            expires_ms: now_ms.saturating_add(duration_ms),
        });
        Ok(())
    }

    /// A user of the customer takes the device that has this name.
    pub fn claim(
        &self,
        device: &Device,
        customer: CustomerId,
        secret: &str,
        now_ms: i64,
    ) -> Result<ClaimOutcome, EntityError> {
        let id = device.id.unwrap_or_default();
        let is_owned = device.customer_id.unwrap_or_default() != CustomerId::NULL;
        let waiting = {
            let mut claims = self.claims.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            claims.waiting.remove(&id)
        };
        match waiting {
            Some(claim) if now_ms <= claim.expires_ms && claim.secret == secret && !is_owned => {
                let device = Device {
                    customer_id: Some(customer),
                    version: None,
                    ..device.clone()
                };
                Ok(ClaimOutcome::Success(Box::new(self.save_device(device, None, now_ms)?)))
            }
            Some(claim) if now_ms > claim.expires_ms || claim.secret != secret => Ok(ClaimOutcome::Failure),
            Some(_) => Ok(ClaimOutcome::Claimed),
            None if is_owned => Ok(ClaimOutcome::Claimed),
            None => Ok(ClaimOutcome::Failure),
        }
    }

    /// Gives the device back; it may be claimed again.
    pub fn reclaim(&self, device: &Device, now_ms: i64) -> Result<Device, EntityError> {
        let device = Device {
            customer_id: None,
            version: None,
            ..device.clone()
        };
        self.save_device(device, None, now_ms)
    }

    /// For a first start: a password that nobody knows before it is printed.
    pub fn random_password() -> String {
        random_text()
    }
}

impl Claims {
    fn make_room(&mut self, now_ms: i64) {
        if self.waiting.len() < CLAIMS_MAX {
            return;
        }
        self.waiting.retain(|_, claim| claim.expires_ms >= now_ms);
        if self.waiting.len() < CLAIMS_MAX {
            return;
        }
        let oldest = self
            .waiting
            .iter()
            .min_by_key(|(_, claim)| claim.expires_ms)
            .map(|(id, _)| *id);
        if let Some(oldest) = oldest {
            self.waiting.remove(&oldest);
        }
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
