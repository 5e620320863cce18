//! Starting the server: from a configuration to running listeners, and back down again.
//!
//! `translate` turns the configuration into what the crates below take; `access` decides who may do what; `observe` writes
//! down what happens. This file puts them together and waits for signals.

mod access;
mod observe;
mod translate;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::banner::{self, ListenerSummary, Style, Summary};
use crate::config::options::access::Anonymous;
use crate::config::{Config, Loaded};
use crate::output::{EXIT_FAILURE, fail};
use crate::systemd::{Notifier, NotifyEnvironment};
use access::NodeAccess;
use observe::EventLog;

/// What the command line says beside the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServeOptions {
    /// No start-up box.
    pub is_quiet: bool,
}

/// Runs until it is told to stop.
pub fn serve(loaded: Loaded, options: ServeOptions) -> ExitCode {
    match run(loaded, options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(EXIT_FAILURE, &message),
    }
}

fn run(loaded: Loaded, options: ServeOptions) -> Result<(), String> {
    // Before any thread starts, so that none of them gets the signals.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|e| format!("signals cannot be caught: {e}"))?;
    let config = &loaded.config;
    raise_file_limit();
    make_data_dir(&config.data_dir)?;
    let access = Arc::new(NodeAccess::new(config)?);
    let events = EventLog::start().map_err(|e| format!("no thread for the log: {e}"))?;
    let server = translate::server_config(config)?;
    let workers = server.workers.map_or_else(cores, |w| usize::from(w.get()));
    let shard = Arc::new(translate::shard_config(config, workers));
    let handle = net::Server::start(server, shard, access.clone(), access, Arc::new(events))
        .map_err(|error| error.to_string())?;
    let notifier = Notifier::new(&NotifyEnvironment::of_process()).map_err(|e| format!("NOTIFY_SOCKET: {e}"))?;
    if !options.is_quiet {
        let style = Style { is_terminal: io::stdout().is_terminal() };
        print!("{}", banner::render(&summary(&loaded, &handle, workers), style));
    }
    tracing::info!(listeners = handle.listeners().len(), workers, "ready");
    notifier.ready();
    feed_watchdog(&notifier);
    for signal in signals.forever() {
        match signal {
            SIGHUP => tracing::info!("SIGHUP: nothing to reload yet"),
            _ => break,
        }
    }
    notifier.stopping();
    tracing::info!(grace_ms = config.limits.shutdown_grace.as_millis() as u64, "stopping");
    handle.shutdown(config.limits.shutdown_grace);
    tracing::info!("stopped");
    Ok(())
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A broker needs a file per connection: takes what the system allows.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, open_files = ?limit.current, "the limit of open files cannot be raised");
    }
}

fn make_data_dir(path: &Path) -> Result<(), String> {
    std::fs::create_dir_all(path)
        .map_err(|e| format!("node.data_dir: {} cannot be made: {e}; choose another with --set node.data_dir=PATH", path.display()))
}

fn feed_watchdog(notifier: &Notifier) {
    let Some(interval) = notifier.watchdog_interval() else { return };
    let Ok(notifier) = Notifier::new(&NotifyEnvironment::of_process()) else { return };
    thread::spawn(move || {
        loop {
            notifier.watchdog();
            thread::sleep(interval);
        }
    });
}

fn summary(loaded: &Loaded, handle: &net::Handle, workers: usize) -> Summary {
    let config = &loaded.config;
    let listeners = config.listeners.iter().zip(handle.listeners()).map(|(listener, info)| ListenerSummary {
        label: listener.label(),
        scheme: listener.kind.scheme().into(),
        host: listener.options.bind.host.clone(),
        port: info.address.port(),
        path: listener.ws.as_ref().map(|ws| ws.path.clone()),
    });
    Summary {
        version: crate::cli::VERSION.into(),
        node: node_name(config),
        workers,
        listeners: listeners.collect(),
        durability: banner::MEMORY_ONLY.into(),
        anonymous: anonymous_words(config).into(),
        api_url: None,
        admin: None,
        config_files: loaded.files.iter().map(|path| path.display().to_string()).collect(),
        data_dir: config.data_dir.display().to_string(),
    }
}

fn node_name(config: &Config) -> String {
    if config.node.name.is_empty() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        config.node.name.clone()
    }
}

fn anonymous_words(config: &Config) -> &'static str {
    match config.access.anonymous {
        Anonymous::Never => "nobody: every client needs a user name and password",
        Anonymous::Loopback => "from this machine only; others need a user name and password (access.users)",
        Anonymous::Always => "from anywhere: whoever reaches a listener may do what the rules allow",
    }
}
