//! Where to connect: from `-h`, `-p`, `--unix` and `-L`.

use std::fmt;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlScheme {
    Mqtt,
    Mqtts,
    Ws,
    Wss,
    Quic,
    /// Port of the API.
    Http,
    Https,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectTarget {
    pub scheme: UrlScheme,
    pub host: String,
    pub port: u16,
    /// Path of a WebSocket URL.
    pub path: String,
    /// Instead of host and port.
    pub unix: Option<PathBuf>,
}

/// Parts of a URL besides the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UrlExtras {
    pub user_name: Option<String>,
    pub password: Option<String>,
    pub topic: Option<String>,
}

impl UrlScheme {
    pub fn has_tls(self) -> bool {
        matches!(self, UrlScheme::Mqtts | UrlScheme::Wss | UrlScheme::Https)
    }

    pub fn has_ws(self) -> bool {
        matches!(self, UrlScheme::Ws | UrlScheme::Wss)
    }

    /// tidewire's ports; those of Mosquitto for MQTT itself, those of EMQX for WebSocket.
    pub fn default_port(self) -> u16 {
        match self {
            UrlScheme::Mqtt => 1883,
            UrlScheme::Mqtts => 8883,
            UrlScheme::Ws => 8083,
            UrlScheme::Wss => 8084,
            UrlScheme::Quic => 14567,
            UrlScheme::Http | UrlScheme::Https => 18083,
        }
    }

    fn parse(text: &str) -> Option<UrlScheme> {
        Some(match text {
            "mqtt" | "tcp" => UrlScheme::Mqtt,
            "mqtts" | "ssl" | "tls" => UrlScheme::Mqtts,
            "ws" => UrlScheme::Ws,
            "wss" => UrlScheme::Wss,
            // The second is that of NanoMQ.
            "quic" | "mqtt-quic" => UrlScheme::Quic,
            _ => return None,
        })
    }
}

impl ConnectTarget {
    /// `mqtt[s]://` or `quic://` with `[user[:password]@]host[:port][/topic]`, or `ws[s]://` with
    /// `[user[:password]@]host[:port][/path]`.
    pub fn parse_url(url: &str) -> Result<(ConnectTarget, UrlExtras), String> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| format!("`{url}` is not a URL: `://` is missing"))?;
        let scheme = UrlScheme::parse(scheme)
            .ok_or_else(|| format!("`{scheme}` is not a supported scheme; use mqtt, mqtts, ws, wss or quic"))?;
        let (authority, path) = match rest.find('/') {
            Some(at) => (&rest[..at], &rest[at..]),
            None => (rest, ""),
        };
        let (login, address) = match authority.rsplit_once('@') {
            Some((login, address)) => (Some(login), address),
            None => (None, authority),
        };
        let (host, port) = split_address(address, scheme)
            .ok_or_else(|| format!("`{address}` is not a host and port, such as localhost:1883"))?;
        let (user_name, password) =
            match login.map(|login| login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)))) {
                Some((user_name, password)) => (
                    Some(percent_decode(user_name)?),
                    password.map(percent_decode).transpose()?,
                ),
                None => (None, None),
            };
        let is_topic = !scheme.has_ws() && path.len() > 1;
        let topic = is_topic.then(|| path[1..].to_string());
        let path = if scheme.has_ws() && path.len() > 1 {
            path
        } else {
            "/mqtt"
        };
        let target = ConnectTarget {
            scheme,
            host,
            port,
            path: path.into(),
            unix: None,
        };
        Ok((
            target,
            UrlExtras {
                user_name,
                password,
                topic,
            },
        ))
    }
}

impl ConnectTarget {
    /// `http[s]://host[:port]` of an API.
    pub fn parse_api_url(url: &str) -> Result<ConnectTarget, String> {
        let wrong = || format!("`{url}` is not the address of an API, such as http://127.0.0.1:18083");
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let scheme = match scheme {
            "http" => UrlScheme::Http,
            "https" => UrlScheme::Https,
            _ => return Err(wrong()),
        };
        let address = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = split_address(address, scheme)
            .filter(|_| !address.contains(['/', '@']))
            .ok_or_else(wrong)?;
        Ok(ConnectTarget {
            scheme,
            host,
            port,
            path: String::new(),
            unix: None,
        })
    }
}

fn split_address(address: &str, scheme: UrlScheme) -> Option<(String, u16)> {
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (
                host,
                if after.is_empty() {
                    None
                } else {
                    Some(after.strip_prefix(':')?)
                },
            )
        }
        None => address
            .split_once(':')
            .map_or((address, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        Some(port) => port.parse().ok()?,
        None => scheme.default_port(),
    };
    (!host.is_empty() && !host.contains(char::is_whitespace)).then(|| (host.to_string(), port))
}

fn percent_decode(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = (byte == b'%').then(|| after.get(..2)).flatten();
        match escaped
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())
        {
            Some(value) => {
                bytes.push(value);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).map_err(|_| "the login in the URL is not UTF-8".into())
}

impl fmt::Display for ConnectTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unix {
            Some(path) => write!(f, "{}", path.display()),
            None if self.host.contains(':') => write!(f, "[{}]:{}", self.host, self.port),
            None => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        for (url, scheme, address, path, user, password, topic) in [
            ("mqtt://h", UrlScheme::Mqtt, "h:1883", "/mqtt", None, None, None),
            (
                "mqtt://h/a/b",
                UrlScheme::Mqtt,
                "h:1883",
                "/mqtt",
                None,
                None,
                Some("a/b"),
            ),
            (
                "mqtts://u@h:1/t",
                UrlScheme::Mqtts,
                "h:1",
                "/mqtt",
                Some("u"),
                None,
                Some("t"),
            ),
            (
                "mqtt://u:p@q@[::1]:5/#",
                UrlScheme::Mqtt,
                "[::1]:5",
                "/mqtt",
                Some("u"),
                Some("p@q"),
                Some("#"),
            ),
            ("quic://h/t", UrlScheme::Quic, "h:14567", "/mqtt", None, None, Some("t")),
            ("ws://h", UrlScheme::Ws, "h:8083", "/mqtt", None, None, None),
            (
                "wss://u:a%3Ab@h:443/x/y?z",
                UrlScheme::Wss,
                "h:443",
                "/x/y?z",
                Some("u"),
                Some("a:b"),
                None,
            ),
        ] {
            let (target, extras) = ConnectTarget::parse_url(url).expect(url);
            assert_eq!(
                (target.scheme, target.to_string().as_str(), target.path.as_str()),
                (scheme, address, path),
                "{url}"
            );
            let found = (
                extras.user_name.as_deref(),
                extras.password.as_deref(),
                extras.topic.as_deref(),
            );
            assert_eq!(found, (user, password, topic), "{url}");
        }
        for url in [
            "h",
            "http://h",
            "mqtt://",
            "mqtt://h:x",
            "mqtt://h:70000",
            "mqtt://[::1",
            "mqtt://[::1]x",
            "mqtt://a b",
        ] {
            assert!(ConnectTarget::parse_url(url).is_err(), "{url}");
        }
    }
}
