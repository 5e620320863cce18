//! `tidewire sub`: subscribes, prints messages, and reconnects if the connection is lost.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Stdout, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{ArgAction, ArgMatches, Command, value_parser};
use jiff::Zoned;
use mqtt::{
    FilterError, Packet, PacketId, Properties, PropertyContext, Publish, QoS, ReasonCode, SharedFilter, SubAck,
    Subscribe, SubscribeFilter, SubscribeFilters, SubscriptionOptions, Unsubscribe, UnsubscribeFilters, filter_matches,
    validate_filter,
};
use mqtt_client::SessionEvent;

use super::args::{ConnectOptions, flag, qos, qos_parser, shared, valued};
use super::connection::{ConnectionFlow, ConnectionHandler, MqttConnection, new_session};
use super::events::{ClientEvent, ClientEventQueue, WaitOutcome};
use super::failure::ClientFailure;
use super::format::MessageFormat;
use super::properties::checked;
use super::publish::seconds;
use super::transport::random;
use crate::output::print_error;

const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// Output that is written at once, at most.
const OUTPUT_BYTES: usize = 64 * 1024;

pub fn command() -> Command {
    shared(Command::new("sub").about("Subscribe and print messages, with mosquitto_sub's flags"))
        .override_usage("tidewire sub [-h HOST] -t FILTER... [OPTIONS]")
        .arg(valued("topic", Some('t'), "FILTER", "Topic filter; can be repeated").action(ArgAction::Append))
        .arg(valued("qos", Some('q'), "QOS", "Maximum QoS [default: 0]").value_parser(qos_parser()))
        .arg(valued("unsubscribe", Some('U'), "FILTER", "Unsubscribe; can be repeated").action(ArgAction::Append))
        .arg(
            valued(
                "filter-out",
                Some('T'),
                "FILTER",
                "Do not print topics that match; can be repeated",
            )
            .action(ArgAction::Append),
        )
        .arg(
            valued("count", Some('C'), "COUNT", "End after so many messages")
                .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(valued("timeout", Some('W'), "SECONDS", "End after so long, with exit code 27").value_parser(seconds))
        .arg(flag(
            "exit-after-suback",
            Some('E'),
            "End once the server has answered all subscriptions",
        ))
        .arg(flag("verbose", Some('v'), "Print the topic too"))
        .arg(
            valued(
                "format",
                Some('F'),
                "FORMAT",
                "Print in a format: %t topic, %p payload, %j JSON, ...",
            )
            .conflicts_with("verbose"),
        )
        .arg(flag("pretty", None, "Print JSON over several lines"))
        .arg(flag("no-newline", Some('N'), "No end of line after a message"))
        .arg(flag("no-retained", Some('R'), "Do not print retained messages"))
        .arg(flag(
            "retained-only",
            None,
            "Print retained messages, and end at the first that is not",
        ))
        .arg(flag("remove-retained", None, "Clear the retained messages that come"))
        .arg(
            valued(
                "random-filter",
                None,
                "PERCENT",
                "Print only so many of the messages, by chance",
            )
            .value_parser(percent),
        )
        .arg(flag(
            "retain-as-published",
            None,
            "MQTT 5: ask for the retain flag as it was published",
        ))
        .arg(flag("no-local", None, "MQTT 5: no messages of this client"))
}

fn percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| "it is not a number".to_string())?;
    if (0.1..=100.0).contains(&percent) {
        Ok(percent)
    } else {
        Err("it is not from 0.1 to 100".into())
    }
}

pub fn run(matches: &ArgMatches) -> ExitCode {
    match subscribe(matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(matches.get_flag("quiet")),
    }
}

