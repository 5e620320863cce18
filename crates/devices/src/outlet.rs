//! What the platform tells: subscribers at once, devices when the call to the platform is over, in order per device.

use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use broker::ShardId;
use mqtt::QoS;
use net::CallError as NetError;
use platform::Outlet;
use platform::alarm_rules::Action;
use platform::chain::{DebugEvent, NodeError, Outbound, RpcCall};
use platform::decode::{
    Downlink, Form, KeyValue, Subscription, attribute_update, gateway_attribute_update, protobuf_attribute_update,
    protobuf_gateway_attribute_update, protobuf_rpc_response,
};
use platform::ids::{DeviceId, EntityId, EntityType, RuleChainId, TenantId, Uuid};
use platform::model::{Alarm, Attribute, Scope};
use serde_json::Value as Json;
use tokio::sync::oneshot;

use crate::calls::{Answer, Call, CallError, Caller, Keeping};
use crate::delivery::Report;
use crate::hub::{Hub, client_id, lock};
use crate::sessions::{Target, Wanted, Way};
use crate::stats::Counters;
use crate::updates::Update;

/// How often a shard that takes nothing is tried again, and how long that waits each time.
const TRIES: usize = 20;
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// Of what a log node says: devices decide how long it is.
const LOGGED_BYTES_MAX: usize = 1024;

/// A message for the session of a device.
pub struct Downward {
    pub session: Uuid,
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    /// Whose delivery is reported.
    pub call: Option<(DeviceId, i32)>,
}

/// Gathers what devices are told, and sends it when it is dropped: after the call to the platform that it was lent to.
pub struct Out<'h> {
    hub: &'h Hub,
    by_shard: Vec<(u16, Vec<Downward>)>,
    called: Vec<DeviceId>,
    /// Calls that are to be kept.
    begun: Vec<(DeviceId, i32)>,
    now_ms: i64,
}

