//! The flags that `pub` and `sub` share, and what becomes of them.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use mqtt::{ProtocolVersion, QoS};

use super::failure::ClientFailure;
use super::properties::PropertySet;
use super::target::{ConnectTarget, UrlExtras, UrlScheme};
use connectors::Secret;

/// Everything that a connection needs.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    pub target: ConnectTarget,
    pub bind_address: Option<IpAddr>,
    pub tls: ClientTlsOptions,
    pub version: ProtocolVersion,
    /// Empty: the server chooses.
    pub client_id: String,
    pub clean_start: bool,
    pub keep_alive: u16,
    pub session_expiry: Option<u32>,
    pub user_name: Option<String>,
    pub password: Option<Secret>,
    pub will: Option<WillOptions>,
    pub properties: PropertySet,
    pub is_debug: bool,
    pub is_quiet: bool,
}

#[derive(Clone, Debug, Default)]
pub struct ClientTlsOptions {
    pub ca_file: Option<PathBuf>,
    pub ca_path: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub is_insecure: bool,
    pub alpn: Option<String>,
    pub version: Option<String>,
}

#[derive(Clone, Debug)]
pub struct WillOptions {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
}

/// An option with a value that is taken as it stands, a dash in front or not.
pub fn valued(name: &'static str, short: Option<char>, value: &'static str, help: &'static str) -> Arg {
    let arg = Arg::new(name)
        .long(name)
        .value_name(value)
        .help(help)
        .allow_hyphen_values(true);
    match short {
        Some(short) => arg.short(short),
        None => arg,
    }
}

pub fn flag(name: &'static str, short: Option<char>, help: &'static str) -> Arg {
    let arg = Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    match short {
        Some(short) => arg.short(short),
        None => arg,
    }
}

pub fn qos_parser() -> impl TypedValueParser<Value = QoS> {
    PossibleValuesParser::new(["0", "1", "2"]).map(|text| match text.as_str() {
        "0" => QoS::AtMostOnce,
        "1" => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    })
}

pub fn qos(matches: &ArgMatches, name: &str) -> QoS {
    matches.get_one(name).copied().unwrap_or(QoS::AtMostOnce)
}

/// A subcommand with the shared flags. `-h` is the host, as in Mosquitto's tools; help is `--help`.
pub fn shared(command: Command) -> Command {
    command
        .disable_help_flag(true)
        .disable_version_flag(true)
        .arg(Arg::new("help").long("help").help("Print help").action(ArgAction::Help))
        .args(connection_args())
        .args(session_args())
        .args(tls_args())
}

fn connection_args() -> Vec<Arg> {
    vec![
        valued("host", Some('h'), "HOST", "Server [default: localhost]").conflicts_with_all(["url", "unix"]),
        valued(
            "port",
            Some('p'),
            "PORT",
            "Port; overrides the port of the URL [default: 1883, with TLS 8883, ws 8083, wss 8084, quic 14567]",
        )
        .value_parser(value_parser!(u16))
        .conflicts_with("unix"),
        valued(
            "url",
            Some('L'),
            "URL",
            "mqtt[s]:// or quic://[user[:password]@]host[:port][/topic], or ws[s]://host[:port][/path]",
        ),
        valued("unix", None, "PATH", "Connect through a Unix domain socket").value_parser(value_parser!(PathBuf)),
        valued("bind", Some('A'), "ADDRESS", "Local address to connect from").value_parser(value_parser!(IpAddr)),
        flag(
            "nodelay",
            None,
            "Accepted for compatibility: packets are always sent at once",
        ),
        flag("debug", Some('d'), "Print sent and received packets on standard error"),
        flag("quiet", None, "No error messages"),
    ]
}

