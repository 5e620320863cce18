//! Decides whether a connection may lead to an address, for targets that a tenant defines: the external nodes of rule
//! chains.
//!
//! The check runs on the address that is about to be connected to, after name resolution. A name that resolves to
//! another address the next time (DNS rebinding) gains nothing, because every new connection is checked.
//!
//! Refused are loopback, private, link-local, multicast, documentation, benchmark and other reserved networks, the
//! metadata services of clouds, and the addresses of this machine. The operator can list networks that are allowed
//! nevertheless. Targets that server administrators define are not checked: administrators own the machine.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::own;

/// Between two lines in the log about refused targets, over all tenants.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Networks that the operator allows, and the count of refused connections. One per server.
pub struct TargetPolicy {
    is_allowed: Box<dyn Fn(IpAddr) -> bool + Send + Sync>,
    /// The option that allows networks, for messages.
    option: &'static str,
    rejected_total: AtomicU64,
    logged: Mutex<LogLimit>,
}

#[derive(Default)]
struct LogLimit {
    last: Option<Instant>,
    suppressed: u64,
}

/// The policy as it applies to one kind of node of one tenant.
#[derive(Clone)]
pub struct Targets {
    policy: Arc<TargetPolicy>,
    tenant: Arc<str>,
    /// As users know the node: `MQTT`.
    node: &'static str,
}

/// A target that a tenant must not connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedTarget {
    node: &'static str,
    /// As the node defines it.
    target: String,
    address: IpAddr,
    kind: &'static str,
    option: &'static str,
}

impl fmt::Display for RefusedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RefusedTarget {
            node,
            target,
            address,
            kind,
            option,
        } = self;
        write!(
            f,
            "the {node} node cannot connect to {target}: {address} is {kind}, and the server's option {option} does not list it"
        )
    }
}

impl std::error::Error for RefusedTarget {}

impl TargetPolicy {
    /// `is_allowed` says whether `option` lists a network with this address.
    pub fn new(option: &'static str, is_allowed: impl Fn(IpAddr) -> bool + Send + Sync + 'static) -> TargetPolicy {
        TargetPolicy {
            is_allowed: Box::new(is_allowed),
            option,
            rejected_total: AtomicU64::new(0),
            logged: Mutex::default(),
        }
    }

    /// Connections that were refused.
    pub fn rejected_total(&self) -> u64 {
        self.rejected_total.load(Ordering::Relaxed)
    }

    fn log(&self, tenant: &str, refused: &RefusedTarget) {
        let now = Instant::now();
        let suppressed = {
            let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
            if logged.last.is_some_and(|last| now - last < LOG_INTERVAL) {
                logged.suppressed += 1;
                return;
            }
            logged.last = Some(now);
            std::mem::take(&mut logged.suppressed)
        };
        tracing::info!(
            tenant,
            node = refused.node,
            target = refused.target,
            address = %refused.address,
            reason = refused.kind,
            option = refused.option,
            suppressed,
            "connection of a rule chain refused"
        );
    }
}

impl Targets {
    pub fn new(policy: &Arc<TargetPolicy>, tenant: &str, node: &'static str) -> Targets {
        Targets {
            policy: Arc::clone(policy),
            tenant: tenant.into(),
            node,
        }
    }

    /// Call it with the address that the socket connects to. `target`: as the node defines it, for messages. Counts and
    /// logs refusals.
    pub fn check(&self, target: &str, address: SocketAddr) -> Result<(), RefusedTarget> {
        let ip = address.ip().to_canonical();
        if (self.policy.is_allowed)(ip) {
            return Ok(());
        }
        let of_this_machine = || match own::source_of(address) {
            Ok(source) => source.map(|_| "an address of this machine"),
            Err(_) => Some("an address for which no socket can be opened"),
        };
        let Some(kind) = reserved(ip).or_else(of_this_machine) else {
            return Ok(());
        };
        let refused = RefusedTarget {
            node: self.node,
            target: target.to_owned(),
            address: ip,
            kind,
            option: self.policy.option,
        };
        self.policy.rejected_total.fetch_add(1, Ordering::Relaxed);
        self.policy.log(&self.tenant, &refused);
        Err(refused)
    }
}

const LOOPBACK: &str = "a loopback address";
const PRIVATE: &str = "a private address";
const LINK_LOCAL: &str = "a link-local address";
const METADATA: &str = "the address of a cloud's metadata service";
const MULTICAST: &str = "a multicast address";
const DOCUMENTATION: &str = "an address for documentation";
const RESERVED: &str = "a reserved address";

