//! Which stream of a QUIC connection a connection of the shard is (`data_streams.rs`).

use crate::slots::ConnSlot;

/// Which stream of a QUIC connection this is.
#[derive(Debug, Default)]
pub enum StreamRole {
    /// The only one, also with another transport.
    #[default]
    Only,
    /// The control stream of a connection with these data streams.
    #[expect(clippy::box_collection, reason = "a connection without data streams stays small")]
    Control(Box<Vec<ConnSlot>>),
    /// A data stream of the connection with this control stream.
    Data(ConnSlot),
}

impl StreamRole {
    /// Returns the slots of the connection's data streams.
    pub fn data_streams(&self) -> &[ConnSlot] {
        match self {
            StreamRole::Control(slots) => slots,
            StreamRole::Only | StreamRole::Data(_) => &[],
        }
    }

    pub fn add(&mut self, conn: ConnSlot) {
        match self {
            StreamRole::Control(slots) => slots.push(conn),
            StreamRole::Only | StreamRole::Data(_) => *self = StreamRole::Control(Box::new(vec![conn])),
        }
    }

    pub fn remove(&mut self, conn: ConnSlot) {
        if let StreamRole::Control(slots) = self {
            slots.retain(|other| *other != conn);
        }
    }

    /// Removes and returns the data streams.
    pub fn take_data_streams(&mut self) -> Vec<ConnSlot> {
        match self {
            StreamRole::Control(slots) => std::mem::take(slots),
            StreamRole::Only | StreamRole::Data(_) => Vec::new(),
        }
    }
}
