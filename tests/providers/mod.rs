//! Tests authentication providers that ask other systems, with a real server and a real system.

mod access;
mod cases;
mod examined;
mod http;
mod mountpoint;
pub mod service;
