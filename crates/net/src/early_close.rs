//! Connections that ended before their CONNECT was complete: what operators see of them, and the words for each reason.
//!
//! The table belongs to the node. It is accessed once per failed connection, never per packet, so it has a lock. Equal
//! failures of one address are one entry with a count: a health check that connects every second, or one device with
//! a wrong certificate, must not displace the others. Log lines are limited per entry and in total.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use broker::{Now, Transport};
use rustls::{AlertDescription, CertificateError, Error as TlsError, InvalidMessage};

use crate::config::ListenerConfig;
use crate::connection::{ConnectionStage, HandshakeStep, SocketConnection};
use crate::counters::EarlyCloseReason;

/// Maximum number of entries. The oldest is evicted, probes first.
pub const EARLY_CLOSES_MAX: usize = 256;

/// An entry is logged again at the earliest after this time.
const LOG_AGAIN_MS: u64 = 60_000;

/// Log lines at once. Afterwards one per `LINE_INTERVAL_MS`.
const LINES_MAX: u64 = 20;
const LINE_INTERVAL_MS: u64 = 1_000;

/// Connections that ended before CONNECT, from one address, on one listener, for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyClose {
    /// Time of the last one.
    pub at_unix_ms: u64,
    pub first_at_unix_ms: u64,
    pub count: u64,
    /// Address and port of the last one.
    pub address: SocketAddr,
    pub listener: Box<str>,
    pub transport: Transport,
    pub reason: EarlyCloseReason,
    /// The reason in plain words.
    pub detail: Cow<'static, str>,
    /// The peer closed without sending anything, as health checks and port scans do.
    pub is_probe: bool,
}

/// A log line about an early close.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyCloseLine {
    pub close: EarlyClose,
    /// Number of connections that this line reports: those of this entry since its last line.
    pub times: u64,
    /// Lines about other entries that were omitted since the last line.
    pub omitted_lines: u64,
}

pub(crate) struct EarlyCloses {
    table: Mutex<EarlyCloseTable>,
}

struct EarlyCloseTable {
    /// The entry with the latest close is the last.
    entries: VecDeque<Entry>,
    /// Time at which the line budget is full again.
    budget_full_at_ms: u64,
    omitted_lines: u64,
}

struct Entry {
    close: EarlyClose,
    logged_at_ms: Option<u64>,
    unlogged: u64,
}

impl EarlyCloses {
    pub(crate) fn new() -> EarlyCloses {
        EarlyCloses {
            table: Mutex::new(EarlyCloseTable {
                entries: VecDeque::new(),
                budget_full_at_ms: 0,
                omitted_lines: 0,
            }),
        }
    }

    /// Records a connection. Returns the log line, if one is due.
    pub(crate) fn record(&self, now: Now, close: EarlyClose) -> Option<EarlyCloseLine> {
        self.lock().record(now, close)
    }

    /// Returns the entries, newest first.
    pub(crate) fn newest(&self, limit: usize) -> Vec<EarlyClose> {
        let table = self.lock();
        table
            .entries
            .iter()
            .rev()
            .take(limit)
            .map(|entry| entry.close.clone())
            .collect()
    }

