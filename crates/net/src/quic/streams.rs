//! Data streams of a QUIC connection: the streams that a client opens in addition to the control stream.
//!
//! A data stream has a slot of its own, as a connection has: with its unread bytes, its pauses and its output. The slot
//! of the control stream has the `QuicConnection`. A read or write of a data stream exchanges the streams of both for
//! the time of the call (`on_stream`), so that everything else is the same as for a connection.
//!
//! Data streams are accepted when the client is logged in, after the connection has moved to its worker. Their data
//! waits within the windows until then. They are closed before the control stream is.

use std::io;

use broker::{CloseCause, ConnSlot};
use quinn_proto::{Dir, StreamId, VarInt};

use crate::connection::{ConnectionStage, SocketConnection};
use crate::outlet::{self, FlushResult};
use crate::quic::config;
use crate::quic::connection::{OpenStream, QuicConnection};
use crate::slots::SlotTable;
use crate::socket::ConnectionSocket;
use crate::worker::NetWorker;

/// Code of RESET_STREAM and STOP_SENDING for a stream that the server rejects or ends.
const CODE_STREAM_REFUSED: u32 = 3;

const TOO_MANY_STREAMS: &str = "max_data_streams of the listener is reached";

/// The socket of a data stream.
pub(crate) struct DataStream {
    /// Slot of the control stream.
    control: ConnSlot,
    id: StreamId,
    /// While this stream is read or written, the control stream.
    stream: OpenStream,
}

impl DataStream {
    pub(crate) fn control(&self) -> ConnSlot {
        self.control
    }

    pub(crate) fn is_peer_finished(&self) -> bool {
        self.stream.is_peer_finished
    }

    /// Returns whether the peer has not acknowledged the end of our side of the stream yet.
    pub(crate) fn is_finishing(&self) -> bool {
        self.stream.is_finishing
    }
}

impl QuicConnection {
    /// Accepts the first stream of the client, the control stream. Further ones wait until the client is logged in, or
    /// are rejected if the listener allows no data streams. Returns the number of rejected ones.
    pub(super) fn accept_streams(&mut self) -> u64 {
        if self.stream.id.is_none() {
            self.stream.id = self.connection.streams().accept(Dir::Bi);
        }
        if self.max_data_streams > 0 {
            self.has_waiting_streams = true;
            return 0;
        }
        let mut rejected = 0;
        while let Some(stream) = self.connection.streams().accept(Dir::Bi) {
            self.reject_stream(stream);
            rejected += 1;
        }
        rejected
    }

    /// Permits a logged-in client to open its data streams. Others cannot make the server store the state of many.
    fn permit_data_streams(&mut self) {
        if !std::mem::replace(&mut self.may_open_all, true) {
            let max = VarInt::from_u32(config::streams_max(self.max_data_streams));
            self.connection.set_max_concurrent_streams(Dir::Bi, max);
        }
    }

    /// Returns the next stream that the client has opened.
    fn next_waiting_stream(&mut self) -> Option<StreamId> {
        if !self.has_waiting_streams {
            return None;
        }
        let stream = self.connection.streams().accept(Dir::Bi);
        self.has_waiting_streams = stream.is_some();
        stream
    }

    fn reject_stream(&mut self, stream: StreamId) {
        let code = VarInt::from_u32(CODE_STREAM_REFUSED);
        // Fails if the client has reset the stream already.
        let _ = self.connection.recv_stream(stream).stop(code);
        let _ = self.connection.send_stream(stream).reset(code);
    }

    /// Ends a data stream whose slot is removed. Output that was written before the end is still sent.
    fn end_data_stream(&mut self, stream: &DataStream) {
        self.data_streams.retain(|(id, _)| *id != stream.id);
        if self.is_lost {
            return;
        }
        let code = VarInt::from_u32(CODE_STREAM_REFUSED);
        // Fails if the client has ended its side.
        let _ = self.connection.recv_stream(stream.id).stop(code);
        if !stream.stream.was_finished {
            let _ = self.connection.send_stream(stream.id).reset(code);
        }
    }

