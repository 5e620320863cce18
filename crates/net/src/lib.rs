//! Listeners and event loops of the broker. Each core has a worker with one event loop and one `Shard`. Workers share
//! one thread while the load is low.
//!
//! Life of a connection: a worker accepts it; [PROXY header]; [TLS handshake]; [WebSocket upgrade]; CONNECT; it moves
//! once to the worker that owns its client id; its bytes go in and out of that worker's shard until it is closed. With
//! QUIC (`quic/`), a connection is a byte stream like the others when its handshake is complete. The data plane has no
//! async runtime, takes no lock and never blocks. Work that may block (password hashes, the API) runs on other threads,
//! which communicate with workers through mailboxes.
//!
//! Start with `worker.rs` (the tick), then `receive.rs` and `flush.rs`. `thread_sharing.rs` runs the threads.

mod accept;
mod acceptor;
mod access_question;
mod address_prefix;
mod address_rates;
mod auth_pool;
mod busy_time;
pub mod certificate;
mod client_presence;
mod clock;
mod close;
mod compaction;
mod config;
mod connection;
mod counters;
mod deadlines;
pub mod descriptors;
mod early_close;
mod effects;
mod failed_logins;
mod fair_queue;
mod fixed_limits;
mod flush;
mod flush_notice;
pub mod forwarded;
mod handed_over;
mod handover;
mod handshake;
mod journal;
mod latency;
mod listener;
mod mailbox;
mod mailbox_item;
mod memory_pool;
mod node_journal;
mod observer;
mod outgoing;
mod outlet;
mod packet_memory;
mod port_owner;
pub mod proxy;
#[cfg(feature = "quic")]
mod quic;
#[cfg(not(feature = "quic"))]
#[path = "quic_absent.rs"]
mod quic;
mod read_buffers;
mod receive;
mod reply;
mod server;
mod server_common;
mod slots;
mod socket;
mod thread_sharing;
pub mod tls;
pub mod websocket;
mod worker;

pub use access_question::OpenAccessQuestion;
pub use address_prefix::AddressPrefix;
pub use auth_pool::{AuthQuestion, Authenticator};
pub use broker::client_network;
pub use config::{ListenerConfig, ProxyConfig, ServerConfig, ThreadSharingPolicy, transport_key};
pub use counters::{EarlyCloseReason, NetCounters};
pub use early_close::{EARLY_CLOSES_MAX, EarlyClose, EarlyCloseLine, describe_tls};
pub use fixed_limits::FIXED_LIMITS;
pub use handed_over::{ConnectionReservation, UpgradedConnection};
pub use handover::{HandOverError, HandedOverHandle};
pub use journal::RestartState;
pub use listener::{BindError, ListenerInfo};
pub use observer::ConnectionObserver;
pub use port_owner::{PortOwner, find as find_port_owner};
#[cfg(feature = "quic")]
pub use quic::QUIC_LIMITS;
pub use reply::{CallError, Reply};
pub use server::{JournalView, PreparedServer, Server, ServerHandle, ShardTaps, StartError, default_workers};
