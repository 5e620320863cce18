//! Messages of other runs of this tool, for `bench sub` in one process and `bench pub` in another.
//!
//! In a job without publishers, each publisher that the verification headers name (by run and sender) makes one flow
//! per subscriber. Within such a flow, every sequence number between its first and its last message here is expected: a
//! missing one was lost, a repeated one is a duplicate. A message before the first or after the last one is
//! unknown, so it is not expected. The due time in the header is wall-clock time, so latencies are as exact as the
//! clocks of the two machines agree.
//!
//! Two kinds of messages are counted as unverified: retained messages, which may have any age; and messages to a client
//! with a shared subscription, because the flow is divided among the members. For the second kind the latency is
//! recorded nevertheless.

use std::collections::HashMap;
use std::ops::Range;

use mqtt::Publish;

use super::flow::{Arrival, FlowGaps, MessageFlow};
use super::truth::{HEADER_BYTES, SenderNumber, VerificationHeader, find_hex};

/// Most flows of one worker; messages of further flows are counted as unverified.
const FLOWS_MAX: usize = 4_000_000;
/// Greatest plausible age. Bytes that only look like a header contain a random time, which is likely older than this.
const AGE_MAX_NS: u64 = 3_600_000_000_000;

/// The messages that one subscriber has received from other runs.
#[derive(Debug, Default)]
pub struct OtherRuns {
    flows: HashMap<ForeignPublisher, OtherFlow>,
    /// The subscriber has a shared subscription.
    is_divided: bool,
}

/// A publisher as the verification header names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ForeignPublisher {
    run: u16,
    sender: SenderNumber,
}

#[derive(Debug)]
struct OtherFlow {
    first: u32,
    flow: MessageFlow,
}

/// The result of one flow.
#[derive(Debug, PartialEq, Eq)]
pub struct FlowResult {
    pub publisher: String,
    pub expected: u64,
    pub lost: u64,
    pub missing: Vec<Range<u32>>,
}

/// The result of checking one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifiedMessage {
    /// A correct message, with its age at arrival.
    Message { age_ns: u64 },
    /// A correct message of a flow that is divided among the members of a shared subscription.
    Part { age_ns: u64 },
    /// A message of a known publisher whose bytes differ from those that it sent.
    Corrupt,
    /// A message that cannot be checked: of another program, retained, or above the limit of flows.
    No,
}

impl OtherRuns {
    pub fn new(is_divided: bool) -> OtherRuns {
        OtherRuns {
            is_divided,
            ..OtherRuns::default()
        }
    }

    /// Checks a message. `now_ns` is wall-clock time ([`super::plan::Plan::stamp`]).
    pub fn take(&mut self, publish: &Publish<'_>, now_ns: u64, gaps: &mut FlowGaps) -> VerifiedMessage {
        if publish.retain {
            return VerifiedMessage::No;
        }
        let payload = publish.payload;
        let (header, is_whole) = match header_of(payload) {
            Some(header) if header.has_filled(&payload[HEADER_BYTES..]) => (header, true),
            other => match find_hex(payload, |_| true).or(other) {
                Some(header) => (header, other.is_none()),
                None => return VerifiedMessage::No,
            },
        };
        let publisher = ForeignPublisher {
            run: header.run,
            sender: header.sender,
        };
        if !is_whole {
            return match self.flows.contains_key(&publisher) {
                true => VerifiedMessage::Corrupt,
                false => VerifiedMessage::No,
            };
        }
        let Some(age_ns) = age_ns(header.due_ns, now_ns) else {
            return VerifiedMessage::No;
        };
        if self.is_divided {
            return VerifiedMessage::Part { age_ns };
        }
        match self.follow(publisher, header.sequence, gaps) {
            true => VerifiedMessage::Message { age_ns },
            false => VerifiedMessage::No,
        }
    }

    fn follow(&mut self, publisher: ForeignPublisher, sequence: u32, gaps: &mut FlowGaps) -> bool {
        if let Some(known) = self.flows.get_mut(&publisher) {
            if sequence >= known.first {
                gaps.arrive(&mut known.flow, sequence);
            } else {
                // It was sent before the message that arrived first.
                gaps.reordered += 1;
            }
            return true;
        }
        if gaps.followed >= FLOWS_MAX {
            return false;
        }
        gaps.followed += 1;
        let mut flow = MessageFlow::starting_at(sequence);
        let arrival = gaps.arrive(&mut flow, sequence);
        debug_assert_eq!(arrival, Arrival::First);
        self.flows.insert(publisher, OtherFlow { first: sequence, flow });
        true
    }

