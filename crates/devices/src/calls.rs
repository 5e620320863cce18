//! Calls to devices that wait: to be sent, to be acknowledged, for their answers. In the order in which they were made.
//!
//! ```text
//! Begun (until what is kept of it is on the disk)
//!   ▼
//! Queued ──► Sent ──► Delivered ──► answered
//!   ▲          │          └───────► (one way: the end)
//!   └──────────┘ the connection went, or the device has not acknowledged it in time
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};

use platform::chain::RPC_CALL;
use platform::ids::{DeviceId, RpcId, TenantId, Uuid};
use platform::model::Rpc;
use platform::{Load, News, Shares};
use serde_json::{Value as Json, json};
use tokio::sync::oneshot;

/// Calls that wait at the same time, which tenants share; more are refused.
const CALLS_MAX: Load = Load {
    count: 100_000,
    bytes: 256 << 20,
};
/// Of one device.
const CALLS_OF_DEVICE_MAX: usize = 1000;
/// How often a call is sent again that is not acknowledged, if the call does not say less.
pub const RETRIES_MAX: u32 = 5;

/// A call to a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub method: String,
    /// JSON.
    pub params: String,
    /// No answer is waited for.
    pub is_one_way: bool,
    /// Until then it waits for the device and its answer.
    pub expires_ms: i64,
    /// It is kept over a restart, and what becomes of it can be asked for.
    pub keeping: Option<Keeping>,
}

impl Call {
    /// For the rule chain of the device. Parameters are a text there, as at ThingsBoard.
    pub fn message(&self, request: Uuid, device: DeviceId, tenant: TenantId) -> News {
        let mut metadata = vec![
            ("requestUUID", request.to_string()),
            ("expirationTime", self.expires_ms.to_string()),
            ("oneway", self.is_one_way.to_string()),
            ("persistent", self.keeping.is_some().to_string()),
        ];
        let keeping = self.keeping.as_ref();
        metadata.extend(keeping.and_then(|keeping| Some(("retries", keeping.retries?.to_string()))));
        let info = keeping.map(|keeping| &keeping.additional_info);
        let info = info.filter(|info| !info.is_null()).map(Json::to_string);
        News {
            kind: RPC_CALL,
            entity: device.entity(),
            tenant,
            metadata,
            data: json!({"method": self.method, "params": self.params, "additionalInfo": info}),
        }
    }

    /// In memory while it waits: what is kept is there twice.
    fn weight(&self) -> usize {
        let texts = self.method.len() + self.params.len();
        let kept = self
            .keeping
            .as_ref()
            .map_or(0, |keeping| texts + 3 * keeping.additional_info.to_string().len() + 512);
        texts + kept + 256
    }
}

/// Of a call that is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Keeping {
    pub retries: Option<u32>,
    pub additional_info: Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The device is not connected, or has not subscribed to calls.
    NoActiveConnection,
    Timeout,
    /// No node of the rule chain has called the device.
    NotCalled,
    /// Too many calls wait.
    TooMany,
    /// The entity database did not take it.
    NotKept,
    /// The server stops.
    Stopped,
}

impl CallError {
    /// As ThingsBoard names it.
    pub fn name(self) -> &'static str {
        match self {
            CallError::NoActiveConnection => "NO_ACTIVE_CONNECTION",
            CallError::Timeout | CallError::NotCalled => "TIMEOUT",
            CallError::TooMany => "RATE_LIMIT",
            CallError::NotKept | CallError::Stopped => "INTERNAL",
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CallError::NoActiveConnection => "the device is not connected, or has not subscribed to calls",
            CallError::Timeout => "the device has not answered in time",
            CallError::NotCalled => {
                "no node of the device's rule chain has called the device in time: calls come as RPC_CALL_FROM_SERVER_TO_DEVICE, \
                 which \"message type switch\" sends by \"RPC Request to Device\" to a node \"rpc call request\""
            }
            CallError::TooMany => "too many calls wait for answers of devices",
            CallError::NotKept => "the call cannot be kept now; try again later",
            CallError::Stopped => "the server stops",
        })
    }
}

