//! Measures nanoseconds per packet for the most frequent work of a broker: decoding and encoding PUBLISH, decoding
//! PUBACK.
//!
//! `cargo run --release -p tidewire-mqtt --example codec_time`. Each figure is the best of many rounds.

use std::hint::black_box;
use std::time::Instant;

use tidewire_mqtt::{
    Ack, Decoded, Packet, PacketId, Properties, Property, PropertyWriter, ProtocolVersion, Publish, PublishExtras, QoS,
    ReasonCode, decode, encode_publish,
};

const TOPIC: &str = "plant/7/line/3/machine/12/temperature";
const PAYLOAD: &[u8] = &[b'x'; 66];
const LIMIT: usize = 1 << 20;

#[allow(clippy::print_stdout, reason = "a program that prints its results")]
fn main() {
    println!(
        "topic of {} bytes, payload of {} bytes; ns per packet",
        TOPIC.len(),
        PAYLOAD.len()
    );
    for version in [ProtocolVersion::V3_1_1, ProtocolVersion::V5] {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
            let (decoding, encoding) = time_publish(publish(qos, Properties::EMPTY), version);
            println!(
                "MQTT {version} PUBLISH QoS {}: decode {decoding:.1}, encode {encoding:.1}",
                qos as u8
            );
        }
        let bytes = encoded(&Packet::PubAck(ack()), version);
        println!(
            "MQTT {version} PUBACK: decode {:.1}",
            time(|| decode_all(&bytes, version))
        );
    }
    let mut bytes = Vec::new();
    let mut writer = PropertyWriter::new(&mut bytes);
    writer.put(Property::UserProperty("site", "north"));
    let (decoding, encoding) = time_publish(publish(QoS::AtMostOnce, writer.finish()), ProtocolVersion::V5);
    println!("MQTT 5.0 PUBLISH QoS 0, one user property: decode {decoding:.1}, encode {encoding:.1}");
}

fn publish(qos: QoS, properties: Properties<'_>) -> Publish<'_> {
    let packet_id = if qos == QoS::AtMostOnce { None } else { PacketId::new(1) };
    Publish {
        dup: false,
        qos,
        retain: false,
        topic: TOPIC,
        packet_id,
        properties,
        payload: PAYLOAD,
    }
}

fn ack() -> Ack<'static> {
    Ack {
        packet_id: PacketId::new(1).expect("1 is not 0"),
        reason: ReasonCode::Success,
        properties: Properties::EMPTY,
    }
}

fn encoded(packet: &Packet<'_>, version: ProtocolVersion) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes);
    bytes
}

fn decode_all(bytes: &[u8], version: ProtocolVersion) {
    let decoded = decode(black_box(bytes), version, LIMIT);
    assert!(matches!(black_box(&decoded), Ok(Decoded::Complete { .. })));
}

fn time_publish(publish: Publish<'_>, version: ProtocolVersion) -> (f64, f64) {
    let mut out = Vec::with_capacity(4096);
    encode_publish(&publish, PublishExtras::default(), version, &mut out);
    let bytes = out.clone();
    let decoding = time(|| decode_all(&bytes, version));
    let encoding = time(|| {
        out.clear();
        black_box(encode_publish(
            black_box(&publish),
            PublishExtras::default(),
            version,
            &mut out,
        ));
    });
    (decoding, encoding)
}

/// Returns nanoseconds per call: the best of many short rounds, so that interruptions do not count.
fn time(mut call: impl FnMut()) -> f64 {
    const CALLS: u32 = 1_000;
    let mut round = || {
        let start = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..3_000).map(|_| round()).fold(f64::INFINITY, f64::min)
}
