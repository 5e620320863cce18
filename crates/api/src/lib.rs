//! The API of a node: health, metrics, the API under `/api/v1`, its OpenAPI document and the console. Also the
//! publisher of `$SYS`, which uses the same statistics. It starts the HTTP server (`web`) and adds ThingsBoard's
//! interface (`thingsboard`).
//!
//! It has two threads of its own. It accesses the broker only with closures that a shard runs between two batches
//! (`net::Handle`), and never touches the data plane. Only the binary depends on it.
//!
//! Start with `routes.rs`, the list of all endpoints, from which the router and the OpenAPI document are generated.

// A request creates at most one `Problem`. Boxing it everywhere would cost readability and save little.
#![allow(clippy::result_large_err)]

mod access_admin;
mod alarm_watch;
mod alarms;
mod app;
mod backup_admin;
mod bench_admin;
mod certificate_admin;
mod concurrency;
mod config;
mod config_admin;
#[cfg(feature = "platform")]
mod device_platform;
#[cfg(not(feature = "platform"))]
#[path = "device_platform/absent.rs"]
mod device_platform;
mod disk;
mod endpoints;
mod fixed_limits;
mod history;
mod history_store;
mod log_ring;
mod message_body;
mod metrics;
mod opentelemetry;
mod packet_fields;
#[cfg(feature = "platform")]
mod platform_routes;
#[cfg(not(feature = "platform"))]
#[path = "platform_routes/absent.rs"]
mod platform_routes;
mod process;
mod readiness;
mod routes;
mod sampler;
mod server;
mod shards;
mod single_sign_on;
mod start_error;
mod sys_publisher;
mod tar;
mod telemetry;
mod trace;

pub use access_admin::{
    AccessAdmin, AccessFailure, AccessOrder, AccessSystem, AclRules, AuthProviderFigures, ChangeError, LoginTest,
    LoginTestError, LoginTestOutcome, LoginTestStep, LoginVerdict, SourcesTest, TestedLogin, TestedSource,
};
pub use backup_admin::{
    Backup, BackupAdmin, BackupAdminError, Backups, FailedBackup, ReplacedData, Restore, RestoreOutcome, RestoreState,
    RunningBackup,
};
pub use bench_admin::{
    BenchAdmin, BenchError, BenchErrors, BenchMeasure, BenchOrder, BenchResult, BenchScenario, BenchSecond,
    BenchVerdict, Benchmark, Benchmarks, FailedBenchmark, RunningBenchmark,
};
pub use certificate_admin::{
    CertificateAdmin, CertificateError, CertificateField, DiskState, ManagedItem, ManagedKind, ServerCertificate,
};
pub use config::{ApiConfig, ConfigValue, NodeInfo, SysConfig};
pub use config_admin::{ConfigAdmin, ConfigChangeError, ConfigChanges, ConfigDifference};
pub use device_platform::DevicePlatform;
pub use endpoints::openapi::own_document;
pub use fixed_limits::fixed_limits;
pub use history_store::DIRECTORY_NAME as HISTORY_NAME;
pub use log_ring::{LogLineLevel, LogRing};
pub use metrics::{Family as MetricFamily, families as metric_families};
pub use routes::operations;
pub use server::{ApiHandle, TlsReloader, bind, start, start_on};
pub use single_sign_on::{
    IdentityProvider, ProviderAnswer, ProviderCode, ProviderFailure, ProviderIdentity, SingleSignOnConfig,
};
pub use start_error::ApiStartError;
pub use sys_publisher::{ClientEventSender, ClientEvents, client_events};
pub use telemetry::{ExportAnswer, ExportError, TelemetryCollector, TelemetryConfig};
