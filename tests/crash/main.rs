//! Crashes of the real binary under load, and what its clients say afterwards.
//!
//! Publishers and subscribers with sessions of their own talk over real sockets at QoS 1 and 2; the server is killed at
//! seeded moments, started again on the same directory, and everybody resumes as the standard says. In the end what
//! publishers saw acknowledged is held against what subscribers got: nothing missing, QoS 2 once, in order, retained values
//! right. A failure names the message, what was seen of it, seed and round.
//!
//! `TIDEWIRE_CRASH_ROUNDS` and `TIDEWIRE_CRASH_SEED` change how often and how. The seed decides what clients do and when
//! the server dies; threads and disk do not follow it, so that a seed makes a failure likely again and not certain.

// What a run came to is part of its result.
#![allow(clippy::print_stdout)]

#[path = "../rules/api.rs"]
mod api;
#[path = "../support/mod.rs"]
mod support;

mod backup;
mod damage;
mod drain;
mod failed_sync;
mod faulty_disk;
mod full_disk;
mod judge;
mod load;
mod message;
mod publisher;
mod random;
mod restore;
mod rounds;
mod shared;
mod subscriber;
mod wire;

/// Rounds unless told otherwise: for every run of all tests.
const ROUNDS: u32 = 50;

#[test]
fn acknowledged_messages_survive_kills() {
    let rounds = number("TIDEWIRE_CRASH_ROUNDS", u64::from(ROUNDS)) as u32;
    rounds::run(number("TIDEWIRE_CRASH_SEED", 1), rounds);
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Err(_) => default,
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is no number")),
    }
}
