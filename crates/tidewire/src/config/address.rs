//! Network addresses in options: where to bind, and whom to trust.

use std::fmt;
use std::net::IpAddr;

use super::value::{OptionValue, Reject};

/// `host:port`, `[::1]:port` or a bare port (every IPv4 interface).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// An address or a name, without brackets.
    pub host: String,
    /// 0 lets the system choose.
    pub port: u16,
}

/// An address with a prefix length: `10.0.0.0/8`, `::1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    pub address: IpAddr,
    pub prefix_len: u8,
}

impl Bind {
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
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

impl Network {
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_len)).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.prefix_len)).unwrap_or(0);
                network.to_bits() & mask == address.to_bits() & mask
            }
            _ => false,
        }
    }

    const fn is_single(&self) -> bool {
        matches!(
            (self.address, self.prefix_len),
            (IpAddr::V4(_), 32) | (IpAddr::V6(_), 128)
        )
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_single() {
            write!(f, "{}", self.address)
        } else {
            write!(f, "{}/{}", self.address, self.prefix_len)
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
            .ok_or_else(|| Reject::Because("the port is missing".into()))?;
        let port = port
            .parse()
            .map_err(|_| Reject::Because(format!("`{port}` is no port")))?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = match bare {
            Some(inner) if inner.parse::<std::net::Ipv6Addr>().is_ok() => inner,
            None if !host.is_empty() && !host.contains([':', '[', ']', ' ', '/']) => host,
            None if host.contains(':') => {
                return Err(Reject::Because(format!(
                    "an IPv6 address stands in brackets: \"[{host}]:{port}\""
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

impl OptionValue for Network {
    fn type_name() -> String {
        "network".into()
    }

    fn expected() -> String {
        "an address or network such as \"127.0.0.1\" or \"10.0.0.0/8\"".into()
    }

    fn from_text(text: &str) -> Result<Network, Reject> {
        let (address, prefix_len) = match text.split_once('/') {
            Some((address, prefix_len)) => (address, Some(prefix_len)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| Reject::Mismatch)?;
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix_len = match prefix_len {
            None => longest,
            Some(text) => text
                .parse()
                .ok()
                .filter(|len| *len <= longest)
                .ok_or(Reject::Mismatch)?,
        };
        Ok(Network { address, prefix_len })
    }

    fn to_toml(&self) -> toml::Value {
        toml::Value::String(self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bind_addresses_are_read_and_printed() {
        for (text, host, port, printed) in [
            ("0.0.0.0:1883", "0.0.0.0", 1883, "0.0.0.0:1883"),
            ("1883", "0.0.0.0", 1883, "0.0.0.0:1883"),
            ("[::]:1883", "::", 1883, "[::]:1883"),
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
            "a b:1",
        ] {
            assert!(Bind::from_text(text).is_err(), "{text}");
        }
    }

    #[test]
    fn networks_contain_their_addresses() {
        for (network, address, is_inside) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("127.0.0.1", "127.0.0.2", false),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("::/0", "2001:db8::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
        ] {
            let network = Network::from_text(network).expect(network);
            assert_eq!(
                network.contains(address.parse().expect(address)),
                is_inside,
                "{network} {address}"
            );
        }
        for text in ["10.0.0.0/33", "x", "10.0.0.0/", "::/129"] {
            assert!(Network::from_text(text).is_err(), "{text}");
        }
    }
}
