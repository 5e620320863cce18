//! Fuzzes the layers below MQTT: WebSocket frames, the upgrade request and the PROXY protocol header.

#![no_main]

use libfuzzer_sys::fuzz_target;
use net::websocket::frame::FrameDecoder;
use net::websocket::handshake::{UpgradeRules, upgrade};

fuzz_target!(|input: (u8, &[u8])| {
    let (cut, bytes) = input;
    let _ = net::proxy::decode(bytes);
    let _ = upgrade(bytes, &UpgradeRules::default());
    let whole = payload(&[bytes]);
    let at = usize::from(cut).min(bytes.len());
    let (head, tail) = bytes.split_at(at);
    assert_eq!(whole, payload(&[head, tail]), "a cut at {at} changes the payload");
});

/// Returns the payload of the frames, and whether they ended the connection.
fn payload(parts: &[&[u8]]) -> (Vec<u8>, bool) {
    let mut decoder = FrameDecoder::default();
    let mut data = Vec::new();
    for part in parts {
        let mut buffer = part.to_vec();
        let decoded = decoder.decode(&mut buffer);
        data.extend_from_slice(&buffer[..decoded.data_bytes]);
        if decoded.ended.is_some() {
            return (data, true);
        }
    }
    (data, false)
}
