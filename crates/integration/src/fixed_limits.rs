//! Limits of rules, actions and sources without an option, for the page `docs/reference/limits.md`.

use crate::cause::GENERATIONS_MAX;
use crate::definition::NAME_BYTES_MAX;
use crate::engine::DEFINITIONS_MAX;
use crate::environment::{STORE_BYTES_MAX, STORE_ENTRIES_MAX};
use crate::slow_lane;
use crate::store::HISTORY_MAX;
use crate::tail::PER_SECOND_MAX;

const SLOW_RULE: &str =
    "Publishers at QoS 1 and 2 wait or receive 0x97. Events and messages without a waiting publisher are dropped.";

pub const FIXED_LIMITS: &[(&str, u64, &str, &str)] = &[
    (
        "Rules; also connectors, actions and sources, each",
        DEFINITIONS_MAX as u64,
        "",
        "A further one is refused.",
    ),
    (
        "Length of the name of a rule, connector, action or source",
        NAME_BYTES_MAX as u64,
        "bytes",
        "The definition is refused.",
    ),
    (
        "Versions in the history of a rule",
        HISTORY_MAX as u64,
        "",
        "The oldest version is removed.",
    ),
    (
        "Republish in a row: a rule processes what another rule republished",
        GENERATIONS_MAX as u64,
        "",
        "Rules do not process the message. Subscribers receive it.",
    ),
    (
        "Entries of the key-value store (`kv_store_put`)",
        STORE_ENTRIES_MAX as u64,
        "",
        "`kv_store_put` fails.",
    ),
    (
        "Size of the key-value store",
        STORE_BYTES_MAX as u64,
        "bytes",
        "`kv_store_put` fails.",
    ),
    (
        "Queue of a slow rule, in messages",
        slow_lane::MESSAGES_MAX as u64,
        "",
        SLOW_RULE,
    ),
    ("Queue of a slow rule", slow_lane::BYTES_MAX as u64, "bytes", SLOW_RULE),
    (
        "Queues of all slow rules together",
        slow_lane::ALL_BYTES_MAX as u64,
        "bytes",
        SLOW_RULE,
    ),
    (
        "Samples per second that watching a rule can request",
        PER_SECOND_MAX as u64,
        "",
        "The request is refused (422).",
    ),
];
