//! Fuzzes the layers below MQTT: WebSocket frames, the upgrade request, the PROXY protocol header and the headers of
//! proxies.

#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use libfuzzer_sys::fuzz_target;
use net::AddressPrefix;
use net::forwarded::ForwardingHeaders;
use net::websocket::frame::FrameDecoder;
use net::websocket::handshake::{UpgradeRules, upgrade};

fuzz_target!(|input: (u8, &[u8])| {
    let (cut, bytes) = input;
    let _ = net::proxy::decode(bytes);
    let _ = upgrade(bytes, &UpgradeRules::default());
    forwarded(bytes);
    let whole = payload(&[bytes]);
    let at = usize::from(cut).min(bytes.len());
    let (head, tail) = bytes.split_at(at);
    assert_eq!(whole, payload(&[head, tail]), "a cut at {at} changes the payload");
});

/// Checks that only a trusted proxy names the client, and that no client becomes a local one.
fn forwarded(bytes: &[u8]) {
    let peer = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let mut headers = ForwardingHeaders::default();
    for line in String::from_utf8_lossy(bytes).lines() {
        headers.take("X-Forwarded-For", line);
    }
    let origin = headers.origin();
    assert_eq!(origin.client(peer, &[]), peer);
    let trusted = AddressPrefix {
        address: peer,
        prefix_bits: 32,
    };
    assert!(!origin.client(peer, &[trusted]).to_canonical().is_loopback());
}

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
