//! The task: connect, serve the connection until it is lost, wait, again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mqtt::{
    Decoded, Disconnect, Packet, PacketId, PacketType, Properties, QoS, ReasonCode, RetainHandling, Subscribe,
    SubscribeFilter, SubscribeFilters, SubscriptionOptions, Unsubscribe, UnsubscribeFilters, decode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::super::config::{IN_FLIGHT_MAX, MqttVersion};
use super::super::connect::{Connected, Guise, NotConnected, connect_mqtt};
use super::super::incoming::{Incoming, Post, Registration};
use super::super::outgoing::{Limits, Outgoing, Output};
use super::{Command, Shared, State};
use crate::backoff::Backoff;
use crate::sink::{Failure, all};
use crate::stream::Stream;

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(250);
/// Batches that the task takes in before those before are confirmed; the channel holds more.
const BATCHES_MAX: usize = 64;
const READ_BYTES: usize = 64 << 10;
/// How long the broker has to take our DISCONNECT.
const GOODBYE: Duration = Duration::from_secs(1);

pub(super) async fn run(shared: Arc<Shared>, commands: mpsc::Receiver<Command>) {
    let config = &shared.config;
    let mut task = Task {
        is_bridge: config.loop_protection && config.version != MqttVersion::V5,
        shared: Arc::clone(&shared),
        commands,
        incoming: Incoming::default(),
        subscribed: Vec::new(),
        courage: usize::MAX,
    };
    let mut backoff = Backoff::new(&config.reconnect);
    loop {
        let connected = match task.connect().await {
            Ok(Some(connected)) => connected,
            Ok(None) => return,
            Err(failed) => {
                task.failed(failed);
                if !task.wait(backoff.pause()).await {
                    return;
                }
                continue;
            }
        };
        backoff.reset();
        shared.state.send_replace(State::Connected);
        let Err(reason) = task.serve(connected).await else {
            return;
        };
        tracing::info!(
            server = config.server,
            reason,
            "the connection to the MQTT broker is lost"
        );
        shared.state.send_replace(State::Failed(reason));
        // A broker that takes us and drops us at once is not asked without pause.
        if !task.wait(backoff.pause()).await {
            return;
        }
    }
}

struct Task {
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    incoming: Incoming,
    /// The sources whose subscriptions the broker has, as far as we know.
    subscribed: Vec<Arc<Registration>>,
    is_bridge: bool,
    /// How many messages may be on their way at the beginning of the next connection.
    courage: usize,
}

impl Task {
    /// `None`: nobody needs the connection any more.
    async fn connect(&mut self) -> Result<Option<Connected>, NotConnected> {
        let shared = Arc::clone(&self.shared);
        let guise = Guise {
            is_bridge: self.is_bridge,
            mark: &shared.mark,
        };
        let connecting = connect_mqtt(&shared.config, shared.tls.as_ref(), guise);
        let mut connecting = std::pin::pin!(connecting);
        if *shared.state.borrow() == State::Connecting {
            // Nothing has failed yet: what is to be sent waits.
            return connecting.await.map(Some);
        }
        loop {
            tokio::select! {
                connected = &mut connecting => return connected.map(Some),
                command = self.commands.recv() => match command {
                    Some(command) => self.refuse(command),
                    None => return Ok(None),
                },
            }
        }
    }

    fn failed(&mut self, failed: NotConnected) {
        if failed.may_be_bridge_bit {
            let server = &self.shared.config.server;
            tracing::info!(
                server,
                "the broker does not take a bridge: trying as an ordinary client"
            );
            self.is_bridge = false;
        }
        self.shared.state.send_replace(State::Failed(failed.reason));
    }

    /// `false`: nobody needs the connection any more.
    async fn wait(&mut self, pause: Duration) -> bool {
        let mut over = std::pin::pin!(tokio::time::sleep(pause));
        loop {
            tokio::select! {
                () = &mut over => return true,
                command = self.commands.recv() => match command {
                    Some(command) => self.refuse(command),
                    None => return false,
                },
            }
        }
    }