impl std::error::Error for CallError {}

/// What a caller is told: JSON, or nothing of a call that wants no answer.
pub type Answer = Result<Option<String>, CallError>;

/// Who waits for an answer.
#[derive(Debug)]
pub enum Caller {
    Outside(oneshot::Sender<Answer>),
    /// A rule chain, by the platform's number; and whoever made the call that went along it.
    Chain(u64, Option<oneshot::Sender<Answer>>),
    /// Nobody.
    None,
}

impl Caller {
    /// Whoever waits outside; a chain is told where it calls.
    pub fn refuse(self, error: CallError) {
        if let Caller::Outside(sender) | Caller::Chain(_, Some(sender)) = self {
            // Whoever asked may have gone.
            _ = sender.send(Err(error));
        }
    }
}

/// A connection over which something was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    pub session: Uuid,
    pub connection: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its record is not on the disk yet.
    Begun,
    Queued,
    Sent {
        over: Over,
        ack_by_ms: i64,
    },
    Delivered,
}

#[derive(Debug)]
pub struct Waiting {
    tenant: TenantId,
    bytes: usize,
    pub method: String,
    pub params: String,
    pub is_one_way: bool,
    pub caller: Caller,
    pub kept: Option<Box<Rpc>>,
    expires_ms: i64,
    retries: u32,
    retried: u32,
    stage: Stage,
    is_restored: bool,
}

impl Waiting {
    pub fn new(tenant: TenantId, call: Call, caller: Caller, kept: Option<Box<Rpc>>) -> Waiting {
        let bytes = call.weight();
        let retries = call.keeping.and_then(|keeping| keeping.retries);
        Waiting {
            tenant,
            bytes,
            method: call.method,
            params: call.params,
            is_one_way: call.is_one_way,
            caller,
            expires_ms: call.expires_ms,
            retries: retries.unwrap_or(RETRIES_MAX).min(RETRIES_MAX),
            retried: 0,
            stage: if kept.is_some() { Stage::Begun } else { Stage::Queued },
            kept,
            is_restored: false,
        }
    }

    /// From before a restart, when the device had it or not.
    pub fn restored(mut self, is_delivered: bool) -> Waiting {
        self.is_restored = true;
        self.stage = if is_delivered { Stage::Delivered } else { Stage::Queued };
        self
    }

    pub fn was_sent(&self) -> bool {
        !matches!(self.stage, Stage::Begun | Stage::Queued)
    }

    fn due_ms(&self) -> i64 {
        match self.stage {
            Stage::Begun => i64::MAX,
            Stage::Sent { ack_by_ms, .. } if self.kept.is_some() => ack_by_ms.min(self.expires_ms),
            _ => self.expires_ms,
        }
    }
}

/// What is to be sent.
#[derive(Debug)]
pub struct Sending {
    pub id: i32,
    pub method: String,
    pub params: String,
    pub kept: Option<Rpc>,
}

/// What becomes of a call whose time has come.
#[derive(Debug)]
pub enum Due {
    Expired(Waiting),
    /// Its connection is gone: it waits for the next one.
    Requeued(Rpc),
    /// To be sent again.
    Unacknowledged(DeviceId, Rpc),
    /// Sent as often as it may be; this often again.
    Failed(Rpc, u32),
}

#[derive(Default)]
pub struct Calls {
    inner: Mutex<Inner>,
    count: AtomicUsize,
}

struct Inner {
    shares: Shares,
    waiting: BTreeMap<(DeviceId, i32), Waiting>,
    due: BTreeSet<(i64, DeviceId, i32)>,
    made: i32,
}