    /// Returns the slot of a data stream.
    pub(super) fn data_stream(&self, id: StreamId) -> Option<ConnSlot> {
        let mut streams = self.data_streams.iter();
        streams.find(|(other, _)| *other == id).map(|(_, slot)| *slot)
    }
}

fn data_stream(socket: &mut ConnectionSocket) -> Option<&mut DataStream> {
    match socket {
        ConnectionSocket::DataStream(stream) => Some(stream),
        ConnectionSocket::Tcp(_) | ConnectionSocket::Quic(_) => None,
    }
}

/// Returns the number of the last write to a stream, among all writes of its connection.
pub(super) fn last_write(socket: &ConnectionSocket) -> u64 {
    match socket {
        ConnectionSocket::Tcp(_) => 0,
        ConnectionSocket::Quic(quic) => quic.stream.last_write,
        ConnectionSocket::DataStream(stream) => stream.stream.last_write,
    }
}

/// Calls `operate` with the slot and the connection of the control stream, whose socket is this data stream during the
/// call. Returns `None` if one of both does not exist any more.
fn on_stream<R>(
    slots: &mut SlotTable,
    slot: ConnSlot,
    operate: impl FnOnce(ConnSlot, &mut SocketConnection) -> R,
) -> Option<R> {
    let control = slots.get_mut(slot)?.socket.control()?;
    let (own, carrier) = slots.pair_mut(slot, control)?;
    let stream = data_stream(&mut own.socket)?;
    std::mem::swap(&mut stream.stream, &mut carrier.socket.quic()?.stream);
    let result = operate(control, carrier);
    let quic = carrier.socket.quic().expect("no operation replaces the socket");
    std::mem::swap(&mut stream.stream, &mut quic.stream);
    Some(result)
}

impl NetWorker {
    /// Accepts the data streams that a logged-in client has opened. Rejects those beyond the limits.
    pub(super) fn accept_data_streams(&mut self, control: ConnSlot) {
        let quic = self.slots.get_mut(control).and_then(|own| own.socket.quic());
        if quic.is_none_or(|quic| quic.max_data_streams == 0) {
            return;
        }
        while let Some(id) = self.next_data_stream(control) {
            let slot = match self.can_have_data_stream(control) {
                true => self.open_data_stream(control, id),
                false => {
                    self.shard.data_streams(self.now).rejected(control, TOO_MANY_STREAMS);
                    None
                }
            };
            let Some(quic) = self.slots.get_mut(control).and_then(|own| own.socket.quic()) else {
                return;
            };
            let Some(slot) = slot else {
                self.counters.quic_streams_rejected += 1;
                quic.reject_stream(id);
                // The shard has an event about it.
                self.quic.touch_quic(control, quic);
                continue;
            };
            self.counters.quic_streams += 1;
            quic.data_streams.push((id, slot));
            self.list_for_read(slot);
        }
    }

    fn next_data_stream(&mut self, control: ConnSlot) -> Option<StreamId> {
        if !self.is_open(control) || !self.shard.inspect().is_online(control) {
            return None;
        }
        let quic = self.slots.get_mut(control)?.socket.quic()?;
        quic.permit_data_streams();
        quic.next_waiting_stream()
    }

    /// Returns whether the connection has fewer open data streams than it may have. Streams that have ended wait for
    /// acknowledgements of the client, and do not count.
    fn can_have_data_stream(&mut self, control: ConnSlot) -> bool {
        let Some(quic) = self.slots.get_mut(control).and_then(|own| own.socket.quic()) else {
            return false;
        };
        let (streams, max) = (quic.data_streams.clone(), usize::from(quic.max_data_streams));
        streams.into_iter().filter(|(_, slot)| self.is_open(*slot)).count() < max
    }

