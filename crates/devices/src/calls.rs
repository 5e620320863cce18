//! Calls to devices that wait for their answers.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use platform::ids::DeviceId;
use tokio::sync::oneshot;

/// Calls that wait at the same time; more are refused.
const CALLS_MAX: usize = 100_000;

/// A call to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub method: String,
    /// JSON.
    pub params: String,
    /// No answer is waited for.
    pub is_one_way: bool,
    pub timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// The device is not connected, or has not subscribed to calls.
    NoActiveConnection,
    Timeout,
    /// Too many calls wait.
    TooMany,
    /// The server stops.
    Stopped,
}

impl CallError {
    /// As ThingsBoard names it.
    pub fn name(self) -> &'static str {
        match self {
            CallError::NoActiveConnection => "NO_ACTIVE_CONNECTION",
            CallError::Timeout => "TIMEOUT",
            CallError::TooMany => "RATE_LIMIT",
            CallError::Stopped => "INTERNAL",
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CallError::NoActiveConnection => "the device is not connected, or has not subscribed to calls",
            CallError::Timeout => "the device has not answered in time",
            CallError::TooMany => "too many calls wait for answers of devices",
            CallError::Stopped => "the server stops",
        })
    }
}

impl std::error::Error for CallError {}

/// Who waits for an answer.
pub enum Caller {
    /// Somebody outside; the answer is JSON.
    Outside(oneshot::Sender<Result<String, CallError>>),
    /// A rule chain, by the platform's number.
    Chain(u64),
    /// Nobody.
    None,
}

struct Waiting {
    caller: Caller,
    expires_ms: i64,
}

#[derive(Default)]
pub struct Calls(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    waiting: HashMap<(DeviceId, i32), Waiting, foldhash::fast::RandomState>,
    made: i32,
}

impl Calls {
    /// Numbers begin behind `first`.
    pub fn from(first: i32) -> Calls {
        Calls(Mutex::new(Inner {
            made: first,
            ..Inner::default()
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number under which the device is called.
    pub fn begin(&self, device: DeviceId, caller: Caller, expires_ms: i64) -> Result<i32, CallError> {
        let mut inner = self.lock();
        if inner.waiting.len() >= CALLS_MAX {
            return Err(CallError::TooMany);
        }
        inner.made = (inner.made & i32::MAX).wrapping_add(1) & i32::MAX;
        let id = inner.made;
        if !matches!(caller, Caller::None) {
            inner.waiting.insert((device, id), Waiting { caller, expires_ms });
        }
        Ok(id)
    }

    pub fn give_up(&self, device: DeviceId, id: i32) {
        self.lock().waiting.remove(&(device, id));
    }

    /// Who waits for this answer; `None`: nobody any more.
    pub fn answered(&self, device: DeviceId, id: i32) -> Option<Caller> {
        Some(self.lock().waiting.remove(&(device, id))?.caller)
    }

    /// Ends calls of callers outside whose time has come; chains have clocks of their own.
    pub fn expire(&self, now_ms: i64) {
        let mut inner = self.lock();
        let expired = inner.waiting.extract_if(|_, waiting| waiting.expires_ms <= now_ms);
        for (_, waiting) in expired {
            if let Caller::Outside(sender) = waiting.caller {
                // Whoever asked may have gone.
                let _ = sender.send(Err(CallError::Timeout));
            }
        }
    }

    pub fn count(&self) -> usize {
        self.lock().waiting.len()
    }
}
