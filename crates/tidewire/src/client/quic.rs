//! MQTT over QUIC for `pub`, `sub` and `rr`: a thread forwards between a QUIC stream and one end of a pair of sockets.
//! The other end takes the place of a TCP socket.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use mqtt_client::{ClientQuic, DATAGRAM_BYTES};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::ClientConfig;

use super::failure::ClientFailure;
use super::target::ConnectTarget;

/// For the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum time for which the end of the connection waits until the server has acknowledged everything.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

const BUFFER_BYTES: usize = 64 * 1024;

/// Waits for the end of the thread, so that the process does not end before everything is sent.
pub struct QuicForwarding(Receiver<()>);

impl QuicForwarding {
    pub fn wait(&self) {
        // The thread drops its sender when it ends.
        let _ = self.0.recv_timeout(FINISH_TIMEOUT);
    }
}

pub fn connect(
    target: &ConnectTarget,
    from: Option<IpAddr>,
    tls: &ClientConfig,
) -> Result<(UnixStream, QuicForwarding), ClientFailure> {
    let failed = |reason: String| ClientFailure::Connect(format!("QUIC with {target}: {reason}"));
    let address = (target.host.as_str(), target.port)
        .to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| ClientFailure::Connect(format!("cannot find {}", target.host)))?;
    let udp = open(address, from).map_err(|error| failed(error.to_string()))?;
    let quic = ClientQuic::new(tls, &target.host, address, Instant::now());
    let quic = quic.map_err(|error| failed(error.to_string()))?;
    let (own, forwarded) = UnixStream::pair().map_err(|error| failed(error.to_string()))?;
    forwarded
        .set_nonblocking(true)
        .map_err(|error| failed(error.to_string()))?;
    let mut forwarder = Forwarder {
        quic,
        udp,
        local: forwarded,
        to_server: Buffer::default(),
        to_local: Buffer::default(),
        has_local_ended: false,
        has_server_ended: false,
    };
    forwarder.handshake().map_err(failed)?;
    let (ended, wait) = channel();
    thread::Builder::new()
        .name("quic".into())
        .spawn(move || forwarder.run(ended))
        .map_err(|error| failed(error.to_string()))?;
    Ok((own, QuicForwarding(wait)))
}

fn open(server: SocketAddr, from: Option<IpAddr>) -> io::Result<UdpSocket> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((from.unwrap_or(any), 0))?;
    socket.connect(server)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Data of one direction that the other side has not accepted yet.
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    sent: usize,
}

impl Buffer {
    fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Reads into the empty buffer. Returns `false` at the end.
    fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<bool> {
        self.bytes.resize(BUFFER_BYTES, 0);
        self.sent = 0;
        let size = read(&mut self.bytes);
        self.bytes.truncate(*size.as_ref().unwrap_or(&0));
        match size {
            Ok(size) => Ok(size > 0),
            Err(error) if is_blocked(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Writes until nothing is left or the other side accepts no more.
    fn drain(&mut self, mut write: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<()> {
        while !self.is_empty() {
            match write(&self.bytes[self.sent..]) {
                Ok(size) => self.sent += size,
                Err(error) if is_blocked(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_blocked(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

struct Forwarder {
    quic: ClientQuic,
    udp: UdpSocket,
    local: UnixStream,
    to_server: Buffer,
    to_local: Buffer,
    has_local_ended: bool,
    has_server_ended: bool,
}

impl Forwarder {
    fn handshake(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        while !self.quic.is_open() {
            self.transmit();
            if Instant::now() >= deadline {
                return Err("the server does not answer".into());
            }
            self.wait(false).map_err(|error| error.to_string())?;
            self.receive().map_err(|error| error.to_string())?;
            if let Some(error) = self.quic.error() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// `ended` is dropped at the end.
    fn run(mut self, ended: Sender<()>) {
        // The reader of the other end learns of errors by the end of its data.
        let _ = self.forward();
        self.quic.close(Instant::now());
        self.transmit();
        let _ = self.local.shutdown(Shutdown::Both);
        drop(ended);
    }

    fn forward(&mut self) -> io::Result<()> {
        loop {
            self.copy_to_local()?;
            self.copy_to_server()?;
            self.transmit();
            if self.has_server_ended && self.to_local.is_empty() || self.has_local_ended && self.quic.is_finished() {
                return Ok(());
            }
            self.wait(true)?;
            self.receive()?;
        }
    }

    fn copy_to_local(&mut self) -> io::Result<()> {
        loop {
            self.to_local.drain(|bytes| self.local.write(bytes))?;
            if !self.to_local.is_empty() || self.has_server_ended {
                return Ok(());
            }
            self.has_server_ended = !self.to_local.fill(|buffer| self.quic.read(buffer))?;
            if self.to_local.is_empty() {
                return Ok(());
            }
        }
    }

    fn copy_to_server(&mut self) -> io::Result<()> {
        loop {
            self.to_server.drain(|bytes| self.quic.write(bytes))?;
            if !self.to_server.is_empty() || self.has_local_ended {
                return Ok(());
            }
            if !self.to_server.fill(|buffer| self.local.read(buffer))? {
                self.has_local_ended = true;
                self.quic.finish();
                return Ok(());
            }
            if self.to_server.is_empty() {
                return Ok(());
            }
        }
    }

    /// Waits until a socket is ready or a deadline of QUIC has passed.
    fn wait(&mut self, is_forwarding: bool) -> io::Result<()> {
        let deadline = self.quic.deadline().unwrap_or(Instant::now() + FINISH_TIMEOUT);
        let mut wanted = PollFlags::empty();
        if is_forwarding && self.to_server.is_empty() && !self.has_local_ended {
            wanted |= PollFlags::IN;
        }
        if !self.to_local.is_empty() {
            wanted |= PollFlags::OUT;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let mut sockets = vec![PollFd::new(&self.udp, PollFlags::IN)];
        if !wanted.is_empty() {
            sockets.push(PollFd::new(&self.local, wanted));
        }
        match poll(&mut sockets, timeout.as_ref()) {
            Err(error) if error != rustix::io::Errno::INTR => return Err(error.into()),
            _ => {}
        }
        if Instant::now() >= deadline {
            self.quic.handle_deadline(Instant::now());
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut datagram = [0; DATAGRAM_BYTES];
        loop {
            match self.udp.recv(&mut datagram) {
                Ok(size) => self.quic.receive(Instant::now(), &datagram[..size]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends all datagrams. What the socket does not accept is lost, as on the way, and sent again later.
    fn transmit(&mut self) {
        while let Some(datagram) = self.quic.next_datagram(Instant::now()) {
            let _ = self.udp.send(datagram);
        }
    }
}
