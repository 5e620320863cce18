//! ThingsBoard's REST and WebSocket interface for users and scripts: the same paths, JSON, status codes and error
//! codes, on
//! the platform's entities, telemetry and alarms. `docs/reference/thingsboard-api.md` lists the supported operations.
//!
//! An operation is a blocking function (`operation.rs`). It is called for the user of a token (`auth.rs`), whose
//! access rights `call.rs` checks. The other files contain the operations by subject.

mod alarm_activity;
mod alarms;
mod api_keys;
mod assets;
mod assignees;
mod audit_logs;
mod auth;
mod bulk_import;
mod call;
mod chain_events;
mod components;
mod console_access;
mod customers;
mod dashboards;
mod device_profiles;
mod devices;
mod docs;
mod events;
mod export;
mod failure;
mod fixed_limits;
mod info;
mod lists;
mod login_sessions;
mod multipart;
mod operation;
mod ota;
mod platform_access;
mod query;
mod queues;
mod quotas;
mod relations;
mod rpc;
mod rule_chains;
mod screen;
mod searches;
mod socket;
mod telemetry;
mod tenant_profiles;
mod tenants;
mod token;
mod usage;
mod users;
mod values;

pub use auth::admit;
pub use docs::platform_document;
pub(crate) use fixed_limits::FIXED_LIMITS;
pub use ota::file as ota_file;
pub use platform_access::{AccessOptions, PlatformAccess};

use crate::endpoint::Endpoint;

/// Whether a request may wait for a long time. Such requests cause no work for the server.
pub fn may_wait(path: &str) -> bool {
    rpc::may_wait(path) || telemetry::may_wait(path)
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