    // Every update leaves the table valid, so a panic cannot leave it inconsistent.
    fn lock(&self) -> MutexGuard<'_, EarlyCloseTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EarlyCloseTable {
    fn record(&mut self, now: Now, close: EarlyClose) -> Option<EarlyCloseLine> {
        let is_same = |entry: &Entry| {
            entry.close.address.ip() == close.address.ip()
                && entry.close.reason == close.reason
                && entry.close.listener == close.listener
                && entry.close.transport == close.transport
                && entry.close.detail == close.detail
        };
        let found = self.entries.iter().position(is_same);
        let mut entry = match found.and_then(|index| self.entries.remove(index)) {
            Some(mut entry) => {
                entry.close.at_unix_ms = close.at_unix_ms;
                entry.close.address = close.address;
                entry.close.count += 1;
                entry
            }
            None => Entry {
                close,
                logged_at_ms: None,
                unlogged: 0,
            },
        };
        entry.unlogged += 1;
        let now_ms = now.monotonic_ms;
        let is_due = entry
            .logged_at_ms
            .is_none_or(|logged_at_ms| now_ms.saturating_sub(logged_at_ms) >= LOG_AGAIN_MS);
        // Probes are logged only at the level at which every connection is.
        let line = match is_due && (entry.close.is_probe || self.take_line(now_ms)) {
            true => {
                entry.logged_at_ms = Some(now_ms);
                Some(EarlyCloseLine {
                    close: entry.close.clone(),
                    times: std::mem::take(&mut entry.unlogged),
                    omitted_lines: std::mem::take(&mut self.omitted_lines),
                })
            }
            false => {
                self.omitted_lines += u64::from(is_due);
                None
            }
        };
        if self.entries.len() >= EARLY_CLOSES_MAX {
            let oldest_probe = self.entries.iter().position(|entry| entry.close.is_probe);
            self.entries.remove(oldest_probe.unwrap_or(0));
        }
        self.entries.push_back(entry);
        line
    }

    /// Takes a line from the budget.
    fn take_line(&mut self, now_ms: u64) -> bool {
        let full_at_ms = self.budget_full_at_ms.max(now_ms) + LINE_INTERVAL_MS;
        let is_allowed = full_at_ms - now_ms <= LINES_MAX * LINE_INTERVAL_MS;
        if is_allowed {
            self.budget_full_at_ms = full_at_ms;
        }
        is_allowed
    }
}

/// Returns whether the peer of a connection in its handshake has sent anything.
pub(crate) fn has_sent(connection: &SocketConnection) -> bool {
    !connection.unread.is_empty() || connection.layer.is_some() || connection.socket.is_quic()
}

/// Returns the words for a reason that says nothing more about the connection than its state.
pub(crate) fn describe(
    reason: EarlyCloseReason,
    connection: &SocketConnection,
    config: &ListenerConfig,
) -> Cow<'static, str> {
    let step = match &connection.stage {
        ConnectionStage::Handshake(handshake) => handshake.step,
        _ => HandshakeStep::Connect,
    };
    match reason {
        EarlyCloseReason::PeerClosed => closed_by_peer(step, has_sent(connection)).into(),
        EarlyCloseReason::HandshakeTimeout => timed_out(step, has_sent(connection), config.handshake_timeout).into(),
        other => describe_limit(other).into(),
    }
}

/// Returns the words for a reason that does not depend on what the peer has sent.
pub(crate) fn describe_limit(reason: EarlyCloseReason) -> &'static str {
    match reason {
        EarlyCloseReason::ServerFull => "the server has limits.max_connections connections",
        EarlyCloseReason::DescriptorLimit => {
            "the limit of open files allows no more connections: raise it (LimitNOFILE, ulimit -n)"
        }
        EarlyCloseReason::ListenerFull => "the listener has max_connections connections",
        EarlyCloseReason::ConnectionRate => "the listener's max_connection_rate is exceeded",
        EarlyCloseReason::AddressRate => "limits.max_connection_rate_per_address is exceeded",
        EarlyCloseReason::ProxyUntrusted => "the address is not in the listener's proxy_protocol_trusted",
        EarlyCloseReason::ProxyMalformed => "the PROXY header is malformed",
        EarlyCloseReason::TlsHandshake => "the TLS handshake failed",
        EarlyCloseReason::WebSocketHandshake => "the WebSocket upgrade was refused",
        EarlyCloseReason::WebSocketFraming => "the client violated the WebSocket protocol before CONNECT",
        EarlyCloseReason::OtherProtocol => "the client does not speak MQTT",
        EarlyCloseReason::HandshakeTimeout => "CONNECT did not arrive in time",
        EarlyCloseReason::ConnectTooLarge => "the CONNECT packet is larger than 512 KiB",
        EarlyCloseReason::HandshakeMemory => "unfinished CONNECT packets of all clients need too much memory",
        EarlyCloseReason::PeerClosed => "the client closed the connection",
        EarlyCloseReason::ShuttingDown => "the server is stopping",
    }
}

