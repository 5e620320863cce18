//! TLS for tokio-postgres with rustls.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

#[derive(Clone)]
pub(super) struct MakeTls(pub Arc<ClientConfig>);

pub(super) struct PostgresTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

pub(super) struct PostgresTlsStream(tokio_rustls::client::TlsStream<Socket>);

impl MakeTlsConnect<Socket> for MakeTls {
    type Stream = PostgresTlsStream;
    type TlsConnect = PostgresTls;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<PostgresTls, Self::Error> {
        Ok(PostgresTls {
            config: Arc::clone(&self.0),
            name: ServerName::try_from(host.to_owned())?,
        })
    }
}

impl TlsConnect<Socket> for PostgresTls {
    type Stream = PostgresTlsStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<PostgresTlsStream>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        let connecting = TlsConnector::from(self.config).connect(self.name, stream);
        Box::pin(async move { connecting.await.map(PostgresTlsStream) })
    }
}

impl TlsStream for PostgresTlsStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for PostgresTlsStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for PostgresTlsStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
