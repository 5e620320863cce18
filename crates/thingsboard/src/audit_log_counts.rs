//! Limits the entries of the audit log of a tenant.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use platform::entities::{AUDIT_LOGS_MAX, Entities};
use platform::ids::TenantId;
use platform::model::AuditLog;

/// Number of entries per tenant, if known.
#[derive(Default)]
pub struct AuditLogCounts(Mutex<HashMap<TenantId, usize>>);

impl AuditLogCounts {
    /// Saves entries of a tenant, and deletes the oldest ones beyond the limit. Failures go to the server log.
    pub fn save(&self, entities: &Entities, entries: Vec<AuditLog>, tenant: TenantId, now_ms: i64) {
        let added = entries.len();
        let saved = entities.save_audit_logs(entries, now_ms).and_then(|()| {
            let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let count = match counts.get(&tenant) {
                Some(count) => count + added,
                None => entities.audit_log_count(tenant)?,
            };
            let gone = if count > AUDIT_LOGS_MAX {
                entities.delete_old_audit_logs(tenant)?
            } else {
                0
            };
            counts.insert(tenant, count.saturating_sub(gone));
            Ok(())
        });
        if let Err(error) = saved {
            let error = devices::error_chain(&error);
            tracing::error!(error, "writing the tenant's audit log failed");
        }
    }
}
