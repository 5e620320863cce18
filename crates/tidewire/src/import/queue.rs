//! The order of one session's messages, and a number for each from which its packet identifier follows: what is in flight keeps the
//! one that its client knows.

use broker::durable::record::Seq;

use super::mosquitto::{Queued, State};

/// Packet identifiers go in a circle of so many.
const IDS: u64 = u16::MAX as u64;

pub struct Queue<'a, 'd> {
    /// With their numbers, ascending.
    pub entries: Vec<(Seq, &'a Queued<'d>)>,
    /// Entries up to this one have been sent before.
    pub started: Seq,
    pub next_seq: Seq,
}

impl<'a, 'd> Queue<'a, 'd> {
    /// From outgoing messages in their order.
    pub fn new(outgoing: &[&'a Queued<'d>]) -> Queue<'a, 'd> {
        let (in_flight, waiting): (Vec<_>, Vec<_>) = outgoing.iter().copied().partition(|queued| is_in_flight(queued));
        let first = in_flight.first().map_or(1, |queued| u64::from(queued.packet_id));
        let mut entries: Vec<(Seq, &Queued<'_>)> = in_flight
            .into_iter()
            .map(|queued| (first + (u64::from(queued.packet_id) + IDS - first) % IDS, queued))
            .collect();
        entries.sort_by_key(|(seq, _)| *seq);
        // An identifier that is used twice is an error of the file.
        entries.dedup_by_key(|(seq, _)| *seq);
        let started = entries.last().map_or(0, |(seq, _)| *seq);
        entries.extend((started + 1..).zip(waiting));
        Queue {
            next_seq: entries.last().map_or(0, |(seq, _)| *seq) + 1,
            entries,
            started,
        }
    }
}

fn is_in_flight(queued: &Queued<'_>) -> bool {
    queued.state != State::Queued && queued.packet_id != 0 && queued.qos > 0
}