fn session_args() -> Vec<Arg> {
    vec![
        valued("id", Some('i'), "ID", "Client id [default: the server chooses]"),
        valued("id-prefix", Some('I'), "PREFIX", "Client id: this and the process id").conflicts_with("id"),
        valued("username", Some('u'), "NAME", "User name"),
        valued("pw", Some('P'), "PASSWORD", "Password"),
        valued(
            "protocol-version",
            Some('V'),
            "VERSION",
            "mqttv31, mqttv311 or mqttv5 [default: mqttv311, with -D or -x mqttv5]",
        ),
        flag(
            "disable-clean-session",
            Some('c'),
            "Keep the session (Clean Session or Clean Start 0); needs -i",
        ),
        valued("keepalive", Some('k'), "SECONDS", "Keep alive")
            .value_parser(value_parser!(u16))
            .default_value("60"),
        valued(
            "session-expiry-interval",
            Some('x'),
            "SECONDS",
            "MQTT 5: Session Expiry Interval in seconds; -1 means never",
        ),
        valued(
            "property",
            Some('D'),
            "PACKET NAME VALUE",
            "MQTT 5 property, for example -D publish content-type text/plain; can be repeated",
        )
        .num_args(3..=4)
        .allow_hyphen_values(false)
        .allow_negative_numbers(true)
        .action(ArgAction::Append),
        valued("will-topic", None, "TOPIC", "Topic of the will"),
        valued("will-payload", None, "TEXT", "Payload of the will").requires("will-topic"),
        valued("will-qos", None, "QOS", "QoS of the will")
            .value_parser(qos_parser())
            .requires("will-topic"),
        flag("will-retain", None, "Retain the will").requires("will-topic"),
    ]
}

fn tls_args() -> Vec<Arg> {
    let path = |name, help| valued(name, None, "PATH", help).value_parser(value_parser!(PathBuf));
    vec![
        path("cafile", "Trusted certificates (PEM); turns TLS on"),
        path("capath", "Directory of trusted certificates (PEM); turns TLS on"),
        path("cert", "Client certificate (PEM)").requires("key"),
        path("key", "Private key of the client certificate (PEM)").requires("cert"),
        flag("insecure", None, "Do not verify the host name in the certificate"),
        flag(
            "tls-use-os-certs",
            None,
            "Trust what the operating system trusts; turns TLS on",
        ),
        valued("tls-alpn", None, "PROTOCOL", "Protocol to ask for in the TLS handshake"),
        valued("tls-version", None, "VERSION", "tlsv1.2 or tlsv1.3 [default: both]")
            .value_parser(["tlsv1.2", "tlsv1.3"]),
    ]
}

impl ConnectOptions {
    /// Also gives the topic of the URL.
    pub fn from_matches(matches: &ArgMatches) -> Result<(ConnectOptions, Option<String>), ClientFailure> {
        let text = |name: &str| matches.get_one::<String>(name).cloned();
        let tls = tls_options(matches);
        let (target, extras) = target(matches, &tls)?;
        let properties = properties(matches)?;
        let session_expiry = session_expiry(matches)?;
        let is_persistent = matches.get_flag("disable-clean-session");
        let needs_5 = properties != PropertySet::default() || session_expiry.is_some();
        let version = version(matches, needs_5)?;
        let client_id = client_id(matches, version, is_persistent)?;
        let never = (is_persistent && version == ProtocolVersion::V5).then_some(u32::MAX);
        let options = ConnectOptions {
            target,
            bind_address: matches.get_one("bind").copied(),
            tls,
            version,
            client_id,
            clean_start: !is_persistent,
            keep_alive: *matches.get_one("keepalive").expect("it has a default"),
            session_expiry: session_expiry.or(never),
            user_name: text("username").or(extras.user_name),
            password: text("pw").or(extras.password).map(Secret::new),
            will: will(matches)?,
            properties,
            is_debug: matches.get_flag("debug"),
            is_quiet: matches.get_flag("quiet"),
        };
        // In 3.1.1 a password needs a user name [MQTT-3.1.2-22]; 5 lets it stand alone.
        if options.password.is_some() && options.user_name.is_none() && version != ProtocolVersion::V5 {
            return Err(ClientFailure::Usage(
                "a password needs a user name (-u) before MQTT 5".into(),
            ));
        }
        Ok((options, extras.topic))
    }
}

