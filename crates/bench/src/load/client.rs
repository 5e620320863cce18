//! One simulated client: its connection, if it has one, and the state that survives a connection.

use std::sync::Arc;

use mqtt_client::ClientSession;

use super::flow::MessageFlow;
use super::link::LoadLink;
use super::others::OtherRuns;
use super::outbound::{MESSAGE_IDS, PendingPublish, UnacceptedMessages};
use super::plan::GroupPlan;
use super::sources::SenderRanges;
use super::tcp_info::Segments;
use super::truth::SenderNumber;
use crate::driver::{ClientIndex, GroupIndex};

/// Slot of a client in its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientSlot(pub u32);

impl ClientSlot {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Distinguishes a connection of a client from its earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectEpoch(u32);

impl ConnectEpoch {
    pub fn next(self) -> ConnectEpoch {
        ConnectEpoch(self.0.wrapping_add(1))
    }
}

pub struct LoadClient {
    pub group: GroupIndex,
    pub index: ClientIndex,
    /// The index among the clients of the group that this worker has.
    pub group_index: u32,
    pub state: LoadClientState,
    pub link: Option<LoadLink>,
    /// Counts connections, so that timers of earlier connections are recognized.
    pub epoch: ConnectEpoch,
    /// The beginning of a packet that has not arrived completely.
    pub rest: Vec<u8>,
    /// Packets for the socket; the first `out_taken` bytes are sent.
    pub out: Vec<u8>,
    pub out_taken: usize,
    /// When the connection attempt, later the SUBSCRIBE, began.
    pub begun_ns: u64,
    pub session: ClientSession<PendingPublish>,
    /// Data segments that are already in the counts.
    pub segments: Segments,
    pub attempts: u8,
    /// A phase ends only when this client is ready or given up.
    pub is_awaited: bool,
    /// An earlier connection has made the subscriptions.
    pub has_subscribed: bool,
    pub is_dirty: bool,
    pub is_readable: bool,
    /// The peer has closed its side; data that arrived before is still to be read.
    pub is_peer_closed: bool,
    pub is_publisher: bool,
    pub publisher: Option<Box<LoadPublisher>>,
    pub subscriber: Option<Box<LoadSubscriber>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadClientState {
    /// Has no connection and does not connect now.
    Absent,
    /// Waits for its turn to connect, or for the end of the pause after a failure.
    Queued,
    Connecting,
    /// In the TLS and WebSocket handshakes.
    Opening,
    AwaitsConnAck,
    AwaitsSubAck,
    Ready,
    /// DISCONNECT is sent; waits for the server to close.
    Disconnecting,
    /// Given up, or lost without a reconnect.
    GivenUp,
}

pub struct LoadPublisher {
    pub sender: SenderNumber,
    pub client_id: Box<str>,
    /// Messages that were sent: the sequence number of the next one.
    pub sent: u32,
    /// Messages that were due (open model).
    pub due: u32,
    /// QoS 0 messages that were counted as published, were not sent, and must be sent without being counted again.
    pub recount: u32,
    /// Unacknowledged messages that the scenario and the server allow.
    pub window: u32,
    pub unaccepted: UnacceptedMessages,
    /// Deliveries that are no longer expected, and the deliveries at the last check (QoS 0 with a window).
    pub abandoned_deliveries: u64,
    pub delivered_before: u64,
}

pub struct LoadSubscriber {
    pub sources: Arc<SenderRanges>,
    pub flows: Box<[MessageFlow]>,
    pub shares: Vec<ShareMember>,
    /// Checks the messages of other runs; present in a job without publishers.
    pub other_runs: Option<Box<OtherRuns>>,
    /// The server refused one of the subscriptions.
    pub is_refused: bool,
}

/// A member of a shared subscription. Order can be checked only per connection.
pub struct ShareMember {
    pub share: u32,
    /// By position in the sources of the shared subscription: one more than the highest sequence number that arrived
    /// here.
    pub next: Box<[u32]>,
}

impl LoadClient {
    pub fn new(group: &GroupPlan, number: GroupIndex, index: ClientIndex, place: u32) -> LoadClient {
        LoadClient {
            group: number,
            index,
            group_index: place,
            state: LoadClientState::Absent,
            link: None,
            epoch: ConnectEpoch::default(),
            rest: Vec::new(),
            out: Vec::new(),
            out_taken: 0,
            begun_ns: 0,
            session: ClientSession::new(group.version, MESSAGE_IDS),
            segments: Segments::default(),
            attempts: 0,
            is_awaited: false,
            has_subscribed: false,
            is_dirty: false,
            is_readable: false,
            is_peer_closed: false,
            is_publisher: group.publishing.is_some(),
            publisher: None,
            subscriber: None,
        }
    }

    pub fn pending_out(&self) -> usize {
        self.out.len() - self.out_taken
    }

    pub fn is_connected(&self) -> bool {
        matches!(
            self.state,
            LoadClientState::AwaitsSubAck | LoadClientState::Ready | LoadClientState::Disconnecting
        )
    }

    /// Whether the client needs nothing more from a connection.
    pub fn has_finished(&self) -> bool {
        matches!(self.state, LoadClientState::Absent | LoadClientState::GivenUp)
    }

    /// Gives all messages in flight up, because the session is lost or the run ends: their delivery is not guaranteed.
    pub fn give_up_messages(&mut self) {
        if let (Some(publisher), Some(in_flight)) = (&mut self.publisher, self.session.in_flight()) {
            for pending in in_flight.iter() {
                publisher.unaccepted.push(pending.message.sequence);
            }
        }
        self.session.drop_in_flight();
    }

    /// Returns the size of the packets at the start of `out` that are sent completely; the rest counts as not sent.
    pub fn whole_packets_taken(&self) -> usize {
        let mut at = 0;
        while let Some(size) = packet_size(&self.out[at..]).filter(|size| at + size <= self.out_taken) {
            at += size;
        }
        at
    }

    /// Counts the QoS 0 messages among the packets that are not sent completely.
    pub fn unsent_qos0(&self) -> u32 {
        let mut at = self.whole_packets_taken();
        let mut count = 0;
        while let Some(size) = packet_size(&self.out[at..]) {
            // A PUBLISH with QoS 0.
            count += u32::from(self.out[at] & 0b1111_0110 == 0x30);
            at += size;
        }
        count
    }
}

/// Returns the size of the first packet in a buffer of packets that this process encoded.
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
