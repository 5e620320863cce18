//! Persistent RPC requests to devices.

use super::{Entities, EntityError};
use crate::ids::{DeviceId, EntityId, RpcId, TenantId};
use crate::model::{Entity, Rpc, RpcStatus};
use crate::page::{PageData, PageLink};
use crate::repository::{EntityRecord, RepositoryChange, Selection};

/// Requests per device. Beyond that the oldest finished ones are deleted.
pub(super) const RPCS_MAX: usize = 1000;
/// Requests deleted at once.
const DELETED_AT_ONCE: usize = 100;

/// Statuses of unfinished requests.
const LIVE: [RpcStatus; 4] = [
    RpcStatus::Queued,
    RpcStatus::Sent,
    RpcStatus::Timeout,
    RpcStatus::Delivered,
];

impl Entities {
    /// Saves new requests with their ids, or changed ones: all or none.
    pub fn save_rpcs(&self, rpcs: &[Rpc]) -> Result<(), EntityError> {
        let mut changes = Vec::with_capacity(rpcs.len());
        for rpc in rpcs {
            changes.push(RepositoryChange::Put {
                record: EntityRecord::of(rpc, 1)?,
                replaces: None,
            });
        }
        Ok(self.repository.apply(&changes)?)
    }

    /// Makes space for one more request of this device.
    pub fn delete_old_rpcs(&self, device: DeviceId) -> Result<(), EntityError> {
        if self.repository.count(Rpc::KIND, &of_device(device, None))? < RPCS_MAX {
            return Ok(());
        }
        let oldest: PageData<Rpc> = self.page(&of_device(device, None), &PageLink::new(DELETED_AT_ONCE, 0))?;
        let ended = oldest.data.iter().filter(|rpc| !is_live(rpc));
        let changes: Vec<RepositoryChange> = ended
            .filter_map(|rpc| Some(RepositoryChange::Delete(rpc.id?.entity())))
            .collect();
        Ok(self.repository.apply(&changes)?)
    }

    pub fn rpcs(
        &self,
        device: DeviceId,
        status: Option<RpcStatus>,
        link: &PageLink,
    ) -> Result<PageData<Rpc>, EntityError> {
        self.page(&of_device(device, status), link)
    }

    pub fn rpcs_of_tenant(&self, tenant: TenantId, link: &PageLink) -> Result<PageData<Rpc>, EntityError> {
        let selection = Selection {
            tenant: Some(tenant.0),
            ..Selection::default()
        };
        self.page(&selection, link)
    }

    pub fn delete_rpc(&self, id: RpcId) -> Result<(), EntityError> {
        Ok(self.repository.apply(&[RepositoryChange::Delete(id.entity())])?)
    }

    /// Unfinished requests of all devices, in the order of creation.
    pub fn live_rpcs(&self) -> Result<Vec<Rpc>, EntityError> {
        let mut live = Vec::new();
        let mut problem = None;
        self.repository.for_each(Rpc::KIND, &mut |record| {
            if RpcStatus::parse(&record.row.subtype).is_some_and(|status| LIVE.contains(&status)) {
                match record.read::<Rpc>() {
                    Ok(rpc) if is_live(&rpc) => live.push(rpc),
                    Ok(_) => {}
                    Err(error) => problem = Some(error),
                }
            }
        })?;
        problem.map_or(Ok(live), |error| Err(error.into()))
    }

    pub(super) fn rpcs_of(&self, device: DeviceId) -> Result<impl Iterator<Item = EntityId>, EntityError> {
        let all: PageData<Rpc> = self.page(&of_device(device, None), &PageLink::new(usize::MAX >> 1, 0))?;
        Ok(all.data.into_iter().filter_map(|rpc| rpc.id).map(RpcId::entity))
    }
}

fn is_live(rpc: &Rpc) -> bool {
    let is_answered = rpc.status == RpcStatus::Delivered && rpc.request["oneway"] == true;
    LIVE.contains(&rpc.status) && !is_answered
}

fn of_device(device: DeviceId, status: Option<RpcStatus>) -> Selection {
    Selection {
        parent: Some(device.0),
        subtype: status.map(|status| status.name().to_owned()),
        ..Selection::default()
    }
}
