//! What sources bring: rules see it, and it is published as the source's definition says. The outside is told that we have it when
//! the broker and the buffers of actions have kept it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use connectors::{BoxFuture, Incoming, Origin, Receiver, StampedBy};
use rules::{Column, Event, EventKind, Map, Text, Value};
use tokio::sync::Notify;

use crate::environment::unix_ms;
use crate::event::{Scene, properties_value};
use crate::loops::{self, bridges_before};
use crate::metrics::SourceMetrics;
use crate::republish::{Unpublished, publish_all, republish};
use crate::runner::{Cause, Runner, hash};
use crate::set::Republish;

/// Takes what one source has.
pub struct SourceReceiver {
    /// What FROM may call it.
    pub names: [String; 2],
    pub scene: Scene,
    /// Of a broker, as its connector names it.
    pub server: Option<Text>,
    /// How many messages it has had, and what tells its ids from those of others.
    pub ids: AtomicU64,
    pub publish: Option<Republish>,
    pub runner: Mutex<Runner>,
    pub metrics: Arc<SourceMetrics>,
    /// Buffers of actions have kept something.
    pub progress: Arc<Notify>,
    pub net: net::Handle,
    pub refused: Mutex<Option<Refused>>,
}

impl Receiver for SourceReceiver {
    fn receive<'a>(&'a self, batch: &'a [Incoming]) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let taken = self.take(batch).await;
            match &taken {
                Ok(failed) => self.metrics.taken(batch.len(), *failed),
                Err(_) => self.metrics.refused(),
            }
            taken.map(drop)
        })
    }
}

/// What comes of a batch.
struct Evaluated {
    /// What rules made of it is kept when this is.
    tick: u64,
    messages: Unpublished,
    /// That cannot be published.
    failed: u64,
}

/// A batch that was refused, and what is still to be done for it: the source hands it over once more.
pub struct Refused {
    batch: Vec<Incoming>,
    evaluated: Evaluated,
}

impl SourceReceiver {
    /// Returns how many could not be published.
    async fn take(&self, batch: &[Incoming]) -> Result<u64, String> {
        // Rules have had a batch that was refused before, and part of it may be published.
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
                *self.refused() = Some(Refused { batch, evaluated });
                Err(problem)
            }
        }
    }

    fn refused(&self) -> MutexGuard<'_, Option<Refused>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the rules; says what has to be kept, and what is to be published.
    fn evaluate(&self, batch: &[Incoming]) -> Result<Evaluated, String> {
        let mut runner = self.runner.lock().unwrap_or_else(PoisonError::into_inner);
        if runner.append() {
            return Err("the buffer of an action is full".into());
        }
        runner.renew();
        let mut rules = Vec::new();
        for name in &self.names {
            let mut named = Vec::new();
            runner.set.index.bridge(name, &mut named);
            rules.append(&mut named);
        }
        rules.sort_unstable();
        rules.dedup();
        let unix_ms = unix_ms();
        runner.surroundings.unix_ms = unix_ms;
        let scene = Scene {
            unix_ms,
            ..self.scene.clone()
        };
        let (mut messages, mut failed) = (Vec::new(), 0);
        for incoming in batch {
            let event = Arrived {
                scene: &scene,
                incoming,
                server: self.server.as_ref(),
                id: u128::from(unix_ms) << 64 | u128::from(self.ids.fetch_add(1, Ordering::Relaxed)),
            };
            let bridges = bridges_before(incoming);
            let cause = Cause {
                bridges: &bridges,
                is_waited_for: true,
                key: hash(incoming.key.as_deref().unwrap_or(incoming.topic.as_bytes())),
                ..Cause::default()
            };
            runner.run(&rules, &event, cause);
            messages.append(&mut runner.made);
            if let Some(templates) = &self.publish {
                match republish(templates, &event.columns(), 0) {
                    Ok(mut message) => {
                        loops::mark(&mut message, &bridges);
                        messages.push(message);
                    }
                    // The same the next time: a message that cannot be published must not stop the others.
                    Err(error) => {
                        failed += 1;
                        tracing::warn!(source = %self.names[0], error, "a message of a source is not published");
                    }
                }
            }
        }
        Ok(Evaluated {
            tick: runner.flush(),
            messages: Unpublished::new(&self.net, messages),
            failed,
        })
    }

    async fn wait_for_buffers(&self, tick: u64) {
        loop {
            let progress = self.progress.notified();
            {
                let mut runner = self.runner.lock().unwrap_or_else(PoisonError::into_inner);
                runner.append();
                if runner.kept() >= tick {
                    return;
                }
            }
            progress.await;
        }
    }
}

/// A message from outside, as an event.
struct Arrived<'a> {
    scene: &'a Scene,
    incoming: &'a Incoming,
    server: Option<&'a Text>,
    id: u128,
}

impl Arrived<'_> {
    /// All that there is, for templates.
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

    fn headers(&self) -> Value {
        let header = |(name, value): &(String, Option<Vec<u8>>)| {
            let value = value.as_deref().map_or(Value::Null, Value::text);
            (Text::from(name.as_str()), value)
        };
        Value::Map(self.incoming.headers.iter().map(header).collect())
    }
}

impl Event for Arrived<'_> {
    fn kind(&self) -> EventKind {
        EventKind::Source
    }

    fn column(&self, column: Column) -> Value {
        let incoming = self.incoming;
        let bytes = |bytes: &Option<Vec<u8>>| bytes.as_deref().map_or(Value::Null, Value::text);
        match (column, incoming.origin) {
            (Column::Id, _) => Value::text(format!("{:032X}", self.id)),
            (Column::Topic, _) => Value::text(incoming.topic.as_str()),
            (Column::Key, Origin::Kafka { .. }) => bytes(&incoming.key),
            (Column::Value, Origin::Kafka { .. }) => bytes(&incoming.payload),
            (Column::Headers, Origin::Kafka { .. }) => self.headers(),
            (Column::Partition, Origin::Kafka { partition, .. }) => Value::Int(partition.into()),
            (Column::Offset, Origin::Kafka { offset, .. }) => Value::Int(offset.into()),
            (Column::Ts, Origin::Kafka { .. }) => incoming
                .unix_ms
                .map_or(Value::Undefined, |unix_ms| Value::Int(unix_ms.into())),
            (Column::TsType, Origin::Kafka { stamped_by, .. }) => Value::text(match stamped_by {
                StampedBy::Nobody => "undefined",
                StampedBy::Producer => "create",
                StampedBy::Broker => "append",
            }),
            (Column::Server, Origin::Mqtt { .. }) => self.server.cloned().map_or(Value::Undefined, Value::Text),
            (Column::Dup, Origin::Mqtt { is_duplicate, .. }) => Value::Bool(is_duplicate),
            (Column::QoS, Origin::Mqtt { qos, .. }) => Value::Int(qos.into()),
            (Column::Retain, Origin::Mqtt { is_retained, .. }) => Value::Bool(is_retained),
            (Column::PubProps, Origin::Mqtt { .. }) => properties_value(&incoming.properties),
            (Column::MessageReceivedAt, _) => Value::Int(self.scene.unix_ms.into()),
            _ => self.scene.column(EventKind::Source, column),
        }
    }

    fn payload(&self) -> &[u8] {
        self.incoming.payload.as_deref().unwrap_or_default()
    }
}
