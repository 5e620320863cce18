//! The webhook of NanoMQ: an HTTP connector, an action, and a rule for each event. The rules output the fields that
//! NanoMQ sends.

use serde_json::json;

use crate::import::definition::quoted;
use crate::import::settings::Setting;
use crate::import::setup::Setup;

const NAME: &str = "webhook";

pub fn import(webhook: &Setting<'_>, setup: &mut Setup) {
    if !webhook.exists() {
        return;
    }
    if !webhook.get("enable").flag(true) {
        webhook.refuse("the webhook is disabled");
        return;
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
    let mut headers = json!({});
    let mut content_type = "application/json";
    for (name, header) in webhook.get("headers").entries() {
        let text = header.text().unwrap_or_default();
        match name.eq_ignore_ascii_case("content-type") {
            true => content_type = text,
            false => headers[name] = setup.secret(&format!("{NAME}-header-{name}"), text).into(),
        }
        header.imported(&format!("connectors.{NAME}.config.headers"));
    }
    let mut config = json!({"url": url, "headers": headers});
    let pool = webhook.get("pool_size");
    if let Some(connections) = pool.number() {
        config["connections_max"] = connections.into();
        pool.imported(&format!("connectors.{NAME}.config.connections_max"));
    }
    let mut parameters = json!({"method": "post", "content_type": content_type, "body": "${.}"});
    let timeout = webhook.get("cancel_timeout");
    if let Some(ms) = timeout.number() {
        parameters["timeout_ms"] = ms.into();
        timeout.imported(&format!("actions.{NAME}.parameters.timeout_ms"));
    }
    let item = webhook.path.clone();
    setup.define(
        &format!("connectors.{NAME}"),
        &item,
        &json!({"type": "http", "config": config}),
    );
    let action = json!({"type": "http", "connector": NAME, "parameters": parameters});
    setup.define(&format!("actions.{NAME}"), &item, &action);
    for (index, event) in webhook.get("events").items().iter().enumerate() {
        let rule = format!("rules.{NAME}_{}", index + 1);
        match sql(event, payload) {
            Ok(sql) => {
                let definition = json!({"sql": sql, "actions": [format!("http:{NAME}")]});
                setup.define(&rule, &event.path, &definition);
                event.imported(&rule);
            }
            Err(because) => event.refuse(&because),
        }
    }
    webhook.get("url").imported(&format!("connectors.{NAME}.config.url"));
    encoding.imported(&format!("actions.{NAME}.parameters.body"));
    webhook.get("enable").imported(&format!("actions.{NAME}.enable"));
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
