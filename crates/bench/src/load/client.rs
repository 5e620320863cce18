//! One simulated client: its connection, if it has one, and what outlives a connection.

use std::sync::Arc;

use super::flow::Flow;
use super::link::Link;
use super::others::Others;
use super::outbound::{Inbound, Outbound};
use super::plan::GroupPlan;
use super::sources::Sources;
use super::tcp_info::Segments;

pub struct Client {
    pub group: u16,
    /// Among all of its group, on all machines.
    pub index: u32,
    /// Among those of its group that this worker has.
    pub place: u32,
    pub state: State,
    pub link: Option<Link>,
    /// Counts connections, so that timers of earlier ones are known.
    pub epoch: u32,
    /// The beginning of a packet whose end has not come.
    pub rest: Vec<u8>,
    /// Packets for the socket, of which `out_taken` bytes have left.
    pub out: Vec<u8>,
    pub out_taken: usize,
    /// When the connection, later the SUBSCRIBE, began.
    pub begun_ns: u64,
    pub last_out_ns: u64,
    pub last_in_ns: u64,
    /// When the last PINGREQ was written; 0 without.
    pub pinged_ns: u64,
    /// In seconds, as the server wants it.
    pub keep_alive_s: u16,
    /// Data segments that are counted already.
    pub segments: Segments,
    pub attempts: u8,
    /// Somebody waits until it is ready or given up.
    pub is_awaited: bool,
    /// Its subscriptions were made by an earlier connection.
    pub has_subscribed: bool,
    pub is_dirty: bool,
    pub is_hot: bool,
    /// The peer has ended its side: reading goes on until the end is read.
    pub sees_end: bool,
    pub is_publisher: bool,
    pub publisher: Option<Box<Publisher>>,
    pub subscriber: Option<Box<Subscriber>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Without a connection, and it wants none now.
    Away,
    /// Waits for its turn to connect, or for the end of a pause after a failure.
    Queued,
    Connecting,
    /// TLS and WebSocket handshakes.
    Opening,
    AwaitsConnAck,
    AwaitsSubAck,
    Ready,
    /// DISCONNECT has left; the server closes.
    Leaving,
    /// Given up, or lost and not to come back.
    Gone,
}

pub struct Publisher {
    pub sender: u32,
    pub client_id: Box<str>,
    /// Messages that have left; the next one's sequence number.
    pub sent: u32,
    /// Messages that were due (open model).
    pub due: u32,
    /// Messages that were counted as published and have to leave once more.
    pub recount: u32,
    /// Unacknowledged messages that the scenario and the server permit.
    pub window: u32,
    pub outbound: Outbound,
    /// Deliveries that are no longer waited for, and how many there were at the last look (QoS 0 with a window).
    pub written_off: u64,
    pub delivered_before: u64,
}

pub struct Subscriber {
    pub sources: Arc<Sources>,
    pub flows: Box<[Flow]>,
    pub shares: Vec<ShareMember>,
    pub inbound: Inbound,
    /// Where proofs of other processes are followed.
    pub others: Option<Box<Others>>,
    /// The server has refused one of its subscriptions.
    pub is_refused: bool,
}

/// Order can only be judged per connection of a shared subscription.
pub struct ShareMember {
    pub share: u32,
    /// By position in the share's sources: one more than the highest sequence number that came here.
    pub next: Box<[u32]>,
}

impl Client {
    pub fn new(group: &GroupPlan, number: u16, index: u32, place: u32) -> Client {
        Client {
            group: number,
            index,
            place,
            state: State::Away,
            link: None,
            epoch: 0,
            rest: Vec::new(),
            out: Vec::new(),
            out_taken: 0,
            begun_ns: 0,
            last_out_ns: 0,
            last_in_ns: 0,
            pinged_ns: 0,
            keep_alive_s: group.group.keep_alive_s,
            segments: Segments::default(),
            attempts: 0,
            is_awaited: false,
            has_subscribed: false,
            is_dirty: false,
            is_hot: false,
            sees_end: false,
            is_publisher: group.publishing.is_some(),
            publisher: None,
            subscriber: None,
        }
    }

    pub fn pending_out(&self) -> usize {
        self.out.len() - self.out_taken
    }

    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::AwaitsSubAck | State::Ready | State::Leaving)
    }

    /// Waits for nothing that a connection in this state could still bring.
    pub fn has_finished(&self) -> bool {
        matches!(self.state, State::Away | State::Gone)
    }

    /// How much of `out` are packets that left whole; what is behind was not sent.
    pub fn whole_packets_taken(&self) -> usize {
        let mut at = 0;
        while let Some(size) = packet_size(&self.out[at..]).filter(|size| at + size <= self.out_taken) {
            at += size;
        }
        at
    }

    /// QoS 0 messages among the packets that did not leave whole.
    pub fn unsent_qos0(&self) -> u32 {
        let mut at = self.whole_packets_taken();
        let mut count = 0;
        while let Some(size) = packet_size(&self.out[at..]) {
            // PUBLISH with QoS 0.
            count += u32::from(self.out[at] & 0b1111_0110 == 0x30);
            at += size;
        }
        count
    }
}

/// Size of the first packet in a buffer of packets that were encoded here.
fn packet_size(bytes: &[u8]) -> Option<usize> {
    let mut remaining = 0;
    for (place, &byte) in bytes.get(1..)?.iter().take(4).enumerate() {
        remaining |= usize::from(byte & 0x7F) << (7 * place);
        if byte < 0x80 {
            return Some(2 + place + remaining);
        }
    }
    None
}