    pub fn results<'a>(&'a self, gaps: &'a FlowGaps) -> impl Iterator<Item = FlowResult> + 'a {
        self.flows.iter().map(move |(publisher, known)| {
            let (missing, given_up) = gaps.missing(&known.flow, known.first..known.flow.next);
            let missing_count: u64 = missing.iter().map(|range| range.len() as u64).sum();
            FlowResult {
                publisher: format!("publisher {} of run {:04x}", publisher.sender.0, publisher.run),
                expected: u64::from(known.flow.next - known.first),
                lost: missing_count + given_up,
                missing,
            }
        })
    }
}

fn header_of(payload: &[u8]) -> Option<VerificationHeader> {
    VerificationHeader::decode(payload.first_chunk::<HEADER_BYTES>()?, payload.len())
}

/// Returns the age of a message; `None` if it is implausible. If the publisher's clock is ahead, the age is 0.
fn age_ns(due_ns: u64, now_ns: u64) -> Option<u64> {
    let difference = VerificationHeader::difference_ns(now_ns, due_ns);
    (difference.unsigned_abs() < AGE_MAX_NS).then_some(difference.max(0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(sender: u32, sequence: u32, due_ns: u64) -> Vec<u8> {
        let header = VerificationHeader {
            run: 0xABCD,
            sender: SenderNumber(sender),
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
    fn flow_of_other_run_expects_first_to_last_message() {
        let (mut others, mut gaps) = (OtherRuns::default(), FlowGaps::default());
        for sequence in [57, 58, 60, 62, 61, 62, 70, 56] {
            let payload = payload(3, sequence, 1_000);
            let verified = others.take(&publish(&payload), 1_500, &mut gaps);
            assert_eq!(verified, VerifiedMessage::Message { age_ns: 500 });
        }
        let results: Vec<FlowResult> = others.results(&gaps).collect();
        let expected = FlowResult {
            publisher: "publisher 3 of run abcd".into(),
            expected: 14,
            lost: 8,
            missing: vec![59..60, 63..70],
        };
        assert_eq!(results, [expected]);
        assert_eq!((gaps.duplicated, gaps.reordered), (1, 2));
    }

    #[test]
    fn take_of_foreign_or_damaged_message_is_classified() {
        let (mut others, mut gaps) = (OtherRuns::default(), FlowGaps::default());
        let mut take = |payload: &[u8], now_ns| others.take(&publish(payload), now_ns, &mut gaps);
        let mut damaged = payload(1, 0, 5);
        damaged[40] ^= 1;
        assert_eq!(take(&damaged, 5), VerifiedMessage::No, "of an unknown publisher");
        assert_eq!(take(b"any other program's message", 5), VerifiedMessage::No);
        assert_eq!(take(&payload(1, 0, 5), 5), VerifiedMessage::Message { age_ns: 0 });
        assert_eq!(take(&damaged, 5), VerifiedMessage::Corrupt);
        assert_eq!(take(&payload(1, 1, 5), 5 + AGE_MAX_NS), VerifiedMessage::No, "too old");
        // The publisher's clock is ahead, and both wrap around at 48 bits.
        assert_eq!(take(&payload(1, 1, 20), 5), VerifiedMessage::Message { age_ns: 0 });
        assert_eq!(
            take(&payload(1, 2, (1 << 48) - 10), 5),
            VerifiedMessage::Message { age_ns: 15 }
        );
        let mut retained_payload = publish(b"");
        let bytes = payload(1, 3, 5);
        (retained_payload.payload, retained_payload.retain) = (&bytes, true);
        assert_eq!(others.take(&retained_payload, 5, &mut gaps), VerifiedMessage::No);
        let results: Vec<FlowResult> = others.results(&gaps).collect();
        assert_eq!((results.len(), results[0].expected, results[0].lost), (1, 3, 0));
    }

    #[test]
    fn take_with_shared_subscription_returns_age_only() {
        let (mut others, mut gaps) = (OtherRuns::new(true), FlowGaps::default());
        for sequence in [4, 9] {
            let payload = payload(1, sequence, 5);
            let verified = others.take(&publish(&payload), 12, &mut gaps);
            assert_eq!(verified, VerifiedMessage::Part { age_ns: 7 });
        }
        assert_eq!(others.results(&gaps).count(), 0);
    }
}
