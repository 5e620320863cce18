//! MQTT bridges of NanoMQ: a connector, an action and a rule for each forwarded topic, and a source for each
//! subscription.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::{existing_file, flag, needed_flag};
use crate::import::definition::{quoted, sql_text, without_nulls};
use crate::import::settings::{Setting, duration_ms};
use crate::import::setup::Setup;

/// Options of a bridge without a counterpart.
const REFUSED: [(&str, &str); 9] = [
    ("will", "the connection has no will"),
    (
        "transparent",
        "subscriptions of clients are not forwarded; list topics in the source",
    ),
    ("tcp", "tidewire sets the options of sockets itself"),
    ("max_parallel_processes", "tidewire uses one connection"),
    ("max_send_queue_len", "the buffer of the action has its own limit"),
    ("max_recv_queue_len", "messages wait in the other broker"),
    ("conn_properties", "the connection chooses its properties itself"),
    ("sub_properties", "subscriptions have no properties"),
    ("hybrid_bridging", "connectors of tidewire use TCP or TLS, not QUIC"),
];

const SAME_RETAIN: &str = "${flags.retain}";

/// Options of a forward or a subscription that say which topics and how they change.
const TOPIC_OPTIONS: [&str; 4] = ["remote_topic", "local_topic", "prefix", "suffix"];

pub fn import(root: &Setting<'_>, setup: &mut Setup, directory: &Path) {
    for (name, bridge) in root.at("bridges.mqtt").entries() {
        // The cache of all bridges is in the same table.
        if name != "cache" && bridge.is_object() {
            one(name, &bridge, setup, directory);
        }
    }
}

fn one(name: &str, bridge: &Setting<'_>, setup: &mut Setup, directory: &Path) {
    match flag(&bridge.get("enable"), true) {
        Some(true) => {}
        Some(false) => {
            bridge.refuse("the bridge is disabled");
            return;
        }
        None => {
            bridge.refuse("enable is neither true nor false");
            return;
        }
    }
    let name = setup.free_name(&["connectors"], &format!("bridge_{name}"), "");
    if let Err(because) = connector(&name, bridge, setup, directory) {
        bridge.refuse_all(&because);
        return;
    }
    for (index, forward) in bridge.get("forwards").items().iter().enumerate() {
        if let Err(because) = self::forward(&name, index + 1, forward, setup) {
            forward.refuse_all(&because);
        }
    }
    for (index, subscription) in bridge.get("subscription").items().iter().enumerate() {
        if let Err(because) = self::subscription(&name, index + 1, subscription, setup) {
            subscription.refuse_all(&because);
        }
    }
    bridge.get("enable").imported(&format!("connectors.{name}.enable"));
    for (path, because) in REFUSED {
        bridge.get(path).refuse(because);
    }
    for (key, setting) in bridge.entries() {
        if key.starts_with("quic_") {
            setting.refuse("connectors of tidewire use TCP or TLS, not QUIC");
        }
    }
}

