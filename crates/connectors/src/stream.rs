//! A connection to a target over TCP, optionally with TLS.
//!
//! The name is resolved once, and the socket connects to the address that was checked. A connection to this machine is
//! registered with `trust::own`, so that the server's listeners do not treat it as a local client.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use trust::Targets;
use trust::own::{self, OwnSocket};

pub(crate) struct ConnectorStream {
    layers: StreamLayers,
    _own: Option<OwnSocket>,
}

enum StreamLayers {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Settings of connections to one target.
#[derive(Clone)]
pub(crate) struct DialOptions {
    pub tls: Option<Arc<ClientConfig>>,
    pub limit: Duration,
    /// `None` for a target that a server administrator defines, which may have any address.
    pub targets: Option<Targets>,
}

impl DialOptions {
    /// Connects within `limit`, including name resolution and TLS. The error names the step that failed.
    pub async fn connect(&self, host: &str, port: u16) -> Result<ConnectorStream, String> {
        timeout(self.limit, self.connect_without_limit(host, port))
            .await
            .unwrap_or_else(|_| {
                let limit_ms = self.limit.as_millis();
                Err(format!(
                    "cannot connect to {host}:{port}: no answer within {limit_ms} ms"
                ))
            })
    }

    async fn connect_without_limit(&self, host: &str, port: u16) -> Result<ConnectorStream, String> {
        let (stream, own) = self.open(host, port).await?;
        // A small packet must not wait for the acknowledgement of the previous one. A failure costs only latency.
        let _ = stream.set_nodelay(true);
        let layers = match &self.tls {
            None => StreamLayers::Plain(stream),
            Some(config) => StreamLayers::Tls(handshake(config, host, stream).await?),
        };
        Ok(ConnectorStream { layers, _own: own })
    }

    /// Tries the addresses of the host in order. A connection error has precedence over a forbidden address.
    async fn open(&self, host: &str, port: u16) -> Result<(TcpStream, Option<OwnSocket>), String> {
        let failed = |error: io::Error| format!("cannot connect to {host}:{port}: {error}");
        let (mut failure, mut refusal) = (None, None);
        for address in lookup_host((host, port)).await.map_err(failed)? {
            let address = own::unmapped(address);
            let checked = match &self.targets {
                Some(targets) => targets.check(&format!("{host}:{port}"), address),
                None => Ok(()),
            };
            match checked {
                Err(refused) => refusal = Some(refused.to_string()),
                Ok(()) => match open_to(address).await {
                    Ok(opened) => return Ok(opened),
                    Err(error) => failure = Some(failed(error)),
                },
            }
        }
        let no_address = || format!("cannot connect to {host}:{port}: the name has no address");
        Err(failure.or(refusal).unwrap_or_else(no_address))
    }
}

async fn handshake(
    config: &Arc<ClientConfig>,
    host: &str,
    stream: TcpStream,
) -> Result<Box<TlsStream<TcpStream>>, String> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| format!("`{host}` is not a valid host name for a TLS certificate"))?;
    let peer = stream
        .peer_addr()
        .map(|address| format!(":{}", address.port()))
        .unwrap_or_default();
    let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
    let stream = stream.map_err(|error| format!("TLS handshake with {host}{peer} failed: {error}"))?;
    Ok(Box::new(stream))
}

#[cfg(feature = "ldap")]
impl ConnectorStream {
    /// Begins TLS on a connection without it.
    pub async fn start_tls(self, config: Arc<ClientConfig>, host: &str) -> Result<ConnectorStream, String> {
        let layers = match self.layers {
            StreamLayers::Plain(stream) => StreamLayers::Tls(handshake(&config, host, stream).await?),
            layers @ StreamLayers::Tls(_) => layers,
        };
        Ok(ConnectorStream {
            layers,
            _own: self._own,
        })
    }
}

async fn open_to(address: SocketAddr) -> io::Result<(TcpStream, Option<OwnSocket>)> {
    let Some(source) = own::source_of(address)? else {
        return Ok((TcpStream::connect(address).await?, None));
    };
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.bind(source)?;
    // Register before connecting, because the listener may accept immediately.
    let own = OwnSocket::register(socket.local_addr()?);
    Ok((socket.connect(address).await?, Some(own)))
}

impl AsyncRead for ConnectorStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().layers {
            StreamLayers::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            StreamLayers::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for ConnectorStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().layers {
            StreamLayers::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            StreamLayers::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().layers {
            StreamLayers::Plain(stream) => Pin::new(stream).poll_flush(cx),
            StreamLayers::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().layers {
            StreamLayers::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            StreamLayers::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
