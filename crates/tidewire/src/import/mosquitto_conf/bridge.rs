//! Bridges of Mosquitto: a connector, and for each `topic` an action with a rule, a source, or both.

use serde_json::{Value as Json, json};

use super::{Conf, ConfLine, NO_FLAG, flag};
use crate::import::definition::{quoted, sql_text, without_nulls};
use crate::import::setup::Setup;

/// Options of TLS. A bridge with one of them must not connect without TLS.
const TLS: [&str; 13] = [
    "bridge_cafile",
    "bridge_capath",
    "bridge_certfile",
    "bridge_keyfile",
    "bridge_tls_use_os_certs",
    "bridge_tls_version",
    "bridge_insecure",
    "bridge_require_ocsp",
    "bridge_alpn",
    "bridge_ciphers",
    "bridge_ciphers_tls1.3",
    "bridge_identity",
    "bridge_psk",
];

/// Options of TLS without a counterpart that the bridge needs.
const CLOSING: [(&str, &str); 3] = [
    (
        "bridge_capath",
        "tidewire reads no directories of certificates: name a file with bridge_cafile, or set bridge_tls_use_os_certs",
    ),
    ("bridge_identity", "tidewire does not support TLS with pre-shared keys"),
    ("bridge_psk", "tidewire does not support TLS with pre-shared keys"),
];

const REFUSED: [(&str, &str); 15] = [
    ("bridge_tls_version", "a connector uses TLS 1.2 or 1.3"),
    ("bridge_alpn", "a connector sends no ALPN protocol"),
    ("bridge_ciphers", "tidewire chooses the settings of TLS itself"),
    ("bridge_ciphers_tls1.3", "tidewire chooses the settings of TLS itself"),
    (
        "notifications",
        "the state of a connector is in the console and the API",
    ),
    (
        "notification_topic",
        "the state of a connector is in the console and the API",
    ),
    (
        "notifications_local_only",
        "the state of a connector is in the console and the API",
    ),
    ("start_type", "a connector starts with the server"),
    ("restart_timeout", "config.reconnect has the pauses between attempts"),
    ("round_robin", "a connector has one address"),
    ("idle_timeout", "a connector stays connected"),
    ("threshold", "a connector stays connected"),
    ("local_clientid", "a bridge is not a client of the own server"),
    ("local_username", "a bridge is not a client of the own server"),
    ("local_password", "a bridge is not a client of the own server"),
];

/// Further options of a bridge, besides those that begin with `bridge_`.
const OPTIONS: [&str; 13] = [
    "address",
    "addresses",
    "cleansession",
    "clientid",
    "keepalive_interval",
    "local_cleansession",
    "password",
    "remote_clientid",
    "remote_password",
    "remote_username",
    "topic",
    "try_private",
    "username",
];

/// Returns whether a key is an option of a bridge.
pub fn has_option(key: &str) -> bool {
    key.starts_with("bridge_") || OPTIONS.contains(&key) || REFUSED.iter().any(|(refused, _)| *refused == key)
}

pub fn import(conf: &Conf<'_>, lines: &[ConfLine<'_>], setup: &mut Setup) {
    let name = setup.free_name(&["connectors"], &format!("bridge_{}", lines[0].value), "");
    match connector(&name, conf, lines, setup) {
        Ok(()) => {
            conf.imported(&lines[0], &format!("connectors.{name}"));
            for (number, line) in lines.iter().filter(|line| line.key == "topic").enumerate() {
                match topic(&name, number + 1, line, setup) {
                    Ok(to) => conf.imported(line, &to),
                    Err(because) => conf.refuse(line, &because),
                }
            }
        }
        Err(because) => {
            let because = format!("{because}. The bridge is left out; to open it, add a connector to tidewire.toml");
            lines.iter().for_each(|line| conf.refuse(line, &because));
        }
    }
    for line in lines {
        let known = REFUSED.iter().find(|(key, _)| *key == line.key);
        conf.refuse(
            line,
            known.map_or("tidewire has no such option of a connector", |(_, because)| because),
        );
    }
}

