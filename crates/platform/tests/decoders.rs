//! Decoders must not panic on any input: valid messages, damaged at random with a fixed seed.

#![allow(clippy::unwrap_used, reason = "tests")]

use platform::decode::{
    AttributesRequest, Claim, DecodeLimits, DeviceSubscription, GatewayAttributesRequest, GatewayConnect,
    GatewayRpcResponse, PayloadKind, ProfileTransport, Provision, RpcRequest, Telemetry, Uplink, attributes,
    gateway_parts,
};
use platform::model::DeviceProfile;
use serde_json::json;

const SEEDS: &[&[u8]] = &[
    br#"{"ts":1451649600512,"values":{"a":1,"b":"22.5","c":-1.5e-7,"d":{"x":[1,null]},"e":true}}"#,
    br#"[{"a":"\u00e4\n"},{"ts":"1","values":{"b":1e999999999999999999999}}]"#,
    br#"{"A":[{"ts":1,"values":{"t":42}},{"t":0.000000000000000000001}],"B":[{"metadata":{}}]}"#,
    br#"{"clientKeys":"a,b","sharedKeys":"c","id":1,"device":"A","client":true,"keys":["k"],"data":{}}"#,
    br#"{"method":"m","params":{},"secretKey":"s","durationMs":1,"deviceName":"D","provisionDeviceKey":"k"}"#,
    &[0x09, 0, 0, 0, 0, 0, 0x80, 0x36, 0x40, 0x1a, 4, 0x10, 1, 0x20, 7],
    b"v1/devices/me/attributes/request/7",
    b"v2/fw/request/1/chunk/0",
];

const ROUNDS: usize = 20_000;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % bound.max(1)
    }

    fn damage(&mut self, seed: &[u8]) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, b"{}[]\",:0eE.-\\u\xff\x00"[self.below(16)]),
                2 if !bytes.is_empty() => bytes[at] = u8::try_from(self.below(256)).unwrap(),
                _ => {
                    let copy = bytes[at..].to_vec();
                    bytes.extend(copy);
                }
            }
        }
        bytes
    }
}

#[test]
fn damaged_messages_do_not_panic() {
    let mut profile = DeviceProfile::default();
    profile.profile_data["transportConfiguration"] =
        json!({"transportPayloadTypeConfiguration": {"transportPayloadType": "PROTOBUF"}});
    let transport = ProfileTransport::of(&profile).unwrap();
    let limits = DecodeLimits::default();
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut understood = 0;
    for round in 0..ROUNDS {
        let bytes = random.damage(SEEDS[round % SEEDS.len()]);
        understood += usize::from(Telemetry::decode(&bytes, 0, &limits).is_ok());
        understood += usize::from(attributes(&bytes, &limits).is_ok());
        for part in gateway_parts(&bytes).into_iter().flatten() {
            understood += usize::from(part.telemetry(0, &limits).is_ok());
            let _ = (part.attributes(&limits), part.claim());
        }
        let _ = (
            AttributesRequest::decode(&bytes),
            RpcRequest::decode(&bytes),
            Claim::decode(&bytes),
        );
        let _ = (Provision::decode(&bytes), GatewayConnect::decode(&bytes));
        let _ = (
            GatewayAttributesRequest::decode(&bytes),
            GatewayRpcResponse::decode(&bytes),
        );
        let _ = transport.to_json(PayloadKind::Telemetry, &bytes);
        let text = String::from_utf8_lossy(&bytes);
        let _ = (Uplink::parse(&text), DeviceSubscription::parse(&text));
    }
    assert!(
        understood > ROUNDS / 100,
        "the damage leaves nothing to decode: {understood}"
    );
}
