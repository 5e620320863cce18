//! The API over real sockets: real HTTP against a real server with real MQTT connections, on ports that the system chose.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

extern crate tidewire_api as api;

mod access;
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
mod messages;
mod metrics;
mod mqtt_on_the_port;
mod node;
mod openapi;
mod peer;
mod schema;
mod sys;
mod tls;
mod trace;
mod web;
mod web_socket;
