//! Output of the platform. Subscribers get it at once; devices get it after the platform call, in order per device.

use platform::alarm_rules::AlarmTransition;
use platform::chain::{DebugEvent, ExternalCall, NodeError, NodeFailure, RpcCall};
use platform::decode::{
    DeviceSubscription, Downlink, KeyValue, TopicForm, attribute_update, gateway_attribute_update,
    protobuf_attribute_update, protobuf_gateway_attribute_update, protobuf_rpc_response,
};
use platform::ids::{DeviceId, EntityId, EntityType, RuleChainId, TenantId, Uuid};
use platform::model::{Alarm, Attribute, AttributeScope};
use platform::{KeyKind, PlatformOutlet, RefusedKeys};
use serde_json::Value as Json;
use tokio::sync::oneshot;

use crate::calls::{DeviceRpc, Persistence, RpcAnswer, RpcCaller, RpcError};
use crate::downlinks::DownlinkMessage;
use crate::hub::Hub;
use crate::limit_reports::ReportedLimit;
use crate::sessions::{DeliveryPath, DownlinkKind, SessionTarget};
use crate::updates::Update;

/// Longest text of a log node. Devices determine its length.
const LOGGED_BYTES_MAX: usize = 1024;

/// Collects messages to devices during a platform call, and sends them when it is dropped.
pub struct DeviceOutlet<'h> {
    hub: &'h Hub,
    by_shard: Vec<(u16, Vec<DownlinkMessage>)>,
    called: Vec<DeviceId>,
    /// Persistent requests that are not stored yet.
    unstored_calls: Vec<(DeviceId, i32)>,
    now_ms: i64,
}

