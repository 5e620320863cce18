//! Networks, such as those of trusted proxies.

use std::net::IpAddr;

/// An address and the number of leading bits that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressPrefix {
    pub address: IpAddr,
    pub prefix_bits: u8,
}

impl AddressPrefix {
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(net), IpAddr::V4(other)) => {
                same_prefix(net.to_bits().into(), other.to_bits().into(), 32, self.prefix_bits)
            }
            (IpAddr::V6(net), IpAddr::V6(other)) => same_prefix(net.to_bits(), other.to_bits(), 128, self.prefix_bits),
            _ => false,
        }
    }
}

fn same_prefix(a: u128, b: u128, width: u32, prefix_bits: u8) -> bool {
    let ignored = width.saturating_sub(u32::from(prefix_bits));
    (a ^ b).checked_shr(ignored).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_contains_addresses_with_its_prefix() {
        for (address, prefix_bits, other, expected) in [
            ("10.0.0.0", 8, "10.255.1.2", true),
            ("10.0.0.0", 8, "11.0.0.1", false),
            ("192.168.1.7", 32, "192.168.1.7", true),
            ("192.168.1.7", 32, "192.168.1.6", false),
            ("192.168.1.7", 32, "::ffff:192.168.1.7", true),
            ("0.0.0.0", 0, "8.8.8.8", true),
            ("0.0.0.0", 0, "::1", false),
            ("fd00::", 8, "fd12::1", true),
            ("::", 0, "2001:db8::1", true),
            ("::1", 128, "::2", false),
        ] {
            let network = AddressPrefix {
                address: address.parse().unwrap(),
                prefix_bits,
            };
            assert_eq!(
                network.contains(other.parse().unwrap()),
                expected,
                "{address}/{prefix_bits} {other}"
            );
        }
    }
}
