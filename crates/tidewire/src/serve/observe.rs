//! Logs events of clients.
//!
//! Events come from the workers, which must not wait for a terminal or a disk. They pass through a bounded queue to a
//! thread that writes them. If that thread is too slow, lines are omitted and counted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use api::ClientEventSender;
use broker::ConnectionEvent;
use broker::owners::OwnerLimit;
use net::EarlyCloseLine;

use super::flapping::FlappingBans;
use super::guesses::{LOCKED_OUT, LineLimit};
use crate::config::files::chain;
use crate::config::options::server::{Durability, JournalFailure};
use crate::output::EXIT_FAILURE;

/// Maximum number of events that wait to be written.
const WAITING_MAX: usize = 8192;

/// Interval between log lines about failed accepts.
const FAILED_ACCEPTS_INTERVAL: Duration = Duration::from_secs(10);

pub struct EventLog {
    /// A `sync_channel` would allocate and touch a megabyte at the start, for events that rarely wait. `queue` bounds
    /// it.
    sender: Sender<LoggedEvent>,
    queue: Arc<LogQueue>,
    /// Receives events for `$SYS/brokers/<node>/clients/…`.
    sys: Option<ClientEventSender>,
    flapping: Option<Arc<FlappingBans>>,
    /// Removed from the paths of journal files in messages. Other journals have files of the same names.
    journal: PathBuf,
    on_failure: JournalFailure,
    /// Failed accepts since the last line about them, and when that was written.
    failed_accepts: Mutex<(u64, Option<Instant>)>,
    /// Limits the lines about clients of locked-out addresses.
    lockout_lines: LineLimit,
    /// Limits the lines about clients that are over a limit of their user.
    limit_lines: LineLimit,
}

#[derive(Default)]
struct LogQueue {
    /// Number of events that wait to be written.
    waiting: AtomicUsize,
    /// Number of events that were omitted since the last written one.
    left_out: AtomicU64,
}

impl LogQueue {
    /// Counts an event in if the queue has space for it, else as omitted.
    fn admit(&self) -> bool {
        let is_admitted = self.waiting.fetch_add(1, Ordering::Relaxed) < WAITING_MAX;
        if !is_admitted {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
        is_admitted
    }
}

enum LoggedEvent {
    /// An event, and the number of similar lines that were omitted before it.
    Client(ConnectionEvent, u64),
    EarlyClose(EarlyCloseLine),
    /// The client with this id has to be banned.
    Flapping(Box<str>),
}

impl EventLog {
    pub fn start(
        data_dir: &Path,
        options: &Durability,
        sys: Option<ClientEventSender>,
        flapping: Option<FlappingBans>,
    ) -> io::Result<EventLog> {
        let flapping = flapping.map(Arc::new);
        // A client can rely on this policy from its CONNACK on.
        let durability = options.policy.word();
        let (sender, receiver) = channel();
        let queue = Arc::new(LogQueue::default());
        let (shared, bans) = (queue.clone(), flapping.clone());
        thread::Builder::new()
            .name("log".into())
            .spawn(move || write_all(&receiver, durability, &shared, bans.as_deref()))?;
        Ok(EventLog {
            sender,
            queue,
            sys,
            flapping,
            journal: data_dir.join(journal::DIRECTORY_NAME),
            on_failure: options.on_failure,
            failed_accepts: Mutex::default(),
            lockout_lines: LineLimit::default(),
            limit_lines: LineLimit::default(),
        })
    }
}

impl EventLog {
    fn send(&self, event: LoggedEvent) {
        if self.queue.admit() {
            // The thread that writes ends only with this sender.
            let _ = self.sender.send(event);
        }
    }
}

impl net::ConnectionObserver for EventLog {
    fn event(&self, event: &ConnectionEvent, is_wanted: bool) {
        if is_wanted && let Some(sys) = &self.sys {
            sys.offer(event);
        }
        if let Some(client_id) = self.flapping.as_ref().and_then(|bans| bans.flapping_client(event)) {
            self.send(LoggedEvent::Flapping(client_id.into()));
        }
        if !is_written(event) {
            return;
        }
        // A guesser that is locked out reconnects thousands of times per second.
        if is_locked_out(event) && self.lockout_lines.admit(Instant::now()).is_none() {
            return;
        }
        let mut omitted_lines = 0;
        if is_over_limit(event) {
            // A client that is over a limit may try again thousands of times per second.
            let Some(omitted) = self.limit_lines.admit(Instant::now()) else {
                return;
            };
            omitted_lines = omitted;
        }
        self.send(LoggedEvent::Client(event.clone(), omitted_lines));
    }

