//! The PROXY protocol, versions 1 and 2, as a receiver (haproxy `doc/proxy-protocol.txt`). Pure: bytes in, address out.
//!
//! ```text
//! v1  "PROXY TCP4 <source> <destination> <source port> <destination port>\r\n", or "PROXY UNKNOWN …\r\n";
//!     at most 107 bytes
//! v2  | 0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A | 2 command(4) | family(4) transport(4) | length(16) | addresses | TLVs |
//! ```
//!
//! TLVs are skipped. The caller checks whether the peer may send a header before it reads the first byte.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Longest line of version 1.
const V1_BYTES_MAX: usize = 107;

/// Far above a header with all the TLVs that load balancers send.
const V2_BYTES_MAX: usize = 2048;

const V2_SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const V2_HEADER_BYTES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    Incomplete,
    Complete {
        /// Size of the header. The following bytes belong to the client.
        size: usize,
        /// Address of the client. `None` if the proxy speaks for itself (health checks) or does not know it.
        source: Option<SocketAddr>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyError {
    NoHeader,
    TooLong,
    Malformed,
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProxyError::NoHeader => "the connection does not begin with a PROXY header",
            ProxyError::TooLong => "the PROXY header is too long",
            ProxyError::Malformed => "the PROXY header is malformed",
        })
    }
}

impl std::error::Error for ProxyError {}

/// Decodes the header at the start of `bytes`.
pub fn decode(bytes: &[u8]) -> Result<ProxyHeader, ProxyError> {
    const V1_SIGNATURE: &[u8] = b"PROXY ";
    if matches_prefix(bytes, V1_SIGNATURE) {
        return decode_v1(bytes);
    }
    if matches_prefix(bytes, &V2_SIGNATURE) {
        return decode_v2(bytes);
    }
    Err(ProxyError::NoHeader)
}

/// Returns whether `bytes` is a prefix of `signature` or starts with it.
fn matches_prefix(bytes: &[u8], signature: &[u8]) -> bool {
    let common = bytes.len().min(signature.len());
    bytes[..common] == signature[..common]
}

fn decode_v1(bytes: &[u8]) -> Result<ProxyHeader, ProxyError> {
    let window = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() >= V1_BYTES_MAX {
            Err(ProxyError::TooLong)
        } else {
            Ok(ProxyHeader::Incomplete)
        };
    };
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| ProxyError::Malformed)?;
    let mut fields = line.split(' ').skip(1);
    let source = match fields.next() {
        // The rest of the line after UNKNOWN is ignored.
        Some("UNKNOWN") => None,
        Some("TCP4") => Some(v1_source::<Ipv4Addr>(fields)?),
        Some("TCP6") => Some(v1_source::<Ipv6Addr>(fields)?),
        _ => return Err(ProxyError::Malformed),
    };
    Ok(ProxyHeader::Complete { size: end + 2, source })
}

fn v1_source<'a, A>(mut fields: impl Iterator<Item = &'a str>) -> Result<SocketAddr, ProxyError>
where
    A: FromStr + Into<IpAddr>,
{
    let mut next = || fields.next().ok_or(ProxyError::Malformed);
    let source = next()?.parse::<A>().map_err(|_| ProxyError::Malformed)?;
    next()?.parse::<A>().map_err(|_| ProxyError::Malformed)?;
    let source_port = v1_port(next()?)?;
    v1_port(next()?)?;
    match next() {
        Ok(_) => Err(ProxyError::Malformed),
        Err(_) => Ok(SocketAddr::new(source.into(), source_port)),
    }
}

/// Parses a decimal port without sign or leading zero.
fn v1_port(text: &str) -> Result<u16, ProxyError> {
    let is_canonical = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_canonical).ok_or(ProxyError::Malformed)
}

