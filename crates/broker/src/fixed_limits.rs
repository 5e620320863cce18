//! Limits of the broker without an option for the page `docs/reference/limits.md`: what, how much, unit.

use crate::accept::USER_PROPERTIES_BYTES_MAX;
use crate::connection::INCOMING_ALIAS_BYTES_MAX;
use crate::delayed::DELAYED_BYTES_MAX;
use crate::interest::SHARDS_MAX;
use crate::shard::REFUSALS_MAX;
use crate::subscribe::FILTER_BYTES_MAX;
use crate::trace::TRACES_MAX;

pub const FIXED_LIMITS: &[(&str, u64, &str)] = &[
    ("Worker threads of a node", SHARDS_MAX as u64, ""),
    (
        "Topic filters of a session, all together",
        FILTER_BYTES_MAX as u64,
        "bytes",
    ),
    (
        "Topics that a client may store under topic aliases, per connection",
        INCOMING_ALIAS_BYTES_MAX as u64,
        "bytes",
    ),
    ("Delayed messages per worker thread", DELAYED_BYTES_MAX as u64, "bytes"),
    (
        "User Properties of CONNECT that the server stores for operators",
        USER_PROPERTIES_BYTES_MAX as u64,
        "bytes",
    ),
    (
        "Refused clients that the server lists, per worker thread",
        REFUSALS_MAX as u64,
        "",
    ),
    ("Traces at the same time, per worker thread", TRACES_MAX as u64, ""),
];
