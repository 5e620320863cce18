//! Assembles the state that the endpoints share. One per `start`; cloning increments a reference count.
//!
//! No endpoint sees the whole state. A handler names the parts that it uses, such as `State<Shards>` or
//! `State<Arc<Alarms>>`. `parts!` lists them. A type that consists of several parts implements `FromRef<App>` next to
//! its definition, with [`App::part`].

use std::path::Path;
use std::sync::{Arc, OnceLock};

use auth::LoginLimiter;
use axum::body::Bytes;
use axum::extract::FromRef;
use axum::http::StatusCode;
use integration::Engine;
use serde_json::json;
use tracing::warn;
use web::PasswordHashing;
use web::admins::Admins;
use web::answer_memory::AnswerMemory;
use web::api_keys::ApiKeys;
use web::audit::{self, Audit, AuditEntry};
use web::guard::{Guard, MetricsAccess, RecordedChanges};
use web::limits::ApiCounters;
use web::logins::Logins;

use crate::access_admin::AccessAdmin;
use crate::alarms::Alarms;
use crate::backup_admin::BackupAdmin;
use crate::bench_admin::BenchAdmin;
use crate::certificate_admin::CertificateAdmin;
use crate::concurrency::{ChangeLock, ConnectorTests, Downloads, SourceQuestions, Viewers};
use crate::config::{ApiConfig, Book, HttpPort, NodeInfo, ShownConfiguration, SysConfig, TokenLifetime};
use crate::config_admin::ConfigAdmin;
use crate::device_platform::DevicePlatform;
use crate::disk::DataDirectory;
use crate::history::History;
use crate::log_ring::LogRing;
use crate::readiness::Readiness;
use crate::single_sign_on::SingleSignOn;
use crate::start_error::ApiStartError;
use crate::telemetry::{ExportCounters, TelemetryConfig};

/// File in the data directory.
const API_KEYS_FILE: &str = "api-keys.json";

/// An endpoint of the server's own API.
pub type Endpoint = web::endpoint::Endpoint<App>;

#[derive(Clone)]
pub struct App {
    state: Arc<AppState>,
}

struct AppState {
    config: ApiConfig,
    port: Arc<HttpPort>,
    data_directory: DataDirectory,
    net: net::ServerHandle,
    access: Arc<dyn AccessAdmin>,
    guard: Guard,
    node: Arc<NodeInfo>,
    hashing: Arc<PasswordHashing>,
    token_lifetime: TokenLifetime,
    single_sign_on: Option<SingleSignOn>,
    viewers: Viewers,
    downloads: Downloads,
    connector_tests: ConnectorTests,
    source_questions: SourceQuestions,
    changes: ChangeLock,
    readiness: Arc<Readiness>,
    counters: Arc<ApiCounters>,
    answers: Arc<AnswerMemory>,
    alarms: Arc<Alarms>,
    history: Arc<History>,
    exports: Arc<ExportCounters>,
    configuration: ShownConfiguration,
    openapi: Arc<OpenApiDocument>,
}

/// The OpenAPI document of the server's own API, made at the first request.
#[derive(Default)]
pub struct OpenApiDocument(pub OnceLock<Bytes>);

/// Makes parts of the state available to handlers: the type, and its field in `AppState`.
macro_rules! parts {
    ($($part:ty = $($field:ident).+;)+) => {
        $(
            impl FromRef<App> for $part {
                fn from_ref(app: &App) -> $part {
                    app.state.$($field).+.clone()
                }
            }
        )+
    };
}

parts! {
    net::ServerHandle = net;
    Arc<NodeInfo> = node;
    Arc<HttpPort> = port;
    Arc<Readiness> = readiness;
    Arc<Alarms> = alarms;
    Arc<History> = history;
    Arc<ExportCounters> = exports;
    Option<TelemetryConfig> = config.telemetry;
    DataDirectory = data_directory;
    ShownConfiguration = configuration;
    Guard = guard;
    Arc<Admins> = guard.admins;
    Arc<ApiKeys> = guard.api_keys;
    Arc<Logins> = guard.logins;
    Arc<Audit> = guard.audit;
    Arc<PasswordHashing> = hashing;
    Arc<LoginLimiter> = config.login_limiter;
    TokenLifetime = token_lifetime;
    Option<SingleSignOn> = single_sign_on;
    Arc<ApiCounters> = counters;
    Arc<AnswerMemory> = answers;
    Viewers = viewers;
    Downloads = downloads;
    ConnectorTests = connector_tests;
    SourceQuestions = source_questions;
    ChangeLock = changes;
    Arc<dyn AccessAdmin> = access;
    Option<Arc<dyn BackupAdmin>> = config.backups;
    Option<Arc<dyn BenchAdmin>> = config.benchmarks;
    Option<Arc<dyn CertificateAdmin>> = config.certificates;
    Option<Arc<dyn ConfigAdmin>> = config.configuration;
    Option<Engine> = config.engine;
    Option<DevicePlatform> = config.device_platform;
    Option<SysConfig> = config.sys;
    Arc<LogRing> = config.log;
    Book = config.book;
    Arc<OpenApiDocument> = openapi;
}

