//! Bridges of Mosquitto: a connector, and for each `topic` an action with a rule, a source, or both.

use serde_json::json;

use super::{Conf, ConfLine};
use crate::import::definition::{quoted, sql_text, without_nulls};
use crate::import::setup::{Setup, simple_name};

const REFUSED: [(&str, &str); 11] = [
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

pub fn import(conf: &Conf<'_>, lines: &[ConfLine<'_>], setup: &mut Setup) {
    let name = simple_name(&format!("bridge_{}", lines[0].value));
    match connector(&name, conf, lines, setup) {
        Ok(()) => {
            conf.imported(&lines[0], &format!("connectors.{name}"));
            for (number, line) in lines.iter().filter(|line| line.key == "topic").enumerate() {
                match topic(&name, number + 1, line.value, setup) {
                    Ok(to) => conf.imported(line, &to),
                    Err(because) => conf.refuse(line, &because),
                }
            }
        }
        Err(because) => lines.iter().for_each(|line| conf.refuse(line, &because)),
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
    let mut used = vec![(address, "server")];
    let mut text = |keys: &[&str], option| {
        let line = find(keys)?;
        used.push((line, option));
        Some(line.value.to_owned())
    };
    let version = match text(&["bridge_protocol_version"], "version").as_deref() {
        Some("mqttv50") => "5",
        Some("mqttv31") => "3.1",
        _ => "3.1.1",
    };
    let client_id = text(&["remote_clientid", "clientid"], "client_id");
    let user = text(&["remote_username", "username"], "user");
    let password = text(&["remote_password", "password"], "password");
    let clean_start = text(&["cleansession"], "clean_start").is_some_and(|value| value == "true");
    let keep_alive = text(&["keepalive_interval"], "keep_alive_s").and_then(|value| value.parse::<u16>().ok());
    let loop_protection = text(&["try_private"], "loop_protection").is_none_or(|value| value == "true");
    let mut tls = json!({});
    for (theirs, ours) in [
        ("bridge_cafile", "ca_file"),
        ("bridge_certfile", "cert_file"),
        ("bridge_keyfile", "key_file"),
    ] {
        if let Some(line) = find(&[theirs]) {
            tls[ours] = conf.existing(line.value)?.into();
            used.push((line, "tls"));
        }
    }
    if let Some(line) = find(&["bridge_insecure"]) {
        used.push((line, "tls"));
        if line.value == "true" {
            return Err("it accepts certificates of other hosts; set tls.verify of the connector".to_owned());
        }
    }
    let has_tls = tls.as_object().is_some_and(|fields| !fields.is_empty());
    let config = json!({
        "server": server,
        "version": version,
        "client_id": client_id.unwrap_or_else(|| format!("tidewire-{name}")),
        "user": user,
        "password": password.map(|text| setup.secret(&format!("{name}-password"), &text)),
        "clean_start": clean_start,
        "keep_alive_s": keep_alive,
        "loop_protection": loop_protection,
        "tls": has_tls.then_some(tls),
    });
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
    setup.define(&key, &format!("connection {name}"), &definition);
    Ok(())
}

/// `pattern [[[out | in | both] qos] local-prefix remote-prefix]`
fn topic(name: &str, number: usize, value: &str, setup: &mut Setup) -> Result<String, String> {
    let words: Vec<&str> = value
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
    let part = simple_name(&format!("{name}_{number}"));
    let item = format!("connection {name} topic {number}");
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
        setup.define(&format!("actions.{part}"), &item, &action);
        let rule = json!({"sql": sql, "actions": [format!("mqtt:{part}")]});
        setup.define(&format!("rules.{part}"), &item, &rule);
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
        setup.define(&format!("sources.{part}"), &item, &source);
        made.push(format!("sources.{part}"));
    }
    Ok(made.join(", "))
}
