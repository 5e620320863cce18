//! Limits of users, access rules and bans that have no option, for the page `docs/reference/limits.md`.

use crate::acl::RULES_MAX;
use crate::bans::{EXACT_BANS_MAX, PATTERN_BANS_MAX};
use crate::users::{USER_NAME_BYTES_MAX, USERS_MAX};

pub const FIXED_LIMITS: &[(&str, u64, &str)] = &[
    ("MQTT users in the password file", USERS_MAX as u64, ""),
    ("User name", USER_NAME_BYTES_MAX as u64, "bytes"),
    ("Access rules", RULES_MAX as u64, ""),
    ("Bans by client id, user name and address", EXACT_BANS_MAX as u64, ""),
    ("Bans by network and pattern", PATTERN_BANS_MAX as u64, ""),
];
