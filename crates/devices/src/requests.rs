//! Device requests that are answered directly: attributes, RPC responses, claims, provisioning.

use platform::decode::{
    AttributesRequest, Claim, DecodeLimits, DeviceSubscription, Downlink, PayloadDecodeError, Provision, Provisioned,
    RpcRequest, Telemetry, attribute_response, attributes, protobuf_attribute_response, protobuf_provision,
    protobuf_provisioned, protobuf_rpc_response, provision_failure, provision_not_found, provision_success,
};
use platform::entities::{EntityError, ProvisionOutcome, ReceptionMode};
use platform::ids::{DeviceId, EntityId, EntityType};
use platform::model::{Attribute, AttributeScope, Device};
use platform::{AttributesChange, ChainEvent, IngestError, RateLimit, TransportRates};
use timeseries::LogPosition;

use crate::entry::{EntryKind, IngestEntry};
use crate::hub::{Hub, unix_ms};
use crate::stats::DeviceCounters;

/// RPC method of devices that the transport itself answers.
const LIMITS_METHOD: &str = "getSessionLimits";

/// Longest payload and most in-flight messages, as reported to devices.
const PAYLOAD_BYTES_MAX: u32 = 65_536;
const INFLIGHT_MAX: u32 = 100;

/// Client and shared attributes.
type BothScopes = (Vec<Attribute>, Vec<Attribute>);

pub fn is_limits_request(body: &[u8]) -> bool {
    let name = LIMITS_METHOD.as_bytes();
    body.len() < 256
        && body.windows(name.len()).any(|part| part == name)
        && RpcRequest::decode(body).is_ok_and(|request| request.method == LIMITS_METHOD)
}

/// Why a request was not answered.
pub enum RequestError {
    Decode(PayloadDecodeError),
    Entity(EntityError),
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RequestError::Decode(error) => error.fmt(f),
            RequestError::Entity(error) => error.fmt(f),
        }
    }
}

impl From<PayloadDecodeError> for RequestError {
    fn from(error: PayloadDecodeError) -> RequestError {
        RequestError::Decode(error)
    }
}

impl From<EntityError> for RequestError {
    fn from(error: EntityError) -> RequestError {
        RequestError::Entity(error)
    }
}

fn json_provisioned(outcome: &Provisioned) -> String {
    match outcome {
        Provisioned::Success(credentials) => provision_success(credentials),
        Provisioned::NotFound => provision_not_found(),
        Provisioned::Failure => provision_failure(),
    }
}

impl Hub {
    pub fn answer(&self, entry: &IngestEntry<'_>, now_ms: i64) {
        let device = DeviceId(entry.device);
        let done = match entry.kind {
            EntryKind::RpcResponse => {
                self.handle_response(device, entry.id, entry.body, ReceptionMode::Live);
                Ok(())
            }
            EntryKind::RpcRequest => {
                self.send_limits(entry);
                Ok(())
            }
            EntryKind::AttributesRequest => self.attributes_request(entry),
            EntryKind::Claim => self.claim(device, entry.body, (ReceptionMode::Live, entry.received_ms)),
            EntryKind::Provision => self.provision(entry, now_ms),
            EntryKind::GatewayAttributesRequest => self.gateway_attributes_request(entry),
            EntryKind::GatewayRpc => self.gateway_rpc(entry, ReceptionMode::Live),
            EntryKind::FirmwareChunk | EntryKind::SoftwareChunk => {
                self.ask_for_chunk(entry);
                Ok(())
            }
            EntryKind::GatewayClaim => self.gateway_claim(entry, ReceptionMode::Live),
            _ => Ok(()),
        };
        if entry.kind != EntryKind::Provision {
            self.record_activity_now(entry.device, entry.received_ms);
        }
        match done {
            Ok(()) => {}
            Err(RequestError::Decode(error)) => self.refused(entry.device, &error.to_string()),
            Err(RequestError::Entity(error)) => {
                DeviceCounters::add(&self.counters.refused_messages, 1);
                tracing::info!(device = %entry.device, %error, "device request failed");
            }
        }
    }

