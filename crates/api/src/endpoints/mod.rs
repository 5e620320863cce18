//! The endpoints, one file per subject: its bodies as types, its handlers, and its part of the list.

pub mod acl;
pub mod clients;
pub mod health;
pub mod login;
pub mod metrics;
pub mod openapi;
pub mod page;
pub mod publish;
pub mod retained;
pub mod stats;
pub mod subscriptions;
pub mod users;
