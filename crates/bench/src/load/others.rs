//! Messages of other processes of this tool: `bench sub` beside `bench pub`, each on its own.
//!
//! Where a job publishes nothing itself, every proof of another run makes a flow of its own: publisher and subscriber, found by the run and
//! the sender that the proof names. Of such a flow is known what came between its first and its last message here: a sequence number that
//! is missing in between was lost, one that comes again is a duplicate. What was sent before the first or after the last, nobody here can
//! know, and nothing is expected there. The proof's time is on the wall clock, so that latencies hold as far as the clocks agree.
//!
//! Not followed, but counted as unverified: retained messages, which may be of any age; and what comes to a client with a shared
//! subscription, because its flows are divided among the members. Of the latter the latency is known all the same.

use std::collections::HashMap;
use std::ops::Range;

use mqtt::Publish;

use super::flow::{Arrival, Flow, Ledger};
use super::truth::{HEADER_BYTES, Header, find_hex};

/// Of one worker; messages of further flows are counted, not verified.
const FLOWS_MAX: usize = 4_000_000;
/// An accidental proof has an accidental time; one that is older than this is taken for such.
const AGE_MAX_NS: u64 = 3_600_000_000_000;

/// What one subscriber has heard of others.
#[derive(Debug, Default)]
pub struct Others {
    flows: HashMap<Publisher, OtherFlow>,
    /// It has a shared subscription.
    is_divided: bool,
}

/// As the proof names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Publisher {
    run: u16,
    sender: u32,
}

#[derive(Debug)]
struct OtherFlow {
    first: u32,
    flow: Flow,
}

/// One flow at the end.
#[derive(Debug, PartialEq, Eq)]
pub struct Heard {
    pub publisher: String,
    pub expected: u64,
    pub lost: u64,
    pub missing: Vec<Range<u32>>,
}

/// What a message was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// How old it was when it came.
    Message { age_ns: u64 },
    /// The same, of a flow that others have a part of.
    Part { age_ns: u64 },
    /// Of a publisher that is known, with other bytes than it sends.
    Corrupt,
    /// Made by another program, retained, or too much to follow.
    No,
}

impl Others {
    pub fn new(is_divided: bool) -> Others {
        Others {
            is_divided,
            ..Others::default()
        }
    }

    /// `now_ns` on the clock of proofs ([`super::plan::Plan::stamp`]).
    pub fn take(&mut self, publish: &Publish<'_>, now_ns: u64, ledger: &mut Ledger) -> Verified {
        if publish.retain {
            return Verified::No;
        }
        let payload = publish.payload;
        let (header, is_whole) = match header_of(payload) {
            Some(header) if header.has_filled(&payload[HEADER_BYTES..]) => (header, true),
            other => match find_hex(payload, |_| true).or(other) {
                Some(header) => (header, other.is_none()),
                None => return Verified::No,
            },
        };
        let publisher = Publisher {
            run: header.run,
            sender: header.sender,
        };
        if !is_whole {
            return match self.flows.contains_key(&publisher) {
                true => Verified::Corrupt,
                false => Verified::No,
            };
        }
        let Some(age_ns) = age_ns(header.due_ns, now_ns) else {
            return Verified::No;
        };
        if self.is_divided {
            return Verified::Part { age_ns };
        }
        match self.follow(publisher, header.sequence, ledger) {
            true => Verified::Message { age_ns },
            false => Verified::No,
        }
    }

    fn follow(&mut self, publisher: Publisher, sequence: u32, ledger: &mut Ledger) -> bool {
        if let Some(known) = self.flows.get_mut(&publisher) {
            if sequence >= known.first {
                ledger.arrive(&mut known.flow, sequence);
            } else {
                // It was sent before the one that was taken for the first.
                ledger.reordered += 1;
            }
            return true;
        }
        if ledger.followed >= FLOWS_MAX {
            return false;
        }
        ledger.followed += 1;
        let mut flow = Flow::starting_at(sequence);
        let arrival = ledger.arrive(&mut flow, sequence);
        debug_assert_eq!(arrival, Arrival::First);
        self.flows.insert(publisher, OtherFlow { first: sequence, flow });
        true
    }

