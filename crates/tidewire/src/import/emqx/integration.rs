//! Connectors, actions, sources and rules of EMQX.
//!
//! Each definition is checked like one in the configuration of tidewire. One that is refused, and what depends on it,
//! is reported and left out.

use std::collections::{HashMap, HashSet};

use serde_json::{Value as Json, json};

use crate::import::definition::without_nulls;
use crate::import::settings::{Setting, bytes, duration_ms};
use crate::import::setup::{Setup, simple_name};

use super::pem::pem;

/// Types of EMQX and ours.
const CONNECTOR_KINDS: [(&str, &str); 8] = [
    ("http", "http"),
    ("mqtt", "mqtt"),
    ("kafka_producer", "kafka"),
    ("kafka_consumer", "kafka"),
    ("pgsql", "postgresql"),
    ("timescale", "postgresql"),
    ("redis", "redis"),
    ("confluent_producer", "kafka"),
];

/// Names that rules of EMQX use besides the types.
const RULE_KINDS: [(&str, &str); 2] = [("webhook", "http"), ("kafka", "kafka_producer")];

/// A definition of EMQX, as `type:name`, with the name that it has here.
type Names = HashMap<(String, String), String>;

pub struct Integration<'s> {
    setup: &'s mut Setup,
    connectors: Names,
    actions: Names,
    sources: Names,
    rules: Names,
}

/// A part of a definition: its source and its result.
struct Definition<'a> {
    from: Setting<'a>,
    key: String,
}

pub fn import(root: &Setting<'_>, setup: &mut Setup) {
    let connectors = definitions(&root.get("connectors"));
    let actions = definitions(&root.get("actions"));
    let sources = definitions(&root.get("sources"));
    let rules = root.at("rule_engine.rules").entries();
    let mut integration = Integration {
        setup,
        connectors: names(connectors.iter().map(|(kind, name, _)| (*kind, *name))),
        actions: names(actions.iter().map(|(kind, name, _)| (*kind, *name))),
        sources: names(sources.iter().map(|(kind, name, _)| (*kind, *name))),
        rules: names(rules.iter().map(|(id, _)| ("rule", *id))),
    };
    for (kind, name, connector) in connectors {
        integration.connector(kind, name, &connector);
    }
    for (kind, name, action) in actions {
        integration.action(kind, name, &action);
    }
    for (kind, name, source) in sources {
        integration.source(kind, name, &source);
    }
    for (id, rule) in rules {
        integration.rule(id, &rule);
    }
    root.get("bridges").refuse(
        "bridges of EMQX before 5.4 have to be converted: import the archive into EMQX 5.8 and export it again",
    );
}

fn definitions<'a>(section: &Setting<'a>) -> Vec<(&'a str, &'a str, Setting<'a>)> {
    let mut all = Vec::new();
    for (kind, group) in section.entries() {
        for (name, definition) in group.entries() {
            all.push((kind, name, definition));
        }
    }
    all
}

fn kind_of(theirs: &str) -> Option<&'static str> {
    CONNECTOR_KINDS
        .iter()
        .find(|(kind, _)| *kind == theirs)
        .map(|(_, ours)| *ours)
}

/// Chooses a name for each definition: tidewire has one connector, action or source with a name, EMQX one per type.
fn names<'a>(definitions: impl Iterator<Item = (&'a str, &'a str)>) -> Names {
    let mut taken = HashSet::new();
    let mut names = Names::new();
    for (kind, name) in definitions {
        let simple = simple_name(name);
        let numbered = (2..).map(|number| simple_name(&format!("{number}_{simple}")));
        let candidates = [simple.clone(), simple_name(&format!("{kind}_{simple}"))];
        let free = candidates
            .into_iter()
            .chain(numbered)
            .find(|name| !taken.contains(name));
        let free = free.unwrap_or_default();
        taken.insert(free.clone());
        names.insert((kind.to_owned(), name.to_owned()), free);
    }
    names
}

fn name_in(names: &Names, kind: &str, name: &str) -> String {
    names
        .get(&(kind.to_owned(), name.to_owned()))
        .cloned()
        .unwrap_or_default()
}

