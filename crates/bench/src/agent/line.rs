//! Lines of JSON over TCP: complete lines of bounded length, with a time limit in both directions.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest line before the other side has proven the token.
pub const GREETING_BYTES_MAX: usize = 4 * 1024;
/// Longest line: the counts of 16 million publishers fit.
pub const BYTES_MAX: usize = 256 * 1024 * 1024;
/// Time after which a peer that reads nothing counts as lost.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
const CHUNK_BYTES: usize = 64 * 1024;

pub struct LineStream {
    stream: TcpStream,
    input: Vec<u8>,
    /// Bytes of `input` that contain no end of line.
    searched: usize,
    pub bytes_max: usize,
}

impl LineStream {
    pub fn new(stream: TcpStream) -> io::Result<LineStream> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        Ok(LineStream {
            stream,
            input: Vec::new(),
            searched: 0,
            bytes_max: GREETING_BYTES_MAX,
        })
    }

    pub fn send(&mut self, message: &impl Serialize) -> Result<(), String> {
        let mut line = serde_json::to_vec(message).map_err(|error| error.to_string())?;
        line.push(b'\n');
        self.stream.write_all(&line).map_err(error_text)
    }

    /// Waits for the next complete message for at most `timeout`. An error is final.
    pub fn receive<T: DeserializeOwned>(&mut self, timeout: Duration) -> Result<Option<T>, String> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(line) = self.take_line()? {
                let message = serde_json::from_slice(&line);
                return message.map(Some).map_err(|error| {
                    format!(
                        "sent a line that is not a message of this protocol: {}",
                        input_errors::plain(&error)
                    )
                });
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if !self.read(rest)? {
                return Ok(None);
            }
        }
    }

    fn take_line(&mut self) -> Result<Option<Vec<u8>>, String> {
        let found = self.input[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(end) = found.map(|at| self.searched + at) else {
            self.searched = self.input.len();
            return match self.input.len() > self.bytes_max {
                true => Err(format!("sent a line of more than {} bytes", self.bytes_max)),
                false => Ok(None),
            };
        };
        let rest = self.input.split_off(end + 1);
        let line = std::mem::replace(&mut self.input, rest);
        self.searched = 0;
        Ok(Some(line))
    }

    /// Reads once; returns whether data arrived in time.
    fn read(&mut self, timeout: Duration) -> Result<bool, String> {
        self.stream.set_nonblocking(timeout.is_zero()).map_err(error_text)?;
        if !timeout.is_zero() {
            self.stream.set_read_timeout(Some(timeout)).map_err(error_text)?;
        }
        let mut chunk = [0; CHUNK_BYTES];
        let read = self.stream.read(&mut chunk);
        // Writes block until all is written, independent of the mode of reading.
        if timeout.is_zero() {
            self.stream.set_nonblocking(false).map_err(error_text)?;
        }
        match read {
            Ok(0) => Err("closed the connection".into()),
            Ok(count) => {
                self.input.extend_from_slice(&chunk[..count]);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error_text(error)),
        }
    }
}

fn error_text(error: io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "closed the connection".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (LineStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (LineStream::new(listener.accept().unwrap().0).unwrap(), stream)
    }

    #[test]
    fn receive_of_line_in_pieces_returns_whole_line() {
        let (mut lines, mut peer) = pair();
        peer.write_all(b"1\n2").unwrap();
        let timeout = Duration::from_secs(10);
        assert_eq!(lines.receive::<u32>(timeout).unwrap(), Some(1));
        assert_eq!(lines.receive::<u32>(Duration::ZERO).unwrap(), None);
        peer.write_all(b"3\n4\n").unwrap();
        assert_eq!(lines.receive::<u32>(timeout).unwrap(), Some(23));
        assert_eq!(lines.receive::<u32>(timeout).unwrap(), Some(4));
        drop(peer);
        assert_eq!(lines.receive::<u32>(timeout).unwrap_err(), "closed the connection");
    }

    #[test]
    fn receive_of_long_or_foreign_line_fails() {
        let (mut lines, mut peer) = pair();
        peer.write_all(&vec![b'1'; GREETING_BYTES_MAX + 1]).unwrap();
        let message = lines.receive::<u32>(Duration::from_secs(10)).unwrap_err();
        assert!(message.contains("more than 4096 bytes"), "{message}");
        let (mut lines, mut peer) = pair();
        peer.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let message = lines.receive::<u32>(Duration::from_secs(10)).unwrap_err();
        assert!(message.contains("not a message"), "{message}");
    }
}
