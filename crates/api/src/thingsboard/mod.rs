//! ThingsBoard's REST and WebSocket interface for people and scripts: the same paths, JSON, status and error codes, on the
//! platform's entities, telemetry and alarms. `docs/platform.md` lists what there is.
//!
//! An operation is a function that blocks (`operation.rs`), called for a `Person` who was looked up from a token (`auth.rs`)
//! and whose rights `call.rs` knows. The rest of the files are operations by subject.

mod alarm_activity;
mod alarm_people;
mod alarms;
mod api_keys;
mod assets;
mod audit_logs;
mod auth;
mod bulk_import;
mod call;
mod components;
mod customers;
mod dashboards;
mod device_profiles;
mod devices;
mod docs;
mod events;
mod export;
mod failure;
mod info;
mod let_in;
mod lists;
mod multipart;
mod news;
mod operation;
mod ota;
mod query;
mod queues;
mod relations;
mod rpc;
mod rule_chains;
mod screen;
mod searches;
mod shares;
mod socket;
mod telemetry;
mod tenant_profiles;
mod tenants;
mod token;
mod usage;
mod users;
mod values;
mod world;

pub use auth::admit;
pub use ota::file as ota_file;
pub use world::World;

use crate::endpoint::Endpoint;

/// Whether a request may wait for long: these are no work for the server.
pub fn is_waiting(path: &str) -> bool {
    rpc::is_waiting(path) || telemetry::is_waiting(path)
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
        alarm_people::endpoints(),
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
