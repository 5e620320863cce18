//! Tests the configuration: layers are the input; values, origins and error messages are the result.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidewire::config::show::{ShowOptions, show};
use tidewire::config::{self, ConfigSources, LoadedConfig, ValueOrigin, reference};

/// A well-formed hash that matches no password.
const HASH: &str = "$argon2id$v=19$m=19456,t=2,p=1$MDEyMzQ1Njc4OWFiY2RlZg$MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY";

/// A directory for one test, removed when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("tidewire-config-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Sources that ignore the configuration and environment of the machine.
    fn sources(&self, file: Option<PathBuf>) -> ConfigSources {
        let environment = vec![("STATE_DIRECTORY".into(), self.0.join("data").display().to_string())];
        ConfigSources {
            file,
            search: vec![],
            environment,
            set: vec![],
            runtime: None,
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn complaints(sources: &ConfigSources, directory: &Path) -> Vec<String> {
    let prefix = format!("{}/", directory.display());
    let diagnostics = config::load(sources).err().unwrap_or_default();
    diagnostics
        .iter()
        .map(|diagnostic| diagnostic.to_string().replace(&prefix, ""))
        .collect()
}

fn value<'a>(loaded: &'a LoadedConfig, key: &str) -> (String, &'a ValueOrigin) {
    let found = loaded
        .effective
        .iter()
        .find(|value| value.key.to_string() == key)
        .expect(key);
    (found.value.to_string(), &found.origin)
}

#[test]
fn empty_configuration_is_valid() {
    let scratch = Scratch::new("nothing");
    let loaded = config::load(&scratch.sources(None)).unwrap();
    let listeners: Vec<String> = loaded
        .config
        .listeners
        .iter()
        .map(|listener| format!("{} {}", listener.label(), listener.options.bind))
        .collect();
    assert_eq!(listeners, ["tcp.default 0.0.0.0:1883", "ws.default 0.0.0.0:8083"]);
    assert_eq!(loaded.config.data_dir, scratch.0.join("data"));
    assert_eq!(loaded.config.api.bind.to_string(), "127.0.0.1:18083");
    assert_eq!(
        show(&loaded.effective, ShowOptions::default()),
        "# all options have their defaults; --all shows them\n"
    );
}

#[test]
fn each_layer_overrides_the_previous_one() {
    let scratch = Scratch::new("layers");
    let file = scratch.write(
        "tidewire.toml",
        "[mqtt]\nmax_inflight = 1\nmax_queued_messages = 1\nmax_qos = 1\nqueue_qos0 = true\n\nreceive_maximum = 7\n",
    );
    let fragment = scratch.write("conf.d/10.toml", "mqtt.max_queued_messages = 2");
    let runtime = scratch.write("data/runtime.toml", "\n[mqtt]\nmax_qos = 0\nmax_inflight = 3\n");
    let mut sources = scratch.sources(Some(file.clone()));
    sources
        .environment
        .push(("TIDEWIRE__MQTT__MAX_INFLIGHT".into(), "4".into()));
    sources
        .environment
        .push(("TIDEWIRE__MQTT__QUEUE_QOS0".into(), "false".into()));
    sources.set.push("mqtt.queue_qos0=true".into());

    let loaded = config::load(&sources).unwrap();
    let variable = "TIDEWIRE__MQTT__MAX_INFLIGHT".to_string();
    for (key, expected, origin) in [
        ("mqtt.receive_maximum", "7", ValueOrigin::File { path: file, line: 7 }),
        (
            "mqtt.max_queued_messages",
            "2",
            ValueOrigin::File {
                path: fragment,
                line: 1,
            },
        ),
        ("mqtt.max_qos", "0", ValueOrigin::Runtime { path: runtime, line: 3 }),
        ("mqtt.max_inflight", "4", ValueOrigin::Environment { variable }),
        ("mqtt.queue_qos0", "true", ValueOrigin::Flag),
        ("mqtt.max_topic_levels", "128", ValueOrigin::Default),
    ] {
        assert_eq!(value(&loaded, key), (expected.to_string(), &origin), "{key}");
    }
    assert_eq!(loaded.files.len(), 3);
}

/// Values from files, the environment and options override the defaults of the profile.
#[test]
fn thingsboard_profile_changes_defaults() {
    let scratch = Scratch::new("profile");
    let mut sources = scratch.sources(None);
    let loaded = config::load(&sources).unwrap();
    let is = |loaded: &LoadedConfig| (loaded.config.platform.enabled, value(loaded, "platform.bind").0);
    assert_eq!(is(&loaded), (false, "\"\"".into()));

    let variable = ("TIDEWIRE__NODE__PROFILE".to_owned(), "thingsboard".to_owned());
    sources.environment.push(variable);
    let loaded = config::load(&sources).unwrap();
    assert_eq!(is(&loaded), (true, "\"0.0.0.0:8080\"".into()));
    assert!(!loaded.config.platform.demo);
    assert_eq!(loaded.config.api.bind.to_string(), "127.0.0.1:18083");
    let options = ShowOptions {
        all: false,
        origin: true,
    };
    let shown = show(&loaded.effective, options);
    let expected =
        "[platform]\nenabled = true  # profile thingsboard\nbind = \"0.0.0.0:8080\"  # profile thingsboard\n";
    assert!(shown.ends_with(expected), "{shown}");

    sources.file = Some(scratch.write("tidewire.toml", "[platform]\nbind = \"127.0.0.1:9090\"\n"));
    scratch.write("data/runtime.toml", "[platform]\nenabled = false\n");
    let loaded = config::load(&sources).unwrap();
    assert_eq!(is(&loaded), (false, "\"127.0.0.1:9090\"".into()));
    sources.set.push("node.profile=tidewire".into());
    let loaded = config::load(&sources).unwrap();
    assert_eq!(value(&loaded, "platform.enabled").0, "false");

    sources.set.push("node.profile=things".into());
    let expected = "--set: node.profile: found \"things\", expected \"tidewire\" or \"thingsboard\"";
    assert_eq!(complaints(&sources, &scratch.0), [expected]);
}

#[test]
fn all_errors_are_reported_with_their_position() {
    let scratch = Scratch::new("errors");
    let file = scratch.write(
        "tidewire.toml",
        r#"
[mqtt]
max_packet_sise = "1MiB"
max_packet_size = "1GiB"
max_qos = 3
max_inflight = "20"
default_session_expiry = 7200
queue_drop = "old"
[durability]
commit_interval = "1m"

[listeners.tcp.lan]
max_connections = 10
[listeners.tls.default]
key_file = "/nonexistent/key.pem"
[listeners.ws.default]
path = "mqtt"
proxy_protocol = "on"
[listeners.tcp.second]
bind = 1883
[access]
password_file = "/nonexistent/passwd"
users = "bob"
"#,
    );
    let mut sources = scratch.sources(Some(file));
    sources
        .environment
        .push(("TIDEWIRE__MQTT__RETAIN".into(), "yes".into()));
    sources
        .environment
        .push(("TIDEWIRE__LIMITS__SHUTDOWN_GRACE".into(), "10".into()));
    sources.set = vec!["mqtt.shared_strategy=rnd".into(), "nonsense".into(), "mqtt=1".into()];
    let expected = [
        "tidewire.toml:3: mqtt.max_packet_sise: unknown key; did you mean `mqtt.max_packet_size`?",
        "tidewire.toml:23: access.users: found string \"bob\", expected a table `[access.users]`",
        "environment TIDEWIRE__MQTT__RETAIN: mqtt.retain: unknown key; `tidewire config reference` lists all keys",
        "--set: found `nonsense`, expected section.key=value",
        "--set: mqtt: is a table, expected one of its keys",
        "tidewire.toml:13: listeners.tcp.lan.bind: is missing: a listener needs an address",
        "tidewire.toml:15: listeners.tls.default.cert_file: is missing: set it, or `tls.cert_file` for all listeners",
        "tidewire.toml:17: listeners.ws.default.proxy_protocol_trusted: is empty: list the addresses that may send a PROXY protocol header",
        "tidewire.toml:17: listeners.ws.default.path: found \"mqtt\", expected a path that starts with /",
        "tidewire.toml:4: mqtt.max_packet_size: found string \"1GiB\", expected a size such as \"64KiB\" or \"1MB\", from 20B to 256MiB",
        "tidewire.toml:5: mqtt.max_qos: found integer 3, expected 0, 1 or 2",
        "tidewire.toml:7: mqtt.default_session_expiry: found integer 7200, expected a duration such as \"15s\", \"1h30m\" or \"7d\" or \"unlimited\", from 0s to 4294967294s (a unit is missing: is it \"7200s\" or \"7200ms\"?)",
        "tidewire.toml:6: mqtt.max_inflight: found string \"20\", expected an integer, from 1 to 65535",
        "tidewire.toml:8: mqtt.queue_drop: found string \"old\", expected \"oldest\" or \"newest\"",
        "tidewire.toml:10: durability.commit_interval: found string \"1m\", expected a duration such as \"15s\", \"1h30m\" or \"7d\", from 0s to 2s",
        "--set: mqtt.shared_strategy: found \"rnd\", expected \"round_robin\", \"random\", \"sticky\", \"hash_client\", \"hash_topic\" or \"least_inflight\"",
        "environment TIDEWIRE__LIMITS__SHUTDOWN_GRACE: limits.shutdown_grace: found \"10\", expected a duration such as \"15s\", \"1h30m\" or \"7d\", from 0s to 10m (a unit is missing: is it \"10s\" or \"10ms\"?)",
        "tidewire.toml:20: listeners.tcp.second.bind: 0.0.0.0:1883 is already used by `listeners.tcp.default.bind`",
        "tidewire.toml:22: access.password_file: cannot read /nonexistent/passwd: No such file or directory (os error 2)",
    ];
    let mut found = complaints(&sources, &scratch.0);
    let mut expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn listener_name_api_is_reserved() {
    let scratch = Scratch::new("api-listener");
    let file = scratch.write(
        "tidewire.toml",
        "[listeners.ws.api]\nbind = \"127.0.0.1:9001\"\n[listeners.tcp.api]\nbind = \"127.0.0.1:9002\"\n",
    );
    assert_eq!(
        complaints(&scratch.sources(Some(file)), &scratch.0),
        [
            "tidewire.toml:2: listeners.ws.api: is the name of MQTT over WebSocket on the port of the API: choose another name"
        ]
    );
}

#[test]
fn syntax_errors_name_the_line() {
    let scratch = Scratch::new("syntax");
    let file = scratch.write("tidewire.toml", "[mqtt]\nmax_qos = \n\n[log\nlevel = \"debug\"\n");
    let found = complaints(&scratch.sources(Some(file)), &scratch.0);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("tidewire.toml:2: "), "{found:?}");
    assert!(found[1].starts_with("tidewire.toml:4: "), "{found:?}");
}

#[test]
fn paths_that_the_server_cannot_use_are_reported() {
    let scratch = Scratch::new("paths");
    let file = scratch.write("a-file", "");
    let check = |text: &str| {
        let loaded = config::load(&scratch.sources(Some(scratch.write("config.toml", text)))).unwrap();
        config::paths::unusable_paths(&loaded.config)
    };
    assert_eq!(check(""), Vec::<String>::new());
    let shown = file.display();
    let problems = check(&format!(
        "node.data_dir = \"{shown}/data\"\nlog.file = \"{shown}/log\"\n"
    ));
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].starts_with("node.data_dir: ") && problems[0].ends_with("a-file is not a directory"));
    assert!(problems[1].starts_with("log.file: "), "{problems:?}");
    let directory = scratch.0.display();
    let problems = check(&format!("log.file = \"{directory}\"\n"));
    assert_eq!(problems, [format!("log.file: {directory} is a directory")]);
    assert!(!scratch.0.join("data").exists(), "the check creates nothing");
}

