//! Delivery of RPC requests to devices: begin, send, acknowledge, respond, expire; and the stored state of persistent
//! requests.
//!
//! [`RpcDelivery::delivering`] serializes this work. A device gets requests in order, and the stored state of a request
//! matches its final state.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use platform::decode::{Downlink, gateway_rpc_request, protobuf_gateway_rpc_request, rpc_request};
use platform::entities::{Entities, EntityError, ReceptionMode};
use platform::ids::{DeviceId, RpcId, TenantId, Uuid};
use platform::model::{Rpc, RpcRequestBody, RpcStatus};
use serde_json::{Value as Json, json};

use crate::calls::{
    ACK_MS, ChainAnswer, DeviceRpc, DeviceRpcs, OverdueRpc, PendingRpc, Persistence, RpcAnswer, RpcCaller, RpcError,
};
use crate::clock::unix_ms;
use crate::downlinks::{DeliveryReport, DownlinkMessage, Downlinks};
use crate::mutex::lock;
use crate::pollers::Pollers;
use crate::sessions::{DeliveryPath, DeviceSessions, DownlinkKind, SessionConnection};
use crate::transports::ProfileTransports;

/// Status changes that rule chains have not received yet. Changes beyond that are not sent to rule chains.
const CHANGED_MAX: usize = 100_000;

/// RPC requests to devices, from their begin to their answer.
pub struct RpcDelivery {
    entities: Arc<Entities>,
    sessions: Arc<DeviceSessions>,
    transports: Arc<ProfileTransports>,
    downlinks: Arc<Downlinks>,
    pollers: Arc<Pollers>,
    calls: DeviceRpcs,
    /// Held while requests are sent or their progress is stored.
    delivering: Mutex<()>,
    /// Status changes of persistent requests, for rule chains.
    changed: Mutex<Vec<Rpc>>,
    /// Sessions that recently subscribed to requests.
    new_sessions: Mutex<HashSet<Uuid, foldhash::fast::RandomState>>,
    /// Answers for waiting rule chains.
    chain_answers: Mutex<Vec<ChainAnswer>>,
}

impl RpcDelivery {
    pub fn new(
        entities: Arc<Entities>,
        sessions: Arc<DeviceSessions>,
        transports: Arc<ProfileTransports>,
        downlinks: Arc<Downlinks>,
        pollers: Arc<Pollers>,
    ) -> RpcDelivery {
        RpcDelivery {
            entities,
            sessions,
            transports,
            downlinks,
            pollers,
            calls: DeviceRpcs::default(),
            delivering: Mutex::default(),
            changed: Mutex::default(),
            new_sessions: Mutex::default(),
            chain_answers: Mutex::default(),
        }
    }

    /// Number of requests that wait.
    pub fn count(&self) -> usize {
        self.calls.count()
    }

    /// Adds a request and returns its number. A persistent one waits for [`RpcDelivery::store_begun`].
    /// [`RpcDelivery::deliver`] sends it.
    pub fn add(
        &self,
        device: DeviceId,
        call: DeviceRpc,
        (rpc, caller): (Uuid, RpcCaller),
        now_ms: i64,
    ) -> Result<i32, (RpcError, RpcCaller)> {
        if call.expires_ms <= now_ms && call.persistence.is_none() {
            return Err((RpcError::Timeout, caller));
        }
        let tenant = self.tenant_of(device);
        let id = match self.calls.next_id(device, tenant, &call) {
            Ok(id) => id,
            Err(error) => return Err((error, caller)),
        };
        let new_rpc = call
            .persistence
            .as_ref()
            .map(|persistence| Box::new(self.new_rpc((RpcId(rpc), device, id), &call, persistence, now_ms)));
        self.calls
            .insert(device, id, PendingRpc::new(tenant, call, caller, new_rpc, now_ms));
        Ok(id)
    }

