//! Options and listeners of EMQX.

use crate::import::options::Form::{
    Bytes, BytesLimit, Choice, Duration, DurationSwitch, Factor, Flag, Limit, Number, Seconds,
};
use crate::import::options::{self, ForeignOption, Form, changed, convert, option};
use crate::import::settings::Setting;
use crate::import::setup::{Setup, simple_name};

const LEVELS: &[(&str, &str)] = &[
    ("debug", "debug"),
    ("info", "info"),
    ("notice", "info"),
    ("warning", "warn"),
    ("error", "error"),
    ("critical", "error"),
    ("alert", "error"),
    ("emergency", "error"),
];

const STRATEGIES: &[(&str, &str)] = &[
    ("random", "random"),
    ("round_robin", "round_robin"),
    ("sticky", "sticky"),
    ("hash_topic", "hash_topic"),
    ("hash_clientid", "hash_client"),
    ("hash", "hash_client"),
];

const FINITE: Form = Limit { zero_is_none: false };
const ZERO_IS_NONE: Form = Limit { zero_is_none: true };

const OPTIONS: &[ForeignOption] = &[
    option("mqtt.max_packet_size", "mqtt.max_packet_size", Bytes),
    option("mqtt.max_clientid_len", "mqtt.max_client_id_length", Number),
    option("mqtt.max_topic_levels", "mqtt.max_topic_levels", Number),
    option("mqtt.max_qos_allowed", "mqtt.max_qos", Number),
    option("mqtt.max_topic_alias", "mqtt.max_topic_alias_in", Number),
    option("mqtt.retain_available", "mqtt.retain_available", Flag),
    option("mqtt.wildcard_subscription", "mqtt.wildcard_subscription", Flag),
    option("mqtt.shared_subscription", "mqtt.shared_subscription", Flag),
    option("mqtt.exclusive_subscription", "mqtt.exclusive_subscription", Flag),
    option("mqtt.server_keepalive", "mqtt.server_keep_alive", Seconds),
    option("mqtt.keepalive_multiplier", "mqtt.keep_alive_multiplier", Factor),
    option("mqtt.max_subscriptions", "mqtt.max_subscriptions", FINITE),
    option("mqtt.max_inflight", "mqtt.max_inflight", Number),
    option("mqtt.retry_interval", "mqtt.retry_interval", DurationSwitch),
    changed(
        "mqtt.max_awaiting_rel",
        "mqtt.receive_maximum",
        Number,
        "it limits QoS 1 as well",
    ),
    option("mqtt.session_expiry_interval", "mqtt.default_session_expiry", Duration),
    option(
        "mqtt.message_expiry_interval",
        "mqtt.default_message_expiry",
        DurationSwitch,
    ),
    option("mqtt.max_mqueue_len", "mqtt.max_queued_messages", FINITE),
    option("mqtt.mqueue_store_qos0", "mqtt.queue_qos0", Flag),
    option(
        "mqtt.shared_subscription_strategy",
        "mqtt.shared_strategy",
        Choice(STRATEGIES),
    ),
    option("retainer.max_payload_size", "retained.max_payload", BytesLimit),
    option(
        "retainer.msg_expiry_interval",
        "retained.default_expiry",
        DurationSwitch,
    ),
    option(
        "retainer.backend.max_retained_messages",
        "retained.max_messages",
        ZERO_IS_NONE,
    ),
    option(
        "delayed.max_delayed_messages",
        "mqtt.max_delayed_messages",
        ZERO_IS_NONE,
    ),
    option("sys_topics.sys_msg_interval", "sys.interval", DurationSwitch),
    option("log.console.level", "log.level", Choice(LEVELS)),
];

/// Values with which EMQX does what tidewire does.
const SAME: &[(&str, &str)] = &[
    ("mqtt.ignore_loop_deliver", "false"),
    ("mqtt.upgrade_qos", "false"),
    ("mqtt.use_username_as_clientid", "false"),
    ("mqtt.peer_cert_as_username", "disabled"),
    ("mqtt.peer_cert_as_clientid", "disabled"),
    ("mqtt.response_information", ""),
    ("mqtt.mqueue_priorities", "disabled"),
    ("mqtt.subscription_message_filter", "disable"),
    ("retainer.stop_publish_clear_msg", "false"),
    ("retainer.backend.type", "built_in_database"),
    ("retainer.backend.enable", "true"),
    ("retainer.backend.storage_type", "disc"),
    ("delayed.enable", "true"),
    ("retainer.enable", "true"),
    ("flapping_detect.enable", "false"),
    ("slow_subs.enable_statistics", "false"),
    ("rule_engine.ignore_sys_message", "true"),
];

