//! Listeners and the event loops that drive the broker: a worker per core, each with one readiness loop and one `Shard`, and a
//! thread for each when one is not enough for all.
//!
//! A connection's life: accepted by any worker, [PROXY header], [TLS], [WebSocket upgrade], CONNECT, once over to the worker that is
//! the home of its client id, then bytes in and out of that worker's shard until it ends. No async runtime, no lock and no wait on
//! the data plane; what may wait (password hashes, the API) is on other threads and talks to workers through mailboxes.
//!
//! Start with `worker.rs` (the tick), then `receive.rs` and `flush.rs`; `crew.rs` has the threads.

mod accept;
mod auth_pool;
pub mod certificate;
mod close;
mod compaction;
mod config;
mod connection;
mod counters;
mod crew;
mod deadlines;
mod effects;
mod flush;
mod handover;
mod handshake;
mod journal;
mod latency;
mod letter;
mod listener;
mod mailbox;
mod outlet;
mod port_owner;
mod post;
pub mod proxy;
mod receive;
mod reply;
mod server;
mod slots;
mod suspects;
pub mod tls;
pub mod websocket;
mod worker;

pub use auth_pool::Authenticator;
pub use config::{ConnectionRate, ListenerConfig, Network, ProxyConfig, ServerConfig, transport_key};
pub use counters::{NetCounters, Refusal};
pub use crew::CrewPolicy;
pub use handover::{HandOverError, Place, Tenure, Upgraded};
pub use journal::Restart;
pub use listener::{BindError, ListenerInfo};
pub use port_owner::{PortOwner, find as find_port_owner};
pub use reply::{CallError, Reply};
pub use server::{Handle, JournalView, Observer, Prepared, Server, StartError, default_workers};
