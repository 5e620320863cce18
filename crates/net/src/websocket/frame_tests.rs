//! Tests a table of client frames, whole and split at every position.

use super::*;

const MASK: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

/// Returns a masked client frame.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..126 => bytes.push(0x80 | len as u8),
        len @ 126..65536 => {
            bytes.push(0x80 | 126);
            bytes.extend((len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0x80 | 127);
            bytes.extend((len as u64).to_be_bytes());
        }
    }
    bytes.extend(MASK);
    bytes.extend(payload.iter().enumerate().map(|(index, byte)| byte ^ MASK[index % 4]));
    bytes
}

const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8A;

struct DecodedInput {
    data: Vec<u8>,
    ended: Option<DecodeEnd>,
    ping: Option<Vec<u8>>,
    close_code: Option<CloseCode>,
}

fn decode(bytes: &[u8], chunk_bytes: usize) -> DecodedInput {
    let mut decoder = FrameDecoder::default();
    let mut seen = DecodedInput {
        data: Vec::new(),
        ended: None,
        ping: None,
        close_code: None,
    };
    for chunk in bytes.chunks(chunk_bytes) {
        let mut chunk = chunk.to_vec();
        let decoded = decoder.decode(&mut chunk);
        seen.data.extend(&chunk[..decoded.data_bytes]);
        seen.ended = decoded.ended;
    }
    seen.ping = decoder.take_ping();
    seen.close_code = decoder.close_code();
    seen
}

/// Decodes the bytes at once, and in pieces of every small size, so that headers, masks and payloads are split
/// everywhere.
fn decode_all_ways(bytes: &[u8]) -> DecodedInput {
    let whole = decode(bytes, bytes.len().max(1));
    for chunk_bytes in 1..bytes.len().min(40) {
        let cut = decode(bytes, chunk_bytes);
        assert_eq!(
            (&cut.data, cut.ended, &cut.ping),
            (&whole.data, whole.ended, &whole.ping),
            "pieces of {chunk_bytes}"
        );
    }
    whole
}

#[test]
fn payload_is_independent_of_the_framing() {
    let long: Vec<u8> = (0..70_000u32).map(|n| n as u8).collect();
    type Case<'a> = (&'a str, Vec<Vec<u8>>, Vec<u8>);
    let cases: &[Case<'_>] = &[
        ("one frame", vec![frame(BINARY, b"hello")], b"hello".to_vec()),
        (
            "empty frame",
            vec![frame(BINARY, b""), frame(BINARY, b"x")],
            b"x".to_vec(),
        ),
        (
            "several frames",
            vec![frame(BINARY, b"ab"), frame(BINARY, b"cde")],
            b"abcde".to_vec(),
        ),
        (
            "fragments",
            vec![frame(0x02, b"ab"), frame(0x00, b"cd"), frame(0x80, b"ef")],
            b"abcdef".to_vec(),
        ),
        (
            "control inside a message",
            vec![frame(0x02, b"ab"), frame(PING, b"?"), frame(0x80, b"cd")],
            b"abcd".to_vec(),
        ),
        (
            "pong is ignored",
            vec![frame(PONG, b"!"), frame(BINARY, b"x")],
            b"x".to_vec(),
        ),
        ("16-bit length", vec![frame(BINARY, &long[..300])], long[..300].to_vec()),
        ("64-bit length", vec![frame(BINARY, &long)], long.clone()),
    ];
    for (name, frames, expected) in cases {
        let seen = decode_all_ways(&frames.concat());
        assert_eq!((&seen.data, seen.ended), (expected, None), "{name}");
    }
}

#[test]
fn violations_end_the_stream_with_their_code() {
    let mut unmasked = frame(BINARY, b"hello");
    unmasked[1] &= 0x7F;
    let non_minimal_16 = [&[BINARY, 0x80 | 126, 0, 5][..], &MASK, b"hello"].concat();
    let non_minimal_64 = [&[BINARY, 0x80 | 127, 0, 0, 0, 0, 0, 0, 0, 5][..], &MASK, b"hello"].concat();
    let huge = [&[BINARY, 0x80 | 127][..], &(1u64 << 62).to_be_bytes(), &MASK].concat();
    let cases: &[(&str, Vec<u8>, FrameError, u16)] = &[
        ("W03 text frame", frame(0x81, b"hello"), FrameError::Text, 1003),
        ("W04 unmasked frame", unmasked, FrameError::Unmasked, 1002),
        ("W06 2^62 bytes", huge, FrameError::TooBig, 1009),
        ("reserved bit", frame(0xC2, b"x"), FrameError::ReservedBits, 1002),
        (
            "unknown data opcode",
            frame(0x83, b"x"),
            FrameError::UnknownOpcode,
            1002,
        ),
        (
            "unknown control opcode",
            frame(0x8B, b"x"),
            FrameError::UnknownOpcode,
            1002,
        ),
        ("fragmented ping", frame(0x09, b"x"), FrameError::ControlFrame, 1002),
        ("long ping", frame(PING, &[0; 126]), FrameError::ControlFrame, 1002),
        ("continuation first", frame(0x80, b"x"), FrameError::Fragmentation, 1002),
        (
            "message in message",
            [frame(0x02, b"x"), frame(0x82, b"y")].concat(),
            FrameError::Fragmentation,
            1002,
        ),
        ("16-bit length not needed", non_minimal_16, FrameError::LengthForm, 1002),
        ("64-bit length not needed", non_minimal_64, FrameError::LengthForm, 1002),
    ];
    for (name, bytes, error, code) in cases {
        let seen = decode_all_ways(bytes);
        assert_eq!(seen.ended, Some(DecodeEnd::Violation(*error)), "{name}");
        assert_eq!(seen.close_code, Some(CloseCode(*code)), "{name}");
    }
}