pub fn import(root: &Setting<'_>, setup: &mut Setup) {
    let idle = root.at("mqtt.idle_timeout");
    if idle.exists() {
        idle.refuse("set handshake_timeout of each listener");
    }
    options::import(root, OPTIONS, setup);
    options::same(root, SAME);
    let retainer = root.at("retainer.enable");
    if retainer.is("false") {
        setup.set("mqtt.retain_available", &retainer.path, false);
        retainer.imported("mqtt.retain_available");
    }
    let delayed = root.at("delayed.enable");
    if delayed.is("false") {
        setup.set("mqtt.max_delayed_messages", &delayed.path, 0);
        delayed.imported("mqtt.max_delayed_messages");
    }
    root.at("retainer.backend.storage_type")
        .changed("durability.policy", "retained messages are in the journal");
    root.get("dashboard")
        .refuse("the console and the API listen on 127.0.0.1:18083; set api.bind and a certificate for other machines");
    root.get("node").refuse("it describes a node of EMQX");
    root.get("cluster").refuse("tidewire runs on one machine");
    root.get("api_key").refuse("create API keys in the console");
    root.get("gateway").refuse("tidewire has no gateways");
    root.get("plugins").refuse("tidewire has no plugins");
}

const LISTENER_KINDS: [(&str, &str); 4] = [("tcp", "tcp"), ("ssl", "tls"), ("ws", "ws"), ("wss", "wss")];

/// Values of a listener with which EMQX does what tidewire does.
const SAME_OF_LISTENER: &[(&str, &str)] = &[
    ("mountpoint", ""),
    ("proxy_protocol", "false"),
    ("enable_authn", "true"),
    ("zone", "default"),
    ("websocket.fail_if_no_subprotocol", "true"),
    ("websocket.compress", "false"),
    ("websocket.check_origin_enable", "false"),
    ("ssl_options.ocsp.enable_ocsp_stapling", "false"),
    ("ssl_options.enable_crl_check", "false"),
    ("tcp_options.nodelay", "true"),
];

pub fn listeners(listeners: &Setting<'_>, setup: &mut Setup) {
    for (theirs, kind) in LISTENER_KINDS {
        for (name, listener) in listeners.get(theirs).entries() {
            if listener.text().is_some() {
                // EMQX marks a deleted listener with a text.
                listener.refuse("it is not a listener");
                continue;
            }
            if let Err(because) = self::listener(kind, name, &listener, setup) {
                listener.refuse_all(&because);
                if name == "default" {
                    setup.set(&format!("listeners.{kind}.default.enabled"), &listener.path, false);
                }
            }
        }
    }
    listeners.get("quic").refuse("tidewire does not support MQTT over QUIC");
}

fn listener(kind: &str, name: &str, listener: &Setting<'_>, setup: &mut Setup) -> Result<(), String> {
    let mount_point = listener.get("mountpoint");
    if mount_point.filled().is_some() {
        return Err("listeners have no mount point; clients would use other topics".to_owned());
    }
    if listener.get("enable_authn").is("false") {
        return Err(
            "it admits clients without authentication; tidewire has the same rules on all listeners".to_owned(),
        );
    }
    let key = format!("listeners.{kind}.{}", simple_name(name));
    let files = match kind {
        "tls" | "wss" => Some(tls_files(&listener.get("ssl_options"), &key, setup)?),
        _ => None,
    };
    let item = listener.path.as_str();
    let is_enabled = listener.get("enable").flag(listener.get("enabled").flag(true));
    setup.set(&format!("{key}.enabled"), item, is_enabled);
    for flag in ["enable", "enabled"] {
        listener.get(flag).imported(&format!("{key}.enabled"));
    }
    if let Some(bind) = listener.get("bind").text() {
        setup.set(&format!("{key}.bind"), item, bind_of(bind));
        listener.get("bind").imported(&format!("{key}.bind"));
    }
    let mut put = |path: &str, option: &str, form| {
        let setting = listener.at(path);
        if let Some(value) = setting.text().and_then(|text| convert(text, form)) {
            setup.set(&format!("{key}.{option}"), item, value);
            setting.imported(&format!("{key}.{option}"));
        }
    };
    put("max_connections", "max_connections", FINITE);
    put("tcp_options.backlog", "backlog", Number);
    if let ("ws" | "wss", Some(path)) = (kind, listener.at("websocket.mqtt_path").text()) {
        setup.set(&format!("{key}.path"), item, path);
        listener.at("websocket.mqtt_path").imported(&format!("{key}.path"));
    }
    let rate = listener.get("max_conn_rate");
    if let Some(text) = rate.text().filter(|text| is_rate(text)) {
        setup.set(&format!("{key}.max_connection_rate"), item, text);
        rate.imported(&format!("{key}.max_connection_rate"));
    }
    listener
        .get("proxy_protocol")
        .refuse("list the proxies in proxy_protocol_trusted and set proxy_protocol to \"on\"");
    if let Some(files) = files {
        for (option, path) in files {
            setup.set(&format!("{key}.{option}"), item, path);
        }
    }
    options::same(listener, SAME_OF_LISTENER);
    listener
        .get("tcp_options")
        .refuse("tidewire sets the options of sockets itself");
    listener.get("acceptors").refuse("each worker accepts connections");
    Ok(())
}

