//! The reader's side of a socket: receives datagrams, accepts connections within the limits, and finds the worker of
//! each datagram.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::Instant;

use broker::{ShardId, client_network};
use bytes::BytesMut;
use quinn_proto::{
    AcceptError, ConnectionEvent, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, EndpointEvent, Incoming,
    Transmit,
};
use quinn_udp::RecvMeta;
use trust::own::trusted_peer;

use crate::connection::{Handshake, HandshakeStep, SocketConnection};
use crate::counters::EarlyCloseReason;
use crate::quic::config::{self, HALF_OPEN_MAX, HALF_OPEN_PER_NETWORK_MAX, UNVALIDATED_MAX};
use crate::quic::connection::QuicConnection;
use crate::quic::lost;
use crate::quic::mail::QuicId;
use crate::quic::windows::Windows;
use crate::server_common::ServerCommon;
use crate::socket::ConnectionSocket;
use crate::worker::NetWorker;

/// Buffers of one system call. Each may hold several datagrams of one sender (GRO).
const BUFFERS: usize = 8;
const BUFFER_BYTES: usize = 64 * 1024;

/// Maximum number of system calls per tick for one socket.
const CALLS_PER_TICK: usize = 16;

pub(super) struct QuicEndpoint {
    pub(super) endpoint: Endpoint,
    /// The worker of each connection, by handle.
    workers: Vec<Option<ShardId>>,
    /// Connections whose handshake is not complete …
    half_open: usize,
    /// … and whose address is not validated either.
    unvalidated: usize,
    /// Connections whose handshake is not complete, by network, if their address was validated.
    networks: HashMap<IpAddr, usize>,
    /// The current second, and the connections accepted in it without a validated address.
    unvalidated_in: (u64, u32),
    /// Maximum number of these connections per second.
    unvalidated_per_second: u32,
    /// The socket may have datagrams: no read has returned `WouldBlock` since its last event.
    pub(super) is_ready: bool,
    /// Responses of the endpoint itself.
    response: Vec<u8>,
}

impl QuicEndpoint {
    pub(super) fn new(common: &ServerCommon, listener: usize, may_fragment: bool) -> io::Result<QuicEndpoint> {
        let listener = &common.listeners[listener].config;
        let tls = listener.tls.clone().ok_or(io::ErrorKind::InvalidInput)?;
        let server = config::server_config(tls, listener, common.config.tcp_keep_alive)?;
        let endpoint = config::endpoint_config(listener.stateless_reset_secret.as_deref())?;
        Ok(QuicEndpoint {
            endpoint: Endpoint::new(endpoint, Some(server), !may_fragment, None),
            workers: Vec::new(),
            half_open: 0,
            unvalidated: 0,
            networks: HashMap::new(),
            unvalidated_in: (0, 0),
            unvalidated_per_second: config::unvalidated_per_second(listener),
            is_ready: true,
            response: Vec::new(),
        })
    }

    /// Sets the worker that gets the datagrams of a connection.
    pub(super) fn assign(&mut self, handle: ConnectionHandle, worker: ShardId) {
        if self.workers.len() <= handle.0 {
            self.workers.resize(handle.0 + 1, None);
        }
        self.workers[handle.0] = Some(worker);
    }

    /// Returns whether a connection from an address that is not validated is accepted now, and counts it.
    fn accepts_unvalidated(&mut self, now_ms: u64) -> bool {
        let second = now_ms / 1000;
        if self.unvalidated_in.0 != second {
            self.unvalidated_in = (second, 0);
        }
        let is_accepted = self.unvalidated < UNVALIDATED_MAX && self.unvalidated_in.1 < self.unvalidated_per_second;
        self.unvalidated_in.1 += u32::from(is_accepted);
        is_accepted
    }

    /// Adds a connection to the counts of incomplete handshakes.
    fn handshake_begins(&mut self, is_validated: bool, address: IpAddr) {
        self.half_open += 1;
        match is_validated {
            true => *self.networks.entry(client_network(address)).or_default() += 1,
            false => self.unvalidated += 1,
        }
    }

    /// Removes a connection from the counts of incomplete handshakes.
    pub(super) fn handshake_ended(&mut self, was_validated: bool, address: IpAddr) {
        self.half_open -= 1;
        if !was_validated {
            self.unvalidated -= 1;
            return;
        }
        let network = client_network(address);
        if let Some(count) = self.networks.get_mut(&network) {
            *count -= 1;
            if *count == 0 {
                self.networks.remove(&network);
            }
        }
    }
}