fn target(matches: &ArgMatches, tls: &ClientTlsOptions) -> Result<(ConnectTarget, UrlExtras), ClientFailure> {
    let wants_tls = tls.ca_file.is_some() || tls.ca_path.is_some() || matches.get_flag("tls-use-os-certs");
    let port = matches.get_one::<u16>("port").copied();
    if let Some(url) = matches.get_one::<String>("url") {
        let (mut target, extras) = ConnectTarget::parse_url(url).map_err(ClientFailure::Usage)?;
        target.port = port.unwrap_or(target.port);
        return Ok((target, extras));
    }
    // Mosquitto's tools use TLS on port 8883 only with a CA. A plain connection to it never works, so here the port is
    // enough.
    let scheme = if wants_tls || port == Some(8883) {
        UrlScheme::Mqtts
    } else {
        UrlScheme::Mqtt
    };
    let target = ConnectTarget {
        scheme,
        host: matches
            .get_one::<String>("host")
            .cloned()
            .unwrap_or_else(|| "localhost".into()),
        port: port.unwrap_or(scheme.default_port()),
        path: "/mqtt".into(),
        unix: matches.get_one("unix").cloned(),
    };
    Ok((target, UrlExtras::default()))
}

fn tls_options(matches: &ArgMatches) -> ClientTlsOptions {
    ClientTlsOptions {
        ca_file: matches.get_one("cafile").cloned(),
        ca_path: matches.get_one("capath").cloned(),
        cert_file: matches.get_one("cert").cloned(),
        key_file: matches.get_one("key").cloned(),
        is_insecure: matches.get_flag("insecure"),
        alpn: matches.get_one("tls-alpn").cloned(),
        version: matches.get_one("tls-version").cloned(),
    }
}

fn properties(matches: &ArgMatches) -> Result<PropertySet, ClientFailure> {
    let mut set = PropertySet::default();
    for words in matches.get_occurrences::<String>("property").into_iter().flatten() {
        set.add(&words.cloned().collect::<Vec<_>>())
            .map_err(ClientFailure::Usage)?;
    }
    Ok(set)
}

fn version(matches: &ArgMatches, needs_5: bool) -> Result<ProtocolVersion, ClientFailure> {
    let Some(text) = matches.get_one::<String>("protocol-version") else {
        return Ok(if needs_5 {
            ProtocolVersion::V5
        } else {
            ProtocolVersion::V3_1_1
        });
    };
    let version = match text.trim_start_matches("mqttv") {
        "31" | "3.1" => ProtocolVersion::V3_1,
        "311" | "3.1.1" => ProtocolVersion::V3_1_1,
        "5" | "5.0" => ProtocolVersion::V5,
        _ => {
            return Err(ClientFailure::Usage(format!(
                "-V: `{text}` is not a protocol version; use mqttv31, mqttv311 or mqttv5"
            )));
        }
    };
    match needs_5 && version != ProtocolVersion::V5 {
        true => Err(ClientFailure::Usage("-D and -x need MQTT 5 (-V mqttv5)".into())),
        false => Ok(version),
    }
}

fn client_id(matches: &ArgMatches, version: ProtocolVersion, is_persistent: bool) -> Result<String, ClientFailure> {
    if let Some(id) = matches.get_one::<String>("id") {
        return Ok(id.clone());
    }
    if let Some(prefix) = matches.get_one::<String>("id-prefix") {
        return Ok(format!("{prefix}{}", std::process::id()));
    }
    if is_persistent {
        return Err(ClientFailure::Usage("-c needs a client id (-i)".into()));
    }
    // MQTT 3.1 requires a client id of 1 to 23 characters.
    Ok(if version == ProtocolVersion::V3_1 {
        format!("tidewire-{}", std::process::id())
    } else {
        String::new()
    })
}

fn session_expiry(matches: &ArgMatches) -> Result<Option<u32>, ClientFailure> {
    match matches.get_one::<String>("session-expiry-interval").map(String::as_str) {
        None => Ok(None),
        Some("-1" | "∞") => Ok(Some(u32::MAX)),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|_| ClientFailure::Usage(format!("-x: `{text}` is not a whole number of seconds"))),
    }
}

fn will(matches: &ArgMatches) -> Result<Option<WillOptions>, ClientFailure> {
    let Some(topic) = matches.get_one::<String>("will-topic") else {
        return Ok(None);
    };
    if mqtt::validate_topic_name(topic).is_err() {
        return Err(ClientFailure::Usage(format!(
            "--will-topic: `{topic}` is not a topic name; it must not be empty or contain + or #"
        )));
    }
    let payload = matches
        .get_one::<String>("will-payload")
        .map(|text| text.clone().into_bytes());
    Ok(Some(WillOptions {
        topic: topic.clone(),
        payload: payload.unwrap_or_default(),
        qos: qos(matches, "will-qos"),
        retain: matches.get_flag("will-retain"),
    }))
}
