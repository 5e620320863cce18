//! State of a connection in its worker. Kept small, because most connections are idle: rare and short-lived state is
//! boxed, and buffers exist only while they contain data.

use std::net::SocketAddr;
use std::sync::Arc;

use broker::{CloseCause, Peer, ShardId};
use rustls::ServerConnection;

use crate::memory_pool::{MemoryPool, MemoryShare};
use crate::packet_memory::{self, OutOfPacketMemory};
use crate::socket::ConnectionSocket;
use crate::websocket::WebSocketState;

pub(crate) struct SocketConnection {
    pub(crate) socket: ConnectionSocket,
    pub(crate) listener: u16,
    /// The worker's poll watches the socket, or its datagrams arrive at this worker.
    pub(crate) is_registered: bool,
    /// The socket may have data: no read has returned `WouldBlock` since its last event.
    pub(crate) is_readable: bool,
    /// The peer sends nothing more after the data that has arrived.
    pub(crate) is_read_closed: bool,
    /// The peer has finished sending, and everything has been read from the socket.
    pub(crate) has_ended: bool,
    /// The network has closed the connection. Data that the peer sent before is read first.
    pub(crate) is_broken: bool,
    /// The socket accepted less than was offered: wait until it is writable.
    pub(crate) is_write_blocked: bool,
    /// Its output waits for unsent mailbox items (`flush.rs`).
    pub(crate) is_held: bool,
    /// In the worker's list of connections to read from.
    pub(crate) is_in_ready_list: bool,
    /// In the worker's list of connections to write to, in addition to the dirty ones of the outbox.
    pub(crate) is_in_flush_list: bool,
    /// The shard does not accept more packets (`Next::Pause`).
    pub(crate) is_paused: bool,
    /// Minimum number of unread bytes with which the shard can continue.
    pub(crate) needed: u32,
    /// Bytes that are not processed yet: of a partial packet, or of the handshake. No capacity while empty.
    pub(crate) unread: Vec<u8>,
    /// Memory that `unread` has taken from the pool of all connections.
    pub(crate) unread_share: Option<Box<MemoryShare>>,
    pub(crate) stage: ConnectionStage,
    pub(crate) layer: Option<Box<ConnectionLayers>>,
}

pub(crate) enum ConnectionStage {
    /// Before the CONNECT is complete. The shard does not have the connection yet.
    Handshake(Box<Handshake>),
    /// The shard has the connection.
    Open,
    /// Queued output is still written, and nothing is read. Ends at the linger deadline at the latest.
    Closing { cause: CloseCause, is_open: bool },
    /// The write side is closed and the shard has been informed. Waits for the peer's FIN, so that no reset overtakes
    /// the last output.
    Draining { left_bytes: u32 },
}

/// Maximum number of bytes from a peer that are discarded after our FIN. More closes the connection.
pub(crate) const DRAIN_BYTES_MAX: u32 = 256 * 1024;

pub(crate) struct Handshake {
    pub(crate) step: HandshakeStep,
    /// Address of the peer, or of the client behind a proxy.
    pub(crate) address: SocketAddr,
    pub(crate) certificate_common_name: Option<Box<str>>,
    pub(crate) certificate: Option<Box<[u8]>>,
    /// Bytes taken from the worker's handshake pool, beyond the free ones.
    pub(crate) reserved_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeStep {
    Proxy,
    Tls,
    WebSocket,
    Connect,
    /// The CONNECT belongs to this other shard. The connection moves there after the bytes at hand are unpacked.
    Moving(ShardId),
}

/// Protocol layers between the socket and MQTT.
#[derive(Default)]
pub(crate) struct ConnectionLayers {
    pub(crate) tls: Option<ServerConnection>,
    pub(crate) websocket: Option<WebSocketState>,
    pub(crate) is_close_notify_sent: bool,
    /// Set for a handed-over connection. The caller that handed it over can close it while this exists.
    pub(crate) close_token: Option<Arc<()>>,
}

/// A connection that is moving to the worker that owns its client id.
pub(crate) struct MovedConnection {
    pub(crate) connection: SocketConnection,
    pub(crate) peer: Peer,
}

impl SocketConnection {
    pub(crate) fn new(socket: impl Into<ConnectionSocket>, listener: u16, handshake: Handshake) -> SocketConnection {
        SocketConnection::with_stage(socket.into(), listener, ConnectionStage::Handshake(Box::new(handshake)))
    }

    pub(crate) fn with_stage(socket: ConnectionSocket, listener: u16, stage: ConnectionStage) -> SocketConnection {
        SocketConnection {
            socket,
            listener,
            is_registered: false,
            is_readable: false,
            is_read_closed: false,
            has_ended: false,
            is_broken: false,
            is_write_blocked: false,
            is_held: false,
            is_in_ready_list: false,
            is_in_flush_list: false,
            is_paused: false,
            needed: 0,
            unread: Vec::new(),
            unread_share: None,
            stage,
            layer: None,
        }
    }

    /// Resets the socket state of the previous worker. The next worker registers the socket again.
    pub(crate) fn reset_readiness(&mut self) {
        self.is_registered = false;
        self.is_readable = false;
        self.is_write_blocked = false;
        self.is_held = false;
        self.is_in_ready_list = false;
        self.is_in_flush_list = false;
    }

    /// Returns whether the shard, and therefore the outbox, has this connection.
    pub(crate) fn has_outbox(&self) -> bool {
        matches!(
            self.stage,
            ConnectionStage::Open | ConnectionStage::Closing { is_open: true, .. }
        )
    }

    /// Returns whether the CONNECT belongs to another worker.
    pub(crate) fn is_moving(&self) -> bool {
        match &self.stage {
            ConnectionStage::Handshake(handshake) => matches!(handshake.step, HandshakeStep::Moving(_)),
            _ => false,
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        matches!(
            self.stage,
            ConnectionStage::Closing { .. } | ConnectionStage::Draining { .. }
        )
    }

    pub(crate) fn tls(&mut self) -> Option<&mut ServerConnection> {
        self.layer.as_mut()?.tls.as_mut()
    }

    pub(crate) fn websocket(&mut self) -> Option<&mut WebSocketState> {
        self.layer.as_mut()?.websocket.as_mut()
    }

    /// Stores bytes for later. Memory is at most twice the received bytes, regardless of the declared length.
    pub(crate) fn store_unread(&mut self, memory: &Arc<MemoryPool>, bytes: &[u8]) -> Result<(), OutOfPacketMemory> {
        let packet_bytes = self.needed as usize;
        packet_memory::reserve(
            memory,
            &mut self.unread,
            &mut self.unread_share,
            bytes.len(),
            packet_bytes,
        )?;
        self.unread.extend_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn discard_unread(&mut self) {
        self.unread = Vec::new();
        self.unread_share = None;
    }
}