/// `1000/s` or `50/10s`.
fn is_rate(text: &str) -> bool {
    text.split_once('/').is_some_and(|(amount, time)| {
        let time = time.trim_start_matches(|c: char| c.is_ascii_digit());
        !amount.is_empty() && amount.bytes().all(|byte| byte.is_ascii_digit()) && matches!(time, "s" | "m" | "h")
    })
}

/// A port, or an address with a port.
fn bind_of(bind: &str) -> String {
    match bind.strip_prefix(':') {
        Some(port) => port.to_owned(),
        None => bind.to_owned(),
    }
}

/// Takes certificate and key into the setup. The archive contains their text, or the name of a file on the machine of
/// EMQX.
fn tls_files(options: &Setting<'_>, key: &str, setup: &mut Setup) -> Result<Vec<(&'static str, String)>, String> {
    let mut found = Vec::new();
    for (theirs, ours, extension) in [
        ("certfile", "cert_file", "cert"),
        ("keyfile", "key_file", "key"),
        ("cacertfile", "ca_file", "ca"),
    ] {
        let setting = options.get(theirs);
        match setting.filled() {
            Some(text) => {
                let pem = pem(text).map_err(|problem| format!("{theirs}: {problem}"))?;
                let name = format!("tls/{}-{extension}.pem", key.replace('.', "-"));
                found.push((ours, setup.file(&name, pem)));
                setting.imported(&format!("{key}.{ours}"));
            }
            None if ours == "ca_file" => {}
            None => return Err(format!("{theirs} is missing")),
        }
    }
    if options.get("password").filled().is_some() {
        return Err("its private key is encrypted; decrypt the key file and set cert_file and key_file".to_owned());
    }
    let verify = options.get("verify");
    let required = options.get("fail_if_no_peer_cert");
    let mode = match (verify.is("verify_peer"), required.flag(false)) {
        (false, _) => "none",
        (true, false) => "optional",
        (true, true) => "required",
    };
    found.push(("verify_client", mode.to_owned()));
    verify.imported(&format!("{key}.verify_client"));
    required.imported(&format!("{key}.verify_client"));
    let versions = options.get("versions");
    let names: Vec<&str> = versions.items().iter().filter_map(Setting::text).collect();
    if !names.is_empty() {
        let oldest = if names == ["tlsv1.3"] { "1.3" } else { "1.2" };
        found.push(("min_tls_version", oldest.to_owned()));
        match names.iter().all(|name| matches!(*name, "tlsv1.2" | "tlsv1.3")) {
            true => versions.imported(&format!("{key}.min_tls_version")),
            false => versions.changed(&format!("{key}.min_tls_version"), "TLS 1.2 is the oldest version"),
        }
    }
    for option in [
        "ciphers",
        "honor_cipher_order",
        "reuse_sessions",
        "depth",
        "secure_renegotiate",
        "log_level",
    ] {
        options
            .get(option)
            .refuse("tidewire chooses the settings of TLS itself");
    }
    Ok(found)
}

/// Returns the text of a certificate or key. A file name is read on this machine.
pub fn pem(text: &str) -> Result<Vec<u8>, String> {
    if text.contains("-----BEGIN ") {
        return Ok(text.as_bytes().to_vec());
    }
    crate::import::read_bounded(std::path::Path::new(text), 1 << 20)
        .map_err(|_| format!("the archive contains only the name of the file, and this machine has no file {text}"))
}
