//! Calls on their way: begun, sent when the device is there, acknowledged, answered, given up; and what is kept of that.
//!
//! One at a time does it ([`Hub::delivering`]), so that a device gets calls in their order, and what is kept of a call is how far
//! it is in the end.

use platform::News;
use platform::decode::{Downlink, gateway_rpc_request, protobuf_gateway_rpc_request, rpc_request};
use platform::entities::Said;
use platform::ids::{DeviceId, RpcId, TenantId, Uuid};
use platform::model::{Rpc, RpcRequestBody, RpcStatus};
use serde_json::{Value as Json, json};

use crate::calls::{Answer, Call, CallError, Caller, Due, Keeping, Over, Waiting};
use crate::hub::{Hub, lock, unix_ms};
use crate::outlet::Downward;
use crate::sessions::{Wanted, Way};
use crate::stats::Counters;

/// How long a device has to acknowledge a call before it is sent again.
const ACK_MS: i64 = 10_000;
/// What became of calls and rule chains are not told yet; more are counted as failed.
const CHANGED_MAX: usize = 100_000;

/// Whether the device has a call, as its shard says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    pub device: DeviceId,
    pub id: i32,
    pub is_delivered: bool,
}

impl Hub {
    /// Waits for the device from now on, or for [`Hub::keep_begun`] if it is to be kept; [`Hub::deliver_calls`] sends it. The number of the call.
    pub fn begin_call(
        &self,
        device: DeviceId,
        call: Call,
        (rpc, caller): (Uuid, Caller),
        now_ms: i64,
    ) -> Result<i32, (CallError, Caller)> {
        if call.expires_ms <= now_ms && call.keeping.is_none() {
            return Err((CallError::Timeout, caller));
        }
        let tenant = self.tenant_of(device);
        let id = match self.calls.next_id(device, tenant, &call) {
            Ok(id) => id,
            Err(error) => return Err((error, caller)),
        };
        let kept = call
            .keeping
            .as_ref()
            .map(|keeping| Box::new(self.new_rpc((RpcId(rpc), device, id), &call, keeping, now_ms)));
        self.calls.insert(device, id, Waiting::new(tenant, call, caller, kept));
        Ok(id)
    }

    /// Calls that have begun and are to be kept: they wait for their devices when they are on the disk, which is waited for here.
    pub fn keep_begun(&self, begun: &[(DeviceId, i32)]) {
        let _turn = lock(&self.delivering);
        let begun = begun.iter().filter_map(|(device, id)| {
            let rpc = self.calls.begun(*device, *id)?;
            Some(((*device, *id), rpc))
        });
        let (begun, rpcs): (Vec<_>, Vec<_>) = begun.unzip();
        if rpcs.is_empty() {
            return;
        }
        let entities = self.platform.entities();
        let has_room = rpcs.iter().try_for_each(|rpc| entities.forget_old_rpcs(rpc.device_id));
        if let Err(error) = has_room.and_then(|()| entities.save_rpcs(&rpcs)) {
            tracing::warn!(count = rpcs.len(), %error, "calls to devices cannot be kept");
            for (device, id) in begun {
                if let Some(waiting) = self.calls.remove(device, id) {
                    self.tell_caller(waiting.caller, Err(CallError::NotKept));
                }
            }
            return;
        }
        for ((device, id), rpc) in begun.into_iter().zip(&rpcs) {
            let caller = self.calls.is_kept(device, id);
            if rpc.status == RpcStatus::Expired {
                self.calls.remove(device, id);
            }
            let told = json!({"rpcId": rpc.id.unwrap_or_default().to_string()});
            self.tell_caller(caller, Ok(Some(told.to_string())));
        }
        self.tell_chains(rpcs);
    }

    pub fn tenant_of(&self, device: DeviceId) -> TenantId {
        let directory = self.platform.entities().directory();
        directory.device(device).map(|entry| entry.tenant).unwrap_or_default()
    }

