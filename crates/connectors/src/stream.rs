//! A connection to a target: TCP, with TLS on it or without.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Connects, all within `limit`. The error says how far it came.
pub(crate) async fn connect(
    host: &str,
    port: u16,
    tls: Option<&Arc<ClientConfig>>,
    limit: Duration,
) -> Result<Stream, String> {
    timeout(limit, connect_without_limit(host, port, tls))
        .await
        .unwrap_or_else(|_| {
            let limit_ms = limit.as_millis();
            Err(format!(
                "cannot connect to {host}:{port}: no answer within {limit_ms} ms"
            ))
        })
}

async fn connect_without_limit(host: &str, port: u16, tls: Option<&Arc<ClientConfig>>) -> Result<Stream, String> {
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(|error| format!("cannot connect to {host}:{port}: {error}"))?;
    // Small packets must not wait for the answer to the one before. Failing to set it costs latency only.
    let _ = stream.set_nodelay(true);
    let Some(config) = tls else {
        return Ok(Stream::Plain(stream));
    };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| format!("`{host}` is no host name that a certificate could have"))?;
    let stream = TlsConnector::from(Arc::clone(config))
        .connect(name, stream)
        .await
        .map_err(|error| format!("no TLS with {host}:{port}: {error}"))?;
    Ok(Stream::Tls(Box::new(stream)))
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
