//! Starts and stops the server: from a configuration to running listeners.
//!
//! `translate` converts the configuration for the other crates. `access` authenticates and authorizes. `observe`
//! writes events of clients to the log. `reload` handles SIGHUP, `configure` changes of the configuration through the
//! API, and `restart` a restart in the same process. This file connects them and waits for signals.

mod access;
mod access_providers;
mod access_sources;
mod backups;
#[cfg(feature = "bench")]
mod benchmarks;
mod certificates;
mod configure;
mod derived_limits;
mod file_modes;
mod flapping;
mod guesses;
mod http;
mod list_files;
mod managed_certificates;
mod observe;
mod open_journal;
mod open_questions;
mod providers;
mod reload;
pub mod restart;
mod single_sign_on;
mod telemetry;
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
use crate::backup::switch::RestoreResult;
use crate::banner::{self, BannerStyle, BannerSummary, ListenerSummary};
use crate::config::files::{self, chain};
use crate::config::options::access::Anonymous;
use crate::config::{Config, ConfigSources, LoadedConfig, ValueOrigin};
use crate::device_platform::DevicePlatform;
use crate::logging::LogFile;
use crate::memory;
use crate::output::{EXIT_FAILURE, fail, print};
use crate::process_limits;
use crate::stores::{self, OlderBuffers, StoresRecorder};
use crate::systemd::{Notifier, NotifyEnvironment};
pub use access::BANS_FILE;
use access::{ClientAuthenticator, NodeAccess};
use api::{ClientEventSender, ClientEvents};
use certificates::NodeCertificates;
use flapping::FlappingBans;
use managed_certificates::ManagedCertificates;
use net::descriptors::{DescriptorNeeds, DescriptorShares};
use observe::EventLog;
pub use providers::check_access;
use reload::Reloader;
use restart::RestartRequest;
use web::limits::ApiLimits;

/// Threads of a server besides the workers: of the API, the rule engine, the device platform, journals and databases.
const THREADS: usize = if cfg!(feature = "platform") { 40 } else { 24 };

/// State of the process outside the configuration.
#[derive(Debug)]
pub struct ServeOptions {
    /// Do not print the start-up box.
    pub is_quiet: bool,
    /// Log file, if the log goes to a file.
    pub log_file: Option<LogFile>,
    /// The last lines of the log.
    pub log: Arc<api::LogRing>,
    pub companion: Option<Box<dyn CompanionTask>>,
    /// Result of a restore that was carried out at this start.
    pub restore_result: RestoreResult,
}

/// A task that runs as long as the server.
pub trait CompanionTask: std::fmt::Debug {
    /// Called when the server is ready.
    fn started(&self, at: &LocalAddresses);

    /// Called when the server stops. Clients are disconnected after it returns.
    fn stopping(&self);
}

/// Addresses of the server for clients on the same machine.
#[derive(Clone, Debug, Default)]
pub struct LocalAddresses {
    /// MQTT over TCP.
    pub mqtt: Option<SocketAddr>,
    pub api_url: Option<String>,
}

/// Runs until a signal or the API stops it.
pub fn serve(loaded: &LoadedConfig, sources: &ConfigSources, options: &ServeOptions) -> ExitCode {
    restart::log_restore(&options.restore_result);
    match run(loaded, sources, options) {
        Ok(ServeEnd::Stopped) => ExitCode::SUCCESS,
        Ok(ServeEnd::RestartProcess) => restart::restart_process(),
        Err(failure) => match restart::reject_restore(&loaded.config.data_dir, &failure) {
            Some(code) => code,
            None => fail(EXIT_FAILURE, &failure.message()),
        },
    }
}

/// Why the server did not start.
pub enum StartFailure {
    /// Another process uses a port. It may be free a moment later.
    PortInUse(String),
    Other(String),
}

impl StartFailure {
    fn message(&self) -> &str {
        match self {
            StartFailure::PortInUse(message) | StartFailure::Other(message) => message,
        }
    }
}

impl From<String> for StartFailure {
    fn from(message: String) -> StartFailure {
        StartFailure::Other(message)
    }
}

enum ServeEnd {
    Stopped,
    RestartProcess,
}

