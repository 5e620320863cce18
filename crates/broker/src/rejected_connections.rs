//! The last rejected connections, for operators.

use std::collections::VecDeque;
use std::net::SocketAddr;

use mqtt::ReasonCode;

use crate::effect::Transport;

/// Number of rejected connections that a shard stores.
pub(crate) const REFUSALS_MAX: usize = 256;

/// A rejected connection.
#[derive(Clone, Debug)]
pub struct RejectedConnection {
    pub at_unix_ms: u64,
    pub client_id: Box<str>,
    pub user_name: Option<Box<str>>,
    pub address: SocketAddr,
    pub transport: Transport,
    /// Index in the configuration.
    pub listener: u16,
    pub reason: ReasonCode,
    pub detail: Box<str>,
}

#[derive(Default)]
pub(crate) struct RejectedConnections {
    /// Oldest first.
    list: VecDeque<RejectedConnection>,
}

impl RejectedConnections {
    pub fn add(&mut self, rejected: RejectedConnection) {
        if self.list.len() == REFUSALS_MAX {
            self.list.pop_front();
        }
        self.list.push_back(rejected);
    }

    pub fn newest_first(&self) -> impl Iterator<Item = &RejectedConnection> {
        self.list.iter().rev()
    }
}
