//! Addresses in options: where to bind, whom to trust, and where the system log is.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use auth::Cidr;

use super::value::{OptionValue, Reject};

/// `host:port`, `[::1]:port` or a bare port (every IPv4 interface).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// An address or a name, without brackets.
    pub host: String,
    /// 0 lets the system choose.
    pub port: u16,
}

/// Whether two sockets of these addresses stand in each other's way: on a machine, `[::]` is every address.
pub fn overlap(one: IpAddr, other: IpAddr) -> bool {
    let is_all = |all: IpAddr, other: IpAddr| all.is_unspecified() && (all.is_ipv6() || other.is_ipv4());
    one == other || is_all(one, other) || is_all(other, one)
}

impl Bind {
    /// As far as that is known without resolving names.
    pub fn overlaps(&self, other: &Bind) -> bool {
        let address = |bind: &Bind| bind.host.parse::<IpAddr>();
        let is_same_place = match (address(self), address(other)) {
            (Ok(one), Ok(other)) => overlap(one, other),
            _ => self.host == other.host,
        };
        self.port != 0 && self.port == other.port && is_same_place
    }

    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Returns the address to bind. If a host name has several, the first is used. `key` is the option, for errors.
    pub fn resolve(&self, key: &str) -> Result<SocketAddr, String> {
        let addresses = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|e| format!("{key}: {self} is not an address of this machine: {e}"))?;
        let addresses: Vec<SocketAddr> = addresses.collect();
        let (first, others) = addresses
            .split_first()
            .ok_or_else(|| format!("{key}: {self} has no address"))?;
        let others: Vec<String> = others
            .iter()
            .filter(|other| *other != first)
            .map(ToString::to_string)
            .collect();
        if !others.is_empty() {
            let others = others.join(", ");
            tracing::warn!(key, name = %self, taken = %first, others, "the name has several addresses; the server listens on the first");
        }
        Ok(*first)
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl OptionValue for Bind {
    fn type_name() -> String {
        "address".into()
    }

    fn expected() -> String {
        "host:port, such as \"0.0.0.0:1883\", \"[::]:1883\" or \"localhost:1883\"".into()
    }

    fn from_text(text: &str) -> Result<Bind, Reject> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let port = text.parse().map_err(|_| Reject::Mismatch)?;
            return Ok(Bind {
                host: "0.0.0.0".into(),
                port,
            });
        }
        let (host, port) = text
            .rsplit_once(':')
            .ok_or_else(|| Reject::WithReason("the port is missing".into()))?;
        let port = port
            .parse()
            .map_err(|_| Reject::WithReason(format!("`{port}` is not a port number")))?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(inner) if is_v6(inner) => inner,
            None if !host.is_empty() && !host.contains([':', '[', ']', ' ', '/']) => host,
            None if host.contains(':') => {
                return Err(Reject::WithReason(format!(
                    "an IPv6 address needs brackets: \"[{host}]:{port}\""
                )));
            }
            _ => return Err(Reject::Mismatch),
        };
        Ok(Bind {
            host: host.into(),
            port,
        })
    }

    fn from_toml(value: &toml::Value) -> Result<Bind, Reject> {
        match value {
            toml::Value::String(text) => Bind::from_text(text),
            toml::Value::Integer(port) => Bind::from_text(&port.to_string()),
            _ => Err(Reject::Mismatch),
        }
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.to_string())
    }
}

/// Whether this is an IPv6 address, with or without a zone: `fe80::1%eth0`.
fn is_v6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    let is_zone = !zone.is_empty() && zone.chars().all(|c| c.is_alphanumeric() || "-._".contains(c));
    address.parse::<std::net::Ipv6Addr>().is_ok() && is_zone
}

impl OptionValue for Cidr {
    fn type_name() -> String {
        "network".into()
    }

    fn expected() -> String {
        "an address or network such as \"127.0.0.1\" or \"10.0.0.0/8\"".into()
    }

    fn from_text(text: &str) -> Result<Cidr, Reject> {
        text.parse()
            .map_err(|error: auth::CidrError| Reject::WithReason(error.to_string()))
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.to_string())
    }
}

