//! The HTTP server of a node: health, metrics, the API under `/api/v1`, its OpenAPI document and the console. Also the
//! publisher of `$SYS`, which uses the same statistics.
//!
//! It has two threads of its own. It accesses the broker only with closures that a shard runs between two batches
//! (`net::Handle`), and never touches the data plane. Only the binary depends on it. All resources that a client can
//! occupy are limited: connections, requests, time for headers, bodies and writes, logins and login attempts.
//!
//! Start with `routes.rs`, the list of all endpoints, from which the router and the OpenAPI document are generated.
//! `server.rs` handles connections, and `guard.rs` checks each request before its endpoint runs.

// A request creates at most one `Problem`. Boxing it everywhere would cost readability and save little.
#![allow(clippy::result_large_err)]

mod access_admin;
mod admins;
mod alarm_watch;
mod alarms;
mod api_keys;
mod app;
mod audit;
mod audit_body;
mod backup_admin;
mod bench_admin;
mod blocking;
mod body;
mod certificate_admin;
mod config;
mod config_admin;
mod connection_slots;
mod device_api;
mod disk;
mod endpoint;
mod endpoints;
mod fixed_limits;
mod guard;
mod guarded_login;
mod history;
mod history_store;
mod if_match;
mod log_ring;
mod logins;
mod message_body;
mod metrics;
mod openapi;
mod packet_fields;
mod paging;
mod problem;
mod process;
mod query;
mod routes;
mod sampler;
mod server;
mod shards;
mod stall;
mod strict;
mod suggest;
mod sys_publisher;
mod tar;
mod thingsboard;
mod trace;
mod websocket;

pub use access_admin::{AccessAdmin, AclRules, ChangeError};
pub use admins::{Admins, AdminsError, OneTimePassword, Role};
pub use audit::is_audit_file;
pub use backup_admin::{
    BackupAdmin, BackupAdminError, BackupFailure, BackupInfo, BackupProgress, BackupState, FinishedRestore,
    ReplacedData, RestoreProgress,
};
pub use bench_admin::{
    BenchAdmin, BenchError, BenchErrors, BenchMeasure, BenchOrder, BenchResult, BenchScenario, BenchSecond, BenchState,
    BenchVerdict, FailedBench, FinishedBench, RunningBench,
};
pub use certificate_admin::{CertificateAdmin, CertificateError, CertificateField, DiskState, ServerCertificate};
pub use config::{ApiConfig, ApiLimits, ConfigValue, NodeInfo};
pub use config_admin::{ConfigAdmin, ConfigChangeError, ConfigChanges, ConfigDifference};
pub use endpoints::openapi::own_document;
pub use fixed_limits::fixed_limits;
pub use history_store::DIRECTORY_NAME as HISTORY_NAME;
pub use log_ring::{LogLineLevel, LogRing};
pub use metrics::{Family as MetricFamily, families as metric_families};
pub use server::{ApiHandle, ApiStartError, TlsReloader, bind, start, start_on};
pub use suggest::nearest;
pub use sys_publisher::{ClientEventSender, ClientEvents, SysConfig, client_events};
pub use thingsboard::{AccessOptions, PlatformAccess, platform_document};
