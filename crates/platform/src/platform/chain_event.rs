//! Events of entities that are not caused by a device message. They go along the device's chain, or the root chain of
//! the tenant.

use serde_json::Value as Json;

use super::host::PlatformCall;
use super::retries::RetryWork;
use super::{Platform, PlatformOutlet};
use crate::chain::{self, ChainMessage, MessageData, Metadata};
use crate::ids::{CustomerId, DeviceId, EntityId, EntityType, TenantId};

#[derive(Clone, Debug, PartialEq)]
pub struct ChainEvent {
    /// The message type, such as `ENTITY_CREATED`.
    pub kind: &'static str,
    pub entity: EntityId,
    pub tenant: TenantId,
    pub metadata: Vec<(&'static str, String)>,
    pub data: Json,
}

impl Platform {
    /// Sends an event along the chain. Points that the chain stores are written with the next batch.
    pub fn send_event(&self, event: ChainEvent, now_ms: i64, outlet: &mut dyn PlatformOutlet) {
        let mut core = self.core();
        let mut visit = PlatformCall::new(self, &mut core, outlet, now_ms);
        visit.send_event(event);
        visit.drain_queue();
    }
}

impl PlatformCall<'_> {
    pub fn send_event(&mut self, event: ChainEvent) {
        let now_ms = self.now_ms;
        self.begin_message();
        if event.entity.kind == EntityType::Device
            && let Ok(sender) = self.sender(DeviceId(event.entity.id))
        {
            let mut message = sender.message(event.kind, MessageData::Json(event.data), now_ms);
            for (name, value) in event.metadata {
                message.metadata.put(name, value);
            }
            return self.run(&sender, message);
        }
        let root = self.core.roots.get(&event.tenant).copied();
        let Some(chain) = root.and_then(|id| self.core.chains.get(&id).cloned()) else {
            return;
        };
        let mut metadata = Metadata::default();
        for (name, value) in event.metadata {
            metadata.put(name, value);
        }
        let message = ChainMessage {
            kind: event.kind.into(),
            originator: event.entity,
            customer: CustomerId::NULL,
            metadata,
            data: MessageData::Json(event.data),
            ts_ms: now_ms,
        };
        if let Some(queue) = self.waiting_queue(event.tenant, None) {
            let chain = chain.id;
            return self.run_in_queue(&queue, event.tenant, RetryWork::Message { chain, message });
        }
        let done = chain::run(&chain, message, self);
        self.finish(event.entity, event.tenant, None, done);
    }
}
