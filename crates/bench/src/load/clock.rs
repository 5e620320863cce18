//! The run clock of this process, and a timer that is more precise than the timeout of a poll.
//!
//! `epoll_wait` counts in milliseconds, and `mio` rounds up to them. A timer descriptor in the same poll counts in
//! nanoseconds and has no timer slack. A wait below [`SPIN_NS`] is a poll without timeout: setting a timer and being
//! scheduled again would take longer.
//!
//! A core that has slept for milliseconds needs tens of microseconds to wake, which would be part of every latency of a
//! slow schedule. So the timer fires [`EARLY_NS`] before a message is due, and the worker polls for the rest. The
//! polling time is limited to a share of the wait, so that a fast schedule, whose core hardly sleeps, does not take the
//! core from the broker.

use std::time::Instant;

#[derive(Clone, Copy, Debug)]
pub struct RunClock {
    origin: Instant,
    offset_ns: i64,
}

impl RunClock {
    /// Returns a clock that shows `offset_ns` at `origin`.
    pub fn new(origin: Instant, offset_ns: i64) -> RunClock {
        RunClock { origin, offset_ns }
    }

    #[inline]
    pub fn now_ns(self) -> u64 {
        let own = self.origin.elapsed().as_nanos() as i64;
        own.saturating_add(self.offset_ns).max(0) as u64
    }
}

/// For waits shorter than this, the worker polls without a timer.
pub const SPIN_NS: u64 = 10_000;
pub const EARLY_NS: u64 = 60_000;
/// At most a wait divided by this is spent polling.
pub const EARLY_SHARE: u64 = 10;

#[cfg(target_os = "linux")]
pub use timer::WakeTimer;

#[cfg(target_os = "linux")]
mod timer {
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};

    use mio::unix::SourceFd;
    use mio::{Interest, Registry, Token};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };

    /// A timer that wakes a poll at a given time.
    pub struct WakeTimer {
        descriptor: OwnedFd,
    }

    impl WakeTimer {
        pub fn new(registry: &Registry, token: Token) -> io::Result<WakeTimer> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let descriptor = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            registry.register(&mut SourceFd(&descriptor.as_raw_fd()), token, Interest::READABLE)?;
            Ok(WakeTimer { descriptor })
        }

        /// Sets the timer and replaces an earlier time. The descriptor is never read: readiness is edge-triggered and
        /// each expiry triggers it.
        pub fn set(&self, in_ns: u64) -> io::Result<()> {
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            let it_value = Timespec {
                tv_sec: (in_ns / 1_000_000_000) as i64,
                tv_nsec: (in_ns % 1_000_000_000) as _,
            };
            let when = Itimerspec {
                it_interval: none,
                it_value,
            };
            timerfd_settime(&self.descriptor, TimerfdTimerFlags::empty(), &when)?;
            Ok(())
        }
    }
}
