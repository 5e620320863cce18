//! `tidewire pub`: messages out, acknowledgements in, end.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use mqtt::{Ack, Packet, PropertyContext, Publish, PublishExtras, QoS, ReasonCode, publish_size};
use mqtt_client::{InFlight, SessionEvent};

use super::args::{ConnectOptions, flag, qos, qos_parser, shared, valued};
use super::connection::{ConnectionFlow, ConnectionHandler, MqttConnection, new_session};
use super::events::ClientEventQueue;
use super::failure::ClientFailure;
use super::properties::checked;
use crate::output::print_error;

/// The longest payload that fits into a packet.
const PAYLOAD_BYTES_MAX: u64 = 268_435_455;
/// Sent before acknowledgements and signals are looked at again.
const BATCH_MESSAGES: usize = 256;

pub fn command() -> Command {
    shared(Command::new("pub").about("Publish messages, with mosquitto_pub's flags"))
        .override_usage("tidewire pub [-h HOST] -t TOPIC (-m TEXT | -f FILE | -l | -s | -n) [OPTIONS]")
        .arg(valued("topic", Some('t'), "TOPIC", "Topic to publish to"))
        .arg(valued("message", Some('m'), "TEXT", "Payload"))
        .arg(valued("file", Some('f'), "FILE", "Take the payload from a file").value_parser(value_parser!(PathBuf)))
        .arg(flag(
            "stdin-line",
            Some('l'),
            "Publish every line of standard input, without the LF at its end",
        ))
        .arg(flag("stdin-file", Some('s'), "Publish all of standard input as one message").visible_alias("stdin"))
        .arg(flag("null-message", Some('n'), "Publish an empty message"))
        .group(
            ArgGroup::new("payload")
                .args(["message", "file", "stdin-line", "stdin-file", "null-message"])
                .required(true),
        )
        .arg(valued("qos", Some('q'), "QOS", "QoS of the messages [default: 0]").value_parser(qos_parser()))
        .arg(flag("retain", Some('r'), "Retain the message"))
        .arg(
            valued(
                "max-inflight",
                Some('M'),
                "COUNT",
                "QoS 1 and 2 messages without acknowledgement at a time",
            )
            .value_parser(value_parser!(u16).range(1..))
            .default_value("20"),
        )
        .arg(repeat_arg())
        .arg(
            valued("repeat-delay", None, "SECONDS", "Wait between repetitions")
                .value_parser(seconds)
                .requires("repeat"),
        )
}

fn repeat_arg() -> Arg {
    Arg::new("repeat")
        .long("repeat")
        .value_name("COUNT")
        .help("Publish the message so many times")
        .value_parser(value_parser!(u64).range(1..))
        .action(ArgAction::Set)
        .conflicts_with("stdin-line")
}

/// Seconds with a fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "it is not a number of seconds".to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

pub fn run(matches: &ArgMatches) -> ExitCode {
    match publish(matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(matches.get_flag("quiet")),
    }
}

fn publish(matches: &ArgMatches) -> Result<(), ClientFailure> {
    let (options, url_topic) = ConnectOptions::from_matches(matches)?;
    let topic = matches.get_one::<String>("topic").cloned().or(url_topic);
    let topic = topic.ok_or_else(|| ClientFailure::Usage("a topic is needed (-t)".into()))?;
    let has_alias = checked(&options.properties.publish, PropertyContext::Publish)
        .topic_alias()
        .is_some();
    if mqtt::validate_topic_name(&topic).is_err() && !(topic.is_empty() && has_alias) {
        return Err(ClientFailure::Usage(format!(
            "-t: `{topic}` is not a topic name; it must not be empty or contain + or #"
        )));
    }
    let payload = payload(matches)?;
    let events = ClientEventQueue::new();
    let mut session = new_session(&options);
    let mut connection = MqttConnection::open(&options, &events, 0, &mut session)?;
    events
        .watch_signals()
        .map_err(|error| ClientFailure::local("cannot watch signals", &error))?;
    let mut publisher = ClientPublisher::new(matches, topic, &options, payload, &events);
    let result = connection.run(&mut publisher, &events);
    result?;
    let properties = checked(&options.properties.disconnect, PropertyContext::Disconnect);
    connection.close(&events, ReasonCode::Success, properties)?;
    match publisher {
        _ if !publisher.is_complete(&connection) => Err(ClientFailure::Interrupted(format!(
            "{} messages are not acknowledged, others may not have been sent",
            connection.in_flight()
        ))),
        _ if publisher.is_failed => Err(ClientFailure::AlreadyPrinted),
        _ => Ok(()),
    }
}

