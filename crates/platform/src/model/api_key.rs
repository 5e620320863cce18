//! API keys, with which scripts act as a user without a login. Only their hashes are stored.

use serde::{Deserialize, Serialize};

use super::{Entity, IndexColumns, identity, or_default, row};
use crate::ids::{ApiKeyId, EntityType, TenantId, UserId, Uuid};

/// A user who issued a token or a key, and whose rights it must not outlive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Issuer {
    /// An administrator of the node, by name.
    NodeAdministrator(String),
    User {
        id: UserId,
        email: String,
    },
}

impl Issuer {
    pub fn name(&self) -> &str {
        match self {
            Issuer::NodeAdministrator(name) => name,
            Issuer::User { email, .. } => email,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ApiKey {
    pub id: Option<ApiKeyId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    #[serde(deserialize_with = "or_default")]
    pub user_id: UserId,
    pub description: Option<String>,
    pub enabled: bool,
    /// In milliseconds since 1970; 0 means never.
    #[serde(deserialize_with = "or_default")]
    pub expiration_time: i64,
    /// Not a field of ThingsBoard. Responses omit it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_hash: Option<String>,
    /// Other users who took part in creating the key. Not a field of ThingsBoard.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub issuers: Vec<Issuer>,
    pub version: Option<i64>,
}

impl Default for ApiKey {
    fn default() -> ApiKey {
        ApiKey {
            id: None,
            created_time: 0,
            tenant_id: TenantId::NULL,
            user_id: UserId::NULL,
            description: None,
            enabled: true,
            expiration_time: 0,
            value_hash: None,
            issuers: Vec::new(),
            version: None,
        }
    }
}

impl ApiKey {
    pub fn is_valid(&self, now_ms: i64) -> bool {
        self.enabled && (self.expiration_time == 0 || now_ms < self.expiration_time)
    }
}

impl Entity for ApiKey {
    const KIND: EntityType = EntityType::ApiKey;

    identity!(ApiKeyId);

    fn row(&self) -> IndexColumns {
        IndexColumns {
            parent: self.user_id.0,
            unique_key: self.value_hash.clone(),
            ..row(
                self.id(),
                self.tenant_id.0,
                self.description.as_deref().unwrap_or_default(),
            )
        }
    }
}