impl<'h> Out<'h> {
    pub fn new(hub: &'h Hub, now_ms: i64) -> Out<'h> {
        Out {
            hub,
            by_shard: Vec::new(),
            called: Vec::new(),
            begun: Vec::new(),
            now_ms,
        }
    }

    pub fn send(&mut self, target: Target, downlink: Downlink, payload: impl Into<Vec<u8>>) {
        let downward = Downward {
            session: target.session,
            topic: downlink.topic(),
            payload: payload.into(),
            qos: target.qos,
            call: None,
        };
        match self.by_shard.iter_mut().find(|(shard, _)| *shard == target.shard) {
            Some((_, list)) => list.push(downward),
            None => self.by_shard.push((target.shard, vec![downward])),
        }
    }

    /// Whoever made the call that has come along the chain, if no node has called with it before; and the identifier of what is kept of it.
    fn caller(&self, device: DeviceId, call: &RpcCall) -> (Uuid, Option<oneshot::Sender<Answer>>) {
        let request = call.request_uuid.as_deref().and_then(Uuid::parse);
        let known = request.and_then(|request| {
            let caller = self.hub.callers.take(request, self.hub.tenant_of(device))?;
            Some((request, Some(caller)))
        });
        known.unwrap_or_else(|| (self.hub.platform.entities().new_id(self.now_ms), None))
    }

    fn flush(&mut self) {
        if !self.begun.is_empty() {
            self.hub.keep_begun(&std::mem::take(&mut self.begun));
        }
        for (shard, list) in std::mem::take(&mut self.by_shard) {
            self.hub.send_down(shard, list);
        }
        for device in std::mem::take(&mut self.called) {
            self.hub.deliver_calls(device);
        }
    }
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl Outlet for Out<'_> {
    fn telemetry(&mut self, entity: EntityId, ts_ms: i64, values: &[KeyValue<'_>]) {
        self.hub.watchers.tell(&[entity.id], || Update::Telemetry {
            entity,
            ts_ms,
            values: values
                .iter()
                .map(|value| (Box::from(&*value.key), value.value.clone()))
                .collect(),
        });
    }

    fn attributes(&mut self, entity: EntityId, scope: Scope, updated: &[Attribute], deleted: &[String]) {
        self.hub.watchers.tell(&[entity.id], || Update::Attributes {
            entity,
            scope,
            updated: updated.to_vec(),
            deleted: deleted.to_vec(),
        });
    }

    fn attributes_to_device(&mut self, device: DeviceId, updated: &[Attribute], deleted: &[String]) {
        let deleted: Vec<&str> = deleted.iter().map(String::as_str).collect();
        let pollers = &self.hub.pollers;
        pollers.tell_all(device, Wanted::Attributes, || attribute_update(updated, &deleted));
        for way in self.hub.sessions.ways(device, Wanted::Attributes) {
            match way {
                Way::Direct(target, form) => {
                    let body = match self.hub.protobuf_of(device.0, form) {
                        Some(_) => protobuf_attribute_update(updated, &deleted),
                        None => attribute_update(updated, &deleted).into_bytes(),
                    };
                    self.send(target, Downlink::Attributes(form), body);
                }
                Way::Gateway(target, name) => {
                    let body = match self.hub.protobuf_of_gateway(target.session) {
                        Some(_) => protobuf_gateway_attribute_update(&name, updated, &deleted),
                        None => gateway_attribute_update(&name, updated, &deleted).into_bytes(),
                    };
                    self.send(target, Downlink::GatewayAttributes, body);
                }
            }
        }
    }

    fn came_behind(&mut self, gateway: DeviceId, device: DeviceId, name: &str) {
        self.hub.sessions.put_behind(gateway.0, name, device);
        self.called.push(device);
    }

    fn alarm(&mut self, action: Action, alarm: &Alarm) {
        let watched = [alarm.originator.id, alarm.tenant_id.0];
        self.hub.watchers.tell(&watched, || Update::Alarm {
            action,
            alarm: Box::new(alarm.clone()),
        });
    }

    fn call_device(&mut self, device: DeviceId, number: u64, call: &RpcCall) -> Result<(), NodeError> {
        let keeping = call.is_persistent.then(|| Keeping {
            retries: call.retries,
            additional_info: call.additional_info.as_deref().map_or(Json::Null, json_or_text),
        });
        let outward = Call {
            method: call.method.clone(),
            params: call.params.clone(),
            is_one_way: call.is_one_way,
            expires_ms: call.expires_ms,
            keeping,
        };
        let (rpc, outside) = self.caller(device, call);
        let begun = self
            .hub
            .begin_call(device, outward, (rpc, Caller::Chain(number, outside)), self.now_ms);
        let id = begun.map_err(|(error, caller)| {
            caller.refuse(error);
            NodeError::new(error.name())
        })?;
        if call.is_persistent {
            self.begun.push((device, id));
        }
        self.called.push(device);
        Ok(())
    }

    fn refuse_call(&mut self, device: DeviceId, call: &RpcCall) {
        let (_, outside) = self.caller(device, call);
        Caller::Chain(0, outside).refuse(CallError::TooMany);
    }

    fn reply_to_device(&mut self, device: DeviceId, request_id: i32, body: &Json) -> Result<(), NodeError> {
        if let Some(asked) = self.hub.asked.remove(device, request_id) {
            if let Caller::Outside(sender) = asked.caller {
                // Whoever asked may have gone.
                let _ = sender.send(Ok(Some(body.to_string())));
            }
            return Ok(());
        }
        let forms = [
            Form::Long,
            Form::Short(platform::decode::Format::Profile),
            Form::Short(platform::decode::Format::Json),
            Form::Short(platform::decode::Format::Protobuf),
        ];
        let reachable = forms.into_iter().find_map(|form| {
            let target = self.hub.sessions.target(device.0, Subscription::RpcResponse(form))?;
            Some((target, form))
        });
        let reachable = reachable.or_else(|| {
            let target = self
                .hub
                .sessions
                .asker(device.0, Subscription::RpcResponse(Form::Long))?;
            Some((target, Form::Long))
        });
        let (target, form) = reachable.ok_or_else(|| NodeError::new(CallError::NoActiveConnection.name()))?;
        let downlink = Downlink::RpcResponse { form, id: request_id };
        let body = body.to_string();
        let payload = match self.hub.protobuf_of(device.0, form) {
            Some(_) => protobuf_rpc_response(request_id, &body),
            None => body.into_bytes(),
        };
        self.send(target, downlink, payload);
        Ok(())
    }

    fn send(&mut self, tenant: TenantId, number: u64, outbound: Outbound) -> Result<(), NodeError> {
        self.hub.outward.take(tenant, number, outbound).map_err(NodeError::new)
    }

    fn log(&mut self, chain: RuleChainId, node: &str, text: &str) {
        let end = text.floor_char_boundary(LOGGED_BYTES_MAX);
        let cut = text.len() - end;
        let text = &text[..end];
        match cut {
            0 => tracing::info!(chain = %chain.0, node, text, "a rule chain says"),
            _ => tracing::info!(chain = %chain.0, node, text, cut_bytes = cut, "a rule chain says"),
        }
    }

    fn debug(&mut self, tenant: TenantId, event: &DebugEvent<'_>) {
        let id = self.hub.platform.entities().new_id(self.now_ms);
        self.hub.events.put(id, self.now_ms, tenant, event);
    }

    fn failed(&mut self, entity: EntityId, node: &str, problem: &str) {
        Counters::add(&self.hub.counters.failed_rules, 1);
        tracing::debug!(entity = %entity.id, node, problem, "a message of a device failed");
        let entities = self.hub.platform.entities();
        let tenant = match entity.kind {
            EntityType::Device => entities
                .directory()
                .device(DeviceId(entity.id))
                .map(|device| device.tenant),
            // What nodes say by themselves.
            EntityType::Tenant => Some(TenantId(entity.id)),
            _ => None,
        };
        if let Some(tenant) = tenant {
            let id = entities.new_id(self.now_ms);
            let method = if node.is_empty() { "message" } else { node };
            self.hub
                .lifecycle
                .failed(id, self.now_ms, (tenant, entity), method, problem);
        }
    }
}

fn json_or_text(text: &str) -> Json {
    serde_json::from_str(text).unwrap_or_else(|_| Json::from(text))
}

impl Hub {
    /// To the shard that has the sessions. A shard that takes nothing for a while loses what it does not take.
    pub fn send_down(&self, shard: u16, list: Vec<Downward>) {
        let count = list.len() as u64;
        let Some(net) = self.net.get() else {
            return Counters::add(&self.counters.dropped_downlinks, count);
        };
        let list = std::sync::Arc::new(std::sync::Mutex::new(list));
        for _ in 0..TRIES {
            let letters = std::sync::Arc::clone(&list);
            let counters = std::sync::Arc::clone(&self.counters);
            let reports = std::sync::Arc::clone(&self.reports);
            let asked = net.ask(ShardId(shard), move |shard, now| {
                let list = std::mem::take(&mut *letters.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
                for down in list {
                    let client_id = client_id(down.session);
                    let is_sent = shard.send_to_device(now, &client_id, &down.topic, &down.payload, down.qos);
                    let counter = match is_sent {
                        true => &counters.sent_downlinks,
                        false => &counters.dropped_downlinks,
                    };
                    counter.fetch_add(1, Relaxed);
                    // At QoS 1 it is delivered when the device says so.
                    if let Some((device, id)) = down.call
                        && (!is_sent || down.qos == QoS::AtMostOnce)
                    {
                        lock(&reports).push(Report {
                            device,
                            id,
                            is_delivered: is_sent,
                        });
                    }
                }
            });
            match asked {
                Ok(_) => return,
                Err(NetError::Stopped) => break,
                Err(_) => thread::sleep(TRY_AGAIN),
            }
        }
        Counters::add(&self.counters.dropped_downlinks, count);
    }
}
