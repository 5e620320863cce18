//! `tidewire import nanomq`: imports the configuration file of NanoMQ in HOCON, with the files that it includes.
//!
//! NanoMQ stores no sessions over a restart, so only the configuration is imported.

mod access;
mod bridges;
mod rules;
#[cfg(test)]
mod tests;
mod webhook;

use std::path::Path;

use super::hocon::{Hocon, Repeats};
use super::options::Form::{self, Bytes, Choice, DurationSwitch, Factor, Limit, Number};
use super::options::{self, ForeignOption, option};
use super::report::{Outcome, Report, printable};
use super::settings::Setting;
use super::setup::Setup;
use super::{CONFIG_BYTES_MAX, read_bounded};

const LEVELS: &[(&str, &str)] = &[
    ("trace", "trace"),
    ("debug", "debug"),
    ("info", "info"),
    ("warn", "warn"),
    ("error", "error"),
    ("fatal", "error"),
];

const FINITE: Form = Limit { zero_is_none: false };

const OPTIONS: &[ForeignOption] = &[
    option("mqtt.max_packet_size", "mqtt.max_packet_size", Bytes),
    option("mqtt.max_mqueue_len", "mqtt.max_queued_messages", FINITE),
    option("mqtt.max_topic_alias", "mqtt.max_topic_alias_in", Number),
    option("mqtt.retry_interval", "mqtt.retry_interval", DurationSwitch),
    option("mqtt.keepalive_multiplier", "mqtt.keep_alive_multiplier", Factor),
    option("log.level", "log.level", Choice(LEVELS)),
];

/// Sections and options without a counterpart.
const REFUSED: &[(&str, &str)] = &[
    (
        "mqtt.max_inflight_window",
        "it has no effect in NanoMQ; mqtt.max_inflight limits messages in flight",
    ),
    ("mqtt.max_awaiting_rel", "it has no effect in NanoMQ"),
    ("mqtt.await_rel_timeout", "it has no effect in NanoMQ"),
    ("mqtt.property_size", "properties have no limit of their own"),
    (
        "mqtt.batch_resend",
        "tidewire keeps messages in flight up to mqtt.max_inflight",
    ),
    ("system", "tidewire has its own threads: node.workers"),
    (
        "http_server",
        "the console and the API listen on 127.0.0.1:18083 with users of their own: api.bind",
    ),
    ("log", "the log goes to standard error, or to the file of log.file"),
    ("preset", "connect once with Clean Session 0 to create the session"),
    ("bridges.mqtt.cache", "the buffer of each action is on the disk"),
    (
        "bridges.aws",
        "tidewire has no bridge to AWS IoT Core; its MQTT endpoint can be a connector of type mqtt",
    ),
    ("bridges.nng", "tidewire has no bridge to NNG"),
    (
        "exchange_client",
        "tidewire has no exchange; the device platform stores telemetry",
    ),
    (
        "exchange",
        "tidewire has no exchange; the device platform stores telemetry",
    ),
    ("parquet", "the device platform exports telemetry as Parquet"),
    ("blf", "tidewire does not write BLF files"),
    ("plugin", "tidewire has no plugins"),
];

pub fn import(file: &Path, report: &Report) -> Result<Setup, String> {
    let bytes = read_bounded(file, CONFIG_BYTES_MAX)?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{}: the file is not UTF-8", file.display()))?;
    let directory = file.parent().unwrap_or(Path::new(""));
    let include = |name: &str| included(directory, name);
    let name = file
        .file_name()
        .map_or_else(|| "nanomq.conf".into(), |name| name.to_string_lossy());
    let hocon = Hocon::parse_with(Repeats::NanoMq, &name, &text, &include).map_err(|error| error.to_string())?;
    let root = Setting::root(&hocon, report);
    check_keys(&root)?;
    let mut setup = Setup::new()?;
    options::import(&root, OPTIONS, &mut setup);
    listeners(&root.get("listeners"), &mut setup, directory);
    access::import(&root.get("auth"), &mut setup);
    bridges::import(&root, &mut setup, directory);
    rules::import(&root.get("rules"), &mut setup, directory);
    webhook::import(&root.get("webhook"), &mut setup);
    root.get("sqlite").changed(
        "durability.policy",
        "the journal stores sessions and messages; it is on by default",
    );
    for (path, because) in REFUSED {
        root.at(path).refuse(because);
    }
    root.finish();
    Ok(setup)
}

