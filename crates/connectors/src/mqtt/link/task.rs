//! The task of a connector: connects, serves the connection until it is lost, and reconnects after a pause.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mqtt::{
    Decoded, Disconnect, Packet, PacketId, Properties, ProtocolVersion, QoS, ReasonCode, RetainHandling, Subscribe,
    SubscribeFilter, SubscribeFilters, SubscriptionOptions, Unsubscribe, UnsubscribeFilters, decode,
};
use mqtt_client::SessionEvent;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::super::config::MqttVersion;
use super::super::connect::{BridgeMark, Connected, NotConnected, connect_mqtt};
use super::super::incoming::{Dispatch, IncomingState, Registration};
use super::super::outgoing::{BrokerLimits, ConnectorSession, OutgoingState, OutputBuffer, SentRecord};
use super::{LinkCommand, LinkState, MqttConnectorShared};
use crate::backoff::Backoff;
use crate::sink::{DeliveryFailure, all};
use crate::stream::ConnectorStream;

/// How often deadlines are checked.
const TICK: Duration = Duration::from_millis(250);
/// Maximum number of unconfirmed batches in the task. Further batches wait in the channel.
const BATCHES_MAX: usize = 64;
const READ_BYTES: usize = 64 << 10;
/// Maximum time to send DISCONNECT.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) async fn run(shared: Arc<MqttConnectorShared>, commands: mpsc::Receiver<LinkCommand>) {
    let config = &shared.config;
    let mut task = LinkTask {
        is_bridge: config.loop_protection && config.version != MqttVersion::V5,
        shared: Arc::clone(&shared),
        commands,
        session: ConnectorSession::new(ProtocolVersion::from(config.version), config.message_ids()),
        started: Instant::now(),
        incoming: IncomingState::default(),
        subscribed: Vec::new(),
        unconfirmed: Vec::new(),
        inflight_start: usize::MAX,
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
        shared.state.send_replace(LinkState::Connected);
        let Err(reason) = task.serve(connected).await else {
            return;
        };
        tracing::info!(
            server = config.server,
            reason,
            "connection to the MQTT broker lost, reconnecting"
        );
        shared.state.send_replace(LinkState::Failed(reason));
        // A pause is needed also after a broker that accepts connections and closes them immediately.
        if !task.wait(backoff.pause()).await {
            return;
        }
    }
}

struct LinkTask {
    shared: Arc<MqttConnectorShared>,
    commands: mpsc::Receiver<LinkCommand>,
    session: ConnectorSession,
    /// Origin of the session's times.
    started: Instant,
    incoming: IncomingState,
    /// Sources whose subscriptions the broker has acknowledged.
    subscribed: Vec<Arc<Registration>>,
    /// Sources whose SUBSCRIBE was sent on the previous connection and not answered. The stored session may contain
    /// their subscriptions.
    unconfirmed: Vec<Arc<Registration>>,
    is_bridge: bool,
    /// Limit of in-flight messages at the start of the next connection.
    inflight_start: usize,
}

impl LinkTask {
    /// Connects. Returns `None` if the connection is no longer needed.
    async fn connect(&mut self) -> Result<Option<Connected>, NotConnected> {
        let LinkTask {
            shared,
            commands,
            session,
            incoming,
            ..
        } = self;
        let bridge_mark = BridgeMark {
            is_bridge: self.is_bridge,
            mark: &shared.mark,
        };
        let connecting = connect_mqtt(&shared.config, &shared.dialing, bridge_mark, session, self.started);
        let mut connecting = std::pin::pin!(connecting);
        if *shared.state.borrow() == LinkState::Connecting {
            // Before the first failure, commands wait for the connection.
            return connecting.await.map(Some);
        }
        loop {
            tokio::select! {
                connected = &mut connecting => return connected.map(Some),
                command = commands.recv() => match command {
                    Some(command) => fail(shared, incoming, command),
                    None => return Ok(None),
                },
            }
        }
    }

