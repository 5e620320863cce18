//! Starting the server: from a configuration to running listeners, and back down again.
//!
//! `translate` turns the configuration into what the crates below take; `access` decides who may do what; `observe` writes
//! down what happens; `reload` is SIGHUP, `configure` what the API changes of the
//! configuration, `restart` a start anew in the same process. This file puts them together and waits for signals.

mod access;
mod backups;
mod benchmarks;
mod certificates;
mod configure;
mod http;
mod keep;
mod observe;
mod outward;
mod platform;
mod reload;
pub mod restart;
mod translate;

use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::backup::check_data_dir;
use crate::backup::switch::CarriedOut;
use crate::banner::{self, ListenerSummary, Style, Summary};
use crate::config::files::chain;
use crate::config::options::access::Anonymous;
use crate::config::{Config, Loaded, Origin, Sources};
use crate::logging::LogFile;
use crate::memory;
use crate::output::{EXIT_FAILURE, fail, print};
use crate::systemd::{Notifier, NotifyEnvironment};
use access::NodeAccess;
use api::{ClientEventSender, ClientEvents};
use certificates::Certificates;
use devices::Devices;
use observe::EventLog;
use reload::Reloader;
use restart::Restart;

/// What the process has beside the configuration.
#[derive(Debug)]
pub struct ServeOptions {
    /// No start-up box.
    pub is_quiet: bool,
    /// Where the log goes, if to a file.
    pub log_file: Option<LogFile>,
    /// The last lines of the log.
    pub log: Arc<api::LogRing>,
    pub beside: Option<Box<dyn Beside>>,
    /// What became of a backup that waited to be restored.
    pub carried_out: CarriedOut,
}

/// Something that goes on beside the server, as long as that runs.
pub trait Beside: std::fmt::Debug {
    /// The server can be used.
    fn started(&self, at: &Addresses);

    /// The server can be used until this returns.
    fn stopping(&self);
}

/// Where a server is reached from its own machine.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// MQTT over TCP.
    pub mqtt: Option<SocketAddr>,
    pub api_url: Option<String>,
}

/// Runs until it is told to stop.
pub fn serve(loaded: &Loaded, sources: &Sources, options: &ServeOptions) -> ExitCode {
    restart::tell(&options.carried_out);
    match run(loaded, sources, options) {
        Ok(End::Stopped) => ExitCode::SUCCESS,
        Ok(End::StartAnew) => restart::start_anew(),
        Err(message) => match restart::reject_restore(&loaded.config.data_dir, &message) {
            Some(code) => code,
            None => fail(EXIT_FAILURE, &message),
        },
    }
}

enum End {
    Stopped,
    StartAnew,
}