impl<'a> Definition<'a> {
    fn new(from: &Setting<'a>, key: String) -> Definition<'a> {
        Definition {
            from: from.clone(),
            key,
        }
    }

    /// Notes that a value is used.
    fn used(&self, setting: &Setting<'_>, option: &str) {
        setting.imported(&format!("{}.{option}", self.key));
    }

    /// Returns the text of a value, or its JSON for other values, and notes it.
    fn take(&self, path: &str, option: &str) -> Option<Json> {
        let setting = self.from.at(path);
        let json = setting.json();
        if setting.exists() {
            self.used(&setting, option);
        }
        (!json.is_null()).then_some(json)
    }

    fn text(&self, path: &str, option: &str) -> Option<String> {
        let setting = self.from.at(path);
        let text = setting.filled()?;
        self.used(&setting, option);
        Some(text.to_owned())
    }

    fn duration_ms(&self, path: &str, option: &str) -> Option<u64> {
        let setting = self.from.at(path);
        let ms = duration_ms(setting.text()?)?;
        self.used(&setting, option);
        Some(ms)
    }

    fn bytes(&self, path: &str, option: &str) -> Option<u64> {
        let setting = self.from.at(path);
        let bytes = bytes(setting.text()?)?;
        self.used(&setting, option);
        Some(bytes)
    }
}

impl Integration<'_> {
    fn connector(&mut self, kind: &str, name: &str, from: &Setting<'_>) {
        let Some(ours) = kind_of(kind) else {
            from.refuse(&format!("tidewire has no connector of type {kind}"));
            return;
        };
        let new_name = name_in(&self.connectors, kind, name);
        let definition = Definition::new(from, format!("connectors.{new_name}"));
        let config = match ours {
            "http" => self.http_connector(&definition),
            "mqtt" => self.mqtt_connector(&definition, name),
            "kafka" => self.kafka_connector(&definition),
            "postgresql" => self.postgres_connector(&definition),
            _ => self.redis_connector(&definition),
        };
        match config {
            Ok(config) => {
                self.put(&definition, json!({"type": ours, "config": config}));
            }
            Err(because) => from.refuse_all(&because),
        }
    }

    /// Adds a definition with the fields that all have.
    fn put(&mut self, definition: &Definition<'_>, mut fields: Json) {
        let from = &definition.from;
        let enable = from.get("enable");
        if enable.exists() {
            fields["enable"] = enable.flag(true).unwrap_or(false).into();
            definition.used(&enable, "enable");
        }
        if let Some(description) = definition.text("description", "description") {
            fields["description"] = description.into();
        }
        for unused in ["metadata", "tags", "created_at", "last_modified_at"] {
            from.get(unused).refuse("tidewire does not store it");
        }
        from.at("description").imported(&definition.key);
        self.setup.define(&definition.key, &from.path, &without_nulls(fields));
        let resource = from.get("resource_opts");
        resource.refuse("it has no counterpart in the delivery settings of tidewire");
    }

    /// Stores a secret in a file.
    fn secret(&mut self, definition: &Definition<'_>, path: &str, option: &str) -> Option<String> {
        let text = definition.text(path, option)?;
        let name = format!("{}.{option}", definition.key).replace('.', "-");
        Some(self.setup.secret(&name, &text))
    }

    fn tls(&mut self, definition: &Definition<'_>) -> Result<Option<Json>, String> {
        let ssl = definition.from.get("ssl");
        if !ssl.get("enable").flag(false)? {
            ssl.get("enable").imported("as in tidewire");
            ssl.refuse("TLS is off");
            return Ok(None);
        }
        let mut tls = json!({});
        for (theirs, ours) in [
            ("cacertfile", "ca_file"),
            ("certfile", "cert_file"),
            ("keyfile", "key_file"),
        ] {
            let setting = ssl.get(theirs);
            if let Some(text) = setting.filled() {
                let pem = pem(text).map_err(|problem| format!("ssl.{theirs}: {problem}"))?;
                let name = format!("tls/{}-{ours}.pem", definition.key.replace('.', "-"));
                tls[ours] = self.setup.file(&name, pem).into();
                definition.used(&setting, &format!("config.tls.{ours}"));
            }
        }
        let verify = ssl.get("verify");
        tls["verify"] = (!verify.is("verify_none")).into();
        definition.used(&verify, "config.tls.verify");
        definition.used(&ssl.get("enable"), "config.tls");
        ssl.refuse("tidewire chooses the settings of TLS itself");
        Ok(Some(tls))
    }

