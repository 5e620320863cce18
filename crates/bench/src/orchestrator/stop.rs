//! Ctrl-C: the first one ends the run with a report, the second one exits at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code that shells use for a program that SIGINT ended.
const EXIT_INTERRUPTED: i32 = 130;

#[derive(Clone, Debug, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Handles SIGINT and SIGTERM from now on.
    pub fn on_signals() -> io::Result<StopFlag> {
        let stop = StopFlag::default();
        for signal in [SIGINT, SIGTERM] {
            // In this order: the handler of the second signal checks the flag that the first one sets.
            flag::register_conditional_shutdown(signal, EXIT_INTERRUPTED, stop.0.clone())?;
            flag::register(signal, stop.0.clone())?;
        }
        Ok(stop)
    }

    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
