//! `tidewire import mosquitto mosquitto.conf`: imports the configuration of Mosquitto 2, and the files that it names:
//! passwords, access rules, dynamic security and persistence.
//!
//! Each line of `mosquitto.conf` is an option. Lines behind `listener` belong to that listener, lines behind
//! `connection` to that bridge.

mod bridge;
mod dynamic_security;

use std::path::{Path, PathBuf};

use auth::{AccessAction, AccessRule, Users, parse_mosquitto_acl};

use super::access::ALL_TOPICS;
use super::options::Form::{self, Flag, Limit, Number, Seconds};
use super::options::convert;
use super::report::{Outcome, Report};
use super::setup::{Setup, simple_name};
use super::{CONFIG_BYTES_MAX, read_bounded};
use crate::config::files::chain;

/// Maximum number of lines of a file.
const LINES_MAX: usize = 100_000;
/// Maximum size of a persistence file.
const DATABASE_BYTES_MAX: u64 = 4 << 30;

/// A line with an option.
struct ConfLine<'a> {
    line: usize,
    key: &'a str,
    value: &'a str,
}

/// The file being read, and where outcomes go.
struct Conf<'r> {
    name: String,
    directory: PathBuf,
    report: &'r Report,
}

impl Conf<'_> {
    fn add(&self, line: &ConfLine<'_>, outcome: Outcome) {
        self.report.add(&self.name, line.line, line.key, outcome);
    }

    fn imported(&self, line: &ConfLine<'_>, to: &str) {
        self.add(line, Outcome::Imported(to.to_owned()));
    }

    fn changed(&self, line: &ConfLine<'_>, to: &str, because: &str) {
        let (to, because) = (to.to_owned(), because.to_owned());
        self.add(line, Outcome::Changed { to, because });
    }

    fn refuse(&self, line: &ConfLine<'_>, because: &str) {
        let because = because.to_owned();
        self.add(line, Outcome::NotSupported { because });
    }

    /// Returns the path of a file that the configuration names.
    fn path(&self, value: &str) -> PathBuf {
        self.directory.join(value)
    }

    /// Returns the absolute path of a file of this machine.
    fn existing(&self, value: &str) -> Result<String, String> {
        let path = std::path::absolute(self.path(value)).map_err(|error| format!("{value}: {error}"))?;
        match path.is_file() {
            true => Ok(path.display().to_string()),
            false => Err(format!("this machine has no file {value}")),
        }
    }
}

/// The first lines, then listeners and bridges, each with the line that begins it.
#[derive(Default)]
struct Sections<'a> {
    global: Vec<ConfLine<'a>>,
    listeners: Vec<Vec<ConfLine<'a>>>,
    bridges: Vec<Vec<ConfLine<'a>>>,
}

/// Options that are for the whole server wherever they stand.
const GLOBAL_ANYWHERE: [&str; 6] = [
    "persistence",
    "persistence_location",
    "persistence_file",
    "log_dest",
    "log_type",
    "per_listener_settings",
];

fn sections(text: &str) -> Result<Sections<'_>, (usize, String)> {
    let mut sections = Sections::default();
    let mut current = 0;
    for (at, line) in text.lines().enumerate() {
        if at >= LINES_MAX {
            return Err((at, format!("the file has more than {LINES_MAX} lines")));
        }
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let entry = ConfLine {
            line: at + 1,
            key,
            value: value.trim(),
        };
        match (key, current) {
            ("listener", _) => {
                sections.listeners.push(vec![entry]);
                current = 1;
            }
            ("connection", _) => {
                sections.bridges.push(vec![entry]);
                current = 2;
            }
            (key, _) if GLOBAL_ANYWHERE.contains(&key) => sections.global.push(entry),
            (_, 1) => sections.listeners.last_mut().expect("it began").push(entry),
            (_, 2) => sections.bridges.last_mut().expect("it began").push(entry),
            _ => sections.global.push(entry),
        }
    }
    Ok(sections)
}

pub fn import(file: &Path, report: &Report) -> Result<Setup, String> {
    let bytes = read_bounded(file, CONFIG_BYTES_MAX)?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{}: the file is not UTF-8", file.display()))?;
    let conf = Conf {
        name: file
            .file_name()
            .map_or_else(|| "mosquitto.conf".into(), |name| name.to_string_lossy())
            .into(),
        directory: file.parent().unwrap_or(Path::new("")).to_owned(),
        report,
    };
    let found = sections(&text).map_err(|(line, problem)| format!("{}:{line}: {problem}", file.display()))?;
    let mut setup = Setup::new()?;
    let mut listeners = Listeners::default();
    for lines in &found.listeners {
        listeners.add(&conf, lines, &mut setup);
    }
    listeners.finish(&mut setup);
    let access = access_lines(&found);
    import_access(&conf, &access, found.listeners.is_empty(), &mut setup)?;
    persistence(&conf, &found.global, &mut setup)?;
    for line in &found.global {
        global(&conf, line, &mut setup);
    }
    for lines in &found.bridges {
        bridge::import(&conf, lines, &mut setup);
    }
    for line in found.listeners.iter().flatten() {
        conf.refuse(line, "tidewire has no such option of a listener");
    }
    Ok(setup)
}