    fn http_connector(&mut self, definition: &Definition<'_>) -> Result<Json, String> {
        let url = definition.text("url", "config.url").ok_or("its URL is missing")?;
        let mut headers = json!({});
        for (name, setting) in definition.from.get("headers").entries() {
            if name.eq_ignore_ascii_case("content-type") {
                continue;
            }
            let text = setting.text().unwrap_or_default();
            let file = format!("{}-header-{name}", definition.key).replace('.', "-");
            headers[name] = self.setup.secret(&file, text).into();
            definition.used(&setting, &format!("config.headers.{name}"));
        }
        let connections = definition.from.get("pool_size").number();
        definition.used(&definition.from.get("pool_size"), "config.connections_max");
        Ok(json!({
            "url": url,
            "headers": headers,
            "connections_max": connections,
            "connect_timeout_ms": definition.duration_ms("connect_timeout", "config.connect_timeout_ms"),
            "tls": self.tls(definition)?,
        }))
    }

    fn mqtt_connector(&mut self, definition: &Definition<'_>, name: &str) -> Result<Json, String> {
        let from = &definition.from;
        let server = definition
            .text("server", "config.server")
            .ok_or("its server is missing")?;
        let server = match server.contains(':') {
            true => server,
            false => format!("{server}:1883"),
        };
        let prefix = from.get("clientid_prefix");
        let client_id = match prefix.filled() {
            Some(prefix) => format!("{prefix}-{name}"),
            None => format!("tidewire-{name}"),
        };
        prefix.changed(
            &format!("{}.config.client_id", definition.key),
            "the connection has one fixed client id",
        );
        let version = from.get("proto_ver");
        definition.used(&version, "config.version");
        let version = match version.text().unwrap_or("v4") {
            "v3" => "3.1",
            "v5" => "5",
            _ => "3.1.1",
        };
        let bridge = from.get("bridge_mode");
        bridge.changed(
            &format!("{}.config.loop_protection", definition.key),
            "tidewire protects from message loops with any broker",
        );
        from.get("pool_size")
            .changed(&definition.key, "tidewire uses one connection");
        Ok(json!({
            "server": server,
            "version": version,
            "client_id": client_id,
            "user": definition.text("username", "config.user"),
            "password": self.secret(definition, "password", "config.password"),
            "clean_start": definition.take("clean_start", "config.clean_start").unwrap_or(true.into()),
            "keep_alive_s": definition.duration_ms("keepalive", "config.keep_alive_s").map(|ms| ms / 1000),
            "in_flight_max": definition.take("max_inflight", "config.in_flight_max"),
            "connect_timeout_ms": definition.duration_ms("connect_timeout", "config.connect_timeout_ms"),
            "tls": self.tls(definition)?,
        }))
    }

