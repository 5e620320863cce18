//! A connection that another server has accepted, on its way to a worker.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustls::ServerConnection;

use crate::server_common::ServerCommon;

/// An upgraded connection. The next byte is the first of a WebSocket frame.
pub struct UpgradedConnection {
    pub socket: TcpStream,
    /// TLS state after its handshake, without unread plaintext.
    pub tls: Option<ServerConnection>,
    /// Address of the client. Behind a trusted proxy, the address that the proxy reports.
    pub address: SocketAddr,
}

/// A reservation of one connection in the limits of the listener without a socket. Released when dropped.
pub struct ConnectionReservation {
    common: Arc<ServerCommon>,
    is_used: bool,
}

/// A connection that is being sent to a worker.
pub(crate) struct HandedOver {
    pub(crate) upgraded: UpgradedConnection,
    pub(crate) reservation: ConnectionReservation,
    pub(crate) token: Arc<()>,
}

impl ConnectionReservation {
    /// Makes a reservation for a connection that has been counted.
    pub(crate) fn of_counted(common: Arc<ServerCommon>) -> ConnectionReservation {
        ConnectionReservation { common, is_used: false }
    }

    /// Passes the reservation on to a worker, which releases it with the connection. Returns the index of the listener.
    pub(crate) fn take(mut self) -> u16 {
        self.is_used = true;
        (self.common.listeners.len() - 1) as u16
    }
}

impl Drop for ConnectionReservation {
    fn drop(&mut self) {
        if self.is_used {
            return;
        }
        self.common.connections.fetch_sub(1, Ordering::Relaxed);
        if let Some(listener) = self.common.listeners.last() {
            listener.connection_closed();
        }
    }
}
