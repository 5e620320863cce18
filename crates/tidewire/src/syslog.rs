//! Sends log lines with their fields to a system log: to systemd's journal in its native format, or as RFC 5424 to a
//! socket of this machine or over UDP.
//!
//! A caller never waits: each line is a datagram, and the socket does not block. Lines that it does not accept are
//! dropped and counted. Each line looks up the path of the socket, so the system log may start later than the server.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;

use api::LogRing;
use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::config::address::SyslogAddress;

const JOURNALD_SOCKET: &str = "/run/systemd/journal/socket";
const PROGRAM: &str = "tidewire";
const MESSAGE_BYTES_MAX: usize = 8 * 1024;
const VALUE_BYTES_MAX: usize = 1024;
/// Limits of RFC 5424, and of systemd's journal.
const HOST_NAME_CHARACTERS_MAX: usize = 255;
const PARAMETER_CHARACTERS_MAX: usize = 32;
const JOURNALD_FIELD_CHARACTERS_MAX: usize = 64;
/// `daemon` in RFC 5424.
const FACILITY: u8 = 3;
/// Name of the structured data. tidewire has no enterprise number, so this is the one that RFC 5612 reserves for
/// documentation.
const STRUCTURED_DATA_ID: &str = "tidewire@32473";

pub struct SyslogLayer {
    socket: LogSocket,
    format: LineFormat,
    /// Counts dropped lines.
    ring: Arc<LogRing>,
}

impl SyslogLayer {
    pub fn open(address: &SyslogAddress, node_name: &str, ring: Arc<LogRing>) -> Result<SyslogLayer, String> {
        let socket =
            LogSocket::open(address).map_err(|error| format!("log.syslog: cannot send to {address}: {error}"))?;
        let format = match address {
            SyslogAddress::Journald => LineFormat::Journald,
            SyslogAddress::Unix(_) | SyslogAddress::Udp(_) => LineFormat::Rfc5424 {
                host_name: host_name(node_name),
            },
        };
        Ok(SyslogLayer { socket, format, ring })
    }
}

impl<S: Subscriber> Layer<S> for SyslogLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let mut line = FieldedLine::new(*metadata.level(), metadata.target());
        event.record(&mut line);
        if self.socket.send(&self.format.encode(&line, Timestamp::now())).is_err() {
            self.ring.count_dropped();
        }
    }
}

enum LogSocket {
    Unix(UnixDatagram, PathBuf),
    Udp(UdpSocket, SocketAddr),
}

impl LogSocket {
    fn open(address: &SyslogAddress) -> io::Result<LogSocket> {
        match address {
            SyslogAddress::Journald => LogSocket::unix(Path::new(JOURNALD_SOCKET)),
            SyslogAddress::Unix(path) => LogSocket::unix(path),
            SyslogAddress::Udp(host) => {
                let mut addresses = (host.host.as_str(), host.port).to_socket_addrs()?;
                let target = addresses.next().ok_or(io::ErrorKind::NotFound)?;
                let local: IpAddr = match target {
                    SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                let socket = UdpSocket::bind((local, 0))?;
                socket.set_nonblocking(true)?;
                Ok(LogSocket::Udp(socket, target))
            }
        }
    }

    fn unix(path: &Path) -> io::Result<LogSocket> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(LogSocket::Unix(socket, path.to_owned()))
    }

    fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        match self {
            LogSocket::Unix(socket, path) => socket.send_to(datagram, path),
            LogSocket::Udp(socket, target) => socket.send_to(datagram, target),
        }
    }
}

enum LineFormat {
    /// systemd.io/JOURNAL_NATIVE_PROTOCOL
    Journald,
    Rfc5424 {
        host_name: String,
    },
}

impl LineFormat {
    fn encode(&self, line: &FieldedLine<'_>, now: Timestamp) -> Vec<u8> {
        match self {
            LineFormat::Journald => journald(line),
            LineFormat::Rfc5424 { host_name } => rfc5424(line, host_name, now).into_bytes(),
        }
    }
}

/// The message of an event, and its other fields.
struct FieldedLine<'a> {
    level: Level,
    target: &'a str,
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl<'a> FieldedLine<'a> {
    fn new(level: Level, target: &'a str) -> FieldedLine<'a> {
        FieldedLine {
            level,
            target,
            message: String::new(),
            fields: Vec::new(),
        }
    }

    fn add(&mut self, name: &'static str, value: String) {
        match name {
            "message" => self.message = shortened(value, MESSAGE_BYTES_MAX),
            name => self.fields.push((name, shortened(value, VALUE_BYTES_MAX))),
        }
    }
}

impl Visit for FieldedLine<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field.name(), format!("{value:?}"));
    }
}

fn shortened(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max));
        text.push('…');
    }
    text
}