fn connector(name: &str, conf: &Conf<'_>, lines: &[ConfLine<'_>], setup: &mut Setup) -> Result<(), String> {
    let key = format!("connectors.{name}");
    let find = |keys: &[&str]| lines.iter().rev().find(|line| keys.contains(&line.key));
    let address = find(&["address", "addresses"]).ok_or("its address is missing")?;
    let mut addresses = address.value.split_whitespace();
    let first = addresses.next().ok_or("its address is missing")?;
    let server = match first.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => first.to_owned(),
        _ => format!("{first}:1883"),
    };
    let tls = tls(conf, lines)?;
    let mut used = vec![(address, "server")];
    let mut text = |keys: &[&str], option| {
        let line = find(keys)?;
        used.push((line, option));
        Some(line.value.to_owned())
    };
    let client_id = text(&["remote_clientid", "clientid"], "client_id");
    let user = text(&["remote_username", "username"], "user");
    let password = text(&["remote_password", "password"], "password");
    // The default of tidewire applies to a value that cannot be read.
    let version = read(
        conf,
        find(&["bridge_protocol_version"]),
        &mut used,
        "version",
        |value| {
            let versions = [("mqttv50", "5"), ("mqttv311", "3.1.1"), ("mqttv31", "3.1")];
            versions
                .into_iter()
                .find(|(theirs, _)| *theirs == value)
                .map(|(_, ours)| ours)
        },
    );
    let clean_start = read(conf, find(&["cleansession"]), &mut used, "clean_start", flag);
    let loop_protection = read(conf, find(&["try_private"]), &mut used, "loop_protection", flag);
    let keep_alive = read(
        conf,
        find(&["keepalive_interval"]),
        &mut used,
        "keep_alive_s",
        |value| value.parse::<u16>().ok(),
    );
    let config = json!({
        "server": server,
        "version": version.unwrap_or("3.1.1"),
        "client_id": client_id.unwrap_or_else(|| format!("tidewire-{name}")),
        "user": user,
        "password": password.map(|text| setup.secret(&format!("{name}-password"), &text)),
        "clean_start": clean_start.unwrap_or(false),
        "keep_alive_s": keep_alive,
        "loop_protection": loop_protection.unwrap_or(true),
        "tls": tls.as_ref().map(|(tls, _)| tls),
    });
    used.extend(tls.iter().flat_map(|(_, lines)| lines).map(|line| (*line, "tls")));
    for (line, option) in used {
        match option {
            "server" if addresses.clone().next().is_some() => {
                conf.changed(
                    line,
                    &format!("{key}.config.server"),
                    "a connector has one address, the first",
                );
            }
            _ => conf.imported(line, &format!("{key}.config.{option}")),
        }
    }
    let definition = json!({"type": "mqtt", "config": without_nulls(config)});
    setup.define(&key, &lines[0].item, &definition);
    Ok(())
}

