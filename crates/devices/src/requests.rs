//! What devices ask and what is not kept: attributes, answers to calls, claims, provisioning.

use platform::decode::{
    AttributesRequest, Claim, DecodeError, Downlink, Limits, Provision, Provisioned, RpcRequest, Subscription,
    Telemetry, attribute_response, attributes, protobuf_attribute_response, protobuf_provision, protobuf_provisioned,
    protobuf_rpc_response, provision_failure, provision_not_found, provision_success,
};
use platform::entities::{EntityError, ProvisionOutcome, Said};
use platform::ids::{DeviceId, EntityId, EntityType};
use platform::model::{Attribute, Device, Scope};
use platform::{AttributesChange, IngestError, News, RateLimit, TransportRates};
use timeseries::Position;

use crate::entry::{Entry, Kind};
use crate::hub::{Hub, unix_ms};
use crate::stats::Counters;

/// A call of the device that the transport itself answers.
const LIMITS_METHOD: &str = "getSessionLimits";

/// Longest payload and messages in flight, as devices are told.
const PAYLOAD_BYTES_MAX: u32 = 65_536;
const INFLIGHT_MAX: u32 = 100;

/// Client and shared attributes.
type BothScopes = (Vec<Attribute>, Vec<Attribute>);

pub fn asks_for_limits(body: &[u8]) -> bool {
    let name = LIMITS_METHOD.as_bytes();
    body.len() < 256
        && body.windows(name.len()).any(|part| part == name)
        && RpcRequest::decode(body).is_ok_and(|request| request.method == LIMITS_METHOD)
}

/// Why a request has no answer.
pub enum Unanswered {
    Decode(DecodeError),
    Entity(EntityError),
}

impl std::fmt::Display for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unanswered::Decode(error) => error.fmt(f),
            Unanswered::Entity(error) => error.fmt(f),
        }
    }
}

impl From<DecodeError> for Unanswered {
    fn from(error: DecodeError) -> Unanswered {
        Unanswered::Decode(error)
    }
}

impl From<EntityError> for Unanswered {
    fn from(error: EntityError) -> Unanswered {
        Unanswered::Entity(error)
    }
}

impl Hub {
    pub fn answer(&self, entry: &Entry<'_>, now_ms: i64) {
        let device = DeviceId(entry.device);
        let done = match entry.kind {
            Kind::RpcResponse => {
                self.answered(device, entry.id, entry.body, Said::Now);
                Ok(())
            }
            Kind::RpcRequest => {
                self.tell_limits(entry);
                Ok(())
            }
            Kind::AttributesRequest => self.attributes_request(entry),
            Kind::Claim => self.claim(device, entry.body, (Said::Now, entry.received_ms)),
            Kind::Provision => self.provision(entry, now_ms),
            Kind::GatewayAttributesRequest => self.gateway_attributes_request(entry),
            Kind::GatewayRpc => self.gateway_rpc(entry, Said::Now),
            Kind::FirmwareChunk | Kind::SoftwareChunk => {
                self.ask_for_chunk(entry);
                Ok(())
            }
            Kind::GatewayClaim => self.gateway_claim(entry, Said::Now),
            _ => Ok(()),
        };
        if entry.kind != Kind::Provision {
            self.heard_now(entry.device, entry.received_ms);
        }
        match done {
            Ok(()) => {}
            Err(Unanswered::Decode(error)) => self.refused(entry.device, &error.to_string()),
            Err(Unanswered::Entity(error)) => {
                Counters::add(&self.counters.refused_messages, 1);
                tracing::info!(device = %entry.device, %error, "a request of a device cannot be answered");
            }
        }
    }

    fn tell_limits(&self, entry: &Entry<'_>) {
        let downlink = Downlink::RpcResponse {
            form: entry.form,
            id: entry.id,
        };
        let rates = self.rates_of(DeviceId(entry.device));
        let text = |rate: &Option<RateLimit>| rate.as_ref().map(RateLimit::to_string).unwrap_or_default();
        let body = format!(
            "{{\"maxPayloadSize\":{PAYLOAD_BYTES_MAX},\"maxInflightMessages\":{INFLIGHT_MAX},\"rateLimits\":{{\"messages\":\"{}\",\"telemetryMessages\":\"{}\",\"telemetryDataPoints\":\"{}\"}}}}",
            text(&rates.messages),
            text(&rates.telemetry_messages),
            text(&rates.telemetry_points),
        );
        if let Some(asked) = self.asked.remove(DeviceId(entry.device), entry.id) {
            // Over HTTP.
            self.tell_caller(asked.caller, Ok(Some(body)));
        } else if let Some(target) = self.sessions.asker(entry.device, Subscription::RpcResponse(entry.form)) {
            let payload = match self.protobuf_of(entry.device, entry.form) {
                Some(_) => protobuf_rpc_response(entry.id, &body),
                None => body.into_bytes(),
            };
            self.out(entry.received_ms).send(target, downlink, payload);
        }
    }

