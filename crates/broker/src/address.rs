//! A compact socket address: 24 bytes instead of the 32 of `SocketAddr`. The IPv6 flow label, which does not identify
//! the peer, is dropped.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactAddress {
    ip: IpAddr,
    port: u16,
    scope_id: u32,
}

impl From<SocketAddr> for CompactAddress {
    fn from(address: SocketAddr) -> Self {
        CompactAddress {
            ip: address.ip(),
            port: address.port(),
            scope_id: match address {
                SocketAddr::V4(_) => 0,
                SocketAddr::V6(v6) => v6.scope_id(),
            },
        }
    }
}

impl CompactAddress {
    pub fn get(self) -> SocketAddr {
        match self.ip {
            IpAddr::V4(_) => SocketAddr::new(self.ip, self.port),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, self.port, 0, self.scope_id).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_survives_a_round_trip() {
        assert!(size_of::<CompactAddress>() <= 24);
        for text in ["192.0.2.1:1883", "[2001:db8::1]:8883", "[fe80::1%3]:1883"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(CompactAddress::from(address).get(), address);
        }
    }
}
