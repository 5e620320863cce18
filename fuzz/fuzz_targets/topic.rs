//! Fuzzes a topic filter and a topic name, separated by a line feed.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let (filter, topic) = text.split_once('\n').unwrap_or((text, text));
    tidewire_fuzz::check_topic(filter, topic);
});