fn run(loaded: &Loaded, sources: &Sources, options: &ServeOptions) -> Result<End, String> {
    // Before any thread starts, so that none of them gets the signals.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|e| format!("signals cannot be caught: {e}"))?;
    let config = &loaded.config;
    raise_file_limit();
    memory::give_small_blocks_back().map_err(|e| format!("no thread for the memory: {e}"))?;
    make_data_dir(&config.data_dir)?;
    check_data_dir(&config.data_dir)?;
    let devices = platform::open(config)?;
    let access = Arc::new(NodeAccess::new(loaded, devices.clone())?);
    let (sys_sender, sys_events) = sys_events(config).unzip();
    let events = EventLog::start(&config.data_dir, config.durability.policy.word(), sys_sender)
        .map_err(|e| format!("no thread for the log: {e}"))?;
    let workers = workers(config);
    let server = translate::server_config(config, workers)?;
    let shard = Arc::new(translate::shard_config(config, workers.get()));
    let prepared = net::Server::prepare(server, shard, access.clone(), access.clone(), Arc::new(events))
        .map_err(|error| chain(&error))?;
    let handle = prepared.handle();
    access.connect(handle.clone());
    let engine = match integration::Engine::open(&config.data_dir, &node_name(config), loaded.declared.clone()) {
        Ok(engine) => engine,
        Err(message) => {
            handle.shutdown(Duration::ZERO);
            return Err(message);
        }
    };
    engine.serve(handle.clone());
    if let Some(devices) = &devices {
        devices.serve(handle.clone());
    }
    let certificates = match Certificates::new(config, handle.clone()) {
        Ok(certificates) => Arc::new(certificates),
        Err(message) => {
            handle.shutdown(Duration::ZERO);
            return Err(message);
        }
    };
    let reloader = Arc::new(Reloader::new(
        sources,
        loaded,
        handle.clone(),
        access.clone(),
        certificates.clone(),
        engine.clone(),
    ));
    let restart = Restart::default();
    let parts = http::Parts {
        net: &handle,
        access: &access,
        engine: &engine,
        devices: devices.as_ref(),
        log: &options.log,
        certificates: &certificates,
        reloader: &reloader,
        restart: &restart,
    };
    let http = match http::start(config, node_name(config), &parts, sys_events) {
        Ok(http) => http,
        Err(message) => {
            handle.shutdown(Duration::ZERO);
            return Err(message);
        }
    };
    // Meanwhile `/readyz` says that the server is starting, and how far it is.
    let taps = taps(&engine, devices.as_deref(), handle.shards());
    let notifier = Notifier::new(&NotifyEnvironment::of_process()).map_err(|e| format!("NOTIFY_SOCKET: {e}"))?;
    let told = |percent| {
        http.reading_journal(percent);
        // A process that has started anew is watched already.
        notifier.watchdog();
    };
    let kept = keep::open(config, &told);
    let started = kept.and_then(|kept| prepared.start(kept, taps).map_err(|error| chain(&error)));
    match started {
        Ok(restored) => {
            keep::tell_restored(&restored);
            engine.start_sources();
        }
        Err(message) => {
            http.stop();
            handle.shutdown(Duration::ZERO);
            return Err(message);
        }
    }
    if !options.is_quiet {
        let style = Style {
            is_terminal: io::stdout().is_terminal(),
        };
        print(&banner::render(&summary(loaded, &handle, &http), style));
    }
    tracing::info!(listeners = config.listeners.len(), workers, "ready");
    http.set_configuration(reloader.shown());
    restart::settle_restore(&config.data_dir);
    http.ready();
    notifier.ready();
    feed_watchdog(&notifier, &handle);
    if let Some(beside) = &options.beside {
        beside.started(&addresses(config, &handle, &http));
    }
    for signal in signals.forever() {
        match signal {
            SIGHUP => reloader.reload(&http, options.log_file.as_ref()),
            _ => break,
        }
    }
    let is_restart = restart.is_asked();
    if let Some(beside) = &options.beside {
        beside.stopping();
    }
    match is_restart {
        // The service does not stop.
        true => notifier.status("starting anew"),
        false => notifier.stopping(),
    }
    tracing::info!(grace_ms = config.limits.shutdown_grace.as_millis() as u64, "stopping");
    http.stopping();
    handle.shutdown(config.limits.shutdown_grace);
    engine.shut_down();
    http.stop();
    if let Some(devices) = &devices {
        devices.shut_down();
    }
    tracing::info!("stopped");
    // Whoever stops the server while it is about to start anew means it.
    let is_stopped = signals.pending().any(|signal| signal != SIGHUP);
    if !is_restart || is_stopped {
        return Ok(End::Stopped);
    }
    notifier.watchdog();
    Ok(End::StartAnew)
}

fn addresses(config: &Config, handle: &net::Handle, http: &http::Http) -> Addresses {
    let mut listeners = config.listeners.iter().zip(handle.listeners());
    let mqtt = listeners.find(|(listener, _)| listener.kind.scheme() == "mqtt");
    let on_this_machine = |mut address: SocketAddr| {
        if address.ip().is_unspecified() {
            address.set_ip(match address.is_ipv4() {
                true => Ipv4Addr::LOCALHOST.into(),
                false => Ipv6Addr::LOCALHOST.into(),
            });
        }
        address
    };
    Addresses {
        mqtt: mqtt.map(|(_, info)| on_this_machine(info.address)),
        api_url: http.url(),
    }
}

/// One for each shard.
fn taps(engine: &integration::Engine, devices: Option<&Devices>, shards: u16) -> Vec<Box<dyn broker::tap::Tap>> {
    let seed = u64::from(std::process::id());
    let tap = |shard: u16| {
        let rules = Box::new(engine.tap(seed ^ u64::from(shard) << 32)) as Box<dyn broker::tap::Tap>;
        match devices {
            Some(devices) => devices.tap(shard, rules),
            None => rules,
        }
    };
    (0..shards).map(tap).collect()
}