#[test]
fn check_warns_of_variables_that_are_ignored() {
    let scratch = Scratch::new("variables");
    let output = Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .args(["check", "--set", &format!("node.data_dir={}", scratch.0.display())])
        .env("TIDEWIRE_MQTT_MAX_QOS", "1")
        .output()
        .expect("the program starts");
    let text = String::from_utf8(output.stdout).unwrap();
    let warning = "warning   TIDEWIRE_MQTT_MAX_QOS is ignored; did you mean TIDEWIRE__MQTT__MAX_QOS?";
    assert!(output.status.success() && text.contains(warning), "{text}");
}

#[test]
fn explicit_configuration_file_must_exist() {
    let scratch = Scratch::new("missing");
    let found = complaints(&scratch.sources(Some(scratch.0.join("no.toml"))), &scratch.0);
    assert_eq!(
        found,
        ["no.toml: cannot read the file: No such file or directory (os error 2)"]
    );
}

/// One PEM file contains both the certificate and the key.
fn certificate_and_key() -> String {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    made.cert.pem() + &made.signing_key.serialize_pem()
}

#[test]
fn certificate_enables_the_encrypted_listeners() {
    let scratch = Scratch::new("tls");
    let pem = scratch.write("tls.pem", &certificate_and_key()).display().to_string();
    let mut sources = scratch.sources(None);
    sources.set = vec![
        format!("tls.cert_file={pem}"),
        format!("tls.key_file={pem}"),
        "listeners.tcp.default.enabled=false".into(),
        "listeners.wss.default.bind=[::1]:443".into(),
    ];
    let config = config::load(&sources).unwrap().config;
    let listeners: Vec<String> = config
        .listeners
        .iter()
        .map(|listener| format!("{} {}", listener.label(), listener.options.bind))
        .collect();
    assert_eq!(
        listeners,
        [
            "tls.default 0.0.0.0:8883",
            "ws.default 0.0.0.0:8083",
            "wss.default [::1]:443"
        ]
    );
}

