//! Metrics of the HTTP server.

use std::sync::atomic::Ordering;

use super::{Family, counter, gauge};

pub const FAMILIES: &[Family] = &[
    gauge("tidewire_api_connections", "Current HTTP connections.", |s, out| {
        out.put_counter(&s.sources.counters.open_connections)
    }),
    counter(
        "tidewire_api_connections_accepted",
        "HTTP connections accepted.",
        |s, out| out.put_counter(&s.sources.counters.connections),
    ),
    counter(
        "tidewire_api_connections_refused",
        "HTTP connections rejected because of a connection limit.",
        |s, out| {
            out.put_counter(&s.sources.counters.connections_refused);
        },
    ),
    counter(
        "tidewire_api_connections_evicted",
        "HTTP connections without a request that were closed to admit others.",
        |s, out| {
            out.put_counter(&s.sources.counters.connections_evicted);
        },
    ),
    counter(
        "tidewire_api_requests",
        "HTTP requests answered, by status class.",
        |s, out| {
            for (class, answers) in s.sources.counters.answers.iter().enumerate().skip(2) {
                out.put(&[("status", &format!("{class}xx"))], answers.load(Ordering::Relaxed));
            }
        },
    ),
    counter(
        "tidewire_api_requests_refused",
        "HTTP requests rejected because of the limit of concurrent requests.",
        |s, out| {
            out.put_counter(&s.sources.counters.requests_refused);
        },
    ),
    counter(
        "tidewire_api_answers_refused",
        "HTTP answers and WebSocket messages rejected because the memory for unsent answers was used up.",
        |s, out| out.one(s.sources.answers.refused()),
    ),
    gauge(
        "tidewire_api_unsent_answer_bytes",
        "Memory of HTTP answers and WebSocket messages that clients have not received yet, without small ones.",
        |s, out| out.one(s.sources.answers.charged_bytes()),
    )
    .bytes(),
    counter("tidewire_api_logins", "Logins, by outcome.", |s, out| {
        let counters = &s.sources.counters;
        for (outcome, count) in [
            ("success", &counters.logins),
            ("failure", &counters.logins_failed),
            ("limited", &counters.logins_limited),
        ] {
            out.put(&[("outcome", outcome)], count.load(Ordering::Relaxed));
        }
    }),
    gauge("tidewire_api_tokens", "Active logins.", |s, out| {
        out.one(s.sources.logins.count())
    }),
];
