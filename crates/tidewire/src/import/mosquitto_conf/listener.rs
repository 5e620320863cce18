//! Listeners of Mosquitto. A listener with an option that narrows it and that tidewire does not have is left out.

use super::access::is_access;
use super::{Conf, ConfLine, flag, last};
use crate::config::mountpoint::MountpointTemplate;
use crate::import::setup::Setup;

/// Options that need a counterpart, because the listener would be wider or different without it.
const CLOSING: [(&str, &str); 8] = [
    ("psk_hint", "tidewire does not support TLS with pre-shared keys"),
    ("psk_file", "tidewire does not support TLS with pre-shared keys"),
    (
        "bind_interface",
        "tidewire binds addresses, not interfaces: name the address of the interface behind the port",
    ),
    (
        "crlfile",
        "the listener is not imported, so that no revoked certificate is accepted; set it up with `crl_file`",
    ),
    (
        "socket_domain",
        "tidewire binds addresses: name 0.0.0.0 for IPv4 or :: for IPv6 behind the port",
    ),
    ("unix_socket", "tidewire does not listen on Unix sockets"),
    (
        "accept_protocol_versions",
        "a listener of tidewire accepts all versions of MQTT",
    ),
    (
        "enable_proxy_protocol",
        "a listener needs the addresses of the proxies as well: set it up with `proxy_protocol` and \
         `proxy_protocol_trusted`",
    ),
];

/// Options of a listener without a counterpart. They do not open or narrow it.
const REFUSED: [(&str, &str); 17] = [
    (
        "capath",
        "tidewire reads no directories of certificates: name a file with cafile",
    ),
    ("ciphers", CIPHERS),
    ("ciphers_tls1.3", CIPHERS),
    ("dhparamfile", OWN_TLS),
    ("tls_engine", OWN_TLS),
    ("tls_engine_kpass_sha1", OWN_TLS),
    ("tls_keyform", OWN_TLS),
    (
        "disable_client_cert_date_checks",
        "client certificates that have expired are rejected",
    ),
    ("proxy_protocol_v2_require_tls", "the listener has no PROXY protocol"),
    ("http_dir", "tidewire serves no other files: use a web server"),
    ("max_qos", "it is the same on all listeners: set mqtt.max_qos"),
    ("maximum_qos", "it is the same on all listeners: set mqtt.max_qos"),
    (
        "max_topic_alias",
        "it is the same on all listeners: set mqtt.max_topic_alias_in",
    ),
    (
        "max_topic_alias_broker",
        "it is the same on all listeners: set mqtt.max_topic_alias_out",
    ),
    ("auto_id_prefix", OWN_CLIENT_IDS),
    ("listener_auto_id_prefix", OWN_CLIENT_IDS),
    ("allow_zero_length_clientid", OWN_CLIENT_IDS),
];

const PAGES_OF_SAME_HOST: &str =
    "web pages of the same host may connect as well if the host is localhost or an IP address";
const CIPHERS: &str = "set `cipher_suites` of the TLS listener to single suites";
const OWN_TLS: &str = "tidewire chooses the settings of TLS itself";
const OWN_CLIENT_IDS: &str = "clients without a client ID get one that the server chooses";

/// Returns why an option of a listener is not imported.
pub fn refused(key: &str) -> Option<&'static str> {
    let refused = REFUSED.iter().find(|(refused, _)| *refused == key);
    refused.map(|(_, because)| *because)
}

/// Options of TLS. Without `certfile`, the listener would be one without TLS.
const TLS: [&str; 9] = [
    "cafile",
    "capath",
    "keyfile",
    "tls_version",
    "ciphers",
    "ciphers_tls1.3",
    "dhparamfile",
    "tls_engine",
    "tls_keyform",
];

/// Flags of which `true` needs TLS.
const TLS_FLAGS: [&str; 3] = [
    "require_certificate",
    "use_identity_as_username",
    "use_subject_as_username",
];

const NAMES_USERS: [&str; 2] = ["use_identity_as_username", "use_subject_as_username"];

