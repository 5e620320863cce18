//! Limits of entities without an option, for the page `docs/reference/limits.md`: what, how much, unit, and what
//! happens beyond.

use super::{AUDIT_LOGS_MAX, OTA_BYTES_MAX, alarm_comments, api_keys, claims, rpcs};

const CLAIM: &str = "Used claims, then those that expire first, are removed.";
const REFUSED: &str = "A further one is refused (400).";

pub const FIXED_LIMITS: &[(&str, u64, &str, &str)] = &[
    (
        "Size of a firmware or software package",
        OTA_BYTES_MAX as u64,
        "bytes",
        "The upload is refused (400).",
    ),
    (
        "Entries of a tenant's audit log",
        AUDIT_LOGS_MAX as u64,
        "",
        "The oldest entries are deleted.",
    ),
    (
        "Stored persistent calls (RPC) of a device",
        rpcs::RPCS_MAX as u64,
        "",
        "The oldest finished calls are deleted.",
    ),
    (
        "Devices that wait to be claimed, of all tenants",
        claims::CLAIMS_MAX as u64,
        "",
        CLAIM,
    ),
    (
        "Devices that wait to be claimed, of a tenant",
        claims::CLAIMS_OF_TENANT_MAX as u64,
        "",
        CLAIM,
    ),
    ("Comments of an alarm", alarm_comments::COMMENTS_MAX as u64, "", REFUSED),
    (
        "API keys of a user of the platform",
        api_keys::KEYS_MAX as u64,
        "",
        REFUSED,
    ),
];
