//! A connection as its worker sees it. Kept small, because most connections are idle: what is rare or short-lived is in a box,
//! buffers exist only while something is in them.

use std::net::SocketAddr;
use std::sync::Arc;

use broker::{CloseCause, Peer, ShardId};
use mio::net::TcpStream;
use rustls::ServerConnection;

use crate::websocket::WebSocket;

pub(crate) struct Connection {
    pub(crate) socket: TcpStream,
    pub(crate) listener: u16,
    /// The socket may have bytes for us: it has not said otherwise since its last event.
    pub(crate) is_readable: bool,
    /// The peer will send nothing more after what is there.
    pub(crate) is_read_closed: bool,
    /// The peer is done, and nothing of it is left to read from the socket.
    pub(crate) has_ended: bool,
    /// The network has ended it. What the peer sent before is read, and then it is over.
    pub(crate) is_broken: bool,
    /// The socket took less than was offered: wait until it is writable.
    pub(crate) is_write_blocked: bool,
    /// Its output waits for mail that is held back (`flush.rs`).
    pub(crate) is_held: bool,
    /// In the worker's list of connections to read from.
    pub(crate) is_in_ready_list: bool,
    /// In the worker's list of connections to write to, besides the outbox' dirty ones.
    pub(crate) is_in_flush_list: bool,
    /// The shard asked not to be given more (`Next::Pause`).
    pub(crate) is_paused: bool,
    /// Least number of unread bytes that will tell the shard more.
    pub(crate) needed: u32,
    /// Bytes that could not be used yet: of a partial packet, or of the handshake. No capacity while empty.
    pub(crate) unread: Vec<u8>,
    pub(crate) stage: Stage,
    pub(crate) layer: Option<Box<Layer>>,
}

pub(crate) enum Stage {
    /// Until the CONNECT is complete; the shard knows nothing of it.
    Handshake(Box<Handshake>),
    /// The shard has it.
    Open,
    /// What is queued is still written; nothing is read. Ends by itself at the linger deadline.
    Closing { cause: CloseCause, is_open: bool },
    /// Our side is closed and the shard has been told: waiting for the peer's FIN, so that no reset overtakes what was sent.
    Draining { left_bytes: u32 },
}

/// How much of what a peer goes on sending after our FIN is thrown away before the connection is cut.
pub(crate) const DRAIN_BYTES_MAX: u32 = 256 * 1024;

pub(crate) struct Handshake {
    pub(crate) step: Step,
    /// The peer, or the client behind a proxy.
    pub(crate) address: SocketAddr,
    pub(crate) certificate_common_name: Option<Box<str>>,
    pub(crate) certificate: Option<Box<[u8]>>,
    /// Taken from the worker's pot for bytes beyond the free ones.
    pub(crate) reserved_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Proxy,
    Tls,
    WebSocket,
    Connect,
    /// The CONNECT belongs to this shard: moves there once the bytes at hand are unpacked.
    Leaving(ShardId),
}

/// What lies between the socket and MQTT.
#[derive(Default)]
pub(crate) struct Layer {
    pub(crate) tls: Option<ServerConnection>,
    pub(crate) websocket: Option<WebSocket>,
    pub(crate) is_close_notify_sent: bool,
    /// Of a connection that was handed over: whoever did so can end it as long as this is kept.
    pub(crate) tenure: Option<Arc<()>>,
}

/// A connection on its way to its home worker.
pub(crate) struct Arrival {
    pub(crate) connection: Connection,
    pub(crate) peer: Peer,
}

impl Connection {
    pub(crate) fn new(socket: TcpStream, listener: u16, handshake: Handshake) -> Connection {
        Connection {
            socket,
            listener,
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
            stage: Stage::Handshake(Box::new(handshake)),
            layer: None,
        }
    }

    /// Forgets what the worker it leaves knew of its socket; the next one asks anew.
    pub(crate) fn leave(&mut self) {
        self.is_readable = false;
        self.is_write_blocked = false;
        self.is_held = false;
        self.is_in_ready_list = false;
        self.is_in_flush_list = false;
    }

    /// Whether the shard, and so the outbox, has this connection.
    pub(crate) fn has_lane(&self) -> bool {
        matches!(self.stage, Stage::Open | Stage::Closing { is_open: true, .. })
    }

    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.stage, Stage::Closing { .. } | Stage::Draining { .. })
    }

    pub(crate) fn tls(&mut self) -> Option<&mut ServerConnection> {
        self.layer.as_mut()?.tls.as_mut()
    }

    pub(crate) fn websocket(&mut self) -> Option<&mut WebSocket> {
        self.layer.as_mut()?.websocket.as_mut()
    }

    /// Keeps bytes for later. Memory follows what was received, never what was declared: at most twice of it.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        if self.unread.is_empty() {
            let wanted = (self.needed as usize).clamp(bytes.len(), bytes.len() * 2);
            self.unread = Vec::with_capacity(wanted);
        }
        self.unread.extend_from_slice(bytes);
    }
}