#[test]
fn secrets_are_read_from_files_and_never_shown() {
    let scratch = Scratch::new("secrets");
    let secret = scratch.write("alice", &format!("{HASH}\n"));
    let mut sources = scratch.sources(None);
    let variable = "TIDEWIRE__ACCESS__USERS__ALICE_FILE".to_string();
    sources.environment.push((variable, secret.display().to_string()));
    sources.set.push(format!("access.users.\"bob b\"={HASH}"));
    let loaded = config::load(&sources).unwrap();
    assert_eq!(loaded.config.users["alice"].as_str(), HASH);
    assert_eq!(loaded.config.users["bob b"].as_str(), HASH);
    let text = show(
        &loaded.effective,
        ShowOptions {
            all: true,
            origin: true,
        },
    ) + &format!("{loaded:?}");
    assert!(!text.contains("MDEy"), "{text}");
    assert!(
        text.contains("alice = \"***\"  # environment TIDEWIRE__ACCESS__USERS__ALICE_FILE, pinned"),
        "{text}"
    );
}

#[test]
fn http_provider_needs_a_url_and_hides_its_headers() {
    let scratch = Scratch::new("http-provider");
    let file = scratch.write(
        "tidewire.toml",
        "[access]\nproviders = [\"http\", \"users\"]\nunknown_users = \"anonymous\"\n[access.http]\ncert_file = \"/c.pem\"\n",
    );
    let mut found = complaints(&scratch.sources(Some(file)), &scratch.0);
    found.sort();
    assert_eq!(
        found,
        [
            "tidewire.toml:3: access.unknown_users: is \"anonymous\", which would admit clients before `http` of `access.providers` is asked",
            "tidewire.toml:5: access.http.cert_file: cannot read /c.pem: No such file or directory (os error 2)",
            "tidewire.toml:5: access.http.key_file: is missing: a client certificate needs `cert_file` and `key_file`",
            "tidewire.toml:5: access.http.url: is missing: `http` of `access.providers` needs it",
        ]
    );

    let secret = scratch.write("token", "Bearer t0ken\n");
    let mut sources = scratch.sources(None);
    let variable = "TIDEWIRE__ACCESS__HTTP__HEADERS__AUTHORIZATION_FILE".to_string();
    sources.environment.push((variable, secret.display().to_string()));
    sources.set = vec![
        "access.providers=http".into(),
        "access.http.url=http://localhost".into(),
        "access.http.headers.X-Key=k3y".into(),
        "access.http.body.user=${username}".into(),
    ];
    let loaded = config::load(&sources).unwrap();
    assert_eq!(
        loaded.config.access_http.headers["authorization"].expose(),
        "Bearer t0ken"
    );
    assert_eq!(loaded.config.access_http.body["user"], "${username}");
    let text = show(&loaded.effective, ShowOptions::default()) + &format!("{loaded:?}");
    assert!(
        text.contains("X-Key = \"***\"") && text.contains("authorization = \"***\""),
        "{text}"
    );
    assert!(!text.contains("k3y") && !text.contains("t0ken"), "{text}");
}

