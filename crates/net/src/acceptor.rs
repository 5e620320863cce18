//! Listening sockets as workers poll them.

use std::io;

#[cfg(not(target_os = "linux"))]
use mio::Interest;
use mio::net::TcpListener;
use mio::{Registry, Token};

/// A worker's handle of a listening socket.
pub(crate) struct Acceptor {
    pub(crate) socket: TcpListener,
    /// The socket may have connections: no accept has returned `WouldBlock` since its last event.
    pub(crate) is_ready: bool,
    pub(crate) paused_until_ms: u64,
}

/// Registers a listening socket with the poll of a worker. All workers poll it; on Linux a new connection wakes only
/// one that sleeps.
#[cfg(target_os = "linux")]
pub(crate) fn register_listener(registry: &Registry, socket: &mut TcpListener, token: Token) -> io::Result<()> {
    use rustix::event::epoll::{self, EventData, EventFlags};
    let flags = EventFlags::IN | EventFlags::ET | EventFlags::EXCLUSIVE;
    Ok(epoll::add(
        registry,
        &*socket,
        EventData::new_u64(token.0 as u64),
        flags,
    )?)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn register_listener(registry: &Registry, socket: &mut TcpListener, token: Token) -> io::Result<()> {
    registry.register(socket, token, Interest::READABLE)
}

impl Acceptor {
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        self.is_ready && self.paused_until_ms <= now_ms
    }
}
