//! Ctrl-C: the first asks a run to end and report, the second leaves at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// As shells say it of a program that SIGINT has ended.
const EXIT_INTERRUPTED: i32 = 130;

#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Listens for SIGINT and SIGTERM from now on.
    pub fn on_signals() -> io::Result<Stop> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: what the second signal does looks at what the first has set.
            flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED, stop.0.clone())?;
            flag::register(signal, stop.0.clone())?;
        }
        Ok(stop)
    }

    pub fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
