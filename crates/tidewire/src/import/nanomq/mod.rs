//! `tidewire import nanomq`: imports the configuration file of NanoMQ in HOCON, with the files that it includes.
//!
//! NanoMQ stores no sessions over a restart, so only the configuration is imported.

mod access;
mod bridges;
mod rules;
mod webhook;

use std::path::Path;

use super::hocon::Hocon;
use super::options::Form::{self, Bytes, Choice, DurationSwitch, Factor, Limit, Number};
use super::options::{self, ForeignOption, option};
use super::report::Report;
use super::settings::Setting;
use super::setup::{Setup, simple_name};
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
    let hocon = Hocon::parse(&name, &text, &include).map_err(|error| error.to_string())?;
    let root = Setting::root(&hocon, report);
    let mut setup = Setup::new()?;
    options::import(&root, OPTIONS, &mut setup);
    listeners(&root.get("listeners"), &mut setup, directory);
    access::import(&root.get("auth"), &mut setup);
    bridges::import(&root, &mut setup, directory);
    rules::import(&root.get("rules"), &mut setup);
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

const LISTENER_KINDS: [(&str, &str); 4] = [("tcp", "tcp"), ("ssl", "tls"), ("ws", "ws"), ("wss", "wss")];

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
        // NanoMQ opens WebSocket only if it is configured.
        if kind == "ws" && all.is_empty() {
            setup.set("listeners.ws.default.enabled", "", false);
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
    let key = format!("listeners.{kind}.{}", simple_name(name));
    let bind = listener.get("bind");
    let text = bind.text().ok_or("its address is missing")?;
    // `0.0.0.0:8083/mqtt`, or with a scheme before it.
    let address = text.split_once("://").map_or(text, |(_, address)| address);
    let (address, path) = match address.split_once('/') {
        Some((address, path)) => (address, format!("/{path}")),
        None => (address, "/mqtt".to_owned()),
    };
    let mut options = vec![("bind", address.to_owned())];
    if matches!(kind, "ws" | "wss") {
        options.push(("path", path));
    }
    if matches!(kind, "tls" | "wss") {
        // A listener without certificates has those of the first TLS listener.
        let own = match listener.get("certfile").exists() {
            true => listener,
            false => ssl,
        };
        options.extend(tls(listener, own, &key, directory)?);
    }
    let item = bind.path.as_str();
    for (option, value) in options {
        setup.set(&format!("{key}.{option}"), item, value);
    }
    let enable = listener.get("enable");
    setup.set(&format!("{key}.enabled"), item, enable.flag(true));
    enable.imported(&format!("{key}.enabled"));
    bind.imported(&format!("{key}.bind"));
    Ok(())
}

fn tls(
    listener: &Setting<'_>,
    own: &Setting<'_>,
    key: &str,
    directory: &Path,
) -> Result<Vec<(&'static str, String)>, String> {
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
                found.push((ours, existing_file(directory, path)?));
                setting.imported(&format!("{key}.{ours}"));
            }
            None if ours == "ca_file" => {}
            None => return Err(format!("{theirs} is missing")),
        }
    }
    let verify = listener.get("verify_peer");
    let required = listener.get("fail_if_no_peer_cert");
    let mode = match (verify.flag(false), required.flag(false)) {
        (false, _) => "none",
        (true, false) => "optional",
        (true, true) => "required",
    };
    found.push(("verify_client", mode.to_owned()));
    verify.imported(&format!("{key}.verify_client"));
    required.imported(&format!("{key}.verify_client"));
    Ok(found)
}

/// Returns the absolute path of a file of this machine.
fn existing_file(directory: &Path, path: &str) -> Result<String, String> {
    let absolute = std::path::absolute(directory.join(path)).map_err(|error| format!("{path}: {error}"))?;
    match absolute.is_file() {
        true => Ok(absolute.display().to_string()),
        false => Err(format!("this machine has no file {path}")),
    }
}