const AUTH_KEYS: [&str; 6] = [
    "allow_anonymous",
    "no_match",
    "acl",
    "http_auth",
    "password",
    "deny_action",
];

/// Rejects keys that only NanoMQ finds, because it compares them without regard to case. They could close something.
fn check_keys(root: &Setting<'_>) -> Result<(), String> {
    let check = |setting: &Setting<'_>, names: &[&str]| {
        for (key, entry) in setting.entries() {
            let lower = key.to_ascii_lowercase();
            if lower != key && names.contains(&lower.as_str()) {
                return Err(format!("{}: write this key in lower case", printable(&entry.path)));
            }
        }
        Ok(())
    };
    check(root, &["auth", "listeners"])?;
    let auth = root.get("auth");
    check(&auth, &AUTH_KEYS)?;
    check(&auth.get("acl"), &["rules"])?;
    check(&auth.get("http_auth"), &["auth_req", "acl_req"])?;
    let listeners = root.get("listeners");
    check(&listeners, &["tcp", "ssl", "ws", "wss"])?;
    for (_, group) in listeners.entries() {
        check(&group, &LISTENER_OPTIONS)?;
        for (_, listener) in group.entries() {
            check(&listener, &LISTENER_OPTIONS)?;
        }
    }
    let bridges = root.at("bridges.mqtt").entries().into_iter().map(|(_, bridge)| bridge);
    for bridge in bridges.chain(root.at("rules.repub.rules").items()) {
        check(&bridge, &["enable", "ssl"])?;
        check(&bridge.get("ssl"), &TLS_OPTIONS)?;
    }
    check(&root.get("webhook"), &["enable"])
}

const TLS_OPTIONS: [&str; 5] = ["enable", "key_password", "keyfile", "certfile", "cacertfile"];

/// Reads an included file: under its name, or in the folder of the configuration file.
fn included(directory: &Path, name: &str) -> Result<String, String> {
    let path = Path::new(name);
    let beside = path.file_name().map(|name| directory.join(name));
    let candidates = [Some(directory.join(path)), beside];
    let found = candidates.into_iter().flatten().find(|path| path.is_file());
    let found = found.ok_or_else(|| {
        format!("cannot read the included file {name}: copy it to the folder of the configuration file")
    })?;
    String::from_utf8(read_bounded(&found, CONFIG_BYTES_MAX)?).map_err(|_| format!("the file {name} is not UTF-8"))
}

/// Returns a boolean, or `default` without a value. `None`: the value cannot be read.
fn flag(setting: &Setting<'_>, default: bool) -> Option<bool> {
    if !setting.exists() {
        return Some(default);
    }
    match setting.text()? {
        "true" | "on" | "yes" | "1" => Some(true),
        "false" | "off" | "no" | "0" => Some(false),
        _ => None,
    }
}

/// As `flag`, for an option without which something would be wider.
fn needed_flag(setting: &Setting<'_>, default: bool) -> Result<bool, String> {
    flag(setting, default).ok_or_else(|| format!("{} is neither true nor false", setting.path))
}

const LISTENER_KINDS: [(&str, &str); 4] = [("tcp", "tcp"), ("ssl", "tls"), ("ws", "ws"), ("wss", "wss")];

const NO_SUCH_LISTENER: &str =
    "false, because NanoMQ opens no such listener; to open it, set this option to true and choose its bind";

