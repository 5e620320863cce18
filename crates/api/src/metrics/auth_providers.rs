//! Metrics of authentication providers that ask other systems.

use std::fmt::Display;

use super::{MetricsSnapshot, Samples, metric_families, samples};
use crate::access_admin::AuthProviderFigures;

metric_families! {
    Counter "tidewire_auth_provider_results"
        "Results of an authentication provider that asks another system: answers (allowed, denied, ignored), failures (failed, timed_out), questions that were not asked (overloaded), and clients that got the answer to an equal question (cached, shared)."
        samples |s, out| {
            for provider in &s.auth_providers {
                for (result, count) in &provider.results {
                    out.put(&[("provider", provider.name), ("result", *result)], count);
                }
            }
        };
    Counter "tidewire_auth_provider_answer_seconds" "Sum of the times of all questions to the other system."
        samples |s, out| each(s, out, |provider| provider.answer_time.as_secs_f64());
    Gauge "tidewire_auth_provider_waiting" "Questions that wait to be asked now."
        samples |s, out| each(s, out, |provider| provider.waiting);
    Gauge "tidewire_auth_provider_in_progress" "Questions without an answer now."
        samples |s, out| each(s, out, |provider| provider.in_progress);
    Gauge "tidewire_auth_provider_failing" "1 if the last question to the other system failed."
        samples |s, out| each(s, out, |provider| u8::from(provider.is_failing));
}

fn each<T: Display>(s: &MetricsSnapshot<'_>, out: &mut Samples<'_>, value: fn(&AuthProviderFigures) -> T) {
    for provider in &s.auth_providers {
        out.put(&[("provider", provider.name)], value(provider));
    }
}
