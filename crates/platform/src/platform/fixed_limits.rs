//! Limits of rule chains without an option, for the page `docs/reference/limits.md`: what, how much, unit, and what
//! happens beyond.

use super::{budget, gateway, host, retries};
use crate::chain;

const STOPS: &str = "The server stops processing the message, which counts as failed.";
const FAILS: &str = "The node fails: the message leaves it by `Failure`.";

pub const FIXED_LIMITS: &[(&str, u64, &str, &str)] = &[
    (
        "Nodes of a rule chain",
        chain::NODES_MAX as u64,
        "",
        "The chain is refused.",
    ),
    (
        "Nodes that a message passes in one run",
        chain::STEPS_MAX as u64,
        "",
        STOPS,
    ),
    (
        "Nodes that a message passes, together with its copies and the messages that it causes",
        budget::STEPS_MAX,
        "",
        STOPS,
    ),
    (
        "Messages that a node makes of one message",
        chain::STEPS_MAX as u64,
        "",
        FAILS,
    ),
    (
        "Messages made of one message that wait for their nodes",
        chain::MADE_BYTES_MAX as u64,
        "bytes",
        STOPS,
    ),
    (
        "CPU time of the rule nodes for one message, without scripts",
        budget::NODES_MAX.as_millis() as u64,
        "ms",
        STOPS,
    ),
    (
        "Time of the rule nodes for one message, with waiting for disks and cores, without scripts",
        budget::NODES_RUN_MAX.as_millis() as u64,
        "ms",
        STOPS,
    ),
    (
        "Nesting of rule chains (node `rule chain`), in levels",
        chain::DEPTH_MAX as u64,
        "",
        FAILS,
    ),
    (
        "Checkpoints and changes of alarms that a message causes one after another",
        host::DEFERRED_DEPTH_MAX as u64,
        "",
        FAILS,
    ),
    (
        "Values, attributes and other data that chains store for one message",
        budget::ADDED_BYTES_MAX as u64,
        "bytes",
        FAILS,
    ),
    (
        "Messages that wait for a retry",
        retries::WAITING_BYTES_MAX as u64,
        "bytes",
        "New messages stay in the ingest log until a retry has ended.",
    ),
    (
        "Source text of a script",
        chain::SCRIPT_SOURCE_BYTES_MAX,
        "bytes",
        "The node does not run. The chain reports the reason.",
    ),
    ("Result of a script", chain::SCRIPT_RESULT_BYTES_MAX, "bytes", FAILS),
    ("CPU time of a script", chain::SCRIPT_MS_MAX, "ms", FAILS),
    (
        "Names of devices behind gateways in memory",
        gateway::NAMES_MAX as u64,
        "",
        "The server looks names up in the database again. No message is lost.",
    ),
];