    fn new_rpc(
        &self,
        (rpc, device, number): (RpcId, DeviceId, i32),
        call: &Call,
        keeping: &Keeping,
        now_ms: i64,
    ) -> Rpc {
        let mut rpc = Rpc {
            id: Some(rpc),
            created_time: now_ms,
            tenant_id: self.tenant_of(device),
            device_id: device,
            expiration_time: call.expires_ms,
            additional_info: keeping.additional_info.clone(),
            ..Rpc::default()
        };
        rpc.set_request(&RpcRequestBody {
            number,
            is_one_way: call.is_one_way,
            method: call.method.clone(),
            params: call.params.clone(),
            retries: keeping.retries,
        });
        if call.expires_ms <= now_ms {
            rpc.status = RpcStatus::Expired;
        }
        rpc
    }

    /// Those that the process before had not brought to an end.
    pub fn restore_calls(&self) -> Result<(), platform::entities::EntityError> {
        for rpc in self.platform.entities().live_rpcs()? {
            let Some(body) = rpc.request_body() else { continue };
            let call = Call {
                method: body.method,
                params: body.params,
                is_one_way: body.is_one_way,
                expires_ms: rpc.expiration_time,
                keeping: Some(Keeping {
                    retries: body.retries,
                    ..Keeping::default()
                }),
            };
            let (device, is_delivered) = (rpc.device_id, rpc.status == RpcStatus::Delivered);
            let waiting = Waiting::new(rpc.tenant_id, call, Caller::None, Some(Box::new(rpc)));
            self.calls.insert(device, body.number, waiting.restored(is_delivered));
        }
        Ok(())
    }

    /// The device, or the gateway that speaks for it, is there: it gets what waits for it.
    pub fn deliver_calls(&self, device: DeviceId) {
        if self.calls.count() == 0 {
            return;
        }
        let _turn = lock(&self.delivering);
        let way = self.sessions.ways(device, Wanted::RpcRequest).into_iter().next();
        let changed = match way {
            Some(way) => self.deliver_by(device, &way),
            None => self.deliver_to_pollers(device),
        };
        self.keep(changed);
    }

    fn deliver_by(&self, device: DeviceId, way: &Way) -> Vec<Rpc> {
        let (Way::Direct(target, _) | Way::Gateway(target, _)) = way;
        let over = Over {
            session: target.session,
            connection: target.connection,
        };
        let sending = self.calls.take_unsent(device, over, unix_ms().saturating_add(ACK_MS));
        if sending.is_empty() {
            return Vec::new();
        }
        let mut changed = Vec::new();
        let mut list = Vec::with_capacity(sending.len());
        for sent in sending {
            let (downlink, payload) = match way {
                Way::Direct(_, form) => (
                    Downlink::RpcRequest {
                        form: *form,
                        id: sent.id,
                    },
                    self.protobuf_of(device.0, *form)
                        .and_then(|transport| transport.rpc_request(sent.id, &sent.method, &sent.params))
                        .unwrap_or_else(|| rpc_request(&sent.method, &sent.params).into_bytes()),
                ),
                Way::Gateway(_, name) => (
                    Downlink::GatewayRpc,
                    match self.protobuf_of_gateway(target.session) {
                        Some(_) => protobuf_gateway_rpc_request(name, sent.id, &sent.method, &sent.params),
                        None => gateway_rpc_request(name, i64::from(sent.id), &sent.method, &sent.params).into_bytes(),
                    },
                ),
            };
            list.push(Downward {
                session: target.session,
                topic: downlink.topic(),
                payload,
                qos: target.qos,
                call: Some((device, sent.id)),
            });
            match sent.kept {
                Some(rpc) => changed.push(with_status(rpc, RpcStatus::Sent)),
                None => self.tell_one_way_caller(device, sent.id),
            }
        }
        self.send_down(target.shard, list);
        changed
    }

    /// Whoever called without wanting an answer is told that it is on its way.
    fn tell_one_way_caller(&self, device: DeviceId, id: i32) {
        if let Some(waiting) = self.calls.remove_one_way(device, id) {
            self.tell_caller(waiting.caller, Ok(None));
        }
    }