/// The queue for clients coming and going in EMQX's `$SYS` tree, if that is wanted.
fn sys_events(config: &Config) -> Option<(ClientEventSender, ClientEvents)> {
    let is_wanted = config.api.enabled && config.sys.interval.0.is_some() && config.sys.emqx_tree;
    is_wanted.then(|| api::client_events(&node_name(config)))
}

fn workers(config: &Config) -> NonZeroU16 {
    let most = net::default_workers();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if config.node.workers == 0 && cores > usize::from(most) {
        tracing::info!(cores, workers = most, "there are more cores than there can be workers");
    }
    NonZeroU16::new(config.node.workers)
        .or(NonZeroU16::new(most))
        .unwrap_or(NonZeroU16::MIN)
}

/// A broker needs a file per connection: takes what the system allows.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, open_files = ?limit.current, "the limit of open files cannot be raised");
    }
}

fn make_data_dir(path: &Path) -> Result<(), String> {
    let private = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    private.map_err(|e| {
        format!(
            "node.data_dir: {} cannot be made: {e}; choose another with --set node.data_dir=PATH",
            path.display()
        )
    })
}

/// Tells systemd that all is well for as long as every worker answers.
fn feed_watchdog(notifier: &Notifier, net: &net::Handle) {
    let Some(interval) = notifier.watchdog_interval() else {
        return;
    };
    let Ok(notifier) = Notifier::new(&NotifyEnvironment::of_process()) else {
        return;
    };
    let net = net.clone();
    thread::spawn(move || {
        loop {
            let asked = Instant::now();
            match net.call_all(interval / 2, |_, _| ()) {
                Ok(_) => notifier.watchdog(),
                Err(net::CallError::Stopped) => return,
                Err(error) => tracing::error!(%error, "systemd's watchdog is not fed"),
            }
            thread::sleep(interval.saturating_sub(asked.elapsed()));
        }
    });
}

fn summary(loaded: &Loaded, handle: &net::Handle, http: &http::Http) -> Summary {
    let config = &loaded.config;
    let listeners = config
        .listeners
        .iter()
        .zip(handle.listeners())
        .map(|(listener, info)| ListenerSummary {
            label: listener.label(),
            scheme: listener.kind.scheme().into(),
            host: listener.options.bind.host.clone(),
            port: info.address.port(),
            path: listener.ws.as_ref().map(|ws| ws.path.clone()),
        });
    Summary {
        version: crate::cli::VERSION.into(),
        program: program(),
        node: node_name(config),
        workers: handle.shards().into(),
        listeners: listeners.collect(),
        durability: banner::durability(config.durability.policy).into(),
        anonymous: anonymous_words(config).into(),
        api_url: http.url(),
        admin: http.first_login(),
        demo: (config.platform.enabled && config.platform.demo).then(|| platform::open_demo(config)),
        config_sources: config_sources(loaded),
        data_dir: config.data_dir.display().to_string(),
    }
}

fn config_sources(loaded: &Loaded) -> Vec<String> {
    let mut all: Vec<String> = loaded.files.iter().map(|path| path.display().to_string()).collect();
    let count = |is_of: fn(&Origin) -> bool| loaded.effective.iter().filter(|value| is_of(&value.origin)).count();
    let layers = [
        (
            count(|origin| matches!(origin, Origin::Runtime { .. })),
            "changed while it ran",
        ),
        (
            count(|origin| matches!(origin, Origin::Environment { .. })),
            "from the environment",
        ),
        (count(|origin| matches!(origin, Origin::Flag)), "by --set"),
    ];
    all.extend(
        layers
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, how)| format!("{count} {how}")),
    );
    all
}

/// What to type for this very program: its path, unless the shell found it.
fn program() -> String {
    let typed = std::env::args().next().unwrap_or_default();
    let path = typed.contains('/').then(std::env::current_exe);
    match path {
        Some(Ok(path)) => path.display().to_string(),
        _ => "tidewire".into(),
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
