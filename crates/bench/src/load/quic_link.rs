//! A QUIC connection with a UDP socket of its own, as a device has it.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use mio::net::UdpSocket;
use mqtt_client::{ClientQuic, DATAGRAM_BYTES};
use rustls::ClientConfig;

use super::link::LinkInput;
use super::tcp_info::Segments;

pub struct QuicLink {
    pub socket: UdpSocket,
    server: SocketAddr,
    quic: Option<ClientQuic>,
    datagrams: Segments,
    /// Time of the timer that is set for the connection.
    timer: Option<Instant>,
}

impl QuicLink {
    pub fn bind(server: SocketAddr, from: Option<IpAddr>) -> io::Result<QuicLink> {
        let any = match server {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let socket = UdpSocket::bind(SocketAddr::new(from.unwrap_or(any), 0))?;
        socket.connect(server)?;
        Ok(QuicLink {
            socket,
            server,
            quic: None,
            datagrams: Segments::default(),
            timer: None,
        })
    }

    /// Starts the handshake. `flush` sends its first datagram.
    pub fn begin(&mut self, tls: &ClientConfig, host: &str) -> Result<(), String> {
        let quic = ClientQuic::new(tls, host, self.server, Instant::now());
        self.quic = Some(quic.map_err(|error| error.to_string())?);
        Ok(())
    }

    pub fn is_open(&self) -> bool {
        self.quic.as_ref().is_some_and(ClientQuic::is_open)
    }

    pub fn server(&self) -> SocketAddr {
        self.server
    }

    pub fn datagrams(&self) -> Segments {
        self.datagrams
    }

    /// Receives all datagrams, and reads their data.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<LinkInput, String> {
        let received = self.receive();
        let Some(quic) = &mut self.quic else {
            return Ok(LinkInput::Drained(0));
        };
        let input = match quic.read(buffer) {
            Ok(0) => Ok(LinkInput::Closed),
            Ok(size) if size < buffer.len() => Ok(LinkInput::Drained(size)),
            Ok(size) => Ok(LinkInput::Bytes(size)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => match (quic.error(), received) {
                (Some(error), _) | (None, Err(error)) => Err(error),
                (None, Ok(())) => Ok(LinkInput::Drained(0)),
            },
            Err(error) => Err(error.to_string()),
        };
        self.flush();
        input
    }

    fn receive(&mut self) -> Result<(), String> {
        let mut datagram = [0; DATAGRAM_BYTES];
        let now = Instant::now();
        loop {
            match self.socket.recv(&mut datagram) {
                Ok(size) => {
                    self.datagrams.received = self.datagrams.received.wrapping_add(1);
                    if let Some(quic) = &mut self.quic {
                        quic.receive(now, &datagram[..size]);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The system of the server says that nothing listens on the port.
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(quic) = &mut self.quic else { return Ok(0) };
        let written = quic.write(bytes);
        self.flush();
        written
    }

    /// Sends all datagrams. What the socket does not accept is lost, as on the way, and sent again later.
    pub fn flush(&mut self) {
        let Some(quic) = &mut self.quic else { return };
        let now = Instant::now();
        while let Some(datagram) = quic.next_datagram(now) {
            if self.socket.send(datagram).is_ok() {
                self.datagrams.sent = self.datagrams.sent.wrapping_add(1);
            }
        }
    }

    /// Ends the stream, after MQTT's DISCONNECT.
    pub fn finish(&mut self) {
        if let Some(quic) = &mut self.quic {
            quic.finish();
        }
        self.flush();
    }

    /// Returns the time at which `handle_deadline` must be called, unless a timer for it, or for an earlier time, is
    /// set already.
    pub fn new_deadline(&mut self) -> Option<Instant> {
        let deadline = self.quic.as_mut()?.deadline()?;
        if self.timer.is_some_and(|timer| timer <= deadline) {
            return None;
        }
        self.timer = Some(deadline);
        Some(deadline)
    }

    pub fn handle_deadline(&mut self) {
        self.timer = None;
        if let Some(quic) = &mut self.quic {
            quic.handle_deadline(Instant::now());
        }
        self.flush();
    }
}

impl Drop for QuicLink {
    fn drop(&mut self) {
        if let Some(quic) = &mut self.quic {
            quic.close(Instant::now());
        }
        self.flush();
    }
}
