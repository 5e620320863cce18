//! The state of something that the server obtains itself, for alarms and metrics.

use std::sync::{Arc, Mutex, PoisonError};

/// State of a certificate, a revocation list or an OCSP response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedStatus {
    /// Domains of the certificate, URL of the list, or file of the certificate that the response is about.
    pub name: String,
    /// When the stored one expires. `None`: none is stored.
    pub expires_at_unix_s: Option<i64>,
    /// Failed attempts since the start.
    pub failures: u64,
    /// Why the last attempt failed. `None`: it succeeded, or there was none.
    pub last_error: Option<String>,
}

/// Shares a state between the task that changes it and its readers.
#[derive(Clone, Debug, Default)]
pub struct StatusCell(Arc<Mutex<ManagedStatus>>);

impl StatusCell {
    pub fn new(name: String) -> StatusCell {
        StatusCell(Arc::new(Mutex::new(ManagedStatus {
            name,
            ..ManagedStatus::default()
        })))
    }

    pub fn get(&self) -> ManagedStatus {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn stored(&self, expires_at_unix_s: Option<i64>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).expires_at_unix_s = expires_at_unix_s;
    }

    pub(crate) fn succeeded(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last_error = None;
    }

    /// A failure of an earlier run, which is still the last result.
    #[cfg(feature = "acme")]
    pub(crate) fn had_failed(&self, reason: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).last_error = Some(reason.to_owned());
    }

    pub(crate) fn failed(&self, reason: &str) {
        let mut status = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        status.failures += 1;
        status.last_error = Some(reason.to_owned());
    }
}