    /// Whoever waits over HTTP gets one call.
    fn deliver_to_pollers(&self, device: DeviceId) -> Vec<Rpc> {
        let mut changed = Vec::new();
        while let Some(sent) = self.calls.first_unsent(device) {
            let method = Json::from(sent.method);
            let body = format!("{{\"id\":{},\"method\":{method},\"params\":{}}}", sent.id, sent.params);
            if !self.pollers.tell_one(device, Wanted::RpcRequest, body) {
                break;
            }
            changed.extend(self.reported(Report {
                device,
                id: sent.id,
                is_delivered: true,
            }));
        }
        changed
    }

    /// Which call it was that a device has acknowledged, if any that is waited for. On a shard's thread.
    pub fn call_acked(&self, session: Uuid, topic: &str, payload: &[u8]) -> Option<Report> {
        if self.calls.count() == 0 {
            return None;
        }
        let (device, id) = match Downlink::rpc_number(topic) {
            Some(id) => (DeviceId(session), id),
            None if topic == Downlink::GatewayRpc.topic() => {
                let (name, id) = match self.protobuf_of_gateway(session) {
                    Some(transport) => transport.gateway_called(payload)?,
                    None => gateway_called(payload)?,
                };
                (self.sessions.behind(session, &name)?, id)
            }
            None => return None,
        };
        Some(Report {
            device,
            id,
            is_delivered: true,
        })
    }

    /// What shards say of calls that they were given.
    pub fn take_reports(&self) {
        let reports = std::mem::take(&mut *lock(&self.reports));
        if !reports.is_empty() {
            let _turn = lock(&self.delivering);
            let changed = reports.into_iter().filter_map(|report| self.reported(report));
            self.keep(changed.collect());
        }
    }

    fn reported(&self, report: Report) -> Option<Rpc> {
        let (ended, kept) = self.calls.reported(report.device, report.id, report.is_delivered);
        if let Some(ended) = ended {
            self.tell_caller(ended.caller, Ok(None));
            return Some(with_status(*ended.kept?, RpcStatus::Delivered));
        }
        let status = match report.is_delivered {
            true => RpcStatus::Delivered,
            false => RpcStatus::Queued,
        };
        Some(with_status(kept?, status))
    }

    /// The answer of a device to a call; one that was said before the start is none to a call of now.
    pub fn answered(&self, device: DeviceId, id: i32, body: &[u8], said: Said) {
        let text = String::from_utf8_lossy(body);
        let _turn = lock(&self.delivering);
        let removed = match said {
            Said::Now => self.calls.remove(device, id),
            Said::Again => self.calls.remove_restored(device, id),
        };
        let Some(waiting) = removed else { return };
        if let Some(rpc) = waiting.kept {
            let mut rpc = with_status(*rpc, RpcStatus::Successful);
            rpc.response = serde_json::from_str(&text).unwrap_or_else(|_| json!({"error": text}));
            self.keep(vec![rpc]);
        }
        self.tell_caller(waiting.caller, Ok(Some(text.into_owned())));
    }

    /// Calls whose time is over, and those that are sent again.
    pub fn expire_calls(&self, now_ms: i64) {
        if self.calls.count() == 0 {
            return;
        }
        let _turn = lock(&self.delivering);
        let mut changed = Vec::new();
        let mut again = Vec::new();
        for due in self.calls.take_due(now_ms, |over| self.sessions.is_open(over)) {
            match due {
                Due::Expired(waiting) => {
                    let error = match waiting.was_sent() {
                        true => CallError::Timeout,
                        false => CallError::NoActiveConnection,
                    };
                    self.tell_caller(waiting.caller, Err(error));
                    changed.extend(waiting.kept.map(|rpc| with_status(*rpc, RpcStatus::Expired)));
                }
                Due::Requeued(rpc) => changed.push(with_status(rpc, RpcStatus::Queued)),
                Due::Unacknowledged(device, rpc) => {
                    changed.push(with_status(rpc, RpcStatus::Timeout));
                    again.push(device);
                }
                Due::Failed(rpc, retries) => changed.push(failed(rpc, retries)),
            }
        }
        self.keep(changed);
        drop(_turn);
        again.into_iter().for_each(|device| self.deliver_calls(device));
    }

