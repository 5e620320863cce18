//! A stream with a time limit for writes, so that a client that does not read cannot occupy a connection. Its
//! shutdown waits until the client has closed its side too.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Time that a client has to close its side after the last answer.
const CLOSE_TIME: Duration = Duration::from_secs(2);

pub struct StallGuard<S> {
    stream: S,
    limit: Duration,
    /// Runs while a write is pending, and while the client has not closed its side.
    deadline: Pin<Box<Sleep>>,
    is_waiting: bool,
    /// Whether the server has closed its side.
    is_shut: bool,
}

impl<S> StallGuard<S> {
    pub fn new(stream: S, limit: Duration) -> StallGuard<S> {
        StallGuard {
            stream,
            limit,
            deadline: Box::pin(tokio::time::sleep(limit)),
            is_waiting: false,
            is_shut: false,
        }
    }

    pub fn into_inner(self) -> S {
        self.stream
    }

    fn watch<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.is_waiting = false;
            return written;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            self.deadline.as_mut().reset(Instant::now() + self.limit);
        }
        match self.deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Discards what the client still sends until it has closed its side or the deadline has passed.
    fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<()>
    where
        S: AsyncRead + Unpin,
    {
        let mut discarded = [0; 4096];
        loop {
            if self.deadline.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            let mut into = ReadBuf::new(&mut discarded);
            match Pin::new(&mut self.stream).poll_read(context, &mut into) {
                Poll::Ready(Ok(())) if !into.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, flushed)
    }

    /// If a socket is closed before all bytes of the client were read, TCP resets the connection, and the client may
    /// lose the answer. An example is a request that is rejected before its body has arrived.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_shut {
            let shut = Pin::new(&mut self.stream).poll_shutdown(context);
            ready!(self.watch(context, shut))?;
            self.is_shut = true;
            let close_time = CLOSE_TIME.min(self.limit);
            self.deadline.as_mut().reset(Instant::now() + close_time);
        }
        self.poll_discard(context).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Returns both ends of a TCP connection. The first one is guarded.
    async fn connected(limit: Duration) -> (StallGuard<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        (StallGuard::new(server, limit), client)
    }

    #[tokio::test]
    async fn bytes_after_the_answer_do_not_reset_the_connection() {
        let (mut server, mut client) = connected(Duration::from_secs(60)).await;
        client.write_all(b"unread").await.unwrap();
        let closing = tokio::spawn(async move {
            server.write_all(b"answer").await.unwrap();
            server.shutdown().await.unwrap();
        });
        let mut answer = [0; 6];
        client.read_exact(&mut answer).await.unwrap();
        // Only an end after all of this is an end without a reset.
        for _ in 0..100 {
            client.write_all(&[0; 1000]).await.unwrap();
        }
        assert_eq!(client.read(&mut answer).await.unwrap(), 0);
        drop(client);
        closing.await.unwrap();
    }

    #[tokio::test]
    async fn client_that_does_not_close_its_side_is_closed_after_a_time() {
        let limit = Duration::from_millis(50);
        let (mut server, mut client) = connected(limit).await;
        let begin = Instant::now();
        server.shutdown().await.unwrap();
        assert!(begin.elapsed() >= limit);
        drop(server);
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
    }
}
