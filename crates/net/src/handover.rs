//! Connections that somebody else has accepted and upgraded to WebSocket: the port of the API, on which the console speaks MQTT.
//!
//! They belong to a listener without a socket, the last one (`ServerConfig::handed_over`), with its limits and counters. A place
//! among them is taken before the peer is promised anything. From then on such a connection is one like all others: its CONNECT has to
//! come within the handshake timeout, is authenticated, and moves to its home. The one thing more is its tenure: whoever has
//! handed it over may end it.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use broker::{ConnSlot, ShardId};
use rustls::ServerConnection;
use socket2::SockRef;

use crate::connection::{Connection, Handshake, Layer, Stage, Step};
use crate::counters::Refusal;
use crate::letter::Letter;
use crate::listener::{self, try_increment};
use crate::reply::CallError;
use crate::server::{Common, Handle};
use crate::websocket::WebSocket;
use crate::worker::{Clock, Worker};

/// A connection after its upgrade: the next byte is the first of a frame.
pub struct Upgraded {
    pub socket: TcpStream,
    /// Its handshake is over, and no plaintext is left in it.
    pub tls: Option<ServerConnection>,
    /// Of the client, as far as it is to be believed.
    pub address: SocketAddr,
}

/// Why a connection could not be handed over; it is closed.
#[derive(Debug)]
pub enum HandOverError {
    Socket(io::Error),
    /// The worker has gone, or its mailbox is full.
    Worker(CallError),
}

/// A place among the connections of the listener without a socket; given back when it is dropped.
pub struct Place {
    common: Arc<Common>,
    is_used: bool,
}

/// What whoever has handed a connection over keeps of it.
pub struct Tenure {
    handle: Handle,
    tenure: Weak<()>,
}

/// A connection on its way to a worker.
pub(crate) struct HandedOver {
    upgraded: Upgraded,
    place: Place,
    tenure: Arc<()>,
}

impl Handle {
    /// Where the connections that are handed over come from: what operators are shown.
    pub fn set_handed_over_address(&self, address: SocketAddr) {
        if let Some(listener) = self.common().listeners.last().filter(|last| last.is_handed_over) {
            // Told once.
            let _ = listener.address.set(address);
        }
    }

    /// `None`: this server takes no such connections.
    pub fn place(&self) -> Option<Result<Place, Refusal>> {
        let common = self.common();
        let listener = common.listeners.last().filter(|last| last.is_handed_over)?;
        let now_ms = Clock { origin: common.origin }.now().monotonic_ms;
        let admitted = listener.admit(now_ms).and_then(|()| {
            if try_increment(&common.connections, common.config.max_connections) {
                return Ok(());
            }
            listener.left();
            Err(Refusal::ServerFull)
        });
        Some(match admitted {
            Ok(()) => Ok(Place {
                common: common.clone(),
                is_used: false,
            }),
            Err(refusal) => {
                listener.count_refusal(refusal);
                Err(refusal)
            }
        })
    }

    /// Any worker will do: the connection moves when its CONNECT is there.
    pub fn hand_over(&self, place: Place, upgraded: Upgraded) -> Result<Tenure, HandOverError> {
        upgraded.socket.set_nonblocking(true).map_err(HandOverError::Socket)?;
        listener::tune(SockRef::from(&upgraded.socket), self.common().config.tcp_keep_alive);
        let shards = self.shards();
        let shard = (self.connections() % usize::from(shards.max(1))) as u16;
        let tenure = Arc::new(());
        let kept = Tenure {
            handle: self.clone(),
            tenure: Arc::downgrade(&tenure),
        };
        let handed_over = HandedOver {
            upgraded,
            place,
            tenure,
        };
        let letter = Letter::HandedOver(Box::new(handed_over));
        self.post(ShardId(shard), letter, Instant::now())
            .map_err(HandOverError::Worker)?;
        Ok(kept)
    }
}

impl Place {
    /// Counted out by the worker from now on. The index of its listener.
    fn take(mut self) -> u16 {
        self.is_used = true;
        (self.common.listeners.len() - 1) as u16
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_used {
            return;
        }
        self.common.connections.fetch_sub(1, Ordering::Relaxed);
        if let Some(listener) = self.common.listeners.last() {
            listener.left();
        }
    }
}

impl Tenure {
    /// Whether the connection is there.
    pub fn lasts(&self) -> bool {
        self.tenure.strong_count() > 0
    }

    /// Ends the connection, wherever it is: DISCONNECT with *Administrative action*. One that has just moved is missed: ask again
    /// as long as it `lasts`.
    pub fn end(&self) {
        let Some(tenure) = self.tenure.upgrade() else { return };
        for shard in 0..self.handle.shards() {
            // Whoever is too busy to hear of it now hears of it next time.
            let _ = self
                .handle
                .post(ShardId(shard), Letter::EndTenure(tenure.clone()), Instant::now());
        }
    }
}

impl Worker {
    pub(crate) fn handed_over(&mut self, handed_over: HandedOver) {
        let HandedOver {
            upgraded: Upgraded { socket, tls, address },
            place,
            tenure,
        } = handed_over;
        let index = place.take();
        self.counters.accepted += 1;
        let handshake = Handshake {
            step: Step::Connect,
            address: SocketAddr::new(address.ip().to_canonical(), address.port()),
            certificate_common_name: None,
            certificate: None,
            reserved_bytes: 0,
        };
        let mut connection = Connection::new(mio::net::TcpStream::from_std(socket), index, handshake);
        connection.layer = Some(Box::new(Layer {
            tls,
            websocket: Some(WebSocket::default()),
            is_close_notify_sent: false,
            tenure: Some(tenure),
        }));
        let conn = self.slots.insert(connection);
        if self.is_stopping() {
            return self.refuse(conn.slot, Refusal::ShuttingDown);
        }
        if self.register(conn.slot).is_err() {
            return self.refuse(conn.slot, Refusal::PeerClosed);
        }
        self.handshake_deadlines[usize::from(index)].push(self.now.monotonic_ms, conn);
        self.list_for_flush(conn.slot);
    }

    /// One in its handshake has no long time anyway.
    pub(crate) fn end_tenure(&mut self, tenure: &Arc<()>) {
        let keeps = |connection: &Connection| {
            let own = connection.layer.as_ref().and_then(|layer| layer.tenure.as_ref());
            matches!(connection.stage, Stage::Open) && own.is_some_and(|own| Arc::ptr_eq(own, tenure))
        };
        let occupied = self.slots.occupied();
        let found = occupied
            .into_iter()
            .find(|slot| self.slots.get_mut(*slot).is_some_and(|connection| keeps(connection)));
        if let Some(slot) = found {
            self.shard
                .kick_connection(self.now, ConnSlot(slot), "the login it was made with has ended");
        }
    }
}
