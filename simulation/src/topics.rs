//! Topics, filters and payloads of the simulation.
//!
//! Topics of shared subscriptions match no other filter, so a client never receives two indistinguishable copies of a
//! message. Each retained topic has one publisher.

use mqtt::SharedFilter;

/// A run that uses only the first few has many messages per subscription.
pub const TOPICS: [&str; 7] = ["a/1", "s/q/1", "a/2", "b/1", "b/c/d", "s/q/2", "t/q/1"];

/// Retained topics of each client, below `r{client}/`.
pub const RETAINED: [&str; 2] = ["x", "y"];

/// A run that uses only the first few has many messages per subscription.
pub const FILTERS: [&str; 13] = [
    "a/+",
    "$share/g/s/q/+",
    "+/x",
    "w/#",
    "a/1",
    "$share/g/s/q/+",
    "a/2",
    "b/#",
    "+/1",
    "w/c0",
    "r0/#",
    "r1/x",
    "$share/h/t/q/#",
];

/// A shared subscription.
pub const GROUP_FILTER: &str = FILTERS[1];

/// Together these two match all retained messages.
pub const RETAINED_FILTER: &str = "+/x";
pub const RETAINED_FILTER_TOO: &str = "+/y";

/// Returns the filter that is matched with topics, and the share name.
pub fn parse_filter(filter: &'static str) -> (&'static str, Option<&'static str>) {
    match SharedFilter::parse(filter).ok().flatten() {
        Some(shared) => (shared.filter, Some(shared.share_name)),
        None => (filter, None),
    }
}

/// Returns a payload: the serial number, and filler bytes that depend on it.
pub fn payload(serial: u64, size: usize) -> Vec<u8> {
    let mut payload = format!("{serial}.").into_bytes();
    let filler = b'a' + (serial % 26) as u8;
    payload.resize(payload.len().max(size), filler);
    payload
}

/// Returns the serial number of a payload. `None` if no client can have sent it.
pub fn serial_of(payload: &[u8]) -> Option<u64> {
    let digits = payload.split(|byte| *byte == b'.').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}
