//! What a broker says of itself on its metrics page (OpenMetrics or Prometheus text), asked for with a plain HTTP/1.1 GET: for a broker
//! on another machine, or one whose process id nobody knows.
//!
//! Processor time must be there; what else the page lacks is reported as absent. The broker pays for making the page, some
//! milliseconds per second at most.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::observe::{Gauge, Usage};

/// A page that takes longer is given up; a broker whose cores are all busy answers late.
const PATIENCE: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// As tidewire names it, then as Prometheus' client libraries do.
const CPU_SECONDS: [&str; 2] = ["tidewire_process_cpu_seconds_total", "process_cpu_seconds_total"];
const RESIDENT_BYTES: [&str; 2] = ["tidewire_process_resident_bytes", "process_resident_memory_bytes"];

#[derive(Debug)]
pub struct MetricsPage {
    /// As typed.
    url: String,
    /// "host:port".
    authority: String,
    path: String,
}

impl MetricsPage {
    /// Asks once, so that what does not work is known before the run.
    pub fn new(url: &str) -> Result<MetricsPage, String> {
        let mut page = MetricsPage::parse(url)?;
        page.read()?;
        Ok(page)
    }

    fn parse(url: &str) -> Result<MetricsPage, String> {
        let wrong = || format!("{url}: expected http://HOST:PORT/PATH, as in http://127.0.0.1:18083/metrics");
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, format!("/{path}")),
            None => (rest, "/metrics".to_owned()),
        };
        let is_plain = |text: &str| text.chars().all(|char| char.is_ascii_graphic());
        if authority.is_empty() || authority.contains('@') || !is_plain(authority) || !is_plain(&path) {
            return Err(wrong());
        }
        // A colon within brackets belongs to an address.
        let has_port = authority.rsplit(']').next().is_some_and(|end| end.contains(':'));
        Ok(MetricsPage {
            url: url.to_owned(),
            authority: if has_port {
                authority.to_owned()
            } else {
                format!("{authority}:80")
            },
            path,
        })
    }

    fn fetch(&self) -> Result<String, String> {
        let answer = self.ask().map_err(|error| format!("{}: {error}", self.url))?;
        body(&answer).map_err(|got| format!("{}: got {got}, expected 200 and a page of metrics", self.url))
    }

    fn ask(&self) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + PATIENCE;
        let mut stream = self.connect()?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: application/openmetrics-text, text/plain\r\nConnection: close\r\n\r\n",
            self.path, self.authority
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        let mut part = [0; 16 * 1024];
        while (answer.len() as u64) < ANSWER_BYTES_MAX {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut part)? {
                0 => return Ok(answer),
                size => answer.extend_from_slice(&part[..size]),
            }
        }
        Err(io::Error::other(format!(
            "the answer is longer than {ANSWER_BYTES_MAX} bytes"
        )))
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let addresses: Vec<SocketAddr> = self.authority.to_socket_addrs()?.collect();
        let mut last = io::Error::other("the host has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Gauge for MetricsPage {
    fn pid(&self) -> Option<u32> {
        None
    }

    fn name(&self) -> &str {
        &self.url
    }

    fn read(&mut self) -> Result<Usage, String> {
        let page = self.fetch()?;
        let cpu_s = value(&page, &CPU_SECONDS).ok_or_else(|| {
            format!(
                "{}: got a page without processor time, expected one of {}",
                self.url,
                CPU_SECONDS.join(", ")
            )
        })?;
        Ok(Usage {
            cpu_s,
            resident_bytes: value(&page, &RESIDENT_BYTES).map(|bytes| bytes as u64),
            ..Usage::default()
        })
    }
}

/// The first sample of the first metric that is there.
fn value(page: &str, names: &[&str]) -> Option<f64> {
    names.iter().find_map(|name| {
        page.lines().find_map(|line| {
            let rest = line.strip_prefix(name)?;
            let values = match rest.strip_prefix('{') {
                Some(labelled) => labelled.split_once('}')?.1,
                None => rest.strip_prefix(' ')?,
            };
            values.split_whitespace().next()?.parse().ok()
        })
    })
}