/// Adds the connector of a bridge, or of a rule that publishes to another broker.
pub fn connector(name: &str, from: &Setting<'_>, setup: &mut Setup, directory: &Path) -> Result<(), String> {
    let key = format!("connectors.{name}");
    let server = from.get("server");
    let address = server.text().ok_or("its server is missing")?;
    let (scheme, address) = address.split_once("://").unwrap_or(("mqtt-tcp", address));
    let has_tls_scheme = match scheme {
        "mqtt-tcp" | "nmq-tcp" | "mqtt" | "tcp" => false,
        "mqtts" | "ssl" => true,
        scheme if scheme.contains("quic") => return Err("connectors of tidewire use TCP or TLS, not QUIC".to_owned()),
        scheme if scheme.starts_with("tls") => true,
        _ => return Err("a connector of type mqtt uses TCP or TLS, and its server has another scheme".to_owned()),
    };
    let address = match address.contains(':') {
        true => address.to_owned(),
        false => format!("{address}:1883"),
    };
    let ssl = from.get("ssl");
    // A bridge with any setting of TLS must not send its password in clear text.
    let has_ssl = needed_flag(&ssl.get("enable"), ssl.exists())? || ssl.get("cacertfile").exists();
    let tls = match has_tls_scheme || has_ssl {
        true => Some(tls(&ssl, &key, directory)?),
        false => None,
    };
    let password = from.get("password");
    let secret = password
        .filled()
        .map(|text| setup.secret(&format!("{name}-password"), text));
    let client_id = from
        .get("clientid")
        .filled()
        .map_or_else(|| format!("tidewire-{name}"), str::to_owned);
    // The default of tidewire applies to a value that cannot be read.
    let option = |option: &str| format!("{key}.config.{option}");
    let version = read(&from.get("proto_ver"), &option("version"), |value| {
        let versions = [("5", "5"), ("4", "3.1.1"), ("3", "3.1")];
        versions
            .into_iter()
            .find(|(theirs, _)| *theirs == value)
            .map(|(_, ours)| ours)
    });
    let clean_start = from.get("clean_start");
    let is_clean = flag(&clean_start, true);
    match is_clean {
        Some(_) => clean_start.imported(&option("clean_start")),
        None => clean_start.refuse(&no_counterpart(&option("clean_start"))),
    }
    let keep_alive = read(&from.get("keepalive"), &option("keep_alive_s"), duration_ms);
    let config = json!({
        "server": address,
        "version": version.unwrap_or("3.1.1"),
        "client_id": client_id,
        "user": from.get("username").filled(),
        "password": secret,
        "clean_start": is_clean.unwrap_or(true),
        "keep_alive_s": keep_alive.map(|ms| ms / 1000),
        "tls": tls,
    });
    for (theirs, ours) in [
        ("server", "server"),
        ("clientid", "client_id"),
        ("username", "user"),
        ("password", "password"),
    ] {
        from.get(theirs).imported(&option(ours));
    }
    match tls {
        Some(_) => ssl.get("enable").imported(&option("tls")),
        None => ssl.get("enable").imported("as in tidewire"),
    }
    setup.define(
        &key,
        &from.path,
        &json!({"type": "mqtt", "config": without_nulls(config)}),
    );
    Ok(())
}

fn no_counterpart(option: &str) -> String {
    format!("its value has no counterpart in {option}")
}

/// Returns the value of an option and notes it, if it is set and can be read.
fn read<'a, T>(setting: &Setting<'a>, option: &str, value: impl Fn(&'a str) -> Option<T>) -> Option<T> {
    let value = setting.text().and_then(value);
    match value {
        Some(_) => setting.imported(option),
        None => setting.refuse(&no_counterpart(option)),
    }
    value
}

/// Reads QoS.
fn qos(setting: &Setting<'_>, option: &str) -> Option<u8> {
    read(setting, option, |value| {
        value.parse::<u8>().ok().filter(|qos| *qos <= 2)
    })
}

