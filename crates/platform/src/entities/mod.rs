//! Creates, changes and deletes entities by ThingsBoard's rules, with its error texts: checks, dependent entities,
//! and updates of the in-memory [`DeviceDirectory`].
//!
//! Calls read and write the repository, so they block. The caller passes in the time. Secrets come from the operating
//! system.

mod alarm_comments;
mod api_keys;
mod audit_logs;
mod claims;
mod demo;
mod devices;
mod error;
pub(crate) mod fixed_limits;
mod follow_up;
mod ota;
mod people;
mod provision;
mod queues;
mod rpcs;
mod tenant_profiles;
mod things;

use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub use audit_logs::AUDIT_LOGS_MAX;
pub use claims::{ClaimOutcome, ReceptionMode};
pub use error::EntityError;
pub use ota::{OTA_BYTES_MAX, OTA_PART_BYTES, OtaUpload, OtaWriter};
pub use people::NewTenant;
pub use provision::ProvisionOutcome;

use crate::directory::DeviceDirectory;
use crate::ids::{EntityId, IdMaker, Uuid};
use crate::model::Entity;
use crate::page::{PageData, PageLink};
use crate::repository::{EntityRecord, Repository, RepositoryChange, RepositoryError, Selection};

pub struct Entities {
    directory: RwLock<DeviceDirectory>,
    claims: Mutex<claims::PendingClaims>,
    uploading: ota::Uploading,
    /// Serializes changes, so that the result of a check holds until the change is written.
    changes: Mutex<()>,
    ids: IdMaker,
    repository: Arc<dyn Repository>,
}

/// Length of random tokens and generated names. Alphanumeric, as in ThingsBoard.
const RANDOM_TEXT_CHARS: usize = 20;

impl Entities {
    /// Reads all devices, profiles and credentials into memory.
    pub fn open(repository: Arc<dyn Repository>) -> Result<Entities, RepositoryError> {
        let directory = DeviceDirectory::load(&*repository)?;
        let claims = claims::PendingClaims::load(&*repository, &directory)?;
        let mut node = [0; 8];
        fill_random(&mut node);
        let entities = Entities {
            directory: RwLock::new(directory),
            claims: Mutex::new(claims),
            uploading: ota::Uploading::default(),
            changes: Mutex::new(()),
            ids: IdMaker::new(node),
            repository,
        };
        match entities.reload_limits() {
            Err(EntityError::Repository(error)) => Err(error),
            _ => Ok(entities),
        }
    }

    pub fn repository(&self) -> &Arc<dyn Repository> {
        &self.repository
    }

    pub fn directory(&self) -> RwLockReadGuard<'_, DeviceDirectory> {
        self.directory.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn directory_mut(&self) -> RwLockWriteGuard<'_, DeviceDirectory> {
        self.directory.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn new_id(&self, now_ms: i64) -> Uuid {
        self.ids.next(now_ms)
    }

    pub fn find<E: Entity>(&self, id: Uuid) -> Result<Option<E>, EntityError> {
        let record = self.repository.get(EntityId::new(E::KIND, id))?;
        Ok(record.map(|record| record.read()).transpose()?)
    }

    pub fn get<E: Entity>(&self, id: Uuid) -> Result<E, EntityError> {
        self.find(id)?.ok_or(EntityError::NotFound)
    }

    pub fn find_by_name<E: Entity>(&self, tenant: Uuid, name: &str) -> Result<Option<E>, EntityError> {
        let record = self.repository.find_by_name(E::KIND, tenant, name)?;
        Ok(record.map(|record| record.read()).transpose()?)
    }

    pub fn find_by_key<E: Entity>(&self, unique_key: &str) -> Result<Option<E>, EntityError> {
        let record = self.repository.find_by_key(E::KIND, unique_key)?;
        Ok(record.map(|record| record.read()).transpose()?)
    }

    pub fn page<E: Entity>(&self, selection: &Selection, link: &PageLink) -> Result<PageData<E>, EntityError> {
        let page = self.repository.page(E::KIND, selection, link)?;
        Ok(page.try_map(|record| record.read())?)
    }

    /// The stored version of an entity with an id. If it is missing, returns ThingsBoard's error.
    fn stored<E: Entity>(&self, entity: &E, what: &str) -> Result<Option<E>, EntityError> {
        let Some(id) = entity.id() else { return Ok(None) };
        let missing = || EntityError::invalid(format!("Can't update non existing {what}!"));
        self.find(id)?.map_or_else(|| Err(missing()), |stored| Ok(Some(stored)))
    }

    /// Sets the entity's id and version, and returns the change that stores it.
    fn put<E: Entity>(&self, entity: &mut E, stored: Option<&E>, now_ms: i64) -> Result<RepositoryChange, EntityError> {
        let replaces = entity.version().filter(|_| stored.is_some());
        let version = stored.map_or(1, |stored| stored.version().unwrap_or(0) + 1);
        let id = entity.id().unwrap_or_else(|| self.ids.next(now_ms));
        entity.stamp(id, version);
        let record = EntityRecord::of(entity, version)?;
        Ok(RepositoryChange::Put { record, replaces })
    }

    fn put_one<E: Entity>(&self, mut entity: E, stored: Option<&E>, now_ms: i64) -> Result<E, EntityError> {
        let change = self.put(&mut entity, stored, now_ms)?;
        self.repository.apply(&[change])?;
        Ok(entity)
    }
}

/// Deletes an entity with its relations, attributes and alarms.
fn delete_with_all(id: EntityId) -> Vec<RepositoryChange> {
    let mut changes = vec![
        RepositoryChange::Delete(id),
        RepositoryChange::DeleteRelationsOf(id),
        RepositoryChange::DeleteAttributesOf(id.id),
        RepositoryChange::DeleteAlarmsOf(id.id),
    ];
    changes.extend(follow_up::mark_deleted(id));
    changes
}

fn fill_random(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the operating system provides random bytes");
}

fn random_text() -> String {
    const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut text = String::with_capacity(RANDOM_TEXT_CHARS);
    while text.len() < RANDOM_TEXT_CHARS {
        let mut bytes = [0; 32];
        fill_random(&mut bytes);
        // Skips the last 8 of the 256 values, because with them some letters would be more likely.
        let usable = bytes
            .iter()
            .filter(|byte| **byte < 248)
            .map(|byte| LETTERS[usize::from(*byte % 62)]);
        text.extend(usable.map(char::from).take(RANDOM_TEXT_CHARS - text.len()));
    }
    text
}

/// Checks the rules for names of all types.
fn check_name(what: &str, name: &str) -> Result<(), EntityError> {
    if name.trim().is_empty() {
        return Err(EntityError::invalid(format!("{what} should be specified!")));
    }
    if name.contains('\0') {
        return Err(EntityError::invalid(format!("{what} should not contain 0x00 symbol!")));
    }
    if name.chars().count() > 255 {
        return Err(EntityError::invalid(format!(
            "{what} length must be equal or less than 255"
        )));
    }
    if has_markup(name) {
        return Err(EntityError::invalid(format!("{what} is malformed")));
    }
    Ok(())
}

/// Whether a text contains something like an HTML tag. Other programs also show the names.
fn has_markup(text: &str) -> bool {
    let begins = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '!' | '?'));
    text.match_indices('<').any(|(at, _)| begins(&text[at + 1..]))
}
