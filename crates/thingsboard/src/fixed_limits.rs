//! Limits of the device platform's interface without an option, for the page `docs/reference/limits.md`.

use super::{platform_access, socket, telemetry};

pub const FIXED_LIMITS: &[(&str, u64, &str, &str)] = &[
    (
        "Points of a key in one answer of the ThingsBoard API",
        telemetry::POINTS_MAX as u64,
        "",
        "Further points are left out.",
    ),
    (
        "Points of all keys in one answer: keys times `limit`",
        telemetry::ANSWER_POINTS_MAX as u64,
        "",
        "The request is refused (400).",
    ),
    (
        "Exports of telemetry and transfers of packages at the same time",
        platform_access::EXPORTS_MAX as u64,
        "",
        "A further one is refused (429).",
    ),
    (
        "WebSockets of the ThingsBoard API",
        socket::SOCKETS_MAX,
        "",
        "A further WebSocket is refused (429).",
    ),
    (
        "WebSockets of a tenant",
        socket::SOCKETS_OF_TENANT_MAX,
        "",
        "A further WebSocket is refused (429).",
    ),
    (
        "Subscriptions of a WebSocket",
        socket::SUBSCRIPTIONS_MAX,
        "",
        "A further subscription receives an error.",
    ),
];
