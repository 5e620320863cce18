//! Connections that this process opens to its own machine: a listener asks here whether a peer is the server itself.
//!
//! Clients on this machine have privileges: they need no login where `access.anonymous` is `loopback`, and they read
//! metrics. A connection that the server opens for an action, a bridge or a rule chain must not have them, because its
//! content comes from elsewhere. So whoever connects binds the socket, registers its local address ([`OwnSocket`]) and
//! connects then. Listeners look up the peer when they accept ([`is_own_connection`]).
//!
//! An address stays registered for a minute after its socket was closed, because a connection may wait in a listener's
//! backlog for longer than it lives. A client on this machine that gets the same port within that minute has no
//! privileges either. The table has at most one entry per local address and port.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const LINGER: Duration = Duration::from_secs(60);
/// Entries from which on expired ones are removed.
const PURGE_MIN: usize = 64;

#[derive(Default)]
struct OwnSockets {
    /// By local address and port. The time at which the socket was closed.
    sockets: HashMap<(IpAddr, u16), Option<Instant>>,
    /// Length at which expired entries are removed next.
    purge_at: usize,
}

static TABLE: LazyLock<Mutex<OwnSockets>> = LazyLock::new(Mutex::default);

/// Entries of the table, so that listeners need no lock while there are none.
static REGISTERED: AtomicUsize = AtomicUsize::new(0);

/// The registration of one socket.
#[derive(Debug)]
pub struct OwnSocket(IpAddr, u16);

impl OwnSocket {
    /// `local`: the address that the socket is bound to. Call it before the socket connects.
    pub fn register(local: SocketAddr) -> OwnSocket {
        let key @ (ip, port) = (local.ip().to_canonical(), local.port());
        let mut table = lock();
        if table.sockets.len() >= table.purge_at.max(PURGE_MIN) {
            let now = Instant::now();
            table.sockets.retain(|_, closed| is_valid(*closed, now));
            table.purge_at = 2 * table.sockets.len();
        }
        table.sockets.insert(key, None);
        REGISTERED.store(table.sockets.len(), Ordering::SeqCst);
        OwnSocket(ip, port)
    }
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        lock().sockets.insert((self.0, self.1), Some(Instant::now()));
    }
}

/// Whether this process opened the connection, now or within the last minute. `peer`: the peer's address as the
/// listener sees it.
pub fn is_own_connection(peer: SocketAddr) -> bool {
    if REGISTERED.load(Ordering::SeqCst) == 0 {
        return false;
    }
    let closed = lock().sockets.get(&(peer.ip().to_canonical(), peer.port())).copied();
    closed.is_some_and(|closed| is_valid(closed, Instant::now()))
}

/// The peer's address as far as a listener may trust it: the unspecified address if the peer is this process, which no
/// rule for clients on this machine matches.
pub fn trusted_peer(peer: SocketAddr) -> SocketAddr {
    match is_own_connection(peer) {
        true => SocketAddr::from((Ipv4Addr::UNSPECIFIED, peer.port())),
        false => SocketAddr::new(peer.ip().to_canonical(), peer.port()),
    }
}

fn is_valid(closed: Option<Instant>, now: Instant) -> bool {
    closed.is_none_or(|at| now.saturating_duration_since(at) < LINGER)
}

/// The source address, with port 0, of connections to `target`, if `target` is an address of this machine. Sends
/// nothing. Fails if there is no socket to find out.
pub fn source_of(target: SocketAddr) -> io::Result<Option<SocketAddr>> {
    let target = unmapped(target);
    let any = match target {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    // Connecting a UDP socket only looks up the route. The kernel reaches an address of this machine from that address.
    let socket = UdpSocket::bind(any)?;
    if socket.connect(target).is_err() {
        // No route: there will be no connection either.
        return Ok(None);
    }
    let mut source = socket.local_addr()?;
    source.set_port(0);
    Ok((source.ip().is_loopback() || source.ip() == target.ip()).then_some(source))
}

/// An IPv4-mapped address as the IPv4 address that it leads to.
pub fn unmapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_none() => address,
        _ => SocketAddr::new(address.ip().to_canonical(), address.port()),
    }
}

fn lock() -> MutexGuard<'static, OwnSockets> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(text: &str) -> SocketAddr {
        text.parse().expect(text)
    }

    #[test]
    fn a_registered_peer_is_own_before_and_after_its_socket_closes() {
        let own = OwnSocket::register(socket("127.0.0.1:40001"));
        assert!(is_own_connection(socket("[::ffff:127.0.0.1]:40001")));
        assert_eq!(trusted_peer(socket("127.0.0.1:40001")), socket("0.0.0.0:40001"));
        for other in ["127.0.0.1:40002", "192.0.2.1:40001", "[::1]:40001"] {
            assert!(!is_own_connection(socket(other)), "{other}");
            assert_eq!(trusted_peer(socket(other)), socket(other));
        }
        drop(own);
        assert!(is_own_connection(socket("127.0.0.1:40001")));
    }

    #[test]
    fn an_entry_expires_a_minute_after_its_socket_closed() {
        let closed = Instant::now();
        for (later, expected) in [(LINGER - Duration::from_secs(1), true), (LINGER, false)] {
            assert_eq!(is_valid(Some(closed), closed + later), expected, "{later:?}");
        }
        assert!(is_valid(None, closed + 10 * LINGER));
    }

    #[test]
    fn addresses_of_this_machine_have_a_source() {
        for text in ["127.0.0.1:1", "127.9.9.9:1", "0.0.0.0:1", "[::ffff:127.0.0.1]:1"] {
            let source = source_of(socket(text)).expect("a socket").expect(text);
            assert!(source.ip().is_loopback() && source.port() == 0, "{text}: {source}");
        }
        let elsewhere = socket("203.0.113.1:1");
        assert_eq!(source_of(elsewhere).expect("a socket"), None);
        // The address from which this machine reaches others, if it reaches any.
        let route = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        if route.connect(elsewhere).is_ok() {
            let address = route.local_addr().expect("an address");
            let source = source_of(address)
                .expect("a socket")
                .expect("an address of this machine");
            assert_eq!(source.ip(), address.ip());
        }
    }
}