    /// Of a device, as it is told.
    fn rates_of(&self, device: DeviceId) -> TransportRates {
        let directory = self.platform.entities().directory();
        let tenant = directory.device(device).map(|device| device.tenant);
        let limits = tenant.and_then(|tenant| directory.limits(tenant));
        limits.map(|limits| limits.device.clone()).unwrap_or_default()
    }

    fn attributes_request(&self, entry: &Entry<'_>) -> Result<(), Unanswered> {
        let request = AttributesRequest::decode(entry.body)?;
        let subscription = Subscription::AttributesResponse(entry.form);
        let Some(target) = self.sessions.asker(entry.device, subscription) else {
            return Ok(());
        };
        let (client, shared) = self.attributes_for(DeviceId(entry.device), &request)?;
        let payload = match self.protobuf_of(entry.device, entry.form) {
            Some(_) => protobuf_attribute_response(entry.id, &client, &shared),
            None => attribute_response(&client, &shared).into_bytes(),
        };
        let downlink = Downlink::AttributesResponse {
            form: entry.form,
            id: entry.id,
        };
        self.out(entry.received_ms).send(target, downlink, payload);
        Ok(())
    }

    /// As a device is told its attributes.
    pub fn attributes_of(&self, device: DeviceId, request: &AttributesRequest) -> Result<String, EntityError> {
        let (client, shared) = self.attributes_for(device, request)?;
        Ok(attribute_response(&client, &shared))
    }

    /// Client and shared ones.
    fn attributes_for(&self, device: DeviceId, request: &AttributesRequest) -> Result<BothScopes, EntityError> {
        let of_scope = |scope: Scope, keys: &Option<Vec<String>>| -> Result<Vec<Attribute>, EntityError> {
            match keys {
                None if request.is_everything() => self.platform.attributes(device.entity(), scope, None),
                None => Ok(Vec::new()),
                Some(keys) => {
                    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
                    self.platform.attributes(device.entity(), scope, Some(&names))
                }
            }
        };
        let client = of_scope(Scope::ClientScope, &request.client_keys)?;
        let shared = of_scope(Scope::SharedScope, &request.shared_keys)?;
        Ok((client, shared))
    }

    pub fn claim(&self, device: DeviceId, body: &[u8], said: (Said, i64)) -> Result<(), Unanswered> {
        let claim = Claim::decode(body)?;
        self.platform.entities().allow_claim(device, &claim, said, unix_ms())?;
        Ok(())
    }

    /// A claim, or the answer to a call that is kept, in the log of the process before, which may not have got to it. Nobody waits for
    /// what comes of it.
    pub fn said_before(&self, entry: &Entry<'_>) {
        let device = DeviceId(entry.device);
        let done = match entry.kind {
            Kind::Claim => self.claim(device, entry.body, (Said::Again, entry.received_ms)),
            Kind::GatewayClaim => self.gateway_claim(entry, Said::Again),
            Kind::RpcResponse => {
                self.answered(device, entry.id, entry.body, Said::Again);
                Ok(())
            }
            Kind::GatewayRpc => self.gateway_rpc(entry, Said::Again),
            _ => Ok(()),
        };
        if let Err(error) = done {
            tracing::debug!(device = %entry.device, %error, "what was said before the start does not hold");
        }
    }

    fn provision(&self, entry: &Entry<'_>, now_ms: i64) -> Result<(), Unanswered> {
        // Whoever speaks no JSON speaks ThingsBoard's Protobuf messages, and is answered so.
        let body = match Provision::decode(entry.body) {
            Err(DecodeError::NotJson { .. }) if let Ok(request) = protobuf_provision(entry.body) => {
                protobuf_provisioned(&self.provisioned(&request, now_ms))
            }
            request => self.answer_to(request, now_ms).into_bytes(),
        };
        if let Some(target) = self.sessions.asker(entry.device, Subscription::Provision) {
            self.out(now_ms).send(target, Downlink::Provision, body);
        }
        Ok(())
    }

    /// The answer to a request to be provisioned, in JSON.
    pub fn answer_to(&self, request: Result<Provision, DecodeError>, now_ms: i64) -> String {
        match request.map(|request| self.provisioned(&request, now_ms)) {
            Ok(Provisioned::Success(credentials)) => provision_success(&credentials),
            Ok(Provisioned::NotFound) => provision_not_found(),
            Ok(Provisioned::Failure) => provision_failure(),
            Err(error) => {
                tracing::info!(%error, "a request to be provisioned was not understood");
                provision_failure()
            }
        }
    }

