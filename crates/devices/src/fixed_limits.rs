//! Limits of connected devices without an option for the page `docs/reference/limits.md`: what, how much, unit, and
//! what //! happens beyond.

use crate::calls;
use crate::events::EVENTS_MAX;
use crate::ota;
use crate::pollers::POLLERS_MAX;

const CALL: &str = "A further call fails with `RATE_LIMIT`, over HTTP with 429.";
const CHUNK: &str = "A further request is dropped and counted.";

pub const FIXED_LIMITS: &[(&str, u64, &str, &str)] = &[
    (
        "Calls (RPC) to a device that are not answered yet",
        calls::CALLS_OF_DEVICE_MAX as u64,
        "",
        CALL,
    ),
    (
        "Calls (RPC) to all devices that are not answered yet",
        calls::CALLS_MAX.count as u64,
        "",
        CALL,
    ),
    ("Size of these calls", calls::CALLS_MAX.bytes as u64, "bytes", CALL),
    (
        "Retries of a persistent call",
        calls::RETRIES_MAX as u64,
        "",
        "A higher number counts as this one.",
    ),
    (
        "Chunk of a firmware or software package",
        ota::CHUNK_BYTES_MAX as u64,
        "bytes",
        "The request receives an error.",
    ),
    (
        "Requests for chunks that wait, per device",
        ota::OF_DEVICE_MAX as u64,
        "",
        CHUNK,
    ),
    (
        "Requests for chunks that wait, of all devices",
        ota::REQUESTS_MAX as u64,
        "",
        CHUNK,
    ),
    (
        "HTTP requests of devices that wait for a call or an attribute",
        POLLERS_MAX as u64,
        "",
        "A further request receives an error.",
    ),
    (
        "Debug events of a rule node",
        EVENTS_MAX as u64,
        "",
        "The oldest event is removed.",
    ),
];
