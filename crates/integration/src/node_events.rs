//! What happens to the node itself, for rules: alarms that begin and end. Off the data plane.

use std::sync::Arc;
use std::time::Duration;

use rules::{Column, Event, EventKind, Text, Value};

use crate::environment::{SharedStore, Surroundings, unix_ms};
use crate::event::Scene;
use crate::republish::{Unpublished, publish_all};
use crate::runner::{Cause, Runner, hash};
use crate::set::InForce;

/// How long what rules publish about alarms may take to be kept. An alarm may be about just that being impossible.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlarmEvent {
    pub name: String,
    pub message: String,
    pub details: Vec<(String, String)>,
    pub activated_unix_ms: u64,
    /// It has ended.
    pub deactivated_unix_ms: Option<u64>,
}

/// Tells rules. One is enough.
pub struct NodeEvents {
    runner: Runner,
    scene: Scene,
    net: net::Handle,
}

impl NodeEvents {
    pub(crate) fn new(node: &str, in_force: Arc<InForce>, store: SharedStore, net: net::Handle) -> NodeEvents {
        NodeEvents {
            runner: Runner::new(in_force, Surroundings::new(unix_ms(), store)),
            scene: Scene::new(node),
            net,
        }
    }

    /// To be called from time to time also without events: what found the buffer of an action full is tried again.
    pub async fn tell(&mut self, events: &[AlarmEvent]) {
        self.runner.append();
        self.runner.renew();
        self.scene.unix_ms = unix_ms();
        self.runner.surroundings.unix_ms = self.scene.unix_ms;
        let mut rules = Vec::new();
        for alarm in events {
            let event = Alarm {
                scene: &self.scene,
                alarm,
            };
            rules.clear();
            self.runner.set.index.event(event.kind(), &mut rules);
            let cause = Cause {
                key: hash(alarm.name.as_bytes()),
                ..Cause::default()
            };
            self.runner.run(&rules, &event, cause);
        }
        self.runner.flush();
        let made = std::mem::take(&mut self.runner.made);
        if made.is_empty() {
            return;
        }
        let mut made = Unpublished::new(&self.net, made);
        let published = tokio::time::timeout(PUBLISHED_WITHIN, publish_all(&self.net, &mut made)).await;
        let published = published.unwrap_or_else(|_| Err("the journal does not keep it".into()));
        if let Err(error) = published {
            tracing::warn!(error, "what a rule publishes about an alarm is not known to be kept");
        }
    }
}

struct Alarm<'a> {
    scene: &'a Scene,
    alarm: &'a AlarmEvent,
}

impl Event for Alarm<'_> {
    fn kind(&self) -> EventKind {
        match self.alarm.deactivated_unix_ms {
            None => EventKind::AlarmActivated,
            Some(_) => EventKind::AlarmDeactivated,
        }
    }

    fn column(&self, column: Column) -> Value {
        let alarm = self.alarm;
        match column {
            Column::Name => Value::text(alarm.name.as_str()),
            Column::Message => Value::text(alarm.message.as_str()),
            Column::Details => {
                let details = alarm.details.iter();
                Value::Map(
                    details
                        .map(|(key, value)| (Text::from(key.as_str()), Value::text(value.as_str())))
                        .collect(),
                )
            }
            Column::ActivatedAt => Value::Int(alarm.activated_unix_ms.into()),
            Column::DeactivatedAt => alarm
                .deactivated_unix_ms
                .map_or(Value::Undefined, |at| Value::Int(at.into())),
            column => self.scene.column(self.kind(), column),
        }
    }

    fn payload(&self) -> &[u8] {
        &[]
    }
}