impl<'h> DeviceOutlet<'h> {
    pub fn new(hub: &'h Hub, now_ms: i64) -> DeviceOutlet<'h> {
        DeviceOutlet {
            hub,
            by_shard: Vec::new(),
            called: Vec::new(),
            unstored_calls: Vec::new(),
            now_ms,
        }
    }

    fn send(&mut self, target: SessionTarget, downlink: Downlink, payload: impl Into<Vec<u8>>) {
        let message = DownlinkMessage::new(&target, &downlink, payload);
        match self.by_shard.iter_mut().find(|(shard, _)| *shard == target.shard) {
            Some((_, list)) => list.push(message),
            None => self.by_shard.push((target.shard, vec![message])),
        }
    }

    /// Takes the waiting caller of a request that passed through the chain, unless an earlier node took it. Also
    /// returns the id for the stored request.
    fn caller(&self, device: DeviceId, call: &RpcCall) -> (Uuid, Option<oneshot::Sender<RpcAnswer>>) {
        let request = call.request_uuid.as_deref().and_then(Uuid::parse);
        let entities = self.hub.platform().entities();
        let known = request.and_then(|request| {
            let tenant = entities.directory().tenant_of(device).unwrap_or_default();
            let caller = self.hub.callers().take(request, tenant)?;
            Some((request, Some(caller)))
        });
        known.unwrap_or_else(|| (entities.new_id(self.now_ms), None))
    }

    fn flush(&mut self) {
        if !self.unstored_calls.is_empty() {
            self.hub.rpcs().store_begun(&std::mem::take(&mut self.unstored_calls));
        }
        for (shard, list) in std::mem::take(&mut self.by_shard) {
            self.hub.downlinks().send(shard, list);
        }
        for device in std::mem::take(&mut self.called) {
            self.hub.rpcs().deliver(device);
        }
    }
}

impl Drop for DeviceOutlet<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl PlatformOutlet for DeviceOutlet<'_> {
    fn telemetry(&mut self, entity: EntityId, ts_ms: i64, values: &[KeyValue<'_>]) {
        self.hub.watchers().notify(&[entity.id], || Update::Telemetry {
            entity,
            ts_ms,
            values: values
                .iter()
                .map(|value| (Box::from(&*value.key), value.value.clone()))
                .collect(),
        });
    }

    fn attributes(&mut self, entity: EntityId, scope: AttributeScope, updated: &[Attribute], deleted: &[String]) {
        self.hub.watchers().notify(&[entity.id], || Update::Attributes {
            entity,
            scope,
            updated: updated.to_vec(),
            deleted: deleted.to_vec(),
        });
    }

    fn attributes_to_device(&mut self, device: DeviceId, updated: &[Attribute], deleted: &[String]) {
        let deleted: Vec<&str> = deleted.iter().map(String::as_str).collect();
        let pollers = self.hub.pollers();
        pollers.send_to_all(device, DownlinkKind::Attributes, || attribute_update(updated, &deleted));
        for way in self.hub.sessions().delivery_paths(device, DownlinkKind::Attributes) {
            match way {
                DeliveryPath::Direct(target, form) => {
                    let body = match self.hub.transports().protobuf_of(device.0, form) {
                        Some(_) => protobuf_attribute_update(updated, &deleted),
                        None => attribute_update(updated, &deleted).into_bytes(),
                    };
                    self.send(target, Downlink::Attributes(form), body);
                }
                DeliveryPath::Gateway(target, name) => {
                    let body = match self.hub.transports().protobuf_of_gateway(target.session) {
                        Some(_) => protobuf_gateway_attribute_update(&name, updated, &deleted),
                        None => gateway_attribute_update(&name, updated, &deleted).into_bytes(),
                    };
                    self.send(target, Downlink::GatewayAttributes, body);
                }
            }
        }
    }

    fn gateway_device_connected(&mut self, gateway: DeviceId, device: DeviceId, name: &str) {
        self.hub.sessions().add_gateway_device(gateway.0, name, device);
        self.called.push(device);
    }

    fn alarm(&mut self, action: AlarmTransition, alarm: &Alarm) {
        let watched = [alarm.originator.id, alarm.tenant_id.0];
        self.hub.watchers().notify(&watched, || Update::Alarm {
            action,
            alarm: Box::new(alarm.clone()),
        });
    }

    fn call_device(&mut self, device: DeviceId, number: u64, call: &RpcCall) -> Result<(), NodeError> {
        let persistence = call.is_persistent.then(|| Persistence {
            retries: call.retries,
            additional_info: call.additional_info.as_deref().map_or(Json::Null, json_or_text),
        });
        let outward = DeviceRpc {
            method: call.method.clone(),
            params: call.params.clone(),
            is_one_way: call.is_one_way,
            expires_ms: call.expires_ms,
            persistence,
        };
        let (rpc, outside) = self.caller(device, call);
        let begun = self.hub.rpcs().add(
            device,
            outward,
            (rpc, RpcCaller::RuleChain(number, outside)),
            self.now_ms,
        );
        let id = begun.map_err(|(error, caller)| {
            caller.refuse(error);
            NodeError::new(error.name())
        })?;
        if call.is_persistent {
            self.unstored_calls.push((device, id));
        }
        self.called.push(device);
        Ok(())
    }

    fn refuse_call(&mut self, device: DeviceId, call: &RpcCall) {
        let (_, outside) = self.caller(device, call);
        RpcCaller::RuleChain(0, outside).refuse(RpcError::TooMany);
    }

    fn reply_to_device(&mut self, device: DeviceId, request_id: i32, body: &Json) -> Result<(), NodeError> {
        if self
            .hub
            .device_requests()
            .answer(device, request_id, || body.to_string())
        {
            return Ok(());
        }
        let forms = [
            TopicForm::Long,
            TopicForm::Short(platform::decode::PayloadFormat::Profile),
            TopicForm::Short(platform::decode::PayloadFormat::Json),
            TopicForm::Short(platform::decode::PayloadFormat::Protobuf),
        ];
        let reachable = forms.into_iter().find_map(|form| {
            let target = self
                .hub
                .sessions()
                .target(device.0, DeviceSubscription::RpcResponse(form))?;
            Some((target, form))
        });
        let reachable = reachable.or_else(|| {
            let target = self
                .hub
                .sessions()
                .requester(device.0, DeviceSubscription::RpcResponse(TopicForm::Long))?;
            Some((target, TopicForm::Long))
        });
        let (target, form) = reachable.ok_or_else(|| NodeError::new(RpcError::NoActiveConnection.name()))?;
        let downlink = Downlink::RpcResponse { form, id: request_id };
        let body = body.to_string();
        let payload = match self.hub.transports().protobuf_of(device.0, form) {
            Some(_) => protobuf_rpc_response(request_id, &body),
            None => body.into_bytes(),
        };
        self.send(target, downlink, payload);
        Ok(())
    }

    fn send(&mut self, tenant: TenantId, number: u64, outbound: ExternalCall) -> Result<(), NodeError> {
        self.hub
            .external_requests()
            .take(tenant, number, outbound)
            .map_err(NodeError::new)
    }

    fn log(&mut self, chain: RuleChainId, node: &str, text: &str) {
        let end = text.floor_char_boundary(LOGGED_BYTES_MAX);
        let cut = text.len() - end;
        let text = &text[..end];
        match cut {
            0 => tracing::info!(chain = %chain.0, node, text, "rule chain log node"),
            _ => tracing::info!(chain = %chain.0, node, text, cut_bytes = cut, "rule chain log node"),
        }
    }

    fn debug(&mut self, tenant: TenantId, event: &DebugEvent<'_>) {
        self.hub.events().record_debug(tenant, event, self.now_ms);
    }

    fn failed(&mut self, entity: EntityId, node: &str, problem: &str) {
        tracing::debug!(entity = %entity.id, node, problem, "a rule chain failed to process a message");
        let tenant = match entity.kind {
            EntityType::Device => {
                let directory = self.hub.platform().entities().directory();
                directory.tenant_of(DeviceId(entity.id))
            }
            // Messages that nodes create by themselves.
            EntityType::Tenant => Some(TenantId(entity.id)),
            _ => None,
        };
        if let Some(tenant) = tenant {
            let method = if node.is_empty() { "message" } else { node };
            self.hub
                .events()
                .record_failure((tenant, entity), method, problem, self.now_ms);
        }
    }

    fn keys_refused(&mut self, refused: &RefusedKeys) {
        let RefusedKeys { entity, key, limit, .. } = refused;
        let reports = self.hub.events().limit_reports();
        if !reports.is_due(ReportedLimit::Keys, entity.id, self.now_ms) {
            return;
        }
        let what = match refused.kind {
            KeyKind::Telemetry => "telemetry",
            KeyKind::Attribute => "attributes",
        };
        let (name, tenant) = {
            let directory = self.hub.platform().entities().directory();
            let device = directory.device(DeviceId(entity.id));
            device.map_or_else(Default::default, |device| (device.name.to_string(), device.tenant))
        };
        tracing::warn!(
            kind = entity.kind.name(),
            id = %entity.id,
            name,
            key,
            what,
            limit,
            "new key refused: too many keys (platform.max_keys); further ones of it are not logged for an hour"
        );
        let problem = format!(
            "the {what} key '{key}' was not stored: the {} has {limit} keys (platform.max_keys)",
            entity.kind.name().to_lowercase()
        );
        self.hub
            .events()
            .record_failure((tenant, *entity), what, &problem, self.now_ms);
    }

    fn exceeded(&mut self, tenant: TenantId, at: &NodeFailure) {
        let reports = self.hub.events().limit_reports();
        if reports.is_due(ReportedLimit::MessageWork, tenant.0, self.now_ms) {
            tracing::warn!(
                tenant = %tenant.0,
                rule_chain = %at.chain,
                node = at.node,
                reason = at.error,
                "message exceeded a limit of rule chains, further ones of this tenant are not logged for an hour"
            );
        }
    }
}

fn json_or_text(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|_| Json::from(text))
}
