//! The endpoints, one file per subject: its bodies as types, its handlers, and its part of the list.

pub mod access_test;
pub mod acl;
pub mod actions;
pub mod api_keys;
pub mod banned;
pub mod clients;
pub mod configuration;
pub mod connectors;
pub mod console;
pub mod health;
pub mod history;
pub mod integration;
pub mod login;
pub mod logs;
pub mod metrics;
pub mod openapi;
pub mod publish;
pub mod retained;
pub mod rules;
pub mod sources;
pub mod stats;
pub mod subscriptions;
pub mod tail;
pub mod trace;
pub mod users;
pub mod waiting;
