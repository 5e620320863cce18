//! Limits of users, access rules and bans that have no option, for the page `docs/reference/limits.md`.

use crate::acl::RULES_MAX;
use crate::bans::{EXACT_BANS_MAX, PATTERN_BANS_MAX};
use crate::login_limiter::{ADDRESSES_MAX, KNOWN_LOGINS_MAX, KNOWN_LOGINS_PER_NAME_MAX};
use crate::users::{USER_NAME_BYTES_MAX, USERS_MAX};

pub const FIXED_LIMITS: &[(&str, u64, &str, &str)] = &[
    (
        "MQTT users of the password file and of the API",
        USERS_MAX as u64,
        "",
        "The file is not loaded. The API refuses a further user (422).",
    ),
    (
        "Length of a user name",
        USER_NAME_BYTES_MAX as u64,
        "bytes",
        "The user is refused.",
    ),
    ("Access rules", RULES_MAX as u64, "", "The rules are refused."),
    (
        "Bans by client ID, user name or address, together",
        EXACT_BANS_MAX as u64,
        "",
        "A further ban is refused.",
    ),
    (
        "Bans by network or pattern, together",
        PATTERN_BANS_MAX as u64,
        "",
        "A further ban is refused.",
    ),
    (
        "Addresses with failed logins that the server remembers",
        ADDRESSES_MAX as u64,
        "",
        "The eighth of the addresses whose failures and lock-outs end first is dropped.",
    ),
    (
        "Successful logins that do not wait while their address is locked out",
        KNOWN_LOGINS_MAX as u64,
        "",
        "The oldest half is forgotten.",
    ),
    (
        "The same of one user or device token",
        KNOWN_LOGINS_PER_NAME_MAX as u64,
        "",
        "At least the older half of its logins is forgotten. Those of others are not affected.",
    ),
];