/// Reads the value of a line, or reports that it cannot be read.
fn read<'l, 'a, T>(
    conf: &Conf<'_>,
    line: Option<&'l ConfLine<'a>>,
    used: &mut Vec<(&'l ConfLine<'a>, &'static str)>,
    option: &'static str,
    value: impl Fn(&'a str) -> Option<T>,
) -> Option<T> {
    let line = line?;
    let value = value(line.value);
    match value {
        Some(_) => used.push((line, option)),
        None => conf.refuse(
            line,
            &format!("its value has no counterpart in {option} of a connector"),
        ),
    }
    value
}

type TlsLines<'l, 'a> = (Json, Vec<&'l ConfLine<'a>>);

/// Returns the TLS settings of the connector, with the lines that they come from. `None` if the bridge has no option of
/// TLS at all: otherwise it must not send its password in clear text.
fn tls<'l, 'a>(conf: &Conf<'_>, lines: &'l [ConfLine<'a>]) -> Result<Option<TlsLines<'l, 'a>>, String> {
    let find = |key: &str| super::last(lines, key);
    if let Some((_, because)) = CLOSING.iter().find(|(key, _)| find(key).is_some()) {
        return Err((*because).to_owned());
    }
    let mut used = Vec::new();
    let mut is_set = |key: &str| match find(key).map(|line| (line, flag(line.value))) {
        None => Ok(false),
        Some((line, Some(is_set))) => {
            used.push(line);
            Ok(is_set)
        }
        Some((_, None)) => Err(format!("{key}: {NO_FLAG}")),
    };
    if is_set("bridge_insecure")? {
        return Err("it accepts certificates of other hosts; set tls.verify of the connector".to_owned());
    }
    if is_set("bridge_require_ocsp")? {
        return Err("tidewire does not ask whether certificates are revoked (OCSP)".to_owned());
    }
    // Without a file, a connector trusts the certificates that the operating system trusts.
    let mut is_on = is_set("bridge_tls_use_os_certs")?;
    let mut tls = json!({"verify": true});
    for (theirs, ours) in [
        ("bridge_cafile", "ca_file"),
        ("bridge_certfile", "cert_file"),
        ("bridge_keyfile", "key_file"),
    ] {
        if let Some(line) = find(theirs) {
            tls[ours] = conf.existing(line.value)?.into();
            used.push(line);
            is_on = true;
        }
    }
    match lines
        .iter()
        .find(|line| TLS.contains(&line.key) && flag(line.value) != Some(false))
    {
        _ if is_on => Ok(Some((tls, used))),
        Some(line) => Err(format!(
            "it has {}, but no bridge_cafile and no bridge_tls_use_os_certs: it would be without TLS",
            line.key
        )),
        None => {
            used.iter().for_each(|line| conf.imported(line, "as in tidewire"));
            Ok(None)
        }
    }
}

/// `pattern [[[out | in | both] qos] local-prefix remote-prefix]`
fn topic(name: &str, number: usize, line: &ConfLine<'_>, setup: &mut Setup) -> Result<String, String> {
    let words: Vec<&str> = line
        .value
        .split_whitespace()
        .map(|word| if word == "\"\"" { "" } else { word })
        .collect();
    let pattern = *words.first().ok_or("its pattern is missing")?;
    let direction = words.get(1).copied().unwrap_or("out");
    let qos: u8 = words
        .get(2)
        .map_or(Ok(0), |qos| qos.parse())
        .map_err(|_| "its QoS is invalid")?;
    let local = words.get(3).copied().unwrap_or_default();
    let remote = words.get(4).copied().unwrap_or_default();
    if !matches!(direction, "out" | "in" | "both") || words.len() > 5 || qos > 2 {
        return Err("it is not a topic of a bridge".to_owned());
    }
    let part = setup.free_name(&["actions", "rules", "sources"], name, &format!("_{number}"));
    let item = line.item.as_str();
    let mut made = Vec::new();
    if direction != "in" {
        let (columns, topic) = match local.is_empty() {
            true => ("*".to_owned(), format!("{remote}${{topic}}")),
            false => {
                let rest = format!("substr(topic, {})", local.chars().count());
                let column = format!("*, concat({}, {rest}) as bridge_topic", sql_text(remote));
                (column, "${bridge_topic}".to_owned())
            }
        };
        let parameters = json!({
            "topic": topic,
            "payload": "${payload}",
            "qos": if qos == 2 { "${qos}".to_owned() } else { qos.to_string() },
            "retain": "${flags.retain}",
        });
        let action = json!({"type": "mqtt", "connector": name, "parameters": parameters});
        let sql = format!("SELECT {columns} FROM {}", quoted(&format!("{local}{pattern}"))?);
        setup.define(&format!("actions.{part}"), item, &action);
        let rule = json!({"sql": sql, "actions": [format!("mqtt:{part}")]});
        setup.define(&format!("rules.{part}"), item, &rule);
        made.push(format!("rules.{part}"));
    }
    if direction != "out" {
        let source = json!({
            "type": "mqtt",
            "connector": name,
            "parameters": {
                "subscriptions": [{"filter": format!("{remote}{pattern}"), "qos": qos}],
                "strip_prefix": remote,
                "add_prefix": local,
            },
            "publish": {
                "topic": "${topic}",
                "payload": "${payload}",
                "qos": "${qos}",
                "retain": "${flags.retain}",
            },
        });
        setup.define(&format!("sources.{part}"), item, &source);
        made.push(format!("sources.{part}"));
    }
    Ok(made.join(", "))
}