fn run(loaded: &LoadedConfig, sources: &ConfigSources, options: &ServeOptions) -> Result<ServeEnd, StartFailure> {
    // Before any other thread starts, so that all threads block these signals.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|e| format!("cannot handle signals: {e}"))?;
    let config = &loaded.config;
    for (variable, right) in sources.misspelt_variables() {
        tracing::warn!(variable, "the environment variable is ignored; did you mean {right}?");
    }
    let open_files_max = raise_file_limit();
    memory::give_small_blocks_back().map_err(|e| format!("cannot start the thread that returns free memory: {e}"))?;
    let workers = workers(config);
    process_limits::check_threads(usize::from(workers.get()) + THREADS)?;
    create_data_dir(&config.data_dir)?;
    check_data_dir(&config.data_dir)?;
    file_modes::restrict(&config.data_dir);
    file_modes::warn_of_readable_secrets(files::secret_files(config));
    stores::check(config)?;
    let older_buffers = OlderBuffers::read(&config.data_dir)?;
    let managed = ManagedCertificates::open(config)?;
    let login_limiter = guesses::login_limiter(&config.access);
    let devices = DevicePlatform::open(config, &login_limiter)?;
    let access = Arc::new(NodeAccess::new(loaded, devices.clone(), login_limiter)?);
    let (sys_sender, sys_events) = sys_events(config).unzip();
    let flapping = FlappingBans::new(&config.flapping, access.clone());
    let events = EventLog::start(&config.data_dir, &config.durability, sys_sender, flapping)
        .map_err(|e| format!("cannot start the thread of the log: {e}"))?;
    let mut server = translate::server_config(config, workers)?;
    let shares = descriptor_shares(config, open_files_max, workers, &server);
    server.descriptor_limit = shares.clients;
    let shard = Arc::new(translate::shard_config(config, workers.get(), &config.listeners));
    let prepared = net::Server::prepare(
        server,
        shard,
        access.clone(),
        Arc::new(ClientAuthenticator(access.clone())),
        Arc::new(events),
    )
    .map_err(|error| match error.is_port_in_use() {
        true => StartFailure::PortInUse(chain(&error)),
        false => StartFailure::Other(chain(&error)),
    })?;
    let handle = prepared.handle();
    access.connect(handle.clone());
    let engine = match integration::Engine::open(
        &config.data_dir,
        &node_name(config),
        loaded.declared.clone(),
        Box::new(move |directory: &Path| older_buffers.problem(directory)),
        config.durability.commit_interval,
    ) {
        Ok(engine) => engine,
        Err(message) => {
            handle.shutdown(Duration::ZERO);
            return Err(message.into());
        }
    };
    // Threads of the engine use its runtime, so it must be shut down in order.
    let abort = |failure| {
        handle.shutdown(Duration::ZERO);
        engine.shut_down();
        Err(failure)
    };
    engine.set_secret_policy(integration::SecretPolicy {
        directory: config.integration.secrets_dir.0.clone(),
        environment_prefix: config.integration.secrets_env_prefix.clone(),
    });
    engine.set_slow_rule_threshold(config.integration.slow_rule_threshold.0);
    engine.serve(handle.clone());
    if let Some(devices) = &devices {
        devices.serve(handle.clone());
    }
    let certificates = match NodeCertificates::new(config, handle.clone(), managed.sources()) {
        Ok(certificates) => Arc::new(certificates),
        Err(message) => return abort(message.into()),
    };
    let reloader = Arc::new(Reloader::new(
        sources,
        loaded,
        handle.clone(),
        access.clone(),
        certificates.clone(),
        engine.clone(),
    ));
    let restart = RestartRequest::default();
    let parts = http::ApiParts {
        net: &handle,
        access: &access,
        engine: &engine,
        device_platform: devices.as_ref(),
        log: &options.log,
        certificates: &certificates,
        reloader: &reloader,
        restart: &restart,
        connections_max: shares.http,
    };
    let http = match http::start(config, node_name(config), &parts, sys_events) {
        Ok(http) => http,
        Err(failure) => return abort(failure),
    };
    let managed = match managed.start(&certificates) {
        Ok(managed) => managed,
        Err(message) => {
            http.stop();
            return abort(message.into());
        }
    };
    // In the meantime, `/readyz` reports that the server is starting, and its progress.
    let taps = taps(&engine, devices.as_ref(), handle.shards());
    let notifier = match Notifier::new(&NotifyEnvironment::of_process()) {
        Ok(notifier) => notifier,
        Err(error) => {
            http.stop();
            return abort(format!("NOTIFY_SOCKET: {error}").into());
        }
    };
    let report_progress = |percent| {
        http.reading_journal(percent);
        // After a restart in the same process, the watchdog runs already.
        notifier.watchdog();
    };
    let stored = open_journal::open(config, &report_progress);
    let started = stored.and_then(|stored| prepared.start(stored, taps).map_err(|error| chain(&error)));
    match started {
        Ok(restored) => {
            open_journal::log_restored(&restored);
            engine.start_sources();
        }
        Err(message) => {
            http.stop();
            return abort(message.into());
        }
    }
    http.set_configuration(reloader.shown());
    restart::finish_restore_trial(&config.data_dir);
    let recorder = StoresRecorder::start(&config.data_dir)
        .inspect_err(|error| tracing::warn!(%error, "cannot start the thread that records the stores"))
        .ok();
    http.ready();
    notifier.ready();
    // Only now, so that `/readyz` agrees.
    if !options.is_quiet {
        let style = BannerStyle {
            is_terminal: io::stdout().is_terminal(),
        };
        print(&banner::render(&summary(loaded, &handle, &http), style));
    }
    tracing::info!(listeners = config.listeners.len(), workers, "ready");
    memory::unmap_code_of_the_start();
    feed_watchdog(&notifier, &handle);
    if let Some(companion) = &options.companion {
        companion.started(&addresses(config, &handle, &http));
    }
    for signal in signals.forever() {
        match signal {
            SIGHUP => reloader.reload(&http, options.log_file.as_ref()),
            _ => break,
        }
    }
    let is_restart = restart.is_requested();
    if let Some(companion) = &options.companion {
        companion.stopping();
    }
    match is_restart {
        // The service keeps running.
        true => notifier.status("restarting"),
        false => notifier.stopping(),
    }
    tracing::info!(grace_ms = config.limits.shutdown_grace.as_millis() as u64, "stopping");
    http.stopping();
    managed.stop();
    handle.shutdown(config.limits.shutdown_grace);
    engine.shut_down();
    http.stop();
    if let Some(devices) = &devices {
        devices.shut_down();
    }
    if let Some(recorder) = recorder {
        recorder.stop();
    }
    tracing::info!("stopped");
    // A stop request during a pending restart has priority.
    let is_stopped = signals.pending().any(|signal| signal != SIGHUP);
    if !is_restart || is_stopped {
        return Ok(ServeEnd::Stopped);
    }
    notifier.watchdog();
    Ok(ServeEnd::RestartProcess)
}

