//! What happened to an entity without a message of a device: along the chain of the device, or the root chain of its tenant.

use serde_json::Value as Json;

use super::host::Visit;
use super::{Outlet, Platform};
use crate::chain::{self, Data, Message, Metadata};
use crate::ids::{CustomerId, DeviceId, EntityId, EntityType, TenantId};

#[derive(Clone, Debug, PartialEq)]
pub struct News {
    /// The type of the message, such as `ENTITY_CREATED`.
    pub kind: &'static str,
    pub entity: EntityId,
    pub tenant: TenantId,
    pub metadata: Vec<(&'static str, String)>,
    pub data: Json,
}

impl Platform {
    /// What chains store because of it is stored with the next batch.
    pub fn tell(&self, news: News, now_ms: i64, outlet: &mut dyn Outlet) {
        let mut core = self.core();
        let mut visit = Visit::new(self, &mut core, outlet, now_ms);
        visit.tell(news);
        visit.drain_queue();
    }
}

impl Visit<'_> {
    pub fn tell(&mut self, news: News) {
        let now_ms = self.now_ms;
        self.begin_message();
        if news.entity.kind == EntityType::Device
            && let Ok(sender) = self.sender(DeviceId(news.entity.id))
        {
            let mut message = sender.message(news.kind, Data::Json(news.data), now_ms);
            for (name, value) in news.metadata {
                message.metadata.put(name, value);
            }
            return self.run(&sender, message);
        }
        let root = self.core.roots.get(&news.tenant).copied();
        let Some(chain) = root.and_then(|id| self.core.chains.get(&id).cloned()) else {
            return;
        };
        let mut metadata = Metadata::default();
        for (name, value) in news.metadata {
            metadata.put(name, value);
        }
        let message = Message {
            kind: news.kind.into(),
            originator: news.entity,
            customer: CustomerId::NULL,
            metadata,
            data: Data::Json(news.data),
            ts_ms: now_ms,
        };
        let done = chain::run(&chain, message, self);
        self.finish(news.entity, news.tenant, None, &done);
    }
}