/// What a good answer carries; otherwise what was got instead, in words.
fn body(answer: &[u8]) -> Result<String, String> {
    const BREAK: &[u8] = b"\r\n\r\n";
    let Some(end) = answer.windows(BREAK.len()).position(|part| part == BREAK) else {
        return Err(match answer.is_empty() {
            true => "a connection that was closed without an answer".into(),
            false => format!("no HTTP: `{}`", first_line(answer)),
        });
    };
    let (head, body) = (&answer[..end], &answer[end + BREAK.len()..]);
    let status = first_line(head);
    if status.split(' ').nth(1) != Some("200") || !status.starts_with("HTTP/1.") {
        return Err(format!("`{status}`"));
    }
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let is_chunked = head
        .lines()
        .any(|line| line.starts_with("transfer-encoding:") && line.ends_with("chunked"));
    let body = match is_chunked {
        true => unchunk(body).ok_or("a body that is cut off")?,
        false => body.to_vec(),
    };
    String::from_utf8(body).map_err(|_| "a body that is no text".into())
}

fn first_line(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 80;
    let line = bytes
        .split(|byte| *byte == b'\r' || *byte == b'\n')
        .next()
        .unwrap_or_default();
    String::from_utf8_lossy(&line[..line.len().min(SHOWN_MAX)]).into_owned()
}

/// `None` when the end is missing.
fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|part| part == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        rest = &rest[end + 2..];
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A server that gives one answer. Its URL.
    fn serve(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.push(byte[0]);
            }
            assert!(request.starts_with(b"GET /m?all=1 HTTP/1.1\r\nHost: 127.0.0.1:"));
            stream.write_all(answer.as_bytes()).unwrap();
        });
        format!("http://{address}/m?all=1")
    }

    fn read(answer: &'static str) -> Result<Usage, String> {
        MetricsPage::parse(&serve(answer)).unwrap().read()
    }

    #[test]
    fn pages_of_tidewire_and_of_others_are_understood() {
        let own = "HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n# TYPE tidewire_process_cpu_seconds counter\n\
                   tidewire_process_cpu_seconds_total 1.25\ntidewire_process_resident_bytes 4096\n# EOF\n";
        let expected = Usage {
            cpu_s: 1.25,
            resident_bytes: Some(4096),
            ..Usage::default()
        };
        assert_eq!(read(own), Ok(expected));
        let other = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1d\r\nprocess_cpu_seconds_total{a=\"\r\n\
                     1b;x\r\nb\"} 2e1 1700000000\nother 1\n\r\n0\r\n\r\n";
        let expected = Usage {
            cpu_s: 20.0,
            ..Usage::default()
        };
        assert_eq!(read(other), Ok(expected));
    }

    #[test]
    fn errors_name_the_url_what_came_and_what_was_expected() {
        for (answer, got) in [
            (
                "HTTP/1.1 401 Unauthorized\r\n\r\n",
                "got `HTTP/1.1 401 Unauthorized`, expected 200",
            ),
            ("\x02\x00", "got no HTTP"),
            ("", "closed without an answer"),
            (
                "HTTP/1.1 200 OK\r\n\r\nhello",
                "without processor time, expected one of tidewire_process_cpu_seconds_total",
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nhello",
                "cut off",
            ),
        ] {
            let said = read(answer).unwrap_err();
            assert!(
                said.contains(got) && said.starts_with("http://127.0.0.1:"),
                "{answer:?}: {said}"
            );
        }
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let said = MetricsPage::new(&format!("http://{nobody}/metrics")).unwrap_err();
        assert!(said.contains("refused"), "{said}");
    }

    #[test]
    fn urls_are_taken_apart() {
        for (url, authority, path) in [
            ("http://host", "host:80", "/metrics"),
            ("http://host:18083/a/b?c=d", "host:18083", "/a/b?c=d"),
            ("http://[::1]", "[::1]:80", "/metrics"),
            ("http://[::1]:1/", "[::1]:1", "/"),
        ] {
            let page = MetricsPage::parse(url).unwrap();
            assert_eq!((&*page.authority, &*page.path), (authority, path), "{url}");
        }
        for url in [
            "https://host/metrics",
            "host:18083",
            "http:///metrics",
            "http://user@host/",
            "http://h/a b",
        ] {
            assert!(
                MetricsPage::parse(url)
                    .unwrap_err()
                    .contains("expected http://HOST:PORT/PATH"),
                "{url}"
            );
        }
    }
}