/// `None`: lines of standard input.
fn payload(matches: &ArgMatches) -> Result<Option<Vec<u8>>, ClientFailure> {
    if let Some(text) = matches.get_one::<String>("message") {
        return Ok(Some(text.clone().into_bytes()));
    }
    if let Some(path) = matches.get_one::<PathBuf>("file") {
        let what = format!("cannot read {}", path.display());
        let file = File::open(path).map_err(|error| ClientFailure::local(&what, &error))?;
        return read_payload(file, &what).map(Some);
    }
    if matches.get_flag("stdin-file") {
        return read_payload(io::stdin().lock(), "cannot read standard input").map(Some);
    }
    Ok(matches.get_flag("null-message").then(Vec::new))
}

fn read_payload(source: impl Read, what: &str) -> Result<Vec<u8>, ClientFailure> {
    let mut payload = Vec::new();
    source
        .take(PAYLOAD_BYTES_MAX + 1)
        .read_to_end(&mut payload)
        .map_err(|error| ClientFailure::local(what, &error))?;
    if payload.len() as u64 > PAYLOAD_BYTES_MAX {
        return Err(ClientFailure::Local(format!(
            "{what}: it is longer than an MQTT message can be"
        )));
    }
    Ok(payload)
}

struct ClientPublisher {
    topic: String,
    qos: QoS,
    retain: bool,
    properties: Vec<u8>,
    is_quiet: bool,
    source: PayloadSource,
    max_inflight: u16,
    /// Whether another message may be sent now.
    has_room: bool,
    /// Lines that wait for room; never more than were credited.
    waiting: VecDeque<Vec<u8>>,
    is_connected: bool,
    is_failed: bool,
}

enum PayloadSource {
    Repeat {
        payload: Vec<u8>,
        remaining: u64,
        delay: Duration,
        next: Option<Instant>,
    },
    Lines {
        credit: SyncSender<()>,
        is_ended: bool,
    },
}

impl ClientPublisher {
    fn new(
        matches: &ArgMatches,
        topic: String,
        options: &ConnectOptions,
        payload: Option<Vec<u8>>,
        events: &ClientEventQueue,
    ) -> ClientPublisher {
        let source = match payload {
            Some(payload) => PayloadSource::Repeat {
                payload,
                remaining: matches.get_one("repeat").copied().unwrap_or(1),
                delay: matches.get_one("repeat-delay").copied().unwrap_or_default(),
                next: None,
            },
            None => PayloadSource::Lines {
                credit: events.watch_lines(),
                is_ended: false,
            },
        };
        ClientPublisher {
            topic,
            qos: qos(matches, "qos"),
            retain: matches.get_flag("retain"),
            properties: options.properties.publish.clone(),
            is_quiet: options.is_quiet,
            source,
            max_inflight: *matches.get_one("max-inflight").expect("it has a default"),
            has_room: true,
            waiting: VecDeque::new(),
            is_connected: false,
            is_failed: false,
        }
    }

    /// Sends what can be sent now.
    fn advance(&mut self, connection: &mut MqttConnection<'_>) -> Result<ConnectionFlow, ClientFailure> {
        for _ in 0..BATCH_MESSAGES {
            self.has_room = connection.in_flight() < usize::from(self.max_inflight)
                && connection.session().in_flight().is_none_or(InFlight::has_room);
            let Some(payload) = self.next_payload() else { break };
            self.send(connection, &payload);
            connection.flush_if_full()?;
        }
        Ok(if self.is_complete(connection) {
            ConnectionFlow::Done
        } else {
            ConnectionFlow::Continue
        })
    }

