//! Writes the output queue of one connection to its socket, through TLS and WebSocket if the connection uses them.
//!
//! A plain connection is written with one system call for up to 64 slices. Many small slices are copied into one buffer
//! first. From about 8 slices of less than 1 KiB on, copying is cheaper than the kernel's work per slice
//! (`examples/gather_crossover.rs`: 64 × 128 bytes cost 11 µs vectored and 7 µs copied), and one write then takes far
//! more than 64 slices. A WebSocket gets one binary frame per packet, and many frames per write. TLS gets
//! plaintext until its buffer of 64 KiB of records is full.
//!
//! Never blocks, and never retries a socket that has returned `WouldBlock`.

use std::io::{self, IoSlice, Write};

use broker::{ConnSlot, Outbox};
use rustls::ServerConnection;

use crate::connection::SocketConnection;
use crate::counters::NetCounters;
use crate::socket::ConnectionSocket;
use crate::websocket::WebSocketState;
use crate::websocket::packets::{self, PacketFrame};

/// Maximum number of slices of one vectored write.
const VECTOR_SLICES: usize = 64;

/// Maximum number of small slices copied for one write.
const GATHER_SLICES: usize = 1024;

/// Copying is used from this number of slices on …
const GATHER_SLICES_MIN: usize = 8;

/// … if their average size is below this number of bytes.
const GATHER_SLICE_BYTES: usize = 1024;

/// Maximum number of bytes copied for one write.
const GATHER_BYTES: usize = 64 * 1024;

/// Maximum number of bytes written to one connection before the others are written.
const FLUSH_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushResult {
    /// The queue is empty.
    All,
    /// The socket accepts no more data.
    Blocked,
    /// More could be written, but other connections are next.
    Yield,
}

/// Reusable buffers of the worker for writing.
#[derive(Default)]
pub(crate) struct WriteBuffers {
    gathered: Vec<u8>,
    slices: Vec<&'static [u8]>,
    /// For the packets of a WebSocket before frame headers stand between them.
    packets: Vec<&'static [u8]>,
    frames: Vec<PacketFrame>,
}

impl WriteBuffers {
    /// Returns the empty list of slices with a lifetime that the caller chooses. Safe, because an empty vector contains
    /// no references; collecting in place reuses its memory.
    fn take_slices<'a>(&mut self) -> Vec<&'a [u8]> {
        recycle(std::mem::take(&mut self.slices))
    }

    fn return_slices(&mut self, slices: Vec<&[u8]>) {
        self.slices = recycle(slices);
    }
}