    fn send_limits(&self, entry: &IngestEntry<'_>) {
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
        if let Some(waiting) = self.device_requests.remove(DeviceId(entry.device), entry.id) {
            // The request came over HTTP.
            self.answer_caller(waiting.caller, Ok(Some(body)));
        } else if let Some(target) = self
            .sessions
            .requester(entry.device, DeviceSubscription::RpcResponse(entry.form))
        {
            let payload = match self.protobuf_of(entry.device, entry.form) {
                Some(_) => protobuf_rpc_response(entry.id, &body),
                None => body.into_bytes(),
            };
            self.outlet(entry.received_ms).send(target, downlink, payload);
        }
    }

    /// The rate limits of a device, as reported to it.
    fn rates_of(&self, device: DeviceId) -> TransportRates {
        let directory = self.platform.entities().directory();
        let tenant = directory.device(device).map(|device| device.tenant);
        let limits = tenant.and_then(|tenant| directory.limits(tenant));
        limits.map(|limits| limits.device.clone()).unwrap_or_default()
    }

    fn attributes_request(&self, entry: &IngestEntry<'_>) -> Result<(), RequestError> {
        let request = AttributesRequest::decode(entry.body)?;
        let subscription = DeviceSubscription::AttributesResponse(entry.form);
        let Some(target) = self.sessions.requester(entry.device, subscription) else {
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
        self.outlet(entry.received_ms).send(target, downlink, payload);
        Ok(())
    }

    /// Returns attributes in the device API's JSON format.
    pub fn attributes_of(&self, device: DeviceId, request: &AttributesRequest) -> Result<String, EntityError> {
        let (client, shared) = self.attributes_for(device, request)?;
        Ok(attribute_response(&client, &shared))
    }

    /// Returns the requested client and shared attributes.
    fn attributes_for(&self, device: DeviceId, request: &AttributesRequest) -> Result<BothScopes, EntityError> {
        let of_scope = |scope: AttributeScope, keys: &Option<Vec<String>>| -> Result<Vec<Attribute>, EntityError> {
            match keys {
                None if request.requests_all() => self.platform.attributes(device.entity(), scope, None),
                None => Ok(Vec::new()),
                Some(keys) => {
                    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
                    self.platform.attributes(device.entity(), scope, Some(&names))
                }
            }
        };
        let client = of_scope(AttributeScope::ClientScope, &request.client_keys)?;
        let shared = of_scope(AttributeScope::SharedScope, &request.shared_keys)?;
        Ok((client, shared))
    }

    pub fn claim(&self, device: DeviceId, body: &[u8], origin: (ReceptionMode, i64)) -> Result<(), RequestError> {
        let claim = Claim::decode(body)?;
        self.platform
            .entities()
            .allow_claim(device, &claim, origin, unix_ms())?;
        Ok(())
    }

    /// Handles a claim or a response to a persistent RPC request that was logged by the previous process. That
    /// process may not have handled it. No client waits for the result.
    pub fn replay_request(&self, entry: &IngestEntry<'_>) {
        let device = DeviceId(entry.device);
        let done = match entry.kind {
            EntryKind::Claim => self.claim(device, entry.body, (ReceptionMode::Replay, entry.received_ms)),
            EntryKind::GatewayClaim => self.gateway_claim(entry, ReceptionMode::Replay),
            EntryKind::RpcResponse => {
                self.handle_response(device, entry.id, entry.body, ReceptionMode::Replay);
                Ok(())
            }
            EntryKind::GatewayRpc => self.gateway_rpc(entry, ReceptionMode::Replay),
            _ => Ok(()),
        };
        if let Err(error) = done {
            tracing::debug!(device = %entry.device, %error, "replayed device request had no effect");
        }
    }

    fn provision(&self, entry: &IngestEntry<'_>, now_ms: i64) -> Result<(), RequestError> {
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
                match self.provisioners.admit(entry.device, &secret) {
                    true => {
                        let (outcome, is_known) = self.provisioned(&request, now_ms);
                        if let Some(is_known) = is_known {
                            self.provisioners.record(entry.device, &secret, is_known);
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
        if let Some(target) = self.sessions.requester(entry.device, DeviceSubscription::Provision) {
            self.outlet(now_ms).send(target, Downlink::Provision, body);
        }
        Ok(())
    }

    /// Returns the response to a provisioning request, as JSON, and whether its key and secret are known. `None` if
    /// that could not be checked.
    pub fn answer_to(&self, request: &Provision, now_ms: i64) -> (String, Option<bool>) {
        let (outcome, is_known) = self.provisioned(request, now_ms);
        (json_provisioned(&outcome), is_known)
    }

    fn provisioned(&self, request: &Provision, now_ms: i64) -> (Provisioned, Option<bool>) {
        match self.platform.entities().provision(request, now_ms) {
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
        let found: Result<Option<Device>, EntityError> = self.platform.entities().find(device.0);
        let Ok(Some(device)) = found else { return };
        let event = ChainEvent {
            kind,
            entity: EntityId::new(EntityType::Device, device.id.unwrap_or_default().0),
            tenant: device.tenant_id,
            metadata: Vec::new(),
            data: serde_json::to_value(&device).unwrap_or_default(),
        };
        self.platform.send_event(event, now_ms, &mut self.outlet(now_ms));
    }

    /// Stores points that chains created without an incoming message at this log position. Returns false if they are
    /// not on disk yet.
    pub fn store_points_at(&self, at: LogPosition) -> Result<bool, IngestError> {
        let now_ms = unix_ms();
        let mut out = self.outlet(now_ms);
        let ingested = self.platform.ingest(&[], at, now_ms, &mut out)?;
        Ok(ingested.is_written)
    }

    /// Applies a user's attribute change of any entity. Returns false if the record cannot be decoded.
    pub fn change_attributes(&self, entry: &IngestEntry<'_>, at: LogPosition) -> Result<bool, IngestError> {
        let Some((entity, scope)) = entry.attributes_of() else {
            self.report_undecodable(entry, "entity or scope missing");
            return Ok(false);
        };
        let (values, keys);
        let change = if entry.kind == EntryKind::DeleteAttributes {
            keys = match serde_json::from_slice::<Vec<String>>(entry.body) {
                Ok(keys) => keys,
                Err(error) => {
                    self.report_undecodable(entry, &error.to_string());
                    return Ok(false);
                }
            };
            AttributesChange::Delete(&keys)
        } else {
            values = match attributes(entry.body, &DecodeLimits::of_users()) {
                Ok(values) => values,
                Err(error) => {
                    self.report_undecodable(entry, &error.to_string());
                    return Ok(false);
                }
            };
            AttributesChange::Save(&values)
        };
        let mut out = self.outlet(entry.received_ms);
        let when = (at, entry.received_ms);
        self.platform
            .change_attributes(entity, (scope, change), when, unix_ms(), &mut out)
            .map(|()| true)
    }

    /// Counts and logs a user's change that was acknowledged but cannot be decoded. It should have been rejected
    /// before.
    fn report_undecodable(&self, entry: &IngestEntry<'_>, problem: &str) {
        DeviceCounters::add(&self.counters.refused_messages, 1);
        tracing::warn!(entity = %entry.device, problem, "a change of a user in the device log cannot be decoded and has no effect");
    }

    /// Stores telemetry of any entity without running a rule chain. Returns false if it cannot be decoded.
    pub fn save(&self, entry: &IngestEntry<'_>, at: LogPosition) -> Result<bool, IngestError> {
        let kind = usize::try_from(entry.id)
            .ok()
            .and_then(|index| EntityType::ALL.get(index));
        let (ttl_s, body) = match (entry.kind, entry.body.split_first_chunk()) {
            (EntryKind::SaveWithTtl, Some((ttl_s, body))) => (u32::from_le_bytes(*ttl_s), body),
            _ => (0, entry.body),
        };
        let limits = DecodeLimits {
            casts_texts: entry.kind != EntryKind::SaveTexts,
            ..self.options.platform.limits
        };
        let telemetry = Telemetry::decode(body, entry.received_ms, &limits);
        match (kind, telemetry) {
            (Some(kind), Ok(telemetry)) => {
                let entity = EntityId::new(*kind, entry.device);
                let when = (at, entry.received_ms);
                let mut out = self.outlet(entry.received_ms);
                self.platform
                    .save_telemetry(entity, &telemetry, ttl_s, when, &mut out)
                    .map(|()| true)
            }
            (None, _) => {
                self.report_undecodable(entry, "entity missing");
                Ok(false)
            }
            (_, Err(error)) => {
                self.report_undecodable(entry, &error.to_string());
                Ok(false)
            }
        }
    }
}