fn decode_v2(bytes: &[u8]) -> Result<ProxyHeader, ProxyError> {
    let Some(header) = bytes.first_chunk::<V2_HEADER_BYTES>() else {
        return Ok(ProxyHeader::Incomplete);
    };
    let (version, command) = (header[12] >> 4, header[12] & 0x0F);
    let length = usize::from(u16::from_be_bytes([header[14], header[15]]));
    if version != 2 || command > 1 {
        return Err(ProxyError::Malformed);
    }
    if V2_HEADER_BYTES + length > V2_BYTES_MAX {
        return Err(ProxyError::TooLong);
    }
    let Some(body) = bytes[V2_HEADER_BYTES..].get(..length) else {
        return Ok(ProxyHeader::Incomplete);
    };
    let is_local = command == 0;
    let source = if is_local { None } else { v2_source(header[13], body)? };
    Ok(ProxyHeader::Complete {
        size: V2_HEADER_BYTES + length,
        source,
    })
}

/// Reads source address, destination address, source port and destination port. TLVs follow.
fn v2_source(family: u8, body: &[u8]) -> Result<Option<SocketAddr>, ProxyError> {
    const TCP_OVER_IPV4: u8 = 0x11;
    const TCP_OVER_IPV6: u8 = 0x21;
    let (address, port): (IpAddr, &[u8]) = match family {
        TCP_OVER_IPV4 => {
            let body = body.first_chunk::<12>().ok_or(ProxyError::Malformed)?;
            (
                Ipv4Addr::from_octets(*body.first_chunk().expect("12 bytes")).into(),
                &body[8..10],
            )
        }
        TCP_OVER_IPV6 => {
            let body = body.first_chunk::<36>().ok_or(ProxyError::Malformed)?;
            (
                Ipv6Addr::from_octets(*body.first_chunk().expect("36 bytes")).into(),
                &body[32..34],
            )
        }
        // Unspecified, UDP and UNIX sockets have no client address.
        0x00 | 0x12 | 0x22 | 0x31 | 0x32 => return Ok(None),
        _ => return Err(ProxyError::Malformed),
    };
    Ok(Some(SocketAddr::new(address, u16::from_be_bytes([port[0], port[1]]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = V2_SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend((body.len() as u16).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    fn source(text: &str) -> Option<SocketAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn valid_headers_decode_and_prefixes_are_incomplete() {
        let v4 = [192, 0, 2, 1, 10, 0, 0, 1, 0xC3, 0x50, 0x07, 0x5B];
        let mut v6 = [0; 36];
        v6[..16].copy_from_slice(&"2001:db8::7".parse::<Ipv6Addr>().unwrap().octets());
        v6[32..].copy_from_slice(&[0xC3, 0x50, 0x22, 0xB3]);
        let with_tlvs = [&v4[..], &[0x03, 0, 4, 1, 2, 3, 4]].concat();
        let cases: &[(&str, Vec<u8>, Option<SocketAddr>)] = &[
            (
                "v1 TCP4",
                b"PROXY TCP4 192.0.2.1 10.0.0.1 50000 1883\r\n".to_vec(),
                source("192.0.2.1:50000"),
            ),
            (
                "v1 TCP6",
                b"PROXY TCP6 2001:db8::7 ::1 50000 8883\r\n".to_vec(),
                source("[2001:db8::7]:50000"),
            ),
            ("v1 UNKNOWN", b"PROXY UNKNOWN\r\n".to_vec(), None),
            (
                "v1 UNKNOWN with more",
                b"PROXY UNKNOWN ffff:f::1 ffff::2 65535 65535\r\n".to_vec(),
                None,
            ),
            ("v2 TCP4", v2(0x21, 0x11, &v4), source("192.0.2.1:50000")),
            ("v2 TCP6", v2(0x21, 0x21, &v6), source("[2001:db8::7]:50000")),
            ("v2 with TLVs", v2(0x21, 0x11, &with_tlvs), source("192.0.2.1:50000")),
            ("v2 LOCAL", v2(0x20, 0x00, &[]), None),
            ("v2 LOCAL with addresses", v2(0x20, 0x11, &v4), None),
            ("v2 unspecified", v2(0x21, 0x00, &[]), None),
            ("v2 UNIX", v2(0x21, 0x31, &[0; 216]), None),
        ];
        for (name, bytes, source) in cases {
            let size = bytes.len();
            let followed = [bytes.as_slice(), b"\x10\x0C"].concat();
            assert_eq!(
                decode(&followed),
                Ok(ProxyHeader::Complete { size, source: *source }),
                "{name}"
            );
            for end in 0..size {
                assert_eq!(
                    decode(&bytes[..end]),
                    Ok(ProxyHeader::Incomplete),
                    "{name} cut at {end}"
                );
            }
        }
    }

    #[test]
    fn malformed_headers_are_rejected() {
        let cases: &[(&str, Vec<u8>, ProxyError)] = &[
            ("MQTT", b"\x10\x0C\x00\x04MQTT".to_vec(), ProxyError::NoHeader),
            ("TLS", b"\x16\x03\x01".to_vec(), ProxyError::NoHeader),
            ("lower case", b"proxy TCP4".to_vec(), ProxyError::NoHeader),
            (
                "v1 endless",
                [b"PROXY TCP4 ".to_vec(), vec![b'1'; 200]].concat(),
                ProxyError::TooLong,
            ),
            (
                "v1 other family",
                b"PROXY UDP4 1.1.1.1 2.2.2.2 1 2\r\n".to_vec(),
                ProxyError::Malformed,
            ),
            (
                "v1 address of the other family",
                b"PROXY TCP4 ::1 ::2 1 2\r\n".to_vec(),
                ProxyError::Malformed,
            ),
            (
                "v1 octet",
                b"PROXY TCP4 256.1.1.1 2.2.2.2 1 2\r\n".to_vec(),
                ProxyError::Malformed,
            ),
            (
                "v1 port",
                b"PROXY TCP4 1.1.1.1 2.2.2.2 65536 2\r\n".to_vec(),
                ProxyError::Malformed,
            ),
            (
                "v1 signed port",
                b"PROXY TCP4 1.1.1.1 2.2.2.2 +1 2\r\n".to_vec(),
                ProxyError::Malformed,
            ),
            (
                "v1 leading zero",
                b"PROXY TCP4 1.1.1.1 2.2.2.2 01 2\r\n".to_vec(),
                ProxyError::Malformed,
            ),
            (
                "v1 missing port",
                b"PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n".to_vec(),
                ProxyError::Malformed,
            ),
            (
                "v1 extra field",
                b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2 3\r\n".to_vec(),
                ProxyError::Malformed,
            ),
            (
                "v1 two spaces",
                b"PROXY TCP4  1.1.1.1 2.2.2.2 1 2\r\n".to_vec(),
                ProxyError::Malformed,
            ),
            ("v1 empty", b"PROXY \r\n".to_vec(), ProxyError::Malformed),
            ("v1 not text", b"PROXY \xFF\xFE\r\n".to_vec(), ProxyError::Malformed),
            ("v2 version", v2(0x11, 0x11, &[0; 12]), ProxyError::Malformed),
            ("v2 command", v2(0x22, 0x11, &[0; 12]), ProxyError::Malformed),
            ("v2 family", v2(0x21, 0x41, &[0; 12]), ProxyError::Malformed),
            ("v2 short address", v2(0x21, 0x11, &[0; 11]), ProxyError::Malformed),
            ("v2 short address 6", v2(0x21, 0x21, &[0; 35]), ProxyError::Malformed),
            ("v2 huge", v2(0x21, 0x11, &[0; 60_000]), ProxyError::TooLong),
            ("v2 signature", b"\r\n\r\n\0\r\nQUIT\r".to_vec(), ProxyError::NoHeader),
        ];
        for (name, bytes, error) in cases {
            assert_eq!(decode(bytes), Err(*error), "{name}");
        }
    }

    /// Changes or truncates valid headers. Any result is allowed, except a size beyond the available bytes.
    #[test]
    fn damaged_headers_never_claim_missing_bytes() {
        let v1 = b"PROXY TCP4 192.0.2.1 10.0.0.1 50000 1883\r\n".to_vec();
        for header in [v1, v2(0x21, 0x11, &[7; 30]), v2(0x21, 0x21, &[7; 50])] {
            for at in 0..header.len() {
                for value in 0..=255 {
                    let mut damaged = header.clone();
                    damaged[at] = value;
                    for end in [at, header.len()] {
                        if let Ok(ProxyHeader::Complete { size, .. }) = decode(&damaged[..end]) {
                            assert!(size <= end);
                        }
                    }
                }
            }
        }
    }
}
