//! What is right in a rule by itself and will not work with what else is defined.

use rules::{Rule, RuleIndex, Source};

use super::*;

impl State {
    /// Of a rule, as things are now: a source or another action may come later.
    pub(super) fn warnings(&self, definition: &RuleDefinition) -> Vec<String> {
        let Some(rule) = self.rules.get(&definition.id).and_then(RuleState::rule) else {
            return Vec::new();
        };
        let sources = rule.sources().iter().filter_map(|source| self.source_warning(source));
        let actions = definition.actions.iter().enumerate();
        let actions = actions.filter_map(|(index, action)| match action {
            RuleAction::Action(id) => self.topic_warning(rule, id, index),
            RuleAction::Function(_) => None,
        });
        sources.chain(actions).collect()
    }

    fn source_warning(&self, source: &Source) -> Option<String> {
        let Source::Bridge(name) = source else {
            return None;
        };
        let mut index = RuleIndex::default();
        index.insert(source, 0);
        let is_meant = |definition: &&SourceDefinition| {
            let mut found = Vec::new();
            definition.from_names().iter().any(|name| {
                index.bridge(name, &mut found);
                !found.is_empty()
            })
        };
        let meant: Vec<_> = self.definitions.sources.values().filter(is_meant).collect();
        match meant.iter().any(|definition| definition.enable) {
            true => None,
            false if meant.is_empty() => Some(format!(
                "FROM {name:?}: there is no such source, so that nothing comes from there"
            )),
            false => Some(format!(
                "FROM {name:?}: the source is not enabled, so that nothing comes from there"
            )),
        }
    }

    /// An MQTT action sends nothing without a topic.
    fn topic_warning(&self, rule: &Rule, id: &str, index: usize) -> Option<String> {
        let definition = self
            .definitions
            .actions
            .get(id)
            .filter(|action| action.kind == "mqtt")?;
        let running = self.actions.get(id)?.as_ref().ok()?;
        // The first one of an MQTT action.
        let topic = running.templates.first()?;
        let missing = topic.fields().find(|field| !rule.can_give(field))?;
        let (name, topic) = (definition.id(), topic.source());
        Some(format!(
            "actions[{index}]: the topic of {name} is {topic:?}, and SELECT gives no field {missing:?}: the broker gets \
             no message, or one with the wrong topic"
        ))
    }

    /// Into the log.
    pub(super) fn warn(&self, definition: &RuleDefinition) {
        for warning in self.warnings(definition) {
            tracing::warn!(rule = %definition.id, warning, "a rule will not do what it says");
        }
    }
}
