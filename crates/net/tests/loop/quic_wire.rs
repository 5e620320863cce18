//! A blocking client of MQTT over QUIC: one stream of a `quinn-proto` connection, driven by a thread.

use std::cell::Cell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event,
    ReadError, StreamEvent, StreamId, VarInt, WriteError,
};

use super::client::{PATIENCE, Wire};

/// Maximum time until the thread notices a timer or its end.
const TURN: Duration = Duration::from_millis(2);

pub struct QuicWire {
    shared: Arc<Shared>,
    stream: StreamId,
}

/// A data stream of a connection. Dropping it does not end it.
pub struct QuicStream {
    shared: Arc<Shared>,
    stream: StreamId,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    endpoint: Endpoint,
    connection: Connection,
    handle: ConnectionHandle,
    socket: Arc<UdpSocket>,
    is_connected: bool,
    lost: Option<ConnectionError>,
    /// The server has acknowledged the end of the first stream.
    is_finished: bool,
    /// The last stream on which the server does not want data, and its code.
    stopped: Option<(StreamId, VarInt)>,
    /// The thread ends.
    is_dropped: bool,
    /// Nothing is sent and received any more.
    is_silent: bool,
    /// Nothing is received.
    is_deaf: bool,
}

/// Returns the configuration of a client that offers this protocol (ALPN).
pub fn with_protocol(config: &rustls::ClientConfig, protocol: &[u8]) -> Arc<rustls::ClientConfig> {
    let mut config = config.clone();
    config.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(config)
}

fn bind() -> Arc<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(TURN)).unwrap();
    Arc::new(socket)
}

impl QuicWire {
    /// Connects, and opens the stream.
    pub fn connect(address: SocketAddr, config: &rustls::ClientConfig) -> QuicWire {
        QuicWire::try_connect(address, with_protocol(config, b"mqtt")).unwrap()
    }

