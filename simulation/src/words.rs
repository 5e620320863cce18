//! The topics and filters of the simulation, and the payload of each message.
//!
//! Topics of shared subscriptions match no other filter, so that a client never gets two copies of one message that it could not
//! tell apart. Each retained topic has one publisher.

use mqtt::SharedFilter;

/// The first few are enough for a run in which everything meets.
pub const TOPICS: [&str; 7] = ["a/1", "s/q/1", "a/2", "b/1", "b/c/d", "s/q/2", "t/q/1"];

/// Of each client, below `r{client}/`.
pub const RETAINED: [&str; 2] = ["x", "y"];

/// As with topics.
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

/// Of a shared subscription.
pub const GROUP_FILTER: &str = FILTERS[1];

/// What tells every retained message.
pub const RETAINED_FILTER: &str = "+/x";
pub const RETAINED_FILTER_TOO: &str = "+/y";

/// The filter that topics are matched with, and the share name.
pub fn taken_apart(filter: &'static str) -> (&'static str, Option<&'static str>) {
    match SharedFilter::parse(filter).ok().flatten() {
        Some(shared) => (shared.filter, Some(shared.share_name)),
        None => (filter, None),
    }
}

/// The serial number, and then so many bytes that follow from it.
pub fn payload(serial: u64, size: usize) -> Vec<u8> {
    let mut payload = format!("{serial}.").into_bytes();
    let filler = b'a' + (serial % 26) as u8;
    payload.resize(payload.len().max(size), filler);
    payload
}

/// `None` for what no client has written.
pub fn serial_of(payload: &[u8]) -> Option<u64> {
    let digits = payload.split(|byte| *byte == b'.').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}
