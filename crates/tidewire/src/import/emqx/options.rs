//! Options and listeners of EMQX.

use auth::AttributeExpression;

use super::ocsp;
use super::pem::pem;
use super::providers::Providers;
use super::users::is_enabled;
use crate::config::mountpoint::MountpointTemplate;
use crate::import::options::Form::{
    Bytes, BytesLimit, Choice, Duration, DurationSwitch, Factor, Flag, Limit, Number, Seconds,
};
use crate::import::options::{self, ForeignOption, Form, changed, convert, option};
use crate::import::report::Outcome;
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
    option("flapping_detect.enable", "access.flapping.enabled", Flag),
    option("flapping_detect.window_time", "access.flapping.window", Duration),
    option("flapping_detect.max_count", "access.flapping.max_count", Number),
    option("flapping_detect.ban_time", "access.flapping.ban_time", Duration),
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
    client_attributes(&root.at("mqtt.client_attrs_init"), setup);
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
    root.get("exhook").refuse("tidewire asks no other servers");
}

/// Imports attributes of clients. Without an attribute, a mountpoint with it rejects the client.
fn client_attributes(list: &Setting<'_>, setup: &mut Setup) {
    for item in list.items() {
        let (name, expression) = (item.get("set_as_attr"), item.get("expression"));
        let Some(attribute) = name.filled().filter(|attribute| simple_name(attribute) == *attribute) else {
            item.refuse("set_as_attr is not a name of letters, digits, `_` and `-`");
            continue;
        };
        let option = format!("access.client_attrs.{attribute}");
        match AttributeExpression::parse(expression.text().unwrap_or_default()) {
            Err(error) => item.refuse(&error.to_string()),
            Ok(_) if setup.has(&option) => item.refuse("another expression sets the same attribute"),
            Ok(parsed) => {
                setup.set(&option, &expression.path, parsed.text());
                name.imported(&option);
                match parsed.text().contains("username") {
                    true => expression.changed(&option, "only verified user names have a value"),
                    false => expression.imported(&option),
                }
            }
        }
    }
}

/// Options of `mqtt` with which EMQX sets the client ID or the user name itself, and the values that turn them off.
const IDENTITY: [(&str, &[&str]); 4] = [
    ("use_username_as_clientid", &["false"]),
    ("peer_cert_as_username", &["disabled"]),
    ("peer_cert_as_clientid", &["disabled"]),
    ("clientid_override", &["", "disabled"]),
];

/// Returns why rules that allow something are left out: EMQX bases its decision on something that tidewire does not
/// have.
pub fn closed_by(root: &Setting<'_>) -> Option<String> {
    let mut closed_by = None;
    let zones = root.get("zones").entries();
    for mqtt in std::iter::once(root.get("mqtt")).chain(zones.into_iter().map(|(_, zone)| zone.get("mqtt"))) {
        for (key, off) in IDENTITY {
            let setting = mqtt.get(key);
            if !setting.exists() || off.iter().any(|value| setting.is(value)) {
                continue;
            }
            setting.refuse("clients of tidewire choose their client ID and user name themselves");
            closed_by.get_or_insert_with(|| {
                format!(
                    "EMQX sets the client ID or user name ({}), which tidewire does not",
                    setting.path
                )
            });
        }
    }
    for path in ["exhook.servers", "plugins.states"] {
        let extensions = root.at(path).items();
        if extensions.iter().any(|one| one.get("enable").flag(true) != Ok(false)) {
            closed_by.get_or_insert_with(|| format!("EMQX asks {path} as well, which could deny it"));
        }
    }
    closed_by
}

const LISTENER_KINDS: [(&str, &str); 5] = [
    ("tcp", "tcp"),
    ("ssl", "tls"),
    ("ws", "ws"),
    ("wss", "wss"),
    ("quic", "quic"),
];

/// Values of a listener with which EMQX does what tidewire does.
const SAME_OF_LISTENER: &[(&str, &str)] = &[
    ("mountpoint", ""),
    ("proxy_protocol", "false"),
    ("enable_authn", "true"),
    ("zone", "default"),
    ("websocket.fail_if_no_subprotocol", "true"),
    ("websocket.compress", "false"),
    ("websocket.check_origin_enable", "false"),
    ("tcp_options.nodelay", "true"),
];

