//! Limits on the resources that clients of the HTTP server can use, and its counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::Extensions;

/// Limits on the resources that clients of the HTTP server can use.
#[derive(Clone, Debug)]
pub struct ApiLimits {
    /// Simultaneous connections to a listener. Beyond it, connections without a request are closed.
    pub connections_max: usize,
    /// Simultaneous connections to a listener from one address, or one /64 of IPv6.
    pub max_connections_per_address: usize,
    /// Simultaneous requests. Further ones get 503.
    pub requests_max: usize,
    /// From the first byte, or the end of the previous answer, to the end of a request's header.
    pub header_timeout: Duration,
    /// From the header to the end of the body.
    pub body_timeout: Duration,
    /// From the header to the start of the answer.
    pub request_timeout: Duration,
    /// How long a client may accept no bytes of an answer.
    pub write_stall_timeout: Duration,
    /// Memory of all answers that clients have not received yet.
    pub unsent_answer_bytes_max: usize,
    /// Maximum lifetime of a connection.
    pub connection_lifetime: Duration,
}

impl Default for ApiLimits {
    fn default() -> ApiLimits {
        ApiLimits {
            connections_max: 256,
            max_connections_per_address: 128,
            requests_max: 64,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(20),
            write_stall_timeout: Duration::from_secs(10),
            unsent_answer_bytes_max: 256 << 20,
            connection_lifetime: Duration::from_secs(60 * 60),
        }
    }
}

impl ApiLimits {
    /// Simultaneous requests from one address: the same share as that of its connections.
    pub fn requests_per_address_max(&self) -> usize {
        let share = self.requests_max * self.max_connections_per_address / self.connections_max.max(1);
        share.clamp(1, self.requests_max.max(1))
    }
}

/// Limits of the body of a request. The route adds them to each request as an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    pub bytes: usize,
    /// From the header to the end of the body.
    pub timeout: Duration,
}

impl BodyLimits {
    /// Limit of a body without an own one.
    pub const BYTES_DEFAULT: usize = 64 * 1024;

    /// Returns the limits of a request.
    pub fn of(request: &Extensions) -> BodyLimits {
        request.get().copied().unwrap_or(BodyLimits {
            bytes: BodyLimits::BYTES_DEFAULT,
            timeout: ApiLimits::default().body_timeout,
        })
    }
}

/// Counters of the HTTP server.
#[derive(Debug, Default)]
pub struct ApiCounters {
    pub connections: AtomicU64,
    pub connections_refused: AtomicU64,
    /// Connections without a request that were closed for other ones.
    pub connections_evicted: AtomicU64,
    pub requests: AtomicU64,
    pub requests_refused: AtomicU64,
    /// Answers by the first digit of their status: indices 2 to 5.
    pub answers: [AtomicU64; 6],
    pub logins: AtomicU64,
    pub logins_failed: AtomicU64,
    pub logins_limited: AtomicU64,
    /// Current number.
    pub open_connections: AtomicU64,
}

impl ApiCounters {
    pub fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
