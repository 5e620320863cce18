//! One network connection: TCP, with TLS and WebSocket layers if the target asks for them, or QUIC. It never blocks.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use mqtt_client::{ClientWebSocket, Masks, Upgrade, WebSocketContent};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, HandshakeKind};
use socket2::{Domain, Protocol, Socket, Type};

use super::quic_link::QuicLink;
use super::tcp_info::{self, Segments};

/// Size of the WebSocket frames. No more data is accepted while a frame waits for the socket.
const FRAME_PAYLOAD_MAX: usize = 64 * 1024;

pub struct LoadLink {
    socket: LinkSocket,
    layers: Option<Box<LinkLayers>>,
}

enum LinkSocket {
    Tcp(TcpStream),
    Quic(Box<QuicLink>),
}

struct LinkLayers {
    tls: Option<ClientConnection>,
    web_socket: Option<ClientWebSocket>,
}

/// The layers on TCP.
pub struct LinkSecurity<'a> {
    pub tls: Option<&'a Arc<ClientConfig>>,
    /// The path of the WebSocket.
    pub path: Option<&'a str>,
    pub host: &'a str,
    pub seed: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum LinkInput {
    /// This many bytes are in the buffer.
    Bytes(usize),
    /// This many bytes are in the buffer, and the socket is empty.
    Drained(usize),
    Closed,
}