impl App {
    pub fn new(
        config: ApiConfig,
        net: net::ServerHandle,
        access: Arc<dyn AccessAdmin>,
        admins: Admins,
        node: NodeInfo,
    ) -> Result<App, ApiStartError> {
        let data_dir = config.data_dir.as_deref();
        let in_file = |name: &str| {
            let path = data_dir.unwrap_or(Path::new("")).join(name);
            move |source| ApiStartError::File { path, source }
        };
        let path = data_dir.map(|directory| directory.join(API_KEYS_FILE));
        let api_keys = ApiKeys::open(path.as_deref()).map_err(in_file(API_KEYS_FILE))?;
        let audit = Audit::open(data_dir).map_err(in_file(audit::FILE))?;
        record_command_line(&admins, &audit);
        let guard = Guard {
            admins: Arc::new(admins.with_required_totp(config.require_totp)),
            api_keys: Arc::new(api_keys),
            logins: Arc::default(),
            audit: Arc::new(audit),
            option_schemas,
            metrics: MetricsAccess {
                is_public: config.metrics_without_login,
                is_on_loopback: config.bind.ip().to_canonical().is_loopback(),
            },
            recorded_changes: RecordedChanges::default(),
        };
        Ok(App {
            state: Arc::new(AppState {
                port: Arc::new(HttpPort::of(&config)),
                data_directory: DataDirectory::new(data_dir),
                token_lifetime: TokenLifetime(config.token_lifetime),
                single_sign_on: config
                    .single_sign_on
                    .clone()
                    .map(|single_sign_on| SingleSignOn::new(single_sign_on, config.login_limiter.clone())),
                answers: AnswerMemory::new(config.limits.unsent_answer_bytes_max),
                config,
                net,
                access,
                guard,
                node: Arc::new(node),
                hashing: Arc::default(),
                viewers: Viewers::default(),
                downloads: Downloads::default(),
                connector_tests: ConnectorTests::default(),
                source_questions: SourceQuestions::default(),
                changes: ChangeLock::default(),
                readiness: Arc::default(),
                counters: Arc::default(),
                alarms: Arc::default(),
                history: Arc::default(),
                exports: Arc::default(),
                configuration: ShownConfiguration::default(),
                openapi: Arc::default(),
            }),
        })
    }

    /// Returns a part of the state.
    pub fn part<T: FromRef<App>>(&self) -> T {
        T::from_ref(self)
    }
}

/// Records second factors that were removed on the command line while the server was stopped.
fn record_command_line(admins: &Admins, audit: &Audit) {
    let removed = admins.removed_on_command_line();
    if removed.is_empty() {
        return;
    }
    for (user, at_unix_ms) in removed {
        audit.write(AuditEntry {
            number: 0,
            at_unix_ms,
            user: "command line".into(),
            namespace: None,
            address: String::new(),
            operation: "remove_console_totp".into(),
            method: String::new(),
            path: "tidewire passwd".into(),
            body: Some(json!({ "name": user })),
            before: None,
            after: None,
            status: StatusCode::OK.as_u16(),
        });
    }
    if let Err(error) = admins.forget_removed_on_command_line() {
        warn!(%error, "the removed second factors are recorded again at the next start");
    }
}

/// Returns the schemas of the options of a connector, an action or a source.
fn option_schemas(field: &str, kind: &str) -> Vec<schemars::Schema> {
    let schemas = match field {
        "config" => [integration::config_schema(kind), None],
        "parameters" => [integration::parameters_schema(kind), integration::source_schema(kind)],
        _ => [None, None],
    };
    schemas.into_iter().flatten().collect()
}