    pub fn try_connect(address: SocketAddr, config: Arc<rustls::ClientConfig>) -> Result<QuicWire, ConnectionError> {
        let crypto = QuicClientConfig::try_from(config).unwrap();
        let client = ClientConfig::new(Arc::new(crypto));
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
        let (handle, connection) = endpoint.connect(Instant::now(), client, address, "localhost").unwrap();
        let state = State {
            endpoint,
            connection,
            handle,
            socket: bind(),
            is_connected: false,
            lost: None,
            is_finished: false,
            stopped: None,
            is_dropped: false,
            is_silent: false,
            is_deaf: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let driver = shared.clone();
        thread::spawn(move || driver.run());
        let stream = {
            let mut state = shared.wait(|state| state.is_connected || state.lost.is_some());
            if let Some(error) = &state.lost {
                let error = error.clone();
                state.is_dropped = true;
                return Err(error);
            }
            state.connection.streams().open(Dir::Bi).unwrap()
        };
        Ok(QuicWire { shared, stream })
    }

    /// Continues from another port, as after a change of the network.
    pub fn migrate(&self) -> SocketAddr {
        let mut state = self.shared.lock();
        state.socket = bind();
        state.connection.local_address_changed();
        state.transmit();
        state.socket.local_addr().unwrap()
    }

    /// Sends bytes from another address, at which nothing is received, as with a forged address.
    pub fn send_from_another_address(&self, bytes: &[u8]) {
        let mut state = self.shared.lock();
        state.connection.send_stream(self.stream).write(bytes).unwrap();
        let own = std::mem::replace(&mut state.socket, bind());
        state.transmit();
        state.socket = own;
    }

    /// Vanishes: no datagram is sent or answered any more.
    pub fn vanish(&self) {
        self.shared.lock().is_silent = true;
    }

    /// Loses what arrives from now on, or no more.
    pub fn set_deaf(&self, is_deaf: bool) {
        self.shared.lock().is_deaf = is_deaf;
    }

    /// Returns how the connection was lost, when it is.
    pub fn wait_until_lost(&self) -> ConnectionError {
        self.shared.wait(|state| state.lost.is_some()).lost.clone().unwrap()
    }

    /// Opens a data stream.
    pub fn open_stream(&self) -> QuicStream {
        let opened = Cell::new(None);
        let open = |state: &mut State| {
            opened.set(state.connection.streams().open(Dir::Bi));
            opened.get().is_some()
        };
        drop(self.shared.wait(open));
        QuicStream {
            shared: self.shared.clone(),
            stream: opened.get().unwrap(),
        }
    }

    /// Opens a data stream if the server permits it now.
    pub fn try_open_stream(&self) -> Option<QuicStream> {
        let stream = self.shared.lock().connection.streams().open(Dir::Bi)?;
        Some(QuicStream {
            shared: self.shared.clone(),
            stream,
        })
    }

    /// Opens another stream, sends on it, and returns the code with which the server has reset it.
    pub fn code_of_another_stream(&self, bytes: &[u8]) -> u64 {
        let opened = Cell::new(None);
        let open = |state: &mut State| {
            opened.set(state.connection.streams().open(Dir::Bi));
            opened.get().is_some()
        };
        let mut state = self.shared.wait(open);
        let stream = opened.get().unwrap();
        state.connection.send_stream(stream).write(bytes).unwrap();
        state.transmit();
        drop(state);
        let mut state = self
            .shared
            .wait(|state| state.stopped.is_some_and(|(stopped, _)| stopped == stream));
        // A stream is closed when both sides have ended it.
        let _ = state.connection.send_stream(stream).reset(VarInt::from_u32(0));
        let _ = state.connection.recv_stream(stream).stop(VarInt::from_u32(0));
        state.transmit();
        state.stopped.take().unwrap().1.into_inner()
    }

    /// Closes the connection without a FIN.
    pub fn close(&self, code: u32) {
        let mut state = self.shared.lock();
        state
            .connection
            .close(Instant::now(), VarInt::from_u32(code), bytes::Bytes::new());
        state.transmit();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A failed test drops its client, too.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, condition: impl Fn(&mut State) -> bool) -> MutexGuard<'_, State> {
        let (state, timeout) = self
            .changed
            .wait_timeout_while(self.lock(), PATIENCE, |state| !condition(state))
            .unwrap();
        assert!(!timeout.timed_out(), "nothing arrived over QUIC");
        state
    }

    fn run(&self) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let socket = {
                let mut state = self.lock();
                if state.is_dropped {
                    return;
                }
                state.turn();
                self.changed.notify_all();
                state.socket.clone()
            };
            if let Ok((size, from)) = socket.recv_from(&mut buffer) {
                let mut state = self.lock();
                if Arc::ptr_eq(&state.socket, &socket) {
                    state.received(from, &buffer[..size]);
                }
            }
        }
    }
}

impl State {
    fn received(&mut self, from: SocketAddr, datagram: &[u8]) {
        if self.is_silent || self.is_deaf {
            return;
        }
        let mut response = Vec::new();
        let event = self.endpoint.handle(
            Instant::now(),
            from,
            None,
            None,
            BytesMut::from(datagram),
            &mut response,
        );
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            self.connection.handle_event(event);
        }
    }

    fn turn(&mut self) {
        let now = Instant::now();
        if self.connection.poll_timeout().is_some_and(|at| at <= now) {
            self.connection.handle_timeout(now);
        }
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(event);
            }
        }
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Connected => self.is_connected = true,
                // A stateless reset can follow.
                Event::ConnectionLost { reason } => {
                    self.lost.get_or_insert(reason);
                }
                Event::Stream(StreamEvent::Finished { id }) => self.is_finished |= id.index() == 0,
                Event::Stream(StreamEvent::Stopped { id, error_code }) => self.stopped = Some((id, error_code)),
                _ => {}
            }
        }
        self.transmit();
    }

    fn transmit(&mut self) {
        let mut datagram = Vec::new();
        while let Some(transmit) = self.connection.poll_transmit(Instant::now(), 1, &mut datagram) {
            if !self.is_silent {
                let _ = self.socket.send_to(&datagram[..transmit.size], transmit.destination);
            }
            datagram.clear();
        }
    }

    /// `None`: no data yet.
    fn read(&mut self, stream: StreamId, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        let mut stream = self.connection.recv_stream(stream);
        // After the end of the stream.
        let Ok(mut chunks) = stream.read(true) else {
            return Some(Ok(0));
        };
        let result = chunks.next(buffer.len());
        let _ = chunks.finalize();
        self.transmit();
        match result {
            Ok(Some(chunk)) => {
                buffer[..chunk.bytes.len()].copy_from_slice(&chunk.bytes);
                Some(Ok(chunk.bytes.len()))
            }
            Ok(None) => Some(Ok(0)),
            Err(ReadError::Blocked) if self.lost.is_none() => None,
            Err(_) => Some(Err(ErrorKind::ConnectionReset.into())),
        }
    }
}

