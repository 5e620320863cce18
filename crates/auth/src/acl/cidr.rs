//! A network in CIDR notation, `10.0.0.0/8` or `2001:db8::/32`, or a single address.
//!
//! IPv4-mapped IPv6 addresses are treated as the IPv4 addresses that they contain, on both sides, because a dual-stack
//! listener reports them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// Canonical, host bits zero.
    address: IpAddr,
    prefix_bits: u8,
}

impl Cidr {
    /// Canonical, host bits zero.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    pub fn prefix_bits(&self) -> u8 {
        self.prefix_bits
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                mask(address.to_bits().into(), 32, self.prefix_bits) == u128::from(network.to_bits())
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                mask(address.to_bits(), 128, self.prefix_bits) == network.to_bits()
            }
            _ => false,
        }
    }
}

/// Clears the host bits of an address of `width` bits.
fn mask(bits: u128, width: u8, prefix_bits: u8) -> u128 {
    let host_bits = u32::from(width - prefix_bits);
    bits.checked_shr(host_bits)
        .and_then(|network| network.checked_shl(host_bits))
        .unwrap_or(0)
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Cidr, CidrError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let stated: IpAddr = address.parse().map_err(|_| CidrError::Address)?;
        let width = width(stated);
        let prefix_bits = match prefix {
            None => width,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits
                .parse()
                .ok()
                .filter(|&bits| bits <= width)
                .ok_or(CidrError::Prefix { max: width })?,
            Some(_) => return Err(CidrError::Prefix { max: width }),
        };
        let address = stated.to_canonical();
        match (width - self::width(address), prefix_bits) {
            (0, bits) => Cidr::new(address, bits),
            // An IPv4-mapped network. A prefix shorter than the mapping would include more than IPv4.
            (mapped, bits) if bits >= mapped => Cidr::new(address, bits - mapped),
            _ => Cidr::new(stated, prefix_bits),
        }
    }
}

impl Cidr {
    fn new(address: IpAddr, prefix_bits: u8) -> Result<Cidr, CidrError> {
        let masked = match address {
            IpAddr::V4(v4) => IpAddr::V4((mask(v4.to_bits().into(), 32, prefix_bits) as u32).into()),
            IpAddr::V6(v6) => IpAddr::V6(mask(v6.to_bits(), 128, prefix_bits).into()),
        };
        // `10.1.2.3/8` is more likely a mistake than a deliberate 10.0.0.0/8.
        if masked != address {
            return Err(CidrError::HostBits {
                network: Cidr {
                    address: masked,
                    prefix_bits,
                },
            });
        }
        Ok(Cidr { address, prefix_bits })
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CidrError {
    Address,
    Prefix { max: u8 },
    HostBits { network: Cidr },
}

impl fmt::Display for CidrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CidrError::Address => f.write_str("not an IPv4 or IPv6 address"),
            CidrError::Prefix { max } => write!(f, "the prefix length is not a number from 0 to {max}"),
            CidrError::HostBits { network } => write!(f, "host bits are set; the network is {network}"),
        }
    }
}

impl std::error::Error for CidrError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_contains_exactly_its_addresses() {
        let table = [
            ("10.0.0.0/8", "10.255.255.255", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "10.1.2.3", true),
            ("::ffff:10.0.0.0/104", "11.1.2.3", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "203.0.113.9", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("192.0.2.128/25", "192.0.2.127", false),
            ("192.0.2.128/25", "192.0.2.128", true),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
            ("::1", "::1", true),
            ("::1/128", "::2", false),
            ("127.0.0.0/8", "::1", false),
        ];
        for (network, address, expected) in table {
            let cidr: Cidr = network.parse().unwrap();
            assert_eq!(
                cidr.contains(address.parse().unwrap()),
                expected,
                "{address} in {network}"
            );
        }
    }

    #[test]
    fn malformed_networks_are_rejected() {
        for text in [
            "",
            "10.0.0/8",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "::/129",
            "x",
            "10.0.0.0/8/8",
        ] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
        let error = "10.1.2.3/8".parse::<Cidr>().unwrap_err();
        assert_eq!(error.to_string(), "host bits are set; the network is 10.0.0.0/8");
    }
}