    fn provisioned(&self, request: &Provision, now_ms: i64) -> Provisioned {
        match self.platform.entities().provision(request, now_ms) {
            Ok(ProvisionOutcome::Success { credentials, is_new }) => {
                if is_new {
                    self.tell_of_provisioning("ENTITY_CREATED", credentials.device_id, now_ms);
                }
                self.tell_of_provisioning("PROVISION_SUCCESS", credentials.device_id, now_ms);
                Provisioned::Success(credentials)
            }
            Ok(ProvisionOutcome::NotFound) => Provisioned::NotFound,
            Ok(ProvisionOutcome::Failure(known)) => {
                if let Some(device) = known {
                    self.tell_of_provisioning("PROVISION_FAILURE", device, now_ms);
                }
                Provisioned::Failure
            }
            Err(error) => {
                tracing::warn!(%error, "a device cannot be provisioned");
                Provisioned::Failure
            }
        }
    }

    /// Along the chain of the device; the data is the device.
    fn tell_of_provisioning(&self, kind: &'static str, device: DeviceId, now_ms: i64) {
        let found: Result<Option<Device>, EntityError> = self.platform.entities().find(device.0);
        let Ok(Some(device)) = found else { return };
        let news = News {
            kind,
            entity: EntityId::new(EntityType::Device, device.id.unwrap_or_default().0),
            tenant: device.tenant_id,
            metadata: Vec::new(),
            data: serde_json::to_value(&device).unwrap_or_default(),
        };
        self.platform.tell(news, now_ms, &mut self.out(now_ms));
    }

    /// What chains said by themselves is stored as if it was said here. `false`: it is not on the disk yet.
    pub fn mark(&self, at: Position) -> Result<bool, IngestError> {
        let now_ms = unix_ms();
        let mut out = self.out(now_ms);
        let ingested = self.platform.ingest(&[], at, now_ms, &mut out)?;
        Ok(ingested.is_written)
    }

    /// A user changed attributes of any entity. `false`: that cannot be read.
    pub fn change_attributes(&self, entry: &Entry<'_>, at: Position) -> Result<bool, IngestError> {
        let Some((entity, scope)) = entry.attributes_of() else {
            self.cannot_be_read(entry, "it names no entity and scope");
            return Ok(false);
        };
        let (values, keys);
        let change = if entry.kind == Kind::DeleteAttributes {
            keys = match serde_json::from_slice::<Vec<String>>(entry.body) {
                Ok(keys) => keys,
                Err(error) => {
                    self.cannot_be_read(entry, &error.to_string());
                    return Ok(false);
                }
            };
            AttributesChange::Delete(&keys)
        } else {
            values = match attributes(entry.body, &Limits::of_people()) {
                Ok(values) => values,
                Err(error) => {
                    self.cannot_be_read(entry, &error.to_string());
                    return Ok(false);
                }
            };
            AttributesChange::Save(&values)
        };
        let mut out = self.out(entry.received_ms);
        let when = (at, entry.received_ms);
        self.platform
            .change_attributes(entity, (scope, change), when, unix_ms(), &mut out)
            .map(|()| true)
    }

    /// It was acknowledged, and should have been refused in place of that.
    fn cannot_be_read(&self, entry: &Entry<'_>, problem: &str) {
        Counters::add(&self.counters.refused_messages, 1);
        tracing::warn!(entity = %entry.device, problem, "what a user saved cannot be read in the log: it has no effect");
    }

    /// Telemetry of any entity, past the chains. `false`: it cannot be read.
    pub fn save(&self, entry: &Entry<'_>, at: Position) -> Result<bool, IngestError> {
        let kind = usize::try_from(entry.id)
            .ok()
            .and_then(|index| EntityType::ALL.get(index));
        let (ttl_s, body) = match (entry.kind, entry.body.split_first_chunk()) {
            (Kind::SaveWithTtl, Some((ttl_s, body))) => (u32::from_le_bytes(*ttl_s), body),
            _ => (0, entry.body),
        };
        let limits = Limits {
            casts_texts: entry.kind != Kind::SaveTexts,
            ..self.options.platform.limits
        };
        let telemetry = Telemetry::decode(body, entry.received_ms, &limits);
        match (kind, telemetry) {
            (Some(kind), Ok(telemetry)) => {
                let entity = EntityId::new(*kind, entry.device);
                let when = (at, entry.received_ms);
                let mut out = self.out(entry.received_ms);
                self.platform
                    .save_telemetry(entity, &telemetry, ttl_s, when, &mut out)
                    .map(|()| true)
            }
            (None, _) => {
                self.cannot_be_read(entry, "it names no entity");
                Ok(false)
            }
            (_, Err(error)) => {
                self.cannot_be_read(entry, &error.to_string());
                Ok(false)
            }
        }
    }
}
