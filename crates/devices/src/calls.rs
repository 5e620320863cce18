//! RPC requests to devices that wait to be sent, acknowledged or answered. Per device, in the order of creation.
//!
//! ```text
//! Begun (until a persistent request is stored)
//!   ▼
//! Queued ──► Sent ──► Delivered ──► answered
//!   ▲          │          └───────► (one way: finished)
//!   └──────────┘ connection closed, or not acknowledged in time
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use platform::chain::RPC_CALL;
use platform::ids::{DeviceId, RpcId, TenantId, Uuid};
use platform::model::Rpc;
use platform::{ChainEvent, TenantLoad, TenantShares};
use serde_json::{Value as Json, json};
use tokio::sync::oneshot;

use crate::mutex::lock;
use crate::sessions::SessionConnection;

/// Waiting requests over all devices. Tenants share this; requests beyond it are rejected.
pub(crate) const CALLS_MAX: TenantLoad = TenantLoad {
    count: 100_000,
    bytes: 256 << 20,
};
/// Waiting requests per device.
pub(crate) const CALLS_OF_DEVICE_MAX: usize = 1000;
/// Time in which a device must acknowledge a request before it is sent again.
pub(crate) const ACK_MS: i64 = 10_000;
/// A clock that is behind by more than this was set back. Several threads read the clock before they take the lock, so
/// their times may be slightly out of order.
const CLOCK_TOLERANCE_MS: i64 = 1000;
/// The time is read about once a second. If it is later by more than this, the clock was set forward, or the process
/// was stopped.
const CLOCK_FORWARD_MS: i64 = 60_000;
/// How often an unacknowledged request is sent again, unless the request sets a lower number.
pub const RETRIES_MAX: u32 = 5;

/// An RPC request to a device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceRpc {
    pub method: String,
    /// JSON.
    pub params: String,
    /// If set, the caller expects no response.
    pub is_one_way: bool,
    /// Deadline for delivery and response.
    pub expires_ms: i64,
    /// Set for a persistent request: it survives a restart, and its status can be queried.
    pub persistence: Option<Persistence>,
}

impl DeviceRpc {
    /// Makes the message for the device's rule chain. Parameters are a string in it, as in ThingsBoard.
    pub fn message(&self, request: Uuid, device: DeviceId, tenant: TenantId) -> ChainEvent {
        let mut metadata = vec![
            ("requestUUID", request.to_string()),
            ("expirationTime", self.expires_ms.to_string()),
            ("oneway", self.is_one_way.to_string()),
            ("persistent", self.persistence.is_some().to_string()),
        ];
        let persistence = self.persistence.as_ref();
        metadata.extend(persistence.and_then(|persistence| Some(("retries", persistence.retries?.to_string()))));
        let info = persistence.map(|persistence| &persistence.additional_info);
        let info = info.filter(|info| !info.is_null()).map(Json::to_string);
        ChainEvent {
            kind: RPC_CALL,
            entity: device.entity(),
            tenant,
            metadata,
            data: json!({"method": self.method, "params": self.params, "additionalInfo": info}),
        }
    }

    /// Size in memory while it waits. A persistent request holds its texts twice.
    fn weight(&self) -> usize {
        let texts = self.method.len() + self.params.len();
        let persistent = self.persistence.as_ref().map_or(0, |persistence| {
            texts + 3 * persistence.additional_info.to_string().len() + 512
        });
        texts + persistent + 256
    }
}

/// Options of a persistent request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Persistence {
    pub retries: Option<u32>,
    pub additional_info: Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RpcError {
    /// The device is not connected, or has not subscribed to RPC requests.
    NoActiveConnection,
    Timeout,
    /// No node of the rule chain sent the request to the device.
    NotSent,
    /// Too many requests wait.
    TooMany,
    /// The entity database did not store the request.
    NotStored,
    /// The server is stopping.
    Stopped,
}

impl RpcError {
    /// ThingsBoard's name of the error.
    pub fn name(self) -> &'static str {
        match self {
            RpcError::NoActiveConnection => "NO_ACTIVE_CONNECTION",
            RpcError::Timeout | RpcError::NotSent => "TIMEOUT",
            RpcError::TooMany => "RATE_LIMIT",
            RpcError::NotStored | RpcError::Stopped => "INTERNAL",
        }
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RpcError::NoActiveConnection => "the device is not connected, or has not subscribed to RPC requests",
            RpcError::Timeout => "the device has not answered in time",
            RpcError::NotSent => {
                "no node of the device's rule chain sent the request in time: route RPC_CALL_FROM_SERVER_TO_DEVICE messages \
                 from a \"message type switch\" node by relation \"RPC Request to Device\" to a \"rpc call request\" node"
            }
            RpcError::TooMany => "too many RPC requests wait for responses of devices",
            RpcError::NotStored => "cannot store the request; try again later",
            RpcError::Stopped => "the server is stopping",
        })
    }
}

