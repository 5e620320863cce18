//! One HTTP request and its response, over the transport of the MQTT client.

use std::io;

use mqtt_client::{HttpRequest, HttpResponse};

use crate::client::args::ClientTlsOptions;
use crate::client::failure::ClientFailure;
use crate::client::target::ConnectTarget;
use crate::client::transport::ClientTransport;

/// The largest answer is a list of definitions.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

pub fn send(
    target: &ConnectTarget,
    tls: &ClientTlsOptions,
    path: &str,
    request: &HttpRequest<'_>,
) -> Result<HttpResponse, ClientFailure> {
    let mut transport = ClientTransport::open(target, None, tls)?;
    let lost = |error: io::Error| ClientFailure::ConnectionLost(format!("{target}: {error}"));
    transport
        .send(&request.encode(&target.to_string(), path))
        .map_err(lost)?;
    let mut answer = Vec::new();
    while transport.read(&mut answer).map_err(lost)? {
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(ClientFailure::Protocol(format!(
                "{target} answers with more than {ANSWER_BYTES_MAX} bytes"
            )));
        }
    }
    let answer = HttpResponse::parse(&answer).ok().filter(|answer| answer.is_complete);
    answer.ok_or_else(|| ClientFailure::Protocol(format!("{target} does not respond like the API of tidewire")))
}