fn closed_by_peer(step: HandshakeStep, has_sent: bool) -> &'static str {
    match step {
        _ if !has_sent => "the client closed the connection without sending anything",
        HandshakeStep::Proxy => "the connection was closed before the PROXY header was complete",
        HandshakeStep::Tls => {
            "the client closed the connection during the TLS handshake: it may not trust the server's certificate"
        }
        HandshakeStep::WebSocket => "the client closed the connection before the WebSocket upgrade was complete",
        HandshakeStep::Connect | HandshakeStep::Moving(_) => {
            "the client closed the connection before its CONNECT was complete"
        }
    }
}

fn timed_out(step: HandshakeStep, has_sent: bool, timeout: Duration) -> String {
    let what = match step {
        HandshakeStep::Proxy if !has_sent => "no PROXY header arrived",
        HandshakeStep::Proxy => "the PROXY header is not complete",
        _ if !has_sent => "the client has sent nothing",
        HandshakeStep::Tls => "the TLS handshake is not complete",
        HandshakeStep::WebSocket => "the WebSocket upgrade request is not complete",
        HandshakeStep::Connect | HandshakeStep::Moving(_) => "the CONNECT packet is not complete",
    };
    format!("{what} after {timeout:?} (handshake_timeout of the listener)")
}

/// Describes a failed TLS handshake. `received` are the bytes with which it failed.
pub fn describe_tls(error: &TlsError, received: &[u8]) -> Cow<'static, str> {
    match error {
        TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => match received {
            [0x10, ..] => {
                "MQTT without TLS arrived on a TLS listener: enable TLS in the client, or use a TCP listener".into()
            }
            _ if is_http(received) => {
                "HTTP without TLS arrived on a TLS listener: use wss:// or https:// in the client".into()
            }
            _ => "the client does not speak TLS".into(),
        },
        TlsError::NoCertificatesPresented => {
            "the client sent no certificate, but the listener's verify_client requires one".into()
        }
        TlsError::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "the client's certificate was issued by a CA that is not in the listener's ca_file".into()
        }
        TlsError::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "the client's certificate has expired".into()
        }
        TlsError::InvalidCertificate(CertificateError::UnknownRevocationStatus) => {
            "no revocation list (crl_file, crl_urls) of the authority of the client's certificate is available".into()
        }
        TlsError::InvalidCertificate(error) => format!("the client's certificate is invalid: {error}").into(),
        TlsError::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnsupportedCertificate),
        ) => format!("the client does not accept the server's certificate (TLS alert {alert:?})").into(),
        TlsError::AlertReceived(alert) => format!("the client ended the TLS handshake (TLS alert {alert:?})").into(),
        TlsError::PeerIncompatible(why) => {
            format!("client and server have no common TLS version or cipher suite ({why:?})").into()
        }
        TlsError::General(reason) if reason == NO_CERTIFICATE => {
            "the server has no certificate yet: tls.acme has not obtained one; the log and the alarms say why".into()
        }
        error => format!("the TLS handshake failed: {error}").into(),
    }
}

/// Text of the TLS library if the listener has no certificate.
const NO_CERTIFICATE: &str = "no server certificate chain resolved";

/// Returns what arrived instead of MQTT. `None` for MQTT, and for bytes that no known protocol begins with.
pub(crate) fn other_protocol(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(&[0x16, 0x03]) {
        return Some("TLS arrived on a listener without TLS: use a TLS listener, or disable TLS in the client");
    }
    if bytes.starts_with(b"PROXY ") || bytes.starts_with(b"\r\n\r\n\0\r\nQUIT\n") {
        return Some("a PROXY header arrived on a listener without proxy_protocol");
    }
    if is_http(bytes) {
        return Some("HTTP arrived on a listener for MQTT over TCP: use a WebSocket listener (ws) in the client");
    }
    bytes
        .starts_with(b"SSH-")
        .then_some("SSH arrived on a listener for MQTT")
}