/// Severity of RFC 5424, which is also the priority of the journal.
fn severity(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// `<PRI>1 TIMESTAMP HOSTNAME APP-NAME PROCID MSGID [ID NAME="VALUE"…] MSG`
fn rfc5424(line: &FieldedLine<'_>, host_name: &str, now: Timestamp) -> String {
    let priority = FACILITY * 8 + severity(line.level);
    let mut text = format!(
        "<{priority}>1 {now:.6} {host_name} {PROGRAM} {} - [{STRUCTURED_DATA_ID}",
        process::id()
    );
    let fields = line.fields.iter().map(|(name, value)| (*name, value.as_str()));
    for (name, value) in [("target", line.target)].into_iter().chain(fields) {
        text.push(' ');
        text.extend(
            name.chars()
                .take(PARAMETER_CHARACTERS_MAX)
                .map(|character| match character {
                    '=' | ']' | '"' => '_',
                    character => graphic(character),
                }),
        );
        text.push_str("=\"");
        for character in value.chars() {
            if matches!(character, '"' | '\\' | ']') {
                text.push('\\');
            }
            text.push(character);
        }
        text.push('"');
    }
    text.push_str("] ");
    text.push_str(&line.message);
    text
}

/// Fields with their length, as a value may contain line feeds: `NAME\n`, length as u64 (little endian), `VALUE\n`.
fn journald(line: &FieldedLine<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |name: &str, value: &str| {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(b'\n');
        bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(b'\n');
    };
    put("MESSAGE", &line.message);
    put("PRIORITY", &severity(line.level).to_string());
    put("SYSLOG_IDENTIFIER", PROGRAM);
    put("TIDEWIRE_TARGET", line.target);
    for (name, value) in &line.fields {
        put(&journald_name(name), value);
    }
    bytes
}

/// The prefix separates the fields from those that systemd defines.
fn journald_name(name: &str) -> String {
    let upper = name.chars().map(|character| match character.is_ascii_alphanumeric() {
        true => character.to_ascii_uppercase(),
        false => '_',
    });
    "TIDEWIRE_"
        .chars()
        .chain(upper)
        .take(JOURNALD_FIELD_CHARACTERS_MAX)
        .collect()
}

fn host_name(node_name: &str) -> String {
    match node_name {
        "" => "-".to_owned(),
        name => name.chars().take(HOST_NAME_CHARACTERS_MAX).map(graphic).collect(),
    }
}

fn graphic(character: char) -> char {
    match character.is_ascii_graphic() {
        true => character,
        false => '_',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(message: &str, fields: &[(&'static str, &str)]) -> FieldedLine<'static> {
        let mut line = FieldedLine::new(Level::WARN, "net::tls");
        line.add("message", message.to_owned());
        for &(name, value) in fields {
            line.add(name, value.to_owned());
        }
        line
    }

    #[test]
    fn rfc5424_line_has_escaped_fields() {
        let now = Timestamp::from_microsecond(1_500_000).unwrap();
        let line = line("refused", &[("client_id", r#"a"b\c]d"#), ("odd name=", "ü\n")]);
        let text = rfc5424(&line, &host_name("node 1"), now);
        let expected = format!(
            "<28>1 1970-01-01T00:00:01.500000Z node_1 tidewire {} - [tidewire@32473 target=\"net::tls\" \
             client_id=\"a\\\"b\\\\c\\]d\" odd_name_=\"ü\n\"] refused",
            process::id()
        );
        assert_eq!(text, expected);
        assert_eq!(host_name(""), "-");
    }

    #[test]
    fn journal_fields_may_contain_line_feeds() {
        let bytes = journald(&line("refused", &[("client-id", "a\nb")]));
        let mut rest = bytes.as_slice();
        let mut fields = Vec::new();
        while !rest.is_empty() {
            let name_end = rest.iter().position(|byte| *byte == b'\n').unwrap();
            let (name, value) = rest.split_at(name_end);
            let value_bytes = u64::from_le_bytes(value[1..9].try_into().unwrap()) as usize;
            let (value, end) = value[9..].split_at(value_bytes);
            fields.push((str::from_utf8(name).unwrap(), str::from_utf8(value).unwrap()));
            rest = end.strip_prefix(b"\n").unwrap();
        }
        let expected = [
            ("MESSAGE", "refused"),
            ("PRIORITY", "4"),
            ("SYSLOG_IDENTIFIER", "tidewire"),
            ("TIDEWIRE_TARGET", "net::tls"),
            ("TIDEWIRE_CLIENT_ID", "a\nb"),
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn long_values_are_shortened_to_whole_characters() {
        let line = line(
            &"ü".repeat(MESSAGE_BYTES_MAX),
            &[("value", &"ü".repeat(VALUE_BYTES_MAX))],
        );
        assert_eq!(line.message, "ü".repeat(MESSAGE_BYTES_MAX / 2) + "…");
        assert_eq!(line.fields[0].1, "ü".repeat(VALUE_BYTES_MAX / 2) + "…");
    }
}