fn subscribe(matches: &ArgMatches) -> Result<(), ClientFailure> {
    let (options, url_topic) = ConnectOptions::from_matches(matches)?;
    let wishes = SubscribeArguments::from_matches(matches, &options, url_topic)?;
    let mut subscriber = ClientSubscriber::new(wishes, &options);
    subscriber.timeout_at = matches
        .get_one::<Duration>("timeout")
        .map(|timeout| Instant::now() + *timeout);
    let events = ClientEventQueue::new();
    let mut session = new_session(&options);
    let mut generation = 0;
    loop {
        let result = MqttConnection::open(&options, &events, generation, &mut session).and_then(|mut connection| {
            if generation == 0 {
                events
                    .watch_signals()
                    .map_err(|error| ClientFailure::local("cannot watch signals", &error))?;
            }
            let result = connection.run(&mut subscriber, &events);
            if result.is_ok() || matches!(result, Err(ClientFailure::Timeout)) {
                close(&mut connection, &options, &events);
            }
            result
        });
        generation += 1;
        match result {
            // The first connection is not retried.
            Err(ClientFailure::ConnectionLost(text)) => {
                subscriber.wait_before_retry(&format!("the connection was lost: {text}"), &events)?
            }
            Err(ClientFailure::Connect(text)) if subscriber.was_connected => {
                subscriber.wait_before_retry(&text, &events)?
            }
            Err(failure @ ClientFailure::Disconnected { reason, .. }) if is_passing(reason) => {
                subscriber.wait_before_retry(&failure.to_string(), &events)?
            }
            result => return result.and_then(|()| subscriber.verdict()),
        }
        if subscriber.is_interrupted {
            return Ok(());
        }
    }
}

/// Reasons to end a connection that a later one does not meet.
fn is_passing(reason: ReasonCode) -> bool {
    use ReasonCode::{KeepAliveTimeout, ServerBusy, ServerShuttingDown};
    matches!(reason, ServerBusy | ServerShuttingDown | KeepAliveTimeout)
}

/// Sends DISCONNECT, so that the server does not publish the will: the program ends as requested.
fn close(connection: &mut MqttConnection<'_>, options: &ConnectOptions, events: &ClientEventQueue) {
    let properties = checked(&options.properties.disconnect, PropertyContext::Disconnect);
    // All that mattered has been received.
    let _ = connection.close(events, ReasonCode::Success, properties);
}

/// Arguments of the command.
struct SubscribeArguments {
    filters: Vec<String>,
    unsubscribe: Vec<String>,
    options: SubscriptionOptions,
    filter_out: Vec<String>,
    count: Option<u64>,
    ends_after_suback: bool,
    is_verbose: bool,
    format: Option<MessageFormat>,
    is_pretty: bool,
    has_newline: bool,
    no_retained: bool,
    retained_only: bool,
    remove_retained: bool,
    percent: f64,
}

impl SubscribeArguments {
    fn from_matches(
        matches: &ArgMatches,
        options: &ConnectOptions,
        url_topic: Option<String>,
    ) -> Result<SubscribeArguments, ClientFailure> {
        let list = |name: &str| -> Vec<String> { matches.get_many(name).into_iter().flatten().cloned().collect() };
        let filters: Vec<String> = list("topic").into_iter().chain(url_topic).collect();
        let (unsubscribe, filter_out) = (list("unsubscribe"), list("filter-out"));
        if filters.is_empty() && unsubscribe.is_empty() && options.clean_start {
            return Err(ClientFailure::Usage("a topic filter is needed (-t)".into()));
        }
        for (name, filters) in [("-t", &filters), ("-U", &unsubscribe), ("-T", &filter_out)] {
            check_filters(name, filters)?;
        }
        let format = matches
            .get_one::<String>("format")
            .map(|text| MessageFormat::parse(text))
            .transpose();
        Ok(SubscribeArguments {
            filters,
            unsubscribe,
            options: SubscriptionOptions {
                maximum_qos: qos(matches, "qos"),
                no_local: matches.get_flag("no-local"),
                retain_as_published: matches.get_flag("retain-as-published"),
                ..SubscriptionOptions::default()
            },
            filter_out,
            count: matches.get_one("count").copied(),
            ends_after_suback: matches.get_flag("exit-after-suback"),
            is_verbose: matches.get_flag("verbose"),
            format: format.map_err(ClientFailure::Usage)?,
            is_pretty: matches.get_flag("pretty"),
            has_newline: !matches.get_flag("no-newline"),
            no_retained: matches.get_flag("no-retained"),
            retained_only: matches.get_flag("retained-only"),
            remove_retained: matches.get_flag("remove-retained"),
            percent: matches.get_one("random-filter").copied().unwrap_or(100.0),
        })
    }
}