    /// Everything is sent and acknowledged.
    fn is_complete(&self, connection: &MqttConnection<'_>) -> bool {
        let is_exhausted = match &self.source {
            PayloadSource::Repeat { remaining, .. } => *remaining == 0,
            PayloadSource::Lines { is_ended, .. } => *is_ended && self.waiting.is_empty(),
        };
        is_exhausted && connection.in_flight() == 0
    }

    fn next_payload(&mut self) -> Option<Vec<u8>> {
        if !self.has_room {
            return None;
        }
        match &mut self.source {
            PayloadSource::Lines { credit, .. } => {
                let line = self.waiting.pop_front()?;
                let _ = credit.try_send(());
                Some(line)
            }
            PayloadSource::Repeat {
                payload,
                remaining,
                delay,
                next,
            } => {
                if *remaining == 0 || next.is_some_and(|next| Instant::now() < next) {
                    return None;
                }
                *remaining -= 1;
                *next = (!delay.is_zero()).then(|| Instant::now() + *delay);
                Some(payload.clone())
            }
        }
    }

    fn send(&mut self, connection: &mut MqttConnection<'_>, payload: &[u8]) {
        let mut publish = Publish {
            dup: false,
            qos: self.qos,
            retain: self.retain,
            topic: &self.topic,
            packet_id: None,
            properties: checked(&self.properties, PropertyContext::Publish),
            payload,
        };
        // [MQTT-3.2.2-15]
        let size = publish_size(&publish, PublishExtras::default(), connection.version());
        let most = connection.limits().packet_bytes_max;
        if size > most as usize {
            self.fail(&format!(
                "not sent: {size} bytes are more than the server takes ({most})"
            ));
            return;
        }
        if self.qos != QoS::AtMostOnce {
            publish.packet_id = Some(connection.session().in_flight_mut().push(self.qos, ()));
        }
        connection.send(&Packet::Publish(publish));
    }

    fn finished(&mut self, ack: &Ack<'_>) {
        if ack.reason.is_error() {
            let text = ack
                .properties
                .reason_string()
                .map(|text| format!(": {text}"))
                .unwrap_or_default();
            self.fail(&format!(
                "the server refused message {}: {}{text}",
                ack.packet_id.get(),
                ack.reason.name()
            ));
        }
    }

    fn fail(&mut self, message: &str) {
        self.is_failed = true;
        if !self.is_quiet {
            print_error(&message);
        }
    }
}

impl ConnectionHandler for ClientPublisher {
    fn connected(&mut self, connection: &mut MqttConnection<'_>, _: bool) -> Result<ConnectionFlow, ClientFailure> {
        self.is_connected = true;
        // [MQTT-3.3.4-7]
        self.max_inflight = self.max_inflight.min(connection.limits().receive_maximum);
        self.advance(connection)
    }

    fn event(
        &mut self,
        connection: &mut MqttConnection<'_>,
        event: SessionEvent<'_, ()>,
    ) -> Result<ConnectionFlow, ClientFailure> {
        // This command does not need messages for subscriptions of the session.
        if let SessionEvent::Finished((), _, ack) = event {
            self.finished(&ack);
        }
        self.advance(connection)
    }

    fn line(
        &mut self,
        connection: &mut MqttConnection<'_>,
        line: Option<Vec<u8>>,
    ) -> Result<ConnectionFlow, ClientFailure> {
        match (line, &mut self.source) {
            (Some(line), _) => self.waiting.push_back(line),
            (None, PayloadSource::Lines { is_ended, .. }) => *is_ended = true,
            (None, PayloadSource::Repeat { .. }) => {}
        }
        if connection.is_accepted() {
            self.advance(connection)
        } else {
            Ok(ConnectionFlow::Continue)
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.source {
            PayloadSource::Repeat {
                remaining: 1.., next, ..
            } if self.is_connected && self.has_room => Some(next.unwrap_or_else(Instant::now)),
            _ => None,
        }
    }

    fn due(&mut self, connection: &mut MqttConnection<'_>) -> Result<ConnectionFlow, ClientFailure> {
        if connection.is_accepted() {
            self.advance(connection)
        } else {
            Ok(ConnectionFlow::Continue)
        }
    }
}