    /// Stores persistent requests, which may be sent after that. Waits for the disk.
    pub fn store_begun(&self, begun: &[(DeviceId, i32)]) {
        let _turn = lock(&self.delivering);
        let begun = begun.iter().filter_map(|(device, id)| {
            let rpc = self.calls.unstored_rpc(*device, *id)?;
            Some(((*device, *id), rpc))
        });
        let (begun, rpcs): (Vec<_>, Vec<_>) = begun.unzip();
        if rpcs.is_empty() {
            return;
        }
        let has_capacity = rpcs
            .iter()
            .try_for_each(|rpc| self.entities.delete_old_rpcs(rpc.device_id));
        if let Err(error) = has_capacity.and_then(|()| self.entities.save_rpcs(&rpcs)) {
            tracing::warn!(count = rpcs.len(), %error, "storing RPC requests to devices failed");
            for (device, id) in begun {
                if let Some(waiting) = self.calls.remove(device, id) {
                    self.answer(waiting.caller, Err(RpcError::NotStored));
                }
            }
            return;
        }
        for ((device, id), rpc) in begun.into_iter().zip(&rpcs) {
            let caller = self.calls.mark_stored(device, id);
            if rpc.status == RpcStatus::Expired {
                self.calls.remove(device, id);
            }
            let response = json!({"rpcId": rpc.id.unwrap_or_default().to_string()});
            self.answer(caller, Ok(Some(response.to_string())));
        }
        self.queue_for_chains(rpcs);
    }

    fn tenant_of(&self, device: DeviceId) -> TenantId {
        self.entities.directory().tenant_of(device).unwrap_or_default()
    }

    fn new_rpc(
        &self,
        (rpc, device, number): (RpcId, DeviceId, i32),
        call: &DeviceRpc,
        persistence: &Persistence,
        now_ms: i64,
    ) -> Rpc {
        let mut rpc = Rpc {
            id: Some(rpc),
            created_time: now_ms,
            tenant_id: self.tenant_of(device),
            device_id: device,
            expiration_time: call.expires_ms,
            additional_info: persistence.additional_info.clone(),
            ..Rpc::default()
        };
        rpc.set_request(&RpcRequestBody {
            number,
            is_one_way: call.is_one_way,
            method: call.method.clone(),
            params: call.params.clone(),
            retries: persistence.retries,
        });
        if call.expires_ms <= now_ms {
            rpc.status = RpcStatus::Expired;
        }
        rpc
    }

    /// Loads the persistent requests that the previous process had not finished.
    pub fn restore(&self) -> Result<(), EntityError> {
        for rpc in self.entities.live_rpcs()? {
            let Some(body) = rpc.request_body() else { continue };
            let call = DeviceRpc {
                method: body.method,
                params: body.params,
                is_one_way: body.is_one_way,
                expires_ms: rpc.expiration_time,
                persistence: Some(Persistence {
                    retries: body.retries,
                    ..Persistence::default()
                }),
            };
            let (device, is_delivered) = (rpc.device_id, rpc.status == RpcStatus::Delivered);
            let (tenant, created_ms) = (rpc.tenant_id, rpc.created_time);
            let waiting = PendingRpc::new(tenant, call, RpcCaller::None, Some(Box::new(rpc)), created_ms);
            self.calls.insert(device, body.number, waiting.restored(is_delivered));
        }
        Ok(())
    }

    /// Records that a session subscribed to requests, or polls for one. Never waits.
    pub fn add_session(&self, session: Uuid) {
        if self.calls.count() > 0 {
            lock(&self.new_sessions).insert(session);
        }
    }

    /// Sends waiting requests to the sessions that [`RpcDelivery::add_session`] recorded, and to devices behind them.
    pub fn deliver_to_new_sessions(&self) {
        for session in std::mem::take(&mut *lock(&self.new_sessions)) {
            self.deliver(DeviceId(session));
            for device in self.sessions.gateway_devices(session) {
                self.deliver(device);
            }
        }
    }

    /// Sends waiting requests to a device, if it or its gateway is connected.
    pub fn deliver(&self, device: DeviceId) {
        if self.calls.count() == 0 {
            return;
        }
        let _turn = lock(&self.delivering);
        let way = self
            .sessions
            .delivery_paths(device, DownlinkKind::RpcRequest)
            .into_iter()
            .next();
        let changed = match way {
            Some(way) => self.deliver_over(device, &way),
            None => self.deliver_to_pollers(device),
        };
        self.store_changes(changed);
    }

