//! Processes the messages of sources: runs rules on them, and publishes them as the source's definition says. A message
//! is confirmed to the external system after the broker and the buffers of actions have stored it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use connectors::mqtt::LOOP_PROPERTY;
use connectors::{BoxFuture, Receiver, SourceMessage, SourceOrigin, TimestampSource};
use rules::{Column, EventKind, Map, RuleEvent, Text, Value};
use tokio::sync::Notify;

use crate::cause::{EventCause, hash};
use crate::clock::unix_ms;
use crate::event::{EventContext, properties_value};
use crate::loops::{self, bridges_before};
use crate::metrics::SourceMetrics;
use crate::republish::{PendingPublishes, publish_all, republish};
use crate::runner::RuleRunner;
use crate::set::Republish;

/// The receiver of one source.
pub struct SourceReceiver {
    /// Names of the source in FROM.
    pub names: [String; 2],
    pub context: EventContext,
    /// Address of the MQTT broker, from its connector.
    pub server: Option<Text>,
    /// Generator of message ids: a counter with a prefix that differs between sources.
    pub ids: AtomicU64,
    pub publish: Option<Republish>,
    pub runner: Mutex<RuleRunner>,
    pub metrics: Arc<SourceMetrics>,
    /// Notified when buffers of actions have committed records.
    pub progress: Arc<Notify>,
    pub net: net::ServerHandle,
    pub refused: Mutex<Option<RefusedBatch>>,
}

impl Receiver for SourceReceiver {
    fn receive<'a>(&'a self, batch: &'a [SourceMessage]) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let result = self.take(batch).await;
            match &result {
                Ok(failed) => self.metrics.add_received(batch.len(), *failed),
                Err(_) => self.metrics.add_refused(),
            }
            result.map(drop)
        })
    }
}

/// The result of evaluating a batch.
struct EvaluatedBatch {
    /// The records of rules are durable when this tick is committed.
    tick: u64,
    messages: PendingPublishes,
    /// Number of messages that cannot be published.
    failed: u64,
}

/// A batch that could not be stored completely, and its messages that are still unpublished. The source passes the
/// batch again later.
pub struct RefusedBatch {
    batch: Vec<SourceMessage>,
    evaluated: EvaluatedBatch,
}

impl SourceReceiver {
    /// Processes a batch. Returns the number of messages that could not be published.
    async fn take(&self, batch: &[SourceMessage]) -> Result<u64, String> {
        // If the batch was refused before, its rules were already evaluated and some of its messages may be published.
        let before = self.refused().take().filter(|refused| refused.batch == batch);
        let mut evaluated = match before {
            Some(refused) => refused.evaluated,
            None => self.evaluate(batch)?,
        };
        self.wait_for_buffers(evaluated.tick).await;
        match publish_all(&self.net, &mut evaluated.messages).await {
            Ok(()) => Ok(evaluated.failed),
            Err(problem) => {
                let batch = batch.to_vec();
                *self.refused() = Some(RefusedBatch { batch, evaluated });
                Err(problem)
            }
        }
    }

    fn refused(&self) -> MutexGuard<'_, Option<RefusedBatch>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the rules on a batch.
    fn evaluate(&self, batch: &[SourceMessage]) -> Result<EvaluatedBatch, String> {
        let mut runner = self.runner.lock().unwrap_or_else(PoisonError::into_inner);
        if runner.append() {
            return Err("the buffer of an action is full".into());
        }
        runner.update();
        let mut rules = Vec::new();
        for name in &self.names {
            let mut named = Vec::new();
            runner.set.index.bridge(name, &mut named);
            rules.append(&mut named);
        }
        rules.sort_unstable();
        rules.dedup();
        let unix_ms = unix_ms();
        runner.environment.unix_ms = unix_ms;
        let context = EventContext {
            unix_ms,
            ..self.context.clone()
        };
        let (mut messages, mut failed) = (Vec::new(), 0);
        for incoming in batch {
            let event = SourceEvent {
                context: &context,
                incoming,
                server: self.server.as_ref(),
                id: u128::from(unix_ms) << 64 | u128::from(self.ids.fetch_add(1, Ordering::Relaxed)),
            };
            let bridges = bridges_before(incoming);
            let cause = EventCause {
                bridges: &bridges,
                delays_acknowledgement: true,
                key: hash(incoming.key.as_deref().unwrap_or(incoming.topic.as_bytes())),
                ..EventCause::default()
            };
            runner.run(&rules, &event, cause);
            messages.append(&mut runner.republished);
            if let Some(templates) = &self.publish {
                match republish(templates, &event.columns(), 0) {
                    Ok(mut message) => {
                        loops::mark(&mut message, &bridges);
                        messages.push(message);
                    }
                    // A retry would fail as well, so the message is counted as failed and the others continue.
                    Err(error) => {
                        failed += 1;
                        tracing::warn!(source = %self.names[0], error, "publishing a message of a source failed");
                    }
                }
            }
        }
        Ok(EvaluatedBatch {
            tick: runner.flush(),
            messages: PendingPublishes::new(&self.net, messages),
            failed,
        })
    }

