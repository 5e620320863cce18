//! ThingsBoard's REST and WebSocket interface for users and scripts: the same paths, JSON, status codes and error
//! codes, on the platform's entities, telemetry and alarms. `docs/reference/thingsboard-api.md` lists the supported
//! operations.
//!
//! `device_api` is the HTTP interface for devices.
//!
//! An operation is a blocking function (`operation.rs`). It is called for the user of a token (`admission.rs`), whose
//! access rights `call.rs` checks. The other files contain the operations by subject.

// A request creates at most one error. Boxing it everywhere would cost readability and save little.
#![allow(clippy::result_large_err)]

mod admission;
mod alarm_activity;
mod alarms;
mod api_keys;
mod assets;
mod assignees;
mod audit_log_counts;
mod audit_logs;
mod auth;
mod authorities;
mod bulk_import;
mod call;
mod chain_events;
mod components;
mod console_access;
mod console_logins;
mod customers;
mod dashboard_contents;
mod dashboards;
pub mod device_api;
mod device_profiles;
mod devices;
mod docs;
mod events;
mod export;
mod failure;
mod fixed_limits;
mod grants;
mod history_answer;
mod info;
mod lists;
mod login_sessions;
mod multipart;
mod operation;
mod operation_log;
mod ota;
mod platform_access;
mod principal;
mod query;
mod queues;
mod quotas;
mod relations;
mod rpc;
mod rule_chains;
mod screen;
mod searches;
mod services;
mod socket;
mod telemetry;
mod tenant_profiles;
mod tenants;
mod token;
mod usage;
mod users;
mod values;

pub use docs::platform_document;
pub use fixed_limits::FIXED_LIMITS;
pub use platform_access::{AccessOptions, PlatformAccess, TokenPair};
pub use services::{ServiceState, Services};

use services::Endpoint;

/// Whether a request may wait for a long time. Such requests cause no work for the server.
pub fn may_wait(path: &str) -> bool {
    rpc::may_wait(path) || telemetry::may_wait(path) || device_api::may_wait(path)
}

pub fn endpoints() -> Vec<Endpoint> {
    [
        docs::endpoints(),
        auth::endpoints(),
        api_keys::endpoints(),
        tenants::endpoints(),
        tenant_profiles::endpoints(),
        customers::endpoints(),
        users::endpoints(),
        devices::endpoints(),
        bulk_import::endpoints(),
        device_profiles::endpoints(),
        assets::endpoints(),
        dashboards::endpoints(),
        screen::endpoints(),
        ota::endpoints(),
        relations::endpoints(),
        searches::endpoints(),
        telemetry::endpoints(),
        export::endpoints(),
        alarms::endpoints(),
        assignees::endpoints(),
        audit_logs::endpoints(),
        rule_chains::endpoints(),
        query::endpoints(),
        rpc::endpoints(),
        events::endpoints(),
        components::endpoints(),
        queues::endpoints(),
        usage::endpoints(),
        socket::endpoints(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
