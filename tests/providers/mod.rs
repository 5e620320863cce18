//! Tests authentication providers that ask other systems, with a real server and a real system.

mod access;
mod http;
pub mod service;
mod mountpoint;
mod service;
