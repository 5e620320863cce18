//! The entities that screens may read because an alias was resolved to them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use platform::ids::{EntityId, Uuid};

/// How long a screen may read entities of a resolved alias. The console repeats the request every ten seconds.
const GRANTED_MS: i64 = 60_000;
/// Limit of granted entities of all screens.
pub const GRANTS_MAX: usize = 100_000;

/// Time until which the screens of a dashboard may read an entity of a resolved alias.
#[derive(Default)]
pub struct Grants(Mutex<HashMap<(Uuid, Uuid), i64>>);

impl Grants {
    /// Returns `false` if there are too many grants.
    pub fn grant(&self, dashboard: Uuid, entities: &[EntityId], now_ms: i64) -> bool {
        let mut grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if grants.len() + entities.len() > GRANTS_MAX {
            grants.retain(|_, until_ms| *until_ms > now_ms);
        }
        if grants.len() + entities.len() > GRANTS_MAX {
            return false;
        }
        let until_ms = now_ms.saturating_add(GRANTED_MS);
        grants.extend(entities.iter().map(|entity| ((dashboard, entity.id), until_ms)));
        true
    }

    pub fn has(&self, dashboard: Uuid, entity: Uuid, now_ms: i64) -> bool {
        let grants = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        grants
            .get(&(dashboard, entity))
            .is_some_and(|until_ms| *until_ms > now_ms)
    }
}