    async fn wait_for_buffers(&self, tick: u64) {
        loop {
            let progress = self.progress.notified();
            {
                let mut runner = self.runner.lock().unwrap_or_else(PoisonError::into_inner);
                runner.append();
                if runner.committed_tick() >= tick {
                    return;
                }
            }
            progress.await;
        }
    }
}

/// A message from a source, as an event.
struct SourceEvent<'a> {
    context: &'a EventContext,
    incoming: &'a SourceMessage,
    server: Option<&'a Text>,
    id: u128,
}

impl SourceEvent<'_> {
    /// Returns all defined columns, for templates.
    fn columns(&self) -> Map {
        let columns = EventKind::Source.columns().map(|column| {
            let value = match column {
                Column::Payload => Value::text(self.payload()),
                column => self.column(column),
            };
            (Text::from(column.name()), value)
        });
        columns.filter(|(_, value)| *value != Value::Undefined).collect()
    }

    /// Returns the headers without the marks of loop protection.
    fn headers(&self) -> Value {
        let header = |(name, value): &(String, Option<Vec<u8>>)| {
            let value = value.as_deref().map_or(Value::Null, Value::text);
            (Text::from(name.as_str()), value)
        };
        let headers = self.incoming.headers.iter();
        let shown = headers.filter(|(name, _)| name != LOOP_PROPERTY);
        Value::Map(shown.map(header).collect())
    }
}

impl RuleEvent for SourceEvent<'_> {
    fn kind(&self) -> EventKind {
        EventKind::Source
    }

    fn column(&self, column: Column) -> Value {
        let incoming = self.incoming;
        let bytes = |bytes: &Option<Vec<u8>>| bytes.as_deref().map_or(Value::Null, Value::text);
        match (column, incoming.origin) {
            (Column::Id, _) => Value::text(format!("{:032X}", self.id)),
            (Column::Topic, _) => Value::text(incoming.topic.as_str()),
            (Column::Key, SourceOrigin::Kafka { .. }) => bytes(&incoming.key),
            (Column::Value, SourceOrigin::Kafka { .. }) => bytes(&incoming.payload),
            (Column::Headers, SourceOrigin::Kafka { .. }) => self.headers(),
            (Column::Partition, SourceOrigin::Kafka { partition, .. }) => Value::Int(partition.into()),
            (Column::Offset, SourceOrigin::Kafka { offset, .. }) => Value::Int(offset.into()),
            (Column::Ts, SourceOrigin::Kafka { .. }) => incoming
                .unix_ms
                .map_or(Value::Undefined, |unix_ms| Value::Int(unix_ms.into())),
            (Column::TsType, SourceOrigin::Kafka { stamped_by, .. }) => Value::text(match stamped_by {
                TimestampSource::Unset => "undefined",
                TimestampSource::Producer => "create",
                TimestampSource::Broker => "append",
            }),
            (Column::Server, SourceOrigin::Mqtt { .. }) => self.server.cloned().map_or(Value::Undefined, Value::Text),
            (Column::Dup, SourceOrigin::Mqtt { is_duplicate, .. }) => Value::Bool(is_duplicate),
            (Column::QoS, SourceOrigin::Mqtt { qos, .. }) => Value::Int(qos.into()),
            (Column::Retain, SourceOrigin::Mqtt { is_retained, .. }) => Value::Bool(is_retained),
            (Column::PubProps, SourceOrigin::Mqtt { .. }) => properties_value(&incoming.properties),
            (Column::MessageReceivedAt, _) => Value::Int(self.context.unix_ms.into()),
            _ => self.context.column(EventKind::Source, column),
        }
    }

    fn payload(&self) -> &[u8] {
        self.incoming.payload.as_deref().unwrap_or_default()
    }
}
