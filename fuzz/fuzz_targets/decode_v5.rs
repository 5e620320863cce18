//! Fuzzes the decoding of packets of MQTT 5.0, in both directions.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mqtt::ProtocolVersion;

fuzz_target!(|bytes: &[u8]| {
    tidewire_fuzz::check_both(bytes, |bytes| tidewire_fuzz::check_decode(bytes, ProtocolVersion::V5));
});