const ZERO_IS_NONE: Form = Limit { zero_is_none: true };

const OPTIONS: [(&str, &str, Form); 13] = [
    ("max_queued_messages", "mqtt.max_queued_messages", ZERO_IS_NONE),
    ("max_queued_bytes", "mqtt.max_queued_bytes", ZERO_IS_NONE),
    ("queue_qos0_messages", "mqtt.queue_qos0", Flag),
    ("max_packet_size", "mqtt.max_packet_size", Number),
    ("message_size_limit", "mqtt.max_packet_size", Number),
    ("max_keepalive", "mqtt.max_keep_alive", Seconds),
    ("max_qos", "mqtt.max_qos", Number),
    ("retain_available", "mqtt.retain_available", Flag),
    ("max_topic_alias", "mqtt.max_topic_alias_in", Number),
    ("sys_interval", "sys.interval", Seconds),
    ("max_connections", "limits.max_connections", Number),
    ("global_max_connections", "limits.max_connections", Number),
    ("global_max_clients", "limits.max_sessions", Number),
];

const REFUSED: [(&str, &str); 14] = [
    ("autosave_interval", "each acknowledged message is in the journal"),
    ("autosave_on_changes", "each acknowledged message is in the journal"),
    ("pid_file", "tidewire writes no such file"),
    ("user", "start tidewire as this user"),
    ("log_dest", "the log goes to standard error, or to the file of log.file"),
    ("log_type", "log.level chooses the messages"),
    ("connection_messages", "the log contains connections at the level info"),
    ("log_timestamp", "each line of the log has a time"),
    ("log_timestamp_format", "times have the format of ISO 8601"),
    ("per_listener_settings", "users and rules are the same on all listeners"),
    ("set_tcp_nodelay", "tidewire sets the options of sockets itself"),
    (
        "include_dir",
        "import the files of the directory as part of mosquitto.conf",
    ),
    (
        "upgrade_outgoing_qos",
        "messages have the lower QoS of publisher and subscription",
    ),
    ("check_retain_source", "rules are checked when a message is published"),
];

fn global(conf: &Conf<'_>, line: &ConfLine<'_>, setup: &mut Setup) {
    let value = line.value;
    if let Some((_, to, form)) = OPTIONS.iter().find(|(key, ..)| *key == line.key) {
        let is_unlimited = value == "-1" || value == "0" && to.ends_with("max_packet_size");
        match convert(value, *form) {
            _ if is_unlimited => conf.changed(line, to, "the default of tidewire, because it has a limit always"),
            Some(value) => {
                setup.set(to, line.key, value);
                conf.imported(line, to);
            }
            None => conf.refuse(line, &format!("its value has no counterpart in {to}")),
        }
        return;
    }
    if let Some((_, because)) = REFUSED.iter().find(|(key, _)| *key == line.key) {
        conf.refuse(line, because);
        return;
    }
    match line.key {
        "max_inflight_messages" => {
            let value = if value == "0" { "65535" } else { value };
            if let Some(value) = convert(value, Number) {
                setup.set("mqtt.max_inflight", line.key, value);
            }
            conf.imported(line, "mqtt.max_inflight");
        }
        "allow_duplicate_messages" => {
            let each = if value == "false" { "once" } else { "each" };
            setup.set("mqtt.overlapping_subscriptions", line.key, each);
            conf.imported(line, "mqtt.overlapping_subscriptions");
        }
        "persistent_client_expiration" => match expiration(value) {
            Some(duration) => {
                setup.set("mqtt.default_session_expiry", line.key, duration);
                conf.imported(line, "mqtt.default_session_expiry");
            }
            None => conf.refuse(line, "its value is not a duration"),
        },
        _ => conf.refuse(line, "tidewire has no such option"),
    }
}

