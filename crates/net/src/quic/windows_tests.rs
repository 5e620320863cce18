//! Windows of real connections of the QUIC library, without sockets and on virtual time.

use bytes::BytesMut;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event, StreamId, WriteError,
};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivatePkcs8KeyDer;

use super::*;
use crate::quic::config;

const KIB: usize = 1024;

/// One end of a connection.
struct Side {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    address: std::net::SocketAddr,
}

struct Pair {
    server: Side,
    client: Side,
    stream: StreamId,
    windows: Windows,
    pool: Arc<MemoryPool>,
    now: Instant,
}

impl Side {
    fn connection(&mut self) -> &mut Connection {
        &mut self.connection.as_mut().unwrap().1
    }

    fn receive(&mut self, now: Instant, from: std::net::SocketAddr, datagram: &[u8]) {
        let mut response = Vec::new();
        let event = self
            .endpoint
            .handle(now, from, None, None, datagram.into(), &mut response);
        match event {
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = self.endpoint.accept(incoming, now, &mut response, None);
                self.connection = accepted.ok();
            }
            Some(DatagramEvent::ConnectionEvent(_, event)) => self.connection().handle_event(event),
            _ => {}
        }
    }

    /// Returns the next datagram.
    fn transmit(&mut self, now: Instant) -> Option<BytesMut> {
        let (handle, connection) = self.connection.as_mut()?;
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(answer);
            }
        }
        while connection
            .poll()
            .is_some_and(|event| !matches!(event, Event::ConnectionLost { .. }))
        {}
        let mut datagram = Vec::new();
        let transmit = connection.poll_transmit(now, 1, &mut datagram)?;
        Some(BytesMut::from(&datagram[..transmit.size]))
    }
}

