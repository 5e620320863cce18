//! Limits of entities without an option for the page `docs/reference/limits.md`: what, how much, unit.

use super::{AUDIT_LOGS_MAX, OTA_BYTES_MAX, alarm_comments, api_keys, claims, rpcs};

pub const FIXED_LIMITS: &[(&str, u64, &str)] = &[
    ("Firmware or software package", OTA_BYTES_MAX as u64, "bytes"),
    ("Audit log entries of a tenant", AUDIT_LOGS_MAX as u64, ""),
    (
        "Persistent calls that the server stores of a device",
        rpcs::RPCS_MAX as u64,
        "",
    ),
    ("Claims of devices", claims::CLAIMS_MAX as u64, ""),
    ("Claims of devices of a tenant", claims::CLAIMS_OF_TENANT_MAX as u64, ""),
    ("Comments of an alarm", alarm_comments::COMMENTS_MAX as u64, ""),
    ("API keys of a user of a tenant", api_keys::KEYS_MAX as u64, ""),
];
