//! Writing one connection's queue to its socket, through TLS and WebSocket if it has them.
//!
//! A plain connection is written with one system call for up to 64 slices. Many small slices are copied together first: from
//! some 8 slices of less than 1 KiB on, copying is cheaper than the kernel's work per slice (`examples/gather_crossover.rs`:
//! 64 × 128 bytes cost 11 µs vectored and 7 µs copied), and one write then takes far more than 64 of them. A WebSocket gets one binary frame per turn, whose
//! header goes out in the same write. TLS is given plaintext until its buffer of 64 KiB of records is full.
//!
//! Never waits; never tries a socket again that has refused.

use std::io::{self, IoSlice, Write};

use broker::{ConnSlot, Outbox};
use mio::net::TcpStream;
use rustls::ServerConnection;

use crate::connection::Connection;
use crate::counters::NetCounters;
use crate::websocket::WebSocket;

/// Slices of one vectored write.
const VECTOR_SLICES: usize = 64;

/// Slices looked at for one write, when they are small and copied together.
const GATHER_SLICES: usize = 1024;

/// Copying pays from this many slices on …
const GATHER_SLICES_MIN: usize = 8;

/// … if they are smaller than this on average.
const GATHER_SLICE_BYTES: usize = 1024;

/// Bytes that are copied together for one write.
const GATHER_BYTES: usize = 64 * 1024;

/// Written to one connection before the others get their turn.
const FLUSH_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    /// Nothing is left.
    All,
    /// The socket took what it could.
    Blocked,
    /// More could be written, but others wait.
    Yield,
}

/// Buffers of the worker that writing needs.
#[derive(Default)]
pub(crate) struct Scratch {
    gathered: Vec<u8>,
    slices: Vec<&'static [u8]>,
}

impl Scratch {
    /// The list of slices, empty, for slices that live as long as the caller likes. Safe code: nothing of an empty vector has a
    /// lifetime, and collecting in place keeps its memory.
    fn take_slices<'a>(&mut self) -> Vec<&'a [u8]> {
        recycle(std::mem::take(&mut self.slices))
    }

