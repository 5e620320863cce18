//! Definitions in the configuration or in its included files. They are pinned: the API shows them, but cannot change
//! them.

use std::collections::BTreeMap;

use crate::compile::{RuleState, compile, published};
use crate::compile_action::{action_problems, fallback_cycle};
use crate::definition::{
    ActionDefinition, ConnectorDefinition, RuleDefinition, SourceDefinition, name_problem, rule_id_problem,
};
use crate::environment::RuleTime;
use crate::kinds::{self, Connector, Problems};
use crate::store::Definitions;

/// A definition and its location, for example `tidewire.toml:12`.
#[derive(Clone, Debug, PartialEq)]
pub struct Declaration<D> {
    pub definition: D,
    pub origin: String,
}

/// All declared definitions, in reading order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeclaredDefinitions {
    pub connectors: Vec<Declaration<ConnectorDefinition>>,
    pub actions: Vec<Declaration<ActionDefinition>>,
    pub sources: Vec<Declaration<SourceDefinition>>,
    pub rules: Vec<Declaration<RuleDefinition>>,
    pub rule_time: RuleTime,
}

/// An error in a declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclarationProblem {
    pub origin: String,
    /// Begins with the field.
    pub message: String,
}

/// Location of each declared definition.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeclarationOrigins {
    pub connectors: BTreeMap<String, String>,
    pub actions: BTreeMap<String, String>,
    pub sources: BTreeMap<String, String>,
    pub rules: BTreeMap<String, String>,
}

impl DeclaredDefinitions {
    /// Returns all errors that can be found without connecting. If the connector of an action or source is not
    /// declared, only a part is checked, because the API may define the connector.
    pub fn problems(&self) -> Vec<DeclarationProblem> {
        let mut found = ProblemList::default();
        let mut connectors = BTreeMap::new();
        for Declaration { definition, origin } in &self.connectors {
            found.name(origin, "name", &definition.name);
            found.once("connector", origin, definition.name.clone());
            match kinds::connector(&definition.kind, &definition.config) {
                Ok(connector) => _ = connectors.insert(definition.name.as_str(), connector),
                Err(problems) => found.all(origin, problems),
            }
        }
        for Declaration { definition, origin } in &self.actions {
            found.name(origin, "name", &definition.name);
            found.once("action", origin, definition.id());
            found.all(origin, action_problems(definition, target(definition, &connectors)));
            found.all(
                origin,
                fallback_cycle(definition, |id| self.action(id)).into_iter().collect(),
            );
        }
        for Declaration { definition, origin } in &self.sources {
            found.name(origin, "name", &definition.name);
            found.once("source", origin, definition.id());
            found.all(origin, source_problems(definition, &connectors));
            let others = self.sources.iter().map(|it| &it.definition);
            found.all(origin, kinds::overlaps(definition, others));
        }
        for Declaration { definition, origin } in &self.rules {
            found.name(origin, "id", &definition.id);
            found.once("rule", origin, definition.id.clone());
            found.all(origin, rule_id_problem(&definition.id).into_iter().collect());
            found.all(origin, rule_problems(definition));
        }
        found.problems
    }

    fn action(&self, id: &str) -> Option<&ActionDefinition> {
        let mut actions = self.actions.iter().map(|it| &it.definition);
        actions.find(|it| it.id() == id)
    }

    pub(crate) fn origins(&self) -> DeclarationOrigins {
        DeclarationOrigins {
            connectors: self
                .connectors
                .iter()
                .map(|it| (it.definition.name.clone(), it.origin.clone()))
                .collect(),
            actions: self
                .actions
                .iter()
                .map(|it| (it.definition.id(), it.origin.clone()))
                .collect(),
            sources: self
                .sources
                .iter()
                .map(|it| (it.definition.id(), it.origin.clone()))
                .collect(),
            rules: self
                .rules
                .iter()
                .map(|it| (it.definition.id.clone(), it.origin.clone()))
                .collect(),
        }
    }

    /// Returns the effective definitions: the declared ones, and stored ones without a declaration of the same name.
    pub(crate) fn override_stored(&self, stored: &Definitions) -> Definitions {
        let mut all = stored.clone();
        for Declaration { definition, .. } in &self.connectors {
            all.connectors.insert(definition.name.clone(), definition.clone());
        }
        for Declaration { definition, .. } in &self.actions {
            all.actions.insert(definition.id(), definition.clone());
        }
        for Declaration { definition, .. } in &self.sources {
            all.sources.insert(definition.id(), definition.clone());
        }
        for Declaration { definition, .. } in &self.rules {
            all.rules.insert(definition.id.clone(), definition.clone());
        }
        all
    }
}

#[derive(Default)]
struct ProblemList {
    problems: Vec<DeclarationProblem>,
    seen: BTreeMap<(&'static str, String), String>,
}

impl ProblemList {
    fn all(&mut self, origin: &str, problems: Problems) {
        let problem = |message| DeclarationProblem {
            origin: origin.to_owned(),
            message,
        };
        self.problems.extend(problems.into_iter().map(problem));
    }

    fn name(&mut self, origin: &str, field: &str, name: &str) {
        self.all(origin, name_problem(field, name).into_iter().collect());
    }

    fn once(&mut self, kind: &'static str, origin: &str, id: String) {
        let message = format!("{kind} {id:?} is also declared");
        if let Some(first) = self.seen.insert((kind, id), origin.to_owned()) {
            self.all(origin, vec![format!("{message} in {first}")]);
        }
    }
}

/// Returns the target, or `None` if it depends on a connector that is not declared.
fn target(
    definition: &ActionDefinition,
    connectors: &BTreeMap<&str, Connector>,
) -> Option<Result<kinds::ActionTarget, Problems>> {
    let connector = connectors.get(definition.connector.as_str());
    let is_checkable = connector.is_some() || kinds::is_local(&definition.kind) || !kinds::is_known(&definition.kind);
    is_checkable.then(|| kinds::target(&definition.id(), &definition.kind, connector, &definition.parameters))
}

fn source_problems(definition: &SourceDefinition, connectors: &BTreeMap<&str, Connector>) -> Problems {
    let mut problems = Problems::new();
    if let Some(connector) = connectors.get(definition.connector.as_str()) {
        let made = kinds::source(&definition.id(), &definition.kind, connector, &definition.parameters);
        problems.extend(made.err().into_iter().flatten());
    }
    if let Some(Err(problem)) = definition.publish.as_deref().map(published) {
        problems.push(format!("publish.{problem}"));
    }
    problems
}

fn rule_problems(definition: &RuleDefinition) -> Problems {
    compile(definition, &RuleState::default(), |_| None)
        .err()
        .unwrap_or_default()
}
