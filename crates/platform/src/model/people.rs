//! Tenants, customers and users.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Entity, IndexColumns, identity, or_default, row};
use crate::ids::{CustomerId, EntityType, TenantId, TenantProfileId, UserId, Uuid};

/// Adds the fields of a postal address, which tenants and customers have.
macro_rules! with_contact {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            pub country: Option<String>,
            pub state: Option<String>,
            pub city: Option<String>,
            pub address: Option<String>,
            pub address2: Option<String>,
            pub zip: Option<String>,
            pub phone: Option<String>,
            pub email: Option<String>,
            pub additional_info: Option<Value>,
            pub version: Option<i64>,
        }
    };
}

with_contact! {
    pub struct Tenant {
        pub id: Option<TenantId>,
        #[serde(deserialize_with = "or_default")]
        pub created_time: i64,
        #[serde(deserialize_with = "or_default")]
        pub title: String,
        #[serde(deserialize_with = "or_default")]
        pub name: String,
        pub region: Option<String>,
        pub tenant_profile_id: Option<TenantProfileId>,
    }
}

with_contact! {
    pub struct Customer {
        pub id: Option<CustomerId>,
        #[serde(deserialize_with = "or_default")]
        pub created_time: i64,
        #[serde(deserialize_with = "or_default")]
        pub tenant_id: TenantId,
        #[serde(deserialize_with = "or_default")]
        pub title: String,
        #[serde(deserialize_with = "or_default")]
        pub name: String,
        pub external_id: Option<CustomerId>,
    }
}

impl Entity for Tenant {
    const KIND: EntityType = EntityType::Tenant;

    identity!(TenantId);

    fn row(&self) -> IndexColumns {
        row(self.id(), Uuid::NULL, &self.title)
    }
}

impl Entity for Customer {
    const KIND: EntityType = EntityType::Customer;

    identity!(CustomerId);

    fn row(&self) -> IndexColumns {
        row(self.id(), self.tenant_id.0, &self.title)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Authority {
    SysAdmin,
    TenantAdmin,
    CustomerUser,
}

/// The password is in [`UserCredentials`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    #[serde(default)]
    pub id: Option<UserId>,
    #[serde(default, deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(default, deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    #[serde(default)]
    pub customer_id: Option<CustomerId>,
    #[serde(default, deserialize_with = "or_default")]
    pub email: String,
    pub authority: Authority,
    #[serde(default)]
    pub first_name: Option<String>,
    #[serde(default)]
    pub last_name: Option<String>,
    #[serde(default)]
    pub phone: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub name: String,
    #[serde(default)]
    pub additional_info: Option<Value>,
    #[serde(default)]
    pub version: Option<i64>,
}

impl Entity for User {
    const KIND: EntityType = EntityType::User;

    identity!(UserId);

    fn row(&self) -> IndexColumns {
        let names = [self.first_name.as_deref(), self.last_name.as_deref()];
        IndexColumns {
            customer: self.customer_id.unwrap_or_default().0,
            label: names.into_iter().flatten().collect::<Vec<_>>().join(" "),
            unique_key: Some(self.email.to_lowercase()),
            ..row(self.id(), self.tenant_id.0, &self.email)
        }
    }
}

/// A user's login data. Never part of a response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserCredentials {
    pub user_id: UserId,
    pub enabled: bool,
    /// Hash in the format of [`auth::PasswordHash`]; `None` before the user is activated.
    pub password: Option<String>,
    pub activate_token: Option<String>,
    /// When the token was created, in milliseconds since 1970.
    #[serde(default)]
    pub activate_token_time: i64,
}

impl UserCredentials {
    pub fn has_expired_token(&self, max_age_ms: i64, now_ms: i64) -> bool {
        self.activate_token_time.saturating_add(max_age_ms) <= now_ms
    }
}

impl Entity for UserCredentials {
    const KIND: EntityType = EntityType::UserCredentials;

    fn id(&self) -> Option<Uuid> {
        Some(self.user_id.0)
    }

    fn version(&self) -> Option<i64> {
        None
    }

    /// The id is that of the user.
    fn stamp(&mut self, _id: Uuid, _version: i64) {}

    fn row(&self) -> IndexColumns {
        IndexColumns {
            unique_key: self.activate_token.clone(),
            ..row(self.id(), Uuid::NULL, "")
        }
    }
}
