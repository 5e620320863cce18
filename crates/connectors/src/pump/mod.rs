//! An action at work: its buffer, its sink, and the pump that takes records from one to the other.
//!
//! The pump is one task; batches are tasks of their own. It reads the buffer in order, deals records out to lanes by
//! ordering key, sends batches, and moves the cursor behind the oldest that is not done with. When the target is away
//! everything waits and the target is asked with back-off; a record that is refused is counted and told, and stops nothing.

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

use crate::buffer::Buffer;
use crate::config::DeliveryConfig;
use crate::fallback::Fallback;
use crate::health::{Health, HealthCell};
use crate::metrics::{ActionStats, Metrics};
use crate::sink::Sink;

/// An action by its name, with its buffer. Sends nothing until it is started.
pub struct Action {
    shared: Arc<Shared>,
    is_paused: AtomicBool,
    running: Mutex<Option<Running>>,
}

struct Shared {
    name: String,
    buffer: Buffer,
    metrics: Metrics,
    health: HealthCell,
    fallback: Option<Arc<dyn Fallback>>,
}

struct Running {
    control: watch::Sender<Control>,
    task: JoinHandle<()>,
}

/// What the pump is told to do.
#[derive(Clone, Copy, Debug, Default)]
struct Control {
    is_paused: bool,
    /// How long what was read may still be sent.
    stop_within: Option<Duration>,
    /// How often it was told to throw away what waits.
    purges: u64,
}

impl Action {
    /// `name`: for the log.
    pub fn new(name: impl Into<String>, buffer: Buffer) -> Action {
        Action::with_fallback(name, buffer, None, ActionStats::default())
    }

    /// `fallback` gets what the action gives up. `earlier`: what counters go on from.
    pub fn with_fallback(
        name: impl Into<String>,
        buffer: Buffer,
        fallback: Option<Arc<dyn Fallback>>,
        earlier: ActionStats,
    ) -> Action {
        if fallback.is_some() {
            buffer.keep_dropped();
        }
        Action {
            shared: Arc::new(Shared {
                name: name.into(),
                buffer,
                metrics: Metrics::after(earlier),
                health: HealthCell::new(),
                fallback,
            }),
            is_paused: AtomicBool::new(false),
            running: Mutex::new(None),
        }
    }

    /// Begins to send, on a multi-threaded runtime. Does nothing if the action is running: stop it first. Sink and configuration may
    /// be other ones than before.
    pub fn start(&self, sink: Arc<dyn Sink>, config: &DeliveryConfig, runtime: &Handle) {
        let mut running = self.running();
        if running.is_some() {
            return;
        }
        let (control, controlled) = watch::channel(Control {
            is_paused: self.is_paused(),
            ..Control::default()
        });
        let pump = run::Pump::new(Arc::clone(&self.shared), sink, config.clone(), controlled);
        let task = runtime.spawn(pump.run());
        *running = Some(Running { control, task });
    }

    /// Ends sending: what was read is still sent if that takes no longer than `within`; the rest stays in the buffer.
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

    /// Nothing is sent until [`Action::resume`], also by one that is started later; what is on its way comes back.
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

    /// Throws away what waits and is not being sent, and counts it.
    pub fn purge(&self) {
        let is_running = self.control(|control| control.purges += 1);
        if !is_running {
            let purged = self.shared.buffer.purge();
            self.shared.metrics.purged.fetch_add(purged, Relaxed);
        }
    }

    pub fn buffer(&self) -> &Buffer {
        &self.shared.buffer
    }

    pub fn health(&self) -> Health {
        self.shared.health.get()
    }

    pub fn stats(&self) -> ActionStats {
        self.shared.metrics.stats(&self.shared.buffer.stats())
    }

    fn control(&self, change: impl FnOnce(&mut Control)) -> bool {
        let running = self.running();
        if let Some(running) = &*running {
            running.control.send_modify(change);
        }
        running.is_some()
    }

    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