impl LoadLink {
    /// Starts to connect; the socket becomes writable when the connection is established.
    pub fn connect(to: SocketAddr, from: Option<IpAddr>, receive_buffer: Option<u32>) -> io::Result<LoadLink> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        if let Some(bytes) = receive_buffer {
            socket.set_recv_buffer_size(bytes as usize)?;
        }
        if let Some(from) = from {
            socket.bind(&SocketAddr::new(from, 0).into())?;
        }
        match socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) && error.kind() != ErrorKind::WouldBlock => {
                return Err(error);
            }
            _ => {}
        }
        let stream = TcpStream::from_std(socket.into());
        Ok(LoadLink {
            socket: LinkSocket::Tcp(stream),
            layers: None,
        })
    }

    /// Opens a socket for QUIC. `wrap` starts the handshake.
    pub fn quic(to: SocketAddr, from: Option<IpAddr>) -> io::Result<LoadLink> {
        Ok(LoadLink {
            socket: LinkSocket::Quic(Box::new(QuicLink::bind(to, from)?)),
            layers: None,
        })
    }

    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match &mut self.socket {
            LinkSocket::Tcp(stream) => registry.register(stream, token, interest),
            LinkSocket::Quic(quic) => registry.register(&mut quic.socket, token, interest),
        }
    }

    pub fn server(&self) -> Option<SocketAddr> {
        match &self.socket {
            LinkSocket::Tcp(stream) => stream.peer_addr().ok(),
            LinkSocket::Quic(quic) => Some(quic.server()),
        }
    }

    /// Returns the number of TCP segments with data, or of datagrams.
    pub fn segments(&self) -> Segments {
        match &self.socket {
            LinkSocket::Tcp(stream) => tcp_info::segments(stream),
            LinkSocket::Quic(quic) => quic.datagrams(),
        }
    }

    /// Returns a time at which `handle_deadline` must be called, and for which no timer is set yet.
    pub fn new_deadline(&mut self) -> Option<Instant> {
        match &mut self.socket {
            LinkSocket::Tcp(_) => None,
            LinkSocket::Quic(quic) => quic.new_deadline(),
        }
    }

    pub fn handle_deadline(&mut self) {
        if let LinkSocket::Quic(quic) = &mut self.socket {
            quic.handle_deadline();
        }
    }

    /// Returns whether the connection is established; fails if it cannot be.
    pub fn is_connected(&self) -> io::Result<bool> {
        let LinkSocket::Tcp(stream) = &self.socket else {
            return Ok(true);
        };
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        match stream.peer_addr() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Starts the layers on an established TCP connection, or the handshake of QUIC.
    pub fn wrap(&mut self, wrapping: &LinkSecurity<'_>) -> Result<(), String> {
        if let (LinkSocket::Quic(quic), Some(tls)) = (&mut self.socket, wrapping.tls) {
            return quic.begin(tls, wrapping.host);
        }
        if wrapping.tls.is_none() && wrapping.path.is_none() {
            return Ok(());
        }
        let name = || {
            ServerName::try_from(wrapping.host.to_string())
                .map_err(|_| format!("TLS: `{}` is not a valid server name", wrapping.host))
        };
        let tls = match wrapping.tls {
            Some(config) => {
                Some(ClientConnection::new(config.clone(), name()?).map_err(|error| format!("TLS: {error}"))?)
            }
            None => None,
        };
        let web_socket = wrapping.path.map(|path| {
            let upgrade = Upgrade {
                host: wrapping.host,
                path,
                content: WebSocketContent::Mqtt("mqtt"),
            };
            ClientWebSocket::new(&upgrade, Masks::seeded(wrapping.seed))
        });
        self.layers = Some(Box::new(LinkLayers { tls, web_socket }));
        Ok(())
    }

    /// Whether all handshakes are complete.
    pub fn is_open(&self) -> bool {
        if let LinkSocket::Quic(quic) = &self.socket {
            return quic.is_open();
        }
        let Some(layers) = &self.layers else { return true };
        let is_secure = layers.tls.as_ref().is_none_or(|tls| !tls.is_handshaking());
        is_secure && layers.web_socket.as_ref().is_none_or(ClientWebSocket::is_open)
    }

    /// Returns the kind of the TLS handshake of an open connection; `None` without TLS.
    pub fn tls_handshake(&self) -> Option<HandshakeKind> {
        self.layers.as_ref()?.tls.as_ref()?.handshake_kind()
    }

    /// Reads MQTT data into `buffer`.
    #[inline]
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<LinkInput, String> {
        let stream = match &mut self.socket {
            LinkSocket::Tcp(stream) => stream,
            LinkSocket::Quic(quic) => return quic.read(buffer),
        };
        match &mut self.layers {
            None => read_stream(stream, buffer).map_err(|error| error.to_string()),
            Some(layers) => layers.read(stream, buffer),
        }
    }

    /// Returns how many of `bytes` were accepted: none if the peer has closed. The close is reported by `read`, after
    /// the acknowledgements that the peer sent before it.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, String> {
        let result = match (&mut self.socket, &mut self.layers) {
            (LinkSocket::Quic(quic), _) => quic.write(bytes),
            (LinkSocket::Tcp(stream), None) => stream.write(bytes),
            (LinkSocket::Tcp(stream), Some(layers)) => layers.write(stream, bytes),
        };
        match result {
            Ok(taken) => Ok(taken),
            Err(error) if is_blocked(&error) || is_disconnected(&error) => Ok(0),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Sends what the layers have buffered; returns whether nothing is left.
    pub fn flush(&mut self) -> Result<bool, String> {
        let stream = match &mut self.socket {
            LinkSocket::Tcp(stream) => stream,
            LinkSocket::Quic(quic) => {
                quic.flush();
                return Ok(true);
            }
        };
        let Some(layers) = &mut self.layers else {
            return Ok(true);
        };
        match layers.flush(stream) {
            Ok(is_empty) => Ok(is_empty),
            Err(error) if is_blocked(&error) || is_disconnected(&error) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether the layers have data of their own to send: an answer to a ping.
    pub fn has_pending(&self) -> bool {
        let web_socket = self.layers.as_ref().and_then(|layers| layers.web_socket.as_ref());
        web_socket.is_some_and(|web_socket| !web_socket.pending().is_empty())
    }

    /// Sends the closing messages of the layers, after MQTT's DISCONNECT.
    pub fn close_layers(&mut self) {
        let stream = match &mut self.socket {
            LinkSocket::Tcp(stream) => stream,
            LinkSocket::Quic(quic) => return quic.finish(),
        };
        let Some(layers) = &mut self.layers else { return };
        if let Some(web_socket) = &mut layers.web_socket {
            web_socket.send_close();
        }
        // An error here means that the peer has closed already.
        let _ = layers.flush(stream);
        if let Some(tls) = &mut layers.tls {
            tls.send_close_notify();
            let _ = flush_tls(tls, stream);
        }
    }
}

fn is_blocked(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn is_disconnected(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset | ConnectionAborted)
}

#[inline]
fn read_stream(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<LinkInput> {
    loop {
        return match stream.read(buffer) {
            Ok(0) => Ok(LinkInput::Closed),
            Ok(size) if size < buffer.len() => Ok(LinkInput::Drained(size)),
            Ok(size) => Ok(LinkInput::Bytes(size)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(LinkInput::Drained(0)),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
    }
}

fn flush_tls(tls: &mut ClientConnection, stream: &mut TcpStream) -> io::Result<bool> {
    while tls.wants_write() {
        tls.write_tls(stream)?;
    }
    Ok(true)
}

impl LinkLayers {
    fn read(&mut self, stream: &mut TcpStream, buffer: &mut [u8]) -> Result<LinkInput, String> {
        let mut input = match &mut self.tls {
            None => read_stream(stream, buffer).map_err(|error| error.to_string())?,
            Some(tls) => read_tls(tls, stream, buffer)?,
        };
        let Some(web_socket) = &mut self.web_socket else {
            return Ok(input);
        };
        if let LinkInput::Bytes(size) | LinkInput::Drained(size) = &mut input {
            *size = web_socket.receive(&mut buffer[..*size])?;
            if web_socket.is_closed() && *size == 0 {
                return Ok(LinkInput::Closed);
            }
        }
        Ok(input)
    }

    fn write(&mut self, stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
        if !self.flush(stream)? {
            return Ok(0);
        }
        match (&mut self.tls, &mut self.web_socket) {
            (_, Some(web_socket)) => {
                let part = &bytes[..bytes.len().min(FRAME_PAYLOAD_MAX)];
                web_socket.send(part);
                ignore_blocked(self.flush(stream))?;
                Ok(part.len())
            }
            (Some(tls), None) => {
                let taken = tls.writer().write(bytes)?;
                ignore_blocked(flush_tls(tls, stream))?;
                Ok(taken)
            }
            (None, None) => stream.write(bytes),
        }
    }

    /// Sends the buffered data; returns whether nothing is left.
    fn flush(&mut self, stream: &mut TcpStream) -> io::Result<bool> {
        match (&mut self.tls, &mut self.web_socket) {
            (Some(tls), web_socket) => {
                flush_tls(tls, stream)?;
                if let Some(web_socket) = web_socket.as_mut().filter(|_| !tls.is_handshaking()) {
                    while !web_socket.pending().is_empty() {
                        let taken = tls.writer().write(web_socket.pending())?;
                        web_socket.mark_sent(taken);
                        flush_tls(tls, stream)?;
                    }
                }
                Ok(true)
            }
            (None, Some(web_socket)) => {
                while !web_socket.pending().is_empty() {
                    let taken = stream.write(web_socket.pending())?;
                    web_socket.mark_sent(taken);
                }
                Ok(true)
            }
            (None, None) => Ok(true),
        }
    }
}

fn ignore_blocked(result: io::Result<bool>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

/// Reads until the buffer is full or the socket is empty.
fn read_tls(tls: &mut ClientConnection, stream: &mut TcpStream, buffer: &mut [u8]) -> Result<LinkInput, String> {
    let mut filled = 0;
    loop {
        while filled < buffer.len() {
            match tls.reader().read(&mut buffer[filled..]) {
                Ok(0) => {
                    return Ok(if filled > 0 {
                        LinkInput::Bytes(filled)
                    } else {
                        LinkInput::Closed
                    });
                }
                Ok(size) => filled += size,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("TLS: {error}")),
            }
        }
        if filled == buffer.len() {
            return Ok(LinkInput::Bytes(filled));
        }
        match tls.read_tls(stream) {
            Ok(0) if filled > 0 => return Ok(LinkInput::Bytes(filled)),
            Ok(0) => return Ok(LinkInput::Closed),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(LinkInput::Drained(filled)),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.to_string()),
        }
        let state = tls.process_new_packets();
        // Sends an alert about the error, or the next flight of the handshake.
        ignore_blocked(flush_tls(tls, stream)).map_err(|error| error.to_string())?;
        state.map_err(|error| format!("TLS: {error}"))?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failure is a failed test")]

    use super::*;

    #[test]
    fn read_after_reset_returns_data_sent_before() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut link = LoadLink::connect(listener.local_addr().unwrap(), None, None).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(link.write(b"taken").unwrap(), 5);
        server.write_all(b"said").unwrap();
        // The server closes with unread bytes, so the connection is reset.
        assert_eq!(server.peek(&mut [0; 8]).unwrap(), 5);
        drop(server);
        assert_eq!(link.write(b"too late").unwrap(), 0);
        let mut buffer = [0; 8];
        assert_eq!(link.read(&mut buffer), Ok(LinkInput::Drained(4)));
        assert_eq!(&buffer[..4], b"said");
        assert!(matches!(link.read(&mut buffer), Err(_) | Ok(LinkInput::Closed)));
    }
}
