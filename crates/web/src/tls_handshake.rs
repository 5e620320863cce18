//! TLS handshakes of connections, and the log lines about failed ones. The lines have the form of those about MQTT
//! connections that ended before CONNECT.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use net::EarlyCloseReason;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, rustls};

use crate::limits::ApiLimits;
use crate::stall::StallGuard;

/// Interval between log lines about failed handshakes.
const LINE_INTERVAL: Duration = Duration::from_secs(1);
/// Number of bytes that distinguish MQTT and HTTP from TLS.
const FIRST_BYTES: usize = 8;

/// Logs failed handshakes, at most one line per interval.
#[derive(Default)]
pub struct HandshakeLog {
    lines: Mutex<LineBudget>,
}

#[derive(Default)]
struct LineBudget {
    logged_at: Option<Instant>,
    omitted_lines: u64,
}

struct FailedHandshake {
    /// The reason in plain words.
    because: Cow<'static, str>,
    /// The client has sent nothing, as health checks, port scans and unused connections of browsers do.
    is_probe: bool,
}

impl HandshakeLog {
    /// Performs the handshake of a connection. Logs a failure and returns `None`.
    pub async fn accept(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        tls: &TlsAcceptor,
        limits: &ApiLimits,
    ) -> Option<TlsStream<StallGuard<TcpStream>>> {
        match handshake(stream, tls, limits).await {
            Ok(stream) => Some(stream),
            Err(failed) => {
                self.report(address, &failed);
                None
            }
        }
    }

    fn report(&self, address: SocketAddr, failed: &FailedHandshake) {
        let (reason, because) = (EarlyCloseReason::TlsHandshake.name(), &*failed.because);
        if failed.is_probe {
            tracing::debug!(%address, listener = "api", reason, because, "ended before the first request");
            return;
        }
        let Some(omitted_lines) = self.take_line(Instant::now()) else {
            return;
        };
        if omitted_lines > 0 {
            tracing::info!(
                lines = omitted_lines,
                "lines about API connections that ended before the first request were omitted"
            );
        }
        tracing::info!(%address, listener = "api", reason, because, "ended before the first request");
    }

    /// Returns the number of lines that were omitted since the last one, or `None` if no line is due.
    fn take_line(&self, now: Instant) -> Option<u64> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = lines
            .logged_at
            .is_none_or(|at| now.saturating_duration_since(at) >= LINE_INTERVAL);
        if !is_due {
            lines.omitted_lines += 1;
            return None;
        }
        lines.logged_at = Some(now);
        Some(std::mem::take(&mut lines.omitted_lines))
    }
}

async fn handshake(
    stream: TcpStream,
    tls: &TlsAcceptor,
    limits: &ApiLimits,
) -> Result<TlsStream<StallGuard<TcpStream>>, FailedHandshake> {
    let (mut first, mut received) = ([0; FIRST_BYTES], 0);
    let accepted = tokio::time::timeout(limits.header_timeout, async {
        received = stream.peek(&mut first).await?;
        if received == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        tls.accept(StallGuard::new(stream, limits.write_stall_timeout)).await
    })
    .await;
    let because = match accepted {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err(error)) => describe(&error, &first[..received]),
        Err(_) if received == 0 => format!("the client has sent nothing after {:?}", limits.header_timeout).into(),
        Err(_) => format!("the TLS handshake is not complete after {:?}", limits.header_timeout).into(),
    };
    Err(FailedHandshake {
        because,
        is_probe: received == 0,
    })
}

/// Describes a failed handshake. `received` are the first bytes of the client.
fn describe(error: &io::Error, received: &[u8]) -> Cow<'static, str> {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(error) => net::describe_tls(error, received),
        None if received.is_empty() => "the client closed the connection without sending anything".into(),
        None if error.kind() == io::ErrorKind::UnexpectedEof || error.kind() == io::ErrorKind::ConnectionReset => {
            "the client closed the connection during the TLS handshake: it may not trust the server's certificate"
                .into()
        }
        None => format!("the TLS handshake failed: {error}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_handshakes_are_described() {
        let invalid = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let invalid = io::Error::new(io::ErrorKind::InvalidData, invalid);
        assert!(describe(&invalid, b"GET / HT").starts_with("HTTP without TLS"));
        assert!(describe(&invalid, b"\x10\x0c\x00\x04MQTT").starts_with("MQTT without TLS"));
        let closed = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert!(describe(&closed, b"\x16\x03\x01").contains("during the TLS handshake"));
        assert!(describe(&closed, b"").contains("without sending anything"));
    }

    #[test]
    fn flood_of_failures_has_one_line_per_second() {
        let (log, start) = (HandshakeLog::default(), Instant::now());
        assert_eq!(log.take_line(start), Some(0));
        let flood = (0..1000).filter_map(|us| log.take_line(start + Duration::from_micros(us)));
        assert_eq!(flood.count(), 0);
        assert_eq!(log.take_line(start + LINE_INTERVAL), Some(1000));
    }
}
