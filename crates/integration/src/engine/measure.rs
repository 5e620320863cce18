//! All counters and states together, for metrics.

use connectors::HealthState;

use super::*;
use crate::metrics::SourceCounts;

/// One thing and what there is to say of it.
#[derive(Clone, Debug)]
pub struct Measured<T> {
    pub name: String,
    /// In a word.
    pub state: &'static str,
    pub value: T,
}

/// Sorted by name.
#[derive(Clone, Debug, Default)]
pub struct Measures {
    pub rules: Vec<Measured<RuleCounts>>,
    /// None: it does not run.
    pub actions: Vec<Measured<Option<ActionStats>>>,
    pub sources: Vec<Measured<SourceCounts>>,
    pub connectors: Vec<Measured<()>>,
    /// Outputs that were accepted for actions that are no more.
    pub abandoned: u64,
}

impl Engine {
    pub fn measures(&self) -> Measures {
        let _runtime = self.inner.runtime_handle.enter();
        let state = self.state();
        let definitions = &state.definitions;
        Measures {
            rules: definitions.rules.values().map(|it| state.measured_rule(it)).collect(),
            actions: definitions
                .actions
                .values()
                .map(|it| state.measured_action(it))
                .collect(),
            sources: definitions
                .sources
                .values()
                .map(|it| state.measured_source(it))
                .collect(),
            connectors: definitions
                .connectors
                .values()
                .map(|it| state.measured_connector(it))
                .collect(),
            abandoned: self.inner.in_force.abandoned(),
        }
    }
}

impl State {
    fn measured_rule(&self, definition: &RuleDefinition) -> Measured<RuleCounts> {
        let rule = self.rules.get(&definition.id);
        Measured {
            name: definition.id.clone(),
            state: enabled(definition.enable),
            value: rule.map(|rule| rule.metrics.counts()).unwrap_or_default(),
        }
    }

    fn measured_action(&self, definition: &ActionDefinition) -> Measured<Option<ActionStats>> {
        let name = definition.id();
        let (state, value) = match self.actions.get(&name) {
            Some(Ok(running)) if running.action.is_paused() => ("paused", Some(running.action.stats())),
            Some(Ok(running)) if !running.problems.is_empty() => ("broken", Some(running.action.stats())),
            Some(Ok(running)) => (health(&running.action.health()), Some(running.action.stats())),
            Some(Err(_)) => ("broken", None),
            None => (enabled(definition.enable), None),
        };
        Measured { name, state, value }
    }

    fn measured_source(&self, definition: &SourceDefinition) -> Measured<SourceCounts> {
        let name = definition.id();
        let state = match self.sources.get(&name) {
            Some(Ok(held)) => health(&held.origin.health()),
            Some(Err(_)) => "broken",
            None => enabled(definition.enable),
        };
        let metrics = self.source_metrics.get(&name);
        Measured {
            state,
            value: metrics.map(|metrics| metrics.counts()).unwrap_or_default(),
            name,
        }
    }

    fn measured_connector(&self, definition: &ConnectorDefinition) -> Measured<()> {
        let state = match self.connectors.get(&definition.name) {
            Some(Err(_)) => "broken",
            _ => enabled(definition.enable),
        };
        Measured {
            name: definition.name.clone(),
            state,
            value: (),
        }
    }
}

fn enabled(is_enabled: bool) -> &'static str {
    if is_enabled { "enabled" } else { "disabled" }
}

fn health(health: &Health) -> &'static str {
    match health.state {
        HealthState::Connected => "connected",
        HealthState::Connecting => "connecting",
        HealthState::Disconnected => "disconnected",
    }
}
