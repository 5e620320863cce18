//! API keys of users. A key is shown once, when it is created, and found by its hash.

use super::{Entities, EntityError, fill_random};
use crate::credentials::sha3_hash;
use crate::ids::{ApiKeyId, UserId, Uuid};
use crate::model::{ApiKey, Entity, Issuer};
use crate::repository::{RepositoryChange, Selection};

/// Lets secret scanners recognize a key.
const PREFIX: &str = "tb_";
const KEY_BYTES: usize = 32;
/// API keys per user.
pub(super) const KEYS_MAX: usize = 100;

impl Entities {
    /// Saves an API key. For a new one, also returns the key itself, which cannot be read later.
    pub fn save_api_key(&self, mut key: ApiKey, now_ms: i64) -> Result<(ApiKey, Option<String>), EntityError> {
        let _changing = self.changing();
        let stored = self.stored(&key, "API key")?;
        if let Some(stored) = &stored {
            (key.tenant_id, key.user_id) = (stored.tenant_id, stored.user_id);
            key.value_hash.clone_from(&stored.value_hash);
            key.issuers.clone_from(&stored.issuers);
            key.expiration_time = stored.expiration_time;
            return Ok((self.put_one(key, Some(stored), now_ms)?, None));
        }
        if self.repository.count(ApiKey::KIND, &of_user(key.user_id))? >= KEYS_MAX {
            return Err(EntityError::invalid(format!(
                "A user can have at most {KEYS_MAX} API keys!"
            )));
        }
        let value = new_key();
        key.value_hash = Some(sha3_hash(&value));
        Ok((self.put_one(key, None, now_ms)?, Some(value)))
    }

    pub fn find_api_key(&self, value: &str) -> Result<Option<ApiKey>, EntityError> {
        self.find_by_key(&sha3_hash(value))
    }

    pub fn delete_api_key(&self, id: ApiKeyId) -> Result<(), EntityError> {
        let _changing = self.changing();
        Ok(self.repository.apply(&[RepositoryChange::Delete(id.entity())])?)
    }

    /// Returns the API keys of a user, and those that the user issued.
    pub fn api_keys_of(&self, user: UserId) -> Result<Vec<ApiKey>, EntityError> {
        self.api_keys_where(|key| is_of(key, &[user]))
    }

    /// Deletes the API keys that an administrator of the node issued.
    pub fn delete_api_keys_of_administrator(&self, name: &str) -> Result<(), EntityError> {
        let _changing = self.changing();
        let is_issuer = |issuer: &Issuer| matches!(issuer, Issuer::NodeAdministrator(issuer) if issuer == name);
        let keys = self.api_keys_where(|key| key.issuers.iter().any(is_issuer))?;
        Ok(self.repository.apply(&deletion(keys))?)
    }

    /// Deletes the API keys of deleted users, and those that the users issued.
    pub(super) fn delete_api_keys_of(&self, users: &[UserId]) -> Result<Vec<RepositoryChange>, EntityError> {
        Ok(deletion(self.api_keys_where(|key| is_of(key, users))?))
    }

    /// Leaves out keys that cannot be read: they are not valid.
    fn api_keys_where(&self, is_wanted: impl Fn(&ApiKey) -> bool) -> Result<Vec<ApiKey>, EntityError> {
        let mut keys = Vec::new();
        self.repository.for_each(ApiKey::KIND, &mut |record| {
            keys.extend(record.read::<ApiKey>().ok().filter(&is_wanted));
        })?;
        Ok(keys)
    }
}

/// Returns whether the key belongs to one of the users or was issued by one.
fn is_of(key: &ApiKey, users: &[UserId]) -> bool {
    let is_issuer = |issuer: &Issuer| matches!(issuer, Issuer::User { id, .. } if users.contains(id));
    users.contains(&key.user_id) || key.issuers.iter().any(is_issuer)
}

fn deletion(keys: Vec<ApiKey>) -> Vec<RepositoryChange> {
    let ids = keys.into_iter().filter_map(|key| key.id);
    ids.map(|id| RepositoryChange::Delete(id.entity())).collect()
}

fn of_user(user: UserId) -> Selection {
    let parent: Uuid = user.0;
    Selection {
        parent: Some(parent),
        ..Selection::default()
    }
}

fn new_key() -> String {
    use base64ct::{Base64UrlUnpadded, Encoding};
    let mut random = [0; KEY_BYTES];
    fill_random(&mut random);
    format!("{PREFIX}{}", Base64UrlUnpadded::encode_string(&random))
}
