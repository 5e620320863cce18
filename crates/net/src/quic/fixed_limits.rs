//! Limits of QUIC listeners without an option, for the page `docs/reference/limits.md`: what, how much, unit, and what
//! happens beyond.

use crate::quic::config::{
    HALF_OPEN_MAX, HALF_OPEN_PER_NETWORK_MAX, STREAMS_MAX, UNVALIDATED_MAX, UNVALIDATED_PER_SECOND_MAX,
};
use crate::quic::windows::{START_BYTES, WINDOW_BYTES};

pub const QUIC_LIMITS: &[(&str, u64, &str, &str)] = &[
    (
        "Data that a client may send before the server reads it, before CONNACK",
        START_BYTES as u64,
        "bytes",
        "The client waits.",
    ),
    (
        "Data that a client may send before the server reads it, after CONNACK, if it needs it",
        WINDOW_BYTES as u64,
        "bytes",
        "The client waits.",
    ),
    (
        "Output that the client has not acknowledged, before CONNACK",
        START_BYTES as u64,
        "bytes",
        "Further output waits, within `limits.output_buffer_bytes`.",
    ),
    (
        "Output that the client has not acknowledged, after CONNACK, if it needs it",
        WINDOW_BYTES as u64,
        "bytes",
        "Further output waits, within `limits.output_buffer_bytes`.",
    ),
    (
        "Streams of a connection at a time, before CONNACK or without `max_data_streams`",
        STREAMS_MAX as u64,
        "",
        "The client waits until a stream has ended, or until CONNACK.",
    ),
    (
        "Incomplete handshakes of a listener from addresses that are not validated",
        UNVALIDATED_MAX as u64,
        "",
        "The client gets a Retry packet and repeats its request.",
    ),
    (
        "Handshakes of a listener per second from addresses that are not validated, or half of `max_connection_rate`",
        UNVALIDATED_PER_SECOND_MAX as u64,
        "",
        "The client gets a Retry packet and repeats its request.",
    ),
    (
        "Incomplete handshakes of a listener from validated addresses of one network: an IPv4 address, a /64 of IPv6",
        HALF_OPEN_PER_NETWORK_MAX as u64,
        "",
        "The client is refused.",
    ),
    (
        "Incomplete handshakes of a listener",
        HALF_OPEN_MAX as u64,
        "",
        "The client is refused.",
    ),
];
