//! Limits of the broker without an option, for the page `docs/reference/limits.md`: what, how much, unit, and what
//! happens beyond.

use crate::authentication::EXCHANGE_MS_MAX;
use crate::connection::INCOMING_ALIAS_BYTES_MAX;
use crate::connection::USER_PROPERTIES_BYTES_MAX;
use crate::delayed::DELAYED_BYTES_MAX;
use crate::exchange_memory::EXCHANGE_BYTES_MAX;
use crate::interest::SHARDS_MAX;
use crate::outbox::{BURST_BACKLOGS_BYTES_MAX, BURST_MS};
use crate::rejected_connections::REFUSALS_MAX;
use crate::subscribe::FILTER_BYTES_MAX;
use crate::trace::TRACES_MAX;

pub const FIXED_LIMITS: &[(&str, u64, &str, &str)] = &[
    (
        "Worker threads of a node",
        SHARDS_MAX as u64,
        "",
        "The server does not start.",
    ),
    (
        "Topic filters of a session, size of all together",
        FILTER_BYTES_MAX as u64,
        "bytes",
        "SUBACK has reason code 0x97 (Quota exceeded).",
    ),
    (
        "Topic names that the server remembers for the topic aliases of a connection",
        INCOMING_ALIAS_BYTES_MAX as u64,
        "bytes",
        "The server disconnects the client with 0x97.",
    ),
    (
        "Unsent output of the clients of a worker thread, above which `limits.burst_buffer_bytes` has no effect",
        BURST_BACKLOGS_BYTES_MAX as u64,
        "bytes",
        "`limits.output_buffer_bytes` decides.",
    ),
    (
        "Time after which the output that waits for a client is not a burst",
        BURST_MS / 1000,
        "s",
        "`limits.output_buffer_bytes` decides.",
    ),
    (
        "Delayed messages, size per worker thread of the node",
        DELAYED_BYTES_MAX as u64,
        "bytes",
        "PUBACK or PUBREC has 0x97. A QoS 0 message is dropped.",
    ),
    (
        "User Properties of CONNECT that the console shows for a client",
        USER_PROPERTIES_BYTES_MAX as u64,
        "bytes",
        "Further properties are not shown.",
    ),
    (
        "Time that an enhanced authentication may take from CONNECT to CONNACK",
        EXCHANGE_MS_MAX / 1000,
        "s",
        "CONNACK has 0x87 (Not authorized).",
    ),
    (
        "Enhanced authentications of more than 2 KiB that are not complete, size of CONNECT packets and credentials",
        EXCHANGE_BYTES_MAX as u64,
        "bytes",
        "CONNACK has 0x89 (Server busy). One address can use half.",
    ),
    (
        "List of refused clients, entries per worker thread",
        REFUSALS_MAX as u64,
        "",
        "The oldest entry is removed.",
    ),
    (
        "Packet traces at the same time, per worker thread",
        TRACES_MAX as u64,
        "",
        "A further trace is refused (503).",
    ),
];