impl Default for Inner {
    fn default() -> Inner {
        Inner {
            shares: Shares::new(CALLS_MAX),
            waiting: BTreeMap::new(),
            due: BTreeSet::new(),
            made: 0,
        }
    }
}

impl Calls {
    /// Numbers begin behind `first`.
    pub fn from(first: i32) -> Calls {
        let calls = Calls::default();
        calls.lock().made = first;
        calls
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number under which the device is called.
    pub fn next_id(&self, device: DeviceId, tenant: TenantId, call: &Call) -> Result<i32, CallError> {
        let mut inner = self.lock();
        if !inner.shares.has_room(tenant, call.weight()) || inner.of_device(device).count() >= CALLS_OF_DEVICE_MAX {
            return Err(CallError::TooMany);
        }
        inner.made = (inner.made & i32::MAX).wrapping_add(1) & i32::MAX;
        Ok(inner.made)
    }

    pub fn insert(&self, device: DeviceId, id: i32, waiting: Waiting) {
        let mut inner = self.lock();
        inner.made = inner.made.max(id);
        inner.remove(device, id);
        inner.shares.add(waiting.tenant, waiting.bytes);
        inner.due.insert((waiting.due_ms(), device, id));
        inner.waiting.insert((device, id), waiting);
        self.counted(&inner);
    }

    pub fn remove(&self, device: DeviceId, id: i32) -> Option<Waiting> {
        let mut inner = self.lock();
        let removed = inner.remove(device, id);
        self.counted(&inner);
        removed
    }

    /// A call of the process before: one of this process may have the number of one that is over.
    pub fn remove_restored(&self, device: DeviceId, id: i32) -> Option<Waiting> {
        let mut inner = self.lock();
        let known = inner.waiting.get(&(device, id));
        known.filter(|waiting| waiting.is_restored)?;
        let removed = inner.remove(device, id);
        self.counted(&inner);
        removed
    }

    /// A call that is over when it is sent: it wants no answer, and nobody keeps it.
    pub fn remove_one_way(&self, device: DeviceId, id: i32) -> Option<Waiting> {
        let mut inner = self.lock();
        inner
            .waiting
            .get(&(device, id))
            .filter(|waiting| waiting.is_one_way && waiting.kept.is_none())?;
        let removed = inner.remove(device, id);
        self.counted(&inner);
        removed
    }

    /// A call that is kept.
    pub fn remove_kept(&self, device: DeviceId, rpc: RpcId) -> Option<Waiting> {
        let mut inner = self.lock();
        let mut all = inner.of_device(device);
        let id = all
            .find(|(_, waiting)| waiting.kept.as_ref().is_some_and(|kept| kept.id == Some(rpc)))?
            .0;
        drop(all);
        let removed = inner.remove(device, id);
        self.counted(&inner);
        removed
    }

    /// What is to be kept of a call that has begun.
    pub fn begun(&self, device: DeviceId, id: i32) -> Option<Rpc> {
        let inner = self.lock();
        let waiting = inner.waiting.get(&(device, id))?;
        let begun = waiting.kept.as_deref().filter(|_| waiting.stage == Stage::Begun);
        begun.cloned()
    }

    /// What is kept of it is on the disk: from now on it waits for the device. Whoever made the call.
    pub fn is_kept(&self, device: DeviceId, id: i32) -> Caller {
        let mut caller = Caller::None;
        self.lock().change(device, id, |waiting| {
            waiting.stage = Stage::Queued;
            caller = std::mem::replace(&mut waiting.caller, Caller::None);
        });
        caller
    }

    /// All of a device that was deleted.
    pub fn remove_all(&self, device: DeviceId) -> Vec<Waiting> {
        let mut inner = self.lock();
        let all: Vec<i32> = inner.of_device(device).map(|(id, _)| id).collect();
        let removed = all.into_iter().filter_map(|id| inner.remove(device, id)).collect();
        self.counted(&inner);
        removed
    }

    /// All that the device does not have and that are not on their way over this connection; they are, from now on.
    pub fn take_unsent(&self, device: DeviceId, over: Over, ack_by_ms: i64) -> Vec<Sending> {
        let mut inner = self.lock();
        let is_unsent = |waiting: &Waiting| match waiting.stage {
            Stage::Queued => true,
            Stage::Sent { over: other, .. } => other != over,
            Stage::Begun | Stage::Delivered => false,
        };
        let unsent: Vec<i32> = inner
            .callable(device)
            .filter(|(_, waiting)| is_unsent(waiting))
            .map(|(id, _)| id)
            .collect();
        let mut sending = Vec::with_capacity(unsent.len());
        for id in unsent {
            inner.change(device, id, |waiting| {
                waiting.stage = Stage::Sent { over, ack_by_ms };
                sending.push(Sending {
                    id,
                    method: waiting.method.clone(),
                    params: waiting.params.clone(),
                    kept: waiting.kept.as_deref().cloned(),
                });
            });
        }
        sending
    }

    /// The first that the device does not have.
    pub fn first_unsent(&self, device: DeviceId) -> Option<Sending> {
        let inner = self.lock();
        let mut all = inner.callable(device);
        let (id, waiting) = all.find(|(_, waiting)| waiting.stage == Stage::Queued)?;
        Some(Sending {
            id,
            method: waiting.method.clone(),
            params: waiting.params.clone(),
            kept: None,
        })
    }

    /// The device has it, or (not `is_delivered`) it did not get it. A call that has come to its end by that, and a kept one that has
    /// not.
    pub fn reported(&self, device: DeviceId, id: i32, is_delivered: bool) -> (Option<Waiting>, Option<Rpc>) {
        let mut inner = self.lock();
        let is_end = inner
            .waiting
            .get(&(device, id))
            .is_some_and(|waiting| waiting.is_one_way && is_delivered);
        if is_end {
            let ended = inner.remove(device, id);
            self.counted(&inner);
            return (ended, None);
        }
        let mut kept = None;
        inner.change(device, id, |waiting| {
            waiting.stage = if is_delivered { Stage::Delivered } else { Stage::Queued };
            kept = waiting.kept.as_deref().cloned();
        });
        (None, kept)
    }

    /// What is to be done with calls whose time has come.
    pub fn take_due(&self, now_ms: i64, is_open: impl Fn(Over) -> bool) -> Vec<Due> {
        let mut inner = self.lock();
        let mut due = Vec::new();
        while let Some((at_ms, device, id)) = inner.due.first().copied()
            && at_ms <= now_ms
        {
            due.extend(inner.came_due(now_ms, device, id, &is_open));
        }
        self.counted(&inner);
        due
    }

    fn counted(&self, inner: &Inner) {
        self.count.store(inner.waiting.len(), SeqCst);
    }

    pub fn count(&self) -> usize {
        self.count.load(SeqCst)
    }
}

impl Inner {
    fn of_device(&self, device: DeviceId) -> impl Iterator<Item = (i32, &Waiting)> {
        let all = self.waiting.range((device, i32::MIN)..=(device, i32::MAX));
        all.map(|((_, id), waiting)| (*id, waiting))
    }

