//! Accepts connections: a few per tick, within the limits, and without spinning if the process has no file descriptors
//! left. Then each connection is accepted with a spare descriptor and closed, so that its client learns it at once.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use broker::{CloseCause, ConnSlot};
use mio::net::TcpStream;
use mio::{Interest, Token};
use socket2::SockRef;
use trust::own::trusted_peer;

use crate::connection::{Handshake, HandshakeStep, SocketConnection};
use crate::counters::EarlyCloseReason;
use crate::early_close::describe_limit;
use crate::worker::NetWorker;

/// Maximum number of connections that one worker accepts from one listener per tick. The rest may go to less busy
/// workers.
const ACCEPTS_PER_TICK: usize = 32;

/// Pause of accepting when the process or the system has no file descriptor left.
const EXHAUSTED_PAUSE_MS: u64 = 100;

impl NetWorker {
    pub(crate) fn accept_ready(&mut self) {
        for index in 0..self.acceptors.len() {
            if self.acceptors[index]
                .as_ref()
                .is_some_and(|acceptor| acceptor.is_due(self.now.monotonic_ms))
            {
                self.accept_from(index);
            }
        }
    }

    fn accept_from(&mut self, index: usize) {
        self.common.spare_descriptor.restore();
        for _ in 0..ACCEPTS_PER_TICK {
            let Some(acceptor) = &mut self.acceptors[index] else {
                return;
            };
            match acceptor.socket.accept() {
                Ok((socket, address)) => self.accepted(index, socket, address),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    acceptor.is_ready = false;
                    return;
                }
                Err(error) if is_transient(&error) => {}
                Err(error) => {
                    // EMFILE, ENFILE, ENOBUFS, ENOMEM. Without an answer the client would wait for its own timeout.
                    self.counters.accept_errors += 1;
                    if self.reject_with_spare_descriptor(index) {
                        continue;
                    }
                    // The connection stays in the backlog, and the socket stays ready.
                    if let Some(acceptor) = &mut self.acceptors[index] {
                        acceptor.paused_until_ms = self.now.monotonic_ms + EXHAUSTED_PAUSE_MS;
                    }
                    let listener = &self.common.listeners[index].config;
                    return self.common.observer.accept_failed(&listener.name, &error);
                }
            }
        }
    }

    fn accepted(&mut self, index: usize, socket: TcpStream, address: SocketAddr) {
        let listener = &self.common.listeners[index];
        // The server's own connections, to itself, are no clients on this machine.
        let address = trusted_peer(address);
        let trusts_proxy = listener
            .config
            .proxy
            .as_ref()
            .map(|proxy| proxy.trusted.iter().any(|net| net.contains(address.ip())));
        // Otherwise the address of the client follows in a header.
        let is_of_client = trusts_proxy.is_none() && listener.config.is_address_of_client(address.ip());
        // First, so that one address cannot use up the rate of the listener.
        let is_too_fast = is_of_client && !self.common.admit_address(address.ip(), self.now.monotonic_ms);
        let refusal = match is_too_fast.then_some(EarlyCloseReason::AddressRate) {
            Some(refusal) => Some(refusal),
            None => match listener.admit(self.now.monotonic_ms) {
                Err(refusal) => Some(refusal),
                Ok(()) => self.common.admit().inspect_err(|_| listener.connection_closed()).err(),
            },
        };
        if let Some(refusal) = refusal {
            self.record_rejected(index, address, refusal);
            return reset(&socket);
        }
        self.counters.accepted += 1;
        if trusts_proxy == Some(false) {
            self.record_rejected(index, address, EarlyCloseReason::ProxyUntrusted);
            listener.connection_closed();
            self.common.connections.fetch_sub(1, Ordering::Relaxed);
            return reset(&socket);
        }
        self.begin_handshake(index, socket, address);
    }

    /// Accepts a connection with the spare descriptor, and closes it at once. Returns `false` if that is impossible.
    fn reject_with_spare_descriptor(&mut self, index: usize) -> bool {
        let Some(acceptor) = &mut self.acceptors[index] else {
            return false;
        };
        let rejected = self.common.spare_descriptor.lend(|| {
            let (socket, address) = acceptor.socket.accept().ok()?;
            reset(&socket);
            Some(address)
        });
        let Some(address) = rejected else {
            return false;
        };
        self.record_rejected(index, trusted_peer(address), EarlyCloseReason::DescriptorLimit);
        true
    }

    /// Counts and reports a connection that was accepted and closed at once.
    pub(crate) fn record_rejected(&self, index: usize, address: SocketAddr, reason: EarlyCloseReason) {
        self.report_early_close(index, address, reason, describe_limit(reason).into(), false);
    }

    fn begin_handshake(&mut self, index: usize, socket: TcpStream, address: SocketAddr) {
        let config = &self.common.listeners[index].config;
        let step = match config {
            config if config.proxy.is_some() => HandshakeStep::Proxy,
            config if config.is_tls() => HandshakeStep::Tls,
            config if config.is_websocket() => HandshakeStep::WebSocket,
            _ => HandshakeStep::Connect,
        };
        // On Linux, accepted sockets inherit the options of the listener.
        #[cfg(not(target_os = "linux"))]
        crate::listener::tune(SockRef::from(&socket), self.common.config.tcp_keep_alive);
        let handshake = Handshake {
            step,
            address,
            certificate_common_name: None,
            certificate: None,
            reserved_bytes: 0,
        };
        let mut connection = SocketConnection::new(socket, index as u16, handshake);
        // Most clients have sent their CONNECT already. It is read before the socket is registered, so that a
        // connection that moves to another worker is registered only there.
        connection.is_readable = true;
        let conn = self.slots.insert(connection);
        self.handshake_deadlines[index].push(self.now.monotonic_ms, conn);
        self.list_for_read(conn.slot);
    }

    /// Registers a connection with the poll. Data that has arrived before causes an event too. The datagrams of a QUIC
    /// connection arrive at this worker from now on.
    pub(crate) fn register(&mut self, slot: ConnSlot) -> io::Result<()> {
        let Some(connection) = self.slots.get_mut(slot) else {
            return Ok(());
        };
        connection.is_registered = true;
        if let Some(socket) = connection.socket.tcp() {
            let interests = Interest::READABLE | Interest::WRITABLE;
            let registered = self.poll.registry().register(socket, Token(slot.index()), interests);
            connection.is_registered = registered.is_ok();
            return registered;
        }
        self.add_moved_quic(slot);
        Ok(())
    }

    /// Registers a new connection after its first read, unless it is about to move to another worker.
    pub(crate) fn register_after_read(&mut self, slot: ConnSlot) {
        let Some(connection) = self.slots.get_mut(slot).filter(|connection| !connection.is_registered) else {
            return;
        };
        if !connection.is_moving() && self.register(slot).is_err() {
            self.fail(slot, CloseCause::Network);
        }
    }
}

/// Returns whether the error concerns a single connection and not the listener.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionReset, HostUnreachable, Interrupted, NetworkUnreachable, TimedOut,
    };
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionReset | Interrupted | TimedOut | HostUnreachable | NetworkUnreachable
    )
}

/// Closes with a reset, which avoids TIME_WAIT for a connection that was never served.
fn reset(socket: &TcpStream) {
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}
