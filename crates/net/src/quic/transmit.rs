//! Sends the datagrams of QUIC connections, at the end of a tick.

use std::time::Instant;

use broker::ConnSlot;
use quinn_proto::EndpointEvent;
use trust::own::trusted_peer;

use crate::connection::{ConnectionStage, SocketConnection};
use crate::quic::connection::QuicConnection;
use crate::socket::ConnectionSocket;
use crate::worker::NetWorker;

/// Maximum number of datagrams per system call (GSO).
const DATAGRAMS_PER_CALL: usize = 16;

/// Maximum number of system calls for one connection per tick. Others are next.
const CALLS_PER_TICK: usize = 32;

impl NetWorker {
    /// Sends the datagrams of every connection that has some, and sets its timer.
    pub(crate) fn transmit_quic(&mut self) {
        if self.quic.sockets.is_empty() {
            return;
        }
        for socket in self.quic.sockets.iter_mut().flatten() {
            socket.retry(&mut self.counters);
        }
        let now = Instant::now();
        let mut touched = std::mem::take(&mut self.quic.touched);
        for slot in touched.drain(..) {
            let Some(connection) = self.slots.get_mut(slot) else {
                continue;
            };
            let listener = connection.listener;
            let Some(quic) = connection.socket.quic().filter(|quic| quic.is_touched) else {
                continue;
            };
            quic.is_touched = false;
            self.transmit_connection(slot, listener, now);
        }
        // A connection with more datagrams has been listed again.
        touched.append(&mut self.quic.touched);
        self.quic.touched = touched;
        self.send_quic_mail();
    }

    fn transmit_connection(&mut self, slot: ConnSlot, listener: u16, now: Instant) {
        let has_moved = self.update_address(slot);
        self.accept_data_streams(slot);
        let connection = self.slots.get_mut(slot);
        let Some(quic) = connection.and_then(|connection| connection.socket.quic()) else {
            return;
        };
        // Only for clients that are logged in, by whatever way. Others need no more.
        let is_changed = quic.windows.wants_change() && self.shard.inspect().is_online(slot) && quic.change_windows();
        let Some(socket) = &mut self.quic.sockets[usize::from(listener)] else {
            return;
        };
        let output = &mut self.quic.output;
        let datagrams = socket.state.max_gso_segments().min(DATAGRAMS_PER_CALL);
        let mut calls = 0;
        let has_more = loop {
            if socket.is_blocked() || calls == CALLS_PER_TICK {
                break true;
            }
            calls += 1;
            output.clear();
            match quic.connection.poll_transmit(now, datagrams, output) {
                Some(transmit) => socket.send(transmit, output, &mut self.counters),
                None => break false,
            }
        };
        self.quic.timers.set(slot, quic, &self.common.clock);
        if has_more || is_changed || has_moved {
            self.quic.touch_quic(slot, quic);
        }
    }

    /// Passes on the address of a client that has moved. Returns whether the shard has an event about it.
    fn update_address(&mut self, slot: ConnSlot) -> bool {
        let Some(connection) = self.slots.get_mut(slot) else {
            return false;
        };
        if !connection.socket.quic().is_some_and(|quic| quic.is_moving()) {
            return false;
        }
        let is_open = matches!(connection.stage, ConnectionStage::Open);
        if connection.is_closing() || (is_open && !self.shard.inspect().is_online(slot)) {
            // Also while a login is decided, which belongs to the address from which CONNECT was sent.
            return false;
        }
        let Some(address) = connection.socket.quic().and_then(QuicConnection::new_address) else {
            return false;
        };
        let address = trusted_peer(address);
        match &mut connection.stage {
            ConnectionStage::Handshake(handshake) => handshake.address = address,
            _ => self.shard.operator(self.now).set_client_address(slot, address),
        }
        is_open
    }

    /// Closes a QUIC connection that has been removed from its slot.
    pub(crate) fn end_quic(&mut self, connection: SocketConnection) {
        let listener = connection.listener;
        match connection.socket {
            ConnectionSocket::Tcp(_) => {}
            ConnectionSocket::Quic(quic) => {
                self.close_quic(listener, *quic);
                self.send_quic_mail();
            }
            ConnectionSocket::DataStream(stream) => self.end_data_stream(&stream),
        }
    }

    /// Sends the last datagram, and forgets the connection. The endpoint answers later datagrams of the peer with a
    /// stateless reset.
    fn close_quic(&mut self, listener: u16, mut quic: QuicConnection) {
        let now = Instant::now();
        quic.close(now);
        let index = usize::from(listener);
        if let Some(socket) = &mut self.quic.sockets[index] {
            let output = &mut self.quic.output;
            output.clear();
            while let Some(transmit) = quic.connection.poll_transmit(now, 1, output) {
                socket.send_or_drop(&transmit, output, &mut self.counters);
                output.clear();
            }
        }
        let id = (listener, quic.handle);
        self.quic.slots.remove(&id);
        if quic.is_half_open
            && let Some(endpoint) = &mut self.quic.endpoints[index]
        {
            endpoint.handshake_ended(quic.is_validated, quic.first_address);
        }
        let reader = self.quic.reader(listener);
        if reader == self.id {
            self.pass_to_endpoint(id, EndpointEvent::drained());
        } else {
            let mail = &mut self.quic.outgoing[usize::from(reader.0)];
            mail.to_endpoint.push((id, EndpointEvent::drained()));
        }
    }
}