fn check_filters(flag: &str, filters: &[String]) -> Result<(), ClientFailure> {
    for filter in filters {
        let checked = SharedFilter::parse(filter).and_then(|shared| match shared {
            Some(shared) => validate_filter(shared.filter),
            None => validate_filter(filter),
        });
        if let Err(error) = checked {
            let why = match error {
                FilterError::Empty => "it is empty",
                FilterError::MultiLevelWildcard => "# must be the last level and the only character in it",
                FilterError::SingleLevelWildcard => "+ must be the only character in its level",
                FilterError::Shared => "a shared subscription is $share/group/filter",
                FilterError::NulCharacter | FilterError::TooLong => "it is longer than 65535 bytes or contains U+0000",
            };
            return Err(ClientFailure::Usage(format!(
                "{flag}: `{filter}` is not a topic filter: {why}"
            )));
        }
    }
    Ok(())
}

struct ClientSubscriber {
    arguments: SubscribeArguments,
    subscribe_properties: Vec<u8>,
    unsubscribe_properties: Vec<u8>,
    is_quiet: bool,
    timeout_at: Option<Instant>,
    /// Requests that the server has not answered.
    unanswered: Vec<PacketId>,
    is_any_granted: bool,
    was_connected: bool,
    is_interrupted: bool,
    printed: u64,
    /// Topic aliases of the server.
    aliases: HashMap<u16, String>,
    /// All requested messages are printed. The program waits only for retained messages that are being cleared.
    is_finishing: bool,
    stdout: Stdout,
    output: Vec<u8>,
}

impl ClientSubscriber {
    fn new(wishes: SubscribeArguments, options: &ConnectOptions) -> ClientSubscriber {
        ClientSubscriber {
            arguments: wishes,
            subscribe_properties: options.properties.subscribe.clone(),
            unsubscribe_properties: options.properties.unsubscribe.clone(),
            is_quiet: options.is_quiet,
            timeout_at: None,
            unanswered: Vec::new(),
            is_any_granted: false,
            was_connected: false,
            is_interrupted: false,
            printed: 0,
            aliases: HashMap::new(),
            is_finishing: false,
            stdout: io::stdout(),
            output: Vec::new(),
        }
    }

    /// Waits before the next attempt. Signals and `-W` end the wait.
    fn wait_before_retry(&mut self, why: &str, events: &ClientEventQueue) -> Result<(), ClientFailure> {
        if !self.is_quiet {
            print_error(&format!("{why}; trying again"));
        }
        let until = Instant::now() + RECONNECT_DELAY;
        let until = self.timeout_at.map_or(until, |timeout_at| until.min(timeout_at));
        loop {
            match events.next(Some(until)) {
                WaitOutcome::Event(ClientEvent::Signal) => {
                    self.is_interrupted = true;
                    return Ok(());
                }
                WaitOutcome::Event(_) => {}
                WaitOutcome::Nothing if self.is_timed_out() => return Err(ClientFailure::Timeout),
                WaitOutcome::Nothing => return Ok(()),
            }
        }
    }

    fn is_timed_out(&self) -> bool {
        self.timeout_at.is_some_and(|timeout_at| Instant::now() >= timeout_at)
    }

    fn verdict(&self) -> Result<(), ClientFailure> {
        let is_denied = !self.arguments.filters.is_empty() && self.unanswered.is_empty() && !self.is_any_granted;
        if is_denied && self.was_connected {
            Err(ClientFailure::Local("the server denied all subscriptions".into()))
        } else {
            Ok(())
        }
    }

