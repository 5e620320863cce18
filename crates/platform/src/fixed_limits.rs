//! Limits of the device platform that no option changes, for the page `docs/reference/limits.md`: what, how much, unit,
//! and what happens beyond.

use crate::decode;
use crate::page::PAGE_SIZE_MAX;

const MESSAGE: &str = "The message is rejected.";

pub fn fixed_limits() -> Vec<(&'static str, u64, &'static str, &'static str)> {
    let message = decode::DecodeLimits::default();
    let mut limits = vec![
        (
            "Values (telemetry or attributes) in a message of a device",
            message.points_max as u64,
            "",
            MESSAGE,
        ),
        (
            "Key of a value (telemetry or attribute)",
            message.key_bytes_max as u64,
            "bytes",
            MESSAGE,
        ),
        (
            "Value of type text or JSON",
            message.text_bytes_max as u64,
            "bytes",
            MESSAGE,
        ),
        (
            "Entries on a page of a list: highest `pageSize`",
            PAGE_SIZE_MAX as u64,
            "",
            "The request is refused (400).",
        ),
    ];
    limits.extend(crate::entities::fixed_limits::FIXED_LIMITS);
    limits.extend(crate::platform::fixed_limits::FIXED_LIMITS);
    limits
}
