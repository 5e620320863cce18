//! The users of ThingsBoard's demo data, with public passwords.

use auth::Password;

use super::{Entities, EntityError, NewTenant};
use crate::ids::CustomerId;
use crate::model::{Authority, Customer, Tenant, User};

const SYS_ADMIN: &str = "sysadmin@thingsboard.org";
const TENANT_ADMIN: &str = "tenant@thingsboard.org";
const CUSTOMER_USER: &str = "customer@thingsboard.org";

impl Entities {
    /// Creates a system administrator, a tenant with an administrator, and a customer with a user. The password is
    /// the part of the email before the at sign. Returns `None` if they exist. The caller must load the tenant's
    /// chains.
    pub fn create_demo(&self, now_ms: i64) -> Result<Option<NewTenant>, EntityError> {
        if self.user_by_email(SYS_ADMIN)?.is_some() || self.user_by_email(TENANT_ADMIN)?.is_some() {
            return Ok(None);
        }
        let tenant = Tenant {
            title: "Tenant".to_owned(),
            ..Tenant::default()
        };
        let new = self.create_tenant(tenant, now_ms)?;
        let tenant_id = new.tenant.id.unwrap_or_default();
        let customer = Customer {
            tenant_id,
            title: "Customer A".to_owned(),
            ..Customer::default()
        };
        let customer = self.save_customer(customer, now_ms)?;
        self.demo_user(SYS_ADMIN, Authority::SysAdmin, &Tenant::default(), None, now_ms)?;
        self.demo_user(CUSTOMER_USER, Authority::CustomerUser, &new.tenant, customer.id, now_ms)?;
        // Created last, so that its existence implies the others.
        self.demo_user(TENANT_ADMIN, Authority::TenantAdmin, &new.tenant, None, now_ms)?;
        Ok(Some(new))
    }

    fn demo_user(
        &self,
        email: &str,
        authority: Authority,
        tenant: &Tenant,
        customer_id: Option<CustomerId>,
        now_ms: i64,
    ) -> Result<(), EntityError> {
        let user = User {
            id: None,
            created_time: 0,
            tenant_id: tenant.id.unwrap_or_default(),
            customer_id,
            email: email.to_owned(),
            authority,
            first_name: None,
            last_name: None,
            phone: None,
            name: String::new(),
            additional_info: None,
            version: None,
        };
        let (user, _) = self.save_user(user, now_ms)?;
        let (password, _) = email.split_once('@').unwrap_or((email, ""));
        self.set_password(user.id.unwrap_or_default(), &Password::new(password), now_ms)
    }
}