/// `2m` is two months in Mosquitto.
fn expiration(value: &str) -> Option<String> {
    let unit = value.chars().last()?;
    let number: u64 = value.strip_suffix(unit)?.parse().ok()?;
    Some(match unit {
        'h' => format!("{number}h"),
        'd' => format!("{number}d"),
        'w' => format!("{}d", number.checked_mul(7)?),
        'm' => format!("{}d", number.checked_mul(30)?),
        'y' => format!("{}d", number.checked_mul(365)?),
        _ => return None,
    })
}

const ACCESS: [&str; 8] = [
    "allow_anonymous",
    "password_file",
    "acl_file",
    "plugin",
    "auth_plugin",
    "global_plugin",
    "plugin_opt_config_file",
    "auth_opt_config_file",
];

/// Options of access may stand in a listener. tidewire has one set for all.
fn access_lines<'s, 'a>(found: &'s Sections<'a>) -> Vec<&'s ConfLine<'a>> {
    let all = found.global.iter().chain(found.listeners.iter().flatten());
    all.filter(|line| ACCESS.contains(&line.key)).collect()
}

fn import_access(conf: &Conf<'_>, lines: &[&ConfLine<'_>], is_local: bool, setup: &mut Setup) -> Result<(), String> {
    // Mosquitto 2 admits anonymous clients only without a listener.
    let mut is_anonymous = is_local;
    let mut has_dynamic_security = false;
    for line in lines {
        let is_first =
            |key: &str| lines.iter().find(|other| other.key == key).map(|other| other.line) == Some(line.line);
        match line.key {
            "allow_anonymous" => {
                // The narrowest of several listeners applies.
                let is_allowed = line.value == "true";
                is_anonymous = if is_first(line.key) {
                    is_allowed
                } else {
                    is_anonymous && is_allowed
                };
                conf.imported(line, "access.anonymous");
            }
            "password_file" => {
                let users = Users::load(&conf.path(line.value)).map_err(|error| chain(&error))?;
                match setup.add_users(&users) {
                    Ok(()) => conf.imported(line, "passwords"),
                    Err(because) => conf.refuse(line, &because),
                }
            }
            "acl_file" if !is_first("acl_file") => {
                return Err(format!(
                    "{}:{}: tidewire has the same access rules on all listeners: merge the files of acl_file first",
                    conf.name, line.line
                ));
            }
            "acl_file" => acl_file(conf, line, setup)?,
            "plugin" | "auth_plugin" | "global_plugin" if line.value.contains("dynamic_security") => {
                has_dynamic_security = true;
                conf.imported(line, "access.rules");
            }
            "plugin" | "auth_plugin" | "global_plugin" => {
                conf.refuse(
                    line,
                    "tidewire has no plugins. As it could deny access, a rule denies all access: replace it in access.rules",
                );
                setup.add_rule(AccessRule::deny(AccessAction::All, &ALL_TOPICS))?;
            }
            _ if has_dynamic_security => {
                dynamic_security::import(&conf.path(line.value), conf.report, is_anonymous, setup)?;
                conf.imported(line, "access.rules");
            }
            _ => conf.refuse(line, "its plugin is not supported"),
        }
    }
    let anonymous = if is_anonymous { "always" } else { "never" };
    setup.set("access.anonymous", "allow_anonymous", anonymous);
    setup.set("access.session_owner", "", "any");
    Ok(())
}

fn acl_file(conf: &Conf<'_>, line: &ConfLine<'_>, setup: &mut Setup) -> Result<(), String> {
    let path = conf.path(line.value);
    let bytes = read_bounded(&path, CONFIG_BYTES_MAX)?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{}: the file is not UTF-8", path.display()))?;
    parse_mosquitto_acl(&path, &text).map_err(|errors| chain(&errors))?;
    let name = path
        .file_name()
        .map_or_else(|| "acl".into(), |name| name.to_string_lossy());
    for (at, rule) in text.lines().enumerate() {
        let rule = rule.trim();
        if !rule.is_empty() && !rule.starts_with('#') {
            conf.report
                .add(&name, at + 1, rule, Outcome::Imported("access.acl_file".to_owned()));
        }
    }
    let copy = setup.file("acl", text);
    setup.set("access.acl_file", line.key, copy);
    setup.set("access.partial_subscription", line.key, "filter");
    conf.imported(line, "access.acl_file");
    Ok(())
}