    fn failed(&mut self, failed: NotConnected) {
        if failed.may_reject_bridge_flag {
            let server = &self.shared.config.server;
            tracing::info!(
                server,
                "the broker may not support the bridge flag; connecting without it"
            );
            self.is_bridge = false;
        }
        self.shared.state.send_replace(LinkState::Failed(failed.reason));
    }

    /// Waits before the next attempt. Returns false if the connection is no longer needed.
    async fn wait(&mut self, pause: Duration) -> bool {
        let mut over = std::pin::pin!(tokio::time::sleep(pause));
        loop {
            tokio::select! {
                () = &mut over => return true,
                command = self.commands.recv() => match command {
                    Some(command) => fail(&self.shared, &mut self.incoming, command),
                    None => return false,
                },
            }
        }
    }

    /// Serves a connection. Returns `Ok` when it is no longer needed, or the reason why it was lost.
    async fn serve(&mut self, connected: Connected) -> Result<(), String> {
        let (reader, writer) = tokio::io::split(connected.stream);
        self.incoming.connected(connected.is_session_present);
        self.session.drop_in_flight();
        if !connected.is_session_present {
            self.session.discard();
            self.subscribed.clear();
            self.unconfirmed.clear();
        }
        let config = &self.shared.config;
        let mut service = ConnectedLink {
            outgoing: OutgoingState::new(
                connected.limits.clone(),
                config.message_ids(),
                connected.is_session_present,
                self.inflight_start,
            ),
            limits: connected.limits,
            answer_limit: Duration::from_millis(config.answer_timeout_ms),
            input: connected.input,
            out: OutputBuffer::default(),
            is_flushed: true,
            subscribing: Vec::new(),
            task: self,
        };
        let result = service.run(reader, writer).await;
        if let Err(reason) = &result {
            let pending = service.subscribing.drain(..).map(|(_, source, _)| source);
            service.task.unconfirmed.extend(pending);
            let LinkTask { session, .. } = &mut *service.task;
            service.task.inflight_start = service.outgoing.connection_lost(session, reason);
        }
        result
    }
}

/// The state of one connection.
struct ConnectedLink<'a> {
    task: &'a mut LinkTask,
    limits: BrokerLimits,
    outgoing: OutgoingState,
    answer_limit: Duration,
    input: Vec<u8>,
    out: OutputBuffer,
    /// All written bytes have left the TLS layer.
    is_flushed: bool,
    /// SUBSCRIBE packets without SUBACK.
    subscribing: Vec<(PacketId, Arc<Registration>, Instant)>,
}

