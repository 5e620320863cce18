//! HTTP requests that a proxy has forwarded: the headers that it adds, and the address of the client.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::address_prefix::AddressPrefix;

/// Where a request says that it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOrigin {
    /// From the peer of the connection.
    Peer,
    /// A proxy has forwarded it. Contains the addresses of `X-Forwarded-For`, the nearest last, after the last entry
    /// that is not an IP address.
    Forwarded(Vec<IpAddr>),
}

impl RequestOrigin {
    /// Returns the address of the client behind `peer`. A trusted proxy names it. A forwarded request never counts as
    /// that of a local client: it gets the unspecified address if its client would be on loopback.
    pub fn client(&self, peer: IpAddr, trusted: &[AddressPrefix]) -> IpAddr {
        let RequestOrigin::Forwarded(chain) = self else {
            return peer;
        };
        let is_trusted = |address: IpAddr| trusted.iter().any(|network| network.contains(address));
        let named = chain.iter().rev().find(|address| !is_trusted(**address));
        let client = named.copied().filter(|_| is_trusted(peer)).unwrap_or(peer);
        match client.to_canonical().is_loopback() {
            true => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            false => client,
        }
    }
}

/// Headers that proxies add to the requests that they forward.
pub(crate) const FORWARDING: [&str; 6] = [
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
    "via",
];

/// The forwarding headers of a request.
#[derive(Default)]
pub struct ForwardingHeaders {
    is_forwarded: bool,
    forwarded_for: Vec<IpAddr>,
}

impl ForwardingHeaders {
    /// Takes the next header of the request.
    pub fn take(&mut self, name: &str, value: &str) {
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        self.is_forwarded |= FORWARDING.into_iter().any(is);
        if !is("x-forwarded-for") {
            return;
        }
        for item in value.split(',') {
            match forwarded_address(item.trim()) {
                Some(address) => self.forwarded_for.push(address),
                // The client itself may have written the entries before this one.
                None => self.forwarded_for.clear(),
            }
        }
    }

    pub fn origin(self) -> RequestOrigin {
        match self.is_forwarded {
            true => RequestOrigin::Forwarded(self.forwarded_for),
            false => RequestOrigin::Peer,
        }
    }
}

/// Returns the address of an entry of `X-Forwarded-For`. Some proxies add the port.
fn forwarded_address(item: &str) -> Option<IpAddr> {
    let with_port = || item.parse::<SocketAddr>().ok().map(|address| address.ip());
    item.parse().ok().or_else(with_port)
}