/// Reads RETAIN of forwarded messages: 2 means that of the message.
fn retain(setting: &Setting<'_>, option: &str) -> &'static str {
    let retain = read(setting, option, |value| {
        let values = [("0", "false"), ("1", "true"), ("2", SAME_RETAIN)];
        values
            .into_iter()
            .find(|(theirs, _)| *theirs == value)
            .map(|(_, ours)| ours)
    });
    retain.unwrap_or(SAME_RETAIN)
}

fn tls(ssl: &Setting<'_>, key: &str, directory: &Path) -> Result<Json, String> {
    if ssl.get("key_password").filled().is_some() {
        return Err("its private key is encrypted; decrypt the key file".to_owned());
    }
    let mut tls = json!({"verify": true});
    for (theirs, ours) in [
        ("cacertfile", "ca_file"),
        ("certfile", "cert_file"),
        ("keyfile", "key_file"),
    ] {
        let setting = ssl.get(theirs);
        if let Some(path) = setting.filled() {
            tls[ours] = existing_file(directory, path)?.into();
            setting.imported(&format!("{key}.config.tls.{ours}"));
        }
    }
    Ok(tls)
}

fn forward(name: &str, number: usize, forward: &Setting<'_>, setup: &mut Setup) -> Result<(), String> {
    let local = forward
        .get("local_topic")
        .filled()
        .ok_or("its local topic is missing")?;
    let remote = forward.get("remote_topic").filled();
    let prefix = forward.get("prefix").text().unwrap_or_default();
    let suffix = forward.get("suffix").text().unwrap_or_default();
    let (columns, topic) = match remote {
        None => ("*".to_owned(), "${topic}".to_owned()),
        Some(remote) if !has_wildcard(remote) => ("*".to_owned(), remote.to_owned()),
        Some(remote) => {
            let (from, to) = tails(local, remote).ok_or("it maps topics with wildcards that are not at the end")?;
            let rest = format!("substr(topic, {})", from.chars().count());
            (
                format!("*, concat({}, {rest}) as bridge_topic", sql_text(&to)),
                "${bridge_topic}".to_owned(),
            )
        }
    };
    let part = setup.free_name(&["actions", "rules"], name, &format!("_forward_{number}"));
    let sql = format!("SELECT {columns} FROM {}", quoted(local)?);
    let option = |option: &str| format!("actions.{part}.parameters.{option}");
    let qos = qos(&forward.get("qos"), &option("qos"));
    let parameters = json!({
        "topic": format!("{prefix}{topic}{suffix}"),
        "payload": "${payload}",
        "qos": qos.map_or_else(|| "${qos}".to_owned(), |qos| qos.to_string()),
        "retain": retain(&forward.get("retain"), &option("retain")),
    });
    let action = json!({"type": "mqtt", "connector": name, "parameters": parameters});
    setup.define(&format!("actions.{part}"), &forward.path, &action);
    let rule = json!({"sql": sql, "actions": [format!("mqtt:{part}")]});
    setup.define(&format!("rules.{part}"), &forward.path, &rule);
    for option in TOPIC_OPTIONS {
        forward.get(option).imported(&format!("rules.{part}"));
    }
    Ok(())
}

fn subscription(name: &str, number: usize, from: &Setting<'_>, setup: &mut Setup) -> Result<(), String> {
    let remote = from.get("remote_topic").filled().ok_or("its remote topic is missing")?;
    let local = from.get("local_topic").filled();
    let prefix = from.get("prefix").text().unwrap_or_default();
    let suffix = from.get("suffix").text().unwrap_or_default();
    let (mut strip, mut add, mut topic) = (String::new(), String::new(), "${topic}".to_owned());
    match local {
        None => {}
        Some(local) if !has_wildcard(local) => topic = local.to_owned(),
        Some(local) => {
            let tails = tails(remote, local).ok_or("it maps topics with wildcards that are not at the end")?;
            (strip, add) = tails;
        }
    }
    let part = setup.free_name(&["sources"], name, &format!("_subscription_{number}"));
    let option = |option: &str| format!("sources.{part}.{option}");
    let qos = qos(&from.get("qos"), &option("parameters.subscriptions"));
    let retain = retain(&from.get("retain"), &option("publish.retain"));
    let source = json!({
        "type": "mqtt",
        "connector": name,
        "parameters": {
            "subscriptions": [{"filter": remote, "qos": qos.unwrap_or(1)}],
            "strip_prefix": strip,
            "add_prefix": add,
        },
        "publish": {
            "topic": format!("{prefix}{topic}{suffix}"),
            "payload": "${payload}",
            "qos": "${qos}",
            "retain": retain,
        },
    });
    setup.define(&format!("sources.{part}"), &from.path, &source);
    for option in ["retain_as_published", "retain_handling", "nolocal"] {
        from.get(option)
            .refuse("the source chooses the options of its subscriptions itself");
    }
    for option in TOPIC_OPTIONS {
        from.get(option).imported(&format!("sources.{part}"));
    }
    Ok(())
}

fn has_wildcard(topic: &str) -> bool {
    topic.contains(['+', '#'])
}

/// Returns the parts before `#` if both filters have no other wildcard.
fn tails(from: &str, to: &str) -> Option<(String, String)> {
    let (from, to) = (from.strip_suffix('#')?, to.strip_suffix('#')?);
    (!has_wildcard(from) && !has_wildcard(to)).then(|| (from.to_owned(), to.to_owned()))
}
