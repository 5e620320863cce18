//! The run clock of this process, and waiting for a moment on it more precisely than a poll's timeout can.
//!
//! `epoll_wait` counts milliseconds, and `mio` rounds up to them. A timer descriptor in the same poll has nanoseconds and no
//! timer slack. Below [`SPIN_NS`] the wait is a poll without timeout: arming a timer and being scheduled again would take longer.
//!
//! A core that has slept for milliseconds takes tens of microseconds to wake, which would stand in every latency of a slow schedule.
//! So the timer rings [`EARLY_NS`] before a message is due, and the rest is spent polling; never more than a share of the wait, so that a
//! fast schedule, whose core hardly sleeps, does not take the core from the broker.

use std::time::Instant;

#[derive(Clone, Copy, Debug)]
pub struct RunClock {
    origin: Instant,
    offset_ns: i64,
}

impl RunClock {
    /// Shows `offset_ns` at `origin`.
    pub fn new(origin: Instant, offset_ns: i64) -> RunClock {
        RunClock { origin, offset_ns }
    }

    #[inline]
    pub fn now_ns(self) -> u64 {
        let own = self.origin.elapsed().as_nanos() as i64;
        own.saturating_add(self.offset_ns).max(0) as u64
    }
}

/// Waits shorter than this are spent polling.
pub const SPIN_NS: u64 = 10_000;
pub const EARLY_NS: u64 = 60_000;
/// One part in so many of a wait may be spent polling.
pub const EARLY_SHARE: u64 = 10;

#[cfg(target_os = "linux")]
pub use timer::Alarm;

#[cfg(target_os = "linux")]
mod timer {
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};

    use mio::unix::SourceFd;
    use mio::{Interest, Registry, Token};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };

    /// Wakes a poll at a moment.
    pub struct Alarm {
        descriptor: OwnedFd,
    }

    impl Alarm {
        pub fn new(registry: &Registry, token: Token) -> io::Result<Alarm> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let descriptor = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            registry.register(&mut SourceFd(&descriptor.as_raw_fd()), token, Interest::READABLE)?;
            Ok(Alarm { descriptor })
        }

        /// Replaces what was set before. Never read: setting it again makes it ready again, and readiness is edge-triggered.
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
