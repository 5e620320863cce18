//! Keeps the last lines of the log in memory, in addition to its normal output.

use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use api::{LogLineLevel, LogRing};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

pub struct RingLayer(pub Arc<LogRing>);

impl<S: Subscriber> Layer<S> for RingLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = FormattedEvent::default();
        event.record(&mut line);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let text = line.message + &line.fields;
        let (metadata, at_unix_ms) = (event.metadata(), now.as_millis() as u64);
        self.0
            .push(at_unix_ms, level(*metadata.level()), metadata.target(), text);
    }
}

fn level(level: Level) -> LogLineLevel {
    match level {
        Level::ERROR => LogLineLevel::Error,
        Level::WARN => LogLineLevel::Warn,
        Level::INFO => LogLineLevel::Info,
        Level::DEBUG => LogLineLevel::Debug,
        Level::TRACE => LogLineLevel::Trace,
    }
}

/// The message, and what follows it.
#[derive(Default)]
struct FormattedEvent {
    message: String,
    fields: String,
}

impl Visit for FormattedEvent {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
        written.expect("a String accepts all text");
    }
}
