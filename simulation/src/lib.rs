//! The deterministic simulator: a whole node with its disk, network and clients in one thread, driven by one seed.
//!
//! A run is a `World` built from a `SimulationPlan`: shards of the real broker and the real log on a disk that loses
//! unsynced data, clients that use the real codec, taps that lose unsaved messages, and an oracle that knows only what
//! clients have seen. All choices are drawn from the seed, so a failure is identified by a number. There are no
//! threads, no real time, and no iteration in random order.

mod client;
mod mounted_clients;
mod network;
mod node;
mod node_journal;
mod oracle;
mod packets;
mod stats_check;
mod tap;
mod topics;
mod worker;
mod world;

pub mod plan;
pub mod run;
pub mod trace;

pub use plan::{PlannedDurability, SimulationPlan};
pub use run::{SeedFailure, Settings, check, replay};
pub use world::RunOutcome;
