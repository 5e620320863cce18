//! Sends messages to sessions of devices and closes their connections, on the shards that have them.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use broker::{InboxBacklog, ShardId};
use mqtt::QoS;
use net::CallError;
use platform::decode::Downlink;
use platform::ids::{DeviceId, Uuid};

use crate::mutex::lock;
use crate::session_id::client_id;
use crate::sessions::{DeviceSessions, SessionTarget};
use crate::stats::DeviceCounters;

/// How often a busy shard is tried again, and the pause before each retry.
const TRIES: usize = 20;
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// Longest wait for a shard's answer.
const SHARD_TIMEOUT: Duration = Duration::from_secs(5);

/// A message to a device's session.
pub struct DownlinkMessage {
    session: Uuid,
    topic: String,
    payload: Vec<u8>,
    qos: QoS,
    /// The RPC request whose delivery is reported.
    call: Option<(DeviceId, i32)>,
}

impl DownlinkMessage {
    pub fn new(target: &SessionTarget, downlink: &Downlink, payload: impl Into<Vec<u8>>) -> DownlinkMessage {
        DownlinkMessage {
            session: target.session,
            topic: downlink.topic(),
            payload: payload.into(),
            qos: target.qos,
            call: None,
        }
    }

    /// Requests a report of the delivery of this RPC request.
    pub fn of_call(self, device: DeviceId, id: i32) -> DownlinkMessage {
        DownlinkMessage {
            call: Some((device, id)),
            ..self
        }
    }
}

/// A shard's report whether the device received a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryReport {
    pub device: DeviceId,
    pub id: i32,
    pub is_delivered: bool,
}

pub struct Downlinks {
    sessions: Arc<DeviceSessions>,
    counters: Arc<DeviceCounters>,
    net: OnceLock<net::ServerHandle>,
    reports: Arc<Mutex<Vec<DeliveryReport>>>,
}

impl Downlinks {
    pub fn new(sessions: Arc<DeviceSessions>, counters: Arc<DeviceCounters>) -> Downlinks {
        Downlinks {
            sessions,
            counters,
            net: OnceLock::new(),
            reports: Arc::default(),
        }
    }

    /// Sets the network handle. Before that, messages are dropped and counted.
    pub fn serve(&self, net: net::ServerHandle) {
        let _ = self.net.set(net);
    }

    pub fn send_to(&self, target: &SessionTarget, downlink: &Downlink, payload: impl Into<Vec<u8>>) {
        self.send(target.shard, vec![DownlinkMessage::new(target, downlink, payload)]);
    }

    /// Sends messages to the shard that has the sessions. If the shard stays busy, the messages are dropped and
    /// counted.
    pub fn send(&self, shard: u16, list: Vec<DownlinkMessage>) {
        let count = list.len() as u64;
        let Some(net) = self.net.get() else {
            return DeviceCounters::add(&self.counters.dropped_downlinks, count);
        };
        let list = Arc::new(Mutex::new(list));
        for _ in 0..TRIES {
            let messages = Arc::clone(&list);
            let counters = Arc::clone(&self.counters);
            let reports = Arc::clone(&self.reports);
            let result = net.call_async(ShardId(shard), move |shard, now| {
                let list = std::mem::take(&mut *lock(&messages));
                for down in list {
                    let client_id = client_id(down.session);
                    let mut session = shard.inbox_session(&client_id);
                    let is_sent = session
                        .as_mut()
                        .is_some_and(|session| session.send(now, &down.topic, &down.payload, down.qos));
                    let counter = match is_sent {
                        true => &counters.sent_downlinks,
                        false => &counters.dropped_downlinks,
                    };
                    counter.fetch_add(1, Relaxed);
                    // At QoS 1 the device's acknowledgement confirms the delivery.
                    if let Some((device, id)) = down.call
                        && (!is_sent || down.qos == QoS::AtMostOnce)
                    {
                        lock(&reports).push(DeliveryReport {
                            device,
                            id,
                            is_delivered: is_sent,
                        });
                    }
                }
            });
            match result {
                Ok(_) => return,
                Err(CallError::Stopped) => break,
                Err(_) => thread::sleep(RETRY_PAUSE),
            }
        }
        DeviceCounters::add(&self.counters.dropped_downlinks, count);
    }

    /// Records that a device acknowledged an RPC request.
    pub fn report(&self, report: DeliveryReport) {
        lock(&self.reports).push(report);
    }

    /// Returns the reports since the last call.
    pub fn take_reports(&self) -> Vec<DeliveryReport> {
        std::mem::take(&mut *lock(&self.reports))
    }

    /// Returns the session's data that the device has not accepted. `None` if the session is gone. Waits for the shard.
    pub fn backlog(&self, target: &SessionTarget) -> Result<Option<InboxBacklog>, CallError> {
        let Some(net) = self.net.get() else { return Ok(None) };
        let client_id = client_id(target.session);
        let backlog = net.call(ShardId(target.shard), SHARD_TIMEOUT, move |shard, _| {
            shard.inbox_session(&client_id)?.backlog()
        });
        match backlog {
            Err(CallError::Stopped) => Ok(None),
            backlog => backlog,
        }
    }

    pub fn close(&self, session: Uuid, reason: &'static str) {
        let (Some(shard), Some(net)) = (self.sessions.shard_of(session), self.net.get()) else {
            return;
        };
        DeviceCounters::add(&self.counters.closed_sessions, 1);
        let client_id = client_id(session);
        let closing = net.call_async(ShardId(shard), move |shard, now| {
            let conn = shard.inbox_session(&client_id).and_then(|session| session.connection());
            if let Some(conn) = conn {
                shard.operator(now).kick_connection(conn, reason);
            }
        });
        if let Err(error) = closing {
            tracing::warn!(device = %session, %error, "closing the connection of a device failed");
        }
    }
}