    fn kafka_connector(&mut self, definition: &Definition<'_>) -> Result<Json, String> {
        let hosts = definition
            .text("bootstrap_hosts", "config.bootstrap_hosts")
            .ok_or("its hosts are missing")?;
        let authentication = definition.from.get("authentication");
        let authentication = match authentication.get("mechanism").text() {
            Some(mechanism @ ("plain" | "scram_sha_256" | "scram_sha_512")) => {
                definition.used(&authentication.get("mechanism"), "config.authentication.mechanism");
                json!({
                    "mechanism": mechanism.replace("sha_", "sha"),
                    "username": definition.text("authentication.username", "config.authentication.username"),
                    "password": self.secret(definition, "authentication.password", "config.authentication.password"),
                })
            }
            Some(other) => return Err(format!("tidewire does not authenticate with {other} at Kafka")),
            None if authentication.is_object() || matches!(authentication.text(), Some(text) if text != "none") => {
                return Err("tidewire does not support its authentication at Kafka".to_owned());
            }
            None => {
                definition.used(&authentication, "config.authentication");
                json!({"mechanism": "none"})
            }
        };
        definition
            .from
            .get("socket_opts")
            .refuse("tidewire sets the options of sockets itself");
        Ok(json!({
            "bootstrap_hosts": hosts,
            "authentication": authentication,
            "connect_timeout_ms": definition.duration_ms("connect_timeout", "config.connect_timeout_ms"),
            "tls": self.tls(definition)?,
        }))
    }

    fn postgres_connector(&mut self, definition: &Definition<'_>) -> Result<Json, String> {
        let server = definition
            .text("server", "config.host")
            .ok_or("its server is missing")?;
        let (host, port) = match server.rsplit_once(':') {
            Some((host, port)) => (host.to_owned(), port.parse::<u16>().ok()),
            None => (server, None),
        };
        let connections = definition.from.get("pool_size").number();
        definition.used(&definition.from.get("pool_size"), "config.connections_max");
        Ok(json!({
            "host": host,
            "port": port,
            "database": definition.text("database", "config.database"),
            "user": definition.text("username", "config.user"),
            "password": self.secret(definition, "password", "config.password"),
            "connections_max": connections,
            "connect_timeout_ms": definition.duration_ms("connect_timeout", "config.connect_timeout_ms"),
            "tls": self.tls(definition)?,
        }))
    }

    fn redis_connector(&mut self, definition: &Definition<'_>) -> Result<Json, String> {
        let parameters = definition.from.get("parameters");
        let mode = match parameters.get("redis_type").text() {
            Some("cluster") => "cluster",
            Some("sentinel") => "sentinel",
            _ => "single",
        };
        definition.used(&parameters.get("redis_type"), "config.mode");
        let servers = match parameters.get("servers").exists() {
            true => parameters.get("servers"),
            false => parameters.get("server"),
        };
        let mut list = Vec::new();
        for item in servers.items() {
            for server in item.text().unwrap_or_default().split(',').map(str::trim) {
                list.push(match server.contains(':') {
                    true => server.to_owned(),
                    false => format!("{server}:6379"),
                });
            }
        }
        definition.used(&servers, "config.servers");
        parameters
            .get("pool_size")
            .changed(&definition.key, "tidewire uses one connection");
        Ok(json!({
            "mode": mode,
            "servers": list,
            "sentinel_master": definition.text("parameters.sentinel", "config.sentinel_master"),
            "sentinel_user": definition.text("parameters.sentinel_username", "config.sentinel_user"),
            "sentinel_password":
                self.secret(definition, "parameters.sentinel_password", "config.sentinel_password"),
            "user": definition.text("parameters.username", "config.user"),
            "password": self.secret(definition, "parameters.password", "config.password"),
            "database": definition.take("parameters.database", "config.database"),
            "tls": self.tls(definition)?,
        }))
    }

    fn action(&mut self, kind: &str, name: &str, from: &Setting<'_>) {
        let Some(ours) = kind_of(kind) else {
            from.refuse(&format!("tidewire has no action of type {kind}"));
            return;
        };
        let connector = from.get("connector");
        let Some(connector_name) = connector.text().and_then(|name| self.connector_name(kind, name)) else {
            from.refuse("its connector is not imported");
            return;
        };
        let new_name = name_in(&self.actions, kind, name);
        let definition = Definition::new(from, format!("actions.{new_name}"));
        definition.used(&connector, "connector");
        let parameters = match ours {
            "http" => http_action(&definition),
            "mqtt" => mqtt_action(&definition),
            "kafka" => kafka_action(&definition),
            "postgresql" => json!({"sql": definition.text("parameters.sql", "parameters.sql")}),
            _ => json!({"command": definition.take("parameters.command_template", "parameters.command")}),
        };
        let delivery = delivery(&definition, ours);
        let fallback = self.fallback(&definition);
        let fields = json!({
            "type": ours,
            "connector": connector_name,
            "parameters": parameters,
            "delivery": delivery,
            "fallback_actions": fallback,
        });
        self.put(&definition, fields);
    }