/// Returns whether a line before the first `listener` opens or narrows the default listener.
pub fn is_of_default(line: &ConfLine<'_>) -> bool {
    let is_closing = CLOSING.iter().any(|(key, _)| *key == line.key);
    is_closing || needs_tls(line) || ["port", "bind_address", "certfile", "protocol", "mount_point"].contains(&line.key)
}

/// Returns whether Mosquitto takes the names of users from client certificates.
pub fn names_users(lines: &[ConfLine<'_>]) -> bool {
    let mut flags = lines.iter().filter(|line| NAMES_USERS.contains(&line.key));
    flags.any(|line| flag(line.value) != Some(false))
}

fn needs_tls(line: &ConfLine<'_>) -> bool {
    TLS.contains(&line.key) || TLS_FLAGS.contains(&line.key) && flag(line.value) != Some(false)
}

/// Which listeners exist already.
#[derive(Default)]
pub struct Listeners {
    kinds: Vec<&'static str>,
}

/// An option of a listener, or why it is not set.
enum ListenerOption {
    Set(&'static str, toml::Value),
    Changed(&'static str, toml::Value, &'static str),
    Refused(&'static str),
    /// One of several web origins, which are one option.
    Origin,
    Unknown,
}

impl Listeners {
    pub fn add(&mut self, conf: &Conf<'_>, lines: &[ConfLine<'_>], setup: &mut Setup) {
        if let Err(because) = self.one(conf, lines, setup) {
            let because = format!("{because}. The listener is left out; to open it, add it to tidewire.toml");
            let own = lines.iter().filter(|line| !is_access(line.key));
            own.for_each(|line| conf.refuse(line, &because));
        }
    }

    fn one(&mut self, conf: &Conf<'_>, lines: &[ConfLine<'_>], setup: &mut Setup) -> Result<(), String> {
        let first = &lines[0];
        let mut words = first.value.split_whitespace();
        let port: u16 = words
            .next()
            .and_then(|port| port.parse().ok())
            .ok_or("its port is invalid")?;
        if port == 0 {
            return Err("tidewire does not listen on Unix sockets".to_owned());
        }
        let bind = match words.next() {
            Some(address) if address.contains(':') => format!("[{address}]:{port}"),
            Some(address) => format!("{address}:{port}"),
            None => format!("[::]:{port}"),
        };
        for (key, because) in CLOSING {
            if last(lines, key).is_some_and(|line| !accepts_all_versions(line)) {
                return Err(because.to_owned());
            }
        }
        let kind = kind(lines)?;
        let name = if self.kinds.contains(&kind) {
            setup.free_name(&[&format!("listeners.{kind}")], &format!("port-{port}"), "")
        } else {
            "default".to_owned()
        };
        let key = format!("listeners.{kind}.{name}");
        let mut options = Vec::new();
        for line in lines {
            options.push((line, option(conf, line, kind)?));
        }
        setup.set(&format!("{key}.bind"), &first.item, bind);
        conf.imported(first, &format!("{key}.bind"));
        let mut origins: Vec<toml::Value> = Vec::new();
        for (line, option) in options {
            let to = |option: &str| format!("{key}.{option}");
            match option {
                ListenerOption::Set(option, value) => {
                    setup.set(&to(option), &first.item, value);
                    conf.imported(line, &to(option));
                }
                ListenerOption::Changed(option, value, because) => {
                    setup.set(&to(option), &first.item, value);
                    conf.changed(line, &to(option), because);
                }
                ListenerOption::Refused(because) => conf.refuse(line, because),
                ListenerOption::Origin => {
                    origins.push(line.value.into());
                    conf.changed(line, &to("allowed_origins"), PAGES_OF_SAME_HOST);
                }
                ListenerOption::Unknown if line.key == "protocol" || accepts_all_versions(line) => {
                    conf.imported(line, &key);
                }
                ListenerOption::Unknown => {}
            }
        }
        if !origins.is_empty() {
            setup.set(&format!("{key}.allowed_origins"), &first.item, origins);
        }
        if !self.kinds.contains(&kind) {
            self.kinds.push(kind);
        }
        Ok(())
    }

    /// tidewire opens the default TCP and WebSocket listeners without configuration. `is_local`: so does Mosquitto, for
    /// clients of this machine.
    pub fn finish(&self, is_local: bool, setup: &mut Setup) {
        let has = |kind: &str| self.kinds.contains(&kind);
        if is_local {
            setup.set("listeners.tcp.default.bind", "", "127.0.0.1:1883");
        } else if !has("tcp") {
            setup.set("listeners.tcp.default.enabled", "", false);
        }
        if !has("ws") {
            setup.set("listeners.ws.default.enabled", "", false);
        }
    }
}

/// Returns whether a line is `accept_protocol_versions` with MQTT 3.1, 3.1.1 and 5.
fn accepts_all_versions(line: &ConfLine<'_>) -> bool {
    let has = |version: &str| line.value.split([',', ' ', '\t']).any(|one| one == version);
    line.key == "accept_protocol_versions" && ["3", "4", "5"].into_iter().all(has)
}

/// Returns the kind of a listener.
fn kind(lines: &[ConfLine<'_>]) -> Result<&'static str, String> {
    let has_tls = last(lines, "certfile").is_some();
    match lines.iter().find(|line| needs_tls(line)) {
        Some(line) if !has_tls => {
            let key = line.key;
            return Err(format!("it has {key}, but no certfile: it would be without TLS"));
        }
        _ => {}
    }
    let is_web = match last(lines, "protocol").map(|line| line.value) {
        Some("websockets") => true,
        Some("mqtt") | None => false,
        Some(_) => return Err("its protocol is neither mqtt nor websockets".to_owned()),
    };
    Ok(match (has_tls, is_web) {
        (false, false) => "tcp",
        (true, false) => "tls",
        (false, true) => "ws",
        (true, true) => "wss",
    })
}

fn option(conf: &Conf<'_>, line: &ConfLine<'_>, kind: &str) -> Result<ListenerOption, String> {
    use ListenerOption::{Changed, Origin, Refused, Set, Unknown};
    let file = |option| conf.existing(line.value).map(|path| Set(option, path.into()));
    Ok(match line.key {
        "certfile" => file("cert_file")?,
        "keyfile" => file("key_file")?,
        "cafile" => file("ca_file")?,
        "require_certificate" => match flag(line.value) {
            Some(true) => Set("verify_client", "required".into()),
            Some(false) if matches!(kind, "tcp" | "ws") => Refused("the listener has no TLS"),
            Some(false) => Set("verify_client", "none".into()),
            None => return Err("the value of require_certificate is neither true nor false".to_owned()),
        },
        "tls_version" => match line.value {
            "tlsv1.3" => Set("min_tls_version", "1.3".into()),
            "tlsv1.2" => Set("min_tls_version", "1.2".into()),
            "tlsv1.1" | "tlsv1" => Changed("min_tls_version", "1.2".into(), "TLS 1.2 is the oldest version"),
            _ => return Err("its tls_version is unknown".to_owned()),
        },
        "max_connections" => match line.value.parse::<i64>() {
            Ok(number) if number > 0 => Set("max_connections", number.into()),
            Ok(_) => Set("max_connections", "unlimited".into()),
            Err(_) => Refused("its value is not a number"),
        },
        "mount_point" => match MountpointTemplate::parse(line.value) {
            // In Mosquitto as well, access rules see topics with the prefix.
            Ok(_) if !line.value.contains("${") => Set("mountpoint", line.value.into()),
            Ok(_) => return Err("its mount_point contains `${`, which begins a placeholder in tidewire".to_owned()),
            Err(because) => return Err(format!("its mount_point cannot be used: {because}")),
        },
        "websockets_origin" if !matches!(kind, "ws" | "wss") => Refused("the listener has no WebSocket"),
        // `*` means all origins in tidewire only.
        "websockets_origin" if line.value.contains('*') => Refused("`*` allows no web page in Mosquitto"),
        "websockets_origin" => Origin,
        "use_identity_as_username" | "use_subject_as_username" if flag(line.value) != Some(false) => {
            Refused("set `peer_cert_as_user_name` of the TLS listener, and `certificate` in access.providers")
        }
        key => refused(key).map_or(Unknown, Refused),
    })
}
