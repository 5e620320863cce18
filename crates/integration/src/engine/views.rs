//! Views of definitions and their state for the API.

use super::*;
use crate::metrics::SourceCounts;
use crate::timing::RuleTiming;

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ConnectorView {
    #[serde(flatten)]
    pub definition: ConnectorDefinition,
    /// Why it does not run although it is enabled.
    pub problems: Problems,
    /// Ids of actions that use it, as `type:name`.
    pub actions: Vec<String>,
    /// Ids of sources that use it, as `type:name`.
    pub sources: Vec<String>,
    /// Location in the configuration, if it is declared there. The API cannot change it then.
    pub pinned_by: Option<String>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ActionView {
    pub id: String,
    #[serde(flatten)]
    pub definition: ActionDefinition,
    /// Why it does not run although it is enabled.
    pub problems: Problems,
    pub is_paused: bool,
    pub health: Option<ConnectionHealth>,
    pub metrics: Option<ActionStats>,
    /// Ids of rules that use it.
    pub rules: Vec<String>,
    /// Ids of actions that have it as a fallback.
    pub fallback_of: Vec<String>,
    /// Ids of its fallback actions that do not exist or do not run.
    pub missing_fallback_actions: Vec<String>,
    /// Location in the configuration, if it is declared there. The API cannot change it then.
    pub pinned_by: Option<String>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct SourceView {
    pub id: String,
    /// Names of the source in FROM of rules.
    pub from: Vec<String>,
    #[serde(flatten)]
    pub definition: SourceDefinition,
    /// Why it does not run although it is enabled, or does not receive all messages of its subscriptions.
    pub problems: Problems,
    pub health: Option<ConnectionHealth>,
    pub metrics: SourceCounts,
    /// Location in the configuration, if it is declared there. The API cannot change it then.
    pub pinned_by: Option<String>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct RuleView {
    #[serde(flatten)]
    pub definition: RuleDefinition,
    /// Topics, events and sources in FROM.
    pub from: Vec<String>,
    pub metrics: RuleCounts,
    pub timing: RuleTiming,
    pub last_error: Option<String>,
    /// Ids of its actions that do not exist or do not run.
    pub missing_actions: Vec<String>,
    /// Problems with other definitions, such as sources in FROM that do not exist, or a topic that SELECT does not
    /// output.
    pub warnings: Vec<String>,
    pub version: u64,
    /// Location in the configuration, if it is declared there. The API cannot change it then.
    pub pinned_by: Option<String>,
}

impl EngineState {
    /// Returns an enabled connector that runs.
    pub(super) fn usable_connector(&self, name: &str) -> Result<&Connector, Problems> {
        let definition = self.definitions.connectors.get(name);
        match (definition, self.connectors.get(name)) {
            (Some(definition), _) if !definition.enable => Err(vec![format!("connector: {name:?} is disabled")]),
            (_, Some(Ok(connector))) => Ok(connector),
            (_, Some(Err(problems))) => {
                let problems = problems.join("; ");
                Err(vec![format!("connector: {name:?} does not run: {problems}")])
            }
            (_, None) => Err(vec![format!("connector: there is no connector {name:?}")]),
        }
    }

    pub(super) fn source(&self, definition: &SourceDefinition) -> Result<kinds::SourceHandle, Problems> {
        let connector = self.usable_connector(&definition.connector)?;
        kinds::source(&definition.id(), &definition.kind, connector, &definition.parameters)
    }

    pub(super) fn overlaps(&self, definition: &SourceDefinition) -> Problems {
        kinds::overlaps(definition, self.definitions.sources.values())
    }

    pub(super) fn source_view(&self, definition: &SourceDefinition) -> SourceView {
        let id = definition.id();
        let metrics = self.source_metrics.get(&id);
        let (running, problems) = match self.sources.get(&id) {
            Some(Ok(running)) => (Some(running), self.overlaps(definition)),
            Some(Err(problems)) => (None, problems.clone()),
            None => (None, Problems::new()),
        };
        SourceView {
            pinned_by: self.origins.sources.get(&id).cloned(),
            id,
            from: definition.from_names().into(),
            metrics: metrics.map(|metrics| metrics.counts()).unwrap_or_default(),
            problems,
            health: running.map(|running| running.handle.health()),
            definition: definition.shown(),
        }
    }

    pub(super) fn target(&self, definition: &ActionDefinition) -> Result<ActionTarget, Problems> {
        let id = definition.id();
        if kinds::is_local(&definition.kind) {
            return kinds::target(&id, &definition.kind, None, &definition.parameters);
        }
        let connector = self.usable_connector(&definition.connector)?;
        kinds::target(&id, &definition.kind, Some(connector), &definition.parameters)
    }

    pub(super) fn actions_of(&self, connector: &str) -> Vec<ActionDefinition> {
        let actions = self.definitions.actions.values();
        actions
            .filter(|action| action.connector == connector)
            .cloned()
            .collect()
    }

    pub(super) fn sources_of(&self, connector: &str) -> Vec<SourceDefinition> {
        let sources = self.definitions.sources.values();
        sources
            .filter(|source| source.connector == connector)
            .cloned()
            .collect()
    }

    pub(super) fn rules_of(&self, action: &str) -> Vec<String> {
        let uses = |rule: &&RuleDefinition| {
            let mut actions = rule.actions.iter();
            actions.any(|used| matches!(used, RuleActionDefinition::Action(id) if id == action))
        };
        self.definitions
            .rules
            .values()
            .filter(uses)
            .map(|rule| rule.id.clone())
            .collect()
    }

    pub(super) fn connector_view(&self, definition: &ConnectorDefinition) -> ConnectorView {
        let problems = match self.connectors.get(&definition.name) {
            Some(Err(problems)) => problems.clone(),
            _ => Problems::new(),
        };
        ConnectorView {
            pinned_by: self.origins.connectors.get(&definition.name).cloned(),
            problems,
            actions: self
                .actions_of(&definition.name)
                .iter()
                .map(ActionDefinition::id)
                .collect(),
            sources: self
                .sources_of(&definition.name)
                .iter()
                .map(SourceDefinition::id)
                .collect(),
            definition: definition.shown(),
        }
    }

    pub(super) fn action_view(&self, definition: &ActionDefinition) -> ActionView {
        let id = definition.id();
        let (running, problems) = match self.actions.get(&id) {
            Some(Ok(running)) => (Some(running), running.problems()),
            Some(Err(problems)) => (None, problems.clone()),
            None => (None, Problems::new()),
        };
        ActionView {
            pinned_by: self.origins.actions.get(&id).cloned(),
            problems,
            is_paused: running.is_some_and(|running| running.action.is_paused()),
            health: running.map(|running| running.action.health()),
            metrics: running.map(|running| running.action.stats()),
            rules: self.rules_of(&id),
            fallback_of: self.actions_with_fallback(&id),
            missing_fallback_actions: self.missing_fallbacks(definition),
            definition: ActionDefinition {
                delivery: kinds::delivery(&definition.kind, &definition.delivery)
                    .ok()
                    .and_then(|delivery| serde_json::to_value(delivery).ok())
                    .unwrap_or_default(),
                ..definition.shown()
            },
            id,
        }
    }

    pub(super) fn rule_view(&self, definition: &RuleDefinition) -> RuleView {
        let rule = self.rules.get(&definition.id);
        let is_missing = |action: &&RuleActionDefinition| match action {
            RuleActionDefinition::Action(id) => !matches!(self.actions.get(id), Some(Ok(_))),
            RuleActionDefinition::Function(_) => false,
        };
        let missing = definition.actions.iter().filter(is_missing).map(|action| match action {
            RuleActionDefinition::Action(id) => id.clone(),
            RuleActionDefinition::Function(_) => String::new(),
        });
        RuleView {
            pinned_by: self.origins.rules.get(&definition.id).cloned(),
            from: rule.map(RuleState::from).unwrap_or_default(),
            metrics: rule.map(|rule| rule.metrics.counts()).unwrap_or_default(),
            timing: rule.map(|rule| rule.timing.shown()).unwrap_or_default(),
            last_error: rule.and_then(|rule| rule.metrics.last_error()),
            missing_actions: missing.collect(),
            warnings: self.warnings(definition),
            version: self.stored.version(&definition.id),
            definition: definition.clone(),
        }
    }
}
