//! Passes the events of QUIC connections to the event loop: data, space for output, the end.

use std::time::Instant;

use broker::ConnSlot;
use quinn_proto::{ConnectionError, ConnectionEvent, Dir, Event, StreamEvent};
use rustls::pki_types::CertificateDer;

use crate::certificate;
use crate::connection::{ConnectionStage, HandshakeStep};
use crate::quic::lost;
use crate::quic::mail::QuicId;
use crate::quic::streams;
use crate::worker::NetWorker;

/// Maximum number of stale entries of timers, in addition to a few per connection.
const STALE_TIMERS_MAX: usize = 1024;

impl NetWorker {
    /// Passes a datagram or new connection IDs to a connection of this worker. It may have been removed.
    pub(super) fn pass_to_connection(&mut self, id: QuicId, event: ConnectionEvent) {
        let Some(&slot) = self.quic.slots.get(&id) else {
            return;
        };
        if let Some(quic) = self.slots.get_mut(slot).and_then(|connection| connection.socket.quic()) {
            quic.connection.handle_event(event);
            self.quic.touch_quic(slot, quic);
        }
    }

    pub(super) fn run_quic_timers(&mut self) {
        let now_ms = self.now.monotonic_ms;
        let mut now = None;
        while let Some((due_ms, slot)) = self.quic.timers.pop_due(now_ms) {
            let connection = self.slots.get_mut(slot);
            let Some(quic) = connection.and_then(|connection| connection.socket.quic()) else {
                continue;
            };
            if quic.timer_ms == Some(due_ms) {
                quic.timer_ms = None;
                quic.handle_timeout(*now.get_or_insert_with(Instant::now));
                self.quic.touch_quic(slot, quic);
            }
        }
        self.remove_stale_timers();
    }

    /// Most entries become stale: a deadline is moved to an earlier time, or its connection ends.
    fn remove_stale_timers(&mut self) {
        if self.quic.timers.len() <= 4 * self.slots.len() + STALE_TIMERS_MAX {
            return;
        }
        let slots = &mut self.slots;
        self.quic.timers.retain(|due_ms, slot| {
            let connection = slots.get_mut(slot);
            let quic = connection.and_then(|connection| connection.socket.quic());
            quic.is_some_and(|quic| quic.timer_ms == Some(due_ms))
        });
    }

    /// Processes the events of all connections that have some. They stay listed until their output is sent.
    pub(super) fn poll_quic(&mut self) {
        let mut index = 0;
        while let Some(&slot) = self.quic.touched.get(index) {
            index += 1;
            while let Some(event) = self.next_quic_event(slot) {
                self.quic_event(slot, event);
            }
            self.list_writable_streams();
        }
    }

    /// Lists the streams of a connection that can be written again. The one that has waited longest comes first,
    /// because one stream with much output can fill the window.
    fn list_writable_streams(&mut self) {
        let mut writable = std::mem::take(&mut self.quic.writable);
        writable.sort_unstable_by_key(|(last_write, _)| *last_write);
        for (_, slot) in writable.drain(..) {
            self.list_for_flush(slot);
        }
        self.quic.writable = writable;
    }

    /// Returns the next event of a connection, after its events for the endpoint.
    fn next_quic_event(&mut self, slot: ConnSlot) -> Option<Event> {
        let connection = self.slots.get_mut(slot)?;
        let listener = connection.listener;
        loop {
            let quic = self.slots.get_mut(slot)?.socket.quic()?;
            let id = (listener, quic.handle);
            let Some(event) = quic.connection.poll_endpoint_events() else {
                return quic.connection.poll();
            };
            // `end_quic` tells the endpoint when the connection is removed, so that its name is not used again before.
            if event.is_drained() {
                continue;
            }
            let reader = self.quic.reader(listener);
            if reader != self.id {
                self.quic.outgoing[usize::from(reader.0)].to_endpoint.push((id, event));
            } else if let Some(answer) = self.pass_to_endpoint(id, event) {
                self.pass_to_connection(id, answer);
            }
        }
    }