    /// There is no connection.
    fn refuse(&mut self, command: Command) {
        match command {
            Command::Publish(batch) => {
                let reason = match &*self.shared.state.borrow() {
                    State::Failed(reason) => reason.clone(),
                    _ => "not connected".to_owned(),
                };
                // Who no longer waits needs no answer.
                let _ = batch.reply.send(all(&batch.records, Err(Failure::Away(reason))));
            }
            Command::Accepted(tickets) => self.incoming.accepted(&tickets, &mut Vec::new()),
            Command::Sources { .. } => {}
        }
    }

    /// `Ok`: nobody needs the connection any more. An error: it is lost.
    async fn serve(&mut self, connected: Connected) -> Result<(), String> {
        let (reader, writer) = tokio::io::split(connected.stream);
        self.incoming.connected(connected.is_session_present);
        if !connected.is_session_present {
            self.subscribed.clear();
        }
        let now = Instant::now();
        let mut service = Service {
            outgoing: Outgoing::new(connected.limits.clone(), connected.is_session_present, self.courage),
            limits: connected.limits,
            keep_alive: connected.keep_alive,
            answer_limit: Duration::from_millis(self.shared.config.answer_timeout_ms),
            input: connected.input,
            out: Output::default(),
            is_flushed: true,
            last_written: now,
            pinged: None,
            asked: Vec::new(),
            next_id: IN_FLIGHT_MAX,
            task: self,
        };
        let result = service.run(reader, writer).await;
        if let Err(reason) = &result {
            let courage = service.outgoing.lost(reason);
            self.courage = courage;
        }
        result
    }
}

/// One connection.
struct Service<'a> {
    task: &'a mut Task,
    limits: Limits,
    outgoing: Outgoing,
    keep_alive: Duration,
    answer_limit: Duration,
    input: Vec<u8>,
    out: Output,
    /// All that was written has left the TLS layer.
    is_flushed: bool,
    last_written: Instant,
    /// PINGREQ was sent then and PINGRESP is missing.
    pinged: Option<Instant>,
    /// SUBSCRIBE packets that are not answered.
    asked: Vec<(PacketId, Arc<Registration>, Instant)>,
    next_id: u16,
}

