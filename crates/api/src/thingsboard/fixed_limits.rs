//! Limits of the device platform's interface without an option, for the page `docs/reference/limits.md`.

use super::{export, socket, telemetry};

pub const FIXED_LIMITS: &[(&str, u64, &str)] = &[
    (
        "Points of a key in one answer of the device platform",
        telemetry::POINTS_MAX as u64,
        "",
    ),
    (
        "Points of all keys in one answer",
        telemetry::ANSWER_POINTS_MAX as u64,
        "",
    ),
    ("Exports of telemetry at the same time", export::EXPORTS_MAX as u64, ""),
    ("WebSockets of the device platform", socket::SOCKETS_MAX, ""),
    ("WebSockets of a tenant", socket::SOCKETS_OF_TENANT_MAX, ""),
    ("Subscriptions of a WebSocket", socket::SUBSCRIPTIONS_MAX, ""),
];
