//! Metrics of authentication providers and of sources of access rules that ask other systems.

use std::fmt::Display;

use super::{MetricsSnapshot, Samples, metric_families, samples};
use crate::access_admin::AuthProviderFigures;

metric_families! {
    Counter "tidewire_auth_provider_results"
        "Results of an authentication provider that asks another system: answers (allowed, denied, ignored), failures (failed, timed_out), questions that were not asked or too late, because too many wait (overloaded), and clients that got the answer to an equal question (cached, shared)."
        samples |s, out| {
            for provider in &s.auth_providers {
                for (result, count) in &provider.results {
                    out.put(&[("provider", provider.name), ("result", *result)], count);
                }
            }
        };
    Counter "tidewire_auth_provider_denials"
        "Clients that the authentication provider `kerberos` has denied, by reason. In a build without this provider there are none."
        samples |s, out| {
            for provider in &s.auth_providers {
                for (reason, count) in &provider.denials {
                    out.put(&[("provider", provider.name), ("reason", *reason)], count);
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
    Counter "tidewire_access_source_results"
        "Results of a source of access rules that asks another system, with the results of tidewire_auth_provider_results. The answer of a database with rules is `allowed`, and without rules `ignored`."
        samples |s, out| {
            for source in &s.access_sources {
                for (result, count) in &source.results {
                    out.put(&[("source", source.name), ("result", *result)], count);
                }
            }
        };
    Counter "tidewire_access_source_answer_seconds" "Sum of the times of all questions to the other system."
        samples |s, out| each_source(s, out, |source| source.answer_time.as_secs_f64());
    Gauge "tidewire_access_source_waiting" "Questions that wait to be asked now."
        samples |s, out| each_source(s, out, |source| source.waiting);
    Gauge "tidewire_access_source_in_progress" "Questions without an answer now."
        samples |s, out| each_source(s, out, |source| source.in_progress);
    Gauge "tidewire_access_source_failing" "1 if the last question to the other system failed."
        samples |s, out| each_source(s, out, |source| u8::from(source.is_failing));
}

fn each<T: Display>(s: &MetricsSnapshot<'_>, out: &mut Samples<'_>, value: fn(&AuthProviderFigures) -> T) {
    for provider in &s.auth_providers {
        out.put(&[("provider", provider.name)], value(provider));
    }
}

fn each_source<T: Display>(s: &MetricsSnapshot<'_>, out: &mut Samples<'_>, value: fn(&AuthProviderFigures) -> T) {
    for source in &s.access_sources {
        out.put(&[("source", source.name)], value(source));
    }
}
