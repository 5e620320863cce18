//! Takes the place of `quic` in a build without QUIC.

use std::net::IpAddr;
use std::os::unix::net::UnixStream;

use rustls::ClientConfig;

use super::failure::ClientFailure;
use super::target::ConnectTarget;

pub enum QuicForwarding {}

impl QuicForwarding {
    pub fn wait(&self) {
        match *self {}
    }
}

pub fn connect(
    _: &ConnectTarget,
    _: Option<IpAddr>,
    _: &ClientConfig,
) -> Result<(UnixStream, QuicForwarding), ClientFailure> {
    Err(ClientFailure::Usage(
        "this build has no QUIC support; build with --features quic".into(),
    ))
}
