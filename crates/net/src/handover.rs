//! Connections that another server has accepted and upgraded to WebSocket: the API's port, on which the console speaks
//! MQTT.
//!
//! They belong to a listener without a socket, the last one (`ServerConfig::handed_over`), with its limits and
//! counters. The caller reserves a [`ConnectionReservation`] before it answers the upgrade request. Afterwards such a
//! connection is treated like all others: its CONNECT must arrive within the handshake timeout, is authenticated, and
//! moves to its worker. In addition the caller may close it through its [`HandedOverHandle`].

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use broker::ShardId;
use socket2::SockRef;

use crate::connection::{ConnectionLayers, ConnectionStage, Handshake, HandshakeStep, SocketConnection};
use crate::counters::EarlyCloseReason;
use crate::handed_over::{ConnectionReservation, HandedOver, UpgradedConnection};
use crate::listener;
use crate::mailbox_item::MailboxItem;
use crate::reply::CallError;
use crate::server::ServerHandle;
use crate::websocket::WebSocketState;
use crate::worker::NetWorker;

/// Why a connection could not be handed over. The connection is closed.
#[derive(Debug)]
pub enum HandOverError {
    Socket(io::Error),
    /// The worker has stopped, or its mailbox is full.
    Worker(CallError),
}

/// Lets the caller of [`ServerHandle::hand_over`] close the connection later.
pub struct HandedOverHandle {
    handle: ServerHandle,
    token: Weak<()>,
}

impl ServerHandle {
    /// Sets the address of the listener without a socket, for display to operators.
    pub fn set_handed_over_address(&self, address: SocketAddr) {
        if let Some(listener) = self.common().listeners.last().filter(|last| last.is_handed_over) {
            // Only the first call has an effect.
            let _ = listener.address.set(address);
        }
    }

    /// Reserves a connection, or returns the limit that prevents it. `None` if this server accepts no handed-over
    /// connections.
    pub fn reserve_connection(&self) -> Option<Result<ConnectionReservation, EarlyCloseReason>> {
        let common = self.common();
        let listener = common.listeners.last().filter(|last| last.is_handed_over)?;
        let now_ms = common.clock.now().monotonic_ms;
        let admitted = listener
            .admit(now_ms)
            .and_then(|()| common.admit().inspect_err(|_| listener.connection_closed()));
        Some(match admitted {
            Ok(()) => Ok(ConnectionReservation::of_counted(common.clone())),
            Err(refusal) => {
                listener.count_refusal(refusal);
                Err(refusal)
            }
        })
    }

    /// Hands a connection to a worker. Any worker is suitable, because the connection moves after its CONNECT.
    pub fn hand_over(
        &self,
        place: ConnectionReservation,
        upgraded: UpgradedConnection,
    ) -> Result<HandedOverHandle, HandOverError> {
        upgraded.socket.set_nonblocking(true).map_err(HandOverError::Socket)?;
        listener::tune(SockRef::from(&upgraded.socket), self.common().config.tcp_keep_alive);
        let shards = self.shards();
        let shard = (self.connections() % usize::from(shards.max(1))) as u16;
        let tenure = Arc::new(());
        let returned = HandedOverHandle {
            handle: self.clone(),
            token: Arc::downgrade(&tenure),
        };
        let handed_over = HandedOver {
            upgraded,
            reservation: place,
            token: tenure,
        };
        let item = MailboxItem::HandedOver(Box::new(handed_over));
        self.post(ShardId(shard), item, Instant::now())
            .map_err(HandOverError::Worker)?;
        Ok(returned)
    }
}

impl HandedOverHandle {
    /// Returns whether the connection still exists.
    pub fn is_open(&self) -> bool {
        self.token.strong_count() > 0
    }

    /// Closes the connection with DISCONNECT *Administrative action*. A connection that is just moving between workers
    /// is missed: call again as long as it `is_open`.
    pub fn close(&self) {
        let Some(tenure) = self.token.upgrade() else { return };
        for shard in 0..self.handle.shards() {
            // A worker with a full mailbox misses this call; the caller repeats it.
            let _ = self.handle.post(
                ShardId(shard),
                MailboxItem::CloseHandedOver(tenure.clone()),
                Instant::now(),
            );
        }
    }
}

impl NetWorker {
    pub(crate) fn handed_over(&mut self, handed_over: HandedOver) {
        let HandedOver {
            upgraded: UpgradedConnection { socket, tls, address },
            reservation: place,
            token: tenure,
        } = handed_over;
        let index = place.take();
        self.counters.accepted += 1;
        let handshake = Handshake {
            step: HandshakeStep::Connect,
            address: SocketAddr::new(address.ip().to_canonical(), address.port()),
            certificate_common_name: None,
            certificate: None,
            reserved_bytes: 0,
        };
        let mut connection = SocketConnection::new(mio::net::TcpStream::from_std(socket), index, handshake);
        connection.layer = Some(Box::new(ConnectionLayers {
            tls,
            websocket: Some(WebSocketState::default()),
            is_close_notify_sent: false,
            close_token: Some(tenure),
        }));
        let conn = self.slots.insert(connection);
        if self.is_stopping() {
            return self.refuse(conn.slot, EarlyCloseReason::ShuttingDown);
        }
        if self.register(conn.slot).is_err() {
            return self.refuse(conn.slot, EarlyCloseReason::PeerClosed);
        }
        self.handshake_deadlines[usize::from(index)].push(self.now.monotonic_ms, conn);
        self.list_for_flush(conn.slot);
    }

    /// Closes the open connection with this tenure. Connections in their handshake end with the handshake timeout.
    pub(crate) fn close_handed_over(&mut self, tenure: &Arc<()>) {
        let has_tenure = |connection: &SocketConnection| {
            let own = connection.layer.as_ref().and_then(|layer| layer.close_token.as_ref());
            matches!(connection.stage, ConnectionStage::Open) && own.is_some_and(|own| Arc::ptr_eq(own, tenure))
        };
        let occupied = self.slots.occupied();
        let found = occupied.into_iter().find(|slot| {
            self.slots
                .get_mut(*slot)
                .is_some_and(|connection| has_tenure(connection))
        });
        if let Some(slot) = found {
            self.shard
                .operator(self.now)
                .kick_connection(slot, "the console login of this connection has ended");
        }
    }
}