    fn early_close(&self, line: &EarlyCloseLine) {
        let is_written = match line.close.is_probe {
            true => tracing::enabled!(tracing::Level::DEBUG),
            false => tracing::enabled!(tracing::Level::INFO),
        };
        if is_written {
            self.send(LoggedEvent::EarlyClose(line.clone()));
        }
    }

    fn accept_failed(&self, listener: &str, error: &io::Error) {
        let mut failed = self.failed_accepts.lock().unwrap_or_else(PoisonError::into_inner);
        let (times, logged_at) = &mut *failed;
        *times += 1;
        if logged_at.is_none_or(|at| at.elapsed() >= FAILED_ACCEPTS_INTERVAL) {
            *logged_at = Some(Instant::now());
            let times = std::mem::take(times);
            tracing::warn!(listener, times, %error, "cannot accept connections; clients wait");
        }
    }

    fn journal_error(&self, what: &'static str, error: &dyn std::error::Error) {
        tracing::error!(journal = %self.journal.display(), error = chain(error), "{what}");
    }

    fn journal_state(&self, state: &journal::LogState) {
        let journal = self.journal.display();
        match state {
            journal::LogState::Ok => tracing::warn!("the journal accepts messages again"),
            journal::LogState::Full { reason } => {
                tracing::error!(
                    %journal,
                    reason,
                    "the journal is full: messages that need it are rejected or wait"
                );
            }
            journal::LogState::Failed { reason } => {
                tracing::error!(
                    %journal,
                    reason,
                    "the journal has failed: messages that need it are not acknowledged; repair the disk and restart"
                );
                if self.on_failure == JournalFailure::Exit {
                    tracing::error!("the server exits, because durability.on_failure is \"exit\"");
                    // Without an orderly shutdown: clients must not take their sessions for stored.
                    std::process::exit(EXIT_FAILURE.into());
                }
            }
        }
    }
}

/// Connects and disconnects are logged at `debug`: a broker with a hundred thousand devices would log little else.
fn is_written(event: &ConnectionEvent) -> bool {
    match event {
        ConnectionEvent::Connected { .. }
        | ConnectionEvent::Disconnected { .. }
        | ConnectionEvent::AddressChanged { .. }
        | ConnectionEvent::StreamEnded { .. }
        | ConnectionEvent::SessionEnded { .. } => {
            tracing::enabled!(tracing::Level::DEBUG)
        }
        ConnectionEvent::Refused { .. }
        | ConnectionEvent::Dropping { .. }
        | ConnectionEvent::OverLimit { .. }
        | ConnectionEvent::Throttled { .. } => {
            tracing::enabled!(tracing::Level::INFO)
        }
    }
}

fn is_locked_out(event: &ConnectionEvent) -> bool {
    matches!(event, ConnectionEvent::Refused { detail, .. } if **detail == *LOCKED_OUT)
}

fn is_over_limit(event: &ConnectionEvent) -> bool {
    match event {
        ConnectionEvent::OverLimit { .. } | ConnectionEvent::Throttled { .. } => true,
        ConnectionEvent::Refused { detail, .. } => OwnerLimit::of_rejection(detail).is_some(),
        _ => false,
    }
}

fn write_all(receiver: &Receiver<LoggedEvent>, durability: &str, queue: &LogQueue, flapping: Option<&FlappingBans>) {
    for event in receiver {
        queue.waiting.fetch_sub(1, Ordering::Relaxed);
        let lines = queue.left_out.swap(0, Ordering::Relaxed);
        if lines > 0 {
            tracing::warn!(lines, "the log was too slow: lines about clients were omitted");
        }
        match &event {
            LoggedEvent::Client(event, omitted_lines) => write(event, durability, *omitted_lines),
            LoggedEvent::EarlyClose(line) => write_early_close(line),
            LoggedEvent::Flapping(client_id) => {
                if let Some(bans) = flapping {
                    bans.ban(client_id);
                }
            }
        }
    }
}

fn write_early_close(line: &EarlyCloseLine) {
    let EarlyCloseLine {
        close,
        times,
        omitted_lines,
    } = line;
    let listener = format!("{}.{}", net::transport_key(close.transport), close.listener);
    let (address, reason, because) = (close.address, close.reason.name(), &*close.detail);
    if *omitted_lines > 0 {
        tracing::info!(
            lines = omitted_lines,
            "lines about connections that ended before CONNECT were omitted"
        );
    }
    match close.is_probe {
        true => tracing::debug!(%address, listener, reason, because, times, "ended before CONNECT"),
        false => tracing::info!(%address, listener, reason, because, times, "ended before CONNECT"),
    }
}

fn write(event: &ConnectionEvent, durability: &str, omitted_lines: u64) {
    let omitted_lines = (omitted_lines > 0).then_some(omitted_lines);
    match event {
        ConnectionEvent::Connected {
            client_id,
            user_name,
            address,
            session_present,
        } => {
            let user_name = user_name.as_deref();
            tracing::debug!(client_id = &**client_id, user_name, %address, session_present, durability, "connected");
        }
        ConnectionEvent::Refused {
            client_id,
            user_name,
            address,
            reason,
            detail,
        } => {
            let user_name = user_name.as_deref();
            tracing::info!(client_id = &**client_id, user_name, %address, %reason, detail = &**detail, omitted_lines, "refused");
        }
        ConnectionEvent::Disconnected {
            client_id,
            address,
            reason,
            detail,
        } => {
            tracing::debug!(client_id = &**client_id, %address, reason = reason.name(), detail = &**detail, "disconnected");
        }
        ConnectionEvent::AddressChanged {
            client_id,
            from,
            address,
        } => {
            tracing::debug!(client_id = &**client_id, %address, %from, "client has another address");
        }
        ConnectionEvent::StreamEnded {
            client_id,
            address,
            reason,
            detail,
        } => {
            tracing::debug!(
                client_id = &**client_id,
                %address,
                reason = reason.name(),
                detail = &**detail,
                "data stream ended by the server"
            );
        }
        ConnectionEvent::SessionEnded { client_id, detail } => {
            tracing::debug!(client_id = &**client_id, detail, "session ended");
        }
        ConnectionEvent::Dropping { client_id, reason } => {
            tracing::info!(
                client_id = &**client_id,
                reason = reason.name(),
                "messages are being dropped"
            );
        }
        ConnectionEvent::OverLimit {
            client_id,
            owner,
            exceeded,
        } => {
            tracing::info!(
                client_id = &**client_id,
                owner = &**owner,
                limit = exceeded.limit.name(),
                option = exceeded.option,
                omitted_lines,
                "messages or subscriptions are rejected: the limit of the user or client is reached; raise the option to allow more"
            );
        }
        ConnectionEvent::Throttled {
            client_id,
            user_name,
            owner,
            limit,
        } => {
            tracing::info!(
                client_id = &**client_id,
                user_name = user_name.as_deref(),
                owner = (!owner.is_empty()).then_some(&**owner),
                limit = limit.name(),
                option = limit.option(),
                omitted_lines,
                "client is slowed down: a publish rate is above its limit; raise the option to allow more"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use api::LogRing;

    use super::*;
    use crate::config::options::server::{Log, LogFormat, LogLevel};
    use crate::config::value::Unset;
    use crate::logging::{LogEnvironment, subscriber};

    #[test]
    fn full_queue_omits_and_counts_events() {
        let queue = LogQueue::default();
        assert_eq!((0..WAITING_MAX + 3).filter(|_| queue.admit()).count(), WAITING_MAX);
        assert_eq!(queue.left_out.swap(0, Ordering::Relaxed), 3);
        queue.waiting.fetch_sub(1, Ordering::Relaxed);
        assert!(queue.admit());
        assert!(!queue.admit());
    }

    #[test]
    fn who_connects_is_written_with_the_durability_in_force() {
        let log = Log {
            level: LogLevel::Debug,
            format: LogFormat::Text,
            file: Unset(None),
            syslog: Unset(None),
        };
        let nowhere = LogEnvironment {
            is_terminal: false,
            is_journal: false,
        };
        let event = ConnectionEvent::Connected {
            client_id: "c1".into(),
            user_name: None,
            address: ([127, 0, 0, 1], 1).into(),
            session_present: false,
        };
        let ring: Arc<LogRing> = Arc::default();
        tracing::subscriber::with_default(subscriber(&log, nowhere, &ring, None, io::sink), || {
            write(&event, "os", 0)
        });
        let (lines, _) = ring.read(|_| true, u64::MAX, 10);
        let expected = "connected client_id=\"c1\" address=127.0.0.1:1 session_present=false durability=\"os\"";
        assert_eq!(lines[0].text, expected);
    }
}