#[test]
fn sql_sources_of_access_rules_need_their_database() {
    let scratch = Scratch::new("sql-sources");
    let file = scratch.write(
        "tidewire.toml",
        "[access]\nsources = [\"mysql\", \"sqlite\", \"mysql\"]\n",
    );
    let mut found = complaints(&scratch.sources(Some(file)), &scratch.0);
    found.sort();
    assert_eq!(
        found,
        [
            "tidewire.toml:2: access.source.mysql.database: is missing: `mysql` of `access.sources` needs it",
            "tidewire.toml:2: access.source.mysql.user: is missing: `mysql` of `access.sources` needs it",
            "tidewire.toml:2: access.source.sqlite.file: is missing: `sqlite` of `access.sources` needs it",
            "tidewire.toml:2: access.sources: contains `mysql` twice",
        ]
    );
    let file = scratch.write(
        "tidewire.toml",
        "[access]\nsources = [\"sqlite\"]\n[access.source.sqlite]\nfile = \"/missing.db\"\n",
    );
    assert_eq!(
        complaints(&scratch.sources(Some(file)), &scratch.0),
        ["tidewire.toml:4: access.source.sqlite.file: cannot read /missing.db: No such file or directory (os error 2)"]
    );
}

#[test]
#[cfg(feature = "ldap")]
fn texts_of_the_ldap_provider_are_checked() {
    let scratch = Scratch::new("ldap-provider");
    for (option, key) in [
        ("filter = \"(uid=${username}\"", "filter"),
        ("filter = \"(uid=${user})\"", "filter"),
        ("filter = \"(uid=ann)\"", "filter"),
        ("required_groups = [\"mqtt\"]", "required_groups"),
        ("user_dn = \"uid=${username},example\"", "user_dn"),
        ("client_attrs.tenant = \"department number\"", "client_attrs.tenant"),
    ] {
        let text = format!("[access]\nproviders = [\"ldap\"]\n[access.ldap]\nbase_dn = \"dc=example\"\n{option}\n");
        let file = scratch.write("tidewire.toml", &text);
        let found = complaints(&scratch.sources(Some(file)), &scratch.0);
        let expected = format!("tidewire.toml:5: access.ldap.{key}: ");
        assert!(
            found.len() == 1 && found[0].starts_with(&expected),
            "{option}: {found:?}"
        );
        // Options of a provider that is not used are not checked.
        let unused = text.replace("\"ldap\"", "\"users\"");
        let file = scratch.write("tidewire.toml", &unused);
        assert!(config::load(&scratch.sources(Some(file))).is_ok(), "{option}");
    }
}

