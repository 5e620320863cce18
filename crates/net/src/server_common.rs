//! The state that the workers of a server share.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use broker::{AccessControl, NodeState, ShardConfig};

use crate::address_rates::AddressRates;
use crate::busy_time::BusyTime;
use crate::clock::ServerClock;
use crate::config::ServerConfig;
use crate::counters::{EarlyCloseReason, PublishedCounters};
use crate::descriptors::SpareDescriptor;
use crate::early_close::EarlyCloses;
use crate::listener::{self, SharedListener};
use crate::memory_pool::MemoryPool;
use crate::node_journal::NodeJournal;
use crate::observer::ConnectionObserver;

/// State shared by all workers. Not accessed per packet.
pub(crate) struct ServerCommon {
    pub(crate) config: ServerConfig,
    pub(crate) shards: u16,
    pub(crate) listeners: Vec<SharedListener>,
    pub(crate) connections: AtomicUsize,
    /// `None`: new connections from an address have no limit.
    pub(crate) address_rates: Option<AddressRates>,
    pub(crate) early_closes: EarlyCloses,
    pub(crate) spare_descriptor: SpareDescriptor,
    pub(crate) packet_memory: Arc<MemoryPool>,
    /// Memory for the windows of QUIC connections.
    pub(crate) quic_windows: Arc<MemoryPool>,
    /// Number of workers that have begun to shut down.
    pub(crate) stopping_workers: AtomicU16,
    /// Size of the unsent mailbox items of all workers.
    pub(crate) unsent_bytes: AtomicUsize,
    pub(crate) counters: Vec<PublishedCounters>,
    /// One histogram per worker.
    pub(crate) ack_latency_us: Vec<journal::AtomicHistogram>,
    /// Busy time of each worker's thread.
    pub(crate) busy_times: Vec<BusyTime>,
    pub(crate) shard_config: Arc<ShardConfig>,
    pub(crate) access: Arc<dyn AccessControl>,
    pub(crate) node: Arc<NodeState>,
    pub(crate) clock: ServerClock,
    pub(crate) observer: Arc<dyn ConnectionObserver>,
    pub(crate) node_journal: Arc<NodeJournal>,
}

impl ServerCommon {
    /// Returns whether no connection can move to another worker any more: all workers are shutting down, so that none
    /// accepts a connection, and the last connection has ended. A worker that ends earlier loses the connections that
    /// move to it, and the worker that reads their socket would wait for them.
    pub(crate) fn is_drained(&self) -> bool {
        let stopping = self.stopping_workers.load(Ordering::Acquire);
        stopping == self.shards && self.connections.load(Ordering::Relaxed) == 0
    }

    /// Counts a new connection from the address of a client. Returns false if it exceeds the rate. The address is
    /// unspecified if a proxy does not know its client.
    pub(crate) fn admit_address(&self, address: IpAddr, now_ms: u64) -> bool {
        let rates = self.address_rates.as_ref().filter(|_| !address.is_unspecified());
        rates.is_none_or(|rates| rates.admit(address, now_ms))
    }

    /// Returns whether less than half of the server's connections are open.
    #[cfg(feature = "quic")]
    pub(crate) fn is_half_empty(&self) -> bool {
        let most = self.config.max_connections.min(self.config.descriptor_limit);
        self.connections.load(Ordering::Relaxed) < most / 2
    }

    /// Counts a new connection of the server, or returns the limit that prevents it.
    pub(crate) fn admit(&self) -> Result<(), EarlyCloseReason> {
        let ServerConfig {
            max_connections,
            descriptor_limit,
            ..
        } = self.config;
        if listener::try_increment(&self.connections, max_connections.min(descriptor_limit)) {
            return Ok(());
        }
        Err(match descriptor_limit < max_connections {
            true => EarlyCloseReason::DescriptorLimit,
            false => EarlyCloseReason::ServerFull,
        })
    }
}