/// Restrictions of client certificates that tidewire does not have, and the values that turn them off.
const CERTIFICATE_CHECKS: [(&str, &str); 2] = [("verify_peer_ext_key_usage", ""), ("partial_chain", "false")];

const MISSING_LISTENER: &str = "false, because it is missing in the archive, and etc/emqx.conf of EMQX can disable it; \
                                to open it, set this option to true";

/// The filter of addresses that EMQX writes for a listener without one.
const NO_FILTER: &str = "allow all";

pub fn listeners<'a>(listeners: &Setting<'a>, providers: &mut Providers<'a>, setup: &mut Setup) {
    for (theirs, kind) in LISTENER_KINDS {
        for (name, listener) in listeners.get(theirs).entries() {
            if let Err(because) = self::listener(kind, name, &listener, providers, setup) {
                listener.refuse_all(&because);
                if name == "default" {
                    setup.set(&format!("listeners.{kind}.default.enabled"), &listener.path, false);
                }
            }
        }
    }
    for kind in ["tcp", "ws"] {
        let listener = listeners.get(kind).get("default");
        if !listener.exists() {
            let enabled = format!("listeners.{kind}.default.enabled");
            setup.set(&enabled, &listener.path, false);
            listener.note_missing(Outcome::Changed {
                to: enabled,
                because: MISSING_LISTENER.to_owned(),
            });
        }
    }
}

/// Returns whether a listener authenticates its clients in a way of its own.
pub fn have_authenticators(listeners: &Setting<'_>) -> bool {
    let kinds = listeners.entries().into_iter();
    let mut all = kinds.flat_map(|(_, kind)| kind.entries());
    all.any(|(_, listener)| has_authenticators(&listener))
}

fn has_authenticators(listener: &Setting<'_>) -> bool {
    !listener.get("authentication").items().is_empty()
}

/// Imports the authenticators of a listener and returns the kinds of their providers. All of them must be imported.
fn own_providers<'a>(
    authenticators: &Setting<'a>,
    providers: &mut Providers<'a>,
    setup: &mut Setup,
) -> Result<Vec<&'static str>, String> {
    let mut kinds = Vec::new();
    for authenticator in authenticators.items() {
        let failed = |because: String| format!("it has authenticators of its own that are not imported: {because}");
        if !is_enabled(&authenticator).map_err(failed)? {
            authenticator.refuse("the authenticator is disabled");
            continue;
        }
        kinds.push(providers.add(&authenticator, setup).map_err(failed)?);
    }
    match kinds.is_empty() && !authenticators.items().is_empty() {
        true => Err("it has authenticators of its own, and none of them is enabled".to_owned()),
        false => Ok(kinds),
    }
}

/// Returns why tidewire cannot have the listener: without these settings, it would admit more clients, or others.
fn check_admission(listener: &Setting<'_>) -> Result<(), String> {
    // EMQX marks a deleted listener with a text.
    if !listener.is_object() {
        return Err("it is not a listener".to_owned());
    }
    let mountpoint = listener.get("mountpoint");
    if mountpoint.exists() && !mountpoint.is("") {
        let text = mountpoint.text().ok_or("its mountpoint is not text")?;
        MountpointTemplate::parse(text).map_err(|because| format!("its mountpoint cannot be used: {because}"))?;
    }
    if !listener.get("enable_authn").flag(true).unwrap_or(false) {
        return Err(
            "its enable_authn is not true; tidewire authenticates clients in the same way on all listeners".to_owned(),
        );
    }
    let filter = listener.get("access_rules");
    if !filter.items().iter().all(|rule| rule.is(NO_FILTER)) {
        return Err(
            "it has a filter of addresses (access_rules); write rules with addresses to access.rules".to_owned(),
        );
    }
    filter.imported("as in tidewire");
    let tls = listener.get("ssl_options");
    if tls.get("enable_crl_check").flag(false)? {
        return Err(
            "it checks lists of revoked certificates (enable_crl_check); add a listener with their URLs in crl_urls"
                .to_owned(),
        );
    }
    tls.get("enable_crl_check").imported("as in tidewire");
    for (key, off) in CERTIFICATE_CHECKS {
        let check = tls.get(key);
        if check.exists() && !check.is(off) {
            return Err(format!(
                "it has another check of client certificates ({key}) than tidewire"
            ));
        }
        check.imported("as in tidewire");
    }
    Ok(())
}