    /// Returns the name of a connector that is imported.
    fn connector_name(&self, kind: &str, name: &str) -> Option<String> {
        let name = name_in(&self.connectors, kind, name);
        self.setup.has(&format!("connectors.{name}")).then_some(name)
    }

    fn fallback(&self, definition: &Definition<'_>) -> Vec<Json> {
        let mut all = Vec::new();
        for fallback in definition.from.get("fallback_actions").items() {
            let key = (fallback.get("type").text(), fallback.get("name").text());
            if fallback.get("kind").is("republish") {
                let args = republish(&fallback.get("args"));
                all.push(json!({"kind": "republish", "args": args}));
                definition.used(&fallback, "fallback_actions");
            } else if let (Some(kind), Some(name)) = key
                && let Some(ours) = kind_of(kind)
            {
                all.push(json!({"kind": "reference", "type": ours, "name": name_in(&self.actions, kind, name)}));
                definition.used(&fallback, "fallback_actions");
            } else {
                fallback.refuse("the action is not imported");
            }
        }
        all
    }

    fn source(&mut self, kind: &str, name: &str, from: &Setting<'_>) {
        let ours = match kind {
            "mqtt" => "mqtt",
            "kafka_consumer" => "kafka",
            kind => {
                from.refuse(&format!("tidewire has no source of type {kind}"));
                return;
            }
        };
        let connector = from.get("connector");
        let Some(connector_name) = connector.text().and_then(|name| self.connector_name(kind, name)) else {
            from.refuse("its connector is not imported");
            return;
        };
        let new_name = name_in(&self.sources, kind, name);
        let definition = Definition::new(from, format!("sources.{new_name}"));
        definition.used(&connector, "connector");
        let parameters = match ours {
            "mqtt" => {
                let filter = definition.text("parameters.topic", "parameters.subscriptions");
                let qos = definition
                    .take("parameters.qos", "parameters.subscriptions")
                    .unwrap_or(1.into());
                json!({"subscriptions": [{"filter": filter, "qos": qos}]})
            }
            _ => {
                let topic = from.at("parameters.topic");
                definition.used(&topic, "parameters.kafka_topics");
                let group = definition.text("parameters.group_id", "parameters.group_id");
                let reset = from.at("parameters.offset_reset_policy");
                definition.used(&reset, "parameters.offset_reset");
                json!({
                    "kafka_topics": [topic.text()],
                    "group_id": group.unwrap_or_else(|| format!("emqx-kafka-consumer-{name}")),
                    "offset_reset": if reset.is("earliest") { "earliest" } else { "latest" },
                })
            }
        };
        let fields = json!({"type": ours, "connector": connector_name, "parameters": parameters});
        self.put(&definition, fields);
    }

    fn rule(&mut self, id: &str, from: &Setting<'_>) {
        let new_id = name_in(&self.rules, "rule", id);
        let definition = Definition::new(from, format!("rules.{new_id}"));
        let Some(sql) = from.get("sql").filled() else {
            from.refuse("its SQL is missing");
            return;
        };
        let (sql, missing) = self.renamed_sources(sql);
        if let Some(source) = missing {
            from.refuse(&format!("its source {source} is not imported"));
            return;
        }
        definition.used(&from.get("sql"), "sql");
        let mut actions = Vec::new();
        let mut has_refused = false;
        for action in from.get("actions").items() {
            match self.rule_action(&action) {
                Ok(value) => {
                    actions.push(value);
                    definition.used(&action, "actions");
                }
                Err(because) => {
                    action.refuse(&because);
                    has_refused = true;
                }
            }
        }
        // A rule without its actions would only count messages.
        if actions.is_empty() && has_refused {
            from.refuse_all("none of its actions is imported");
            return;
        }
        let name = definition.text("name", "name");
        let fields = json!({"sql": sql, "actions": actions, "name": name});
        self.put(&definition, fields);
    }