    /// Calls of devices that rule chains have not answered.
    pub fn expire_asked(&self) {
        if self.asked.count() == 0 {
            return;
        }
        for due in self.asked.take_due(unix_ms(), |_| true) {
            if let Due::Expired(waiting) = due {
                self.tell_caller(waiting.caller, Err(CallError::Timeout));
            }
        }
    }

    /// It is not kept any more, and not sent.
    pub fn delete_call(&self, rpc: &Rpc) -> Result<(), platform::entities::EntityError> {
        let _turn = lock(&self.delivering);
        let id = rpc.id.unwrap_or_default();
        self.calls.remove_kept(rpc.device_id, id);
        self.platform.entities().delete_rpc(id)?;
        self.tell_chains(vec![with_status(rpc.clone(), RpcStatus::Deleted)]);
        Ok(())
    }

    /// Nobody is there any more who could answer; what was kept has gone with the device.
    pub fn device_deleted(&self, device: DeviceId) {
        let _turn = lock(&self.delivering);
        for waiting in self.calls.remove_all(device) {
            self.tell_caller(waiting.caller, Err(CallError::NoActiveConnection));
        }
    }

    pub fn tell_caller(&self, caller: Caller, answer: Answer) {
        match caller {
            // Whoever asked may have gone.
            Caller::Outside(sender) => _ = sender.send(answer),
            Caller::Chain(number, outside) => {
                if let Some(sender) = outside {
                    _ = sender.send(answer.clone());
                }
                self.lock_answered().push((number, chain_answer(answer)));
            }
            Caller::None => {}
        }
    }

    /// How far calls are, for a start after this process, and for rule chains.
    fn keep(&self, changed: Vec<Rpc>) {
        if changed.is_empty() {
            return;
        }
        if let Err(error) = self.platform.entities().save_rpcs(&changed) {
            // They go on in memory; a restart would begin with what was kept before.
            tracing::warn!(%error, "how far calls to devices are cannot be kept");
        }
        self.tell_chains(changed);
    }

    /// Each of them is a message to the chain of its device, when the platform can be called.
    fn tell_chains(&self, changed: Vec<Rpc>) {
        let mut waiting = lock(&self.changed_calls);
        let room = CHANGED_MAX.saturating_sub(waiting.len());
        Counters::add(&self.counters.failed_rules, changed.len().saturating_sub(room) as u64);
        waiting.extend(changed.into_iter().take(room));
    }

    /// Chains are told what became of calls that are kept.
    pub fn tell_of_calls(&self) {
        let changed = std::mem::take(&mut *lock(&self.changed_calls));
        let now_ms = unix_ms();
        for rpc in changed {
            let news = News {
                kind: rpc.status.message_type(),
                entity: rpc.device_id.entity(),
                tenant: rpc.tenant_id,
                metadata: Vec::new(),
                data: serde_json::to_value(&rpc).unwrap_or_default(),
            };
            self.platform.tell(news, now_ms, &mut self.out(now_ms));
        }
    }
}

/// Which device was called by a gateway's message, and the number of the call.
fn gateway_called(payload: &[u8]) -> Option<(String, i32)> {
    let sent: Json = serde_json::from_slice(payload).ok()?;
    let id = i32::try_from(sent["data"]["id"].as_i64()?).ok()?;
    Some((sent["device"].as_str()?.to_owned(), id))
}

/// As rule chains are answered: a text that is no JSON is a text.
fn chain_answer(answer: Answer) -> Result<Json, &'static str> {
    match answer {
        Ok(None) => Ok(json!({})),
        Ok(Some(text)) => Ok(serde_json::from_str(&text).unwrap_or(Json::String(text))),
        Err(error) => Err(error.name()),
    }
}

fn with_status(rpc: Rpc, status: RpcStatus) -> Rpc {
    Rpc { status, ..rpc }
}

fn failed(rpc: Rpc, retries: u32) -> Rpc {
    let error =
        format!("There was a Timeout and all retry attempts have been exhausted. Retry attempts set: {retries}");
    Rpc {
        status: RpcStatus::Failed,
        response: json!({"error": error}),
        ..rpc
    }
}
