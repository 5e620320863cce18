//! Metrics of certificates, revocation lists and OCSP responses that the server obtains itself, and of files with
//! revocation lists.

use std::fmt::Display;
use std::time::SystemTime;

use web::unix_ms;

use super::{MetricsSnapshot, Samples, metric_families, samples};
use crate::certificate_admin::{ManagedItem, ManagedKind};

metric_families! {
    Gauge "tidewire_certificates_acme_remaining_seconds"
        "Time until the certificate of tls.acme expires. Negative: it has expired. Absent: the server has none."
        samples |s, out| each(s, out, ManagedKind::Certificate, remaining_seconds);
    Counter "tidewire_certificates_acme_failures" "Failed attempts to obtain or renew the certificate of tls.acme."
        samples |s, out| each(s, out, ManagedKind::Certificate, |item| Some(item.failures));
    Gauge "tidewire_certificates_list_remaining_seconds"
        "Time until a revocation list expires: a downloaded one (crl_urls), or the first of a file (crl_file), with \
         its path. Negative: it has expired. Absent: none is stored."
        samples |s, out| {
            each(s, out, ManagedKind::RevocationList, remaining_seconds);
            each(s, out, ManagedKind::RevocationFile, remaining_seconds);
        };
    Counter "tidewire_certificates_list_failures" "Failed downloads of a revocation list (crl_urls)."
        samples |s, out| each(s, out, ManagedKind::RevocationList, |item| Some(item.failures));
    Gauge "tidewire_certificates_ocsp_remaining_seconds"
        "Time until the stapled OCSP response of a certificate expires. Negative: it has expired. Absent: none is \
         stored."
        samples |s, out| each(s, out, ManagedKind::Staple, remaining_seconds);
    Counter "tidewire_certificates_ocsp_failures"
        "Failed attempts to obtain the OCSP response of a certificate (ocsp_stapling)."
        samples |s, out| each(s, out, ManagedKind::Staple, |item| Some(item.failures));
}

fn each<T: Display>(
    s: &MetricsSnapshot<'_>,
    out: &mut Samples<'_>,
    kind: ManagedKind,
    value: fn(&ManagedItem) -> Option<T>,
) {
    for item in s.managed.iter().filter(|item| item.kind == kind) {
        let Some(value) = value(item) else { continue };
        match kind {
            ManagedKind::Certificate => out.one(value),
            ManagedKind::RevocationList | ManagedKind::RevocationFile => out.put(&[("url", &item.name)], value),
            ManagedKind::Staple => out.put(&[("certificate", &item.name)], value),
        }
    }
}

fn remaining_seconds(item: &ManagedItem) -> Option<i64> {
    let now_unix_s = (unix_ms(SystemTime::now()) / 1000) as i64;
    Some(item.expires_at_unix_s? - now_unix_s)
}
