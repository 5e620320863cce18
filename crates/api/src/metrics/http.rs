//! Metrics of the HTTP server.

use std::sync::atomic::Ordering;

use super::{metric_families, one, samples};

metric_families! {
    Gauge "tidewire_api_connections" "Current HTTP connections." samples |s, out| {
        out.put_counter(&s.sources.counters.open_connections)
    };
    Counter "tidewire_api_connections_accepted" "HTTP connections accepted."
        samples |s, out| out.put_counter(&s.sources.counters.connections);
    Counter "tidewire_api_connections_refused" "HTTP connections rejected because of a connection limit."
        samples |s, out| out.put_counter(&s.sources.counters.connections_refused);
    Counter "tidewire_api_connections_evicted" "HTTP connections without a request that were closed to admit others."
        samples |s, out| out.put_counter(&s.sources.counters.connections_evicted);
    Counter "tidewire_api_requests" "HTTP requests answered, by status class." samples |s, out| {
        for (class, answers) in s.sources.counters.answers.iter().enumerate().skip(2) {
            out.put(&[("status", &format!("{class}xx"))], answers.load(Ordering::Relaxed));
        }
    };
    Counter "tidewire_api_requests_refused" "HTTP requests rejected because of the limit of concurrent requests."
        samples |s, out| out.put_counter(&s.sources.counters.requests_refused);
    Counter "tidewire_api_answers_refused"
        "HTTP answers and WebSocket messages rejected because the memory for unsent answers was used up."
        one |s| s.sources.answers.refused();
    Gauge "tidewire_api_unsent_answer_bytes"
        "Memory of HTTP answers and WebSocket messages that clients have not received yet, without small ones."
        one |s| s.sources.answers.charged_bytes();
    Counter "tidewire_api_logins" "Logins, by outcome." samples |s, out| {
        let counters = &s.sources.counters;
        for (outcome, count) in [
            ("success", &counters.logins),
            ("failure", &counters.logins_failed),
            ("limited", &counters.logins_limited),
        ] {
            out.put(&[("outcome", outcome)], count.load(Ordering::Relaxed));
        }
    };
    Gauge "tidewire_api_tokens" "Active logins." one |s| s.sources.logins.count();
}