    /// Up to one whose record is not on the disk yet: none goes before it.
    fn callable(&self, device: DeviceId) -> impl Iterator<Item = (i32, &Waiting)> {
        self.of_device(device)
            .take_while(|(_, waiting)| waiting.stage != Stage::Begun)
    }

    fn remove(&mut self, device: DeviceId, id: i32) -> Option<Waiting> {
        let waiting = self.waiting.remove(&(device, id))?;
        self.due.remove(&(waiting.due_ms(), device, id));
        self.shares.remove(waiting.tenant, waiting.bytes);
        Some(waiting)
    }

    fn change(&mut self, device: DeviceId, id: i32, change: impl FnOnce(&mut Waiting)) {
        if let Some(waiting) = self.waiting.get_mut(&(device, id)) {
            self.due.remove(&(waiting.due_ms(), device, id));
            change(waiting);
            self.due.insert((waiting.due_ms(), device, id));
        }
    }

    /// Afterwards it is due later, or gone.
    fn came_due(&mut self, now_ms: i64, device: DeviceId, id: i32, is_open: impl Fn(Over) -> bool) -> Option<Due> {
        let waiting = self.waiting.get(&(device, id))?;
        let (over, kept) = match (waiting.stage, &waiting.kept) {
            (Stage::Sent { over, .. }, Some(kept)) if waiting.expires_ms > now_ms => (over, Rpc::clone(kept)),
            _ => return self.remove(device, id).map(Due::Expired),
        };
        if !is_open(over) {
            self.change(device, id, |waiting| waiting.stage = Stage::Queued);
            return Some(Due::Requeued(kept));
        }
        let (retried, retries) = (waiting.retried, waiting.retries);
        if retried >= retries {
            self.remove(device, id);
            return Some(Due::Failed(kept, retries));
        }
        self.change(device, id, |waiting| {
            waiting.retried += 1;
            waiting.stage = Stage::Queued;
        });
        Some(Due::Unacknowledged(device, kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantId = TenantId(Uuid([5; 16]));
    const DEVICE: DeviceId = DeviceId(Uuid([1; 16]));
    const ONE: Over = Over {
        session: Uuid([1; 16]),
        connection: 1,
    };
    const OTHER: Over = Over { connection: 2, ..ONE };

    fn waiting(is_kept: bool, is_one_way: bool, retries: u32) -> Waiting {
        let call = Call {
            method: "m".into(),
            params: "{}".into(),
            is_one_way,
            expires_ms: 1000,
            keeping: is_kept.then(|| Keeping {
                retries: Some(retries),
                ..Keeping::default()
            }),
        };
        Waiting::new(TENANT, call, Caller::None, is_kept.then(Box::default))
    }

    fn small() -> Call {
        Call {
            method: "m".into(),
            params: "{}".into(),
            is_one_way: false,
            expires_ms: 1000,
            keeping: None,
        }
    }

    fn calls(all: impl IntoIterator<Item = Waiting>) -> Calls {
        let calls = Calls::default();
        for waiting in all {
            let id = calls.next_id(DEVICE, TENANT, &small()).unwrap();
            let is_begun = waiting.stage == Stage::Begun;
            calls.insert(DEVICE, id, waiting);
            if is_begun {
                calls.is_kept(DEVICE, id);
            }
        }
        calls
    }

    fn sent(calls: &Calls, over: Over, ack_by_ms: i64) -> Vec<i32> {
        let sending = calls.take_unsent(DEVICE, over, ack_by_ms);
        sending.into_iter().map(|sending| sending.id).collect()
    }

    #[test]
    fn a_connection_gets_what_the_device_does_not_have_in_order() {
        let calls = calls([
            waiting(true, false, 0),
            waiting(false, true, 0),
            waiting(false, false, 0),
        ]);
        assert_eq!(sent(&calls, ONE, 10), [1, 2, 3]);
        assert!(sent(&calls, ONE, 10).is_empty());
        assert!(calls.reported(DEVICE, 1, true).1.is_some());
        assert!(
            calls.reported(DEVICE, 2, true).0.is_some(),
            "the end of a call of one way"
        );
        assert_eq!(sent(&calls, OTHER, 10), [3]);
        calls.reported(DEVICE, 3, false);
        assert_eq!(calls.first_unsent(DEVICE).map(|sending| sending.id), Some(3));
        assert_eq!(calls.count(), 2);
    }

    #[test]
    fn nothing_goes_before_a_call_that_is_not_kept_yet() {
        let calls = calls([waiting(false, false, 0)]);
        calls.insert(DEVICE, 2, waiting(true, false, 0));
        calls.insert(DEVICE, 3, waiting(false, false, 0));
        assert_eq!(sent(&calls, ONE, 10), [1]);
        assert!(calls.first_unsent(DEVICE).is_none());
        assert_eq!(calls.take_due(2000, |_| true).len(), 2, "its time has not begun");
        calls.insert(DEVICE, 4, waiting(false, false, 0));
        assert!(calls.begun(DEVICE, 2).is_some());
        calls.is_kept(DEVICE, 2);
        assert_eq!(sent(&calls, ONE, 10), [2, 4]);
    }

    #[test]
    fn what_is_not_acknowledged_is_sent_again_as_often_as_it_may_be() {
        let calls = calls([waiting(true, false, 1), waiting(false, false, 0)]);
        sent(&calls, ONE, 10);
        assert!(calls.take_due(9, |_| true).is_empty());
        assert!(matches!(
            calls.take_due(10, |_| true)[..],
            [Due::Unacknowledged(DEVICE, _)]
        ));
        assert_eq!(sent(&calls, ONE, 20), [1]);
        assert!(
            matches!(calls.take_due(20, |_| false)[..], [Due::Requeued(_)]),
            "no retry"
        );
        sent(&calls, OTHER, 30);
        assert!(matches!(calls.take_due(30, |_| true)[..], [Due::Failed(_, 1)]));
        assert!(matches!(calls.take_due(1000, |_| true)[..], [Due::Expired(_)]));
        assert_eq!(calls.count(), 0);
    }

    #[test]
    fn an_answer_of_before_is_none_to_a_call_of_now() {
        let calls = calls([waiting(true, false, 0).restored(true), waiting(true, false, 0)]);
        assert!(calls.remove_restored(DEVICE, 1).is_some_and(|call| call.was_sent()));
        assert!(calls.remove_restored(DEVICE, 1).is_none());
        assert!(calls.remove_restored(DEVICE, 2).is_none());
        assert_eq!(calls.count(), 1);
    }

    #[test]
    fn a_device_that_was_deleted_has_no_calls() {
        let calls = calls([waiting(true, false, 0), waiting(false, false, 0)]);
        let other = DeviceId(Uuid([2; 16]));
        calls.insert(other, 9, waiting(false, false, 0));
        assert_eq!(calls.remove_all(DEVICE).len(), 2);
        assert_eq!(calls.count(), 1);
        assert!(calls.take_due(2000, |_| true).len() == 1, "the other's");
    }

    #[test]
    fn a_device_has_room_for_so_many() {
        let calls = calls((0..CALLS_OF_DEVICE_MAX).map(|_| waiting(false, false, 0)));
        assert_eq!(calls.next_id(DEVICE, TENANT, &small()), Err(CallError::TooMany));
        assert!(calls.next_id(DeviceId(Uuid([2; 16])), TENANT, &small()).is_ok());
    }

    #[test]
    fn large_calls_of_one_tenant_leave_room_for_others() {
        let calls = Calls::default();
        let other = TenantId(Uuid([6; 16]));
        let large = Call {
            params: "x".repeat(1 << 20),
            ..small()
        };
        for n in 0..129_u32 {
            let mut device = [3; 16];
            device[..4].copy_from_slice(&n.to_le_bytes());
            let device = DeviceId(Uuid(device));
            match calls.next_id(device, TENANT, &large) {
                Ok(id) => calls.insert(device, id, Waiting::new(TENANT, large.clone(), Caller::None, None)),
                Err(error) => assert_eq!((error, n), (CallError::TooMany, 128)),
            }
        }
        assert_eq!(calls.count(), 128);
        assert!(calls.next_id(DEVICE, other, &large).is_ok());
        calls.take_due(1000, |_| true);
        assert!(calls.next_id(DEVICE, TENANT, &large).is_ok());
    }
}
