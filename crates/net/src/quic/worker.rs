//! The part of a worker that deals with QUIC.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;

use broker::{ConnSlot, ShardId};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use crate::connection::SocketConnection;
use crate::listener::ListenerSocket;
use crate::mailbox_item::MailboxItem;
use crate::quic::config;
use crate::quic::connection::QuicConnection;
use crate::quic::endpoint::QuicEndpoint;
use crate::quic::mail::{QuicId, QuicMail};
use crate::quic::socket::QuicSocket;
use crate::quic::timers::QuicTimers;
use crate::server_common::ServerCommon;
use crate::socket::ConnectionSocket;
use crate::worker::{FIRST_LISTENER, NetWorker};

/// Interval for trying again to send to a socket without space. No event reports space, because events about every sent
/// datagram would be too many.
const RETRY_MS: u64 = 1;

pub(crate) struct QuicWorker {
    shards: u16,
    /// Sockets by listener. Empty without QUIC listeners.
    pub(super) sockets: Vec<Option<QuicSocket>>,
    /// Endpoints of the sockets that this worker reads, by listener.
    pub(super) endpoints: Vec<Option<QuicEndpoint>>,
    /// Slots of this worker's connections.
    pub(super) slots: HashMap<QuicId, ConnSlot>,
    /// Connections with new events or output.
    pub(super) touched: Vec<ConnSlot>,
    /// Streams of a connection that can be written again, with the number of their last write.
    pub(super) writable: Vec<(u64, ConnSlot)>,
    pub(super) timers: QuicTimers,
    /// Mail of the current tick, by worker.
    pub(super) outgoing: Vec<QuicMail>,
    /// Buffers of received and sent datagrams.
    pub(super) input: Vec<u8>,
    pub(super) output: Vec<u8>,
}

impl QuicWorker {
    /// Creates the duplicates of all sockets, and the endpoints of those that this worker reads.
    pub(crate) fn new(
        id: ShardId,
        sockets: &[ListenerSocket],
        common: &ServerCommon,
        registry: &Registry,
    ) -> io::Result<QuicWorker> {
        let mut worker = QuicWorker {
            shards: common.shards,
            sockets: Vec::new(),
            endpoints: Vec::new(),
            slots: HashMap::new(),
            touched: Vec::new(),
            writable: Vec::new(),
            timers: QuicTimers::default(),
            outgoing: (0..common.shards).map(|_| QuicMail::default()).collect(),
            input: Vec::new(),
            output: Vec::new(),
        };
        if !sockets.iter().any(|socket| matches!(socket, ListenerSocket::Udp(_))) {
            return Ok(worker);
        }
        for (index, socket) in sockets.iter().enumerate() {
            let ListenerSocket::Udp(socket) = socket else {
                worker.sockets.push(None);
                worker.endpoints.push(None);
                continue;
            };
            let socket = QuicSocket::new(socket.try_clone()?)?;
            let is_reader = worker.reader(index as u16) == id;
            worker.endpoints.push(match is_reader {
                true => {
                    let fd = socket.socket.as_raw_fd();
                    registry.register(&mut SourceFd(&fd), Token(FIRST_LISTENER + index), Interest::READABLE)?;
                    Some(QuicEndpoint::new(common, index, socket.state.may_fragment())?)
                }
                false => None,
            });
            worker.sockets.push(Some(socket));
        }
        Ok(worker)
    }

    /// Returns the worker that reads the socket of a listener.
    pub(super) fn reader(&self, listener: u16) -> ShardId {
        ShardId(listener % self.shards)
    }

    pub(crate) fn socket_is_ready(&mut self, listener: usize) {
        if let Some(Some(endpoint)) = self.endpoints.get_mut(listener) {
            endpoint.is_ready = true;
        }
    }

    pub(crate) fn stop_accepting(&mut self) {
        for endpoint in self.endpoints.iter_mut().flatten() {
            endpoint.endpoint.set_server_config(None);
        }
    }

    /// Returns whether no worker needs the sockets that this one reads.
    pub(crate) fn has_no_connections(&self) -> bool {
        let mut endpoints = self.endpoints.iter().flatten();
        endpoints.all(|endpoint| endpoint.endpoint.open_connections() == 0)
    }