fn addresses(config: &Config, handle: &net::ServerHandle, http: &http::Http) -> LocalAddresses {
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
    LocalAddresses {
        mqtt: mqtt.map(|(_, info)| on_this_machine(info.address)),
        api_url: http.url(),
    }
}

/// Returns the tap and the inbox of each shard.
fn taps(engine: &integration::Engine, devices: Option<&DevicePlatform>, shards: u16) -> Vec<net::ShardTaps> {
    let seed = u64::from(std::process::id());
    let taps = |shard: u16| net::ShardTaps {
        tap: Box::new(engine.tap(seed ^ u64::from(shard) << 32)),
        inbox: devices.map(|devices| devices.inbox(shard)),
    };
    (0..shards).map(taps).collect()
}

/// The queue of connect and disconnect events for the `$SYS` tree of EMQX, if that is enabled.
fn sys_events(config: &Config) -> Option<(ClientEventSender, ClientEvents)> {
    let is_wanted = config.api.enabled && config.sys.interval.0.is_some() && config.sys.emqx_tree;
    is_wanted.then(|| api::client_events(&node_name(config)))
}

fn workers(config: &Config) -> NonZeroU16 {
    let most = net::default_workers();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if config.node.workers == 0 && cores > usize::from(most) {
        tracing::info!(
            cores,
            workers = most,
            "the machine has more cores than the maximum number of workers"
        );
    }
    NonZeroU16::new(config.node.workers)
        .or(NonZeroU16::new(most))
        .unwrap_or(NonZeroU16::MIN)
}

