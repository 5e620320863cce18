//! Fuzzes the decoding of packets of MQTT 3.1 and 3.1.1, in both directions.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mqtt::ProtocolVersion;

fuzz_target!(|bytes: &[u8]| {
    tidewire_fuzz::check_both(bytes, |bytes| {
        tidewire_fuzz::check_decode(bytes, ProtocolVersion::V3_1);
        tidewire_fuzz::check_decode(bytes, ProtocolVersion::V3_1_1);
    });
});
