//! From accept to a complete CONNECT: PROXY header, TLS, WebSocket upgrade, CONNECT, and the move to the worker that
//! owns the client id.
//!
//! Before its CONNECT is complete, a peer is untrusted and gets few resources: the handshake timeout for all steps
//! together, and 4 KiB of buffered bytes. A larger CONNECT (long will, token as password) takes the excess from a pool
//! that all connections in their handshake share. If the pool is empty, such a connection is rejected. Memory of TLS is
//! allocated by the library in addition.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use broker::{ConnSlot, Peer, ShardId};
use mqtt::{DecodeErrorKind, Decoded};
use rustls::ServerConnection;

use crate::certificate;
use crate::connection::{ConnectionStage, Handshake, HandshakeStep, MovedConnection, SocketConnection};
use crate::counters::EarlyCloseReason;
use crate::early_close::{not_an_upgrade, other_protocol};
use crate::mailbox_item::MailboxItem;
use crate::proxy::{self, ProxyHeader};
use crate::websocket::WebSocketState;
use crate::websocket::handshake::{Upgrade, upgrade};
use crate::worker::NetWorker;

/// Bytes that a connection in its handshake may buffer without using the pool.
const FREE_BYTES: usize = 4 * 1024;

/// MailboxSender of a client that the proxy does not know.
const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl NetWorker {
    fn handshake(&mut self, slot: ConnSlot) -> Option<(&mut Handshake, &mut Vec<u8>)> {
        match self.slots.get_mut(slot)? {
            SocketConnection {
                stage: ConnectionStage::Handshake(handshake),
                unread,
                ..
            } => Some((handshake, unread)),
            _ => None,
        }
    }

    /// Reads the PROXY header. `Some(n)`: the step is complete, and the first `n` of these bytes belonged to it.
    pub(crate) fn proxy_step(&mut self, slot: ConnSlot, bytes: &[u8]) -> Option<usize> {
        let common = self.common.clone();
        let listener = self.slots.get_mut(slot)?.listener;
        let (handshake, unread) = self.handshake(slot)?;
        let before = unread.len();
        unread.extend_from_slice(bytes);
        match proxy::decode(unread) {
            Ok(ProxyHeader::Incomplete) => None,
            Ok(ProxyHeader::Complete { size, source }) => {
                *unread = Vec::new();
                // Use an unspecified address if the proxy names no client. The proxy's own address may be loopback,
                // which is trusted.
                handshake.address = source.unwrap_or(UNKNOWN);
                let address = handshake.address.ip();
                let config = &common.listeners[usize::from(listener)].config;
                if config.is_address_of_client(address) && !common.admit_address(address, self.now.monotonic_ms) {
                    self.refuse(slot, EarlyCloseReason::AddressRate);
                    return None;
                }
                self.next_step(slot, HandshakeStep::Proxy);
                Some(size - before)
            }
            Err(error) => {
                self.refuse_because(slot, EarlyCloseReason::ProxyMalformed, error.to_string().into());
                None
            }
        }
    }

    /// Continues when the TLS handshake is complete.
    pub(crate) fn tls_step(&mut self, slot: ConnSlot) {
        let Some(SocketConnection {
            stage: ConnectionStage::Handshake(handshake),
            layer,
            ..
        }) = self.slots.get_mut(slot)
        else {
            return;
        };
        let Some(tls) = layer.as_ref().and_then(|layer| layer.tls.as_ref()) else {
            return;
        };
        if handshake.step == HandshakeStep::Tls && !tls.is_handshaking() {
            let certificate = tls.peer_certificates().and_then(|chain| chain.first());
            handshake.certificate_common_name =
                certificate.and_then(|certificate| certificate::common_name(certificate));
            handshake.certificate = certificate.map(|certificate| certificate.as_ref().into());
            self.next_step(slot, HandshakeStep::Tls);
        }
    }

    /// Creates the TLS state when the first byte for it has arrived, so that silent peers cost nothing. Returns `false`
    /// on failure.
    pub(crate) fn begin_tls(&mut self, slot: ConnSlot) -> bool {
        let Some(SocketConnection {
            stage: ConnectionStage::Handshake(handshake),
            layer,
            listener,
            ..
        }) = self.slots.get_mut(slot)
        else {
            return true;
        };
        if handshake.step != HandshakeStep::Tls || layer.as_ref().is_some_and(|layer| layer.tls.is_some()) {
            return true;
        }
        let config = self.tls_configs[usize::from(*listener)].clone();
        let Some(Ok(tls)) = config.map(ServerConnection::new) else {
            self.refuse(slot, EarlyCloseReason::TlsHandshake);
            return false;
        };
        layer.get_or_insert_default().tls = Some(tls);
        true
    }

    /// Reads the upgrade request. Returns as `proxy_step`.
    pub(crate) fn websocket_step(&mut self, slot: ConnSlot, bytes: &[u8]) -> Option<usize> {
        let common = self.common.clone();
        let now_ms = self.now.monotonic_ms;
        let connection = self.slots.get_mut(slot)?;
        let config = &common.listeners[usize::from(connection.listener)].config;
        let rules = &config.websocket;
        let before = connection.unread.len();
        connection.unread.extend_from_slice(bytes);
        let foreign = not_an_upgrade(&connection.unread);
        let outcome = upgrade(&connection.unread, rules);
        if outcome == Upgrade::Incomplete {
            self.charge_pool(slot);
            return None;
        }
        connection.unread = Vec::new();
        let mut websocket = WebSocketState::default();
        let mut detail = Cow::Borrowed("");
        let mut is_over_rate = false;
        let used = match outcome {
            Upgrade::Accepted { size, response, origin } => {
                if let ConnectionStage::Handshake(handshake) = &mut connection.stage {
                    let proxy = handshake.address.ip();
                    let client = origin.client(proxy, &rules.trusted_proxies);
                    is_over_rate = !config.is_address_of_client(proxy) && !common.admit_address(client, now_ms);
                    handshake.address.set_ip(client);
                }
                websocket.respond(&response);
                Some(size - before)
            }
            Upgrade::Refused { response, reason } => {
                detail = foreign.map_or(reason, Cow::Borrowed);
                websocket.respond(&response);
                websocket.skip_close();
                None
            }
            Upgrade::Incomplete => None,
        };
        if is_over_rate {
            self.refuse(slot, EarlyCloseReason::AddressRate);
            return None;
        }
        connection.layer.get_or_insert_default().websocket = Some(websocket);
        if used.is_some() {
            self.release_handshake(slot);
            self.list_for_flush(slot);
            self.next_step(slot, HandshakeStep::WebSocket);
        } else {
            self.refuse_because(slot, EarlyCloseReason::WebSocketHandshake, detail);
        }
        used
    }

    pub(crate) fn next_step(&mut self, slot: ConnSlot, done: HandshakeStep) {
        let common = self.common.clone();
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let config = &common.listeners[usize::from(connection.listener)].config;
        if let ConnectionStage::Handshake(handshake) = &mut connection.stage {
            handshake.step = match done {
                HandshakeStep::Proxy if config.is_tls() => HandshakeStep::Tls,
                HandshakeStep::Proxy | HandshakeStep::Tls if config.is_websocket() => HandshakeStep::WebSocket,
                _ => HandshakeStep::Connect,
            };
        }
    }

    /// Reads the CONNECT and decides which worker gets the connection.
    pub(crate) fn connect_step(&mut self, slot: ConnSlot, buffer: &mut [u8], range: Range<usize>) {
        let limit = self.common.config.maximum_connect_size as usize;
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let ConnectionStage::Handshake(handshake) = &connection.stage else {
            return;
        };
        let stored = connection.unread.len();
        if matches!(handshake.step, HandshakeStep::Moving(_)) || stored + range.len() < connection.needed as usize {
            return self.store_handshake_bytes(slot, &buffer[range]);
        }
        if stored > 0 {
            // The handshake has limits of its own.
            connection.unread.extend_from_slice(&buffer[range.clone()]);
        }
        let bytes = if stored > 0 {
            connection.unread.as_slice()
        } else {
            &buffer[range.clone()]
        };
        let certificate = match &connection.stage {
            ConnectionStage::Handshake(handshake) => handshake.certificate.as_deref(),
            _ => None,
        };
        let listener = connection.listener;
        let target = match mqtt::decode_connect(bytes, limit) {
            Ok(Decoded::Incomplete { needed }) => {
                connection.needed = u32::try_from(needed).unwrap_or(u32::MAX);
                let new = if stored > 0 { &[][..] } else { &buffer[range] };
                return self.store_handshake_bytes(slot, new);
            }
            Ok(Decoded::Complete { packet, .. }) => self.shard.inspect().home_shard_of(&packet, certificate, listener),
            Err(error) if matches!(error.kind, DecodeErrorKind::PacketTooLarge { .. }) => {
                return self.refuse(slot, EarlyCloseReason::ConnectTooLarge);
            }
            // The shard encodes the error response. Any shard can do it.
            Err(_) => match other_protocol(bytes) {
                Some(detail) => return self.refuse_because(slot, EarlyCloseReason::OtherProtocol, detail.into()),
                None => None,
            },
        };
        let (start, range) = if stored > 0 {
            (range.end, range.end..range.end)
        } else {
            (range.start, range)
        };
        self.assign_to_worker(slot, target, buffer, start..range.end);
    }

    /// Opens the connection here, or marks it for the move. The CONNECT is in `unread` or in `buffer[range]`.
    fn assign_to_worker(&mut self, slot: ConnSlot, target: Option<ShardId>, buffer: &mut [u8], range: Range<usize>) {
        match target.filter(|target| *target != self.id) {
            Some(target) => {
                if let Some((handshake, unread)) = self.handshake(slot) {
                    handshake.step = HandshakeStep::Moving(target);
                    unread.extend_from_slice(&buffer[range]);
                }
            }
            None => {
                self.open(slot);
                if range.is_empty() {
                    self.pass_unread_to_shard(slot);
                } else {
                    self.pass_to_shard(slot, buffer, range);
                }
            }
        }
    }

    fn store_handshake_bytes(&mut self, slot: ConnSlot, bytes: &[u8]) {
        if let Some(connection) = self.slots.get_mut(slot)
            && !bytes.is_empty()
        {
            connection.unread.extend_from_slice(bytes);
        }
        self.charge_pool(slot);
    }

    /// Charges the pool for bytes of a handshake beyond the free ones.
    fn charge_pool(&mut self, slot: ConnSlot) {
        let available = self.handshake_pool_bytes;
        let Some((handshake, unread)) = self.handshake(slot) else {
            return;
        };
        let wanted = unread.capacity().saturating_sub(FREE_BYTES);
        let more = wanted.saturating_sub(handshake.reserved_bytes);
        if more > available {
            return self.refuse(slot, EarlyCloseReason::HandshakeMemory);
        }
        handshake.reserved_bytes += more;
        self.handshake_pool_bytes -= more;
    }

    /// Returns to the pool what `charge_pool` took.
    pub(crate) fn release_handshake(&mut self, slot: ConnSlot) {
        if let Some((handshake, _)) = self.handshake(slot) {
            let reserved = std::mem::take(&mut handshake.reserved_bytes);
            self.handshake_pool_bytes += reserved;
        }
    }

    /// Rejects a connection that violated WebSocket framing before its CONNECT.
    pub(crate) fn refuse_framing(&mut self, slot: ConnSlot) {
        if let Some(websocket) = self.slots.get_mut(slot).and_then(|connection| connection.websocket())
            && websocket.is_between_frames()
        {
            websocket.begin_close();
        }
        self.refuse(slot, EarlyCloseReason::WebSocketFraming);
    }

    /// Ends the handshake and passes the connection to the shard.
    fn open(&mut self, slot: ConnSlot) {
        self.release_handshake(slot);
        let Some(peer) = self.peer(slot) else { return };
        if let Some(connection) = self.slots.get_mut(slot) {
            connection.stage = ConnectionStage::Open;
            connection.needed = 0;
            self.shard.open(self.now, slot, peer);
        }
    }

    /// Returns the properties of a connection that the shard needs.
    fn peer(&mut self, slot: ConnSlot) -> Option<Peer> {
        let common = self.common.clone();
        let listener = self.slots.get_mut(slot)?.listener;
        let (handshake, _) = self.handshake(slot)?;
        let config = &common.listeners[usize::from(listener)].config;
        Some(Peer {
            address: handshake.address,
            transport: config.transport,
            listener,
            maximum_packet_size: config.max_packet_size,
            certificate_common_name: handshake.certificate_common_name.take(),
            certificate: handshake.certificate.take(),
        })
    }

    /// Moves a connection to its worker, with all bytes read from it, after the bytes at hand are unpacked.
    pub(crate) fn move_if_due(&mut self, slot: ConnSlot) {
        let Some((
            &mut Handshake {
                step: HandshakeStep::Moving(target),
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
        let is_registered = connection.is_registered;
        if let Some(socket) = connection.socket.tcp().filter(|_| is_registered)
            && self.poll.registry().deregister(socket).is_err()
        {
            // The socket is unusable.
            self.count_out(&connection);
            return;
        }
        self.leave_quic(&mut connection, target);
        connection.reset_readiness();
        self.counters.moved += 1;
        self.send(
            target,
            MailboxItem::MovedConnection(Box::new(MovedConnection { connection, peer })),
        );
    }

    /// Receives a connection from another worker. Its CONNECT is at the start of its unread bytes.
    pub(crate) fn receive_moved(&mut self, moved: MovedConnection) {
        let MovedConnection { connection, peer } = moved;
        let slot = self.slots.insert(connection).slot;
        if self.is_stopping() {
            return self.refuse(slot, EarlyCloseReason::ShuttingDown);
        }
        if self.register(slot).is_err() {
            return self.refuse(slot, EarlyCloseReason::PeerClosed);
        }
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        connection.stage = ConnectionStage::Open;
        connection.needed = 0;
        self.shard.open(self.now, slot, peer);
        self.read_previous_connection(slot);
        self.list_for_flush(slot);
        self.list_for_read(slot);
    }

    /// Reads the client's previous connection before its new CONNECT is processed. Data may have arrived there while
    /// the new connection was moving, with its event still pending: a DISCONNECT decides whether the session and the
    /// will continue.
    fn read_previous_connection(&mut self, slot: ConnSlot) {
        let limit = self.common.config.maximum_connect_size as usize;
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let Ok(Decoded::Complete { packet, .. }) = mqtt::decode_connect(&connection.unread, limit) else {
            return;
        };
        let Some(old) = self.shard.inspect().connection_of(packet.client_id) else {
            return;
        };
        if let Some(old_connection) = self.slots.get_mut(old) {
            old_connection.is_readable = true;
            self.list_for_read(old);
        }
    }
}
