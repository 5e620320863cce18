//! Clients that wait over HTTP for a device's next RPC request or attribute change. Each gets one answer.

use std::collections::HashMap;
use std::sync::Mutex;

use platform::ids::DeviceId;
use tokio::sync::oneshot;

use crate::mutex::lock;
use crate::sessions::DownlinkKind;

/// Largest number of waiting requests.
pub(crate) const POLLERS_MAX: usize = 100_000;

#[derive(Default)]
pub struct Pollers(Mutex<WaitingPollers>);

#[derive(Default)]
struct WaitingPollers {
    by_device: HashMap<(DeviceId, DownlinkKind), Vec<oneshot::Sender<String>>, foldhash::fast::RandomState>,
    count: usize,
}

impl Pollers {
    /// Returns `None` if too many wait.
    pub fn wait(&self, device: DeviceId, wanted: DownlinkKind) -> Option<oneshot::Receiver<String>> {
        let mut waiting = lock(&self.0);
        if waiting.count >= POLLERS_MAX {
            waiting.remove_closed();
            if waiting.count >= POLLERS_MAX {
                return None;
            }
        }
        let (sender, receiver) = oneshot::channel();
        waiting.by_device.entry((device, wanted)).or_default().push(sender);
        waiting.count += 1;
        Some(receiver)
    }

    /// Sends an attribute change to all waiting clients.
    pub fn send_to_all(&self, device: DeviceId, wanted: DownlinkKind, body: impl Fn() -> String) {
        let mut waiting = lock(&self.0);
        if let Some(list) = waiting.by_device.remove(&(device, wanted)) {
            waiting.count -= list.len();
            for sender in list {
                // The client may have disconnected.
                let _ = sender.send(body());
            }
        }
    }

    /// Sends to one client that is still connected. Returns false if there is none.
    pub fn send_to_one(&self, device: DeviceId, wanted: DownlinkKind, body: String) -> bool {
        let mut waiting = lock(&self.0);
        let Some(list) = waiting.by_device.remove(&(device, wanted)) else {
            return false;
        };
        waiting.count -= list.len();
        let mut open: Vec<_> = list.into_iter().filter(|sender| !sender.is_closed()).collect();
        if open.is_empty() {
            return false;
        }
        let is_sent = open.remove(0).send(body).is_ok();
        waiting.count += open.len();
        if !open.is_empty() {
            waiting.by_device.insert((device, wanted), open);
        }
        is_sent
    }
}

impl WaitingPollers {
    fn remove_closed(&mut self) {
        for list in self.by_device.values_mut() {
            list.retain(|sender| !sender.is_closed());
        }
        self.by_device.retain(|_, list| !list.is_empty());
        self.count = self.by_device.values().map(Vec::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use platform::ids::Uuid;

    use super::*;

    #[test]
    fn each_poller_gets_one_answer() {
        let device = DeviceId(Uuid([1; 16]));
        let pollers = Pollers::default();
        let (attributes, call) = (DownlinkKind::Attributes, DownlinkKind::RpcRequest);
        assert!(!pollers.send_to_one(device, call, "no poller".into()));
        drop(pollers.wait(device, call));
        let mut first = pollers.wait(device, call).unwrap();
        let mut second = pollers.wait(device, call).unwrap();
        let mut other = pollers.wait(device, attributes).unwrap();
        assert!(pollers.send_to_one(device, call, "1".into()));
        assert!(pollers.send_to_one(device, call, "2".into()));
        assert!(!pollers.send_to_one(device, call, "3".into()));
        pollers.send_to_all(device, attributes, || "a".into());
        assert_eq!(first.try_recv(), Ok("1".into()));
        assert_eq!(second.try_recv(), Ok("2".into()));
        assert_eq!(other.try_recv(), Ok("a".into()));
        assert_eq!(lock(&pollers.0).count, 0);
    }
}
