//! The user of a request.

use std::sync::Arc;

use platform::ids::{CustomerId, TenantId, UserId, Uuid};
use platform::model::{Authority, Issuer, User};
use web::api_keys::KEY_PREFIX;

/// A user of the platform, or an administrator of this node. The latter is a system administrator of the platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Null for an administrator of the node, because this is not a user of the platform.
    pub id: UserId,
    pub authority: Authority,
    pub tenant: TenantId,
    pub customer: CustomerId,
    /// E-mail address, or the name of an administrator of the node.
    pub name: String,
    pub session: String,
    /// ID of the login to the console with which the session ends.
    pub console_login: Option<Arc<str>>,
    /// Time of the login, in seconds since 1970. `None`: a new login, an API key or a screen.
    pub login_at: Option<i64>,
    /// Users who act as this user, by a token or a key that they issued.
    pub issuers: Vec<Issuer>,
    /// For a screen: the dashboard of its key.
    pub screen: Option<Uuid>,
}

impl Principal {
    pub fn of(user: &User) -> Principal {
        Principal {
            id: user.id.unwrap_or_default(),
            authority: user.authority,
            tenant: user.tenant_id,
            customer: user.customer_id.unwrap_or_default(),
            name: user.email.clone(),
            session: String::new(),
            console_login: None,
            login_at: None,
            issuers: Vec::new(),
            screen: None,
        }
    }

    /// An administrator of the node.
    pub fn of_admin(name: &str) -> Principal {
        Principal {
            id: UserId::NULL,
            authority: Authority::SysAdmin,
            tenant: TenantId::NULL,
            customer: CustomerId::NULL,
            name: name.to_owned(),
            session: String::new(),
            console_login: None,
            login_at: None,
            issuers: Vec::new(),
            screen: None,
        }
    }

    /// A screen of a dashboard of this tenant.
    pub fn of_screen(key: &str, tenant: TenantId, dashboard: Uuid) -> Principal {
        Principal {
            id: UserId::NULL,
            authority: Authority::TenantAdmin,
            tenant,
            customer: CustomerId::NULL,
            name: format!("{KEY_PREFIX}{key}"),
            session: String::new(),
            console_login: None,
            login_at: None,
            issuers: Vec::new(),
            screen: Some(dashboard),
        }
    }

    pub fn is_node_admin(&self) -> bool {
        self.id == UserId::NULL && self.screen.is_none()
    }

    /// Whether the user's role is above that of another user. Both are of one tenant, except for system administrators.
    pub fn administers(&self, user: &User) -> bool {
        match self.authority {
            Authority::SysAdmin => user.authority == Authority::TenantAdmin,
            Authority::TenantAdmin => user.authority == Authority::CustomerUser && user.tenant_id == self.tenant,
            Authority::CustomerUser => false,
        }
    }

    /// Returns the issuers of a token or a key that this user creates for another user.
    pub fn issuers_with_self(&self) -> Vec<Issuer> {
        let own = match self.is_node_admin() {
            true => Issuer::NodeAdministrator(self.name.clone()),
            false => Issuer::User {
                id: self.id,
                email: self.name.clone(),
            },
        };
        let mut issuers = self.issuers.clone();
        issuers.push(own);
        issuers
    }

    /// Returns the name for logs: that of the user, and those of the users who act as the user.
    pub fn name_with_issuers(&self) -> String {
        let mut name = self.name.clone();
        for issuer in self.issuers.iter().rev() {
            name.push_str(", by ");
            name.push_str(issuer.name());
        }
        name
    }
}
