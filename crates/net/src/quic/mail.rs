//! Messages between workers about QUIC connections.

use quinn_proto::{ConnectionEvent, ConnectionHandle, EndpointEvent};

/// A connection, by the index of its listener and its name in the endpoint.
pub(super) type QuicId = (u16, ConnectionHandle);

#[derive(Default)]
pub(crate) struct QuicMail {
    /// From the reader of a socket to the workers of its connections. May be lost.
    pub(super) datagrams: Vec<(QuicId, ConnectionEvent)>,
    pub(super) datagram_bytes: usize,
    /// From the reader as well: new connection IDs.
    pub(super) events: Vec<(QuicId, ConnectionEvent)>,
    /// From the worker of a connection to the reader.
    pub(super) to_endpoint: Vec<(QuicId, EndpointEvent)>,
}

impl QuicMail {
    pub(crate) fn size_bytes(&self) -> usize {
        self.datagram_bytes
    }

    /// Returns whether there is nothing that must arrive.
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.to_endpoint.is_empty()
    }

    /// Removes the datagrams, which are sent on their own.
    pub(super) fn take_datagrams(&mut self) -> Option<QuicMail> {
        let datagrams = std::mem::take(&mut self.datagrams);
        let datagram_bytes = std::mem::take(&mut self.datagram_bytes);
        (!datagrams.is_empty()).then(|| QuicMail {
            datagrams,
            datagram_bytes,
            ..QuicMail::default()
        })
    }
}