    fn send_requests(&mut self, connection: &mut MqttConnection<'_>) {
        if !self.arguments.unsubscribe.is_empty() {
            let packet_id = connection.session().request_id();
            let mut bytes = Vec::new();
            let filters = UnsubscribeFilters::encode(self.arguments.unsubscribe.iter().map(String::as_str), &mut bytes);
            let properties = checked(&self.unsubscribe_properties, PropertyContext::Unsubscribe);
            connection.send(&Packet::Unsubscribe(Unsubscribe {
                packet_id,
                properties,
                filters,
            }));
            self.unanswered.push(packet_id);
        }
        if !self.arguments.filters.is_empty() {
            let packet_id = connection.session().request_id();
            let mut bytes = Vec::new();
            let filters = self.arguments.filters.iter().map(|filter| SubscribeFilter {
                filter,
                options: self.options_for(filter),
            });
            let filters = SubscribeFilters::encode(filters, connection.version(), &mut bytes);
            let properties = checked(&self.subscribe_properties, PropertyContext::Subscribe);
            connection.send(&Packet::Subscribe(Subscribe {
                packet_id,
                properties,
                filters,
            }));
            self.unanswered.push(packet_id);
        }
    }

    /// No Local with a shared subscription is a protocol error [MQTT-3.8.3-4].
    fn options_for(&self, filter: &str) -> SubscriptionOptions {
        let is_shared = filter.starts_with("$share/");
        SubscriptionOptions {
            no_local: self.arguments.options.no_local && !is_shared,
            ..self.arguments.options
        }
    }

    fn suback(&mut self, suback: &SubAck<'_>) {
        self.unanswered.retain(|id| *id != suback.packet_id);
        for (filter, code) in self.arguments.filters.iter().zip(suback.reasons) {
            if *code < 0x80 {
                self.is_any_granted = true;
            } else if !self.is_quiet {
                let name = ReasonCode::from_u8(*code).map_or("refused", ReasonCode::name);
                print_error(&format!("the subscription to `{filter}` was denied: {name}"));
            }
        }
    }

    fn after_answer(&self) -> ConnectionFlow {
        let is_denied = !self.arguments.filters.is_empty() && !self.is_any_granted;
        let is_over = self.arguments.ends_after_suback
            || is_denied
            || self.arguments.filters.is_empty() && !self.arguments.unsubscribe.is_empty();
        if self.unanswered.is_empty() && is_over {
            ConnectionFlow::Done
        } else {
            ConnectionFlow::Continue
        }
    }

    fn publish(
        &mut self,
        connection: &mut MqttConnection<'_>,
        publish: Publish<'_>,
    ) -> Result<ConnectionFlow, ClientFailure> {
        let topic = self.resolve_alias(&publish)?;
        let publish = Publish {
            topic: &topic,
            ..publish
        };
        if self.is_finishing || self.arguments.retained_only && !publish.retain {
            // Not printed, so not acknowledged: the server keeps it for the next run.
            return Ok(self.finish(connection));
        }
        let flow = self.message(connection, &publish)?;
        connection.acknowledge(publish.qos, publish.packet_id);
        Ok(flow)
    }

    fn resolve_alias(&mut self, publish: &Publish<'_>) -> Result<String, ClientFailure> {
        let Some(alias) = publish.properties.topic_alias() else {
            return Ok(publish.topic.into());
        };
        if !publish.topic.is_empty() {
            self.aliases.insert(alias, publish.topic.into());
            return Ok(publish.topic.into());
        }
        let known = self.aliases.get(&alias).cloned();
        known.ok_or_else(|| ClientFailure::Protocol("the server used a topic alias that it did not set".into()))
    }

    /// Prints a message. The caller acknowledges it afterwards.
    fn message(
        &mut self,
        connection: &mut MqttConnection<'_>,
        publish: &Publish<'_>,
    ) -> Result<ConnectionFlow, ClientFailure> {
        if !self.accepts(publish) {
            return Ok(ConnectionFlow::Continue);
        }
        if self.arguments.remove_retained && publish.retain {
            self.clear_retained(connection, publish.topic);
        }
        if self.arguments.percent >= 100.0 || random_percent() < self.arguments.percent {
            self.print(publish)?;
        }
        self.printed += 1;
        if self.arguments.count.is_some_and(|count| self.printed >= count) {
            Ok(self.finish(connection))
        } else {
            Ok(ConnectionFlow::Continue)
        }
    }

    fn accepts(&self, publish: &Publish<'_>) -> bool {
        let is_filtered = self
            .arguments
            .filter_out
            .iter()
            .any(|filter| filter_matches(filter, publish.topic));
        !(is_filtered || self.arguments.no_retained && publish.retain)
    }