    fn deliver_over(&self, device: DeviceId, way: &DeliveryPath) -> Vec<Rpc> {
        let (DeliveryPath::Direct(target, _) | DeliveryPath::Gateway(target, _)) = way;
        let over = SessionConnection {
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
                DeliveryPath::Direct(_, form) => (
                    Downlink::RpcRequest {
                        form: *form,
                        id: sent.id,
                    },
                    self.transports
                        .protobuf_of(device.0, *form)
                        .and_then(|transport| transport.rpc_request(sent.id, &sent.method, &sent.params))
                        .unwrap_or_else(|| rpc_request(&sent.method, &sent.params).into_bytes()),
                ),
                DeliveryPath::Gateway(_, name) => (
                    Downlink::GatewayRpc,
                    match self.transports.protobuf_of_gateway(target.session) {
                        Some(_) => protobuf_gateway_rpc_request(name, sent.id, &sent.method, &sent.params),
                        None => gateway_rpc_request(name, i64::from(sent.id), &sent.method, &sent.params).into_bytes(),
                    },
                ),
            };
            list.push(DownlinkMessage::new(target, &downlink, payload).of_call(device, sent.id));
            match sent.stored_rpc {
                Some(rpc) => changed.push(with_status(rpc, RpcStatus::Sent)),
                None => self.answer_one_way_caller(device, sent.id),
            }
        }
        self.downlinks.send(target.shard, list);
        changed
    }

    /// Answers the caller of a one-way request once it is sent.
    fn answer_one_way_caller(&self, device: DeviceId, id: i32) {
        if let Some(waiting) = self.calls.remove_one_way(device, id) {
            self.answer(waiting.caller, Ok(None));
        }
    }

    /// Sends requests to HTTP clients that poll for the device. Each gets one.
    fn deliver_to_pollers(&self, device: DeviceId) -> Vec<Rpc> {
        let mut changed = Vec::new();
        while let Some(sent) = self.calls.first_unsent(device) {
            let method = Json::from(sent.method);
            let body = format!("{{\"id\":{},\"method\":{method},\"params\":{}}}", sent.id, sent.params);
            if !self.pollers.send_to_one(device, DownlinkKind::RpcRequest, body) {
                break;
            }
            changed.extend(self.reported(DeliveryReport {
                device,
                id: sent.id,
                is_delivered: true,
            }));
        }
        changed
    }

    /// Records that a device acknowledged a message, if it is a request. Runs on a shard's thread.
    pub fn acknowledged(&self, session: Uuid, topic: &str, payload: &[u8]) {
        if let Some((device, id)) = self.request_of(session, topic, payload) {
            self.downlinks.report(DeliveryReport {
                device,
                id,
                is_delivered: true,
            });
        }
    }

    fn request_of(&self, session: Uuid, topic: &str, payload: &[u8]) -> Option<(DeviceId, i32)> {
        if self.calls.count() == 0 {
            return None;
        }
        if let Some(id) = Downlink::rpc_number(topic) {
            return Some((DeviceId(session), id));
        }
        if topic != Downlink::GatewayRpc.topic() {
            return None;
        }
        let (name, id) = match self.transports.protobuf_of_gateway(session) {
            Some(transport) => transport.gateway_called(payload)?,
            None => gateway_called(payload)?,
        };
        Some((self.sessions.gateway_device(session, &name)?, id))
    }

    /// Applies the shards' delivery reports.
    pub fn take_reports(&self) {
        let reports = self.downlinks.take_reports();
        if !reports.is_empty() {
            let _turn = lock(&self.delivering);
            let changed = reports.into_iter().filter_map(|report| self.reported(report));
            self.store_changes(changed.collect());
        }
    }

    fn reported(&self, report: DeliveryReport) -> Option<Rpc> {
        let (ended, stored_rpc) = self.calls.reported(report.device, report.id, report.is_delivered);
        if let Some(ended) = ended {
            self.answer(ended.caller, Ok(None));
            return Some(with_status(*ended.stored_rpc?, RpcStatus::Delivered));
        }
        let status = match report.is_delivered {
            true => RpcStatus::Delivered,
            false => RpcStatus::Queued,
        };
        Some(with_status(stored_rpc?, status))
    }

    /// Handles a device's response. A response replayed from the log matches only requests of the previous process.
    pub fn handle_response(&self, device: DeviceId, id: i32, body: &[u8], origin: ReceptionMode) {
        let text = String::from_utf8_lossy(body);
        let _turn = lock(&self.delivering);
        let removed = match origin {
            ReceptionMode::Live => self.calls.remove(device, id),
            ReceptionMode::Replay => self.calls.remove_restored(device, id),
        };
        let Some(waiting) = removed else { return };
        if let Some(rpc) = waiting.stored_rpc {
            let mut rpc = with_status(*rpc, RpcStatus::Successful);
            rpc.response = serde_json::from_str(&text).unwrap_or_else(|_| json!({"error": text}));
            self.store_changes(vec![rpc]);
        }
        self.answer(waiting.caller, Ok(Some(text.into_owned())));
    }

    /// Expires requests past their deadline, and sends unacknowledged ones again.
    pub fn expire(&self, now_ms: i64) {
        if self.calls.count() == 0 {
            return;
        }
        let _turn = lock(&self.delivering);
        let mut changed = Vec::new();
        let mut again = Vec::new();
        for due in self.calls.take_due(now_ms, |over| self.sessions.is_open(over)) {
            match due {
                OverdueRpc::Expired(waiting) => {
                    let error = match waiting.was_sent() {
                        true => RpcError::Timeout,
                        false => RpcError::NoActiveConnection,
                    };
                    self.answer(waiting.caller, Err(error));
                    changed.extend(waiting.stored_rpc.map(|rpc| with_status(*rpc, RpcStatus::Expired)));
                }
                OverdueRpc::Requeued(rpc) => changed.push(with_status(rpc, RpcStatus::Queued)),
                OverdueRpc::Unacknowledged(device, rpc) => {
                    changed.push(with_status(rpc, RpcStatus::Timeout));
                    again.push(device);
                }
                OverdueRpc::Failed(rpc, retries) => changed.push(failed(rpc, retries)),
            }
        }
        self.store_changes(changed);
        drop(_turn);
        again.into_iter().for_each(|device| self.deliver(device));
    }

    /// Deletes a persistent request, which is then not sent.
    pub fn delete(&self, rpc: &Rpc) -> Result<(), EntityError> {
        let _turn = lock(&self.delivering);
        let id = rpc.id.unwrap_or_default();
        self.calls.remove_persistent(rpc.device_id, id);
        self.entities.delete_rpc(id)?;
        self.queue_for_chains(vec![with_status(rpc.clone(), RpcStatus::Deleted)]);
        Ok(())
    }

    /// Fails the waiting requests of a deleted device. Their stored state was deleted with the device.
    pub fn device_deleted(&self, device: DeviceId) {
        let _turn = lock(&self.delivering);
        for waiting in self.calls.remove_all(device) {
            self.answer(waiting.caller, Err(RpcError::NoActiveConnection));
        }
    }

    fn answer(&self, caller: RpcCaller, answer: RpcAnswer) {
        if let Some(chain_answer) = caller.answer(answer) {
            lock(&self.chain_answers).push(chain_answer);
        }
    }

    /// Returns the answers for waiting rule chains since the last call.
    pub fn take_chain_answers(&self) -> Vec<ChainAnswer> {
        std::mem::take(&mut *lock(&self.chain_answers))
    }

    /// Stores status changes for the next start, and queues them for rule chains.
    fn store_changes(&self, changed: Vec<Rpc>) {
        if changed.is_empty() {
            return;
        }
        if let Err(error) = self.entities.save_rpcs(&changed) {
            // Delivery continues in memory. A restart would use the older stored state.
            tracing::warn!(%error, "storing the status of RPC requests failed");
        }
        self.queue_for_chains(changed);
    }

    /// Queues a message for each device's rule chain, sent when the platform can be called.
    fn queue_for_chains(&self, changed: Vec<Rpc>) {
        let mut waiting = lock(&self.changed);
        let capacity = CHANGED_MAX.saturating_sub(waiting.len());
        waiting.extend(changed.into_iter().take(capacity));
    }

    /// Returns the status changes of persistent requests since the last call, for the devices' rule chains.
    pub fn take_changed(&self) -> Vec<Rpc> {
        std::mem::take(&mut *lock(&self.changed))
    }
}

/// Decodes the device name and request number of a gateway RPC message.
fn gateway_called(payload: &[u8]) -> Option<(String, i32)> {
    let sent: Json = serde_json::from_slice(payload).ok()?;
    let id = i32::try_from(sent["data"]["id"].as_i64()?).ok()?;
    Some((sent["device"].as_str()?.to_owned(), id))
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