impl ConnectedLink<'_> {
    async fn run(
        &mut self,
        mut reader: ReadHalf<ConnectorStream>,
        mut writer: WriteHalf<ConnectorStream>,
    ) -> Result<(), String> {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.synchronize_sources();
        loop {
            self.decode_all()?;
            self.outgoing
                .fill(&mut self.task.session, &mut self.out, Instant::now());
            let echoes = std::mem::take(&mut self.outgoing.echoes);
            let counters = &self.task.shared.counters;
            counters.skipped_echo.fetch_add(echoes, Ordering::Relaxed);
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
                    None => return self.disconnect(writer).await,
                },
                now = tick.tick() => self.check_deadlines(now.into_std())?,
            }
        }
    }

    /// Returns whether to read from the socket. A slow receiver applies back-pressure to the broker.
    fn may_read(&self) -> bool {
        let shared = &self.task.shared;
        let is_free = |source: &Arc<Registration>| source.queue.capacity() > 0 || source.queue.is_closed();
        self.task.incoming.unacknowledged() < usize::from(shared.config.receive_max)
            && shared.with_sources(|sources| sources.iter().all(is_free))
    }

    /// Handles a write of `count` bytes, or a flush if `count` is 0.
    fn written(&mut self, count: usize) {
        self.is_flushed = count == 0;
        if self.is_flushed {
            self.outgoing.written(&self.out);
        } else {
            self.out.take(count);
            let now_ns = self.now_ns();
            self.task.session.keep_alive.record_sent(now_ns);
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
                    let event = self.task.session.handle(packet, &mut self.out.bytes);
                    self.event(event.map_err(|violation| violation.to_string())?)?;
                    at += size;
                }
                Err(error) => return Err(format!("received an invalid MQTT packet: {error}")),
            }
        }
        self.input = input;
        self.input.drain(..at);
        Ok(())
    }

    fn event(&mut self, event: SessionEvent<'_, SentRecord>) -> Result<(), String> {
        match event {
            SessionEvent::Message(publish) => {
                let LinkTask {
                    shared,
                    incoming,
                    session,
                    ..
                } = &mut *self.task;
                let dispatch = Dispatch {
                    sources: &shared.sources(),
                    counters: &shared.counters,
                    loop_mark: self.limits.loop_mark.as_ref(),
                };
                incoming.publish(&publish, &dispatch)?;
                incoming.acknowledge(session, &mut self.out.bytes);
                Ok(())
            }
            SessionEvent::Subscribed(suback) => {
                self.subscribed(suback.packet_id, suback.reasons);
                Ok(())
            }
            SessionEvent::Disconnected(disconnect) => Err(disconnected(&disconnect)),
            event => self
                .outgoing
                .acknowledged(event, &mut self.task.session, Instant::now()),
        }
    }

    fn now_ns(&self) -> u64 {
        self.task.started.elapsed().as_nanos() as u64
    }

    fn command(&mut self, command: LinkCommand) -> Result<(), String> {
        match command {
            LinkCommand::Publish(batch) => self.outgoing.push(batch),
            LinkCommand::Accepted(tickets) => {
                let LinkTask { incoming, session, .. } = &mut *self.task;
                incoming.accepted(&tickets);
                incoming.acknowledge(session, &mut self.out.bytes);
            }
            LinkCommand::Sources { has_left_messages } => {
                self.synchronize_sources();
                if has_left_messages {
                    // Their missing acknowledgements would delay those of all later messages.
                    return Err("a source ended with unaccepted messages".to_owned());
                }
            }
        }
        Ok(())
    }

    /// Subscribes for new sources, and unsubscribes for removed ones, also for those whose SUBSCRIBE has no answer yet.
    fn synchronize_sources(&mut self) {
        let wanted = self.task.shared.sources();
        let has =
            |list: &[Arc<Registration>], one: &Arc<Registration>| list.iter().any(|other| Arc::ptr_eq(other, one));
        let mut removed = std::mem::take(&mut self.task.unconfirmed);
        removed.retain(|source| !has(&wanted, source));
        removed.extend(self.task.subscribed.extract_if(.., |source| !has(&wanted, source)));
        let pending = self.subscribing.extract_if(.., |(_, source, _)| !has(&wanted, source));
        removed.extend(pending.map(|(_, source, _)| source));
        for source in &removed {
            self.unsubscribe(source, &wanted);
        }
        for source in &wanted {
            let is_pending = self
                .subscribing
                .iter()
                .any(|(_, pending, _)| Arc::ptr_eq(pending, source));
            if !is_pending && !has(&self.task.subscribed, source) {
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
                no_local: self.limits.loop_mark.is_some()
                    && version.has_properties()
                    && !subscription.filter.starts_with("$share/"),
                retain_as_published: true,
                retain_handling: RetainHandling::SendIfNew,
            },
        });
        let mut bytes = Vec::new();
        let filters = SubscribeFilters::encode(filters.collect::<Vec<_>>(), version, &mut bytes);
        let packet_id = self.task.session.request_id();
        let subscribe = Subscribe {
            packet_id,
            properties: Properties::EMPTY,
            filters,
        };
        Packet::Subscribe(subscribe).encode(version, &mut self.out.bytes);
        self.subscribing.push((packet_id, Arc::clone(source), Instant::now()));
    }

    /// Unsubscribes, except from filters that another source also has.
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
        let packet_id = self.task.session.request_id();
        let mut bytes = Vec::new();
        let unsubscribe = Unsubscribe {
            packet_id,
            properties: Properties::EMPTY,
            filters: UnsubscribeFilters::encode(filters, &mut bytes),
        };
        Packet::Unsubscribe(unsubscribe).encode(self.limits.version, &mut self.out.bytes);
    }

    fn subscribed(&mut self, id: PacketId, reasons: &[u8]) {
        let Some(at) = self.subscribing.iter().position(|(pending, _, _)| *pending == id) else {
            return;
        };
        let (_, source, _) = self.subscribing.swap_remove(at);
        let refused = reasons
            .iter()
            .zip(&source.config.subscriptions)
            .find(|(reason, _)| **reason >= 0x80);
        let refusal = refused.map(|(&reason, subscription)| {
            let reason = ReasonCode::from_u8(reason).map_or("no reason", ReasonCode::name);
            format!(
                "the broker rejected the subscription to {}: {reason}",
                subscription.filter
            )
        });
        source.set_refusal(refusal);
        self.task.subscribed.push(source);
    }

    fn check_deadlines(&mut self, now: Instant) -> Result<(), String> {
        let is_late = |since: Instant| now.saturating_duration_since(since) > self.answer_limit;
        let limit_ms = self.answer_limit.as_millis();
        // While a slow receiver stops reading, responses may be unread instead of late.
        if self.may_read() {
            let subscribing = self.subscribing.iter().map(|(_, _, since)| *since).min();
            let ping_sent_ns = self.task.session.keep_alive.ping_sent_ns();
            let pinged = ping_sent_ns.map(|sent_ns| self.task.started + Duration::from_nanos(sent_ns));
            let oldest = [self.outgoing.oldest(&self.task.session), pinged, subscribing]
                .into_iter()
                .flatten()
                .min();
            if oldest.is_some_and(is_late) {
                return Err(format!(
                    "no response from the broker within {limit_ms} ms (answer_timeout_ms)"
                ));
            }
        }
        let now_ns = self.now_ns();
        let session = &mut self.task.session;
        if session.keep_alive.ping_due_ns().is_some_and(|due_ns| now_ns >= due_ns) {
            session.ping(now_ns, &mut self.out.bytes);
        }
        Ok(())
    }

    async fn disconnect(&mut self, mut writer: WriteHalf<ConnectorStream>) -> Result<(), String> {
        self.task.session.disconnect(Properties::EMPTY, &mut self.out.bytes);
        let sending = async {
            writer.write_all(&self.out.bytes).await?;
            writer.shutdown().await
        };
        // The broker may already be unreachable.
        let _ = timeout(DISCONNECT_TIMEOUT, sending).await;
        Ok(())
    }
}

