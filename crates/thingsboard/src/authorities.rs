//! The authorities that an operation requires.

use platform::model::Authority;

/// A set of authorities of the device platform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authorities(u8);

/// Bit of `Authorities` for screens.
const SCREENS: u8 = 8;

impl Authorities {
    pub const SYS_ADMIN: Authorities = Authorities(1);
    pub const TENANT_ADMIN: Authorities = Authorities(2);
    pub const CUSTOMER_USER: Authorities = Authorities(4);
    /// Authorities with devices.
    pub const TENANT: Authorities = Authorities(2 | 4);
    /// Authorities that administer.
    pub const ADMINS: Authorities = Authorities(1 | 2);
    pub const ANY: Authorities = Authorities(1 | 2 | 4);

    /// Also allows a screen, which has a key for one dashboard and no user.
    pub const fn and_screens(self) -> Authorities {
        Authorities(self.0 | SCREENS)
    }

    pub fn has_screens(self) -> bool {
        self.0 & SCREENS != 0
    }

    /// Text for the OpenAPI document.
    pub fn describe(self) -> &'static str {
        match Authorities(self.0 & !SCREENS) {
            Authorities::SYS_ADMIN => "For system administrators.",
            Authorities::TENANT_ADMIN => "For tenant administrators.",
            Authorities::CUSTOMER_USER => "For users of customers.",
            Authorities::TENANT => "For tenant administrators and users of customers.",
            Authorities::ADMINS => "For system and tenant administrators.",
            _ => "For all logged-in users.",
        }
    }

    pub fn has(self, authority: Authority) -> bool {
        let flag = match authority {
            Authority::SysAdmin => Authorities::SYS_ADMIN,
            Authority::TenantAdmin => Authorities::TENANT_ADMIN,
            Authority::CustomerUser => Authorities::CUSTOMER_USER,
        };
        self.0 & flag.0 != 0
    }
}