fn recycle<'a>(mut slices: Vec<&[u8]>) -> Vec<&'a [u8]> {
    slices.clear();
    slices
        .into_iter()
        .map(|_| -> &'a [u8] { unreachable!("the vector is empty") })
        .collect()
}

/// Writes as much as the socket accepts. `outbox` is `None` for a connection that the shard does not have.
pub(crate) fn write_out(
    connection: &mut SocketConnection,
    mut outbox: Option<(&mut Outbox, ConnSlot)>,
    scratch: &mut WriteBuffers,
    counters: &mut NetCounters,
) -> io::Result<FlushResult> {
    let SocketConnection { socket, layer, .. } = connection;
    let (tls, mut websocket) = match layer.as_deref_mut() {
        None => (None, None),
        Some(layer) => (layer.tls.as_mut(), layer.websocket.as_mut()),
    };
    let mut wire = TlsSocket { socket, tls, counters };
    let mut written = 0;
    loop {
        if written >= FLUSH_BYTES_MAX {
            return Ok(FlushResult::Yield);
        }
        let step = match &mut websocket {
            None => write_plain(&mut wire, &mut outbox, scratch)?,
            Some(websocket) => write_framed(&mut wire, websocket, &mut outbox, scratch)?,
        };
        match step {
            WriteProgress::Wrote(bytes) => written += bytes,
            WriteProgress::Blocked => return Ok(FlushResult::Blocked),
            WriteProgress::Nothing => return wire.finish(),
        }
    }
}

enum WriteProgress {
    Wrote(usize),
    Blocked,
    Nothing,
}

fn write_plain(
    wire: &mut TlsSocket<'_>,
    outbox: &mut Option<(&mut Outbox, ConnSlot)>,
    scratch: &mut WriteBuffers,
) -> io::Result<WriteProgress> {
    let Some((outbox, slot)) = outbox else {
        return Ok(WriteProgress::Nothing);
    };
    if outbox.queued_bytes(*slot) == 0 {
        return Ok(WriteProgress::Nothing);
    }
    let mut slices = scratch.take_slices();
    outbox.slices(*slot, GATHER_SLICES, &mut slices);
    let sent = wire.write(&slices, &mut scratch.gathered);
    scratch.return_slices(slices);
    let sent = sent?;
    outbox.record_written(*slot, sent.taken);
    Ok(sent.progress())
}

fn write_framed(
    wire: &mut TlsSocket<'_>,
    websocket: &mut WebSocketState,
    outbox: &mut Option<(&mut Outbox, ConnSlot)>,
    scratch: &mut WriteBuffers,
) -> io::Result<WriteProgress> {
    if websocket.is_between_frames() && !websocket.begin_pong() {
        return write_packets(wire, websocket, outbox, scratch);
    }
    write_frame(wire, websocket, outbox, scratch)
}

/// Writes queued packets, each in a frame of its own. Called between frames.
fn write_packets(
    wire: &mut TlsSocket<'_>,
    websocket: &mut WebSocketState,
    outbox: &mut Option<(&mut Outbox, ConnSlot)>,
    scratch: &mut WriteBuffers,
) -> io::Result<WriteProgress> {
    let Some((queue, slot)) = outbox else {
        return Ok(WriteProgress::Nothing);
    };
    let queued = queue.queued_bytes(*slot);
    if queued == 0 {
        return Ok(WriteProgress::Nothing);
    }
    let mut packets = recycle(std::mem::take(&mut scratch.packets));
    queue.slices(*slot, GATHER_SLICES, &mut packets);
    let mut frames = std::mem::take(&mut scratch.frames);
    packets::add_frames(&packets, &mut frames);
    if frames.is_empty() {
        // The first packet has more slices than one write.
        websocket.begin_frame(packets::first_packet_bytes(&packets).unwrap_or(queued));
        scratch.packets = recycle(packets);
        scratch.frames = frames;
        return write_frame(wire, websocket, outbox, scratch);
    }
    let mut slices = scratch.take_slices();
    packets::interleave(&packets, &frames, &mut slices);
    let sent = wire.write(&slices, &mut scratch.gathered);
    scratch.return_slices(slices);
    scratch.packets = recycle(packets);
    let payload_bytes = sent
        .as_ref()
        .map_or(0, |sent| payload_of(&frames, sent.taken, websocket));
    frames.clear();
    scratch.frames = frames;
    queue.record_written(*slot, payload_bytes);
    Ok(sent?.progress())
}

/// Returns how many of the first `written` bytes of the frames are payload. The frame that is written in part becomes
/// the current frame.
fn payload_of(frames: &[PacketFrame], written: usize, websocket: &mut WebSocketState) -> usize {
    let (mut left, mut payload_bytes) = (written, 0);
    for frame in frames {
        if left < frame.bytes() {
            if left > 0 {
                payload_bytes += websocket.continue_frame(frame.packet_bytes, left);
            }
            break;
        }
        left -= frame.bytes();
        payload_bytes += frame.packet_bytes;
    }
    payload_bytes
}

/// Writes the current frame or its rest.
fn write_frame(
    wire: &mut TlsSocket<'_>,
    websocket: &mut WebSocketState,
    outbox: &mut Option<(&mut Outbox, ConnSlot)>,
    scratch: &mut WriteBuffers,
) -> io::Result<WriteProgress> {
    let mut slices = scratch.take_slices();
    let head = websocket.head();
    if !head.is_empty() {
        slices.push(head);
    }
    if let Some((outbox, slot)) = outbox
        && websocket.frame_left() > 0
    {
        outbox.slices(*slot, GATHER_SLICES, &mut slices);
        truncate(&mut slices, head.len() + websocket.frame_left());
    }
    let sent = wire.write(&slices, &mut scratch.gathered);
    scratch.return_slices(slices);
    let sent = sent?;
    let payload_bytes = websocket.record_written(sent.taken);
    if let Some((outbox, slot)) = outbox {
        outbox.record_written(*slot, payload_bytes);
    }
    Ok(sent.progress())
}

/// Truncates the list to `limit` bytes.
fn truncate(slices: &mut Vec<&[u8]>, limit: usize) {
    let mut left = limit;
    for index in 0..slices.len() {
        if slices[index].len() >= left {
            slices[index] = &slices[index][..left];
            slices.truncate(index + 1);
            return;
        }
        left -= slices[index].len();
    }
}

/// Result of one write.
struct WriteResult {
    taken: usize,
    /// The socket accepts no more data.
    is_full: bool,
}

impl WriteResult {
    fn progress(&self) -> WriteProgress {
        if self.is_full {
            WriteProgress::Blocked
        } else {
            WriteProgress::Wrote(self.taken)
        }
    }
}

/// The socket with its TLS state.
struct TlsSocket<'a> {
    socket: &'a mut ConnectionSocket,
    tls: Option<&'a mut ServerConnection>,
    counters: &'a mut NetCounters,
}

