//! What a broker says of itself on its metrics page (OpenMetrics or Prometheus text), asked for with a plain HTTP/1.1 GET: for a broker
//! on another machine, or one whose process id nobody knows.
//!
//! Processor time must be there; what else the page lacks is reported as absent. The broker pays for making the page, some
//! milliseconds per second at most.

use crate::http::{Endpoint, Request};
use crate::observe::{Gauge, Usage};

/// As tidewire names it, then as Prometheus' client libraries do.
const CPU_SECONDS: [&str; 2] = ["tidewire_process_cpu_seconds_total", "process_cpu_seconds_total"];
const RESIDENT_BYTES: [&str; 2] = ["tidewire_process_resident_bytes", "process_resident_memory_bytes"];
const PAGE: Request<'_> = Request {
    method: "GET",
    accept: "application/openmetrics-text, text/plain",
    token: None,
    body: None,
};

#[derive(Debug)]
pub struct MetricsPage {
    /// As typed.
    url: String,
    endpoint: Endpoint,
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
        let (endpoint, path) = Endpoint::parse(url).ok_or_else(wrong)?;
        Ok(MetricsPage {
            url: url.to_owned(),
            endpoint,
            path: path.unwrap_or_else(|| "/metrics".to_owned()),
        })
    }

    fn fetch(&self) -> Result<String, String> {
        let answer = self.endpoint.ask(&self.path, &PAGE);
        let answer = answer.map_err(|error| format!("{}: {error}", self.url))?;
        let page = answer.and_then(|answer| match answer.status {
            200 => Ok(answer.body),
            _ => Err(format!("`{}`", answer.status_line)),
        });
        page.map_err(|got| format!("{}: got {got}, expected 200 and a page of metrics", self.url))
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
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
            assert_eq!((page.endpoint.authority(), &*page.path), (authority, path), "{url}");
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
