//! The connection to the server: TCP or a Unix socket, optionally with TLS and WebSocket, or QUIC.
//!
//! Connecting blocks, within a time limit. Then another thread reads the socket, and its bytes are passed through
//! `receive`. Writing blocks.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use mqtt_client::{ClientWebSocket, Masks, Upgrade, WebSocketContent};
use rustls::ClientConnection;
use socket2::{Domain, SockAddr, Socket as RawSocket, Type};

use super::args::{ClientTlsOptions, ConnectOptions};
use super::failure::ClientFailure;
use super::quic::{self, QuicForwarding};
use super::target::{ConnectTarget, UrlScheme};
use super::tls;

/// For each address, and again for the handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

pub struct ClientTransport {
    socket: Socket,
    tls: Option<ClientConnection>,
    web_socket: Option<ClientWebSocket>,
    /// Data that arrived with the response to the upgrade.
    early: Vec<u8>,
    quic: Option<QuicForwarding>,
}

/// Events that `receive` found besides data.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ReceivedEvents {
    /// The server said goodbye on a layer below MQTT.
    pub is_closed: bool,
}

impl ClientTransport {
    pub fn connect(options: &ConnectOptions) -> Result<ClientTransport, ClientFailure> {
        let target = &options.target;
        let mut transport = ClientTransport::open(target, options.bind_address, &options.tls)?;
        if target.scheme.has_ws() {
            // 3.1 has no registered name; "mqttv3.1" is what brokers know.
            let protocol = if options.version == mqtt::ProtocolVersion::V3_1 {
                "mqttv3.1"
            } else {
                "mqtt"
            };
            transport.upgrade(target, &target.path, WebSocketContent::Mqtt(protocol))?;
        }
        transport.clear_timeouts(target)?;
        Ok(transport)
    }

    /// A socket, with TLS on it where the target has it; reading and writing have a time limit.
    pub fn open(
        target: &ConnectTarget,
        from: Option<IpAddr>,
        tls: &ClientTlsOptions,
    ) -> Result<ClientTransport, ClientFailure> {
        let mut forwarding = None;
        let socket = match &target.unix {
            None if target.scheme == UrlScheme::Quic => {
                let config = tls::config(tls).map_err(ClientFailure::Local)?;
                let (socket, thread) = quic::connect(target, from, &config)?;
                forwarding = Some(thread);
                Socket::Unix(socket)
            }
            Some(path) => UnixStream::connect(path)
                .map(Socket::Unix)
                .map_err(|error| cannot_connect(target, &error))?,
            None => Socket::Tcp(connect_tcp(target, from)?),
        };
        socket
            .set_timeouts(Some(CONNECT_TIMEOUT))
            .map_err(|error| cannot_connect(target, &error))?;
        let mut transport = ClientTransport {
            socket,
            tls: None,
            web_socket: None,
            early: Vec::new(),
            quic: forwarding,
        };
        if target.scheme.has_tls() {
            transport.tls = Some(tls::connection(tls, &target.host)?);
            transport
                .complete_tls()
                .map_err(|error| ClientFailure::Connect(format!("TLS with {target}: {error}")))?;
        }
        Ok(transport)
    }

    /// Ends the time limit of reading and writing.
    pub fn clear_timeouts(&self, target: &ConnectTarget) -> Result<(), ClientFailure> {
        let set = self.socket.set_timeouts(None);
        set.map_err(|error| cannot_connect(target, &error))
    }

    /// Waits for data and processes it like `receive`. Returns `false` if the peer has closed the connection.
    pub fn read(&mut self, out: &mut Vec<u8>) -> io::Result<bool> {
        let mut buffer = [0; 16 * 1024];
        // Bytes that arrived with the response to the upgrade.
        let size = match self.early.is_empty() {
            true => self.socket.read(&mut buffer)?,
            false => 0,
        };
        if size == 0 && self.early.is_empty() {
            return Ok(false);
        }
        Ok(!self.receive(&buffer[..size], out)?.is_closed)
    }

    /// The same socket, for the thread that reads it.
    pub fn reader(&self) -> io::Result<Socket> {
        Ok(match &self.socket {
            Socket::Tcp(socket) => Socket::Tcp(socket.try_clone()?),
            Socket::Unix(socket) => Socket::Unix(socket.try_clone()?),
        })
    }