/// A system log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogAddress {
    /// systemd's journal.
    Journald,
    /// Path of a socket for datagrams.
    Unix(PathBuf),
    Udp(Bind),
}

impl fmt::Display for SyslogAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyslogAddress::Journald => f.write_str("journald"),
            SyslogAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            SyslogAddress::Udp(address) => write!(f, "udp://{address}"),
        }
    }
}

impl OptionValue for SyslogAddress {
    fn type_name() -> String {
        "system log".into()
    }

    fn expected() -> String {
        "\"journald\", a socket such as \"unix:/dev/log\", or an address such as \"udp://logs.example.com:514\"".into()
    }

    fn from_text(text: &str) -> Result<SyslogAddress, Reject> {
        if text == "journald" {
            return Ok(SyslogAddress::Journald);
        }
        if let Some(path) = text.strip_prefix("unix:").filter(|path| path.starts_with('/')) {
            return Ok(SyslogAddress::Unix(path.into()));
        }
        // A port alone would mean every address of this machine.
        let address = text.strip_prefix("udp://").filter(|address| address.contains(':'));
        let address = Bind::from_text(address.ok_or(Reject::Mismatch)?)?;
        match address.port {
            0 => Err(Reject::Mismatch),
            _ => Ok(SyslogAddress::Udp(address)),
        }
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_logs_are_read_and_printed() {
        for text in [
            "journald",
            "unix:/dev/log",
            "udp://logs.example.com:514",
            "udp://[::1]:514",
        ] {
            let address = SyslogAddress::from_text(text).expect(text);
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "journal",
            "unix:dev/log",
            "/dev/log",
            "udp://514",
            "udp://host",
            "udp://host:0",
            "tcp://host:514",
        ] {
            assert!(SyslogAddress::from_text(text).is_err(), "{text}");
        }
    }

    #[test]
    fn all_addresses_of_a_machine_are_in_the_way_of_each() {
        for (one, other, expected) in [
            ("0.0.0.0:1883", "10.0.0.1:1883", true),
            ("0.0.0.0:1883", "[::1]:1883", false),
            ("[::]:1883", "[::1]:1883", true),
            ("[::]:1883", "10.0.0.1:1883", true),
            ("[::]:1883", "0.0.0.0:1883", true),
            ("10.0.0.1:1883", "10.0.0.2:1883", false),
            ("0.0.0.0:1883", "10.0.0.1:1884", false),
            ("0.0.0.0:0", "0.0.0.0:0", false),
            ("localhost:1883", "localhost:1883", true),
        ] {
            let bind = |text: &str| Bind::from_text(text).expect(text);
            assert_eq!(bind(one).overlaps(&bind(other)), expected, "{one} {other}");
            assert_eq!(bind(other).overlaps(&bind(one)), expected, "{other} {one}");
        }
    }

    #[test]
    fn bind_addresses_are_read_and_printed() {
        for (text, host, port, printed) in [
            ("0.0.0.0:1883", "0.0.0.0", 1883, "0.0.0.0:1883"),
            ("1883", "0.0.0.0", 1883, "0.0.0.0:1883"),
            ("[::]:1883", "::", 1883, "[::]:1883"),
            ("[fe80::1%eth0]:1883", "fe80::1%eth0", 1883, "[fe80::1%eth0]:1883"),
            ("localhost:0", "localhost", 0, "localhost:0"),
        ] {
            let bind = Bind::from_text(text).expect(text);
            assert_eq!(
                (bind.host.as_str(), bind.port, bind.to_string().as_str()),
                (host, port, printed)
            );
        }
        for text in [
            "",
            "localhost",
            "localhost:",
            "localhost:70000",
            "70000",
            ":1883",
            "::1:1883",
            "[x]:1",
            "[fe80::1%]:1",
            "[fe80::1%a b]:1",
            "a b:1",
        ] {
            assert!(Bind::from_text(text).is_err(), "{text}");
        }
    }
}
