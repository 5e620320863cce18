//! A QUIC connection as a byte stream: its first bidirectional stream, or the data stream that is read or written now.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use broker::ConnSlot;
use bytes::Bytes;
use quinn_proto::{Connection, ConnectionHandle, ReadError, StreamId, VarInt, WriteError};

use crate::counters::EarlyCloseReason;
use crate::quic::path;
use crate::quic::windows::Windows;

/// Codes of CONNECTION_CLOSE, as EMQX uses them.
const CODE_NO_ERROR: u32 = 0;
const CODE_REFUSED: u32 = 2;

/// A stream of the client, and how far it has ended.
#[derive(Default)]
pub(super) struct OpenStream {
    /// `None` until the client has opened it.
    pub(super) id: Option<StreamId>,
    pub(super) is_peer_finished: bool,
    /// The end of our side has been written …
    pub(super) was_finished: bool,
    /// … and the peer has not acknowledged it.
    pub(super) is_finishing: bool,
    /// Value of `QuicConnection::write_number` at the last write.
    pub(super) last_write: u64,
}

pub(crate) struct QuicConnection {
    pub(super) connection: Connection,
    /// Name of the connection in the endpoint of its listener.
    pub(super) handle: ConnectionHandle,
    /// The control stream. During a call of `streams::on_stream`, a data stream.
    pub(super) stream: OpenStream,
    /// The data streams and their slots.
    pub(super) data_streams: Vec<(StreamId, ConnSlot)>,
    pub(super) max_data_streams: u16,
    /// The client may open all its data streams: it is logged in.
    pub(super) may_open_all: bool,
    /// The client may have opened streams that are not accepted yet.
    pub(super) has_waiting_streams: bool,
    /// Number of writes to any stream.
    write_number: u64,
    /// The connection has ended: nothing can be sent any more.
    pub(super) is_lost: bool,
    /// In the worker's list of connections with events or output.
    pub(super) is_touched: bool,
    /// Time of its entry in the worker's timers.
    pub(super) timer_ms: Option<u64>,
    /// The handshake is not complete.
    pub(super) is_half_open: bool,
    /// The client's address was validated before the connection was accepted.
    pub(super) is_validated: bool,
    /// The address of the client when the connection was accepted.
    pub(super) first_address: IpAddr,
    /// The latest address of the client at which it has shown that it receives.
    address: SocketAddr,
    pub(super) windows: Windows,
    close_reason: Option<EarlyCloseReason>,
}

impl QuicConnection {
    pub(super) fn new(
        connection: Connection,
        handle: ConnectionHandle,
        is_validated: bool,
        first_address: IpAddr,
        windows: Windows,
        max_data_streams: u16,
    ) -> QuicConnection {
        QuicConnection {
            address: connection.remote_address(),
            windows,
            connection,
            handle,
            stream: OpenStream::default(),
            data_streams: Vec::new(),
            max_data_streams,
            may_open_all: false,
            has_waiting_streams: false,
            write_number: 0,
            is_lost: false,
            is_touched: false,
            timer_ms: None,
            is_half_open: true,
            is_validated,
            first_address,
            close_reason: None,
        }
    }

    /// Returns whether datagrams of the client come from another address than before.
    pub(super) fn is_moving(&self) -> bool {
        self.connection.remote_address() != self.address
    }

    /// Returns the address to which the client has moved, once, when it has shown that it receives there.
    pub(super) fn new_address(&mut self) -> Option<SocketAddr> {
        let address = self.connection.remote_address();
        if address == self.address || !path::is_validated(self.connection.congestion_state()) {
            return None;
        }
        self.address = address;
        Some(address)
    }

    /// Reads until `buffer` is full or nothing is left.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stream.is_peer_finished {
            return Ok(0);
        }
        let Some(stream) = self.stream.id else {
            return Err(self.no_data());
        };
        let mut stream = self.connection.recv_stream(stream);
        let Ok(mut chunks) = stream.read(true) else {
            return Err(io::ErrorKind::ConnectionReset.into());
        };
        let mut filled = 0;
        let end = loop {
            if filled == buffer.len() {
                break None;
            }
            match chunks.next(buffer.len() - filled) {
                Ok(Some(chunk)) => {
                    buffer[filled..filled + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
                    filled += chunk.bytes.len();
                }
                Ok(None) => {
                    self.stream.is_peer_finished = true;
                    break None;
                }
                Err(error) => break Some(error),
            }
        };
        // Every connection that was read is asked for datagrams at the end of the tick.
        let _ = chunks.finalize();
        self.windows.read(filled, &self.connection);
        match end {
            Some(ReadError::Reset(_)) => Err(io::ErrorKind::ConnectionReset.into()),
            Some(ReadError::Blocked) if filled == 0 => Err(self.no_data()),
            _ => Ok(filled),
        }
    }

    fn no_data(&self) -> io::Error {
        match self.is_lost {
            true => io::ErrorKind::ConnectionReset.into(),
            false => io::ErrorKind::WouldBlock.into(),
        }
    }

    /// Writes as much as the send window allows. `StreamEvent::Writable` follows a short write.
    pub(crate) fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.is_lost {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let Some(stream) = self.stream.id else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        self.write_number += 1;
        let mut stream = self.connection.send_stream(stream);
        let mut written = 0;
        for slice in slices {
            let mut rest: &[u8] = slice;
            while !rest.is_empty() {
                match stream.write(rest) {
                    Ok(bytes) => {
                        written += bytes;
                        rest = &rest[bytes..];
                        self.stream.last_write = self.write_number;
                        self.windows.written(bytes);
                    }
                    Err(WriteError::Blocked) => {
                        self.windows.blocked();
                        return match written {
                            0 => Err(io::ErrorKind::WouldBlock.into()),
                            written => Ok(written),
                        };
                    }
                    Err(WriteError::Stopped(_) | WriteError::ClosedStream) => {
                        return Err(io::ErrorKind::BrokenPipe.into());
                    }
                }
            }
        }
        Ok(written)
    }

    pub(crate) fn is_peer_finished(&self) -> bool {
        self.stream.is_peer_finished
    }

    /// Ends the stream in our direction.
    pub(crate) fn finish(&mut self) {
        if let Some(stream) = self.stream.id.filter(|_| !self.is_lost) {
            // Fails if the stream is finished already, or if the peer has stopped it.
            let is_finished = self.connection.send_stream(stream).finish().is_ok();
            self.stream.was_finished |= is_finished;
            self.stream.is_finishing |= is_finished;
        }
    }

    /// Returns whether the peer has not acknowledged the end of our stream yet.
    pub(crate) fn is_finishing(&self) -> bool {
        self.stream.is_finishing && !self.is_lost
    }

    pub(super) fn change_windows(&mut self) -> bool {
        self.windows.change(&mut self.connection)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.connection.handle_timeout(now);
        self.windows.shrink(now, &mut self.connection);
    }

    pub(super) fn finished(&mut self) {
        self.stream.is_finishing = false;
    }

    /// Sets the reason that the client receives when the connection is removed.
    pub(crate) fn set_close_reason(&mut self, reason: EarlyCloseReason) {
        self.close_reason = Some(reason);
    }

    /// Closes the connection. One more datagram says so to the peer.
    pub(super) fn close(&mut self, now: Instant) {
        let (code, reason) = match self.close_reason {
            Some(reason) => (CODE_REFUSED, Bytes::from_static(reason.name().as_bytes())),
            None => (CODE_NO_ERROR, Bytes::new()),
        };
        self.connection.close(now, VarInt::from_u32(code), reason);
    }
}
