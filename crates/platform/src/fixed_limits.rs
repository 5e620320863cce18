//! Limits of the device platform that no option changes, for the page `docs/reference/limits.md`. An entry has a name,
//! a value and a unit.

use crate::decode;
use crate::page::PAGE_SIZE_MAX;

pub fn fixed_limits() -> Vec<(&'static str, u64, &'static str)> {
    let message = decode::DecodeLimits::default();
    let mut limits = vec![
        ("Values of a message of a device", message.points_max as u64, ""),
        ("Key of a value", message.key_bytes_max as u64, "bytes"),
        ("Text value", message.text_bytes_max as u64, "bytes"),
        ("Entries of a page of a list", PAGE_SIZE_MAX as u64, ""),
    ];
    limits.extend(crate::entities::fixed_limits::FIXED_LIMITS);
    limits.extend(crate::platform::fixed_limits::FIXED_LIMITS);
    limits
}