    /// Opens a data stream, unless the shard rejects it. Returns its slot.
    fn open_data_stream(&mut self, control: ConnSlot, id: StreamId) -> Option<ConnSlot> {
        let listener = self.slots.get_mut(control)?.listener;
        let stream = OpenStream {
            id: Some(id),
            ..OpenStream::default()
        };
        let socket = ConnectionSocket::DataStream(Box::new(DataStream { control, id, stream }));
        let mut connection = SocketConnection::with_stage(socket, listener, ConnectionStage::Open);
        connection.is_registered = true;
        // Data that has arrived before causes no event.
        connection.is_readable = true;
        let slot = self.slots.insert(connection).slot;
        if !self.shard.data_streams(self.now).open(slot, control) {
            self.slots.remove(slot);
            return None;
        }
        Some(slot)
    }

    /// Reads from a data stream.
    pub(crate) fn read_data_stream(&mut self, slot: ConnSlot, buffer: &mut [u8]) -> io::Result<usize> {
        let quic = &mut self.quic;
        let read = on_stream(&mut self.slots, slot, |control, carrier| {
            quic.touch(control, &mut carrier.socket);
            carrier.socket.read(buffer)
        });
        read.unwrap_or_else(|| Err(io::ErrorKind::ConnectionReset.into()))
    }

    /// Writes the output of a data stream.
    pub(crate) fn write_data_stream(&mut self, slot: ConnSlot) -> io::Result<FlushResult> {
        let has_outbox = self.slots.get_mut(slot).is_some_and(|own| own.has_outbox());
        let outbox = match has_outbox {
            true => Some((self.shard.outbox(), slot)),
            false => None,
        };
        let (quic, scratch, counters) = (&mut self.quic, &mut self.scratch, &mut self.counters);
        let written = on_stream(&mut self.slots, slot, |control, carrier| {
            quic.touch(control, &mut carrier.socket);
            outlet::write_out(carrier, outbox, scratch, counters)
        });
        written.unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()))
    }

    /// Ends the output of a data stream.
    pub(crate) fn finish_data_stream(&mut self, slot: ConnSlot) {
        let quic = &mut self.quic;
        on_stream(&mut self.slots, slot, |control, carrier| {
            quic.touch(control, &mut carrier.socket);
            carrier.socket.finish(false);
        });
    }

    /// Closes the data streams of a connection that closes.
    pub(crate) fn close_data_streams(&mut self, control: ConnSlot, cause: CloseCause) {
        let Some(quic) = self.slots.get_mut(control).and_then(|own| own.socket.quic()) else {
            return;
        };
        for (_, slot) in std::mem::take(&mut quic.data_streams) {
            self.finish_data_stream(slot);
            self.closed(slot, cause);
            self.remove(slot);
        }
    }

    /// Ends a data stream that has been removed from its slot.
    pub(super) fn end_data_stream(&mut self, stream: &DataStream) {
        let control = stream.control;
        if let Some(quic) = self.slots.get_mut(control).and_then(|own| own.socket.quic()) {
            quic.end_data_stream(stream);
            self.quic.touch_quic(control, quic);
        }
    }

    /// The client has acknowledged everything up to the end of our side of the data stream.
    pub(super) fn data_stream_finished(&mut self, slot: ConnSlot) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        if let Some(stream) = data_stream(&mut connection.socket) {
            stream.stream.is_finishing = false;
        }
        if matches!(connection.stage, ConnectionStage::Draining { .. }) {
            self.remove(slot);
        }
    }

    /// The connection of these data streams is lost. Data that has arrived before is read first.
    pub(super) fn break_data_streams(&mut self, control: ConnSlot) {
        let quic = self.slots.get_mut(control).and_then(|own| own.socket.quic());
        let streams = quic.map(|quic| quic.data_streams.clone()).unwrap_or_default();
        for (_, slot) in streams {
            self.handle_broken(slot);
        }
    }
}