fn listener<'a>(
    kind: &str,
    name: &str,
    listener: &Setting<'a>,
    providers: &mut Providers<'a>,
    setup: &mut Setup,
) -> Result<(), String> {
    let key = format!("listeners.{kind}.{}", simple_name(name));
    let closed = |because| format!("{because}; to open it, add {key} yourself");
    check_admission(listener).map_err(closed)?;
    if kind == "quic" && !cfg!(feature = "quic") {
        return Err("this build has no QUIC support; build with --features quic".to_owned());
    }
    if setup.has(&format!("{key}.enabled")) {
        return Err(format!("another listener is imported as {key}"));
    }
    let providers = own_providers(&listener.get("authentication"), providers, setup).map_err(closed)?;
    let files = match kind {
        "tls" | "wss" | "quic" => Some(tls_files(&listener.get("ssl_options"), &key, setup)?),
        _ => None,
    };
    let item = listener.path.as_str();
    let bind = listener.get("bind");
    if bind.exists() && bind.text().is_none() {
        return Err("its address cannot be read".to_owned());
    }
    let is_enabled = listener.get("enable").flag(listener.get("enabled").flag(true)?)?;
    setup.set(&format!("{key}.enabled"), item, is_enabled);
    for flag in ["enable", "enabled"] {
        listener.get(flag).imported(&format!("{key}.enabled"));
    }
    if let Some(address) = bind.text() {
        setup.set(&format!("{key}.bind"), item, bind_of(address));
        bind.imported(&format!("{key}.bind"));
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
    if let Some(prefix) = listener.get("mountpoint").filled() {
        setup.set(&format!("{key}.mountpoint"), item, prefix);
        listener.get("mountpoint").imported(&format!("{key}.mountpoint"));
        // The authorization of EMQX sees topics without the prefix, unless `include_mountpoint` says otherwise.
        setup.set("access.include_mountpoint", item, false);
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
        ocsp::import(&listener.at("ssl_options.ocsp"), &key, setup);
    }
    if !providers.is_empty() {
        setup.set(&format!("{key}.providers"), item, providers);
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
    let is_verified = match verify.text() {
        Some("verify_peer") => true,
        Some("verify_none") => false,
        None if !verify.exists() => false,
        _ => return Err("ssl_options.verify: its value is neither verify_peer nor verify_none".to_owned()),
    };
    let mode = match (is_verified, required.flag(false)?) {
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
    options.get("ciphers").refuse("set `cipher_suites` of the listener");
    for option in [
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::hocon::Hocon;
    use crate::import::report::Report;

    /// Imports a listener with the setting. Returns whether it is imported, and the report.
    fn import_one(kind: &str, setting: &str) -> (bool, String) {
        let text = format!("listeners.{kind}.a {{bind = 1999, {setting}}}");
        let hocon = Hocon::parse("cluster.hocon", &text, &|_| Err(String::new())).expect("valid");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let root = Setting::root(&hocon, &report);
        listeners(&root.get("listeners"), &mut Providers::new(5), &mut setup);
        root.finish();
        let kind = if kind == "ssl" { "tls" } else { kind };
        (setup.has(&format!("listeners.{kind}.a.bind")), report.text("title"))
    }

    #[test]
    fn a_listener_that_would_admit_more_is_refused() {
        for (setting, part) in [
            (r#"access_rules = ["deny 10.0.0.0/8", "allow all"]"#, "access_rules"),
            (r#"access_rules = "allow 10.0.0.0/8""#, "access_rules"),
            ("access_rules {}", "access_rules"),
            ("authentication = [{mechanism = jwt}]", "authenticators of its own"),
            ("authentication {mechanism = jwt}", "authenticators of its own"),
            ("enable_authn = false", "its enable_authn is not true"),
            ("enable_authn = quick_deny_anonymous", "its enable_authn is not true"),
            (
                "mountpoint = \"x\"",
                "its mountpoint cannot be used: the prefix must end with `/`",
            ),
            ("mountpoint = \"x/${zone}/\"", "unknown placeholder ${zone}"),
            ("mountpoint = [\"x/\"]", "its mountpoint is not text"),
            ("enable = maybe", "neither true nor false"),
            ("enabled = []", "neither true nor false"),
            ("bind = [1999]", "its address cannot be read"),
        ] {
            let (is_imported, report) = import_one("tcp", setting);
            assert!(!is_imported && report.contains(part), "{setting}\n{report}");
            assert!(report.contains("0 imported"), "{setting}\n{report}");
        }
        for setting in [
            "access_rules = [\"allow all\"]",
            "access_rules = []",
            "authentication = []",
            "enable_authn = true",
            "mountpoint = \"\"",
            "mountpoint = \"x/${client_attrs.tenant}/\"",
            "enable = false",
        ] {
            let (is_imported, report) = import_one("tcp", setting);
            assert!(is_imported, "{setting}\n{report}");
        }
    }

    #[test]
    fn attributes_of_clients_are_imported() {
        let text = r#"mqtt.client_attrs_init = [
            {expression = "nth(1, tokens(clientid, '-'))", set_as_attr = tenant}
            {expression = "cn", set_as_attr = tenant}
            {expression = "username", set_as_attr = user}
            {expression = "concat(cn, '-', clientid)", set_as_attr = both}
            {expression = "cn", set_as_attr = "a.b"}
        ]"#;
        let hocon = Hocon::parse("cluster.hocon", text, &|_| Err(String::new())).expect("valid");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let root = Setting::root(&hocon, &report);
        client_attributes(&root.at("mqtt.client_attrs_init"), &mut setup);
        root.finish();
        let report = report.text("title");
        let attribute = |name: &str| setup.option(&format!("access.client_attrs.{name}"));
        assert_eq!(attribute("tenant"), Some("nth(1, tokens(clientid, '-'))"));
        assert_eq!(attribute("user"), Some("username"));
        assert_eq!(attribute("both"), None);
        for part in [
            "another expression",
            "only verified",
            "regex_extract(FIELD",
            "letters, digits",
        ] {
            assert!(report.contains(part), "{part}: {report}");
        }
    }

    #[test]
    fn rules_see_topics_without_the_mountpoint() {
        let text = "listeners.tcp.a {bind = 1999, mountpoint = \"t/${username}/\"}";
        let hocon = Hocon::parse("cluster.hocon", text, &|_| Err(String::new())).expect("valid");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let root = Setting::root(&hocon, &report);
        listeners(&root.get("listeners"), &mut Providers::new(5), &mut setup);
        assert_eq!(setup.option("listeners.tcp.a.mountpoint"), Some("t/${username}/"));
        assert!(setup.is_false("access.include_mountpoint"));
    }

    #[test]
    fn a_tls_listener_keeps_the_checks_of_certificates() {
        let files = r#"certfile = "-----BEGIN C", keyfile = "-----BEGIN K", cacertfile = "-----BEGIN A""#;
        for (setting, part) in [
            ("enable_crl_check = true", "revoked certificates"),
            ("enable_crl_check = maybe", "neither true nor false"),
            ("verify = verify_all", "neither verify_peer nor verify_none"),
            ("verify = []", "neither verify_peer nor verify_none"),
            (
                "verify_peer_ext_key_usage = \"emailProtection\"",
                "verify_peer_ext_key_usage",
            ),
            ("partial_chain = cacert_from_cacertfile", "partial_chain"),
            (
                "verify = verify_peer, fail_if_no_peer_cert = maybe",
                "neither true nor false",
            ),
        ] {
            let (is_imported, report) = import_one("ssl", &format!("ssl_options {{{files}, {setting}}}"));
            assert!(!is_imported && report.contains(part), "{setting}\n{report}");
        }
        let good = "enable_crl_check = false, partial_chain = false, verify = verify_peer, fail_if_no_peer_cert = true";
        let (is_imported, report) = import_one("ssl", &format!("ssl_options {{{files}, {good}}}"));
        assert!(is_imported, "{report}");
    }

    #[test]
    fn two_listeners_never_share_a_name() {
        let text = "listeners.tcp { \"a b\" {bind = \"127.0.0.1:1999\"}, \"a/b\" {max_connections = 5} }";
        let hocon = Hocon::parse("cluster.hocon", text, &|_| Err(String::new())).expect("valid");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let found = Setting::root(&hocon, &report).get("listeners");
        listeners(&found, &mut Providers::new(5), &mut setup);
        assert!(setup.has("listeners.tcp.a_b.bind") && !setup.has("listeners.tcp.a_b.max_connections"));
        assert!(
            report
                .text("title")
                .contains("another listener is imported as listeners.tcp.a_b")
        );
    }

    #[test]
    fn decisions_that_tidewire_does_not_know_close() {
        let closed = |text: &str| {
            let hocon = Hocon::parse("cluster.hocon", text, &|_| Err(String::new())).expect("valid");
            let report = Report::default();
            closed_by(&Setting::root(&hocon, &report))
        };
        for (text, part) in [
            ("mqtt.use_username_as_clientid = true", "mqtt.use_username_as_clientid"),
            ("mqtt.peer_cert_as_username = cn", "mqtt.peer_cert_as_username"),
            ("mqtt.peer_cert_as_clientid = []", "mqtt.peer_cert_as_clientid"),
            (
                "zones.a.mqtt.clientid_override = username",
                "zones.a.mqtt.clientid_override",
            ),
            (
                "exhook.servers = [{name = a, enable = false}, {name = b}]",
                "exhook.servers",
            ),
            ("plugins.states = [{enable = true}]", "plugins.states"),
        ] {
            assert!(closed(text).is_some_and(|because| because.contains(part)), "{text}");
        }
        for text in [
            "",
            "mqtt {use_username_as_clientid = false, peer_cert_as_username = disabled, clientid_override = \"\"}",
            "exhook.servers = [{name = a, enable = false}]",
            "exhook.servers = []",
        ] {
            assert_eq!(closed(text), None, "{text}");
        }
    }

    #[test]
    fn a_deleted_default_listener_stays_closed() {
        let text = "listeners.tcp.default = marked_for_deletion";
        let hocon = Hocon::parse("cluster.hocon", text, &|_| Err(String::new())).expect("valid");
        let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
        let found = Setting::root(&hocon, &report).get("listeners");
        listeners(&found, &mut Providers::new(5), &mut setup);
        assert!(setup.has("listeners.tcp.default.enabled"));
        assert!(report.text("title").contains("it is not a listener"));
    }

    #[test]
    fn default_listener_that_is_missing_stays_closed() {
        for (text, tcp, ws) in [
            ("", true, true),
            ("listeners.tcp.a.bind = 1999", true, true),
            ("listeners.tcp.default.bind = 1999", false, true),
            ("listeners.ws.default.bind = 1999", true, false),
        ] {
            let hocon = Hocon::parse("cluster.hocon", text, &|_| Err(String::new())).expect("valid");
            let (mut setup, report) = (Setup::new().expect("random bytes"), Report::default());
            let found = Setting::root(&hocon, &report).get("listeners");
            listeners(&found, &mut Providers::new(5), &mut setup);
            let report = report.text("title");
            for (kind, is_closed) in [("tcp", tcp), ("ws", ws)] {
                let enabled = format!("listeners.{kind}.default.enabled");
                assert_eq!(setup.is_false(&enabled), is_closed, "{text}\n{report}");
                let row = format!("{enabled}: false, because it is missing");
                assert_eq!(report.contains(&row), is_closed, "{text}\n{report}");
            }
        }
    }
}
