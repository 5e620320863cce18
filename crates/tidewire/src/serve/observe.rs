//! What clients do, in the log.
//!
//! Events come from the workers, which must not wait for a terminal or a disk: they go through a bounded channel to a thread
//! that writes them. When it cannot keep up, lines are left out and their number is logged.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use api::ClientEventSender;
use broker::Event;

use crate::config::files::chain;

/// Events that may wait to be written.
const WAITING_MAX: usize = 8192;

pub struct EventLog {
    sender: SyncSender<Event>,
    left_out: Arc<AtomicU64>,
    /// To `$SYS/brokers/<node>/clients/…`.
    sys: Option<ClientEventSender>,
    /// Its files are named without it, and other journals have files of the same names.
    journal: PathBuf,
}

impl EventLog {
    /// `durability` is the policy in force: what a client may take for granted from its CONNACK on.
    pub fn start(data_dir: &Path, durability: &'static str, sys: Option<ClientEventSender>) -> io::Result<EventLog> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let left_out = Arc::new(AtomicU64::new(0));
        let counter = left_out.clone();
        thread::Builder::new()
            .name("log".into())
            .spawn(move || write_all(&receiver, durability, &counter))?;
        Ok(EventLog {
            sender,
            left_out,
            sys,
            journal: data_dir.join(journal::DIRECTORY_NAME),
        })
    }
}

impl net::Observer for EventLog {
    fn event(&self, event: &Event, is_wanted: bool) {
        if is_wanted && let Some(sys) = &self.sys {
            sys.offer(event);
        }
        if !is_written(event) {
            return;
        }
        if let Err(TrySendError::Full(_)) = self.sender.try_send(event.clone()) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn journal_error(&self, what: &'static str, error: &dyn std::error::Error) {
        tracing::error!(journal = %self.journal.display(), error = chain(error), "{what}");
    }

    fn journal_state(&self, state: &journal::State) {
        let journal = self.journal.display();
        match state {
            journal::State::Ok => tracing::warn!("the journal takes what is to be kept again"),
            journal::State::Full { because } => {
                tracing::error!(
                    %journal,
                    because,
                    "the journal is full: what would have to be kept is refused or waits"
                );
            }
            journal::State::Failed { because } => {
                tracing::error!(
                    %journal,
                    because,
                    "the journal has failed: nothing that has to be kept is acknowledged any more; restart when the disk is sound"
                );
            }
        }
    }
}

/// Coming and going is for `log.level = "debug"`: a broker of a hundred thousand devices would write nothing else.
fn is_written(event: &Event) -> bool {
    match event {
        Event::Connected { .. } | Event::Disconnected { .. } | Event::SessionEnded { .. } => {
            tracing::enabled!(tracing::Level::DEBUG)
        }
        Event::Refused { .. } | Event::Dropping { .. } => tracing::enabled!(tracing::Level::INFO),
    }
}

fn write_all(receiver: &Receiver<Event>, durability: &str, left_out: &AtomicU64) {
    for event in receiver {
        let lines = left_out.swap(0, Ordering::Relaxed);
        if lines > 0 {
            tracing::warn!(lines, "the log could not keep up; lines about clients were left out");
        }
        write(&event, durability);
    }
}

fn write(event: &Event, durability: &str) {
    match event {
        Event::Connected {
            client_id,
            user_name,
            address,
            session_present,
        } => {
            let user_name = user_name.as_deref();
            tracing::debug!(client_id = &**client_id, user_name, %address, session_present, durability, "connected");
        }
        Event::Refused {
            client_id,
            user_name,
            address,
            reason,
            because,
        } => {
            let user_name = user_name.as_deref();
            tracing::info!(client_id = &**client_id, user_name, %address, %reason, because = &**because, "refused");
        }
        Event::Disconnected {
            client_id,
            address,
            reason,
            because,
        } => {
            tracing::debug!(client_id = &**client_id, %address, reason = reason.name(), because = &**because, "disconnected");
        }
        Event::SessionEnded { client_id, because } => {
            tracing::debug!(client_id = &**client_id, because, "session ended");
        }
        Event::Dropping { client_id, reason } => {
            tracing::info!(
                client_id = &**client_id,
                reason = reason.name(),
                "messages are being dropped"
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
    use crate::logging::{Surroundings, subscriber};

    #[test]
    fn who_connects_is_written_with_the_durability_in_force() {
        let log = Log {
            level: LogLevel::Debug,
            format: LogFormat::Text,
            file: Unset(None),
        };
        let nowhere = Surroundings {
            is_terminal: false,
            is_journal: false,
        };
        let event = Event::Connected {
            client_id: "c1".into(),
            user_name: None,
            address: ([127, 0, 0, 1], 1).into(),
            session_present: false,
        };
        let ring: Arc<LogRing> = Arc::default();
        tracing::subscriber::with_default(subscriber(&log, nowhere, &ring, io::sink), || write(&event, "os"));
        let (lines, _) = ring.read(|_| true, u64::MAX, 10);
        let expected = "connected client_id=\"c1\" address=127.0.0.1:1 session_present=false durability=\"os\"";
        assert_eq!(lines[0].text, expected);
    }
}