    pub fn heard<'a>(&'a self, ledger: &'a Ledger) -> impl Iterator<Item = Heard> + 'a {
        self.flows.iter().map(move |(publisher, known)| {
            let (missing, given_up) = ledger.missing(&known.flow, known.first..known.flow.next);
            let missing_count: u64 = missing.iter().map(|range| range.len() as u64).sum();
            Heard {
                publisher: format!("publisher {} of run {:04x}", publisher.sender, publisher.run),
                expected: u64::from(known.flow.next - known.first),
                lost: missing_count + given_up,
                missing,
            }
        })
    }
}

fn header_of(payload: &[u8]) -> Option<Header> {
    Header::decode(payload.first_chunk::<HEADER_BYTES>()?, payload.len())
}

/// `None` when it is implausible. A clock that is behind the publisher's makes no message younger than none.
fn age_ns(due_ns: u64, now_ns: u64) -> Option<u64> {
    let difference = Header::difference_ns(now_ns, due_ns);
    (difference.unsigned_abs() < AGE_MAX_NS).then_some(difference.max(0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(sender: u32, sequence: u32, due_ns: u64) -> Vec<u8> {
        let header = Header {
            run: 0xABCD,
            sender,
            sequence,
            due_ns,
        };
        let mut payload = header.encode(64).to_vec();
        payload.resize(64, 0);
        header.fill(&mut payload[HEADER_BYTES..]);
        payload
    }

    fn publish(payload: &[u8]) -> Publish<'_> {
        Publish {
            dup: false,
            qos: mqtt::QoS::AtMostOnce,
            retain: false,
            topic: "a",
            packet_id: None,
            properties: mqtt::Properties::EMPTY,
            payload,
        }
    }

    #[test]
    fn a_flow_is_known_from_its_first_message_to_its_last() {
        let (mut others, mut ledger) = (Others::default(), Ledger::default());
        for sequence in [57, 58, 60, 62, 61, 62, 70, 56] {
            let payload = payload(3, sequence, 1_000);
            let verified = others.take(&publish(&payload), 1_500, &mut ledger);
            assert_eq!(verified, Verified::Message { age_ns: 500 });
        }
        let heard: Vec<Heard> = others.heard(&ledger).collect();
        let expected = Heard {
            publisher: "publisher 3 of run abcd".into(),
            expected: 14,
            lost: 8,
            missing: vec![59..60, 63..70],
        };
        assert_eq!(heard, [expected]);
        assert_eq!((ledger.duplicated, ledger.reordered), (1, 2));
    }

    #[test]
    fn what_is_no_proof_is_not_verified_and_what_is_damaged_is_corrupt() {
        let (mut others, mut ledger) = (Others::default(), Ledger::default());
        let mut take = |payload: &[u8], now_ns| others.take(&publish(payload), now_ns, &mut ledger);
        let mut damaged = payload(1, 0, 5);
        damaged[40] ^= 1;
        assert_eq!(take(&damaged, 5), Verified::No, "of somebody unknown");
        assert_eq!(take(b"any other program's message", 5), Verified::No);
        assert_eq!(take(&payload(1, 0, 5), 5), Verified::Message { age_ns: 0 });
        assert_eq!(take(&damaged, 5), Verified::Corrupt);
        assert_eq!(take(&payload(1, 1, 5), 5 + AGE_MAX_NS), Verified::No, "too old");
        // The publisher's clock is ahead, and both go round after 48 bits.
        assert_eq!(take(&payload(1, 1, 20), 5), Verified::Message { age_ns: 0 });
        assert_eq!(
            take(&payload(1, 2, (1 << 48) - 10), 5),
            Verified::Message { age_ns: 15 }
        );
        let mut retained_payload = publish(b"");
        let bytes = payload(1, 3, 5);
        (retained_payload.payload, retained_payload.retain) = (&bytes, true);
        assert_eq!(others.take(&retained_payload, 5, &mut ledger), Verified::No);
        let heard: Vec<Heard> = others.heard(&ledger).collect();
        assert_eq!((heard.len(), heard[0].expected, heard[0].lost), (1, 3, 0));
    }

    #[test]
    fn of_shared_subscriptions_only_the_latency_is_known() {
        let (mut others, mut ledger) = (Others::new(true), Ledger::default());
        for sequence in [4, 9] {
            let payload = payload(1, sequence, 5);
            let verified = others.take(&publish(&payload), 12, &mut ledger);
            assert_eq!(verified, Verified::Part { age_ns: 7 });
        }
        assert_eq!(others.heard(&ledger).count(), 0);
    }
}
