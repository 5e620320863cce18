//! The conversion of emqtt-bench's flags to a scenario.

use std::fs;

use clap::ArgMatches;

use crate::cli::CommandFailure;
use crate::cli::connection::{hosts, transport};
use crate::load::random_bound;
use crate::orchestrator::FOREVER_S;
use crate::scenario::diagnostic::lines;
use crate::scenario::document::Document;
use crate::scenario::{ClientGroup, Payload, PublishSpec, Scenario, SubscribeSpec};
use crate::target::{LoadTarget, TargetTls, TargetTransport};

/// Largest template file.
const TEMPLATE_BYTES_MAX: u64 = 1024 * 1024;
/// The value for emqtt-bench's 0, no limit: there are no more packet identifiers than this [MQTT-2.2.1-2].
const INFLIGHT_MAX: u32 = u16::MAX as u32;
/// Drain time of these commands.
const DRAIN_S: f64 = 5.0;

#[derive(Debug)]
pub struct ConvertedCommand {
    pub scenario: Scenario,
    pub target: LoadTarget,
    pub start_line: String,
    /// Notes on flags that have another meaning here, or none.
    pub notes: Vec<String>,
}

pub fn convert(verb: &str, matches: &ArgMatches) -> Result<ConvertedCommand, CommandFailure> {
    let flags = VerbArguments { verb, matches };
    flags.refuse()?;
    let target = flags.target()?;
    let connect_rate = flags.connect_rate();
    let scenario = Scenario {
        name: verb.into(),
        about: format!("emqtt-bench {verb}"),
        duration_s: flags.duration_s()?,
        warm_up_s: 0.0,
        drain_s: DRAIN_S,
        connect_rate,
        group: flags.groups()?,
        ..Scenario::default()
    };
    let scenario = Document::of_scenario(&scenario)
        .resolve()
        .map_err(|wrong| CommandFailure::usage(lines(&wrong)))?;
    let interval = if connect_rate > 0.0 { 1000.0 / connect_rate } else { 0.0 };
    Ok(ConvertedCommand {
        scenario,
        start_line: format!(
            "Start with {} workers, addrs pool size: {} and req interval: {interval:.0} ms\n",
            flags.number("count"),
            target.source_addresses.len()
        ),
        target,
        notes: flags.notes(),
    })
}

struct VerbArguments<'a> {
    verb: &'a str,
    matches: &'a ArgMatches,
}

