//! Takes the place of `quic` in a build without QUIC. No value of these types exists.

use std::io::{self, IoSlice};

use broker::{CloseCause, ConnSlot, ShardId};
use mio::Registry;

use crate::connection::SocketConnection;
use crate::counters::EarlyCloseReason;
use crate::listener::ListenerSocket;
use crate::outlet::FlushResult;
use crate::server_common::ServerCommon;
use crate::socket::ConnectionSocket;
use crate::worker::NetWorker;

pub(crate) enum QuicConnection {}

pub(crate) enum DataStream {}

pub(crate) enum QuicMail {}

pub(crate) struct QuicWorker;

impl QuicConnection {
    pub(crate) fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn write(&mut self, _: &[IoSlice<'_>]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn is_peer_finished(&self) -> bool {
        match *self {}
    }

    pub(crate) fn finish(&mut self) {
        match *self {}
    }

    pub(crate) fn is_finishing(&self) -> bool {
        match *self {}
    }

    pub(crate) fn set_close_reason(&mut self, _: EarlyCloseReason) {
        match *self {}
    }
}

impl DataStream {
    pub(crate) fn control(&self) -> ConnSlot {
        match *self {}
    }

    pub(crate) fn is_peer_finished(&self) -> bool {
        match *self {}
    }

    pub(crate) fn is_finishing(&self) -> bool {
        match *self {}
    }
}

impl QuicMail {
    pub(crate) fn size_bytes(&self) -> usize {
        match *self {}
    }
}

impl QuicWorker {
    pub(crate) fn new(_: ShardId, _: &[ListenerSocket], _: &ServerCommon, _: &Registry) -> io::Result<QuicWorker> {
        Ok(QuicWorker)
    }

    pub(crate) fn socket_is_ready(&mut self, _: usize) {}

    pub(crate) fn stop_accepting(&mut self) {}

    pub(crate) fn has_no_connections(&self) -> bool {
        true
    }

    pub(crate) fn has_unread_datagrams(&self) -> bool {
        false
    }

    pub(crate) fn due_ms(&self, _: u64) -> Option<u64> {
        None
    }

    #[inline]
    pub(crate) fn touch(&mut self, _: ConnSlot, _: &mut ConnectionSocket) {}
}

impl NetWorker {
    pub(crate) fn receive_quic(&mut self) {}

    pub(crate) fn transmit_quic(&mut self) {}

    pub(crate) fn receive_quic_mail(&mut self, mail: QuicMail) {
        match mail {}
    }

    pub(crate) fn reload_quic(&mut self, _: usize) {}

    pub(crate) fn add_moved_quic(&mut self, _: ConnSlot) {}

    pub(crate) fn leave_quic(&mut self, _: &mut SocketConnection, _: ShardId) {}

    pub(crate) fn end_quic(&mut self, _: SocketConnection) {}

    pub(crate) fn read_data_stream(&mut self, _: ConnSlot, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn write_data_stream(&mut self, _: ConnSlot) -> io::Result<FlushResult> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn finish_data_stream(&mut self, _: ConnSlot) {}

    pub(crate) fn close_data_streams(&mut self, _: ConnSlot, _: CloseCause) {}
}