    /// Replaces the names of sources in FROM. Returns the first source that is not imported as well.
    fn renamed_sources(&self, sql: &str) -> (String, Option<String>) {
        let mut renamed = sql.to_owned();
        let mut missing = None;
        for prefix in ["$bridges/", "$sources/"] {
            for (at, _) in sql.match_indices(prefix) {
                let reference: String = sql[at + prefix.len()..]
                    .chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | ':'))
                    .collect();
                let Some((kind, name)) = reference.split_once(':') else {
                    continue;
                };
                let ours = name_in(&self.sources, kind, name);
                match self.setup.has(&format!("sources.{ours}")) {
                    true => {
                        let kind = kind_of(kind).unwrap_or(kind);
                        let from = format!("{prefix}{reference}\"");
                        renamed = renamed.replace(&from, &format!("$sources/{kind}:{ours}\""));
                    }
                    false => missing = missing.or(Some(reference.clone())),
                }
            }
        }
        (renamed, missing)
    }

    fn rule_action(&self, action: &Setting<'_>) -> Result<Json, String> {
        if let Some(id) = action.text() {
            let (kind, name) = id.split_once(':').ok_or("the action is unknown")?;
            let kind = RULE_KINDS
                .iter()
                .find(|(theirs, _)| *theirs == kind)
                .map_or(kind, |(_, kind)| *kind);
            let ours = name_in(&self.actions, kind, name);
            return match (kind_of(kind), self.setup.has(&format!("actions.{ours}"))) {
                (Some(kind), true) => Ok(Json::String(format!("{kind}:{ours}"))),
                _ => Err(format!("the action {id} is not imported")),
            };
        }
        match action.get("function").text() {
            Some("republish") => Ok(json!({"function": "republish", "args": republish(&action.get("args"))})),
            Some("console") => Ok(json!({"function": "console"})),
            other => Err(format!(
                "tidewire has no function {}",
                other.unwrap_or("without a name")
            )),
        }
    }
}

fn republish(args: &Setting<'_>) -> Json {
    let mut fields = args.json();
    if let Some(fields) = fields.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
        let is_empty = |value: &Json| value.as_str().is_some_and(str::is_empty);
        for optional in ["user_properties", "payload", "mqtt_properties"] {
            if fields.get(optional).is_some_and(is_empty) {
                fields.remove(optional);
            }
        }
    }
    fields
}

fn http_action(definition: &Definition<'_>) -> Json {
    let from = &definition.from;
    let mut headers = json!({});
    let mut content_type = None;
    for (name, setting) in from.at("parameters.headers").entries() {
        let value = setting.json();
        match name.eq_ignore_ascii_case("content-type") {
            true => {
                content_type = Some(value);
                definition.used(&setting, "parameters.content_type");
            }
            false => {
                headers[name] = value;
                definition.used(&setting, &format!("parameters.headers.{name}"));
            }
        }
    }
    from.at("parameters.max_retries").changed(
        &definition.key,
        "delivery.retry decides how often a message is sent again",
    );
    json!({
        "method": definition.text("parameters.method", "parameters.method"),
        "path": definition.text("parameters.path", "parameters.path"),
        "headers": headers,
        "content_type": content_type,
        "body": definition.text("parameters.body", "parameters.body"),
    })
}

fn mqtt_action(definition: &Definition<'_>) -> Json {
    let text = |path: &str, option: &str| {
        let json = definition.take(path, option)?;
        Some(json.as_str().map_or_else(|| json.to_string(), str::to_owned)).filter(|text| !text.is_empty())
    };
    let retain = text("parameters.retain", "parameters.retain").unwrap_or_else(|| "false".to_owned());
    // The defaults of EMQX, which differ from ours.
    json!({
        "topic": text("parameters.topic", "parameters.topic"),
        "qos": text("parameters.qos", "parameters.qos").unwrap_or_else(|| "1".to_owned()),
        "retain": if retain == "${retain}" { "${flags.retain}".to_owned() } else { retain },
        "payload": text("parameters.payload", "parameters.payload").unwrap_or_else(|| "${.}".to_owned()),
    })
}

