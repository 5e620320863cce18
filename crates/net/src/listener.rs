//! Listening sockets: binding, the process that occupies a port, limits, and information about each listener.
//!
//! There is one socket per listener, shared by all workers: each polls its own duplicate of the descriptor. One socket
//! per worker with SO_REUSEPORT was rejected: the kernel distributes connections unevenly, connections wait in the
//! backlog of a busy worker, a second server could bind the same port without an error, and nothing is gained, because
//! a connection moves to its worker after CONNECT anyway. With a shared socket, idle workers accept. On Linux a new
//! connection wakes only one of them.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use broker::{TokenBucket, Transport};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::config::ListenerConfig;
use crate::counters::EarlyCloseReason;
use crate::port_owner::{self, PortOwner};

/// Size of the kernel's buffer for received datagrams, if the system allows it (`net.core.rmem_max`).
const UDP_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// The socket of a listener.
pub(crate) enum ListenerSocket {
    Tcp(TcpListener),
    /// For QUIC.
    #[cfg_attr(
        not(feature = "quic"),
        expect(dead_code, reason = "such a build has no QUIC listeners")
    )]
    Udp(UdpSocket),
}

/// A listener could not be bound.
#[derive(Debug)]
pub struct BindError {
    pub listener: Box<str>,
    pub address: SocketAddr,
    /// Configuration key of the address.
    pub key: String,
    pub source: io::Error,
    /// The process that listens on the port, if that is the cause and it could be determined.
    pub owner: Option<PortOwner>,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listener {} cannot bind {}", self.listener, self.address)?;
        match (&self.owner, self.source.kind()) {
            (Some(owner), _) => write!(f, ": the port is in use by {owner}")?,
            (None, io::ErrorKind::AddrInUse) => write!(f, ": the port is in use by another process")?,
            (None, io::ErrorKind::PermissionDenied) => write!(
                f,
                ": permission denied (ports below 1024 need root or CAP_NET_BIND_SERVICE)"
            )?,
            (None, _) => write!(f, ": {}", self.source)?,
        }
        write!(f, "; set another address with {}", self.key)
    }
}

/// Has no source: the text contains it, because several errors are reported together.
impl std::error::Error for BindError {}

/// Information about a listener for operators.
#[derive(Clone, Debug)]
pub struct ListenerInfo {
    pub name: Box<str>,
    pub transport: Transport,
    /// The bound address, with port 0 resolved.
    pub address: SocketAddr,
    /// The listener has no socket of its own (`ServerConfig::handed_over`).
    pub is_handed_over: bool,
    /// Number of open connections, including those in their handshake.
    pub current_connections: usize,
    pub max_connections: usize,
    pub accepted: u64,
    pub refused: [u64; EarlyCloseReason::COUNT],
}

impl ListenerInfo {
    pub fn tls_handshake_failures(&self) -> u64 {
        self.refused[EarlyCloseReason::TlsHandshake as usize]
    }
}

/// A listener as shared by all workers. Accessed when a connection is opened or closed, never per packet.
pub(crate) struct SharedListener {
    pub(crate) config: ListenerConfig,
    /// For a listener without a socket, set when the address is known.
    pub(crate) address: OnceLock<SocketAddr>,
    pub(crate) is_handed_over: bool,
    current: AtomicUsize,
    accepted: AtomicU64,
    refused: [AtomicU64; EarlyCloseReason::COUNT],
    bucket: TokenBucket,
}

impl SharedListener {
    pub(crate) fn info(&self) -> ListenerInfo {
        ListenerInfo {
            name: self.config.name.clone(),
            transport: self.config.transport,
            address: self.address.get().copied().unwrap_or(self.config.bind),
            is_handed_over: self.is_handed_over,
            current_connections: self.current.load(Ordering::Relaxed),
            max_connections: self.config.max_connections,
            accepted: self.accepted.load(Ordering::Relaxed),
            refused: std::array::from_fn(|index| self.refused[index].load(Ordering::Relaxed)),
        }
    }

    /// Counts a new connection, or returns the limit that prevents it.
    pub(crate) fn admit(&self, now_ms: u64) -> Result<(), EarlyCloseReason> {
        self.admit_rate(now_ms)?;
        self.admit_number()
    }

    /// Counts a new connection in the rate of the listener.
    pub(crate) fn admit_rate(&self, now_ms: u64) -> Result<(), EarlyCloseReason> {
        let rate = self.config.max_connection_rate;
        if rate.is_some_and(|rate| !self.bucket.try_take(rate, now_ms)) {
            return Err(EarlyCloseReason::ConnectionRate);
        }
        Ok(())
    }