const LISTENER_OPTIONS: [&str; 8] = [
    "bind",
    "enable",
    "key_password",
    "keyfile",
    "certfile",
    "cacertfile",
    "verify_peer",
    "fail_if_no_peer_cert",
];

fn listeners(listeners: &Setting<'_>, setup: &mut Setup, directory: &Path) {
    let ssl = listeners.get("ssl");
    for (theirs, kind) in LISTENER_KINDS {
        let group = listeners.get(theirs);
        let mut all = Vec::new();
        // The table has the fields of the first listener, and further listeners.
        if group.get("bind").exists() {
            all.push(("default", group.clone()));
        }
        for (name, entry) in group.entries() {
            if entry.is_object() && entry.get("bind").exists() {
                all.push((name, entry));
            }
        }
        for (name, listener) in &all {
            if let Err(because) = self::listener(kind, name, listener, &ssl, setup, directory) {
                for option in LISTENER_OPTIONS {
                    listener.get(option).refuse_all(&because);
                }
                if *name == "default" {
                    setup.set(&format!("listeners.{kind}.default.enabled"), &listener.path, false);
                }
            }
        }
        let enabled = format!("listeners.{kind}.default.enabled");
        let is_missing = listeners.exists() && !group.exists();
        if matches!(kind, "tcp" | "ws") && (is_missing || is_without_default(&all)) {
            setup.set(&enabled, &group.path, false);
            group.get("default").note_missing(Outcome::Changed {
                to: enabled,
                because: NO_SUCH_LISTENER.to_owned(),
            });
        } else if all.is_empty() && is_closed(kind, &group) {
            setup.set(&enabled, &group.get("enable").path, false);
        }
    }
}

/// Whether all listeners of a kind have names of their own. tidewire opens its default listener besides them.
fn is_without_default(all: &[(&str, Setting<'_>)]) -> bool {
    !all.is_empty() && all.iter().all(|(name, _)| *name != "default")
}

/// Whether NanoMQ opens no listener of a kind that has no address. It opens WebSocket only if it is configured.
fn is_closed(kind: &str, group: &Setting<'_>) -> bool {
    let enable = group.get("enable");
    match flag(&enable, true) {
        Some(true) => kind == "ws",
        Some(false) => {
            enable.imported(&format!("listeners.{kind}.default.enabled"));
            true
        }
        None => {
            enable.refuse("its value is neither true nor false: the listener is disabled");
            true
        }
    }
}

fn listener(
    kind: &str,
    name: &str,
    listener: &Setting<'_>,
    ssl: &Setting<'_>,
    setup: &mut Setup,
    directory: &Path,
) -> Result<(), String> {
    let section = format!("listeners.{kind}");
    let key = format!("{section}.{}", setup.free_name(&[&section], name, ""));
    let bind = listener.get("bind");
    let text = bind.text().ok_or("its address is missing")?;
    // `0.0.0.0:8083/mqtt`, or with a scheme before it.
    let address = text.split_once("://").map_or(text, |(_, address)| address);
    let (address, path) = match address.split_once('/') {
        Some((address, path)) => (address, format!("/{path}")),
        None => (address, "/mqtt".to_owned()),
    };
    let enable = listener.get("enable");
    let is_enabled = needed_flag(&enable, true)?;
    // The item of an option is the value that it comes from, because the first listener has no item of its own.
    let mut options = vec![ListenerOption::new("bind", address, &bind)];
    if matches!(kind, "ws" | "wss") {
        options.push(ListenerOption::new("path", path, &bind));
    }
    if matches!(kind, "tls" | "wss") {
        // A listener without certificates has those of the first TLS listener.
        let own = match listener.get("certfile").exists() {
            true => listener,
            false => ssl,
        };
        options.extend(tls(listener, own, directory)?);
    }
    for option in options {
        let key = format!("{key}.{}", option.name);
        setup.set(&key, &option.items[0], option.value);
        option.items.iter().for_each(|item| setup.add_item(&key, item));
        for setting in &option.from {
            match option.because {
                Some(because) => setting.changed(&key, because),
                None => setting.imported(&key),
            }
        }
    }
    let item = if enable.exists() { &enable } else { &bind };
    setup.set(&format!("{key}.enabled"), &item.path, is_enabled);
    enable.imported(&format!("{key}.enabled"));
    Ok(())
}

/// An option of a listener.
struct ListenerOption<'a> {
    name: &'static str,
    value: String,
    from: Vec<Setting<'a>>,
    /// Items that are refused with the listener.
    items: Vec<String>,
    /// How the value differs from that of NanoMQ's option.
    because: Option<&'static str>,
}

impl<'a> ListenerOption<'a> {
    fn new(name: &'static str, value: impl Into<String>, from: &Setting<'a>) -> ListenerOption<'a> {
        ListenerOption {
            name,
            value: value.into(),
            items: vec![from.path.clone()],
            from: vec![from.clone()],
            because: None,
        }
    }
}

