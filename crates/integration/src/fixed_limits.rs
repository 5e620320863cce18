//! Limits of rules, actions and sources without an option, for the page `docs/reference/limits.md`.

use crate::definition::NAME_BYTES_MAX;
use crate::engine::DEFINITIONS_MAX;
use crate::environment::{STORE_BYTES_MAX, STORE_ENTRIES_MAX};
use crate::runner::GENERATIONS_MAX;
use crate::slow_lane;
use crate::store::HISTORY_MAX;
use crate::tail::PER_SECOND_MAX;

pub const FIXED_LIMITS: &[(&str, u64, &str)] = &[
    (
        "Rules, connectors, actions and sources, of each",
        DEFINITIONS_MAX as u64,
        "",
    ),
    (
        "Name of a rule, connector, action or source",
        NAME_BYTES_MAX as u64,
        "bytes",
    ),
    ("Versions that the server stores of a rule", HISTORY_MAX as u64, ""),
    ("Times that rules republish in a row", GENERATIONS_MAX as u64, ""),
    ("Entries of `kv_store_put`", STORE_ENTRIES_MAX as u64, ""),
    (
        "Entries of `kv_store_put`, all together",
        STORE_BYTES_MAX as u64,
        "bytes",
    ),
    ("Messages that wait for a slow rule", slow_lane::MESSAGES_MAX as u64, ""),
    (
        "Messages that wait for a slow rule, all together",
        slow_lane::BYTES_MAX as u64,
        "bytes",
    ),
    (
        "Messages that wait for all slow rules",
        slow_lane::ALL_BYTES_MAX as u64,
        "bytes",
    ),
    ("Samples of a live tail per second", PER_SECOND_MAX as u64, ""),
];
