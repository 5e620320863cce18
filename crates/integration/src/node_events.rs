//! Events of the node for rules: alarms that begin and end. Runs outside the data plane.

use std::sync::Arc;
use std::time::Duration;

use rules::{Column, EventKind, RuleEvent, Text, Value};

use crate::cause::{EventCause, hash};
use crate::clock::unix_ms;
use crate::environment::{LiveEnvironment, SharedStore};
use crate::event::EventContext;
use crate::republish::{PendingPublishes, publish_all};
use crate::runner::RuleRunner;
use crate::set::ActiveRules;

/// Maximum time to store messages that rules publish about alarms. Waiting without a limit could block later alarms,
/// for example if the alarm is that the journal is full.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlarmEvent {
    pub name: String,
    pub message: String,
    pub details: Vec<(String, String)>,
    pub activated_unix_ms: u64,
    /// When the alarm ended.
    pub deactivated_unix_ms: Option<u64>,
}

/// Passes alarm events to rules. There is one per node.
pub struct NodeEvents {
    runner: RuleRunner,
    context: EventContext,
    net: net::ServerHandle,
}

impl NodeEvents {
    pub(crate) fn new(
        node: &str,
        active_rules: Arc<ActiveRules>,
        store: SharedStore,
        net: net::ServerHandle,
    ) -> NodeEvents {
        NodeEvents {
            runner: RuleRunner::new(active_rules, LiveEnvironment::new(unix_ms(), store)),
            context: EventContext::new(node),
            net,
        }
    }

    /// Sends events to the rules. Call it periodically even without events, to retry appends to full buffers.
    pub async fn send(&mut self, events: &[AlarmEvent]) {
        self.runner.append();
        self.runner.update();
        self.context.unix_ms = unix_ms();
        self.runner.environment.unix_ms = self.context.unix_ms;
        let mut rules = Vec::new();
        for alarm in events {
            let event = NodeAlarmEvent {
                context: &self.context,
                alarm,
            };
            rules.clear();
            self.runner.set.index.event(event.kind(), &mut rules);
            let cause = EventCause {
                key: hash(alarm.name.as_bytes()),
                ..EventCause::default()
            };
            self.runner.run(&rules, &event, cause);
        }
        self.runner.flush();
        let made = std::mem::take(&mut self.runner.republished);
        if made.is_empty() {
            return;
        }
        let mut made = PendingPublishes::new(&self.net, made);
        let published = tokio::time::timeout(PUBLISHED_WITHIN, publish_all(&self.net, &mut made)).await;
        let published = published.unwrap_or_else(|_| Err("the journal did not store the messages in time".into()));
        if let Err(error) = published {
            tracing::warn!(error, "messages about an alarm are possibly not stored");
        }
    }
}

struct NodeAlarmEvent<'a> {
    context: &'a EventContext,
    alarm: &'a AlarmEvent,
}

impl RuleEvent for NodeAlarmEvent<'_> {
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
            column => self.context.column(self.kind(), column),
        }
    }

    fn payload(&self) -> &[u8] {
        &[]
    }
}
