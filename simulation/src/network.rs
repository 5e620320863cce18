//! The network: a pair of byte queues per connection, and what each end knows of the other's end.
//!
//! A queue is a socket's buffers and the wire in one. Bytes stay in order and are taken in pieces of any size; a reset loses what
//! is under way, a FIN comes after it.

use std::collections::VecDeque;

use storage::model::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientEnd {
    Open,
    /// FIN behind the bytes that are under way.
    Finished,
    /// RST: what is under way is lost.
    Reset,
}

#[derive(Debug)]
pub struct Link {
    /// Which client's.
    pub client: usize,
    pub to_node: VecDeque<u8>,
    pub to_client: VecDeque<u8>,
    /// Of what `to_client` holds: a reader that is slow makes the node wait.
    pub capacity: usize,
    pub client_end: ClientEnd,
    pub is_closed_by_node: bool,
}

#[derive(Debug, Default)]
pub struct Network {
    pub links: Vec<Link>,
}

impl Network {
    pub fn open(&mut self, client: usize, capacity: usize) -> usize {
        self.links.push(Link {
            client,
            to_node: VecDeque::new(),
            to_client: VecDeque::new(),
            capacity,
            client_end: ClientEnd::Open,
            is_closed_by_node: false,
        });
        self.links.len() - 1
    }

    /// The node is gone, and with it what it had sent and nobody has read: had it been read a moment before, that would have
    /// been another run.
    pub fn node_gone(&mut self) {
        for link in &mut self.links {
            link.to_node.clear();
            link.to_client.clear();
            link.is_closed_by_node = true;
        }
    }
}

impl Link {
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

/// Takes a piece from the front of a queue: often all, sometimes a few bytes.
pub fn take_piece(queue: &mut VecDeque<u8>, random: &mut Random) -> Vec<u8> {
    let size = match random.below(4) {
        0 => random.below(queue.len() + 1),
        1 => queue.len().min(1 + random.below(12)),
        _ => queue.len(),
    };
    queue.drain(..size).collect()
}