impl NetWorker {
    /// Receives datagrams, runs timers, and passes the events of connections to the loop.
    pub(crate) fn receive_quic(&mut self) {
        if self.quic.sockets.is_empty() {
            return;
        }
        for index in 0..self.quic.endpoints.len() {
            if self.quic.endpoints[index]
                .as_ref()
                .is_some_and(|endpoint| endpoint.is_ready)
            {
                self.read_datagrams(index);
            }
        }
        self.run_quic_timers();
        self.poll_quic();
        self.send_quic_mail();
    }

    fn read_datagrams(&mut self, index: usize) {
        let mut input = std::mem::take(&mut self.quic.input);
        input.resize(BUFFERS * BUFFER_BYTES, 0);
        for _ in 0..CALLS_PER_TICK {
            let mut metas = [RecvMeta::default(); BUFFERS];
            match self.receive_batch(index, &mut input, &mut metas) {
                Ok(count) => {
                    let now = Instant::now();
                    for (meta, buffer) in metas[..count].iter().zip(input.chunks(BUFFER_BYTES)) {
                        self.counters.bytes_in += meta.len as u64;
                        for datagram in buffer[..meta.len].chunks(meta.stride.max(1)) {
                            self.received_datagram(index, now, meta, datagram);
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Some(endpoint) = &mut self.quic.endpoints[index] {
                        endpoint.is_ready = false;
                    }
                    break;
                }
                // An error of an earlier datagram, which the kernel reports once.
                Err(_) => {}
            }
        }
        self.quic.input = input;
    }

    fn receive_batch(&mut self, index: usize, input: &mut [u8], metas: &mut [RecvMeta]) -> io::Result<usize> {
        let Some(socket) = &self.quic.sockets[index] else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let mut chunks = input.chunks_mut(BUFFER_BYTES);
        let mut buffers: [IoSliceMut<'_>; BUFFERS] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        self.counters.reads += 1;
        socket.state.recv((&socket.socket).into(), &mut buffers, metas)
    }

    fn received_datagram(&mut self, index: usize, now: Instant, meta: &RecvMeta, datagram: &[u8]) {
        let Some(endpoint) = &mut self.quic.endpoints[index] else {
            return;
        };
        if meta.addr.port() == 0 {
            // No answer can be sent there, and the attempt would disable segmentation offload.
            return;
        }
        let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
        endpoint.response.clear();
        let event = endpoint.endpoint.handle(
            now,
            meta.addr,
            meta.dst_ip,
            ecn,
            BytesMut::from(datagram),
            &mut endpoint.response,
        );
        match event {
            None => {}
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                self.route_datagram((index as u16, handle), event, datagram.len());
            }
            Some(DatagramEvent::Response(transmit)) => self.send_response(index, transmit),
            Some(DatagramEvent::NewConnection(incoming)) => self.incoming(index, incoming, now),
        }
    }

    fn worker_of(&self, (listener, handle): QuicId) -> Option<ShardId> {
        let endpoint = self.quic.endpoints[usize::from(listener)].as_ref()?;
        *endpoint.workers.get(handle.0)?
    }

    fn route_datagram(&mut self, id: QuicId, event: ConnectionEvent, bytes: usize) {
        match self.worker_of(id) {
            Some(worker) if worker == self.id => self.pass_to_connection(id, event),
            Some(worker) => {
                let mail = &mut self.quic.outgoing[usize::from(worker.0)];
                mail.datagrams.push((id, event));
                mail.datagram_bytes += bytes + size_of::<(QuicId, ConnectionEvent)>();
            }
            None => {}
        }
    }

    /// Passes an event that must not be lost to the worker of its connection.
    pub(super) fn pass_to_worker(&mut self, id: QuicId, event: ConnectionEvent) {
        match self.worker_of(id) {
            Some(worker) if worker == self.id => self.pass_to_connection(id, event),
            Some(worker) => self.quic.outgoing[usize::from(worker.0)].events.push((id, event)),
            None => {}
        }
    }

    /// Passes an event of a connection to the endpoint that this worker has.
    pub(super) fn pass_to_endpoint(
        &mut self,
        (listener, handle): QuicId,
        event: EndpointEvent,
    ) -> Option<ConnectionEvent> {
        let endpoint = self.quic.endpoints[usize::from(listener)].as_mut()?;
        if event.is_drained()
            && let Some(worker) = endpoint.workers.get_mut(handle.0)
        {
            *worker = None;
        }
        endpoint.endpoint.handle_event(handle, event)
    }

    fn send_response(&mut self, index: usize, transmit: Transmit) {
        if let (Some(socket), Some(endpoint)) = (&mut self.quic.sockets[index], &self.quic.endpoints[index]) {
            // A response is lost if the socket is full. The client repeats its question.
            socket.send_or_drop(&transmit, &endpoint.response, &mut self.counters);
        }
    }

    /// Decides about a new connection.
    fn incoming(&mut self, index: usize, incoming: Incoming, now: Instant) {
        let Some(endpoint) = &mut self.quic.endpoints[index] else {
            return;
        };
        let is_validated = incoming.remote_address_validated();
        // Forged addresses must not use up the connections of the listener and of the server either.
        let has_space = self.common.is_half_empty() && self.common.listeners[index].is_half_empty();
        let is_accepted = is_validated || (has_space && endpoint.accepts_unvalidated(self.now.monotonic_ms));
        if !is_accepted {
            endpoint.response.clear();
            self.counters.quic_retries += 1;
            if let Ok(transmit) = endpoint.endpoint.retry(incoming, &mut endpoint.response) {
                self.send_response(index, transmit);
            }
            return;
        }
        let address = trusted_peer(incoming.remote_address());
        let of_network = endpoint.networks.get(&client_network(address.ip()));
        let is_full = endpoint.half_open >= HALF_OPEN_MAX
            || (is_validated && of_network.is_some_and(|count| *count >= HALF_OPEN_PER_NETWORK_MAX));
        let admitted = match is_full {
            true => Err(EarlyCloseReason::HandshakeMemory),
            false => self.admit_quic(index, address, is_validated),
        };
        match admitted {
            Ok(()) => self.accept_quic(index, incoming, address, now),
            Err(reason) => {
                self.record_rejected(index, address, reason);
                if let Some(endpoint) = &mut self.quic.endpoints[index] {
                    endpoint.response.clear();
                    let transmit = endpoint.endpoint.refuse(incoming, &mut endpoint.response);
                    self.send_response(index, transmit);
                }
            }
        }
    }

    /// Counts a new connection, or returns the limit that prevents it. A client counts in the rates only when it has
    /// shown that it receives at its address: otherwise forged addresses could use up the rates of others.
    fn admit_quic(&self, index: usize, address: SocketAddr, is_validated: bool) -> Result<(), EarlyCloseReason> {
        if is_validated {
            self.admit_validated(index, address.ip())?;
        }
        let listener = &self.common.listeners[index];
        listener.admit_number()?;
        self.common.admit().inspect_err(|_| listener.connection_closed())
    }

    /// Counts a client at a validated address in the rates of new connections.
    pub(super) fn admit_validated(&self, index: usize, address: IpAddr) -> Result<(), EarlyCloseReason> {
        // First, so that one address cannot use up the rate of the listener.
        if !self.common.admit_address(address, self.now.monotonic_ms) {
            return Err(EarlyCloseReason::AddressRate);
        }
        self.common.listeners[index].admit_rate(self.now.monotonic_ms)
    }

    fn accept_quic(&mut self, index: usize, incoming: Incoming, address: SocketAddr, now: Instant) {
        self.counters.accepted += 1;
        let is_validated = incoming.remote_address_validated();
        let worker = self.id;
        let Some(endpoint) = &mut self.quic.endpoints[index] else {
            return;
        };
        endpoint.response.clear();
        let (handle, connection) = match endpoint.endpoint.accept(incoming, now, &mut endpoint.response, None) {
            Ok(accepted) => accepted,
            Err(AcceptError { cause, response }) => {
                let (reason, detail) = lost::describe(&cause);
                self.report_early_close(index, address, reason, detail, false);
                self.common.listeners[index].connection_closed();
                self.common.connections.fetch_sub(1, Ordering::Relaxed);
                self.counters.closed += 1;
                if let Some(transmit) = response {
                    self.send_response(index, transmit);
                }
                return;
            }
        };
        endpoint.assign(handle, worker);
        endpoint.handshake_begins(is_validated, address.ip());
        let handshake = Handshake {
            step: HandshakeStep::Tls,
            address,
            certificate_common_name: None,
            certificate: None,
            reserved_bytes: 0,
        };
        let config = &self.common.listeners[index].config;
        let windows = Windows::new(config, &self.common.quic_windows);
        let streams = config.max_data_streams;
        let quic = QuicConnection::new(connection, handle, is_validated, address.ip(), windows, streams);
        let socket = ConnectionSocket::Quic(Box::new(quic));
        let mut connection = SocketConnection::new(socket, index as u16, handshake);
        connection.is_registered = true;
        let conn = self.slots.insert(connection);
        self.handshake_deadlines[index].push(self.now.monotonic_ms, conn);
        self.quic.slots.insert((index as u16, handle), conn.slot);
        if let Some(connection) = self.slots.get_mut(conn.slot) {
            self.quic.touch(conn.slot, &mut connection.socket);
        }
    }
}