impl VerbArguments<'_> {
    fn number(&self, name: &str) -> u32 {
        self.matches
            .try_get_one(name)
            .ok()
            .flatten()
            .copied()
            .unwrap_or_default()
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.matches
            .try_get_one::<String>(name)
            .ok()
            .flatten()
            .map(String::as_str)
    }

    fn is_set(&self, name: &str) -> bool {
        self.matches.try_get_one(name).ok().flatten().copied().unwrap_or(false)
    }

    fn is_tls(&self) -> bool {
        self.is_set("ssl") || self.text("ssl-version").is_some()
    }

    /// Fails for flags that cannot be ignored, because the run would be another test than the one that was asked for.
    fn refuse(&self) -> Result<(), CommandFailure> {
        let usage = |message: &str| Err(CommandFailure::usage(message));
        if self.text("quic").is_some_and(|quic| !matches!(quic, "true" | "false")) {
            return usage("--quic FILE: not supported; use --quic true");
        }
        if self.text("topics-payload").is_some() {
            return usage(
                "--topics-payload: not supported, because a client has one topic; write a scenario file with a group for each (`bench show p2p` prints one)",
            );
        }
        if self.text("qoe") == Some("dump") {
            return usage("--qoe dump: not supported; --json writes all measurements");
        }
        if let Some(version @ ("tlsv1" | "tlsv1.1")) = self.text("ssl-version") {
            return Err(CommandFailure::usage(format!(
                "--ssl-version {version}: only TLS 1.2 and 1.3 are supported"
            )));
        }
        if self.verb == "pub" && self.text("topic").is_none() {
            return usage("-t TOPIC is required");
        }
        let headers = self.text("payload-hdrs").unwrap_or_default();
        match headers
            .split(',')
            .find(|header| !matches!(*header, "" | "cnt64" | "ts"))
        {
            Some(header) => Err(CommandFailure::usage(format!(
                "--payload-hdrs {header}: expected cnt64 or ts"
            ))),
            None => Ok(()),
        }
    }

    fn target(&self) -> Result<LoadTarget, CommandFailure> {
        let addresses = self.text("ifaddr").unwrap_or_default();
        let source_addresses = addresses
            .split(',')
            .filter(|address| !address.is_empty())
            .map(|address| {
                let parsed = address.trim().parse();
                parsed.map_err(|_| CommandFailure::usage(format!("--ifaddr {address}: no IP address")))
            });
        let port = self.number("port");
        let file = |name| self.text(name).map(Into::into);
        Ok(LoadTarget {
            hosts: hosts(self.text("host").unwrap_or_default())?,
            port: match u16::try_from(port) {
                Ok(port @ 1..) => port,
                _ => {
                    return Err(CommandFailure::usage(format!(
                        "--port {port}: expected a port from 1 to 65535"
                    )));
                }
            },
            transport: match self.text("quic") {
                Some("true") => TargetTransport::Quic,
                _ => transport(self.is_tls(), self.is_set("ws")),
            },
            tls: TargetTls {
                ca_file: file("cacertfile"),
                cert_file: file("certfile"),
                key_file: file("keyfile"),
                // emqtt-bench never verifies the certificate of the broker.
                is_insecure: true,
                resumes: false,
            },
            source_addresses: source_addresses.collect::<Result<_, _>>()?,
            ..LoadTarget::default()
        })
    }

    fn connect_rate(&self) -> f64 {
        match (self.number("connrate"), self.number("interval")) {
            (0, 0) => 0.0,
            (0, interval_ms) => 1000.0 / f64::from(interval_ms),
            (rate, _) => f64::from(rate),
        }
    }

    fn duration_s(&self) -> Result<f64, CommandFailure> {
        match self.matches.get_one::<f64>("duration") {
            None => Ok(FOREVER_S),
            Some(seconds) if *seconds > 0.0 && *seconds < FOREVER_S => Ok(*seconds),
            Some(seconds) => Err(CommandFailure::usage(format!(
                "--duration {seconds}: expected a number of seconds above 0"
            ))),
        }
    }

    fn groups(&self) -> Result<Vec<ClientGroup>, CommandFailure> {
        let base = self.group()?;
        match self.verb {
            "pub" => self.publishers(base),
            "sub" => {
                let filters = self.matches.get_many::<String>("topic").into_iter().flatten();
                let qos = self.qos();
                let subscribe = filters.map(|filter| {
                    Ok(SubscribeSpec {
                        filter: filter_pattern(filter)?,
                        qos,
                    })
                });
                Ok(vec![ClientGroup {
                    subscribe: subscribe.collect::<Result<_, _>>()?,
                    ..base
                }])
            }
            _ => Ok(vec![base]),
        }
    }

    fn qos(&self) -> u8 {
        // A value above 2 is rejected when the scenario is checked.
        u8::try_from(self.number("qos")).unwrap_or(u8::MAX)
    }

    fn group(&self) -> Result<ClientGroup, CommandFailure> {
        let version = self.number("version");
        // The number of the first client is one more than --startnumber.
        let start_number = self.number("startnumber").saturating_add(1);
        Ok(ClientGroup {
            name: self.verb.into(),
            clients: self.number("count"),
            start_number,
            client_id: self.client_id(),
            user_name: self.text("username").map(user_name).transpose()?,
            password: self.text("password").map(Into::into),
            version: u8::try_from(version).unwrap_or(u8::MAX),
            clean_start: self.is_set("clean"),
            session_expiry_s: if version == 5 { self.number("session-expiry") } else { 0 },
            keep_alive_s: u16::try_from(self.number("keepalive"))
                .map_err(|_| CommandFailure::usage("--keepalive: expected at most 65535 seconds"))?,
            reconnects: self.number("reconnect") > 0,
            ..ClientGroup::default()
        })
    }

    fn client_id(&self) -> String {
        let prefix = self.text("prefix").unwrap_or_default().replace('%', "%%");
        match (self.is_set("shortids"), prefix.is_empty()) {
            (true, _) => format!("{prefix}%i"),
            (false, false) => format!("{prefix}_bench_{}_%i", self.verb),
            (false, true) => {
                let host = rustix::system::uname().nodename().to_string_lossy().replace('%', "%%");
                let from = self.text("ifaddr").and_then(|addresses| addresses.split(',').next());
                format!("{}_bench_{}_%r_%i", from.unwrap_or(&host), self.verb)
            }
        }
    }

    /// `--limit` counts the messages of all clients together. If it is not divisible, the first clients send one more,
    /// as a group of their own.
    fn publishers(&self, base: ClientGroup) -> Result<Vec<ClientGroup>, CommandFailure> {
        let publish = self.publish()?;
        let (limit, clients) = (self.number("limit"), base.clients);
        if limit == 0 || clients == 0 {
            return Ok(vec![ClientGroup {
                publish: Some(publish),
                ..base
            }]);
        }
        let (each, more) = (limit / clients, limit % clients);
        let part = |name: &str, first: u32, clients: u32, messages: u32| ClientGroup {
            name: name.into(),
            clients,
            start_number: base.start_number.saturating_add(first),
            publish: (messages > 0).then(|| PublishSpec {
                messages: u64::from(messages),
                ..publish.clone()
            }),
            ..base.clone()
        };
        let parts = [
            part("pub", 0, more, each + 1),
            part("pub-rest", more, clients - more, each),
        ];
        let mut parts: Vec<ClientGroup> = parts.into_iter().filter(|part| part.clients > 0).collect();
        if let [only] = &mut *parts {
            only.name = "pub".into();
        }
        Ok(parts)
    }

    fn publish(&self) -> Result<PublishSpec, CommandFailure> {
        let interval_ms = self.number("interval_of_msg");
        let qos = self.qos();
        let inflight = match self.number("inflight") {
            0 => INFLIGHT_MAX,
            inflight => inflight.min(INFLIGHT_MAX),
        };
        Ok(PublishSpec {
            topic: pattern(self.text("topic").unwrap_or_default(), "icus")?,
            qos,
            retain: self.is_set("retain"),
            burst_s: 0.0,
            rate: (interval_ms > 0).then(|| 1000.0 / f64::from(interval_ms)),
            window: if qos > 0 { inflight } else { 0 },
            messages: 0,
            payload: self.payload()?,
        })
    }

    fn payload(&self) -> Result<Payload, CommandFailure> {
        let Some(message) = self.text("message") else {
            return Ok(Payload::Bytes(self.number("size")));
        };
        let Some(path) = message.strip_prefix("template://") else {
            return literal(message).map(Payload::Template);
        };
        let fail = |error: &dyn std::fmt::Display| CommandFailure::usage(format!("--message {message}: {error}"));
        let about = fs::metadata(path).map_err(|error| fail(&error))?;
        if about.len() > TEMPLATE_BYTES_MAX {
            return Err(fail(&"the template is larger than 1 MiB"));
        }
        let text = literal(&fs::read_to_string(path).map_err(|error| fail(&error))?)?;
        let text = [
            ("%TIMESTAMPNS%", "${timestamp_ms}000000"),
            ("%TIMESTAMPUS%", "${timestamp_ms}000"),
            ("%TIMESTAMPMS%", "${timestamp_ms}"),
            ("%TIMESTAMP%", "${timestamp_ms}"),
            ("%UNIQUE%", "${truth}"),
        ]
        .iter()
        .fold(text, |text, (theirs, ours)| text.replace(theirs, ours));
        let text = text.replace("%RANDOM%", &format!("${{random:{}}}", self.number("size")));
        Ok(Payload::Template(text))
    }

    /// Returns a note for every flag that works differently from emqtt-bench.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |is_asked: bool, text: &str| {
            if is_asked {
                notes.push(format!("note: {text}"));
            }
        };
        let is_given = |name: &str| self.text(name).is_some_and(|text| !text.is_empty());
        note(self.is_set("dist"), "--dist is ignored");
        note(self.is_set("lowmem"), "--lowmem is ignored");
        note(
            self.number("force-major-gc-interval") > 0,
            "--force-major-gc-interval is ignored",
        );
        note(
            is_given("load-qst"),
            "--load-qst is ignored, because QUIC is not supported",
        );
        note(
            is_given("cacertfile"),
            "--cacertfile: as with emqtt-bench, the broker's certificate is not verified",
        );
        for name in ["ssl-version", "ciphers", "signature-algs", "keyex-algs"] {
            note(
                is_given(name),
                &format!("--{name}: rustls chooses TLS 1.2 or 1.3 and the algorithms"),
            );
        }
        note(
            self.number("num-retry-connect") > 0,
            "--num-retry-connect: ignored; each client tries to connect up to six times",
        );
        note(
            is_given("payload-hdrs"),
            "--payload-hdrs: payloads have a header with sender, sequence number and time; headers of emqtt-bench are not verified",
        );
        note(
            self.text("qoe") == Some("true"),
            "--qoe is ignored; the table at the end has connect, handshake and subscribe latencies",
        );
        note(is_given("qoelog"), "--qoelog is not written; --json has all latencies");
        note(
            self.is_set("prometheus") || is_given("restapi"),
            "--prometheus, --restapi: not supported; --json has all measurements",
        );
        note(
            self.number("max-random-wait") > 0 || self.number("min-random-wait") > 0,
            "--max-random-wait, --min-random-wait: ignored; the first messages are spread evenly over the interval",
        );
        note(
            self.number("retry-interval") > 0,
            "--retry-interval: ignored; messages are sent again only after a reconnect, as MQTT 5 requires",
        );
        note(
            self.is_set("keep-connected"),
            "--keep-connected: ignored; clients disconnect at the end of the run",
        );
        note(
            self.number("version") != 5 && self.number("session-expiry") > 0,
            "--session-expiry is ignored, because it needs MQTT 5",
        );
        notes
    }
}

