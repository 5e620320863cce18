//! Warnings about rules that are valid, but do not work with the other definitions.

use rules::{FromEntry, Rule, RuleIndex};

use super::*;

impl EngineState {
    /// Returns the warnings of a rule. They may disappear when a source or action is defined or changed.
    pub(super) fn warnings(&self, definition: &RuleDefinition) -> Vec<String> {
        let Some(rule) = self.rules.get(&definition.id).and_then(RuleState::rule) else {
            return Vec::new();
        };
        let sources = rule.sources().iter().filter_map(|source| self.source_warning(source));
        let actions = definition.actions.iter().enumerate();
        let actions = actions.filter_map(|(index, action)| match action {
            RuleActionDefinition::Action(id) => self.topic_warning(rule, id, index),
            RuleActionDefinition::Function(_) => None,
        });
        sources.chain(actions).collect()
    }

    fn source_warning(&self, source: &FromEntry) -> Option<String> {
        let FromEntry::Bridge(name) = source else {
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
                "FROM {name:?}: the source does not exist; the rule receives no messages from it"
            )),
            false => Some(format!(
                "FROM {name:?}: the source is disabled; the rule receives no messages from it"
            )),
        }
    }

    /// An MQTT action needs a topic.
    fn topic_warning(&self, rule: &Rule, id: &str, index: usize) -> Option<String> {
        let definition = self
            .definitions
            .actions
            .get(id)
            .filter(|action| action.kind == "mqtt")?;
        let running = self.actions.get(id)?.as_ref().ok()?;
        // The topic is the first template of an MQTT action.
        let topic = running.templates.first()?;
        let missing = topic.fields().find(|field| !rule.can_output(field))?;
        let (name, topic) = (definition.id(), topic.source());
        Some(format!(
            "actions[{index}]: the topic of {name} is {topic:?}, but SELECT outputs no field {missing:?}; the message is not \
             sent, or its topic is wrong"
        ))
    }

    /// Logs the warnings of a rule.
    pub(super) fn warn(&self, definition: &RuleDefinition) {
        for warning in self.warnings(definition) {
            tracing::warn!(rule = %definition.id, warning, "a rule does not work with the other definitions");
        }
    }
}
