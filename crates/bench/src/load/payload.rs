//! The payload of a message: bytes with a verification header, a template, or the JSON of a smart meter.
//!
//! Everything in a template is computed from the client, the sequence number and the time, so that a message that is
//! sent again has the same payload, and nothing needs to be stored for it.

use super::truth::{HEADER_BYTES, SenderNumber, VerificationHeader, to_hex};
use crate::scenario::{PAYLOAD_BYTES_MAX, Payload};

pub enum PayloadMaker {
    /// Bytes with a verification header; at least [`HEADER_BYTES`].
    WithHeader(usize),
    /// Bytes without a header, because they are too few.
    Short(usize),
    Text(Vec<PayloadPart>),
}

#[derive(Debug, PartialEq)]
pub enum PayloadPart {
    Literal(String),
    Counter,
    Walk,
    Bool,
    Float,
    Int(i64, i64),
    /// This many letters and digits.
    Random(u32),
    TimestampMs,
    Client,
    Truth,
    /// A field of a smart meter: true in 98 of 100 messages.
    Leakage,
    /// A field of a smart meter: 10 in one of 100 messages, otherwise 50 to 99.
    Battery,
}

/// The values that a template can contain.
pub struct PayloadValues<'a> {
    pub header: VerificationHeader,
    /// Due time on the run clock.
    pub due_ns: u64,
    pub client_id: &'a str,
    /// Milliseconds since 1970 at time 0 of the run clock.
    pub epoch_ms: u64,
}

impl PayloadMaker {
    pub fn new(payload: &Payload) -> Result<PayloadMaker, String> {
        Ok(match payload {
            Payload::Bytes(length) if *length as usize >= HEADER_BYTES => PayloadMaker::WithHeader(*length as usize),
            Payload::Bytes(length) => PayloadMaker::Short(*length as usize),
            Payload::Template(text) => PayloadMaker::Text(parse(text)?),
            Payload::SmartMeter => PayloadMaker::Text(smart_meter()),
        })
    }

    pub fn is_verifiable(&self) -> bool {
        match self {
            PayloadMaker::WithHeader(_) => true,
            PayloadMaker::Short(_) => false,
            PayloadMaker::Text(parts) => parts.contains(&PayloadPart::Truth),
        }
    }

    /// Appends the payload of a message to `out`.
    pub fn make(&self, content: &PayloadValues<'_>, out: &mut Vec<u8>) {
        match self {
            PayloadMaker::WithHeader(length) => {
                let start = out.len();
                out.extend_from_slice(&content.header.encode(*length));
                out.resize(start + length, 0);
                content.header.fill(&mut out[start + HEADER_BYTES..]);
            }
            PayloadMaker::Short(length) => {
                let start = out.len();
                out.resize(start + length, 0);
                content.header.fill(&mut out[start..]);
            }
            PayloadMaker::Text(parts) => {
                for (place, part) in parts.iter().enumerate() {
                    part.write(place as u64, content, out);
                }
            }
        }
    }
}

