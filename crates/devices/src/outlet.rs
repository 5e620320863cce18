//! What the platform tells: subscribers at once, devices when the call to the platform is over, in order per device.

use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use broker::ShardId;
use mqtt::QoS;
use net::CallError as NetError;
use platform::Outlet;
use platform::alarm_rules::Action;
use platform::chain::{NodeError, RpcCall};
use platform::decode::{
    Downlink, Form, KeyValue, Subscription, attribute_update, gateway_attribute_update, gateway_rpc_request,
    rpc_request,
};
use platform::ids::{DeviceId, EntityId, RuleChainId, Uuid};
use platform::model::{Alarm, Attribute, Scope};
use serde_json::Value as Json;

use crate::calls::{Call, CallError, Caller};
use crate::hub::{Hub, client_id};
use crate::sessions::{Target, Wanted, Way};
use crate::stats::Counters;
use crate::updates::Update;

/// How often a shard that takes nothing is tried again, and how long that waits each time.
const TRIES: usize = 20;
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// A message for the session of a device.
pub struct Downward {
    pub session: Uuid,
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
}

/// Gathers what devices are told, and sends it when it is dropped: after the call to the platform that it was lent to.
pub struct Out<'h> {
    hub: &'h Hub,
    by_shard: Vec<(u16, Vec<Downward>)>,
    now_ms: i64,
}

impl<'h> Out<'h> {
    pub fn new(hub: &'h Hub, now_ms: i64) -> Out<'h> {
        Out {
            hub,
            by_shard: Vec::new(),
            now_ms,
        }
    }

    pub fn send(&mut self, target: Target, downlink: Downlink, payload: String) {
        let downward = Downward {
            session: target.session,
            topic: downlink.topic(),
            payload: payload.into_bytes(),
            qos: target.qos,
        };
        match self.by_shard.iter_mut().find(|(shard, _)| *shard == target.shard) {
            Some((_, list)) => list.push(downward),
            None => self.by_shard.push((target.shard, vec![downward])),
        }
    }

    /// Calls a device. The number that its answer has.
    pub fn call(&mut self, device: DeviceId, call: &Call, caller: Caller) -> Result<i32, CallError> {
        let way = self.hub.sessions.ways(device, Wanted::RpcRequest).into_iter().next();
        let expires_ms = self.now_ms.saturating_add(call.timeout.as_millis() as i64);
        let id = self.hub.calls.begin(device, caller, expires_ms)?;
        let Some(way) = way else {
            let body = http_call(id, call);
            if self.hub.pollers.tell_one(device, Wanted::RpcRequest, body) {
                return Ok(id);
            }
            self.hub.calls.give_up(device, id);
            return Err(CallError::NoActiveConnection);
        };
        match way {
            Way::Direct(target, form) => {
                let body = rpc_request(&call.method, &call.params);
                self.send(target, Downlink::RpcRequest { form, id }, body);
            }
            Way::Gateway(target, name) => {
                let body = gateway_rpc_request(&name, i64::from(id), &call.method, &call.params);
                self.send(target, Downlink::GatewayRpc, body);
            }
        }
        Ok(id)
    }

    fn flush(&mut self) {
        for (shard, list) in std::mem::take(&mut self.by_shard) {
            self.hub.send_down(shard, list);
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
                    let body = attribute_update(updated, &deleted);
                    self.send(target, Downlink::Attributes(form), body);
                }
                Way::Gateway(target, name) => {
                    let body = gateway_attribute_update(&name, updated, &deleted);
                    self.send(target, Downlink::GatewayAttributes, body);
                }
            }
        }
    }

    fn alarm(&mut self, action: Action, alarm: &Alarm) {
        let watched = [alarm.originator.id, alarm.tenant_id.0];
        self.hub.watchers.tell(&watched, || Update::Alarm {
            action,
            alarm: Box::new(alarm.clone()),
        });
    }

    fn call_device(&mut self, device: DeviceId, number: u64, call: &RpcCall) -> Result<(), NodeError> {
        let left_ms = call.expires_ms.saturating_sub(self.now_ms).max(0);
        let outward = Call {
            method: call.method.clone(),
            params: call.params.clone(),
            is_one_way: call.is_one_way,
            timeout: Duration::from_millis(left_ms as u64),
        };
        let caller = match call.is_one_way {
            true => Caller::None,
            false => Caller::Chain(number),
        };
        let called = self.call(device, &outward, caller);
        called.map_err(|error| NodeError::new(error.name()))?;
        if call.is_one_way {
            // The chain goes on when the platform can be called again.
            self.hub
                .lock_answered()
                .push((number, Json::Object(serde_json::Map::new())));
        }
        Ok(())
    }

    fn reply_to_device(&mut self, device: DeviceId, request_id: i32, body: &Json) -> Result<(), NodeError> {
        if let Some(Caller::Outside(sender)) = self.hub.asked.answered(device, request_id) {
            // Whoever asked may have gone.
            let _ = sender.send(Ok(body.to_string()));
            return Ok(());
        }
        let forms = [
            Form::Long,
            Form::Short(platform::decode::Format::Profile),
            Form::Short(platform::decode::Format::Json),
        ];
        let reachable = forms.into_iter().find_map(|form| {
            let target = self.hub.sessions.target(device.0, Subscription::RpcResponse(form))?;
            Some((target, form))
        });
        let (target, form) = reachable.ok_or_else(|| NodeError::new(CallError::NoActiveConnection.name()))?;
        let downlink = Downlink::RpcResponse { form, id: request_id };
        self.send(target, downlink, body.to_string());
        Ok(())
    }

    fn log(&mut self, chain: RuleChainId, node: &str, text: &str) {
        tracing::info!(chain = %chain.0, node, text, "a rule chain says");
    }

    fn failed(&mut self, entity: EntityId, node: &str, problem: &str) {
        Counters::add(&self.hub.counters.failed_rules, 1);
        tracing::debug!(entity = %entity.id, node, problem, "a message of a device failed");
    }
}

/// As a device that waits over HTTP gets a call.
fn http_call(id: i32, call: &Call) -> String {
    let method = Json::from(call.method.as_str());
    format!("{{\"id\":{id},\"method\":{method},\"params\":{}}}", call.params)
}

impl Hub {
    /// To the shard that has the sessions. A shard that takes nothing for a while loses what it does not take.
    fn send_down(&self, shard: u16, list: Vec<Downward>) {
        let count = list.len() as u64;
        let Some(net) = self.net.get() else {
            return Counters::add(&self.counters.dropped_downlinks, count);
        };
        let list = std::sync::Arc::new(std::sync::Mutex::new(list));
        for _ in 0..TRIES {
            let letters = std::sync::Arc::clone(&list);
            let counters = std::sync::Arc::clone(&self.counters);
            let asked = net.ask(ShardId(shard), move |shard, now| {
                let list = std::mem::take(&mut *letters.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
                for down in list {
                    let client_id = client_id(down.session);
                    let counter = match shard.send_to_device(now, &client_id, &down.topic, &down.payload, down.qos) {
                        true => &counters.sent_downlinks,
                        false => &counters.dropped_downlinks,
                    };
                    counter.fetch_add(1, Relaxed);
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
