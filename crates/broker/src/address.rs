//! A peer's address as a session keeps it: 24 bytes for the 32 of `SocketAddr`, without the flow label, which says nothing
//! about who it is.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptAddress {
    ip: IpAddr,
    port: u16,
    scope_id: u32,
}

impl From<SocketAddr> for KeptAddress {
    fn from(address: SocketAddr) -> Self {
        KeptAddress {
            ip: address.ip(),
            port: address.port(),
            scope_id: match address {
                SocketAddr::V4(_) => 0,
                SocketAddr::V6(v6) => v6.scope_id(),
            },
        }
    }
}

impl KeptAddress {
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
    fn what_is_kept_is_what_came() {
        assert!(size_of::<KeptAddress>() <= 24);
        for text in ["192.0.2.1:1883", "[2001:db8::1]:8883", "[fe80::1%3]:1883"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(KeptAddress::from(address).get(), address);
        }
    }
}
