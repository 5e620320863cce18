//! The network connections of a shard, by the slot that the driver has assigned.

use crate::connection::Connection;
use crate::slots::{ConnEpoch, ConnSlot};

#[derive(Default)]
pub struct Connections {
    slots: Vec<Option<Box<Connection>>>,
}

impl Connections {
    #[inline]
    pub fn get(&self, conn: ConnSlot) -> Option<&Connection> {
        self.slots.get(conn.index())?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, conn: ConnSlot) -> Option<&mut Connection> {
        self.slots.get_mut(conn.index())?.as_deref_mut()
    }

    /// Returns the connection in a slot if it has this epoch.
    pub fn live(&mut self, conn: ConnSlot, epoch: ConnEpoch) -> Option<&mut Connection> {
        self.get_mut(conn).filter(|connection| connection.epoch == epoch)
    }

    pub fn open(&mut self, conn: ConnSlot, connection: Connection) {
        if self.slots.len() <= conn.index() {
            self.slots.resize_with(conn.index() + 1, || None);
        }
        self.slots[conn.index()] = Some(Box::new(connection));
    }

    pub fn close(&mut self, conn: ConnSlot) {
        self.slots[conn.index()] = None;
    }

    /// Returns the slot after the last one.
    pub fn end(&self) -> ConnSlot {
        ConnSlot(self.slots.len() as u32)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ConnSlot, &mut Connection)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(index, connection)| Some((ConnSlot(index as u32), connection.as_deref_mut()?)))
    }
}
