//! MQTT over QUIC: a connection with one stream, without I/O. The caller sends and receives datagrams, and calls
//! `handle_deadline` when the deadline has passed.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event,
    IdleTimeout, ReadError, StreamEvent, StreamId, TransportConfig, VarInt, WriteError,
};

/// Name of MQTT over QUIC in the TLS handshake, as EMQX and NanoMQ use it.
const PROTOCOL: &[u8] = b"mqtt";

/// A server that does not answer for this time is lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of keep-alives, which also keep the entries of routers in between. Less than their usual 30 seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Maximum size of a received datagram.
pub const DATAGRAM_BYTES: usize = 64 * 1024;

pub struct ClientQuic {
    endpoint: Endpoint,
    handle: ConnectionHandle,
    connection: Connection,
    server: SocketAddr,
    stream: Option<StreamId>,
    error: Option<ConnectionError>,
    is_finished: bool,
    is_peer_finished: bool,
    output: Vec<u8>,
}

/// The connection cannot begin.
#[derive(Debug)]
pub struct QuicStartError(String);

impl fmt::Display for QuicStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QuicStartError {}

impl ClientQuic {
    /// Starts a handshake. The configuration must contain TLS 1.3. The server's certificate must be for `name`.
    pub fn new(
        tls: &rustls::ClientConfig,
        name: &str,
        server: SocketAddr,
        now: Instant,
    ) -> Result<ClientQuic, QuicStartError> {
        let mut tls = tls.clone();
        tls.alpn_protocols = vec![PROTOCOL.to_vec()];
        // QUIC has only TLS 1.3, and 0-RTT would allow others to repeat what the client sends.
        tls.enable_early_data = false;
        let crypto = QuicClientConfig::try_from(Arc::new(tls))
            .map_err(|_| QuicStartError("QUIC needs TLS 1.3 with AES-128-GCM".into()))?;
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(0))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .keep_alive_interval(Some(KEEP_ALIVE))
            .max_idle_timeout(IdleTimeout::try_from(IDLE_TIMEOUT).ok());
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport));
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
        let (handle, connection) = endpoint
            .connect(now, config, server, name)
            .map_err(|error| QuicStartError(format!("QUIC: {error}")))?;
        Ok(ClientQuic {
            endpoint,
            handle,
            connection,
            server,
            stream: None,
            error: None,
            is_finished: false,
            is_peer_finished: false,
            output: Vec::new(),
        })
    }

    /// Processes a datagram from the server.
    pub fn receive(&mut self, now: Instant, datagram: &[u8]) {
        let mut response = Vec::new();
        let data = BytesMut::from(datagram);
        let event = self.endpoint.handle(now, self.server, None, None, data, &mut response);
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            self.connection.handle_event(event);
            self.process_events();
        }
    }

    /// Returns the next datagram to send.
    pub fn next_datagram(&mut self, now: Instant) -> Option<&[u8]> {
        self.output.clear();
        let transmit = self.connection.poll_transmit(now, 1, &mut self.output)?;
        Some(&self.output[..transmit.size])
    }

    /// Returns when `handle_deadline` must be called. It changes with each call of another method.
    pub fn deadline(&mut self) -> Option<Instant> {
        self.connection.poll_timeout()
    }

    pub fn handle_deadline(&mut self, now: Instant) {
        self.connection.handle_timeout(now);
        self.process_events();
    }

    fn process_events(&mut self) {
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(event);
            }
        }
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Connected => self.stream = self.connection.streams().open(Dir::Bi),
                Event::ConnectionLost { reason } => self.error = Some(reason),
                Event::Stream(StreamEvent::Finished { .. }) => self.is_finished = true,
                _ => {}
            }
        }
    }

    /// Returns whether the handshake is complete and the stream is open.
    pub fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// Returns how the connection has failed.
    pub fn error(&self) -> Option<String> {
        self.error.as_ref().map(|error| format!("QUIC: {error}"))
    }

    /// Reads data of the stream. 0 is its end; `WouldBlock` means that there is none now.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(stream) = self.stream.filter(|_| !self.is_peer_finished) else {
            return self.no_data();
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
                    self.is_peer_finished = true;
                    break None;
                }
                Err(error) => break Some(error),
            }
        };
        // The caller sends datagrams after it has read.
        let _ = chunks.finalize();
        match end {
            _ if filled > 0 => Ok(filled),
            Some(ReadError::Reset(_)) => Err(io::ErrorKind::ConnectionReset.into()),
            _ => self.no_data(),
        }
    }

    fn no_data(&self) -> io::Result<usize> {
        match &self.error {
            _ if self.is_peer_finished => Ok(0),
            Some(ConnectionError::ApplicationClosed(_)) => Ok(0),
            Some(error) => Err(io::Error::other(format!("QUIC: {error}"))),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Writes as much as the server's window allows.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.error.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let Some(stream) = self.stream else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        match self.connection.send_stream(stream).write(bytes) {
            Ok(written) => Ok(written),
            Err(WriteError::Blocked) => Err(io::ErrorKind::WouldBlock.into()),
            Err(WriteError::Stopped(_) | WriteError::ClosedStream) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Ends the stream in the direction of the server.
    pub fn finish(&mut self) {
        if let Some(stream) = self.stream {
            // Fails if it has ended already.
            let _ = self.connection.send_stream(stream).finish();
        }
    }

    /// Returns whether the server has acknowledged everything up to the end of the stream.
    pub fn is_finished(&self) -> bool {
        self.is_finished || self.error.is_some()
    }

    /// Closes the connection. One more datagram says so to the server.
    pub fn close(&mut self, now: Instant) {
        self.connection.close(now, VarInt::from_u32(0), Bytes::new());
    }
}
