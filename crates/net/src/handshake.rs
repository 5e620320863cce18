//! From accept to a complete CONNECT: PROXY header, TLS, WebSocket upgrade, CONNECT, and the move to the home worker.
//!
//! Until its CONNECT is complete a peer has proved nothing, so it gets little: the handshake timeout for all steps together, and 4 KiB
//! of bytes held. A larger CONNECT (long will, token as password) takes the excess from a pot that all peers in their handshake
//! share; when it is empty such a connection is refused. The memory of TLS itself comes on top and is the library's.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use broker::{ConnSlot, Peer, ShardId};
use mqtt::{DecodeErrorKind, Decoded};
use rustls::ServerConnection;

use crate::certificate;
use crate::connection::{Arrival, Connection, Handshake, Stage, Step};
use crate::counters::Refusal;
use crate::letter::Letter;
use crate::proxy::{self, ProxyHeader};
use crate::websocket::WebSocket;
use crate::websocket::handshake::{Upgrade, upgrade};
use crate::worker::Worker;

/// Bytes that a connection in its handshake may hold for nothing.
const FREE_BYTES: usize = 4 * 1024;

/// What larger ones may hold together, per worker.
pub(crate) const POT_BYTES: usize = 8 * 1024 * 1024;

/// The address of a client behind a proxy that does not know it.
const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl Worker {
    fn handshake(&mut self, slot: u32) -> Option<(&mut Handshake, &mut Vec<u8>)> {
        match self.slots.get_mut(slot)? {
            Connection {
                stage: Stage::Handshake(handshake),
                unread,
                ..
            } => Some((handshake, unread)),
            _ => None,
        }
    }

    /// Reads the PROXY header. `Some(n)`: the step is over, and the first `n` of these bytes belonged to it.
    pub(crate) fn proxy_step(&mut self, slot: u32, bytes: &[u8]) -> Option<usize> {
        let (handshake, unread) = self.handshake(slot)?;
        let before = unread.len();
        unread.extend_from_slice(bytes);
        match proxy::decode(unread) {
            Ok(ProxyHeader::Incomplete) => None,
            Ok(ProxyHeader::Complete { size, source }) => {
                *unread = Vec::new();
                // Whom a proxy does not name is nobody in particular, and not the proxy: that is trusted to be on this machine.
                handshake.address = source.unwrap_or(UNKNOWN);
                self.next_step(slot, Step::Proxy);
                Some(size - before)
            }
            Err(_) => {
                self.refuse(slot, Refusal::ProxyMalformed);
                None
            }
        }
    }

    /// Goes on when the TLS handshake is over.
    pub(crate) fn tls_step(&mut self, slot: u32) {
        let Some(Connection {
            stage: Stage::Handshake(handshake),
            layer,
            ..
        }) = self.slots.get_mut(slot)
        else {
            return;
        };
        let Some(tls) = layer.as_ref().and_then(|layer| layer.tls.as_ref()) else {
            return;
        };
        if handshake.step == Step::Tls && !tls.is_handshaking() {
            let certificate = tls.peer_certificates().and_then(|chain| chain.first());
            handshake.certificate_common_name =
                certificate.and_then(|certificate| certificate::common_name(certificate));
            handshake.certificate = certificate.map(|certificate| certificate.as_ref().into());
            self.next_step(slot, Step::Tls);
        }
    }

    /// Makes the TLS state when the first byte for it has come: who sends nothing costs nothing. False if that failed.
    pub(crate) fn begin_tls(&mut self, slot: u32) -> bool {
        let Some(Connection {
            stage: Stage::Handshake(handshake),
            layer,
            listener,
            ..
        }) = self.slots.get_mut(slot)
        else {
            return true;
        };
        if handshake.step != Step::Tls || layer.as_ref().is_some_and(|layer| layer.tls.is_some()) {
            return true;
        }
        let config = self.tls_configs[usize::from(*listener)].clone();
        let Some(Ok(tls)) = config.map(ServerConnection::new) else {
            self.refuse(slot, Refusal::TlsHandshake);
            return false;
        };
        layer.get_or_insert_default().tls = Some(tls);
        true
    }

    /// Reads the upgrade request, as `proxy_step`.
    pub(crate) fn websocket_step(&mut self, slot: u32, bytes: &[u8]) -> Option<usize> {
        let common = self.common.clone();
        let connection = self.slots.get_mut(slot)?;
        let rules = &common.listeners[usize::from(connection.listener)].config.websocket;
        let before = connection.unread.len();
        connection.unread.extend_from_slice(bytes);
        let outcome = upgrade(&connection.unread, rules);
        if outcome == Upgrade::Incomplete {
            self.hold(slot);
            return None;
        }
        connection.unread = Vec::new();
        let mut websocket = WebSocket::default();
        let used = match outcome {
            Upgrade::Accepted { size, response } => {
                websocket.respond(&response);
                Some(size - before)
            }
            Upgrade::Refused { response, .. } => {
                websocket.respond(&response);
                websocket.skip_close();
                None
            }
            Upgrade::Incomplete => None,
        };
        connection.layer.get_or_insert_default().websocket = Some(websocket);
        if used.is_some() {
            self.release_handshake(slot);
            self.list_for_flush(slot);
            self.next_step(slot, Step::WebSocket);
        } else {
            self.refuse(slot, Refusal::WebSocketHandshake);
        }
        used
    }

    fn next_step(&mut self, slot: u32, done: Step) {
        let common = self.common.clone();
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let config = &common.listeners[usize::from(connection.listener)].config;
        if let Stage::Handshake(handshake) = &mut connection.stage {
            handshake.step = match done {
                Step::Proxy if config.is_tls() => Step::Tls,
                Step::Proxy | Step::Tls if config.is_websocket() => Step::WebSocket,
                _ => Step::Connect,
            };
        }
    }

    /// Looks for a complete CONNECT and decides where the connection lives.
    pub(crate) fn connect_step(&mut self, slot: u32, buffer: &mut [u8], range: Range<usize>) {
        let limit = self.common.config.maximum_connect_size as usize;
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let Stage::Handshake(handshake) = &connection.stage else {
            return;
        };
        let kept = connection.unread.len();
        if matches!(handshake.step, Step::Leaving(_)) || kept + range.len() < connection.needed as usize {
            return self.keep_of_handshake(slot, &buffer[range]);
        }
        if kept > 0 {
            connection.keep(&buffer[range.clone()]);
        }
        let bytes = if kept > 0 {
            connection.unread.as_slice()
        } else {
            &buffer[range.clone()]
        };
        let certificate = match &connection.stage {
            Stage::Handshake(handshake) => handshake.certificate.as_deref(),
            _ => None,
        };
        let home = match mqtt::decode_connect(bytes, limit) {
            Ok(Decoded::Incomplete { needed }) => {
                connection.needed = u32::try_from(needed).unwrap_or(u32::MAX);
                let new = if kept > 0 { &[][..] } else { &buffer[range] };
                return self.keep_of_handshake(slot, new);
            }
            Ok(Decoded::Complete { packet, .. }) => self.shard.home_of(&packet, certificate),
            Err(error) if matches!(error.kind, DecodeErrorKind::PacketTooLarge { .. }) => {
                return self.refuse(slot, Refusal::ConnectTooLarge);
            }
            // The shard knows how to answer it, and any shard will do.
            Err(_) => None,
        };
        let (start, range) = if kept > 0 {
            (range.end, range.end..range.end)
        } else {
            (range.start, range)
        };
        self.go_home(slot, home, buffer, start..range.end);
    }

    /// The CONNECT is complete. It is kept with the connection, or it is `buffer[range]`.
    fn go_home(&mut self, slot: u32, home: Option<ShardId>, buffer: &mut [u8], range: Range<usize>) {
        match home.filter(|home| *home != self.id) {
            Some(home) => {
                if let Some((handshake, unread)) = self.handshake(slot) {
                    handshake.step = Step::Leaving(home);
                    unread.extend_from_slice(&buffer[range]);
                }
            }
            None => {
                self.open(slot);
                if range.is_empty() {
                    self.feed_unread(slot);
                } else {
                    self.feed(slot, buffer, range);
                }
            }
        }
    }

    fn keep_of_handshake(&mut self, slot: u32, bytes: &[u8]) {
        if let Some(connection) = self.slots.get_mut(slot)
            && !bytes.is_empty()
        {
            connection.keep(bytes);
        }
        self.hold(slot);
    }

    /// Pays for what a connection in its handshake holds beyond the free bytes.
    fn hold(&mut self, slot: u32) {
        let pot = self.handshake_pot_bytes;
        let Some((handshake, unread)) = self.handshake(slot) else {
            return;
        };
        let wanted = unread.capacity().saturating_sub(FREE_BYTES);
        let more = wanted.saturating_sub(handshake.reserved_bytes);
        if more > pot {
            return self.refuse(slot, Refusal::HandshakeMemory);
        }
        handshake.reserved_bytes += more;
        self.handshake_pot_bytes -= more;
    }

    /// Gives back what `hold` took.
    pub(crate) fn release_handshake(&mut self, slot: u32) {
        if let Some((handshake, _)) = self.handshake(slot) {
            let reserved = std::mem::take(&mut handshake.reserved_bytes);
            self.handshake_pot_bytes += reserved;
        }
    }

    /// WebSocket framing was violated before the CONNECT.
    pub(crate) fn refuse_framing(&mut self, slot: u32) {
        if let Some(websocket) = self.slots.get_mut(slot).and_then(|connection| connection.websocket())
            && websocket.is_between_frames()
        {
            websocket.begin_close();
        }
        self.refuse(slot, Refusal::WebSocketFraming);
    }

    /// The handshake is over: the shard takes the connection.
    fn open(&mut self, slot: u32) {
        self.release_handshake(slot);
        let Some(peer) = self.peer(slot) else { return };
        if let Some(connection) = self.slots.get_mut(slot) {
            connection.stage = Stage::Open;
            connection.needed = 0;
            self.shard.open(self.now, ConnSlot(slot), peer);
        }
    }

    /// What the shard is told of a connection in its handshake.
    fn peer(&mut self, slot: u32) -> Option<Peer> {
        let common = self.common.clone();
        let listener = self.slots.get_mut(slot)?.listener;
        let (handshake, _) = self.handshake(slot)?;
        let config = &common.listeners[usize::from(listener)].config;
        Some(Peer {
            address: handshake.address,
            transport: config.transport,
            listener,
            maximum_packet_size: config.maximum_packet_size,
            certificate_common_name: handshake.certificate_common_name.take(),
            certificate: handshake.certificate.take(),
        })
    }

    /// Sends a connection to its home, with everything that was read of it, once all bytes at hand are unpacked.
    pub(crate) fn leave_if_due(&mut self, slot: u32) {
        let Some((
            &mut Handshake {
                step: Step::Leaving(home),
                ..
            },
            _,
        )) = self.handshake(slot)
        else {
            return;
        };
        self.release_handshake(slot);
        let Some(peer) = self.peer(slot) else { return };
        let Some(mut connection) = self.slots.remove(slot) else {
            return;
        };
        if self.poll.registry().deregister(&mut connection.socket).is_err() {
            // The socket is of no use to anybody.
            self.count_out(&connection);
            return;
        }
        connection.leave();
        self.counters.moved += 1;
        self.send(home, Letter::Arrival(Box::new(Arrival { connection, peer })));
    }

    /// A connection from another worker, whose CONNECT is the first of its unread bytes.
    pub(crate) fn arrived(&mut self, arrival: Arrival) {
        let Arrival { connection, peer } = arrival;
        let slot = self.slots.insert(connection).slot;
        if self.is_stopping() {
            return self.refuse(slot, Refusal::ShuttingDown);
        }
        if self.register(slot).is_err() {
            return self.refuse(slot, Refusal::PeerClosed);
        }
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        connection.stage = Stage::Open;
        connection.needed = 0;
        self.shard.open(self.now, ConnSlot(slot), peer);
        self.hear_out_predecessor(slot);
        self.list_for_flush(slot);
        self.list_for_read(slot);
    }

    /// Has what a client said last on the connection it had read before its new CONNECT. It may have come while this one was on its
    /// way, with its event still to come: a DISCONNECT there says whether the session and the will go on.
    fn hear_out_predecessor(&mut self, slot: u32) {
        let limit = self.common.config.maximum_connect_size as usize;
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let Ok(Decoded::Complete { packet, .. }) = mqtt::decode_connect(&connection.unread, limit) else {
            return;
        };
        let Some(ConnSlot(old)) = self.shard.connection_of(packet.client_id) else {
            return;
        };
        if let Some(old_connection) = self.slots.get_mut(old) {
            old_connection.is_readable = true;
            self.list_for_read(old);
        }
    }
}
