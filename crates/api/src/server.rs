//! Starts and stops the HTTP server and the tasks of the API.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use web::admins::Admins;
use web::server::{HttpOptions, HttpServer};

use crate::access_admin::AccessAdmin;
use crate::alarm_watch::AlarmWatcher;
use crate::app::App;
use crate::config::{ApiConfig, ConfigValue, HttpPort, NodeInfo, ShownConfiguration, SysConfig};
use crate::device_platform::{self, DevicePlatform};
use crate::endpoints::console;
use crate::opentelemetry;
use crate::readiness::Readiness;
use crate::routes;
use crate::sampler::Sampler;
use crate::start_error::ApiStartError;
use crate::sys_publisher::{ClientEvents, SysPublisher, publish_events, publish_statistics};
use crate::telemetry::TelemetryConfig;

const THREADS: usize = 2;
/// Threads for password hashes and disk writes.
const BLOCKING_THREADS_MAX: usize = 8;

/// The running HTTP server. Dropping it stops it at once; `stop` lets requests finish.
pub struct ApiHandle {
    app: App,
    address: SocketAddr,
    tls: watch::Sender<Option<TlsAcceptor>>,
    stop: watch::Sender<bool>,
    runtime: Option<Runtime>,
}

/// Binds the port and serves requests. `/readyz` answers 503 until `ApiHandle::ready`.
pub fn start(
    config: ApiConfig,
    net: net::ServerHandle,
    access: Arc<dyn AccessAdmin>,
    admins: Admins,
    node: NodeInfo,
) -> Result<ApiHandle, ApiStartError> {
    start_on(bind(config.bind)?, config, net, access, admins, node)
}

/// Like `start`, on a port from `bind`. Callers can bind the port before they create anything else.
pub fn start_on(
    listener: TcpListener,
    config: ApiConfig,
    net: net::ServerHandle,
    access: Arc<dyn AccessAdmin>,
    admins: Admins,
    node: NodeInfo,
) -> Result<ApiHandle, ApiStartError> {
    let address = listener.local_addr().map_err(ApiStartError::Resources)?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_name("api")
        .enable_all()
        .build()
        .map_err(ApiStartError::Resources)?;
    let tls = watch::Sender::new(config.tls.clone().map(TlsAcceptor::from));
    let app = App::new(config, net, access, admins, node)?;
    let (stop, stopped) = watch::channel(false);
    let (listener, of_platform) = {
        let _guard = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(ApiStartError::Resources)?;
        (listener, platform_listener(&app)?)
    };
    if let Some(sys) = app.part::<Option<SysConfig>>() {
        let publisher = SysPublisher::new(app.part(), app.part(), app.part(), sys);
        runtime.spawn(publish_statistics(publisher, stopped.clone()));
    }
    if let Some(telemetry) = app.part::<Option<TelemetryConfig>>() {
        let _guard = runtime.enter();
        opentelemetry::start(&app, &telemetry, &stopped);
    }
    runtime.spawn(app.part::<Sampler>().sample(stopped.clone()));
    runtime.spawn(app.part::<AlarmWatcher>().watch(stopped.clone()));
    let port: Arc<HttpPort> = app.part();
    let options = HttpOptions {
        limits: port.limits.clone(),
        allowed_hosts: port.allowed_hosts.clone(),
        trusted_proxies: port.trusted_proxies.clone(),
        may_wait: device_platform::may_wait,
        is_file: console::is_file,
    };
    let http = HttpServer::new(options, app.part(), app.part());
    if let Some(listener) = of_platform {
        let router = routes::platform_router(&app);
        runtime.spawn(http.clone().listen(listener, router, tls.subscribe(), stopped.clone()));
    }
    app.part::<net::ServerHandle>().set_handed_over_address(address);
    runtime.spawn(http.listen(listener, routes::router(&app), tls.subscribe(), stopped));
    Ok(ApiHandle {
        app,
        address,
        tls,
        stop,
        runtime: Some(runtime),
    })
}

/// Returns the listener that serves only the device platform's interface, if there is one.
fn platform_listener(app: &App) -> Result<Option<tokio::net::TcpListener>, ApiStartError> {
    let platform: Option<DevicePlatform> = app.part();
    let Some(listener) = platform.as_ref().and_then(DevicePlatform::listener) else {
        return Ok(None);
    };
    let listener = listener.try_clone().map_err(ApiStartError::Resources)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(ApiStartError::Resources)?;
    Ok(Some(listener))
}

pub fn bind(address: SocketAddr) -> Result<TcpListener, ApiStartError> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    bound.map_err(|source| {
        let is_taken = source.kind() == io::ErrorKind::AddrInUse;
        let owner = is_taken.then(|| net::find_port_owner(address)).flatten();
        ApiStartError::Bind { address, source, owner }
    })
}

impl ApiHandle {
    /// The bound address; port 0 is resolved.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the port's certificate while the server runs.
    pub fn tls_reloader(&self) -> TlsReloader {
        TlsReloader(self.tls.clone())
    }

    /// Sets the configuration that the console shows.
    pub fn set_configuration(&self, values: Vec<ConfigValue>) {
        self.app.part::<ShownConfiguration>().set(values);
    }

    /// Sets the progress that `/readyz` reports while the journal is read.
    pub fn reading_journal(&self, percent: u8) {
        self.app.part::<Arc<Readiness>>().reading_journal(percent);
    }

    /// Makes `/readyz` report that the node is ready.
    pub fn ready(&self) {
        self.app.part::<Arc<Readiness>>().started();
    }

    /// Makes `/readyz` report that the node is not ready, so that load balancers stop sending traffic. Requests are
    /// still served.
    pub fn stopping(&self) {
        self.app.part::<Arc<Readiness>>().stopping();
    }

    /// Publishes the events of the queue until the handle is stopped.
    pub fn publish_client_events(&self, events: ClientEvents) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(publish_events(self.app.part(), events, self.stop.subscribe()));
        }
    }

    /// Stops accepting connections, and lets requests finish for at most `grace`.
    pub fn stop(mut self, grace: Duration) {
        self.stopping();
        let Some(runtime) = self.runtime.take() else { return };
        self.stop.send_replace(true);
        runtime.block_on(async {
            // The acceptor drops its receiver after the last connection.
            let _ = tokio::time::timeout(grace, self.stop.closed()).await;
        });
        runtime.shutdown_timeout(Duration::from_millis(100));
    }
}

/// Changes the certificate of a port.
#[derive(Clone)]
pub struct TlsReloader(watch::Sender<Option<TlsAcceptor>>);

impl TlsReloader {
    /// Sets the certificate and key for new connections. With `None` the port accepts plain HTTP.
    pub fn reload(&self, config: Option<Arc<rustls::ServerConfig>>) {
        self.0.send_replace(config.map(TlsAcceptor::from));
    }
}

impl Drop for ApiHandle {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
