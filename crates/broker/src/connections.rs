//! The network connections of a shard, by the slot that the driver has assigned.

use crate::connection::Connection;
use crate::effect::{Effect, Now};
use crate::slots::{ConnEpoch, ConnSlot};

#[derive(Default)]
pub struct Connections {
    slots: Vec<Option<Box<Connection>>>,
    /// Monotonic time until which nothing was read from clients.
    not_reading_ms: u64,
    /// Connections from which reading is paused until the journal or the tap accepts messages again.
    paused: Vec<ConnSlot>,
    /// While the shard shuts down, the next connection to end.
    shut_down_at: Option<ConnSlot>,
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

    pub fn is_data_stream(&self, conn: ConnSlot) -> bool {
        self.get(conn).is_some_and(Connection::is_data_stream)
    }

    /// Returns the slots of a connection's data streams.
    pub fn data_streams_of(&self, control: ConnSlot) -> Vec<ConnSlot> {
        let own = self.get(control);
        own.map_or(Vec::new(), |own| own.streams.data_streams().to_vec())
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

    /// Pauses reading from a publisher until the journal or the tap accepts messages again.
    pub fn pause_for_journal(&mut self, conn: ConnSlot) {
        if let Some(connection) = self.get_mut(conn)
            && !std::mem::replace(&mut connection.is_held_by_journal, true)
        {
            self.paused.push(conn);
        }
    }

    /// Resumes reading from MQTT 3.1 and 3.1.1 publishers, which cannot receive a reason code.
    pub fn resume_paused(&mut self, effects: &mut Vec<Effect>) {
        for conn in std::mem::take(&mut self.paused) {
            if let Some(connection) = self.get_mut(conn) {
                connection.is_held_by_journal = false;
            }
            effects.push(Effect::Resume { conn });
        }
    }

    /// Returns an alias for a topic, as `Aliases::for_topic`.
    pub fn alias_for(&mut self, conn: ConnSlot, topic: &str) -> Option<u16> {
        self.get_mut(conn)?.aliases.as_mut()?.for_topic(topic)
    }

    /// Withdraws an alias that the client has not received.
    pub fn forget_alias(&mut self, conn: ConnSlot, topic: &str) {
        if let Some(aliases) = self.get_mut(conn).and_then(|c| c.aliases.as_mut()) {
            aliases.outgoing.remove(topic);
        }
    }

    /// Nothing is read from clients now, so keep-alive times do not run.
    pub fn is_not_reading(&mut self, now: Now) {
        self.not_reading_ms = now.monotonic_ms;
    }

    /// Returns the time until which nothing was read from clients, in monotonic milliseconds.
    pub fn not_reading_ms(&self) -> u64 {
        self.not_reading_ms
    }

    /// Returns whether new connections are rejected because the shard shuts down.
    pub fn are_shutting_down(&self) -> bool {
        self.shut_down_at.is_some()
    }

    /// Starts or continues to shut down. Returns the next `limit` slots, whose connections must end, and whether there
    /// are more.
    pub fn shut_down(&mut self, limit: usize) -> (impl Iterator<Item = ConnSlot> + use<>, bool) {
        let slots = self.slots.len() as u32;
        let from = self.shut_down_at.map_or(0, |slot| slot.0);
        let end = from.saturating_add(limit as u32).min(slots);
        self.shut_down_at = Some(ConnSlot(end));
        ((from..end).map(ConnSlot), end < slots)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (ConnSlot, &mut Connection)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(index, connection)| Some((ConnSlot(index as u32), connection.as_deref_mut()?)))
    }
}
