//! Tells when a client has shown that it receives at its new address.
//!
//! The QUIC library checks each new address with PATH_CHALLENGE, and has no event for the result. The address of the
//! connection changes before the check, so it may be forged. The library creates or copies the congestion controller
//! for each new path, and calls its `on_ack` only on a validated path. So the controller knows.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};

/// Returns whether the path of this controller is validated.
pub(super) fn is_validated(controller: &dyn Controller) -> bool {
    // The interface has no other information that a controller can add. Only called while a new address is checked.
    controller.metrics().pacing_rate.is_some()
}

/// Creates the default controllers of the library, with this knowledge.
#[derive(Default)]
pub(super) struct PathControllers {
    cubic: Arc<CubicConfig>,
}

impl ControllerFactory for PathControllers {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(PathController {
            inner: self.cubic.clone().build(now, current_mtu),
            is_validated: false,
        })
    }
}

struct PathController {
    inner: Box<dyn Controller>,
    is_validated: bool,
}

impl Controller for PathController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.is_validated = true;
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_packet_num_acked: Option<u64>) {
        self.inner
            .on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.inner
            .on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = self.inner.metrics();
        metrics.pacing_rate = self.is_validated.then_some(0);
        metrics
    }

    /// Called for the controller of a new path.
    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(PathController {
            inner: self.inner.clone_box(),
            is_validated: false,
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
