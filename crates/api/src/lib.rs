//! The HTTP side of a node: health, metrics, the API under `/api/v1`, its OpenAPI document and the console; and the
//! publisher of `$SYS`, which reads the same numbers.
//!
//! It runs on two threads of its own and reaches the broker only by closures that a shard runs between two batches
//! (`net::Handle`). It never touches the data plane, and nothing depends on it but the binary. Everything a peer can make
//! it hold is bounded: connections, requests at once, header, body and write time, logins, login attempts.
//!
//! Start with `routes.rs`: the one list of endpoints, from which router and OpenAPI document are made. `server.rs` is
//! what happens to a connection, `guard.rs` what happens to every request before its endpoint.

// A `Problem` is made at most once per request; a box at every use would cost more to read than it saves.
#![allow(clippy::result_large_err)]

mod access_admin;
mod admins;
mod alarm_watch;
mod alarms;
mod api_keys;
mod app;
mod audit;
mod backup_admin;
mod bench_admin;
mod blocking;
mod body;
mod certificate_admin;
mod config;
mod config_admin;
mod console_files;
mod device_api;
mod disk;
mod endpoint;
mod endpoints;
mod guard;
mod history;
mod history_store;
mod if_match;
mod log_ring;
mod login_limiter;
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
    Backup, BackupAdmin, BackupError, BackupState, FailedBackup, RestoreOutcome, Restoring, RunningBackup, SetAside,
};
pub use bench_admin::{
    BenchAdmin, BenchError, BenchErrors, BenchMeasure, BenchOrder, BenchResult, BenchScenario, BenchSecond, BenchState,
    BenchVerdict, FailedBench, FinishedBench, RunningBench,
};
pub use certificate_admin::{CertificateAdmin, CertificateError, CertificateField, OnDisk, ServerCertificate};
pub use config::{ApiConfig, ApiLimits, ConfigValue, NodeInfo};
pub use config_admin::{ConfigAdmin, ConfigChanges, ConfigDifference, ConfigError};
pub use history_store::DIRECTORY_NAME as HISTORY_NAME;
pub use log_ring::{LogLevel, LogRing};
pub use server::{ApiHandle, StartError, TlsReloader, bind, start, start_on};
pub use suggest::nearest;
pub use sys_publisher::{ClientEventSender, ClientEvents, SysConfig, client_events};
pub use thingsboard::World as PlatformAccess;
