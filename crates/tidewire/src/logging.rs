//! The log: structured lines as text or JSON, to standard error or a file, and to a system log.
//!
//! Callers log fields, never values of type `Secret`, whose printed form is `***` anyway. Colours only on a terminal.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use api::LogRing;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::prelude::*;

use crate::config::options::server::{Log, LogFormat, LogLevel};
use crate::log_layer::RingLayer;
use crate::syslog::SyslogLayer;

/// Where the process runs, as far as the log cares.
#[derive(Clone, Copy, Debug)]
pub struct LogEnvironment {
    pub is_terminal: bool,
    /// Standard error is connected to systemd's journal.
    pub is_journal: bool,
}

impl LogEnvironment {
    pub fn of_process() -> LogEnvironment {
        let is_terminal = io::stderr().is_terminal();
        LogEnvironment {
            is_terminal,
            is_journal: !is_terminal && std::env::var_os("JOURNAL_STREAM").is_some(),
        }
    }
}

/// Installs the log for the whole process. Returns its file, if it has one. Fails if the file or the system log cannot
/// be opened, or a log is already installed. `ring` receives the last lines.
pub fn install(
    log: &Log,
    node_name: &str,
    surroundings: LogEnvironment,
    ring: &Arc<LogRing>,
) -> Result<Option<LogFile>, String> {
    let file = log.file.0.as_deref().map(LogFile::open).transpose()?;
    let open = |address| SyslogLayer::open(address, node_name, ring.clone());
    let syslog = log.syslog.0.as_ref().map(open).transpose()?;
    let plain = LogEnvironment {
        is_terminal: false,
        is_journal: false,
    };
    let (surroundings, writer) = match &file {
        Some(file) => (plain, BoxMakeWriter::new(file.clone())),
        None if syslog.is_some() => (plain, BoxMakeWriter::new(io::sink)),
        None => (surroundings, BoxMakeWriter::new(io::stderr)),
    };
    let subscriber = subscriber(log, surroundings, ring, syslog, writer);
    tracing::subscriber::set_global_default(subscriber).map_err(|error| error.to_string())?;
    Ok(file)
}

/// The file that the log goes to.
#[derive(Clone, Debug)]
pub struct LogFile {
    path: PathBuf,
    file: Arc<Mutex<File>>,
}

impl LogFile {
    fn open(path: &Path) -> Result<LogFile, String> {
        // Absolute, so that reopening finds the same file.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let file = Arc::new(Mutex::new(append(&path)?));
        Ok(LogFile { path, file })
    }

    /// Goes on in a new file if the old one was moved away.
    pub fn reopen(&self) -> Result<(), String> {
        let file = append(&self.path)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = <Mutex<File> as MakeWriter<'a>>::Writer;

    fn make_writer(&'a self) -> Self::Writer {
        self.file.make_writer()
    }
}

fn append(path: &Path) -> Result<File, String> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.map_err(|error| format!("log.file: cannot open {}: {error}", path.display()))
}

/// The log as a value, for any writer.
pub fn subscriber<W>(
    log: &Log,
    surroundings: LogEnvironment,
    ring: &Arc<LogRing>,
    syslog: Option<SyslogLayer>,
    writer: W,
) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let is_json = match log.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => surroundings.is_journal,
    };
    let registry = tracing_subscriber::registry()
        .with(line_filter(log.level))
        .with(RingLayer(ring.clone()))
        .with(syslog);
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

/// The QUIC library logs mistakes of its peers as warnings, without a limit. The server has its own lines about them.
fn line_filter(level: LogLevel) -> Targets {
    Targets::new()
        .with_default(level_filter(level))
        .with_target("quinn_proto", LevelFilter::OFF)
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

    use super::*;
    use crate::config::value::Unset;
    use connectors::Secret;

    #[derive(Clone, Default)]
    struct CapturedLines(Arc<Mutex<Vec<u8>>>);

    impl Write for CapturedLines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, surroundings: LogEnvironment) -> String {
        logged_beside(format, surroundings, &Arc::default())
    }

    fn logged_beside(format: LogFormat, surroundings: LogEnvironment, ring: &Arc<LogRing>) -> String {
        let lines = CapturedLines::default();
        let writer = lines.clone();
        let log = Log {
            level: LogLevel::Info,
            format,
            file: Unset(None),
            syslog: Unset(None),
        };
        tracing::subscriber::with_default(
            subscriber(&log, surroundings, ring, None, move || writer.clone()),
            || {
                tracing::info!(client_id = "c1", password = %Secret::new("hunter2"), "connected");
                tracing::debug!("too quiet");
            },
        );
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    const PIPE: LogEnvironment = LogEnvironment {
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
                LogEnvironment {
                    is_terminal: true,
                    is_journal: false
                }
            )
            .contains('\x1b')
        );
    }

    #[test]
    fn the_last_lines_are_in_memory_too() {
        let ring = Arc::default();
        logged_beside(LogFormat::Json, PIPE, &ring);
        let (lines, is_more) = ring.read(|_| true, u64::MAX, 10);
        assert_eq!((lines.len(), is_more), (1, false));
        assert_eq!(lines[0].text, "connected client_id=\"c1\" password=***");
        assert_eq!(lines[0].level, api::LogLineLevel::Info);
    }

    #[test]
    fn the_journal_gets_json() {
        let text = logged(
            LogFormat::Auto,
            LogEnvironment {
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
