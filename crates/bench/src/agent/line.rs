//! Lines of JSON over TCP: whole ones, of bounded length, with a time limit on both directions.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Before the other side has proven itself.
pub const GREETING_BYTES_MAX: usize = 4 * 1024;
/// Counts of 16 million publishers fit.
pub const BYTES_MAX: usize = 256 * 1024 * 1024;
/// A peer that takes nothing for so long is gone.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);
const CHUNK_BYTES: usize = 64 * 1024;

pub struct Lines {
    stream: TcpStream,
    input: Vec<u8>,
    /// Of `input` looked at without finding a line's end.
    searched: usize,
    pub bytes_max: usize,
}

impl Lines {
    pub fn new(stream: TcpStream) -> io::Result<Lines> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(WRITE_PATIENCE))?;
        Ok(Lines {
            stream,
            input: Vec::new(),
            searched: 0,
            bytes_max: GREETING_BYTES_MAX,
        })
    }

    pub fn send(&mut self, message: &impl Serialize) -> Result<(), String> {
        let mut line = serde_json::to_vec(message).map_err(|error| error.to_string())?;
        line.push(b'\n');
        self.stream.write_all(&line).map_err(in_words)
    }

    /// The next message, if a whole one comes in time. An error is final.
    pub fn receive<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<Option<T>, String> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(line) = self.take_line()? {
                let message = serde_json::from_slice(&line);
                return message
                    .map(Some)
                    .map_err(|error| format!("speaks another language: {error}"));
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
                true => Err(format!("sends a line of more than {} bytes", self.bytes_max)),
                false => Ok(None),
            };
        };
        let rest = self.input.split_off(end + 1);
        let line = std::mem::replace(&mut self.input, rest);
        self.searched = 0;
        Ok(Some(line))
    }

    /// Whether anything came in time.
    fn read(&mut self, patience: Duration) -> Result<bool, String> {
        self.stream.set_nonblocking(patience.is_zero()).map_err(in_words)?;
        if !patience.is_zero() {
            self.stream.set_read_timeout(Some(patience)).map_err(in_words)?;
        }
        let mut chunk = [0; CHUNK_BYTES];
        let read = self.stream.read(&mut chunk);
        // Writing waits until all is written, whatever reading does.
        if patience.is_zero() {
            self.stream.set_nonblocking(false).map_err(in_words)?;
        }
        match read {
            Ok(0) => Err("closed the connection".into()),
            Ok(count) => {
                self.input.extend_from_slice(&chunk[..count]);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(in_words(error)),
        }
    }
}

fn in_words(error: io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "closed the connection".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (Lines, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Lines::new(listener.accept().unwrap().0).unwrap(), stream)
    }

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let (mut lines, mut peer) = pair();
        peer.write_all(b"1\n2").unwrap();
        let patience = Duration::from_secs(10);
        assert_eq!(lines.receive::<u32>(patience).unwrap(), Some(1));
        assert_eq!(lines.receive::<u32>(Duration::ZERO).unwrap(), None);
        peer.write_all(b"3\n4\n").unwrap();
        assert_eq!(lines.receive::<u32>(patience).unwrap(), Some(23));
        assert_eq!(lines.receive::<u32>(patience).unwrap(), Some(4));
        drop(peer);
        assert_eq!(lines.receive::<u32>(patience).unwrap_err(), "closed the connection");
    }

    #[test]
    fn long_lines_and_other_languages_are_refused() {
        let (mut lines, mut peer) = pair();
        peer.write_all(&vec![b'1'; GREETING_BYTES_MAX + 1]).unwrap();
        let said = lines.receive::<u32>(Duration::from_secs(10)).unwrap_err();
        assert!(said.contains("more than 4096 bytes"), "{said}");
        let (mut lines, mut peer) = pair();
        peer.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let said = lines.receive::<u32>(Duration::from_secs(10)).unwrap_err();
        assert!(said.contains("another language"), "{said}");
    }
}