impl TlsSocket<'_> {
    /// Writes as many slices as fit into one call.
    fn write(&mut self, slices: &[&[u8]], gathered: &mut Vec<u8>) -> io::Result<WriteResult> {
        let is_gathered = should_gather(slices);
        if is_gathered {
            gather(slices, gathered);
            let slice = IoSlice::new(gathered);
            return self.write_vectored(&[slice]);
        }
        let mut vector = [IoSlice::new(&[]); VECTOR_SLICES];
        let count = slices.len().min(VECTOR_SLICES);
        for (slot, slice) in vector.iter_mut().zip(slices) {
            *slot = IoSlice::new(slice);
        }
        self.write_vectored(&vector[..count])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<WriteResult> {
        let offered = slices.iter().map(|slice| slice.len()).sum();
        match self.tls {
            None => self.write_socket(slices, offered),
            Some(_) => self.write_tls(slices, offered),
        }
    }

    /// Writes to the socket. A short write means that the kernel's buffer is full; an event follows when it has space,
    /// so no retry is needed.
    fn write_socket(&mut self, slices: &[IoSlice<'_>], offered: usize) -> io::Result<WriteResult> {
        loop {
            self.counters.writes += 1;
            match self.socket.write_slices(slices) {
                Ok(taken) => {
                    self.counters.bytes_out += self.socket.wire_bytes(taken);
                    return Ok(WriteResult {
                        taken,
                        is_full: taken < offered,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(WriteResult {
                        taken: 0,
                        is_full: true,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Passes plaintext to TLS until all of it is taken or the socket is full.
    fn write_tls(&mut self, slices: &[IoSlice<'_>], offered: usize) -> io::Result<WriteResult> {
        let tls = self.tls.as_mut().expect("called with TLS");
        let mut taken = tls.writer().write_vectored(slices)?;
        let mut is_flushed = self.flush_tls()?;
        while is_flushed && taken < offered {
            let tls = self.tls.as_mut().expect("called with TLS");
            let more = write_from(tls, slices, taken)?;
            if more == 0 {
                break;
            }
            taken += more;
            is_flushed = self.flush_tls()?;
        }
        Ok(WriteResult {
            taken,
            is_full: !is_flushed,
        })
    }

    /// Writes finished TLS records. Returns `false` if the socket is full.
    fn flush_tls(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        while tls.wants_write() {
            self.counters.writes += 1;
            match tls.write_tls(self.socket) {
                Ok(bytes) => self.counters.bytes_out += bytes as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn finish(&mut self) -> io::Result<FlushResult> {
        Ok(if self.flush_tls()? {
            FlushResult::All
        } else {
            FlushResult::Blocked
        })
    }
}

/// Writes the data after the first `skip` bytes of `slices`.
fn write_from(tls: &mut ServerConnection, slices: &[IoSlice<'_>], mut skip: usize) -> io::Result<usize> {
    for slice in slices {
        if skip < slice.len() {
            return tls.writer().write(&slice[skip..]);
        }
        skip -= slice.len();
    }
    Ok(0)
}

fn should_gather(slices: &[&[u8]]) -> bool {
    if slices.len() < GATHER_SLICES_MIN {
        return false;
    }
    let examined = &slices[..slices.len().min(VECTOR_SLICES)];
    let bytes: usize = examined.iter().map(|slice| slice.len()).sum();
    bytes < examined.len() * GATHER_SLICE_BYTES
}

/// Copies slices into one buffer, at most `GATHER_BYTES`.
fn gather(slices: &[&[u8]], gathered: &mut Vec<u8>) {
    gathered.clear();
    for slice in slices {
        let free = GATHER_BYTES - gathered.len();
        if slice.len() > free {
            gathered.extend_from_slice(&slice[..free]);
            return;
        }
        gathered.extend_from_slice(slice);
    }
}

#[cfg(test)]
#[path = "outlet_tests.rs"]
mod tests;