    /// Counts a new connection in the number of connections.
    pub(crate) fn admit_number(&self) -> Result<(), EarlyCloseReason> {
        if !try_increment(&self.current, self.config.max_connections) {
            return Err(EarlyCloseReason::ListenerFull);
        }
        self.accepted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether less than half of the connections of this listener are open.
    #[cfg(feature = "quic")]
    pub(crate) fn is_half_empty(&self) -> bool {
        self.current.load(Ordering::Relaxed) < self.config.max_connections / 2
    }

    pub(crate) fn connection_closed(&self) {
        self.current.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refusal(&self, refusal: EarlyCloseReason) {
        self.refused[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Increments the count unless it has reached `limit`.
pub(crate) fn try_increment(count: &AtomicUsize, limit: usize) -> bool {
    count
        .try_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < limit).then_some(n + 1))
        .is_ok()
}

/// Binds and listens. Returns all errors together.
pub(crate) fn bind_all(
    configs: Vec<ListenerConfig>,
    keep_alive: Option<Duration>,
) -> Result<Vec<(SharedListener, ListenerSocket)>, Vec<BindError>> {
    let mut bound = Vec::new();
    let mut errors = Vec::new();
    for config in configs {
        match bind(&config, keep_alive) {
            Ok((address, socket)) => bound.push((SharedListener::new(config, Some(address)), socket)),
            Err(source) => errors.push(bind_error(&config, source)),
        }
    }
    if errors.is_empty() { Ok(bound) } else { Err(errors) }
}

impl SharedListener {
    /// Creates a listener. Without an address it has no socket of its own.
    pub(crate) fn new(config: ListenerConfig, address: Option<SocketAddr>) -> SharedListener {
        SharedListener {
            bucket: TokenBucket::default(),
            config,
            is_handed_over: address.is_none(),
            address: address.map(OnceLock::from).unwrap_or_default(),
            current: AtomicUsize::new(0),
            accepted: AtomicU64::new(0),
            refused: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

fn bind(config: &ListenerConfig, keep_alive: Option<Duration>) -> io::Result<(SocketAddr, ListenerSocket)> {
    if config.transport == Transport::Quic {
        let socket = bind_udp(config)?;
        return Ok((socket.local_addr()?, ListenerSocket::Udp(socket)));
    }
    let listener = listen(config, keep_alive)?;
    Ok((listener.local_addr()?, ListenerSocket::Tcp(listener)))
}

/// Without SO_REUSEADDR, which would allow another process to bind the same port.
fn bind_udp(config: &ListenerConfig) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(config.bind), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    // The system may allow less, which is no reason not to start.
    let _ = socket.set_recv_buffer_size(UDP_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(UDP_BUFFER_BYTES);
    socket.bind(&config.bind.into())?;
    Ok(socket.into())
}

fn listen(config: &ListenerConfig, keep_alive: Option<Duration>) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(config.bind), Type::STREAM, Some(Protocol::TCP))?;
    // A restarted server must not wait until connections of its predecessor leave TIME_WAIT.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    tune(SockRef::from(&socket), keep_alive);
    // Set before listen: accepted sockets inherit them, and the window scale is negotiated in the SYN.
    if let Some(bytes) = config.send_buffer_bytes {
        socket.set_send_buffer_size(bytes as usize)?;
    }
    if let Some(bytes) = config.receive_buffer_bytes {
        socket.set_recv_buffer_size(bytes as usize)?;
    }
    socket.bind(&config.bind.into())?;
    socket.listen(i32::try_from(config.backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Sets options of every connection. A failure is not serious enough to reject the connection.
pub(crate) fn tune(socket: SockRef<'_>, keep_alive: Option<Duration>) {
    // Each write contains a whole tick. Nagle's algorithm would only add latency.
    let _ = socket.set_tcp_nodelay(true);
    if let Some(idle) = keep_alive {
        let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(idle));
    }
}

fn bind_error(config: &ListenerConfig, source: io::Error) -> BindError {
    // The owners of UDP ports are in another table of the system.
    let is_taken = source.kind() == io::ErrorKind::AddrInUse && config.transport != Transport::Quic;
    BindError {
        listener: config.name.clone(),
        address: config.bind,
        key: config.bind_key(),
        owner: is_taken.then(|| port_owner::find(config.bind)).flatten(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(bind: SocketAddr) -> ListenerConfig {
        ListenerConfig::new("default", Transport::Tcp, bind)
    }

    #[test]
    fn port_in_use_error_names_listener_key_and_owner() {
        let (address, _first) = bind(&config("127.0.0.1:0".parse().unwrap()), None).unwrap();
        let Err(errors) = bind_all(vec![config(address)], None) else {
            panic!("the port is in use")
        };
        let text = errors[0].to_string();
        assert!(text.contains("listener default cannot bind 127.0.0.1:"), "{text}");
        assert!(text.contains("listeners.tcp.default.bind"), "{text}");
        if cfg!(target_os = "linux") {
            assert!(
                text.contains(&format!("in use by process {}", std::process::id())),
                "{text}"
            );
        }
    }

    #[test]
    fn accepted_sockets_have_nodelay_and_keepalive() {
        let listener = listen(&config("127.0.0.1:0".parse().unwrap()), Some(Duration::from_secs(77))).unwrap();
        let address = listener.local_addr().unwrap();
        let _client = std::net::TcpStream::connect(address).unwrap();
        listener.set_nonblocking(false).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        if !cfg!(target_os = "linux") {
            tune(SockRef::from(&accepted), Some(Duration::from_secs(77)));
        }
        let socket = SockRef::from(&accepted);
        assert!(socket.tcp_nodelay().unwrap() && socket.keepalive().unwrap());
    }

    #[test]
    fn all_bind_errors_are_returned_together() {
        let (address, _first) = bind(&config("127.0.0.1:0".parse().unwrap()), None).unwrap();
        let free = config("127.0.0.1:0".parse().unwrap());
        let Err(errors) = bind_all(vec![config(address), free, config(address)], None) else {
            panic!("the port is in use")
        };
        assert_eq!(errors.len(), 2);
    }

    #[test]
    fn connection_limit_excludes_closed_connections() {
        let mut config = config("127.0.0.1:0".parse().unwrap());
        config.max_connections = 2;
        let listener = SharedListener::new(config.clone(), Some(config.bind));
        assert_eq!([listener.admit(0), listener.admit(0)], [Ok(()), Ok(())]);
        assert_eq!(listener.admit(0), Err(EarlyCloseReason::ListenerFull));
        listener.connection_closed();
        assert_eq!(listener.admit(0), Ok(()));
        assert_eq!((listener.info().current_connections, listener.info().accepted), (2, 3));
    }
}