fn tls<'a>(listener: &Setting<'a>, own: &Setting<'a>, directory: &Path) -> Result<Vec<ListenerOption<'a>>, String> {
    if own.get("key_password").filled().is_some() {
        own.get("key_password").refuse("decrypt the key file");
        return Err("its private key is encrypted; decrypt the key file".to_owned());
    }
    let mut found = Vec::new();
    for (theirs, ours) in [
        ("certfile", "cert_file"),
        ("keyfile", "key_file"),
        ("cacertfile", "ca_file"),
    ] {
        let setting = own.get(theirs);
        match setting.filled() {
            Some(path) => {
                let mut option = ListenerOption::new(ours, existing_file(directory, path)?, &setting);
                if own.path != listener.path {
                    // The value is of another listener, which may be imported without this one.
                    option.items = vec![listener.get("bind").path];
                }
                found.push(option);
            }
            None if ours == "ca_file" => {}
            None => return Err(format!("{theirs} is missing")),
        }
    }
    let mode = verification(listener)?;
    // With certificates of another listener, NanoMQ also verifies clients as that listener does.
    let mode_of_own = verification(own)?;
    let because =
        (mode_of_own > mode).then_some("the listener whose certificates it has verifies clients more strictly");
    let from = ["verify_peer", "fail_if_no_peer_cert"]
        .map(|key| listener.get(key))
        .to_vec();
    let mut items: Vec<String> = from
        .iter()
        .filter(|setting| setting.exists())
        .map(|setting| setting.path.clone())
        .collect();
    items.push(listener.get("bind").path);
    found.push(ListenerOption {
        name: "verify_client",
        value: mode.max(mode_of_own).option().to_owned(),
        from,
        items,
        because,
    });
    Ok(found)
}

/// How a TLS listener verifies its clients, the strictest last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verification {
    None,
    Optional,
    Required,
}

impl Verification {
    fn option(self) -> &'static str {
        match self {
            Verification::None => "none",
            Verification::Optional => "optional",
            Verification::Required => "required",
        }
    }
}

fn verification(listener: &Setting<'_>) -> Result<Verification, String> {
    let is_verified = needed_flag(&listener.get("verify_peer"), false)?;
    let is_required = needed_flag(&listener.get("fail_if_no_peer_cert"), false)?;
    Ok(match (is_verified, is_required) {
        (false, _) => Verification::None,
        (true, false) => Verification::Optional,
        (true, true) => Verification::Required,
    })
}

/// Returns the absolute path of a file of this machine.
fn existing_file(directory: &Path, path: &str) -> Result<String, String> {
    let absolute = std::path::absolute(directory.join(path)).map_err(|error| format!("{path}: {error}"))?;
    match absolute.is_file() {
        true => Ok(absolute.display().to_string()),
        false => Err(format!("this machine has no file {path}")),
    }
}
