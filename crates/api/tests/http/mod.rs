//! Tests of the API over sockets: HTTP requests to a running server with MQTT connections, on ports that the system
//! chooses.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod access;
mod access_providers;
mod access_test;
mod backups;
mod banned;
mod benchmarks;
mod certificates;
mod clients;
mod configuration;
mod console_users;
mod health;
mod history;
mod keys_and_audit;
mod limits;
mod login;
mod logins;
mod messages;
mod metrics;
mod mqtt_on_the_port;
mod namespaces;
pub mod node;
mod openapi;
pub mod peer;
mod role_changes;
mod roles;
mod schema;
mod sys;
mod tls;
mod totp;
mod trace;
pub mod web;
mod web_socket;
pub mod wrong_bodies;
