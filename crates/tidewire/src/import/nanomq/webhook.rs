//! The webhook of NanoMQ: an HTTP connector, an action, and a rule for each event. The rules output the fields that
//! NanoMQ sends.

use serde_json::json;

use super::flag;
use crate::import::definition::quoted;
use crate::import::settings::{Setting, duration_ms};
use crate::import::setup::Setup;

pub fn import(webhook: &Setting<'_>, setup: &mut Setup) {
    if !webhook.exists() {
        return;
    }
    match flag(&webhook.get("enable"), true) {
        Some(true) => {}
        Some(false) => {
            webhook.refuse("the webhook is disabled");
            return;
        }
        None => {
            webhook.refuse("enable is neither true nor false");
            return;
        }
    }
    let Some(url) = webhook.get("url").filled() else {
        webhook.refuse("its URL is missing");
        return;
    };
    let encoding = webhook.at("body.encoding");
    let payload = match encoding.text().unwrap_or("plain") {
        "plain" => "payload",
        "base64" => "base64_encode(payload) as payload",
        _ => {
            webhook.refuse_all("payloads can be plain or base64");
            return;
        }
    };
    let name = setup.free_name(&["connectors", "actions"], "webhook", "");
    let mut headers = json!({});
    let mut content_type = "application/json";
    for (header_name, header) in webhook.get("headers").entries() {
        let Some(text) = header.text() else {
            header.refuse("its value is not a text");
            continue;
        };
        match header_name.eq_ignore_ascii_case("content-type") {
            true => content_type = text,
            false => headers[header_name] = setup.secret(&format!("{name}-header-{header_name}"), text).into(),
        }
        header.imported(&format!("connectors.{name}.config.headers"));
    }
    let mut config = json!({"url": url, "headers": headers});
    let pool = webhook.get("pool_size");
    match pool.number() {
        Some(connections) => {
            config["connections_max"] = connections.into();
            pool.imported(&format!("connectors.{name}.config.connections_max"));
        }
        None => pool.refuse("its value is not a number"),
    }
    let mut parameters = json!({"method": "post", "content_type": content_type, "body": "${.}"});
    let timeout = webhook.get("cancel_timeout");
    match timeout.text().and_then(duration_ms) {
        Some(ms) => {
            parameters["timeout_ms"] = ms.into();
            timeout.imported(&format!("actions.{name}.parameters.timeout_ms"));
        }
        None => timeout.refuse("its value is not a duration"),
    }
    let item = webhook.path.clone();
    setup.define(
        &format!("connectors.{name}"),
        &item,
        &json!({"type": "http", "config": config}),
    );
    let action = json!({"type": "http", "connector": name, "parameters": parameters});
    setup.define(&format!("actions.{name}"), &item, &action);
    for (index, event) in webhook.get("events").items().iter().enumerate() {
        let end = format!("_{}", index + 1);
        let rule = format!("rules.{}", setup.free_name(&["rules"], &name, &end));
        match sql(event, payload) {
            Ok(sql) => {
                let definition = json!({"sql": sql, "actions": [format!("http:{name}")]});
                setup.define(&rule, &event.path, &definition);
                event.imported(&rule);
            }
            Err(because) => event.refuse(&because),
        }
    }
    webhook.get("url").imported(&format!("connectors.{name}.config.url"));
    encoding.imported(&format!("actions.{name}.parameters.body"));
    webhook.get("enable").imported(&format!("actions.{name}.enable"));
    webhook.get("tls").refuse("it has no effect in NanoMQ");
}

fn sql(event: &Setting<'_>, payload: &str) -> Result<String, String> {
    let name = event.get("event").text().ok_or("its event is missing")?;
    Ok(match name {
        "on_message_publish" => {
            let topic = quoted(event.get("topic").filled().unwrap_or("#"))?;
            format!(
                "SELECT timestamp as ts, topic, flags.retain as retain, qos, 'message_publish' as action, \
                 username as from_username, clientid as from_client_id, {payload} FROM {topic}"
            )
        }
        "on_client_connack" | "on_client_connected" => format!(
            "SELECT proto_ver, keepalive, reason_code as conn_ack, username, clientid, '{}' as action \
             FROM \"$events/client/connack\"",
            name.trim_start_matches("on_")
        ),
        "on_client_disconnected" => "SELECT reason, username, clientid, 'client_disconnected' as action \
                                     FROM \"$events/client/disconnected\""
            .to_owned(),
        _ => return Err("NanoMQ does not send this event".to_owned()),
    })
}
