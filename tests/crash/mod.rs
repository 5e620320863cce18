//! Crash tests of the real binary under load.
//!
//! Publishers and subscribers with durable sessions use real sockets at QoS 1 and 2. The tests kill the server at
//! random times and restart it on the same directory. The clients resume as the standard requires.
//!
//! At the end, the tests compare acknowledged with received messages: none is missing, QoS 2 messages arrive exactly
//! once, the order is correct, and retained values are correct. A failure reports the message, its history, the seed
//! and the round.
//!
//! The seed `TIDEWIRE_CRASH_SEED` determines the actions of the clients and the times of the kills. Thread scheduling
//! and disk timing still vary, so the same seed reproduces a failure often but not always.

// Tests print the figures of a run.
#![allow(clippy::print_stdout)]

mod backup;
mod damage;
mod damaged_history;
mod drain;
mod failed_stores;
mod failed_sync;
pub mod faulty_disk;
mod full_disk;
mod judge;
mod load;
mod message;
mod missing;
mod publisher;
mod random;
mod restore;
mod rounds;
mod shared;
mod skip;
mod subscriber;
mod wire;

use crate::support::scaled;

const ROUNDS: u64 = 50;

// fault: Process killed; Journal
#[test]
fn acknowledged_messages_survive_kills() {
    rounds::run(number("TIDEWIRE_CRASH_SEED", 1), scaled(ROUNDS) as u32);
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Err(_) => default,
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is not a number")),
    }
}
