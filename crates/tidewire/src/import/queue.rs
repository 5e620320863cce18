//! The order of the messages of a session, and a number for each message, which determines its packet identifier:
//! messages in flight keep the identifier that their client knows.

use broker::durable::record::Seq;

use super::mosquitto::{MosquittoQueued, MosquittoState};

/// Packet identifiers go in a circle of so many.
const IDS: u64 = u16::MAX as u64;

pub struct ImportedQueue<'a, 'd> {
    /// With their numbers, ascending.
    pub entries: Vec<(Seq, &'a MosquittoQueued<'d>)>,
    /// Entries up to this one have been sent before.
    pub started: Seq,
    pub next_seq: Seq,
}

impl<'a, 'd> ImportedQueue<'a, 'd> {
    /// From outgoing messages in their order.
    pub fn new(outgoing: &[&'a MosquittoQueued<'d>]) -> ImportedQueue<'a, 'd> {
        let (in_flight, waiting): (Vec<_>, Vec<_>) = outgoing.iter().copied().partition(|queued| is_in_flight(queued));
        let first = in_flight.first().map_or(1, |queued| u64::from(queued.packet_id));
        let mut entries: Vec<(Seq, &MosquittoQueued<'_>)> = in_flight
            .into_iter()
            .map(|queued| (first + (u64::from(queued.packet_id) + IDS - first) % IDS, queued))
            .collect();
        entries.sort_by_key(|(seq, _)| *seq);
        // An identifier that is used twice is an error of the file.
        entries.dedup_by_key(|(seq, _)| *seq);
        let started = entries.last().map_or(0, |(seq, _)| *seq);
        entries.extend((started + 1..).zip(waiting));
        ImportedQueue {
            next_seq: entries.last().map_or(0, |(seq, _)| *seq) + 1,
            entries,
            started,
        }
    }
}

fn is_in_flight(queued: &MosquittoQueued<'_>) -> bool {
    queued.state != MosquittoState::Queued && queued.packet_id != 0 && queued.qos > 0
}