/// Returns the template of ThingsBoard's load tool: a time, a pulse counter with a random value, a leakage flag that is
/// mostly true, and a battery level that is low in one of 100 messages.
fn smart_meter() -> Vec<PayloadPart> {
    let literal = |text: &str| PayloadPart::Literal(text.to_string());
    vec![
        literal(r#"{"ts":"#),
        PayloadPart::TimestampMs,
        literal(r#","values":{"pulseCounter":"#),
        PayloadPart::Int(0, 999_999),
        literal(r#","leakage":"#),
        PayloadPart::Leakage,
        literal(r#","batteryLevel":"#),
        PayloadPart::Battery,
        literal("}}"),
    ]
}

fn parse(text: &str) -> Result<Vec<PayloadPart>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after
            .split_once('}')
            .ok_or(format!("template: `${{{after}` has no closing brace"))?;
        if !before.is_empty() {
            parts.push(PayloadPart::Literal(before.to_string()));
        }
        parts.push(part(name)?);
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(PayloadPart::Literal(rest.to_string()));
    }
    Ok(parts)
}

fn part(name: &str) -> Result<PayloadPart, String> {
    Ok(match name {
        "counter" => PayloadPart::Counter,
        "walk" => PayloadPart::Walk,
        "bool" => PayloadPart::Bool,
        "float" => PayloadPart::Float,
        "timestamp_ms" => PayloadPart::TimestampMs,
        "client" => PayloadPart::Client,
        "truth" => PayloadPart::Truth,
        _ if name.starts_with("random:") => match random_length(name) {
            Some(length) => PayloadPart::Random(length),
            None => return Err(format!("template: `${{{name}}}`: expected a number of bytes")),
        },
        _ => {
            let bounds = name.strip_prefix("int:").and_then(|bounds| bounds.split_once(':'));
            let bounds = bounds.and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
            match bounds {
                Some((low, high)) if low <= high => PayloadPart::Int(low, high),
                _ => {
                    return Err(format!(
                        "template: `${{{name}}}` is not a placeholder; known are `${{int:LOW:HIGH}}`, `${{counter}}`, `${{walk}}`, `${{bool}}`, `${{float}}`, `${{timestamp_ms}}`, `${{client}}` and `${{truth}}`"
                    ));
                }
            }
        }
    })
}

/// Returns LENGTH of "random:LENGTH".
pub fn random_length(name: &str) -> Option<u32> {
    let length = name.strip_prefix("random:")?.parse().ok()?;
    (length <= PAYLOAD_BYTES_MAX).then_some(length)
}

impl PayloadPart {
    fn write(&self, place: u64, content: &PayloadValues<'_>, out: &mut Vec<u8>) {
        use std::io::Write;
        let VerificationHeader { sender, sequence, .. } = content.header;
        let chance = || random(u64::from(sender.0), u64::from(sequence), place);
        let unit = |word: u64| (word >> 11) as f64 / (1u64 << 53) as f64;
        let written = match self {
            PayloadPart::Literal(text) => out.write_all(text.as_bytes()),
            PayloadPart::Counter => write!(out, "{sequence}"),
            PayloadPart::Walk => write!(out, "{:.3}", walk(sender, sequence, place)),
            PayloadPart::Bool => write!(out, "{}", chance() & 1 == 1),
            PayloadPart::Float => write!(out, "{:.6}", unit(chance())),
            PayloadPart::Int(low, high) => {
                let width = (i128::from(*high) - i128::from(*low) + 1) as u128;
                write!(out, "{}", i128::from(*low) + (u128::from(chance()) % width) as i128)
            }
            PayloadPart::Random(length) => {
                write_random(
                    u64::from(sender.0) << 32 | u64::from(sequence),
                    place,
                    *length as usize,
                    out,
                );
                Ok(())
            }
            PayloadPart::TimestampMs => write!(out, "{}", content.epoch_ms + content.due_ns / 1_000_000),
            PayloadPart::Leakage => write!(out, "{}", chance() % 100 > 1),
            PayloadPart::Battery => {
                let chance = chance();
                let level = if chance % 100 == 0 {
                    10
                } else {
                    50 + (chance / 100) % 50
                };
                write!(out, "{level}")
            }
            PayloadPart::Client => out.write_all(content.client_id.as_bytes()),
            PayloadPart::Truth => out.write_all(&to_hex(content.header)),
        };
        written.expect("a vector takes everything");
    }
}

/// Writes random text that hardly compresses.
fn write_random(seed: u64, place: u64, length: usize, out: &mut Vec<u8>) {
    const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let end = out.len() + length;
    let mut words = (0..).map(|at| random(seed, at, place));
    while out.len() < end {
        let word: u64 = words.next().unwrap_or_default();
        let signs = (0..10).map(|at| SIGNS[(word >> (6 * at)) as usize % SIGNS.len()]);
        out.extend(signs.take(end - out.len()));
    }
}

/// Returns a hash of the arguments (the finalizer of SplitMix64): always the same for the same arguments.
pub fn random(sender: u64, sequence: u64, place: u64) -> u64 {
    let mut word = (sender << 40 ^ sequence << 8 ^ place).wrapping_add(0x9E37_79B9_7F4A_7C15);
    word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}

/// Returns a value between 0 and 100 that moves in small random-looking steps and can be computed for any place: noise
/// on four scales.
fn walk(sender: SenderNumber, sequence: u32, place: u64) -> f64 {
    let noise = |scale: u32| {
        let at = |knot: u32| {
            (random(u64::from(sender.0), u64::from(knot), place << 8 | u64::from(scale)) >> 11) as f64
                / (1u64 << 53) as f64
        };
        let (knot, rest) = (sequence / scale, f64::from(sequence % scale) / f64::from(scale));
        at(knot) * (1.0 - rest) + at(knot + 1) * rest
    };
    100.0 * (0.5 * noise(512) + 0.3 * noise(64) + 0.15 * noise(8) + 0.05 * noise(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::truth::find_hex;

    fn make(payload: Payload, sequence: u32) -> Vec<u8> {
        let header = VerificationHeader {
            run: 1,
            sender: SenderNumber(2),
            sequence,
            due_ns: 3_000_000,
        };
        let content = PayloadValues {
            header,
            due_ns: header.due_ns,
            client_id: "me",
            epoch_ms: 1_000,
        };
        let mut out = Vec::new();
        PayloadMaker::new(&payload).unwrap().make(&content, &mut out);
        out
    }

    #[test]
    fn make_of_template_replaces_placeholders() {
        let template = r#"{"n":${counter},"i":${int:5:5},"t":${timestamp_ms},"c":"${client}","b":${bool},"f":${float},"w":${walk},"p":"${truth}"}"#;
        let text = String::from_utf8(make(Payload::Template(template.into()), 41)).unwrap();
        assert!(text.starts_with(r#"{"n":41,"i":5,"t":1003,"c":"me","b":"#), "{text}");
        let found = find_hex(text.as_bytes(), |header| header.run == 1).unwrap();
        assert_eq!((found.sender, found.sequence), (SenderNumber(2), 41));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(json["f"].is_f64() && json["b"].is_boolean());
    }

    #[test]
    fn make_of_random_text_has_length_and_differs() {
        let of = |sequence| make(Payload::Template("<${random:101}>".into()), sequence);
        let (one, other) = (of(1), of(2));
        assert_eq!((one.len(), other.len(), one == of(1)), (103, 103, true));
        assert!(one.is_ascii() && one[1..50] != other[1..50] && one[1..50] != one[50..99]);
    }

    #[test]
    fn make_of_smart_meter_has_three_points() {
        let json: serde_json::Value = serde_json::from_slice(&make(Payload::SmartMeter, 7)).unwrap();
        assert!(json["ts"].is_u64());
        let values = &json["values"];
        assert!((0..1_000_000).contains(&values["pulseCounter"].as_i64().unwrap()));
        assert!(values["leakage"].is_boolean());
        assert!((10..100).contains(&values["batteryLevel"].as_i64().unwrap()));
    }

    #[test]
    fn template_with_unknown_placeholder_fails() {
        for template in [
            "${nothing}",
            "${int:2:1}",
            "${counter",
            "${random:x}",
            "${random:300000000}",
        ] {
            assert!(
                PayloadMaker::new(&Payload::Template(template.into())).is_err(),
                "{template}"
            );
        }
    }

    #[test]
    fn make_of_bytes_has_requested_length() {
        for length in [0, 5, 15, 16, 17, 100] {
            assert_eq!(make(Payload::Bytes(length), 1).len(), length as usize);
        }
    }

    #[test]
    fn walk_moves_in_small_steps() {
        let sender = SenderNumber(3);
        let steps = (0..1_000).map(|n| (walk(sender, n + 1, 0) - walk(sender, n, 0)).abs());
        assert!(steps.fold(0.0, f64::max) < 20.0);
        assert_ne!(walk(sender, 0, 0), walk(sender, 400, 0));
    }
}