/// Handles a command without a connection.
fn fail(shared: &MqttConnectorShared, incoming: &mut IncomingState, command: LinkCommand) {
    match command {
        LinkCommand::Publish(batch) => {
            let reason = match &*shared.state.borrow() {
                LinkState::Failed(reason) => reason.clone(),
                _ => "not connected".to_owned(),
            };
            // The pump may no longer wait for the result.
            let _ = batch
                .reply
                .send(all(&batch.records, Err(DeliveryFailure::Unreachable(reason))));
        }
        LinkCommand::Accepted(tickets) => incoming.accepted(&tickets),
        LinkCommand::Sources { .. } => {}
    }
}

/// Cancel-safe.
async fn write_or_flush(writer: &mut WriteHalf<ConnectorStream>, bytes: &[u8]) -> std::io::Result<usize> {
    if bytes.is_empty() {
        return writer.flush().await.map(|()| 0);
    }
    match writer.write(bytes).await? {
        0 => Err(std::io::ErrorKind::WriteZero.into()),
        count => Ok(count),
    }
}

fn disconnected(disconnect: &Disconnect<'_>) -> String {
    let mut text = format!("the broker closed the connection: {}", disconnect.reason.name());
    if let Some(reason) = disconnect.properties.reason_string() {
        text.push_str(&format!(": {reason}"));
    }
    text
}
