//! The deterministic simulator: a whole node, its disk, its network and its clients in one thread, from one seed.
//!
//! A run is a `World` made from a `Plan`: shards of the real broker and the real log over a disk that loses what was not synced,
//! clients that speak the real codec, taps that forget what they have not kept, and an oracle that knows only what clients saw. Whatever happens is drawn from the seed, so
//! that a failure is a number. No threads, no real time, nothing that is iterated in an order of chance.

mod accounts;
mod client;
mod keeper;
mod network;
mod node;
mod oracle;
mod speak;
mod tap;
mod words;
mod worker;
mod world;

pub mod plan;
pub mod run;
pub mod trace;

pub use plan::{Durability, Plan};
pub use run::{Failure, Settings, check, replay};
pub use world::Outcome;
