//! The resource use that a broker reports on its metrics page (OpenMetrics or Prometheus text), read with a plain
//! HTTP/1.1 GET: for a broker on another machine, or one with an unknown process id.
//!
//! The page must contain the processor time; other values that it lacks are reported as absent. The broker's work for
//! the page is part of its measured cost: at most some milliseconds per second.

use mqtt_client::HttpRequest;

use crate::http::HttpEndpoint;
use crate::observe::{BrokerUsage, UsageSource};

/// The names of tidewire, then those of the Prometheus client libraries.
const CPU_SECONDS: [&str; 2] = ["tidewire_process_cpu_seconds_total", "process_cpu_seconds_total"];
const RESIDENT_BYTES: [&str; 2] = ["tidewire_process_resident_bytes", "process_resident_memory_bytes"];
const PAGE: HttpRequest<'_> = HttpRequest {
    method: "GET",
    accept: "application/openmetrics-text, text/plain",
    token: None,
    body: None,
};

#[derive(Debug)]
pub struct MetricsPage {
    /// The URL as the user typed it.
    url: String,
    endpoint: HttpEndpoint,
    path: String,
}

impl MetricsPage {
    /// Reads the page once, so that a wrong URL is reported before the run.
    pub fn new(url: &str) -> Result<MetricsPage, String> {
        let mut page = MetricsPage::parse(url)?;
        page.read()?;
        Ok(page)
    }

    fn parse(url: &str) -> Result<MetricsPage, String> {
        let wrong = || format!("{url}: expected http://HOST:PORT/PATH, as in http://127.0.0.1:18083/metrics");
        let (endpoint, path) = HttpEndpoint::parse(url).ok_or_else(wrong)?;
        Ok(MetricsPage {
            url: url.to_owned(),
            endpoint,
            path: path.unwrap_or_else(|| "/metrics".to_owned()),
        })
    }

    fn fetch(&self) -> Result<String, String> {
        let answer = self.endpoint.send(&self.path, &PAGE);
        let answer = answer.map_err(|error| format!("{}: {error}", self.url))?;
        let page = answer.and_then(|answer| match answer.status {
            200 => String::from_utf8(answer.body).map_err(|_| "a body that is not UTF-8 text".to_owned()),
            _ => Err(format!("`{}`", answer.status_line)),
        });
        page.map_err(|got| format!("{}: got {got}, expected 200 and a page of metrics", self.url))
    }
}

impl UsageSource for MetricsPage {
    fn pid(&self) -> Option<u32> {
        None
    }

    fn name(&self) -> &str {
        &self.url
    }

    fn read(&mut self) -> Result<BrokerUsage, String> {
        let page = self.fetch()?;
        let cpu_s = value(&page, &CPU_SECONDS).ok_or_else(|| {
            format!(
                "{}: got a page without processor time, expected one of {}",
                self.url,
                CPU_SECONDS.join(", ")
            )
        })?;
        Ok(BrokerUsage {
            cpu_s,
            resident_bytes: value(&page, &RESIDENT_BYTES).map(|bytes| bytes as u64),
            ..BrokerUsage::default()
        })
    }
}

/// Returns the first sample of the first of these metrics that the page contains.
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

    /// Starts a server that gives one answer, and returns its URL.
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

    fn read(answer: &'static str) -> Result<BrokerUsage, String> {
        MetricsPage::parse(&serve(answer)).unwrap().read()
    }

    #[test]
    fn page_of_tidewire_or_prometheus_is_read() {
        let own = "HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n# TYPE tidewire_process_cpu_seconds counter\n\
                   tidewire_process_cpu_seconds_total 1.25\ntidewire_process_resident_bytes 4096\n# EOF\n";
        let expected = BrokerUsage {
            cpu_s: 1.25,
            resident_bytes: Some(4096),
            ..BrokerUsage::default()
        };
        assert_eq!(read(own), Ok(expected));
        let other = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1d\r\nprocess_cpu_seconds_total{a=\"\r\n\
                     1b;x\r\nb\"} 2e1 1700000000\nother 1\n\r\n0\r\n\r\n";
        let expected = BrokerUsage {
            cpu_s: 20.0,
            ..BrokerUsage::default()
        };
        assert_eq!(read(other), Ok(expected));
    }

    #[test]
    fn page_that_is_wrong_fails_with_url_and_reason() {
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
            let message = read(answer).unwrap_err();
            assert!(
                message.contains(got) && message.starts_with("http://127.0.0.1:"),
                "{answer:?}: {message}"
            );
        }
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let message = MetricsPage::new(&format!("http://{closed}/metrics")).unwrap_err();
        assert!(message.contains("refused"), "{message}");
    }

    #[test]
    fn url_is_split_into_endpoint_and_path() {
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
