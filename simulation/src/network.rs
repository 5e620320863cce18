//! The network: two byte queues per connection, and the state of both ends.
//!
//! A queue models the socket buffers and the wire. Bytes stay in order and are read in pieces of any size. A reset
//! loses bytes in transit; a FIN follows them.

use std::collections::VecDeque;
use std::fmt;

use storage::model::Random;

use crate::client::ClientIndex;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEnd {
    Open,
    /// FIN after the bytes in transit.
    Finished,
    /// RST: bytes in transit are lost.
    Reset,
}

/// Index of a link in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkIndex(pub usize);

impl LinkIndex {
    pub fn index(self) -> usize {
        self.0
    }
}

impl fmt::Display for LinkIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Debug)]
pub struct SimulatedLink {
    pub client: ClientIndex,
    pub to_node: VecDeque<u8>,
    pub to_client: VecDeque<u8>,
    /// Capacity of `to_client`. A slow reader makes the node wait.
    pub capacity: usize,
    pub client_end: ClientEnd,
    pub is_closed_by_node: bool,
}

#[derive(Debug, Default)]
pub struct Network {
    pub links: Vec<SimulatedLink>,
}

impl Network {
    pub fn open(&mut self, client: ClientIndex, capacity: usize) -> LinkIndex {
        self.links.push(SimulatedLink {
            client,
            to_node: VecDeque::new(),
            to_client: VecDeque::new(),
            capacity,
            client_end: ClientEnd::Open,
            is_closed_by_node: false,
        });
        LinkIndex(self.links.len() - 1)
    }

    /// The node has ended. Unread bytes that it sent are lost. If they had been read before, that would be another run.
    pub fn node_ended(&mut self) {
        for link in &mut self.links {
            link.to_node.clear();
            link.to_client.clear();
            link.is_closed_by_node = true;
        }
    }
}

impl SimulatedLink {
    pub fn reset(&mut self) {
        self.client_end = ClientEnd::Reset;
        self.to_node.clear();
        self.to_client.clear();
    }

    pub fn finish(&mut self) {
        self.client_end = ClientEnd::Finished;
        self.to_client.clear();
    }
}

/// Removes a piece from the front of a queue: often all of it, sometimes a few bytes.
pub fn take_chunk(queue: &mut VecDeque<u8>, random: &mut Random) -> Vec<u8> {
    let size = match random.below(4) {
        0 => random.below(queue.len() + 1),
        1 => queue.len().min(1 + random.below(12)),
        _ => queue.len(),
    };
    queue.drain(..size).collect()
}
