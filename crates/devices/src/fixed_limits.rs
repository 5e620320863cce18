//! Limits of connected devices without an option for the page `docs/reference/limits.md`: what, how much, unit.

use crate::calls;
use crate::events::EVENTS_MAX;
use crate::ota;
use crate::pollers::POLLERS_MAX;

pub const FIXED_LIMITS: &[(&str, u64, &str)] = &[
    (
        "Calls (RPC) that wait, of a device",
        calls::CALLS_OF_DEVICE_MAX as u64,
        "",
    ),
    ("Calls (RPC) that wait", calls::CALLS_MAX.count as u64, ""),
    (
        "Calls (RPC) that wait, all together",
        calls::CALLS_MAX.bytes as u64,
        "bytes",
    ),
    ("Retries of a persistent call", calls::RETRIES_MAX as u64, ""),
    ("Chunk of a firmware package", ota::CHUNK_BYTES_MAX as u64, "bytes"),
    (
        "Requests for chunks that wait, of a device",
        ota::OF_DEVICE_MAX as u64,
        "",
    ),
    ("Requests for chunks that wait", ota::REQUESTS_MAX as u64, ""),
    ("HTTP requests of devices that wait", POLLERS_MAX as u64, ""),
    (
        "Debug events that the server stores of a rule node",
        EVENTS_MAX as u64,
        "",
    ),
];
