//! Limits of rule chains without an option for the page `docs/reference/limits.md`: what, how much, unit.

use super::{budget, gateway, host, retries};
use crate::chain;

pub const FIXED_LIMITS: &[(&str, u64, &str)] = &[
    ("Nodes of a rule chain", chain::NODES_MAX as u64, ""),
    ("Nodes that a message passes", chain::STEPS_MAX as u64, ""),
    (
        "Nodes that a message passes, with all that it causes",
        budget::STEPS_MAX,
        "",
    ),
    ("Rule chains within each other", chain::DEPTH_MAX as u64, ""),
    (
        "Checkpoints and alarms that one message causes in a row",
        host::DEFERRED_DEPTH_MAX as u64,
        "",
    ),
    (
        "Data that the chains of one message store",
        budget::ADDED_BYTES_MAX as u64,
        "bytes",
    ),
    (
        "Messages that wait for a retry",
        retries::WAITING_BYTES_MAX as u64,
        "bytes",
    ),
    ("Source of a script", chain::SCRIPT_SOURCE_BYTES_MAX, "bytes"),
    ("Result of a script", chain::SCRIPT_RESULT_BYTES_MAX, "bytes"),
    ("Time of a script", chain::SCRIPT_MS_MAX, "ms"),
    (
        "Devices behind gateways that the server knows at the same time",
        gateway::NAMES_MAX as u64,
        "",
    ),
];
