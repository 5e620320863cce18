//! Device requests that are answered directly: attributes, RPC responses, claims, provisioning.

mod gateway;
mod provisioning;

use std::sync::Arc;

use platform::decode::{
    AttributesRequest, Claim, DeviceSubscription, Downlink, PayloadDecodeError, RpcRequest, attribute_response,
    protobuf_attribute_response, protobuf_rpc_response,
};
use platform::entities::{EntityError, ReceptionMode};
use platform::ids::{DeviceId, Uuid};
use platform::model::{Attribute, AttributeScope};
use platform::{RateLimit, TransportRates};

use crate::clock::unix_ms;
use crate::entry::{EntryKind, IngestEntry};
use crate::hub::Hub;
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

/// Answers requests, and reports messages that are rejected.
pub struct RequestHandler {
    hub: Arc<Hub>,
}

impl RequestHandler {
    pub fn new(hub: Arc<Hub>) -> RequestHandler {
        RequestHandler { hub }
    }

    pub fn answer(&self, entry: &IngestEntry<'_>, now_ms: i64) {
        let device = DeviceId(entry.device);
        let done = match entry.kind {
            EntryKind::RpcResponse => {
                let rpcs = self.hub.rpcs();
                rpcs.handle_response(device, entry.id, entry.body, ReceptionMode::Live);
                Ok(())
            }
            EntryKind::RpcRequest => {
                self.send_limits(entry);
                Ok(())
            }
            EntryKind::AttributesRequest => self.attributes_request(entry),
            EntryKind::Claim => self.claim(device, entry.body, (ReceptionMode::Live, entry.received_ms)),
            EntryKind::Provision => {
                self.provision(entry, now_ms);
                Ok(())
            }
            EntryKind::GatewayAttributesRequest => self.gateway_attributes_request(entry),
            EntryKind::GatewayRpc => self.gateway_rpc(entry, ReceptionMode::Live),
            EntryKind::FirmwareChunk | EntryKind::SoftwareChunk => {
                self.hub.packages().request_chunk(entry);
                Ok(())
            }
            EntryKind::GatewayClaim => self.gateway_claim(entry, ReceptionMode::Live),
            _ => Ok(()),
        };
        if entry.kind != EntryKind::Provision {
            self.hub.activity().record([(entry.device, entry.received_ms)]);
        }
        match done {
            Ok(()) => {}
            Err(RequestError::Decode(error)) => self.refused(entry.device, &error.to_string()),
            Err(RequestError::Entity(error)) => {
                DeviceCounters::add(&self.hub.counters().refused_messages, 1);
                tracing::info!(device = %entry.device, %error, "device request failed");
            }
        }
    }