    fn give_back(&mut self, slices: Vec<&[u8]>) {
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

/// Writes as much as the socket takes. `outbox` is `None` for a connection that the shard does not know.
pub(crate) fn write_out(
    connection: &mut Connection,
    mut outbox: Option<(&mut Outbox, ConnSlot)>,
    scratch: &mut Scratch,
    counters: &mut NetCounters,
) -> io::Result<Flushed> {
    let Connection { socket, layer, .. } = connection;
    let (tls, mut websocket) = match layer.as_deref_mut() {
        None => (None, None),
        Some(layer) => (layer.tls.as_mut(), layer.websocket.as_mut()),
    };
    let mut wire = Wire { socket, tls, counters };
    let mut written = 0;
    loop {
        if written >= FLUSH_BYTES_MAX {
            return Ok(Flushed::Yield);
        }
        let step = match &mut websocket {
            None => write_plain(&mut wire, &mut outbox, scratch)?,
            Some(websocket) => write_framed(&mut wire, websocket, &mut outbox, scratch)?,
        };
        match step {
            Progress::Wrote(bytes) => written += bytes,
            Progress::Blocked => return Ok(Flushed::Blocked),
            Progress::Nothing => return wire.finish(),
        }
    }
}

enum Progress {
    Wrote(usize),
    Blocked,
    Nothing,
}

fn write_plain(
    wire: &mut Wire<'_>,
    outbox: &mut Option<(&mut Outbox, ConnSlot)>,
    scratch: &mut Scratch,
) -> io::Result<Progress> {
    let Some((outbox, slot)) = outbox else {
        return Ok(Progress::Nothing);
    };
    if outbox.queued_bytes(*slot) == 0 {
        return Ok(Progress::Nothing);
    }
    let mut slices = scratch.take_slices();
    outbox.slices(*slot, GATHER_SLICES, &mut slices);
    let sent = wire.write(&slices, &mut scratch.gathered);
    scratch.give_back(slices);
    let sent = sent?;
    outbox.wrote(*slot, sent.taken);
    Ok(sent.progress())
}

fn write_framed(
    wire: &mut Wire<'_>,
    websocket: &mut WebSocket,
    outbox: &mut Option<(&mut Outbox, ConnSlot)>,
    scratch: &mut Scratch,
) -> io::Result<Progress> {
    if websocket.is_between_frames() && !websocket.begin_pong() {
        let queued = outbox.as_ref().map_or(0, |(outbox, slot)| outbox.queued_bytes(*slot));
        if queued == 0 {
            return Ok(Progress::Nothing);
        }
        websocket.begin_frame(queued.min(FLUSH_BYTES_MAX));
    }
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
    scratch.give_back(slices);
    let sent = sent?;
    let payload_bytes = websocket.wrote(sent.taken);
    if let Some((outbox, slot)) = outbox {
        outbox.wrote(*slot, payload_bytes);
    }
    Ok(sent.progress())
}

/// Cuts the list to `limit` bytes.
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

/// What became of one write.
struct Sent {
    taken: usize,
    /// The socket has no room for more.
    is_full: bool,
}

impl Sent {
    fn progress(&self) -> Progress {
        if self.is_full {
            Progress::Blocked
        } else {
            Progress::Wrote(self.taken)
        }
    }
}

/// The socket with its TLS state.
struct Wire<'a> {
    socket: &'a mut TcpStream,
    tls: Option<&'a mut ServerConnection>,
    counters: &'a mut NetCounters,
}

impl Wire<'_> {
    /// One write of as many slices as fit into it.
    fn write(&mut self, slices: &[&[u8]], gathered: &mut Vec<u8>) -> io::Result<Sent> {
        let is_gathered = is_worth_gathering(slices);
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

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Sent> {
        let offered = slices.iter().map(|slice| slice.len()).sum();
        match self.tls {
            None => self.write_socket(slices, offered),
            Some(_) => self.write_tls(slices, offered),
        }
    }

    /// A short write means that the kernel's buffer is full, and that an event will come once it is not: no need to ask again.
    fn write_socket(&mut self, slices: &[IoSlice<'_>], offered: usize) -> io::Result<Sent> {
        loop {
            self.counters.writes += 1;
            match Bare(self.socket).write_vectored(slices) {
                Ok(taken) => {
                    self.counters.bytes_out += taken as u64;
                    return Ok(Sent {
                        taken,
                        is_full: taken < offered,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Sent {
                        taken: 0,
                        is_full: true,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives plaintext to TLS until everything is taken or the socket is full.
    fn write_tls(&mut self, slices: &[IoSlice<'_>], offered: usize) -> io::Result<Sent> {
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
        Ok(Sent {
            taken,
            is_full: !is_flushed,
        })
    }

    /// Writes finished records; false when the socket is full.
    fn flush_tls(&mut self) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else { return Ok(true) };
        while tls.wants_write() {
            self.counters.writes += 1;
            match tls.write_tls(&mut Bare(self.socket)) {
                Ok(bytes) => self.counters.bytes_out += bytes as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn finish(&mut self) -> io::Result<Flushed> {
        Ok(if self.flush_tls()? {
            Flushed::All
        } else {
            Flushed::Blocked
        })
    }
}

/// A socket to which a single slice is sent with send(2), which is cheaper than writev(2).
struct Bare<'a>(&'a mut TcpStream);

impl Write for Bare<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match slices {
            [slice] => self.0.write(slice),
            _ => self.0.write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes what follows the first `skip` bytes of `slices`.
fn write_from(tls: &mut ServerConnection, slices: &[IoSlice<'_>], mut skip: usize) -> io::Result<usize> {
    for slice in slices {
        if skip < slice.len() {
            return tls.writer().write(&slice[skip..]);
        }
        skip -= slice.len();
    }
    Ok(0)
}

fn is_worth_gathering(slices: &[&[u8]]) -> bool {
    if slices.len() < GATHER_SLICES_MIN {
        return false;
    }
    let looked_at = &slices[..slices.len().min(VECTOR_SLICES)];
    let bytes: usize = looked_at.iter().map(|slice| slice.len()).sum();
    bytes < looked_at.len() * GATHER_SLICE_BYTES
}

/// Copies slices together, at most `GATHER_BYTES`.
fn gather(slices: &[&[u8]], gathered: &mut Vec<u8>) {
    gathered.clear();
    for slice in slices {
        let room = GATHER_BYTES - gathered.len();
        if slice.len() > room {
            gathered.extend_from_slice(&slice[..room]);
            return;
        }
        gathered.extend_from_slice(slice);
    }
}

#[cfg(test)]
#[path = "outlet_tests.rs"]
mod tests;