impl Shared {
    fn read(&self, stream: StreamId, buffer: &mut [u8]) -> io::Result<usize> {
        let mut result = None;
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.lock();
        while result.is_none() && Instant::now() < deadline {
            result = state.read(stream, buffer);
            if result.is_none() {
                state = self.changed.wait_timeout(state, TURN).unwrap().0;
            }
        }
        result.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()))
    }

    fn write(&self, stream: StreamId, bytes: &[u8]) -> io::Result<usize> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.lock();
        while Instant::now() < deadline {
            if state.lost.is_some() {
                return Err(ErrorKind::ConnectionReset.into());
            }
            match state.connection.send_stream(stream).write(bytes) {
                Ok(written) => {
                    state.transmit();
                    return Ok(written);
                }
                Err(WriteError::Blocked) => state = self.changed.wait_timeout(state, TURN).unwrap().0,
                Err(_) => return Err(ErrorKind::BrokenPipe.into()),
            }
        }
        Err(ErrorKind::TimedOut.into())
    }
}

impl Read for QuicWire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.shared.read(self.stream, buffer)
    }
}

impl Write for QuicWire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.shared.write(self.stream, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for QuicStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.shared.read(self.stream, buffer)
    }
}

impl Write for QuicStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.shared.write(self.stream, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl QuicStream {
    /// Ends the sending side.
    pub fn finish(&self) {
        let mut state = self.shared.lock();
        state.connection.send_stream(self.stream).finish().unwrap();
        state.transmit();
    }

    /// Rejects further data of the server.
    pub fn stop(&self) {
        let mut state = self.shared.lock();
        let code = VarInt::from_u32(0);
        state.connection.recv_stream(self.stream).stop(code).unwrap();
        state.transmit();
    }

    /// Aborts the sending side.
    pub fn reset(&self) {
        let mut state = self.shared.lock();
        let code = VarInt::from_u32(0);
        state.connection.send_stream(self.stream).reset(code).unwrap();
        state.transmit();
    }
}

impl Wire for QuicWire {
    fn tcp(&self) -> &TcpStream {
        panic!("QUIC has no TCP socket")
    }

    fn end_with(&mut self, bytes: &[u8]) {
        self.write_all(bytes).unwrap();
        let mut state = self.shared.lock();
        state.connection.send_stream(self.stream).finish().unwrap();
        state.transmit();
    }
}

impl Drop for QuicWire {
    /// As dropping a TCP stream: everything is sent, and then the end.
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.shared.lock();
        let _ = state.connection.send_stream(self.stream).finish();
        state.transmit();
        while !state.is_finished && !state.is_silent && state.lost.is_none() && Instant::now() < deadline {
            state = self.shared.changed.wait_timeout(state, TURN).unwrap().0;
        }
        state
            .connection
            .close(Instant::now(), VarInt::from_u32(0), bytes::Bytes::new());
        state.transmit();
        state.is_dropped = true;
    }
}