/// Raises the limit of open files to the maximum: every connection needs one. Returns the limit.
fn raise_file_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, open_files = ?limit.current, "cannot raise the limit of open files");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Divides the descriptors of the process between clients, the API and everything else.
fn descriptor_shares(
    config: &Config,
    open_files_max: u64,
    workers: NonZeroU16,
    server: &net::ServerConfig,
) -> DescriptorShares {
    const FEW_CLIENTS: usize = 1000;
    // The epoll and the eventfd of a worker, and a duplicate of each listening socket.
    let per_worker = 2 + server.listeners.len();
    let needs = DescriptorNeeds {
        workers: workers.get(),
        per_worker,
        http_listeners: [config.api_bind(), config.platform_bind()].iter().flatten().count(),
        http_max: ApiLimits::default().connections_max,
    };
    let shares = net::descriptors::shares(open_files_max, needs);
    if shares.clients < FEW_CLIENTS.min(server.max_connections) {
        tracing::warn!(
            open_files_max,
            clients_max = shares.clients,
            "the limit of open files allows few clients: raise it (LimitNOFILE, ulimit -n)"
        );
    }
    shares
}

fn create_data_dir(path: &Path) -> Result<(), String> {
    let private = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    private.map_err(|e| {
        format!(
            "node.data_dir: cannot create {}: {e}; choose another directory with --set node.data_dir=PATH",
            path.display()
        )
    })
}

/// Notifies the watchdog of systemd as long as every worker responds.
fn feed_watchdog(notifier: &Notifier, net: &net::ServerHandle) {
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
                Err(error) => {
                    tracing::error!(%error, "a worker does not respond: not notifying the watchdog of systemd")
                }
            }
            thread::sleep(interval.saturating_sub(asked.elapsed()));
        }
    });
}

fn summary(loaded: &LoadedConfig, handle: &net::ServerHandle, http: &http::Http) -> BannerSummary {
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
    BannerSummary {
        version: crate::cli::VERSION.into(),
        program: program(),
        node: node_name(config),
        workers: handle.shards().into(),
        listeners: listeners.collect(),
        durability: banner::durability(config.durability.policy).into(),
        anonymous: anonymous_words(config).into(),
        api_url: http.url(),
        admin: http.first_login(),
        demo: (config.platform.enabled && config.platform.demo).then(|| config.open_demo_binds()),
        config_sources: config_sources(loaded),
        data_dir: config.data_dir.display().to_string(),
    }
}

fn config_sources(loaded: &LoadedConfig) -> Vec<String> {
    let mut all: Vec<String> = loaded.files.iter().map(|path| path.display().to_string()).collect();
    let count = |is_of: fn(&ValueOrigin) -> bool| loaded.effective.iter().filter(|value| is_of(&value.origin)).count();
    let layers = [
        (
            count(|origin| matches!(origin, ValueOrigin::Runtime { .. })),
            "changed while it ran",
        ),
        (
            count(|origin| matches!(origin, ValueOrigin::Environment { .. })),
            "from the environment",
        ),
        (count(|origin| matches!(origin, ValueOrigin::Flag)), "by --set"),
    ];
    all.extend(
        layers
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, how)| format!("{count} {how}")),
    );
    all
}

/// The command for this program: its path, unless the shell finds it by name.
fn program() -> String {
    let typed = std::env::args().next().unwrap_or_default();
    let path = typed.contains('/').then(std::env::current_exe);
    match path {
        Some(Ok(path)) => path.display().to_string(),
        _ => "tidewire".into(),
    }
}

pub fn node_name(config: &Config) -> String {
    if config.node.name.is_empty() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        config.node.name.clone()
    }
}

fn anonymous_words(config: &Config) -> &'static str {
    match config.access.anonymous {
        Anonymous::Never => "off: every client needs a user name and password",
        Anonymous::Loopback => "from this machine only; others need a user name and password (access.users)",
        Anonymous::Always => "from anywhere: every client may do what the access rules allow",
    }
}
