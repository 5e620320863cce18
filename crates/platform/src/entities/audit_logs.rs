//! Audit log of users' REST requests; the newest entries per tenant.

use super::{Entities, EntityError};
use crate::ids::TenantId;
use crate::model::{AuditLog, Entity};
use crate::page::PageLink;
use crate::repository::{EntityRecord, RepositoryChange, Selection};

/// Entries per tenant. Beyond that the oldest are deleted.
pub const AUDIT_LOGS_MAX: usize = 20_000;
/// Entries deleted at once.
const DELETED_AT_ONCE: usize = 1_000;

impl Entities {
    pub fn save_audit_logs(&self, logs: Vec<AuditLog>, now_ms: i64) -> Result<(), EntityError> {
        let mut changes = Vec::with_capacity(logs.len());
        for mut log in logs {
            log.stamp(self.new_id(now_ms), 1);
            changes.push(RepositoryChange::Put {
                record: EntityRecord::of(&log, 1)?,
                replaces: None,
            });
        }
        Ok(self.repository.apply(&changes)?)
    }

    pub fn audit_log_count(&self, tenant: TenantId) -> Result<usize, EntityError> {
        Ok(self.repository.count(AuditLog::KIND, &of_tenant(tenant))?)
    }

    /// Deletes the oldest entries, and returns their number.
    pub fn delete_old_audit_logs(&self, tenant: TenantId) -> Result<usize, EntityError> {
        let link = PageLink::new(DELETED_AT_ONCE, 0);
        let oldest = self.repository.page(AuditLog::KIND, &of_tenant(tenant), &link)?;
        let ids = oldest.data.iter().map(|record| record.row.id);
        let changes: Vec<RepositoryChange> = ids
            .map(|id| RepositoryChange::Delete(crate::ids::EntityId::new(AuditLog::KIND, id)))
            .collect();
        self.repository.apply(&changes)?;
        Ok(changes.len())
    }
}

fn of_tenant(tenant: TenantId) -> Selection {
    Selection {
        tenant: Some(tenant.0),
        ..Selection::default()
    }
}