impl Pair {
    /// Connects, and opens a stream of the client.
    fn new() -> Pair {
        let mut listener = ListenerConfig::new("test", broker::Transport::Quic, "10.0.0.1:14567".parse().unwrap());
        listener.receive_buffer_bytes = Some(64 * KIB as u32);
        listener.send_buffer_bytes = Some(64 * KIB as u32);
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let provider = Arc::new(default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![made.cert.der().clone()],
                PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into(),
            )
            .unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let trust = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let now = Instant::now();
        let server = config::server_config(Arc::new(tls), &listener, None).unwrap();
        let mut client = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
        let client_config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(trust).unwrap()));
        let connection = client.connect(now, client_config, listener.bind, "localhost").unwrap();
        let pool = MemoryPool::new(usize::MAX);
        let mut pair = Pair {
            windows: Windows::new(&listener, &pool),
            server: Side {
                endpoint: Endpoint::new(Arc::new(EndpointConfig::default()), Some(server), true, None),
                connection: None,
                address: listener.bind,
            },
            client: Side {
                endpoint: client,
                connection: Some(connection),
                address: "10.0.0.2:4000".parse().unwrap(),
            },
            stream: StreamId::new(quinn_proto::Side::Client, Dir::Bi, 0),
            pool,
            now,
        };
        pair.exchange();
        assert_eq!(pair.client.connection().streams().open(Dir::Bi), Some(pair.stream));
        pair.client
            .connection()
            .send_stream(pair.stream)
            .write(b"first")
            .unwrap();
        pair.exchange();
        assert_eq!(pair.server.connection().streams().accept(Dir::Bi), Some(pair.stream));
        pair
    }

    /// Passes datagrams on until neither side has more, also no delayed acknowledgement.
    fn exchange(&mut self) {
        const DELAY_MS: u32 = 60;
        let mut idle_ms = 0;
        while idle_ms < DELAY_MS {
            idle_ms += 1;
            self.now += Duration::from_millis(1);
            for side in [&mut self.server, &mut self.client] {
                if let Some((_, connection)) = &mut side.connection
                    && connection.poll_timeout().is_some_and(|at| at <= self.now)
                {
                    connection.handle_timeout(self.now);
                }
            }
            while let Some(datagram) = self.client.transmit(self.now) {
                self.server.receive(self.now, self.client.address, &datagram);
                idle_ms = 0;
            }
            while let Some(datagram) = self.server.transmit(self.now) {
                self.client.receive(self.now, self.server.address, &datagram);
                idle_ms = 0;
            }
        }
    }

    /// Writes output of the server until the window is full.
    fn write_until_blocked(&mut self) -> usize {
        let mut written = 0;
        loop {
            match self.server.connection().send_stream(self.stream).write(&[7; 1000]) {
                Ok(bytes) => {
                    self.windows.written(bytes);
                    written += bytes;
                }
                Err(WriteError::Blocked) => {
                    self.windows.blocked();
                    return written;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Reads everything. Returns the number of bytes.
    fn read(side: &mut Side, stream: StreamId) -> usize {
        let mut read = 0;
        let mut stream = side.connection().recv_stream(stream);
        let mut chunks = stream.read(true).unwrap();
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            read += chunk.bytes.len();
        }
        let _ = chunks.finalize();
        read
    }

    /// The client sends as much as it may, and the server reads it.
    fn send_and_read(&mut self, most: usize) -> usize {
        let sent = self.client.connection().send_stream(self.stream).write(&vec![7; most]);
        self.exchange();
        let read = Pair::read(&mut self.server, self.stream);
        assert_eq!(sent.unwrap_or(0), read);
        self.windows.read(read, &self.server.connection.as_ref().unwrap().1);
        self.exchange();
        read
    }

    fn change(&mut self) -> bool {
        self.windows.change(&mut self.server.connection.as_mut().unwrap().1)
    }

    fn shrink(&mut self) {
        let later = Instant::now() + UNUSED;
        self.windows
            .shrink(later, &mut self.server.connection.as_mut().unwrap().1);
    }
}

#[test]
fn send_window_returns_its_memory_when_the_output_is_acknowledged() {
    let mut pair = Pair::new();
    let mut written = pair.write_until_blocked();
    assert_eq!(written, 16 * KIB);
    while pair.change() {
        pair.windows.writable();
        written += pair.write_until_blocked();
    }
    assert_eq!((written, pair.pool.used()), (64 * KIB, 48 * KIB * 3 / 2));
    // The output is still there.
    pair.shrink();
    assert_eq!((pair.write_until_blocked(), pair.pool.used()), (0, 48 * KIB * 3 / 2));
    while pair.pool.used() > 0 {
        pair.exchange();
        Pair::read(&mut pair.client, pair.stream);
        pair.exchange();
        pair.write_until_blocked();
    }
    drop(pair.windows);
    assert_eq!(pair.pool.used(), 0);
}

#[test]
fn growth_that_the_client_does_not_allow_is_undone() {
    let mut pair = Pair::new();
    pair.write_until_blocked();
    assert!(pair.change());
    assert_eq!(pair.pool.used(), 16 * KIB * 3 / 2);
    // No event says that the stream is writable.
    assert!(!pair.change());
    assert_eq!(pair.pool.used(), 0);
    assert_eq!(pair.write_until_blocked(), 0);
}

#[test]
fn receive_window_returns_its_memory_when_the_client_has_sent_what_it_may() {
    let mut pair = Pair::new();
    Pair::read(&mut pair.server, pair.stream);
    assert_eq!(pair.send_and_read(1024 * KIB) / KIB, 15, "without the first bytes");
    while pair.windows.receive.bytes < 64 * KIB as u32 {
        pair.send_and_read(1024 * KIB);
        pair.change();
    }
    assert_eq!(pair.pool.used(), 48 * KIB * 5 / 2);
    pair.shrink();
    assert_eq!(pair.pool.used(), 48 * KIB * 5 / 2);
    // The client may still send as much as the large window allowed, and then as much as the small one.
    let mut read = pair.send_and_read(1024 * KIB);
    while pair.pool.used() > 0 {
        read += pair.send_and_read(1024 * KIB);
    }
    assert!(read >= 48 * KIB, "{read}");
    assert!(pair.send_and_read(1024 * KIB) <= 16 * KIB);
}
