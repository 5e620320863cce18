//! The log: structured lines as text or JSON, to standard error or a file.
//!
//! Callers log fields, never values of type `Secret`, whose printed form is `***` anyway. Colours only on a terminal.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Mutex;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::prelude::*;

use crate::config::options::server::{Log, LogFormat, LogLevel};

/// Where the process runs, as far as the log cares.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    pub is_terminal: bool,
    /// Standard error is connected to systemd's journal.
    pub is_journal: bool,
}

impl Surroundings {
    pub fn of_process() -> Surroundings {
        let is_terminal = io::stderr().is_terminal();
        Surroundings {
            is_terminal,
            is_journal: !is_terminal && std::env::var_os("JOURNAL_STREAM").is_some(),
        }
    }
}

/// Installs the log for the whole process. Fails when the file cannot be opened, or when there is a log already.
pub fn install(log: &Log, surroundings: Surroundings) -> Result<(), String> {
    let subscriber = match log.file.0.as_deref() {
        None => subscriber(log, surroundings, BoxMakeWriter::new(io::stderr)),
        Some(path) => {
            let file = append(path).map_err(|error| format!("log.file: cannot open {}: {error}", path.display()))?;
            let surroundings = Surroundings {
                is_terminal: false,
                is_journal: false,
            };
            subscriber(log, surroundings, BoxMakeWriter::new(Mutex::new(file)))
        }
    };
    tracing::subscriber::set_global_default(subscriber).map_err(|error| error.to_string())
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// The log as a value, for any writer.
pub fn subscriber<W>(log: &Log, surroundings: Surroundings, writer: W) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let is_json = match log.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => surroundings.is_journal,
    };
    let registry = tracing_subscriber::registry().with(level_filter(log.level));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(surroundings.is_terminal && !is_json);
    if is_json {
        Box::new(
            registry.with(
                lines
                    .json()
                    .flatten_event(true)
                    .with_current_span(false)
                    .with_span_list(false),
            ),
        )
    } else {
        Box::new(registry.with(lines))
    }
}

fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use super::*;
    use crate::config::value::Unset;
    use crate::secret::Secret;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, surroundings: Surroundings) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = Log {
            level: LogLevel::Info,
            format,
            file: Unset(None),
        };
        tracing::subscriber::with_default(subscriber(&log, surroundings, move || writer.clone()), || {
            tracing::info!(client_id = "c1", password = %Secret::new("hunter2"), "connected");
            tracing::debug!("too quiet");
        });
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    const PIPE: Surroundings = Surroundings {
        is_terminal: false,
        is_journal: false,
    };

    #[test]
    fn text_has_fields_and_no_colours_outside_a_terminal() {
        let text = logged(LogFormat::Auto, PIPE);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.contains(" INFO ") && text.contains("connected client_id=\"c1\" password=***"),
            "{text}"
        );
        assert!(!text.contains('\x1b'), "{text}");
        assert!(
            logged(
                LogFormat::Text,
                Surroundings {
                    is_terminal: true,
                    is_journal: false
                }
            )
            .contains('\x1b')
        );
    }

    #[test]
    fn the_journal_gets_json() {
        let text = logged(
            LogFormat::Auto,
            Surroundings {
                is_terminal: false,
                is_journal: true,
            },
        );
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&line["level"], &line["message"]),
            (&"INFO".into(), &"connected".into())
        );
        assert_eq!((&line["client_id"], &line["password"]), (&"c1".into(), &"***".into()));
        assert!(line["timestamp"].is_string());
    }
}