    fn finish(&mut self, connection: &MqttConnection<'_>) -> ConnectionFlow {
        self.is_finishing = true;
        if connection.in_flight() == 0 {
            ConnectionFlow::Done
        } else {
            ConnectionFlow::Continue
        }
    }

    /// With QoS 1, so that it has happened when the program ends.
    fn clear_retained(&mut self, connection: &mut MqttConnection<'_>, topic: &str) {
        let qos = QoS::AtLeastOnce;
        let in_flight = connection.session().in_flight_mut();
        if !in_flight.has_room() {
            let unanswered = in_flight.len();
            print_error(&format!(
                "the retained message of {topic} is not removed: the server has not answered {unanswered} earlier requests"
            ));
            return;
        }
        let packet_id = Some(in_flight.push(qos, ()));
        connection.send(&Packet::Publish(Publish {
            dup: false,
            qos,
            retain: true,
            topic,
            packet_id,
            properties: Properties::EMPTY,
            payload: &[],
        }));
    }

    fn print(&mut self, publish: &Publish<'_>) -> Result<(), ClientFailure> {
        let out = &mut self.output;
        match &self.arguments.format {
            Some(format) => {
                if let Err(message) = format.print(publish, &Zoned::now(), self.arguments.is_pretty, out) {
                    if !self.is_quiet {
                        print_error(&message);
                    }
                    return Ok(());
                }
            }
            None if self.arguments.is_verbose => {
                out.extend_from_slice(publish.topic.as_bytes());
                out.push(b' ');
                out.extend_from_slice(if publish.payload.is_empty() {
                    b"(null)"
                } else {
                    publish.payload
                });
            }
            None if publish.payload.is_empty() => return Ok(()),
            None => out.extend_from_slice(publish.payload),
        }
        if self.arguments.has_newline {
            out.push(b'\n');
        }
        if self.output.len() >= OUTPUT_BYTES {
            self.write_out()
        } else {
            Ok(())
        }
    }

    fn write_out(&mut self) -> Result<(), ClientFailure> {
        let written = self.stdout.write_all(&self.output).and_then(|()| self.stdout.flush());
        self.output.clear();
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ClientFailure::AlreadyPrinted),
            result => result.map_err(|error| ClientFailure::local("cannot write to standard output", &error)),
        }
    }
}

impl ConnectionHandler for ClientSubscriber {
    fn connected(
        &mut self,
        connection: &mut MqttConnection<'_>,
        is_session_present: bool,
    ) -> Result<ConnectionFlow, ClientFailure> {
        self.was_connected = true;
        self.aliases.clear();
        self.unanswered.clear();
        connection.session().drop_in_flight();
        if !is_session_present {
            connection.session().discard();
        }
        self.send_requests(connection);
        Ok(ConnectionFlow::Continue)
    }

    fn event(
        &mut self,
        connection: &mut MqttConnection<'_>,
        event: SessionEvent<'_, ()>,
    ) -> Result<ConnectionFlow, ClientFailure> {
        match event {
            SessionEvent::Message(publish) => self.publish(connection, publish),
            SessionEvent::Finished(..) if self.is_finishing => Ok(self.finish(connection)),
            SessionEvent::Subscribed(suback) => {
                self.suback(&suback);
                Ok(self.after_answer())
            }
            SessionEvent::Unsubscribed(unsuback) => {
                self.unanswered.retain(|id| *id != unsuback.packet_id);
                Ok(self.after_answer())
            }
            _ => Ok(ConnectionFlow::Continue),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.timeout_at
    }

    fn due(&mut self, _: &mut MqttConnection<'_>) -> Result<ConnectionFlow, ClientFailure> {
        self.write_out()?;
        Err(ClientFailure::Timeout)
    }

    fn idle(&mut self) -> Result<(), ClientFailure> {
        if self.output.is_empty() {
            Ok(())
        } else {
            self.write_out()
        }
    }
}

/// From 0 to 100.
fn random_percent() -> f64 {
    let mut bytes = [0; 4];
    random(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX) * 100.0
}