#[test]
fn data_before_the_end_is_delivered_and_later_data_ignored() {
    let bytes = [
        frame(BINARY, b"used"),
        frame(CLOSE, &1000u16.to_be_bytes()),
        frame(BINARY, b"lost"),
    ]
    .concat();
    let seen = decode_all_ways(&bytes);
    assert_eq!(
        (seen.data.as_slice(), seen.ended),
        (&b"used"[..], Some(DecodeEnd::Closed))
    );
    let bytes = [frame(BINARY, b"used"), frame(0x81, b"text")].concat();
    let seen = decode_all_ways(&bytes);
    assert_eq!(
        (seen.data.as_slice(), seen.ended),
        (&b"used"[..], Some(DecodeEnd::Violation(FrameError::Text)))
    );
}

#[test]
fn valid_close_codes_are_echoed() {
    for (payload, expected) in [
        (&[][..], 1000),
        (&[0x03, 0xE9][..], 1001),
        (&[0x0F, 0xA0, b'b', b'y', b'e'][..], 4000),
        (&[0x03][..], 1002),
        (&[0x03, 0xED][..], 1002),
        (&[0x00, 0x01][..], 1002),
    ] {
        let seen = decode_all_ways(&frame(CLOSE, payload));
        assert_eq!(
            (seen.ended, seen.close_code),
            (Some(DecodeEnd::Closed), Some(CloseCode(expected))),
            "{payload:?}"
        );
    }
}

#[test]
fn flood_of_pings_causes_one_pong() {
    let mut decoder = FrameDecoder::default();
    for number in 0..100_000u32 {
        let decoded = decoder.decode(&mut frame(PING, &number.to_be_bytes()));
        assert_eq!((decoded.data_bytes, decoded.ended), (0, None));
    }
    assert_eq!(decoder.take_ping().as_deref(), Some(&99_999u32.to_be_bytes()[..]));
    assert!(!decoder.has_pending_pong());
    assert_eq!(decoder.control.capacity(), 0, "an idle connection owns no buffer");
}

#[test]
fn unmasking_works_at_every_length_and_rotation() {
    let plain: Vec<u8> = (0..67).map(|n| n * 3).collect();
    for length in 0..plain.len() {
        for rotation in 0..4 {
            let mut mask = MASK;
            mask.rotate_left(rotation);
            let mut masked = plain[..length].to_vec();
            unmask(&mut masked, mask);
            let expected: Vec<u8> = (0..length).map(|n| plain[n] ^ mask[n % 4]).collect();
            assert_eq!(masked, expected);
        }
    }
}

#[test]
fn server_headers_use_the_shortest_length() {
    for (payload_bytes, expected) in [
        (0, vec![0x82, 0]),
        (125, vec![0x82, 125]),
        (126, vec![0x82, 126, 0, 126]),
        (65_535, vec![0x82, 126, 0xFF, 0xFF]),
        (65_536, vec![0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
    ] {
        let (header, size) = frame_header(Opcode::Binary, payload_bytes);
        assert_eq!(&header[..size], expected);
    }
}

/// Random bytes. Most begin like a masked frame, so that decoding progresses.
#[test]
fn random_bytes_decode_equally_in_any_pieces() {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for _ in 0..20_000 {
        let mut bytes: Vec<u8> = (0..next() % 60).map(|_| next() as u8).collect();
        if let [first, second, ..] = bytes.as_mut_slice() {
            *first = [0x82, 0x02, 0x80, 0x89, 0x88, *first][(next() % 6) as usize];
            *second |= 0x80;
        }
        let whole = decode(&bytes, bytes.len().max(1));
        let cut = decode(&bytes, (next() % 7) as usize + 1);
        assert_eq!(
            (&cut.data, cut.ended, &cut.ping),
            (&whole.data, whole.ended, &whole.ping),
            "{bytes:02x?}"
        );
        assert!(whole.data.len() <= bytes.len());
    }
}
