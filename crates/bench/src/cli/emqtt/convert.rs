//! Flags of emqtt-bench as a scenario.

use std::fs;

use clap::ArgMatches;

use crate::cli::Refusal;
use crate::cli::connection::{hosts, transport};
use crate::load::random_bound;
use crate::orchestrator::FOREVER_S;
use crate::scenario::diagnostic::lines;
use crate::scenario::document::Document;
use crate::scenario::{Group, Payload, Publish, Scenario, Subscribe};
use crate::target::{Target, Tls};

/// A template beyond this size is a mistake.
const TEMPLATE_BYTES_MAX: u64 = 1024 * 1024;
/// emqtt-bench's 0 for no limit; there are no more packet identifiers [MQTT-2.2.1-2].
const INFLIGHT_MAX: u32 = u16::MAX as u32;
/// Verbs measure from the first message on and say what was lost of the last ones after so long.
const DRAIN_S: f64 = 5.0;

#[derive(Debug)]
pub struct Converted {
    pub scenario: Scenario,
    pub target: Target,
    pub start_line: String,
    /// What is accepted and means something else here, or nothing.
    pub notes: Vec<String>,
}

pub fn convert(verb: &str, matches: &ArgMatches) -> Result<Converted, Refusal> {
    let flags = Flags { verb, matches };
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
        .map_err(|wrong| Refusal::usage(lines(&wrong)))?;
    let interval = if connect_rate > 0.0 { 1000.0 / connect_rate } else { 0.0 };
    Ok(Converted {
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

struct Flags<'a> {
    verb: &'a str,
    matches: &'a ArgMatches,
}

impl Flags<'_> {
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

    /// What would run another test than the one that was asked for.
    fn refuse(&self) -> Result<(), Refusal> {
        let usage = |message: &str| Err(Refusal::usage(message));
        if self.text("quic").is_some_and(|quic| quic != "false") {
            return usage("--quic: there is no QUIC transport here");
        }
        if self.text("topics-payload").is_some() {
            return usage(
                "--topics-payload: a client has one topic here; write a scenario file with a group for each (`bench show p2p` prints one)",
            );
        }
        if self.text("qoe") == Some("dump") {
            return usage("--qoe dump: there is no such log here; --json writes all that is measured");
        }
        if let Some(version @ ("tlsv1" | "tlsv1.1")) = self.text("ssl-version") {
            return Err(Refusal::usage(format!(
                "--ssl-version {version}: only TLS 1.2 and 1.3 are supported"
            )));
        }
        if self.verb == "pub" && self.text("topic").is_none() {
            return usage("-t TOPIC is needed");
        }
        let headers = self.text("payload-hdrs").unwrap_or_default();
        match headers
            .split(',')
            .find(|header| !matches!(*header, "" | "cnt64" | "ts"))
        {
            Some(header) => Err(Refusal::usage(format!(
                "--payload-hdrs {header}: there are cnt64 and ts"
            ))),
            None => Ok(()),
        }
    }

    fn target(&self) -> Result<Target, Refusal> {
        let addresses = self.text("ifaddr").unwrap_or_default();
        let source_addresses = addresses
            .split(',')
            .filter(|address| !address.is_empty())
            .map(|address| {
                let parsed = address.trim().parse();
                parsed.map_err(|_| Refusal::usage(format!("--ifaddr {address}: no IP address")))
            });
        let port = self.number("port");
        let file = |name| self.text(name).map(Into::into);
        Ok(Target {
            hosts: hosts(self.text("host").unwrap_or_default())?,
            port: match u16::try_from(port) {
                Ok(port @ 1..) => port,
                _ => return Err(Refusal::usage(format!("--port {port}: ports go from 1 to 65535"))),
            },
            transport: transport(self.is_tls(), self.is_set("ws")),
            tls: Tls {
                ca_file: file("cacertfile"),
                cert_file: file("certfile"),
                key_file: file("keyfile"),
                // emqtt-bench verifies nobody, whatever it is given.
                is_insecure: true,
                resumes: false,
            },
            source_addresses: source_addresses.collect::<Result<_, _>>()?,
            ..Target::default()
        })
    }

    fn connect_rate(&self) -> f64 {
        match (self.number("connrate"), self.number("interval")) {
            (0, 0) => 0.0,
            (0, interval_ms) => 1000.0 / f64::from(interval_ms),
            (rate, _) => f64::from(rate),
        }
    }

    fn duration_s(&self) -> Result<f64, Refusal> {
        match self.matches.get_one::<f64>("duration") {
            None => Ok(FOREVER_S),
            Some(seconds) if *seconds > 0.0 && *seconds < FOREVER_S => Ok(*seconds),
            Some(seconds) => Err(Refusal::usage(format!(
                "--duration {seconds}: expected seconds above 0"
            ))),
        }
    }

    fn groups(&self) -> Result<Vec<Group>, Refusal> {
        let base = self.group()?;
        match self.verb {
            "pub" => self.publishers(base),
            "sub" => {
                let filters = self.matches.get_many::<String>("topic").into_iter().flatten();
                let qos = self.qos();
                let subscribe = filters.map(|filter| {
                    Ok(Subscribe {
                        filter: filter_pattern(filter)?,
                        qos,
                    })
                });
                Ok(vec![Group {
                    subscribe: subscribe.collect::<Result<_, _>>()?,
                    ..base
                }])
            }
            _ => Ok(vec![base]),
        }
    }

    fn qos(&self) -> u8 {
        // What is above 2 is refused with the rest of the scenario.
        u8::try_from(self.number("qos")).unwrap_or(u8::MAX)
    }

    fn group(&self) -> Result<Group, Refusal> {
        let version = self.number("version");
        // The first client's number is one more than --startnumber.
        let start_number = self.number("startnumber").saturating_add(1);
        Ok(Group {
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
                .map_err(|_| Refusal::usage("--keepalive: at most 65535 seconds"))?,
            reconnects: self.number("reconnect") > 0,
            ..Group::default()
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

    /// `--limit` is for all clients together: what does not divide goes to the first ones, as a group of their own.
    fn publishers(&self, base: Group) -> Result<Vec<Group>, Refusal> {
        let publish = self.publish()?;
        let (limit, clients) = (self.number("limit"), base.clients);
        if limit == 0 || clients == 0 {
            return Ok(vec![Group {
                publish: Some(publish),
                ..base
            }]);
        }
        let (each, more) = (limit / clients, limit % clients);
        let part = |name: &str, first: u32, clients: u32, messages: u32| Group {
            name: name.into(),
            clients,
            start_number: base.start_number.saturating_add(first),
            publish: (messages > 0).then(|| Publish {
                messages: u64::from(messages),
                ..publish.clone()
            }),
            ..base.clone()
        };
        let parts = [
            part("pub", 0, more, each + 1),
            part("pub-rest", more, clients - more, each),
        ];
        let mut parts: Vec<Group> = parts.into_iter().filter(|part| part.clients > 0).collect();
        if let [only] = &mut *parts {
            only.name = "pub".into();
        }
        Ok(parts)
    }

    fn publish(&self) -> Result<Publish, Refusal> {
        let interval_ms = self.number("interval_of_msg");
        let qos = self.qos();
        let inflight = match self.number("inflight") {
            0 => INFLIGHT_MAX,
            inflight => inflight.min(INFLIGHT_MAX),
        };
        Ok(Publish {
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

    fn payload(&self) -> Result<Payload, Refusal> {
        let Some(message) = self.text("message") else {
            return Ok(Payload::Bytes(self.number("size")));
        };
        let Some(path) = message.strip_prefix("template://") else {
            return literal(message).map(Payload::Template);
        };
        let fail = |error: &dyn std::fmt::Display| Refusal::usage(format!("--message {message}: {error}"));
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

    /// One line for everything that was asked for and is not done as emqtt-bench does it.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |is_asked: bool, text: &str| {
            if is_asked {
                notes.push(format!("note: {text}"));
            }
        };
        let is_given = |name: &str| self.text(name).is_some_and(|text| !text.is_empty());
        note(self.is_set("dist"), "--dist has no meaning here");
        note(self.is_set("lowmem"), "--lowmem has no meaning here");
        note(
            self.number("force-major-gc-interval") > 0,
            "--force-major-gc-interval has no meaning here",
        );
        note(is_given("load-qst"), "--load-qst is for QUIC, which is not used");
        note(
            is_given("cacertfile"),
            "--cacertfile: as with emqtt-bench, the broker's certificate is not verified",
        );
        for name in ["ssl-version", "ciphers", "signature-algs", "keyex-algs"] {
            note(
                is_given(name),
                &format!("--{name}: TLS 1.2 or 1.3 with rustls's own choice of algorithms is used"),
            );
        }
        note(
            self.number("num-retry-connect") > 0,
            "--num-retry-connect: a connect is always tried up to six times",
        );
        note(
            is_given("payload-hdrs"),
            "--payload-hdrs: payloads carry sender, sequence number and time in a form of their own; those of emqtt-bench are counted, not verified",
        );
        note(
            self.text("qoe") == Some("true"),
            "--qoe: the table at the end has connect, handshake and subscribe latencies anyway",
        );
        note(is_given("qoelog"), "--qoelog is not written; --json has all latencies");
        note(
            self.is_set("prometheus") || is_given("restapi"),
            "--prometheus, --restapi: there is no /metrics here; --json has all that is measured",
        );
        note(
            self.number("max-random-wait") > 0 || self.number("min-random-wait") > 0,
            "--max-random-wait, --min-random-wait: first messages are spread evenly over the interval",
        );
        note(
            self.number("retry-interval") > 0,
            "--retry-interval: nothing is sent again while a connection stands, as MQTT 5 wants it",
        );
        note(
            self.is_set("keep-connected"),
            "--keep-connected: clients leave when the result has been made",
        );
        note(
            self.number("version") != 5 && self.number("session-expiry") > 0,
            "--session-expiry is MQTT 5 only",
        );
        notes
    }
}

/// The variables of emqtt-bench that are in `known` become ours, `%rand_N` too; any other percent sign is meant as such.
fn pattern(text: &str, known: &str) -> Result<String, Refusal> {
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

fn filter_pattern(filter: &str) -> Result<String, Refusal> {
    if filter.contains("%rand_") {
        return Err(Refusal::usage(format!(
            "--topic {filter}: as with emqtt-bench, %rand_N is for topics to publish to; + in its place hears all of them"
        )));
    }
    pattern(filter, "icu")
}

fn random(bound: &str) -> Result<String, Refusal> {
    match random_bound(&format!("rand:{bound}")) {
        Some(bound) => Ok(format!("%{{rand:{bound}}}")),
        None => Err(Refusal::usage(format!(
            "%rand_{bound}: expected %rand_N with a number N from 1"
        ))),
    }
}

/// emqtt-bench knows variables only where they are the whole user name.
fn user_name(text: &str) -> Result<String, Refusal> {
    match text.strip_prefix("%rand_") {
        Some(bound) => random(bound),
        None if text == "%i" => Ok(text.into()),
        None => Ok(text.replace('%', "%%")),
    }
}

fn literal(text: &str) -> Result<String, Refusal> {
    match text.contains("${") {
        true => Err(Refusal::usage(
            "--message: a payload with `${` would be read as a template of ours",
        )),
        false => Ok(text.into()),
    }
}