/// The first that contains the address names it.
const RESERVED_V4: &[([u8; 4], u32, &str)] = &[
    ([0, 0, 0, 0], 8, "an unspecified address"),
    ([10, 0, 0, 0], 8, PRIVATE),
    // Alibaba Cloud.
    ([100, 100, 100, 200], 32, METADATA),
    ([100, 64, 0, 0], 10, "an address shared behind a carrier's NAT"),
    ([127, 0, 0, 0], 8, LOOPBACK),
    ([169, 254, 169, 254], 32, METADATA),
    ([169, 254, 0, 0], 16, LINK_LOCAL),
    // Azure.
    ([168, 63, 129, 16], 32, METADATA),
    ([172, 16, 0, 0], 12, PRIVATE),
    ([192, 0, 0, 0], 24, RESERVED),
    ([192, 0, 2, 0], 24, DOCUMENTATION),
    // Relays of 6to4, which lead to addresses that this check does not see.
    ([192, 88, 99, 0], 24, RESERVED),
    ([192, 168, 0, 0], 16, PRIVATE),
    ([198, 18, 0, 0], 15, "an address for benchmarks"),
    ([198, 51, 100, 0], 24, DOCUMENTATION),
    ([203, 0, 113, 0], 24, DOCUMENTATION),
    ([224, 0, 0, 0], 4, MULTICAST),
    ([255, 255, 255, 255], 32, "the broadcast address"),
    ([240, 0, 0, 0], 4, RESERVED),
];

/// As `RESERVED_V4`. Outside of 2000::/3 every address is reserved but those of `EMBEDDING`; these entries only name
/// some.
const RESERVED_V6: &[([u16; 8], u32, &str)] = &[
    ([0, 0, 0, 0, 0, 0, 0, 0], 128, "an unspecified address"),
    ([0, 0, 0, 0, 0, 0, 0, 1], 128, LOOPBACK),
    // Amazon Web Services.
    ([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128, METADATA),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, PRIVATE),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, LINK_LOCAL),
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, PRIVATE),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, MULTICAST),
    // Protocol assignments, with Teredo (2001::/32) and benchmarks (2001:2::/48).
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, RESERVED),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, DOCUMENTATION),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, DOCUMENTATION),
];

/// IPv6 networks of which an address carries an IPv4 address, and how many bits follow it.
const EMBEDDING: &[([u16; 8], u32, u32)] = &[
    // NAT64, RFC 6052.
    ([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96, 0),
    // 6to4, RFC 3056.
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16, 80),
];

/// Names the kind of a reserved address. `ip` is canonical, so never an IPv4-mapped IPv6 address.
fn reserved(ip: IpAddr) -> Option<&'static str> {
    match ip {
        IpAddr::V4(v4) => reserved_v4(v4),
        IpAddr::V6(v6) => reserved_v6(v6),
    }
}

fn reserved_v4(v4: Ipv4Addr) -> Option<&'static str> {
    let contains = |network: [u8; 4], prefix: u32| (v4.to_bits() ^ u32::from_be_bytes(network)) >> (32 - prefix) == 0;
    let found = RESERVED_V4
        .iter()
        .find(|(network, prefix, _)| contains(*network, *prefix));
    found.map(|(.., kind)| *kind)
}