    fn quic_event(&mut self, slot: ConnSlot, event: Event) {
        match event {
            Event::Connected => self.quic_connected(slot),
            Event::ConnectionLost { reason } => self.quic_lost(slot, &reason),
            Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => self.accept_stream(slot),
            Event::Stream(event) => self.stream_event(slot, &event),
            // There are no datagrams.
            Event::HandshakeDataReady | Event::DatagramReceived | Event::DatagramsUnblocked => {}
        }
    }

    fn stream_event(&mut self, slot: ConnSlot, event: &StreamEvent) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let Some(quic) = connection.socket.quic() else {
            return;
        };
        let id = match event {
            StreamEvent::Readable { id }
            | StreamEvent::Writable { id }
            | StreamEvent::Finished { id }
            | StreamEvent::Stopped { id, .. } => *id,
            // The server opens no streams.
            StreamEvent::Opened { .. } | StreamEvent::Available { .. } => return,
        };
        let is_control = quic.stream.id == Some(id);
        let target = match is_control {
            true => Some(slot),
            false => quic.data_stream(id),
        };
        // Otherwise the event belongs to a stream that waits, has ended, or was rejected.
        let Some(target) = target else {
            return;
        };
        match event {
            StreamEvent::Readable { .. } => self.quic_readable(target),
            StreamEvent::Writable { .. } => {
                quic.windows.writable();
                self.quic_writable(target);
            }
            StreamEvent::Finished { .. } if is_control => self.quic_finished(slot),
            StreamEvent::Finished { .. } => self.data_stream_finished(target),
            _ => self.handle_broken(target),
        }
    }

    fn quic_writable(&mut self, slot: ConnSlot) {
        if let Some(connection) = self.slots.get_mut(slot) {
            connection.is_write_blocked = false;
            self.quic.writable.push((streams::last_write(&connection.socket), slot));
        }
    }

    /// Ends the TLS handshake. The client has shown that it receives at its address.
    fn quic_connected(&mut self, slot: ConnSlot) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let listener = usize::from(connection.listener);
        let Some(quic) = connection.socket.quic() else {
            return;
        };
        quic.is_half_open = false;
        let was_validated = quic.is_validated;
        let identity = quic.connection.crypto_session().peer_identity();
        let chain = identity.and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
        let certificate = chain.as_ref().and_then(|chain| chain.first());
        let ConnectionStage::Handshake(handshake) = &mut connection.stage else {
            return;
        };
        handshake.certificate_common_name = certificate.and_then(|certificate| certificate::common_name(certificate));
        handshake.certificate = certificate.map(|certificate| certificate.as_ref().into());
        let address = handshake.address.ip();
        self.next_step(slot, HandshakeStep::Tls);
        if let Some(endpoint) = &mut self.quic.endpoints[listener] {
            endpoint.handshake_ended(was_validated, address);
        }
        if !was_validated && let Err(reason) = self.admit_validated(listener, address) {
            self.refuse(slot, reason);
        }
    }

    fn accept_stream(&mut self, slot: ConnSlot) {
        if let Some(quic) = self.slots.get_mut(slot).and_then(|connection| connection.socket.quic()) {
            self.counters.quic_streams_rejected += quic.accept_streams();
            self.quic_readable(slot);
        }
    }

    fn quic_readable(&mut self, slot: ConnSlot) {
        if let Some(connection) = self.slots.get_mut(slot) {
            connection.is_readable = true;
            self.list_for_read(slot);
        }
    }

    /// The client has acknowledged everything up to the end of our stream.
    fn quic_finished(&mut self, slot: ConnSlot) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if let Some(quic) = connection.socket.quic() {
            quic.finished();
        }
        if matches!(connection.stage, ConnectionStage::Draining { .. }) {
            self.remove(slot);
        }
    }

    fn quic_lost(&mut self, slot: ConnSlot, reason: &ConnectionError) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let Some(quic) = connection.socket.quic() else {
            return;
        };
        quic.is_lost = true;
        if let ConnectionStage::Handshake(_) = &connection.stage {
            let (reason, detail) = lost::describe(reason);
            return self.refuse_because(slot, reason, detail);
        }
        self.break_data_streams(slot);
        // Data that has arrived before is read first.
        self.handle_broken(slot);
    }
}