    /// Returns whether the last turn has not received all datagrams.
    pub(crate) fn has_unread_datagrams(&self) -> bool {
        self.endpoints.iter().flatten().any(|endpoint| endpoint.is_ready)
    }

    /// Returns when there is work that the poll does not report.
    pub(crate) fn due_ms(&self, now_ms: u64) -> Option<u64> {
        if self.sockets.is_empty() {
            return None;
        }
        if self.has_unread_datagrams() {
            return Some(0);
        }
        let is_blocked = self.sockets.iter().flatten().any(QuicSocket::is_blocked);
        match is_blocked {
            true => Some(now_ms + RETRY_MS),
            false if !self.touched.is_empty() => Some(0),
            false => self.timers.next_ms(),
        }
    }

    /// Lists a QUIC connection that may have output or events.
    #[inline]
    pub(crate) fn touch(&mut self, slot: ConnSlot, socket: &mut ConnectionSocket) {
        if let Some(quic) = socket.quic() {
            self.touch_quic(slot, quic);
        }
    }

    pub(super) fn touch_quic(&mut self, slot: ConnSlot, quic: &mut QuicConnection) {
        if !quic.is_touched {
            quic.is_touched = true;
            self.touched.push(slot);
        }
    }
}

impl NetWorker {
    /// Uses the new certificate of a listener for connections accepted from now on.
    pub(crate) fn reload_quic(&mut self, index: usize) {
        if self.is_stopping() {
            return;
        }
        let (Some(Some(endpoint)), Some(tls)) = (self.quic.endpoints.get_mut(index), &self.tls_configs[index]) else {
            return;
        };
        let listener = &self.common.listeners[index].config;
        // It fails only if the TLS library has no QUIC, so it does not fail after the start.
        if let Ok(config) = config::server_config(tls.clone(), listener, self.common.config.tcp_keep_alive) {
            endpoint.endpoint.set_server_config(Some(config));
        }
    }

    /// Receives a connection that has moved to this worker.
    pub(crate) fn add_moved_quic(&mut self, slot: ConnSlot) {
        let Some(connection) = self.slots.get_mut(slot) else {
            return;
        };
        let listener = connection.listener;
        // Data that has arrived before causes no further event.
        connection.is_readable = true;
        if let Some(quic) = connection.socket.quic() {
            quic.is_touched = false;
            quic.timer_ms = None;
            self.quic.slots.insert((listener, quic.handle), slot);
            self.quic.touch_quic(slot, quic);
        }
    }

    /// Removes a connection that moves to another worker. Its datagrams follow it.
    pub(crate) fn leave_quic(&mut self, connection: &mut SocketConnection, target: ShardId) {
        let listener = connection.listener;
        let Some(quic) = connection.socket.quic() else {
            return;
        };
        self.quic.slots.remove(&(listener, quic.handle));
        if let Some(Some(endpoint)) = self.quic.endpoints.get_mut(usize::from(listener)) {
            endpoint.assign(quic.handle, target);
        }
    }

    /// Processes what another worker has sent.
    pub(crate) fn receive_quic_mail(&mut self, mail: QuicMail) {
        for (id, event) in mail.events.into_iter().chain(mail.datagrams) {
            self.pass_to_connection(id, event);
        }
        for (id, event) in mail.to_endpoint {
            if let Some(answer) = self.pass_to_endpoint(id, event) {
                self.pass_to_worker(id, answer);
            }
        }
    }

    /// Sends the mail of this tick.
    pub(super) fn send_quic_mail(&mut self) {
        for index in 0..self.quic.outgoing.len() {
            let mail = &mut self.quic.outgoing[index];
            let to = ShardId(index as u16);
            let datagrams = mail.take_datagrams();
            if mail.is_empty() && datagrams.is_none() {
                continue;
            }
            if !mail.is_empty() {
                let mail = std::mem::take(mail);
                self.send(to, MailboxItem::Quic(Box::new(mail)));
            }
            if let Some(datagrams) = datagrams {
                let count = datagrams.datagrams.len() as u64;
                if !self.send_lossy(to, MailboxItem::Quic(Box::new(datagrams))) {
                    self.counters.quic_datagrams_dropped += count;
                }
            }
            self.mailboxes[index].wake();
        }
    }
}