    /// Counts a message that could not be decoded. Before MQTT 5 the connection is closed, unless the profile says
    /// otherwise.
    pub fn refused(&self, session: Uuid, problem: &str) {
        DeviceCounters::add(&self.hub.counters().refused_messages, 1);
        tracing::debug!(device = %session, problem, "device message rejected");
        let keeps_connection = {
            let directory = self.hub.platform().entities().directory();
            let device = directory.device(DeviceId(session));
            let profile = device.and_then(|device| directory.profile(device.profile));
            profile.is_some_and(|profile| profile.transport()["sendAckOnValidationException"] == true)
        };
        if !keeps_connection && !self.hub.sessions().is_v5(session) {
            self.hub.downlinks().close(session, "the message could not be decoded");
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
        let is_http = self
            .hub
            .device_requests()
            .answer(DeviceId(entry.device), entry.id, || body.clone());
        if !is_http {
            let payload = match self.hub.transports().protobuf_of(entry.device, entry.form) {
                Some(_) => protobuf_rpc_response(entry.id, &body),
                None => body.into_bytes(),
            };
            let subscription = DeviceSubscription::RpcResponse(entry.form);
            self.reply(entry.device, subscription, &downlink, payload);
        }
    }

    /// Sends the answer to the session that asked, if it is still connected.
    fn reply(&self, session: Uuid, subscription: DeviceSubscription, downlink: &Downlink, payload: Vec<u8>) {
        if let Some(target) = self.hub.sessions().requester(session, subscription) {
            self.hub.downlinks().send_to(&target, downlink, payload);
        }
    }

    /// The rate limits of a device, as reported to it.
    fn rates_of(&self, device: DeviceId) -> TransportRates {
        let directory = self.hub.platform().entities().directory();
        let limits = directory.tenant_of(device).and_then(|tenant| directory.limits(tenant));
        limits.map(|limits| limits.device.clone()).unwrap_or_default()
    }

    fn attributes_request(&self, entry: &IngestEntry<'_>) -> Result<(), RequestError> {
        let request = AttributesRequest::decode(entry.body)?;
        let subscription = DeviceSubscription::AttributesResponse(entry.form);
        let Some(target) = self.hub.sessions().requester(entry.device, subscription) else {
            return Ok(());
        };
        let (client, shared) = self.attributes_for(DeviceId(entry.device), &request)?;
        let payload = match self.hub.transports().protobuf_of(entry.device, entry.form) {
            Some(_) => protobuf_attribute_response(entry.id, &client, &shared),
            None => attribute_response(&client, &shared).into_bytes(),
        };
        let downlink = Downlink::AttributesResponse {
            form: entry.form,
            id: entry.id,
        };
        self.hub.downlinks().send_to(&target, &downlink, payload);
        Ok(())
    }

    /// Returns attributes in the device API's JSON format.
    pub fn attributes_of(&self, device: DeviceId, request: &AttributesRequest) -> Result<String, EntityError> {
        let (client, shared) = self.attributes_for(device, request)?;
        Ok(attribute_response(&client, &shared))
    }

    /// Returns the requested client and shared attributes.
    fn attributes_for(&self, device: DeviceId, request: &AttributesRequest) -> Result<BothScopes, EntityError> {
        let platform = self.hub.platform();
        let of_scope = |scope: AttributeScope, keys: &Option<Vec<String>>| -> Result<Vec<Attribute>, EntityError> {
            match keys {
                None if request.requests_all() => platform.attributes(device.entity(), scope, None),
                None => Ok(Vec::new()),
                Some(keys) => {
                    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
                    platform.attributes(device.entity(), scope, Some(&names))
                }
            }
        };
        let client = of_scope(AttributeScope::ClientScope, &request.client_keys)?;
        let shared = of_scope(AttributeScope::SharedScope, &request.shared_keys)?;
        Ok((client, shared))
    }

    pub fn claim(&self, device: DeviceId, body: &[u8], origin: (ReceptionMode, i64)) -> Result<(), RequestError> {
        let claim = Claim::decode(body)?;
        let entities = self.hub.platform().entities();
        entities.allow_claim(device, &claim, origin, unix_ms())?;
        Ok(())
    }

    /// Handles a claim or a response to a persistent RPC request that was logged by the previous process. That
    /// process may not have handled it. No client waits for the result.
    pub fn replay(&self, entry: &IngestEntry<'_>) {
        let device = DeviceId(entry.device);
        let done = match entry.kind {
            EntryKind::Claim => self.claim(device, entry.body, (ReceptionMode::Replay, entry.received_ms)),
            EntryKind::GatewayClaim => self.gateway_claim(entry, ReceptionMode::Replay),
            EntryKind::RpcResponse => {
                let rpcs = self.hub.rpcs();
                rpcs.handle_response(device, entry.id, entry.body, ReceptionMode::Replay);
                Ok(())
            }
            EntryKind::GatewayRpc => self.gateway_rpc(entry, ReceptionMode::Replay),
            _ => Ok(()),
        };
        if let Err(error) = done {
            tracing::debug!(device = %entry.device, %error, "replayed device request had no effect");
        }
    }
}
