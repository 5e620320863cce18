//! An action: its buffer, its sink, and the pump that moves records from the buffer to the sink.
//!
//! The pump is one task; each batch is another. The pump reads the buffer in order, assigns records to lanes by
//! ordering key, sends batches, and moves the cursor to the oldest unfinished record. While the target is unreachable,
//! all records wait and the pump checks the target with back-off. A rejected record is counted and reported, and does
//! not block others.

mod lane;
mod run;
mod task;
mod window;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::buffer::ActionBuffer;
use crate::config::DeliveryConfig;
use crate::fallback::Fallback;
use crate::health::{ConnectionHealth, HealthCell};
use crate::metrics::{ActionStats, Metrics};
use crate::sink::Sink;

/// An action with its buffer. It sends nothing until it is started.
pub struct Action {
    shared: Arc<ActionShared>,
    is_paused: AtomicBool,
    running: Mutex<Option<RunningPump>>,
}

struct ActionShared {
    name: String,
    buffer: ActionBuffer,
    metrics: Metrics,
    health: HealthCell,
    fallback: Option<Arc<dyn Fallback>>,
}

struct RunningPump {
    control: watch::Sender<PumpControl>,
    task: JoinHandle<()>,
}

/// Commands to the pump.
#[derive(Clone, Copy, Debug, Default)]
struct PumpControl {
    is_paused: bool,
    /// Time to send the records that were already read.
    stop_within: Option<Duration>,
    /// Number of purge requests so far.
    purges: u64,
}

impl Action {
    /// Creates an action. `name` appears in the log.
    pub fn new(name: impl Into<String>, buffer: ActionBuffer) -> Action {
        Action::with_fallback(name, buffer, None, ActionStats::default())
    }

    /// Creates an action whose dropped and failed records go to `fallback`. Its counters continue from `earlier`.
    pub fn with_fallback(
        name: impl Into<String>,
        buffer: ActionBuffer,
        fallback: Option<Arc<dyn Fallback>>,
        earlier: ActionStats,
    ) -> Action {
        if fallback.is_some() {
            buffer.divert_dropped();
        }
        Action {
            shared: Arc::new(ActionShared {
                name: name.into(),
                buffer,
                metrics: Metrics::continuing(earlier),
                health: HealthCell::new(),
                fallback,
            }),
            is_paused: AtomicBool::new(false),
            running: Mutex::new(None),
        }
    }

    /// Starts the pump on a multi-threaded runtime. Does nothing if the action is running. Sink and configuration may
    /// differ from those of the previous start.
    pub fn start(&self, sink: Arc<dyn Sink>, config: &DeliveryConfig, runtime: &Handle) {
        let mut running = self.running();
        if running.is_some() {
            return;
        }
        let (control, controlled) = watch::channel(PumpControl {
            is_paused: self.is_paused(),
            ..PumpControl::default()
        });
        let pump = run::Pump::new(Arc::clone(&self.shared), sink, config.clone(), controlled);
        let task = runtime.spawn(pump.run());
        *running = Some(RunningPump { control, task });
    }

    /// Stops the pump. It still sends the records that it has read, for at most `within`. The other records stay in the
    /// buffer.
    pub async fn stop(&self, within: Duration) {
        let running = self.running().take();
        let Some(running) = running else {
            return;
        };
        running
            .control
            .send_modify(|control| control.stop_within = Some(within));
        if let Err(error) = running.task.await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }

    /// Stops sending until [`Action::resume`], also after a restart of the pump. Batches in flight complete.
    pub fn pause(&self) {
        self.set_paused(true);
    }

    pub fn resume(&self) {
        self.set_paused(false);
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused.load(Relaxed)
    }

    fn set_paused(&self, is_paused: bool) {
        let running = self.running();
        self.is_paused.store(is_paused, Relaxed);
        if let Some(running) = &*running {
            running.control.send_modify(|control| control.is_paused = is_paused);
        }
    }

    pub fn is_running(&self) -> bool {
        self.running().is_some()
    }

    /// Drops and counts all records that are not in flight.
    pub fn purge(&self) {
        let is_running = self.control(|control| control.purges += 1);
        if !is_running {
            let purged = self.shared.buffer.purge();
            self.shared.metrics.purged.fetch_add(purged, Relaxed);
        }
    }

    pub fn buffer(&self) -> &ActionBuffer {
        &self.shared.buffer
    }

    pub fn health(&self) -> ConnectionHealth {
        self.shared.health.get()
    }

    pub fn stats(&self) -> ActionStats {
        self.shared.metrics.stats(&self.shared.buffer.stats())
    }

    fn control(&self, change: impl FnOnce(&mut PumpControl)) -> bool {
        let running = self.running();
        if let Some(running) = &*running {
            running.control.send_modify(change);
        }
        running.is_some()
    }

    fn running(&self) -> MutexGuard<'_, Option<RunningPump>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