impl std::error::Error for RpcError {}

/// Answer for the caller: the response as JSON, or `None` for a one-way request.
pub type RpcAnswer = Result<Option<String>, RpcError>;

/// The recipient of an answer.
#[derive(Debug)]
pub enum RpcCaller {
    Client(oneshot::Sender<RpcAnswer>),
    /// A rule chain, identified by the platform's number, and the client whose request the chain sent.
    RuleChain(u64, Option<oneshot::Sender<RpcAnswer>>),
    /// No recipient.
    None,
}

impl RpcCaller {
    /// Answers the client. Returns the rule chain that waits for the same answer, and the answer in its form.
    pub fn answer(self, answer: RpcAnswer) -> Option<ChainAnswer> {
        // The client may have disconnected.
        match self {
            RpcCaller::Client(sender) => _ = sender.send(answer),
            RpcCaller::RuleChain(number, client) => {
                if let Some(sender) = client {
                    _ = sender.send(answer.clone());
                }
                return Some((number, chain_answer(answer)));
            }
            RpcCaller::None => {}
        }
        None
    }

    /// Reports an error to the client. A chain gets the error from its own call.
    pub fn refuse(self, error: RpcError) {
        _ = self.answer(Err(error));
    }
}

/// The platform's number of a waiting rule chain, and its answer.
pub type ChainAnswer = (u64, Result<Json, &'static str>);

/// Converts a response for rule chains. Text that is not JSON becomes a JSON string.
fn chain_answer(answer: RpcAnswer) -> Result<Json, &'static str> {
    match answer {
        Ok(None) => Ok(json!({})),
        Ok(Some(text)) => Ok(serde_json::from_str(&text).unwrap_or(Json::String(text))),
        Err(error) => Err(error.name()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RpcStage {
    /// Its record is not stored yet.
    NotStored,
    Queued,
    Sent {
        connection: SessionConnection,
        ack_by_ms: i64,
    },
    Delivered,
}

#[derive(Debug)]
pub struct PendingRpc {
    tenant: TenantId,
    bytes: usize,
    pub method: String,
    pub params: String,
    pub is_one_way: bool,
    pub caller: RpcCaller,
    pub stored_rpc: Option<Box<Rpc>>,
    /// Creation time, and time from it to the original deadline.
    created_ms: i64,
    lifetime_ms: i64,
    expires_ms: i64,
    retries: u32,
    retried: u32,
    stage: RpcStage,
    is_restored: bool,
}

impl PendingRpc {
    pub fn new(
        tenant: TenantId,
        call: DeviceRpc,
        caller: RpcCaller,
        stored_rpc: Option<Box<Rpc>>,
        created_ms: i64,
    ) -> PendingRpc {
        let bytes = call.weight();
        let retries = call.persistence.and_then(|persistence| persistence.retries);
        PendingRpc {
            tenant,
            bytes,
            method: call.method,
            params: call.params,
            is_one_way: call.is_one_way,
            caller,
            created_ms,
            lifetime_ms: call.expires_ms.saturating_sub(created_ms).max(0),
            expires_ms: call.expires_ms,
            retries: retries.unwrap_or(RETRIES_MAX).min(RETRIES_MAX),
            retried: 0,
            stage: if stored_rpc.is_some() {
                RpcStage::NotStored
            } else {
                RpcStage::Queued
            },
            stored_rpc,
            is_restored: false,
        }
    }

    /// Marks a request that was loaded at the start. `is_delivered`: the device had already acknowledged it.
    pub fn restored(mut self, is_delivered: bool) -> PendingRpc {
        self.is_restored = true;
        self.stage = if is_delivered {
            RpcStage::Delivered
        } else {
            RpcStage::Queued
        };
        self
    }

    pub fn was_sent(&self) -> bool {
        !matches!(self.stage, RpcStage::NotStored | RpcStage::Queued)
    }

    fn due_ms(&self) -> i64 {
        match self.stage {
            RpcStage::NotStored => i64::MAX,
            RpcStage::Sent { ack_by_ms, .. } if self.stored_rpc.is_some() => ack_by_ms.min(self.expires_ms),
            _ => self.expires_ms,
        }
    }

    /// Sets the original deadline again, because the clock was corrected.
    fn restore_deadline(&mut self) {
        self.expires_ms = self.created_ms.saturating_add(self.lifetime_ms);
    }

    /// Shortens waits that are longer than the original ones, because the clock was set back.
    fn limit_waits(&mut self, now_ms: i64) {
        self.expires_ms = self.expires_ms.min(now_ms.saturating_add(self.lifetime_ms));
        if let RpcStage::Sent { ack_by_ms, .. } = &mut self.stage {
            *ack_by_ms = (*ack_by_ms).min(now_ms.saturating_add(ACK_MS));
        }
    }
}

/// A request to send.
#[derive(Debug)]
pub struct RpcToSend {
    pub id: i32,
    pub method: String,
    pub params: String,
    pub stored_rpc: Option<Rpc>,
}

/// The next step for a request whose deadline passed.
#[derive(Debug)]
pub enum OverdueRpc {
    Expired(PendingRpc),
    /// Its connection was closed. It waits for the next one.
    Requeued(Rpc),
    /// Not acknowledged in time; to be sent again.
    Unacknowledged(DeviceId, Rpc),
    /// Not acknowledged after all retries; with the number of retries.
    Failed(Rpc, u32),
}

#[derive(Default)]
pub struct DeviceRpcs {
    inner: Mutex<PendingRpcs>,
    count: AtomicUsize,
}

struct PendingRpcs {
    shares: TenantShares,
    waiting: BTreeMap<(DeviceId, i32), PendingRpc>,
    due: BTreeSet<(i64, DeviceId, i32)>,
    last_id: i32,
    /// Latest known time. An earlier time shows that the clock was set back.
    latest_ms: i64,
}

impl Default for PendingRpcs {
    fn default() -> PendingRpcs {
        PendingRpcs {
            shares: TenantShares::new(CALLS_MAX),
            waiting: BTreeMap::new(),
            due: BTreeSet::new(),
            last_id: 0,
            // The clock may have been set back while the server was down, so the first check limits restored requests.
            latest_ms: i64::MAX,
        }
    }
}

impl DeviceRpcs {
    /// Request numbers begin after `first`.
    pub fn from(first: i32) -> DeviceRpcs {
        let calls = DeviceRpcs::default();
        lock(&calls.inner).last_id = first;
        calls
    }

    /// Returns the number for a new request to the device, if the limits allow it.
    pub fn next_id(&self, device: DeviceId, tenant: TenantId, call: &DeviceRpc) -> Result<i32, RpcError> {
        let mut inner = lock(&self.inner);
        if !inner.shares.has_capacity(tenant, call.weight()) || inner.of_device(device).count() >= CALLS_OF_DEVICE_MAX {
            return Err(RpcError::TooMany);
        }
        inner.last_id = (inner.last_id & i32::MAX).wrapping_add(1) & i32::MAX;
        Ok(inner.last_id)
    }

    pub fn insert(&self, device: DeviceId, id: i32, waiting: PendingRpc) {
        let mut inner = lock(&self.inner);
        inner.last_id = inner.last_id.max(id);
        inner.remove(device, id);
        inner.latest_ms = inner.latest_ms.max(waiting.created_ms);
        inner.shares.add(waiting.tenant, waiting.bytes);
        inner.due.insert((waiting.due_ms(), device, id));
        inner.waiting.insert((device, id), waiting);
        self.counted(&inner);
    }

    pub fn remove(&self, device: DeviceId, id: i32) -> Option<PendingRpc> {
        let mut inner = lock(&self.inner);
        let removed = inner.remove(device, id);
        self.counted(&inner);
        removed
    }

    /// Removes a request of the previous process. A new request may reuse the number of a finished one.
    pub fn remove_restored(&self, device: DeviceId, id: i32) -> Option<PendingRpc> {
        let mut inner = lock(&self.inner);
        let known = inner.waiting.get(&(device, id));
        known.filter(|waiting| waiting.is_restored)?;
        let removed = inner.remove(device, id);
        self.counted(&inner);
        removed
    }

    /// Removes a request that is finished once it is sent: one-way and not persistent.
    pub fn remove_one_way(&self, device: DeviceId, id: i32) -> Option<PendingRpc> {
        let mut inner = lock(&self.inner);
        inner
            .waiting
            .get(&(device, id))
            .filter(|waiting| waiting.is_one_way && waiting.stored_rpc.is_none())?;
        let removed = inner.remove(device, id);
        self.counted(&inner);
        removed
    }

    /// Removes a persistent request.
    pub fn remove_persistent(&self, device: DeviceId, rpc: RpcId) -> Option<PendingRpc> {
        let mut inner = lock(&self.inner);
        let mut all = inner.of_device(device);
        let id = all
            .find(|(_, waiting)| {
                waiting
                    .stored_rpc
                    .as_ref()
                    .is_some_and(|stored_rpc| stored_rpc.id == Some(rpc))
            })?
            .0;
        drop(all);
        let removed = inner.remove(device, id);
        self.counted(&inner);
        removed
    }

    /// Returns the record of a persistent request that is not stored yet.
    pub fn unstored_rpc(&self, device: DeviceId, id: i32) -> Option<Rpc> {
        let inner = lock(&self.inner);
        let waiting = inner.waiting.get(&(device, id))?;
        let begun = waiting
            .stored_rpc
            .as_deref()
            .filter(|_| waiting.stage == RpcStage::NotStored);
        begun.cloned()
    }

    /// Marks the request as stored, so that it can be sent. Returns its caller.
    pub fn mark_stored(&self, device: DeviceId, id: i32) -> RpcCaller {
        let mut caller = RpcCaller::None;
        lock(&self.inner).change(device, id, |waiting| {
            waiting.stage = RpcStage::Queued;
            caller = std::mem::replace(&mut waiting.caller, RpcCaller::None);
        });
        caller
    }

    /// Removes all requests of a deleted device.
    pub fn remove_all(&self, device: DeviceId) -> Vec<PendingRpc> {
        let mut inner = lock(&self.inner);
        let all: Vec<i32> = inner.of_device(device).map(|(id, _)| id).collect();
        let removed = all.into_iter().filter_map(|id| inner.remove(device, id)).collect();
        self.counted(&inner);
        removed
    }

    /// Marks undelivered requests that were not sent on this connection yet as sent, and returns them.
    pub fn take_unsent(&self, device: DeviceId, over: SessionConnection, ack_by_ms: i64) -> Vec<RpcToSend> {
        let mut inner = lock(&self.inner);
        let is_unsent = |waiting: &PendingRpc| match waiting.stage {
            RpcStage::Queued => true,
            RpcStage::Sent { connection: other, .. } => other != over,
            RpcStage::NotStored | RpcStage::Delivered => false,
        };
        let unsent: Vec<i32> = inner
            .callable(device)
            .filter(|(_, waiting)| is_unsent(waiting))
            .map(|(id, _)| id)
            .collect();
        let mut sending = Vec::with_capacity(unsent.len());
        for id in unsent {
            inner.change(device, id, |waiting| {
                waiting.stage = RpcStage::Sent {
                    connection: over,
                    ack_by_ms,
                };
                sending.push(RpcToSend {
                    id,
                    method: waiting.method.clone(),
                    params: waiting.params.clone(),
                    stored_rpc: waiting.stored_rpc.as_deref().cloned(),
                });
            });
        }
        sending
    }

    /// Returns the first request that is queued.
    pub fn first_unsent(&self, device: DeviceId) -> Option<RpcToSend> {
        let inner = lock(&self.inner);
        let mut all = inner.callable(device);
        let (id, waiting) = all.find(|(_, waiting)| waiting.stage == RpcStage::Queued)?;
        Some(RpcToSend {
            id,
            method: waiting.method.clone(),
            params: waiting.params.clone(),
            stored_rpc: None,
        })
    }

    /// Records that the device received a request, or did not. Returns the request if that finishes it, and otherwise
    /// its record if it is persistent.
    pub fn reported(&self, device: DeviceId, id: i32, is_delivered: bool) -> (Option<PendingRpc>, Option<Rpc>) {
        let mut inner = lock(&self.inner);
        let is_end = inner
            .waiting
            .get(&(device, id))
            .is_some_and(|waiting| waiting.is_one_way && is_delivered);
        if is_end {
            let ended = inner.remove(device, id);
            self.counted(&inner);
            return (ended, None);
        }
        let mut stored_rpc = None;
        inner.change(device, id, |waiting| {
            waiting.stage = if is_delivered {
                RpcStage::Delivered
            } else {
                RpcStage::Queued
            };
            stored_rpc = waiting.stored_rpc.as_deref().cloned();
        });
        (None, stored_rpc)
    }

    /// Returns requests whose deadline or acknowledgement time has passed. If the clock was set back, no request waits
    /// longer from then on than its original lifetime.
    pub fn take_due(&self, now_ms: i64, is_open: impl Fn(SessionConnection) -> bool) -> Vec<OverdueRpc> {
        let mut inner = lock(&self.inner);
        inner.observe_time(now_ms);
        let mut due = Vec::new();
        while let Some((at_ms, device, id)) = inner.due.first().copied()
            && at_ms <= now_ms
        {
            due.extend(inner.take_if_due(now_ms, device, id, &is_open));
        }
        self.counted(&inner);
        due
    }

    fn counted(&self, inner: &PendingRpcs) {
        self.count.store(inner.waiting.len(), SeqCst);
    }

    pub fn count(&self) -> usize {
        self.count.load(SeqCst)
    }
}

impl PendingRpcs {
    fn of_device(&self, device: DeviceId) -> impl Iterator<Item = (i32, &PendingRpc)> {
        let all = self.waiting.range((device, i32::MIN)..=(device, i32::MAX));
        all.map(|((_, id), waiting)| (*id, waiting))
    }

    /// Requests that may be sent: those before the first one whose record is not stored yet.
    fn callable(&self, device: DeviceId) -> impl Iterator<Item = (i32, &PendingRpc)> {
        self.of_device(device)
            .take_while(|(_, waiting)| waiting.stage != RpcStage::NotStored)
    }

    fn remove(&mut self, device: DeviceId, id: i32) -> Option<PendingRpc> {
        let waiting = self.waiting.remove(&(device, id))?;
        self.due.remove(&(waiting.due_ms(), device, id));
        self.shares.remove(waiting.tenant, waiting.bytes);
        Some(waiting)
    }

    fn change(&mut self, device: DeviceId, id: i32, change: impl FnOnce(&mut PendingRpc)) {
        if let Some(waiting) = self.waiting.get_mut(&(device, id)) {
            self.due.remove(&(waiting.due_ms(), device, id));
            change(waiting);
            self.due.insert((waiting.due_ms(), device, id));
        }
    }

    /// Records the time. Limits the waits if the clock was set back, until it is set forward again: a machine without a
    /// battery for its clock may start with an early time.
    fn observe_time(&mut self, now_ms: i64) {
        let was_set_back = now_ms.saturating_add(CLOCK_TOLERANCE_MS) < self.latest_ms;
        let was_set_forward = now_ms.saturating_sub(self.latest_ms) > CLOCK_FORWARD_MS;
        self.latest_ms = match was_set_back {
            true => now_ms,
            false => self.latest_ms.max(now_ms),
        };
        if !was_set_back && !was_set_forward {
            return;
        }
        for ((device, id), waiting) in &mut self.waiting {
            let before_ms = waiting.due_ms();
            match was_set_back {
                true => waiting.limit_waits(now_ms),
                false => waiting.restore_deadline(),
            }
            let due_ms = waiting.due_ms();
            if due_ms != before_ms {
                self.due.remove(&(before_ms, *device, *id));
                self.due.insert((due_ms, *device, *id));
            }
        }
    }

    /// Handles a due request. Afterwards it is removed or due at a later time.
    fn take_if_due(
        &mut self,
        now_ms: i64,
        device: DeviceId,
        id: i32,
        is_open: impl Fn(SessionConnection) -> bool,
    ) -> Option<OverdueRpc> {
        let waiting = self.waiting.get(&(device, id))?;
        let (over, stored_rpc) = match (waiting.stage, &waiting.stored_rpc) {
            (RpcStage::Sent { connection: over, .. }, Some(stored_rpc)) if waiting.expires_ms > now_ms => {
                (over, Rpc::clone(stored_rpc))
            }
            _ => return self.remove(device, id).map(OverdueRpc::Expired),
        };
        if !is_open(over) {
            self.change(device, id, |waiting| waiting.stage = RpcStage::Queued);
            return Some(OverdueRpc::Requeued(stored_rpc));
        }
        let (retried, retries) = (waiting.retried, waiting.retries);
        if retried >= retries {
            self.remove(device, id);
            return Some(OverdueRpc::Failed(stored_rpc, retries));
        }
        self.change(device, id, |waiting| {
            waiting.retried += 1;
            waiting.stage = RpcStage::Queued;
        });
        Some(OverdueRpc::Unacknowledged(device, stored_rpc))
    }
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