const COMPRESSIONS: [(&str, &str); 5] = [
    ("no_compression", "none"),
    ("snappy", "snappy"),
    ("gzip", "gzip"),
    ("lz4", "lz4"),
    ("zstd", "zstd"),
];

fn kafka_action(definition: &Definition<'_>) -> Json {
    let from = &definition.from;
    // EMQX 5.3 calls the parameters `kafka`.
    let section = if from.get("parameters").exists() {
        "parameters"
    } else {
        "kafka"
    };
    let path = |key: &str| format!("{section}.{key}");
    let compression = from.at(&path("compression"));
    let compression_text = compression
        .text()
        .and_then(|text| COMPRESSIONS.iter().find(|(theirs, _)| *theirs == text));
    if compression_text.is_some() {
        definition.used(&compression, "parameters.compression");
    }
    let strategy = from.at(&path("partition_strategy"));
    definition.used(&strategy, "parameters.partition_strategy");
    let acks = from.at(&path("required_acks"));
    definition.used(&acks, "parameters.required_acks");
    let acks = match acks.text() {
        Some("leader_only") => "leader",
        Some("none") => "none",
        _ => "all",
    };
    let headers: Vec<Json> = from
        .at(&path("kafka_ext_headers"))
        .items()
        .iter()
        .map(|header| {
            definition.used(header, "parameters.headers");
            let text = |key: &str| header.get(key).text().map(str::to_owned);
            json!({"name": text("kafka_ext_header_key"), "value": text("kafka_ext_header_value")})
        })
        .collect();
    from.at(&path("kafka_headers"))
        .refuse("headers have fixed names in tidewire: list them in headers");
    from.at(&path("buffer")).changed(
        &format!("{}.delivery.buffer", definition.key),
        "the buffer is on the disk",
    );
    json!({
        "kafka_topic": definition.text(&path("topic"), "parameters.kafka_topic"),
        "key": definition.text(&path("message.key"), "parameters.key"),
        "value": definition.text(&path("message.value"), "parameters.value"),
        "timestamp": definition.text(&path("message.timestamp"), "parameters.timestamp"),
        "headers": headers,
        "partition_strategy": match strategy.text() {
            Some("key_dispatch") => "key_hash",
            _ => "random",
        },
        "required_acks": acks,
        "idempotence": acks == "all",
        "compression": compression_text.map(|(_, ours)| *ours),
        "linger_ms": definition.duration_ms(&path("max_linger_time"), "parameters.linger_ms"),
        "batch_bytes_max": definition.bytes(&path("max_batch_bytes"), "parameters.batch_bytes_max"),
    })
}

fn delivery(definition: &Definition<'_>, kind: &str) -> Json {
    let mode = definition.from.at("resource_opts.query_mode");
    let mode = mode
        .text()
        .filter(|mode| matches!(*mode, "sync" | "async"))
        .inspect(|_| {
            definition.used(&mode, "delivery.query_mode");
        });
    let records = definition
        .from
        .at("resource_opts.batch_size")
        .number()
        .filter(|_| kind != "kafka");
    if records.is_some() {
        definition.used(
            &definition.from.at("resource_opts.batch_size"),
            "delivery.batch.records_max",
        );
    }
    let ttl = definition
        .duration_ms("resource_opts.request_ttl", "delivery.request_ttl_ms")
        .filter(|ttl| *ttl > 0);
    let check = definition.duration_ms(
        "resource_opts.health_check_interval",
        "delivery.health_check_interval_ms",
    );
    let max_bytes = definition.bytes("resource_opts.max_buffer_bytes", "delivery.buffer.max_bytes");
    json!({
        "query_mode": mode,
        "request_ttl_ms": ttl,
        "health_check_interval_ms": check,
        "batch": {"records_max": records},
        "buffer": {"max_bytes": max_bytes},
    })
}
