//! Limits of the network side without an option, for the page `docs/reference/limits.md`: what, how much, unit, and
//! what happens beyond.

use crate::config::{AUTH_QUEUE_BYTES_MAX, AUTH_QUEUE_MAX};

pub const FIXED_LIMITS: &[(&str, u64, &str, &str)] = &[
    (
        "Logins that wait for a thread, and the same for addresses with many failed logins",
        AUTH_QUEUE_MAX as u64,
        "",
        "CONNACK has 0x89 (Server busy). One address can use half.",
    ),
    (
        "Logins that wait for a thread, size of their CONNECT packets and credentials",
        AUTH_QUEUE_BYTES_MAX as u64,
        "bytes",
        "CONNACK has 0x89 (Server busy). One address can use half.",
    ),
];
