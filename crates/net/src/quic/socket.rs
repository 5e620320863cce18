//! A worker's duplicate of the UDP socket of a listener.

use std::io;
use std::net::UdpSocket;

use quinn_proto::Transmit;
use quinn_udp::{EcnCodepoint, UdpSocketState};

use crate::counters::NetCounters;

pub(super) struct QuicSocket {
    pub(super) socket: UdpSocket,
    pub(super) state: UdpSocketState,
    /// A datagram that the kernel's buffer had no space for. Nothing else is sent before it.
    blocked: Option<(Transmit, Vec<u8>)>,
}

impl QuicSocket {
    pub(super) fn new(socket: UdpSocket) -> io::Result<QuicSocket> {
        let state = UdpSocketState::new((&socket).into())?;
        Ok(QuicSocket {
            socket,
            state,
            blocked: None,
        })
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Sends datagrams. If the socket is full, they are sent before all others as soon as it has space.
    pub(super) fn send(&mut self, transmit: Transmit, contents: &[u8], counters: &mut NetCounters) {
        if self.blocked.is_none() && !self.try_send(&transmit, contents, counters) {
            self.blocked = Some((transmit, contents.to_vec()));
        }
    }

    /// Sends a datagram that may be lost.
    pub(super) fn send_or_drop(&mut self, transmit: &Transmit, contents: &[u8], counters: &mut NetCounters) {
        if self.blocked.is_none() {
            self.try_send(transmit, contents, counters);
        }
    }

    /// Sends the datagrams that had to wait.
    pub(super) fn retry(&mut self, counters: &mut NetCounters) {
        if let Some((transmit, contents)) = self.blocked.take()
            && !self.try_send(&transmit, &contents, counters)
        {
            self.blocked = Some((transmit, contents));
        }
    }

    fn try_send(&mut self, transmit: &Transmit, contents: &[u8], counters: &mut NetCounters) -> bool {
        let datagrams = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8)),
            contents,
            segment_size: transmit.segment_size,
            src_ip: transmit.src_ip,
        };
        counters.writes += 1;
        match self.state.send((&self.socket).into(), &datagrams) {
            // An unreachable destination is as good as a lost datagram.
            Ok(()) => {
                counters.bytes_out += contents.len() as u64;
                true
            }
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}