fn persistence(conf: &Conf<'_>, lines: &[ConfLine<'_>], setup: &mut Setup) -> Result<(), String> {
    let find = |key: &str| lines.iter().rev().find(|line| line.key == key);
    let Some(line) = find("persistence") else { return Ok(()) };
    if line.value != "true" {
        setup.set("durability.policy", line.key, "memory");
        conf.imported(line, "durability.policy");
        return Ok(());
    }
    conf.imported(line, "durability.policy");
    let directory = find("persistence_location").map_or("", |line| line.value);
    let name = find("persistence_file").map_or("mosquitto.db", |line| line.value);
    for key in ["persistence_location", "persistence_file"] {
        if let Some(line) = find(key) {
            conf.changed(line, "node.data_dir", "the data directory is that of the import");
        }
    }
    let path = conf.path(directory).join(name);
    let outcome = match path.is_file() {
        true => {
            setup.mosquitto_database = Some(read_bounded(&path, DATABASE_BYTES_MAX)?);
            Outcome::Imported("data/journal".to_owned())
        }
        false => Outcome::NotSupported {
            because: "the file is missing: stop Mosquitto first, because it writes the file when it ends".to_owned(),
        },
    };
    conf.report.add(name, 0, "sessions and messages", outcome);
    Ok(())
}

/// Which listeners exist already.
#[derive(Default)]
struct Listeners {
    names: Vec<(&'static str, String)>,
}

impl Listeners {
    fn add(&mut self, conf: &Conf<'_>, lines: &[ConfLine<'_>], setup: &mut Setup) {
        if let Err(because) = self.one(conf, lines, setup) {
            let own = lines.iter().filter(|line| !ACCESS.contains(&line.key));
            own.for_each(|line| conf.refuse(line, &because));
        }
    }

    fn one(&mut self, conf: &Conf<'_>, lines: &[ConfLine<'_>], setup: &mut Setup) -> Result<(), String> {
        let find = |key: &str| lines.iter().rev().find(|line| line.key == key);
        let mut words = lines[0].value.split_whitespace();
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
        if find("mount_point").is_some() {
            return Err("listeners have no mount point; clients would use other topics".to_owned());
        }
        if find("psk_hint").is_some() || find("psk_file").is_some() {
            return Err("tidewire does not support TLS with pre-shared keys".to_owned());
        }
        let has_tls = find("certfile").is_some();
        let is_web = find("protocol").is_some_and(|line| line.value == "websockets");
        let kind = match (has_tls, is_web) {
            (false, false) => "tcp",
            (true, false) => "tls",
            (false, true) => "ws",
            (true, true) => "wss",
        };
        let is_first = !self.names.iter().any(|(other, _)| *other == kind);
        let name = if is_first {
            "default".to_owned()
        } else {
            simple_name(&format!("port-{port}"))
        };
        let key = format!("listeners.{kind}.{name}");
        let mut options = vec![("bind", toml::Value::from(bind))];
        let mut rows = vec![(&lines[0], "bind")];
        for line in lines {
            let file = |option| conf.existing(line.value).map(|path| (option, toml::Value::from(path)));
            let option = match line.key {
                "certfile" => file("cert_file")?,
                "keyfile" => file("key_file")?,
                "cafile" => file("ca_file")?,
                "require_certificate" => {
                    let mode = if line.value == "true" { "required" } else { "none" };
                    ("verify_client", mode.into())
                }
                "tls_version" => {
                    let oldest = if line.value == "tlsv1.3" { "1.3" } else { "1.2" };
                    ("min_tls_version", oldest.into())
                }
                "max_connections" => match line.value.parse::<i64>() {
                    Ok(number) if number > 0 => ("max_connections", number.into()),
                    _ => ("max_connections", "unlimited".into()),
                },
                "protocol" => {
                    conf.imported(line, &key);
                    continue;
                }
                "crlfile" | "capath" | "ciphers" | "dhparamfile" | "tls_engine" => {
                    conf.refuse(line, "tidewire chooses the settings of TLS itself");
                    continue;
                }
                "use_identity_as_username" | "use_subject_as_username" if line.value == "true" => {
                    conf.refuse(line, "clients need a user name and password besides the certificate");
                    continue;
                }
                _ => continue,
            };
            rows.push((line, option.0));
            options.push(option);
        }
        for (option, value) in options {
            setup.set(&format!("{key}.{option}"), &format!("listener {port}"), value);
        }
        for (line, option) in rows {
            conf.imported(line, &format!("{key}.{option}"));
        }
        self.names.push((kind, name));
        Ok(())
    }

    /// tidewire opens the default TCP and WebSocket listeners without configuration.
    fn finish(&self, setup: &mut Setup) {
        let has = |kind: &str| self.names.iter().any(|(other, _)| *other == kind);
        if self.names.is_empty() {
            setup.set("listeners.tcp.default.bind", "", "127.0.0.1:1883");
        } else if !has("tcp") {
            setup.set("listeners.tcp.default.enabled", "", false);
        }
        if !has("ws") {
            setup.set("listeners.ws.default.enabled", "", false);
        }
    }
}