impl Service<'_> {
    async fn run(&mut self, mut reader: ReadHalf<Stream>, mut writer: WriteHalf<Stream>) -> Result<(), String> {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.synchronize_sources();
        loop {
            self.decode_all()?;
            self.outgoing.fill(&mut self.out, Instant::now());
            self.input.reserve(READ_BYTES);
            tokio::select! {
                read = reader.read_buf(&mut self.input), if self.may_read() => match read {
                    Ok(0) => return Err("the broker has closed the connection".to_owned()),
                    Ok(_) => {}
                    Err(error) => return Err(error.to_string()),
                },
                written = write_or_flush(&mut writer, &self.out.bytes), if !self.out.bytes.is_empty() || !self.is_flushed => {
                    self.written(written.map_err(|error| error.to_string())?);
                }
                command = self.task.commands.recv(), if self.outgoing.waiting() < BATCHES_MAX => match command {
                    Some(command) => self.command(command)?,
                    None => return self.say_goodbye(writer).await,
                },
                now = tick.tick() => self.look_at_deadlines(now.into_std())?,
            }
        }
    }

    /// A receiver that is slow holds the broker back, through the socket.
    fn may_read(&self) -> bool {
        let shared = &self.task.shared;
        let is_free = |source: &Arc<Registration>| source.queue.capacity() > 0 || source.queue.is_closed();
        self.task.incoming.unacknowledged() < usize::from(shared.config.receive_max)
            && shared.with_sources(|sources| sources.iter().all(is_free))
    }

    /// So many bytes, or, if none were left to write, that they have left.
    fn written(&mut self, count: usize) {
        self.is_flushed = count == 0;
        if self.is_flushed {
            self.outgoing.written(&self.out);
        } else {
            self.out.take(count);
            self.last_written = Instant::now();
        }
    }

    fn decode_all(&mut self) -> Result<(), String> {
        let input = std::mem::take(&mut self.input);
        let mut at = 0;
        while self.may_read() {
            let limit = self.task.shared.config.packet_bytes_max as usize;
            match decode(&input[at..], self.limits.version, limit) {
                Ok(Decoded::Incomplete { .. }) => break,
                Ok(Decoded::Complete { packet, size }) => {
                    self.packet(&packet)?;
                    at += size;
                }
                Err(error) => return Err(format!("what the broker sends is not MQTT: {error}")),
            }
        }
        self.input = input;
        self.input.drain(..at);
        Ok(())
    }

    fn packet(&mut self, packet: &Packet<'_>) -> Result<(), String> {
        let now = Instant::now();
        match packet {
            Packet::Publish(publish) => {
                let sources = self.task.shared.sources();
                let post = Post {
                    sources: &sources,
                    counters: &self.task.shared.counters,
                    loop_mark: self.limits.loop_mark.as_ref(),
                };
                self.task.incoming.publish(publish, &post, &mut self.out.bytes)
            }
            Packet::PubAck(ack) => self.outgoing.acknowledged(PacketType::PubAck, ack, &mut self.out, now),
            Packet::PubRec(ack) => self.outgoing.acknowledged(PacketType::PubRec, ack, &mut self.out, now),
            Packet::PubComp(ack) => self.outgoing.acknowledged(PacketType::PubComp, ack, &mut self.out, now),
            Packet::PubRel(ack) => {
                self.task.incoming.released(ack.packet_id, &mut self.out.bytes);
                Ok(())
            }
            Packet::SubAck(suback) => {
                self.subscribed(suback.packet_id, suback.reasons);
                Ok(())
            }
            Packet::UnsubAck(_) => Ok(()),
            Packet::PingResp => {
                self.pinged = None;
                Ok(())
            }
            Packet::Disconnect(disconnect) => Err(disconnected(disconnect)),
            other => Err(format!("the broker sent {}, which no broker may", other.packet_type())),
        }
    }

    fn command(&mut self, command: Command) -> Result<(), String> {
        match command {
            Command::Publish(batch) => self.outgoing.push(batch),
            Command::Accepted(tickets) => self.task.incoming.accepted(&tickets, &mut self.out.bytes),
            Command::Sources { has_left_messages } => {
                self.synchronize_sources();
                if has_left_messages {
                    // Their acknowledgements would hold back all behind them.
                    return Err("a source has ended with messages that it has not accepted".to_owned());
                }
            }
        }
        Ok(())
    }

    /// Subscribes for sources that are new, and unsubscribes for those that are gone.
    fn synchronize_sources(&mut self) {
        let wanted = self.task.shared.sources();
        let has =
            |list: &[Arc<Registration>], one: &Arc<Registration>| list.iter().any(|other| Arc::ptr_eq(other, one));
        let (kept, gone) = std::mem::take(&mut self.task.subscribed)
            .into_iter()
            .partition(|source| has(&wanted, source));
        self.task.subscribed = kept;
        let gone: Vec<Arc<Registration>> = gone;
        for source in &gone {
            self.unsubscribe(source, &wanted);
        }
        for source in &wanted {
            let is_asked = self.asked.iter().any(|(_, asked, _)| Arc::ptr_eq(asked, source));
            if !is_asked && !has(&self.task.subscribed, source) {
                self.subscribe(source);
            }
        }
    }

    fn subscribe(&mut self, source: &Arc<Registration>) {
        let version = self.limits.version;
        let filters = source.config.subscriptions.iter().map(|subscription| SubscribeFilter {
            filter: &subscription.filter,
            options: SubscriptionOptions {
                maximum_qos: QoS::from_bits(subscription.qos).unwrap_or(QoS::AtLeastOnce),
                // [MQTT-3.8.3-4]
                no_local: self.limits.loop_mark.is_some() && !subscription.filter.starts_with("$share/"),
                retain_as_published: true,
                retain_handling: RetainHandling::SendIfNew,
            },
        });
        let mut bytes = Vec::new();
        let filters = SubscribeFilters::encode(filters.collect::<Vec<_>>(), version, &mut bytes);
        let Some(packet_id) = self.id() else { return };
        let subscribe = Subscribe {
            packet_id,
            properties: Properties::EMPTY,
            filters,
        };
        Packet::Subscribe(subscribe).encode(version, &mut self.out.bytes);
        self.asked.push((packet_id, Arc::clone(source), Instant::now()));
    }

    /// Leaves filters that another source has too.
    fn unsubscribe(&mut self, source: &Registration, others: &[Arc<Registration>]) {
        let is_wanted = |filter: &str| {
            let mut wanted = others.iter().flat_map(|other| &other.config.subscriptions);
            wanted.any(|subscription| subscription.filter == filter)
        };
        let filters = source
            .config
            .subscriptions
            .iter()
            .map(|subscription| subscription.filter.as_str());
        let filters: Vec<&str> = filters.filter(|filter| !is_wanted(filter)).collect();
        if filters.is_empty() {
            return;
        }
        let Some(packet_id) = self.id() else { return };
        let mut bytes = Vec::new();
        let unsubscribe = Unsubscribe {
            packet_id,
            properties: Properties::EMPTY,
            filters: UnsubscribeFilters::encode(filters, &mut bytes),
        };
        Packet::Unsubscribe(unsubscribe).encode(self.limits.version, &mut self.out.bytes);
    }

    /// Packet identifiers above those of messages, in turn.
    fn id(&mut self) -> Option<PacketId> {
        self.next_id = self.next_id.checked_add(1).unwrap_or(IN_FLIGHT_MAX + 1);
        PacketId::new(self.next_id)
    }

    fn subscribed(&mut self, id: PacketId, reasons: &[u8]) {
        let Some(at) = self.asked.iter().position(|(asked, _, _)| *asked == id) else {
            return;
        };
        let (_, source, _) = self.asked.swap_remove(at);
        let refused = reasons
            .iter()
            .zip(&source.config.subscriptions)
            .find(|(reason, _)| **reason >= 0x80);
        let refusal = refused.map(|(&reason, subscription)| {
            let why = ReasonCode::from_u8(reason).map_or("no reason", ReasonCode::name);
            format!("the broker refuses the subscription to {}: {why}", subscription.filter)
        });
        source.set_refusal(refusal);
        self.task.subscribed.push(source);
    }

    fn look_at_deadlines(&mut self, now: Instant) -> Result<(), String> {
        let is_late = |since: Instant| now.saturating_duration_since(since) > self.answer_limit;
        let limit_ms = self.answer_limit.as_millis();
        // While nothing is read because a receiver is slow, answers are not late but unread.
        if self.may_read() {
            let asked = self.asked.iter().map(|(_, _, since)| *since).min();
            let oldest = [self.outgoing.oldest(), self.pinged, asked].into_iter().flatten().min();
            if oldest.is_some_and(is_late) {
                return Err(format!("the broker has not answered within {limit_ms} ms"));
            }
        }
        let is_silent = now.saturating_duration_since(self.last_written) + TICK >= self.keep_alive;
        if !self.keep_alive.is_zero() && is_silent && self.pinged.is_none() {
            Packet::PingReq.encode(self.limits.version, &mut self.out.bytes);
            self.pinged = Some(now);
        }
        Ok(())
    }

    async fn say_goodbye(&mut self, mut writer: WriteHalf<Stream>) -> Result<(), String> {
        let disconnect = Disconnect {
            reason: ReasonCode::Success,
            properties: Properties::EMPTY,
        };
        Packet::Disconnect(disconnect).encode(self.limits.version, &mut self.out.bytes);
        let goodbye = async {
            writer.write_all(&self.out.bytes).await?;
            writer.shutdown().await
        };
        // Politeness only.
        let _ = timeout(GOODBYE, goodbye).await;
        Ok(())
    }
}

/// Losing the future loses nothing.
async fn write_or_flush(writer: &mut WriteHalf<Stream>, bytes: &[u8]) -> std::io::Result<usize> {
    if bytes.is_empty() {
        return writer.flush().await.map(|()| 0);
    }
    match writer.write(bytes).await? {
        0 => Err(std::io::ErrorKind::WriteZero.into()),
        count => Ok(count),
    }
}

fn disconnected(disconnect: &Disconnect<'_>) -> String {
    let mut text = format!("the broker has ended the connection: {}", disconnect.reason.name());
    if let Some(reason) = disconnect.properties.reason_string() {
        text.push_str(&format!(": {reason}"));
    }
    text
}
