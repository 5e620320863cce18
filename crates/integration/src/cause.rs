//! The origin of an event. Outputs keep their order and are protected against loops because of it.

/// Maximum number of times in a row that rules republish a message. Rules do not see the last message.
pub(crate) const GENERATIONS_MAX: u32 = 8;

/// Origin of an event.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventCause<'a> {
    /// Whether a publisher waits until the outputs for this event are durable.
    pub delays_acknowledgement: bool,
    /// Hash of the client id. Outputs for events of one client keep their order.
    pub key: u64,
    /// `LiveRule::mark` of the rule that made the message; 0 for none.
    pub rule: u32,
    pub generation: u32,
    /// Marks of the bridges that the message has passed (`loops.rs`).
    pub bridges: &'a [&'a str],
}

impl EventCause<'_> {
    /// Returns the cause of a message with this `TapPublication::mark`, or 0.
    pub fn of_mark(mark: u64) -> Self {
        EventCause {
            rule: mark as u32,
            generation: (mark >> 32) as u32,
            ..EventCause::default()
        }
    }

    /// Returns whether this rule has made the message. A rule does not process its own messages.
    pub fn is_own(self, rule_mark: u32) -> bool {
        rule_mark == self.rule
    }

    /// Returns the `TapPublication::mark` of a message that the rule with this mark makes of the event.
    pub fn mark(self, rule_mark: u32) -> u64 {
        u64::from(self.generation + 1) << 32 | u64::from(rule_mark)
    }
}

/// An owned [`EventCause`].
#[derive(Clone, Debug)]
pub struct OwnedEventCause {
    cause: EventCause<'static>,
    bridges: Vec<String>,
}

impl OwnedEventCause {
    pub fn of(cause: EventCause<'_>) -> OwnedEventCause {
        OwnedEventCause {
            bridges: cause.bridges.iter().map(|bridge| (*bridge).to_owned()).collect(),
            cause: EventCause {
                delays_acknowledgement: cause.delays_acknowledgement,
                key: cause.key,
                rule: cause.rule,
                generation: cause.generation,
                bridges: &[],
            },
        }
    }

    pub fn bridges(&self) -> Vec<&str> {
        self.bridges.iter().map(String::as_str).collect()
    }

    pub fn with<'a>(&self, bridges: &'a [&'a str]) -> EventCause<'a> {
        EventCause { bridges, ..self.cause }
    }
}

/// Context of the outputs of one rule for one event.
#[derive(Clone, Copy, Debug)]
pub struct OutputContext<'a> {
    pub unix_ms: u64,
    /// Becomes `MadeMessage::mark` if the output is republished.
    pub mark: u64,
    /// Marks of the bridges that the message has passed.
    pub bridges: &'a [&'a str],
}

/// Returns a mark with the highest generation, so that no rule processes the message.
pub fn without_rules(mark: u64) -> u64 {
    u64::from(GENERATIONS_MAX) << 32 | (mark & u64::from(u32::MAX))
}

/// Returns the ordering key of a text.
pub fn hash(bytes: &[u8]) -> u64 {
    use std::hash::BuildHasher;
    foldhash::quality::FixedState::default().hash_one(bytes)
}