#[test]
fn text_values_can_be_toml() {
    let scratch = Scratch::new("text");
    let mut sources = scratch.sources(None);
    sources.set = vec![
        "access.rules=[{permission = \"allow\", topics = [\"a/#\"]}]".into(),
        "listeners.tcp.default.proxy_protocol=on".into(),
        "listeners.tcp.default.proxy_protocol_trusted=10.0.0.0/8, ::1".into(),
        "node.name=\"quoted name\"".into(),
        "mqtt.shared_strategies.\"a.b\"=sticky".into(),
    ];
    let config = config::load(&sources).unwrap().config;
    assert_eq!(config.access.rules.0[0].topics, ["a/#"]);
    assert_eq!(config.listeners[0].options.proxy_protocol_trusted.len(), 2);
    assert_eq!(config.node.name, "quoted name");
    assert_eq!(config.shared_strategies["a.b"].word(), "sticky");
}

#[test]
fn shown_configuration_reads_back_unchanged() {
    let scratch = Scratch::new("roundtrip");
    let mut sources = scratch.sources(None);
    sources.set = vec![
        "mqtt.max_qos=1".into(),
        "mqtt.max_keep_alive=10m".into(),
        "limits.publish_rate=100/s".into(),
        "listeners.tcp.\"a b\".bind=localhost:0".into(),
    ];
    let first = config::load(&sources).unwrap();
    let text = show(
        &first.effective,
        ShowOptions {
            all: true,
            origin: true,
        },
    );
    let file = scratch.write("shown.toml", &text);
    let second = config::load(&scratch.sources(Some(file))).unwrap();
    assert_eq!(first.config, second.config);
}

#[test]
fn the_example_file_is_valid_when_uncommented() {
    let scratch = Scratch::new("example");
    let uncommented: String = reference::example()
        .lines()
        .filter_map(|line| line.strip_prefix('#').filter(|line| !line.starts_with(' ')))
        .map(|line| format!("{line}\n"))
        .collect();
    let file = scratch.write("example.toml", &uncommented.replace("$argon2id$...", HASH));
    let mut sources = scratch.sources(Some(file));
    let pem = certificate_and_key();
    sources.set = ["cert", "key"]
        .map(|name| format!("tls.{name}_file={}", scratch.write(name, &pem).display()))
        .into();
    let loaded = config::load(&sources);
    let found: Vec<String> = loaded
        .err()
        .unwrap_or_default()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn example_file_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let stored = fs::read_to_string(root.join("tidewire.example.toml")).unwrap_or_default();
    assert!(
        stored == reference::example(),
        "tidewire.example.toml is not what the definitions say: run `make generate`"
    );
}
