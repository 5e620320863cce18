//! The socket of a connection: a TCP socket, a QUIC connection with its control stream, or a data stream of one.
//!
//! An enum and not a trait object, so that TCP costs one comparison per read or write.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;

use broker::ConnSlot;
use mio::net::TcpStream;

use crate::quic::{DataStream, QuicConnection};

pub(crate) enum ConnectionSocket {
    Tcp(TcpStream),
    #[cfg_attr(not(feature = "quic"), expect(dead_code, reason = "QUIC needs the feature"))]
    Quic(Box<QuicConnection>),
    /// The socket of the control stream reads and writes it (`NetWorker::read_data_stream`).
    #[cfg_attr(not(feature = "quic"), expect(dead_code, reason = "QUIC needs the feature"))]
    DataStream(Box<DataStream>),
}

impl From<TcpStream> for ConnectionSocket {
    fn from(socket: TcpStream) -> ConnectionSocket {
        ConnectionSocket::Tcp(socket)
    }
}

impl ConnectionSocket {
    pub(crate) fn tcp(&mut self) -> Option<&mut TcpStream> {
        match self {
            ConnectionSocket::Tcp(socket) => Some(socket),
            ConnectionSocket::Quic(_) | ConnectionSocket::DataStream(_) => None,
        }
    }

    #[inline]
    pub(crate) fn quic(&mut self) -> Option<&mut QuicConnection> {
        match self {
            ConnectionSocket::Tcp(_) | ConnectionSocket::DataStream(_) => None,
            ConnectionSocket::Quic(quic) => Some(quic),
        }
    }

    /// Returns the slot of the control stream of a data stream.
    #[inline]
    pub(crate) fn control(&self) -> Option<ConnSlot> {
        match self {
            ConnectionSocket::Tcp(_) | ConnectionSocket::Quic(_) => None,
            ConnectionSocket::DataStream(stream) => Some(stream.control()),
        }
    }

    pub(crate) fn is_quic(&self) -> bool {
        matches!(self, ConnectionSocket::Quic(_))
    }

    #[inline]
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            ConnectionSocket::Tcp(socket) => socket.read(buffer),
            ConnectionSocket::Quic(quic) => quic.read(buffer),
            ConnectionSocket::DataStream(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Writes as much as the socket accepts. TCP sends a single slice with send(2), which is cheaper than writev(2).
    #[inline]
    pub(crate) fn write_slices(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match (self, slices) {
            (ConnectionSocket::Tcp(socket), [slice]) => socket.write(slice),
            (ConnectionSocket::Tcp(socket), slices) => socket.write_vectored(slices),
            (ConnectionSocket::Quic(quic), slices) => quic.write(slices),
            (ConnectionSocket::DataStream(_), _) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Returns the bytes on the wire of `bytes` that were read or written. The datagrams of QUIC are counted where they
    /// are received and sent.
    #[inline]
    pub(crate) fn wire_bytes(&self, bytes: usize) -> u64 {
        match self {
            ConnectionSocket::Tcp(_) => bytes as u64,
            ConnectionSocket::Quic(_) | ConnectionSocket::DataStream(_) => 0,
        }
    }

    /// Returns whether the peer has finished its stream and everything has been read. For TCP, an event says so.
    #[inline]
    pub(crate) fn is_peer_finished(&self) -> bool {
        match self {
            ConnectionSocket::Tcp(_) => false,
            ConnectionSocket::Quic(quic) => quic.is_peer_finished(),
            ConnectionSocket::DataStream(stream) => stream.is_peer_finished(),
        }
    }

    /// Returns whether the next read returns the end of the stream.
    pub(crate) fn is_at_end(&self) -> bool {
        match self {
            ConnectionSocket::Tcp(socket) => matches!(socket.peek(&mut [0]), Ok(0)),
            ConnectionSocket::Quic(quic) => quic.is_peer_finished(),
            ConnectionSocket::DataStream(stream) => stream.is_peer_finished(),
        }
    }

    /// Ends the output. `has_ended`: the peer has ended its own, so that closing a TCP socket suffices.
    pub(crate) fn finish(&mut self, has_ended: bool) {
        match self {
            // Fails only if the peer has reset the connection.
            ConnectionSocket::Tcp(socket) if !has_ended => drop(socket.shutdown(Shutdown::Write)),
            ConnectionSocket::Tcp(_) => {}
            ConnectionSocket::Quic(quic) => quic.finish(),
            // `NetWorker::finish_data_stream` does it.
            ConnectionSocket::DataStream(_) => {}
        }
    }

    /// Returns whether closing the connection now could lose output. The kernel sends the output of a closed TCP
    /// socket; a QUIC connection must exist until the peer has acknowledged it.
    pub(crate) fn has_unacknowledged_output(&self) -> bool {
        match self {
            ConnectionSocket::Tcp(_) => false,
            ConnectionSocket::Quic(quic) => quic.is_finishing(),
            ConnectionSocket::DataStream(stream) => stream.is_finishing(),
        }
    }
}

/// For the TLS library.
impl Write for ConnectionSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_slices(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_slices(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
