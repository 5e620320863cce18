//! Fuzzes a decoder with a deliberate bug. This target must fail; otherwise fuzzing does not work on this machine. The
//! bug needs a well-formed PUBLISH of MQTT 5.0 with two features that no seed combines.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mqtt::{Decoded, Packet, ProtocolVersion, QoS, decode};

fuzz_target!(|bytes: &[u8]| {
    let bytes = tidewire_fuzz::reframed(bytes);
    if let Ok(Decoded::Complete {
        packet: Packet::Publish(publish),
        ..
    }) = decode(&bytes, ProtocolVersion::V5, 1 << 20)
    {
        let is_planted = publish.qos == QoS::ExactlyOnce && publish.properties.topic_alias().is_some();
        assert!(!is_planted, "the planted bug was reached");
    }
});
