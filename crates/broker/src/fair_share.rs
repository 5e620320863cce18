//! Shares of the networks of clients in a limit for all of them.

use std::net::{IpAddr, Ipv6Addr};

/// Returns whether one of many owners may have the amount `own`, with which all together have `all`. Half of `max` is
/// for any owner, the other half for owners with at most an eighth.
pub fn has_fair_share(all: usize, own: usize, max: usize) -> bool {
    all <= max.div_ceil(2) || (all <= max && own <= max.div_ceil(8))
}

/// Returns the address that stands for all addresses of a client: the /64 of an IPv6 address, which one machine can use
/// completely, otherwise the address.
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_client_have_one_network() {
        let network = |address: &str| client_network(address.parse().unwrap()).to_string();
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(network("2001:db8:1:3::6"), "2001:db8:1:3::");
        assert_eq!(network("192.0.2.7"), "192.0.2.7");
        assert_eq!(network("::ffff:192.0.2.7"), "192.0.2.7");
    }
}