fn reserved_v6(v6: Ipv6Addr) -> Option<&'static str> {
    let contains =
        |network: [u16; 8], prefix: u32| (v6.to_bits() ^ Ipv6Addr::from(network).to_bits()) >> (128 - prefix) == 0;
    let found = RESERVED_V6
        .iter()
        .find(|(network, prefix, _)| contains(*network, *prefix));
    if let Some((.., kind)) = found {
        return Some(kind);
    }
    let embedding = EMBEDDING
        .iter()
        .find(|(network, prefix, _)| contains(*network, *prefix));
    match embedding {
        Some((.., bits_after)) => reserved_v4(Ipv4Addr::from_bits((v6.to_bits() >> bits_after) as u32)),
        None => (v6.to_bits() >> 125 != 1).then_some(RESERVED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse::<IpAddr>().expect(text).to_canonical()
    }

    #[test]
    fn addresses_outside_the_internet_are_reserved() {
        for (text, kind) in [
            ("0.0.0.0", "an unspecified address"),
            ("0.1.2.3", "an unspecified address"),
            ("10.0.0.1", PRIVATE),
            ("10.255.255.255", PRIVATE),
            ("100.64.0.1", "an address shared behind a carrier's NAT"),
            ("100.127.255.255", "an address shared behind a carrier's NAT"),
            ("100.100.100.200", METADATA),
            ("127.0.0.1", LOOPBACK),
            ("127.255.255.254", LOOPBACK),
            ("168.63.129.16", METADATA),
            ("169.254.0.1", LINK_LOCAL),
            ("169.254.169.254", METADATA),
            ("172.16.0.1", PRIVATE),
            ("172.31.255.255", PRIVATE),
            ("192.0.0.170", RESERVED),
            ("192.0.2.1", DOCUMENTATION),
            ("192.88.99.1", RESERVED),
            ("192.168.0.1", PRIVATE),
            ("192.168.255.255", PRIVATE),
            ("198.18.0.1", "an address for benchmarks"),
            ("198.19.255.255", "an address for benchmarks"),
            ("198.51.100.7", DOCUMENTATION),
            ("203.0.113.7", DOCUMENTATION),
            ("224.0.0.1", MULTICAST),
            ("239.255.255.250", MULTICAST),
            ("240.0.0.1", RESERVED),
            ("255.255.255.255", "the broadcast address"),
            ("::", "an unspecified address"),
            ("::1", LOOPBACK),
            ("::2", RESERVED),
            // IPv4-mapped, as they are and behind NAT64 and 6to4.
            ("::ffff:127.0.0.1", LOOPBACK),
            ("::ffff:10.0.0.1", PRIVATE),
            ("::ffff:169.254.169.254", METADATA),
            ("64:ff9b::127.0.0.1", LOOPBACK),
            ("64:ff9b::192.168.1.1", PRIVATE),
            ("64:ff9b::a9fe:a9fe", METADATA),
            ("2002:7f00:1::", LOOPBACK),
            ("2002:7f00:1::1", LOOPBACK),
            ("2002:a00:1:ffff:ffff:ffff:ffff:ffff", PRIVATE),
            // IPv4-compatible, IPv4-translated, NAT64 for local use.
            ("::127.0.0.1", RESERVED),
            ("::8.8.8.8", RESERVED),
            ("::ffff:0:127.0.0.1", RESERVED),
            ("64:ff9b:1::7f00:1", RESERVED),
            ("100::1", RESERVED),
            ("2001::1", RESERVED),
            ("2001:0:4136:e378:8000:63bf:3fff:fdd2", RESERVED),
            ("2001:2::1", RESERVED),
            ("2001:db8::1", DOCUMENTATION),
            ("3fff::1", DOCUMENTATION),
            ("5f00::1", RESERVED),
            ("fc00::1", PRIVATE),
            ("fd00:ec2::254", METADATA),
            ("fdff:ffff::1", PRIVATE),
            ("fe80::1", LINK_LOCAL),
            ("febf::1", LINK_LOCAL),
            ("fec0::1", PRIVATE),
            ("ff02::1", MULTICAST),
        ] {
            assert_eq!(reserved(ip(text)), Some(kind), "{text}");
        }
    }

    #[test]
    fn addresses_of_the_internet_are_not_reserved() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.1",
            "126.255.255.255",
            "128.0.0.1",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.1",
            "172.15.255.255",
            "172.32.0.1",
            "192.0.1.1",
            "192.167.255.255",
            "192.169.0.1",
            "198.17.255.255",
            "198.20.0.1",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2002:808:808::1",
            "2606:4700::1111",
            "3ffe:ffff::1",
        ] {
            assert_eq!(reserved(ip(text)), None, "{text}");
        }
    }

    fn targets(allowed: &'static [&'static str]) -> (Arc<TargetPolicy>, Targets) {
        let is_allowed = |address: IpAddr| allowed.iter().any(|listed| ip(listed) == address);
        let policy = Arc::new(TargetPolicy::new("platform.outbound_networks", is_allowed));
        let targets = Targets::new(&policy, "t", "MQTT");
        (policy, targets)
    }

    fn socket(text: &str) -> SocketAddr {
        SocketAddr::new(text.parse().expect(text), 1883)
    }

    #[test]
    fn a_refusal_names_node_target_address_and_option() {
        let (policy, targets) = targets(&[]);
        let refused = targets.check("localhost:1883", socket("::ffff:127.0.0.1"));
        assert_eq!(
            refused.expect_err("refused").to_string(),
            "the MQTT node cannot connect to localhost:1883: 127.0.0.1 is a loopback address, and the server's option \
             platform.outbound_networks does not list it"
        );
        assert_eq!(policy.rejected_total(), 1);
    }

    #[test]
    fn a_listed_address_is_allowed_in_its_mapped_form_only() {
        let (policy, targets) = targets(&["127.0.0.1"]);
        for text in ["127.0.0.1", "::ffff:127.0.0.1"] {
            assert_eq!(targets.check("h:1", socket(text)), Ok(()), "{text}");
        }
        for text in [
            "127.0.0.2",
            "::1",
            "64:ff9b::127.0.0.1",
            "2002:7f00:1::1",
            "::127.0.0.1",
        ] {
            assert!(targets.check("h:1", socket(text)).is_err(), "{text}");
        }
        assert_eq!(policy.rejected_total(), 5);
    }
}