/// Converts the variables of emqtt-bench that are in `known`, and `%rand_N`; any other percent sign stays as it is.
fn pattern(text: &str, known: &str) -> Result<String, CommandFailure> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('%') {
        out.push_str(before);
        rest = behind;
        match behind.strip_prefix("rand_") {
            Some(number) => {
                let digits = number.find(|char: char| !char.is_ascii_digit()).unwrap_or(number.len());
                out.push_str(&random(&number[..digits])?);
                rest = &number[digits..];
            }
            None if behind.starts_with(|letter| known.contains(letter)) => out.push('%'),
            None => out.push_str("%%"),
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn filter_pattern(filter: &str) -> Result<String, CommandFailure> {
    if filter.contains("%rand_") {
        return Err(CommandFailure::usage(format!(
            "--topic {filter}: %rand_N is only for topics to publish to, as in emqtt-bench; use + in its place to subscribe to all of them"
        )));
    }
    pattern(filter, "icu")
}

fn random(bound: &str) -> Result<String, CommandFailure> {
    match random_bound(&format!("rand:{bound}")) {
        Some(bound) => Ok(format!("%{{rand:{bound}}}")),
        None => Err(CommandFailure::usage(format!(
            "%rand_{bound}: expected %rand_N with a number N from 1"
        ))),
    }
}

/// Converts a user name. emqtt-bench knows variables only as the whole user name.
fn user_name(text: &str) -> Result<String, CommandFailure> {
    match text.strip_prefix("%rand_") {
        Some(bound) => random(bound),
        None if text == "%i" => Ok(text.into()),
        None => Ok(text.replace('%', "%%")),
    }
}

fn literal(text: &str) -> Result<String, CommandFailure> {
    match text.contains("${") {
        true => Err(CommandFailure::usage(
            "--message: `${` is not supported, because it would begin a placeholder of this tool",
        )),
        false => Ok(text.into()),
    }
}
