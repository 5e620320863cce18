//! Counters and states of all definitions, for metrics.

use connectors::HealthState;

use super::*;
use crate::metrics::SourceCounts;
use crate::timing::RuleTiming;

/// A definition with its state and counters.
#[derive(Clone, Debug)]
pub struct MeasuredDefinition<T> {
    pub name: String,
    /// One word.
    pub state: &'static str,
    pub value: T,
}

/// All measurements, sorted by name.
#[derive(Clone, Debug, Default)]
pub struct Measures {
    pub rules: Vec<MeasuredDefinition<RuleCounts>>,
    /// Rules that are slow or have messages in the slow lane.
    pub slow_rules: Vec<MeasuredDefinition<RuleTiming>>,
    /// `None` if the action does not run.
    pub actions: Vec<MeasuredDefinition<Option<ActionStats>>>,
    pub sources: Vec<MeasuredDefinition<SourceCounts>>,
    pub connectors: Vec<MeasuredDefinition<()>>,
    /// Outputs accepted for actions that no longer exist.
    pub discarded: u64,
}

impl Engine {
    pub fn measures(&self) -> Measures {
        let _runtime = self.inner.runtime_handle.enter();
        let state = self.state();
        let definitions = &state.definitions;
        Measures {
            rules: definitions.rules.values().map(|it| state.measured_rule(it)).collect(),
            slow_rules: definitions
                .rules
                .values()
                .filter_map(|it| state.measured_slow_rule(it))
                .collect(),
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
            discarded: self.inner.active_rules.discarded(),
        }
    }
}

impl EngineState {
    fn measured_rule(&self, definition: &RuleDefinition) -> MeasuredDefinition<RuleCounts> {
        let rule = self.rules.get(&definition.id);
        MeasuredDefinition {
            name: definition.id.clone(),
            state: enabled(definition.enable),
            value: rule.map(|rule| rule.metrics.counts()).unwrap_or_default(),
        }
    }

    fn measured_slow_rule(&self, definition: &RuleDefinition) -> Option<MeasuredDefinition<RuleTiming>> {
        let timing = self.rules.get(&definition.id)?.timing.shown();
        (timing.is_slow || timing.queued > 0).then(|| MeasuredDefinition {
            name: definition.id.clone(),
            state: enabled(definition.enable),
            value: timing,
        })
    }

    fn measured_action(&self, definition: &ActionDefinition) -> MeasuredDefinition<Option<ActionStats>> {
        let name = definition.id();
        let (state, value) = match self.actions.get(&name) {
            Some(Ok(running)) if running.action.buffer().failure().is_some() => {
                ("buffer_failed", Some(running.action.stats()))
            }
            Some(Ok(running)) if running.action.is_paused() => ("paused", Some(running.action.stats())),
            Some(Ok(running)) if !running.problems.is_empty() => ("broken", Some(running.action.stats())),
            Some(Ok(running)) => (health(&running.action.health()), Some(running.action.stats())),
            Some(Err(_)) => ("broken", None),
            None => (enabled(definition.enable), None),
        };
        MeasuredDefinition { name, state, value }
    }

    fn measured_source(&self, definition: &SourceDefinition) -> MeasuredDefinition<SourceCounts> {
        let name = definition.id();
        let state = match self.sources.get(&name) {
            Some(Ok(entry)) => health(&entry.handle.health()),
            Some(Err(_)) => "broken",
            None => enabled(definition.enable),
        };
        let metrics = self.source_metrics.get(&name);
        MeasuredDefinition {
            state,
            value: metrics.map(|metrics| metrics.counts()).unwrap_or_default(),
            name,
        }
    }

    fn measured_connector(&self, definition: &ConnectorDefinition) -> MeasuredDefinition<()> {
        let state = match self.connectors.get(&definition.name) {
            Some(Err(_)) => "broken",
            _ => enabled(definition.enable),
        };
        MeasuredDefinition {
            name: definition.name.clone(),
            state,
            value: (),
        }
    }
}

fn enabled(is_enabled: bool) -> &'static str {
    if is_enabled { "enabled" } else { "disabled" }
}

fn health(health: &ConnectionHealth) -> &'static str {
    match health.state {
        HealthState::Connected => "connected",
        HealthState::Connecting => "connecting",
        HealthState::Disconnected => "disconnected",
    }
}