/// Describes bytes that are not an upgrade request, or `None` if they may be one.
pub(crate) fn not_an_upgrade(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x10, ..] => {
            Some("MQTT without WebSocket arrived on a WebSocket listener: use a TCP listener, or ws:// in the client")
        }
        [0x16, 0x03, ..] => {
            Some("TLS arrived on a WebSocket listener without TLS: use a wss listener, or ws:// in the client")
        }
        _ => None,
    }
}

fn is_http(bytes: &[u8]) -> bool {
    const METHODS: [&[u8]; 7] = [
        b"GET ",
        b"POST ",
        b"HEAD ",
        b"PUT ",
        b"OPTIONS ",
        b"CONNECT ",
        b"DELETE ",
    ];
    METHODS.into_iter().any(|method| bytes.starts_with(method))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(monotonic_ms: u64) -> Now {
        Now {
            monotonic_ms,
            unix_ms: monotonic_ms,
            journal_ms: monotonic_ms,
        }
    }

    fn close(address: &str, detail: &'static str) -> EarlyClose {
        EarlyClose {
            at_unix_ms: 0,
            first_at_unix_ms: 0,
            count: 1,
            address: address.parse().unwrap(),
            listener: "default".into(),
            transport: Transport::Tls,
            reason: EarlyCloseReason::TlsHandshake,
            detail: detail.into(),
            is_probe: false,
        }
    }

    #[test]
    fn equal_failures_are_one_entry_and_one_line_a_minute() {
        let closes = EarlyCloses::new();
        let mut lines = Vec::new();
        for second in 0..=60 {
            let failure = close(&format!("10.0.0.1:{}", 1000 + second), "wrong CA");
            lines.extend(closes.record(at(second * 1000), failure));
        }
        let times: Vec<u64> = lines.iter().map(|line| line.times).collect();
        assert_eq!(times, [1, 60]);
        let [entry] = &closes.newest(10)[..] else { panic!() };
        assert_eq!((entry.count, entry.address.port()), (61, 1060));
    }

    #[test]
    fn flood_of_addresses_is_bounded_in_entries_and_lines() {
        let closes = EarlyCloses::new();
        let flood = |n: u64, now_ms| {
            let address = format!("10.0.{}.{}:1", n / 256, n % 256);
            closes.record(at(now_ms), close(&address, "wrong CA"))
        };
        let lines = (0..1000).filter_map(|n| flood(n, 5)).count();
        assert_eq!(lines as u64, LINES_MAX);
        assert_eq!(closes.newest(usize::MAX).len(), EARLY_CLOSES_MAX);
        let later = flood(1000, 5 + LINE_INTERVAL_MS).expect("the budget has a line again");
        assert_eq!(later.omitted_lines, 1000 - LINES_MAX);
    }

    #[test]
    fn port_scan_displaces_no_failure() {
        let closes = EarlyCloses::new();
        closes.record(at(5), close("10.0.0.1:1", "wrong CA"));
        for n in 0..1000 {
            let probe = EarlyClose {
                is_probe: true,
                ..close(&format!("10.1.{}.{}:1", n / 256, n % 256), "nothing sent")
            };
            assert!(closes.record(at(6), probe).is_some(), "probes have no budget");
        }
        let failures = closes.newest(usize::MAX).into_iter().filter(|one| !one.is_probe);
        assert_eq!(failures.count(), 1);
        assert!(closes.record(at(7), close("10.0.0.2:1", "wrong CA")).is_some());
    }

    #[test]
    fn other_protocols_are_recognised() {
        for (bytes, word) in [
            (&b"\x16\x03\x01\x02\x00"[..], "TLS"),
            (b"GET / HTTP/1.1\r\n", "HTTP"),
            (b"PROXY TCP4 1.1.1.1", "PROXY"),
            (b"SSH-2.0-x", "SSH"),
        ] {
            assert!(
                other_protocol(bytes).unwrap().starts_with(word) || word == "PROXY",
                "{word}"
            );
        }
        for bytes in [&b"\x10\x0c\x00\x04MQTT"[..], b"\x16", b"\xC0\x00", b"hello"] {
            assert_eq!(other_protocol(bytes), None, "{bytes:?}");
        }
    }
}