    /// Writes all of `bytes`.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(web_socket) = &mut self.web_socket else {
            return self.send_raw(bytes);
        };
        web_socket.send(bytes);
        self.send_pending()
    }

    /// Sends the pending bytes of the WebSocket.
    fn send_pending(&mut self) -> io::Result<()> {
        let pending = self.web_socket.as_mut().map(ClientWebSocket::take_pending);
        self.send_raw(&pending.unwrap_or_default())
    }

    fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.socket.write_all(bytes),
            Some(tls) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    let size = tls.writer().write(rest)?;
                    rest = &rest[size..];
                    flush_tls(tls, &mut self.socket)?;
                }
                Ok(())
            }
        }
    }

    /// Passes bytes from the socket through the layers, and appends MQTT bytes to `out`.
    pub fn receive(&mut self, raw: &[u8], out: &mut Vec<u8>) -> io::Result<ReceivedEvents> {
        out.append(&mut self.early);
        let start = out.len();
        let mut is_closed = self.decrypt(raw, out)?;
        if let Some(web_socket) = &mut self.web_socket {
            let data_bytes = web_socket.receive(&mut out[start..]).map_err(io::Error::other)?;
            out.truncate(start + data_bytes);
            is_closed |= web_socket.is_closed();
            self.send_pending()?;
        }
        Ok(ReceivedEvents { is_closed })
    }

    /// True when the peer closed TLS.
    fn decrypt(&mut self, mut raw: &[u8], out: &mut Vec<u8>) -> io::Result<bool> {
        let Some(tls) = &mut self.tls else {
            out.extend_from_slice(raw);
            return Ok(false);
        };
        let mut is_closed = false;
        loop {
            if !raw.is_empty() {
                tls.read_tls(&mut raw)?;
            }
            let state = tls.process_new_packets().map_err(io::Error::other)?;
            let start = out.len();
            out.resize(start + state.plaintext_bytes_to_read(), 0);
            tls.reader().read_exact(&mut out[start..])?;
            is_closed |= state.peer_has_closed();
            if raw.is_empty() || is_closed {
                break;
            }
        }
        flush_tls(tls, &mut self.socket)?;
        Ok(is_closed)
    }

    /// Says goodbye on every layer; errors do not matter any more.
    pub fn close(&mut self) {
        if let Some(web_socket) = &mut self.web_socket {
            web_socket.send_close();
            let _ = self.send_pending();
        }
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            let _ = flush_tls(tls, &mut self.socket);
        }
        let _ = self.socket.shutdown(Shutdown::Write);
        if let Some(forwarding) = &self.quic {
            forwarding.wait();
        }
    }

    /// Ends reading too, and with it the reading thread.
    pub fn abort(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    fn complete_tls(&mut self) -> io::Result<()> {
        let tls = self.tls.as_mut().expect("called after it was set");
        while tls.is_handshaking() {
            tls.complete_io(&mut self.socket)?;
        }
        flush_tls(tls, &mut self.socket)
    }

    pub fn upgrade(
        &mut self,
        target: &ConnectTarget,
        path: &str,
        content: WebSocketContent<'_>,
    ) -> Result<(), ClientFailure> {
        let host = &target.to_string();
        let upgrade = Upgrade { host, path, content };
        self.web_socket = Some(ClientWebSocket::new(&upgrade, Masks::Random(random)));
        let failed = |error: io::Error| ClientFailure::Connect(format!("WebSocket with {target}: {error}"));
        self.send_pending().map_err(failed)?;
        let mut buffer = [0; 4096];
        while self.web_socket.as_ref().is_some_and(|web_socket| !web_socket.is_open()) {
            let size = self.socket.read(&mut buffer).map_err(failed)?;
            if size == 0 {
                return Err(failed(io::ErrorKind::UnexpectedEof.into()));
            }
            let mut data = Vec::new();
            self.receive(&buffer[..size], &mut data).map_err(failed)?;
            self.early = data;
        }
        Ok(())
    }
}

fn flush_tls(tls: &mut ClientConnection, socket: &mut Socket) -> io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(socket)?;
    }
    Ok(())
}

/// From the operating system, by way of the TLS library.
pub fn random(bytes: &mut [u8]) {
    let filled = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), bytes);
    filled.expect("the operating system gives random bytes");
}

fn cannot_connect(target: &ConnectTarget, error: &io::Error) -> ClientFailure {
    ClientFailure::Connect(format!("cannot connect to {target}: {error}"))
}

fn connect_tcp(target: &ConnectTarget, from: Option<IpAddr>) -> Result<TcpStream, ClientFailure> {
    let addresses = (target.host.as_str(), target.port)
        .to_socket_addrs()
        .map_err(|error| ClientFailure::Connect(format!("cannot find {}: {error}", target.host)))?;
    let mut last = io::Error::other("the name has no address");
    for address in addresses {
        match connect_address(&address, from) {
            Ok(stream) => {
                // A client that sends one message and waits gains nothing from Nagle's delay.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(cannot_connect(target, &last))
}

fn connect_address(address: &SocketAddr, from: Option<IpAddr>) -> io::Result<TcpStream> {
    let Some(from) = from else {
        return TcpStream::connect_timeout(address, CONNECT_TIMEOUT);
    };
    let socket = RawSocket::new(Domain::for_address(*address), Type::STREAM, None)?;
    socket.bind(&SockAddr::from(SocketAddr::new(from, 0)))?;
    socket.connect_timeout(&SockAddr::from(*address), CONNECT_TIMEOUT)?;
    Ok(socket.into())
}

impl Socket {
    fn set_timeouts(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket
                .set_read_timeout(timeout)
                .and_then(|()| socket.set_write_timeout(timeout)),
            Socket::Unix(socket) => socket
                .set_read_timeout(timeout)
                .and_then(|()| socket.set_write_timeout(timeout)),
        }
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Socket::Tcp(socket) => socket.shutdown(how),
            Socket::Unix(socket) => socket.shutdown(how),
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.read(buffer),
            Socket::Unix(socket) => socket.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Unix(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
