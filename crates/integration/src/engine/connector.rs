//! Connectors: made, changed, deleted.

use std::time::Instant;

use connectors::Sink;

use super::*;

/// For a test; a request of the API has a little longer.
const TEST_WITHIN: Duration = Duration::from_secs(15);

/// Whether the target of a connector answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ConnectorTest {
    /// It can be reached and takes our credentials.
    pub is_reachable: bool,
    /// Why not.
    pub error: Option<String>,
    pub took_ms: u64,
}

impl Engine {
    pub fn connectors(&self) -> Vec<ConnectorView> {
        let state = self.state();
        state
            .definitions
            .connectors
            .values()
            .map(|definition| state.connector_view(definition))
            .collect()
    }

    pub fn connector(&self, name: &str) -> Result<ConnectorView, EngineError> {
        let state = self.state();
        let definition = state
            .definitions
            .connectors
            .get(name)
            .ok_or_else(|| not_found("connector", name))?;
        Ok(state.connector_view(definition))
    }

    /// Makes or changes one. Actions and sources that use it are started anew.
    pub fn put_connector(&self, mut definition: ConnectorDefinition) -> Result<ConnectorView, EngineError> {
        let mut store = self.changes();
        let name = definition.name.clone();
        let mut problems: Problems = name_problem("name", &name).into_iter().collect();
        let users = {
            let state = self.state();
            let kept = &state.kept.definitions.connectors;
            free("connector", &name, &state.origins.connectors)?;
            let old = kept.get(&name).map(|old| &old.config);
            problems.extend(restore_secrets("config", &mut definition.config, old));
            room("connectors", kept, &name, &mut problems);
            Users::of(&state, &name)
        };
        problems.extend(self.new_connector(&definition).err().into_iter().flatten());
        if let Some((id, kind)) = users.kinds().find(|(_, kind)| *kind != definition.kind) {
            problems.push(format!("type: {id} needs it to be {kind:?}"));
        }
        valid(problems)?;
        self.keep(&mut store, &Change::Connector(name.clone(), Some(definition.clone())))?;
        self.replace_connector(&definition, &users);
        self.connector(&name)
    }

    /// Actions of a connector that is not enabled keep what they are given; its sources do not run.
    pub fn enable_connector(&self, name: &str, enable: bool) -> Result<ConnectorView, EngineError> {
        let mut store = self.changes();
        let (definition, users) = {
            let state = self.state();
            free("connector", name, &state.origins.connectors)?;
            let definition = state.kept.definitions.connectors.get(name);
            let definition = definition.cloned().ok_or_else(|| not_found("connector", name))?;
            (ConnectorDefinition { enable, ..definition }, Users::of(&state, name))
        };
        self.keep(
            &mut store,
            &Change::Connector(name.to_owned(), Some(definition.clone())),
        )?;
        self.replace_connector(&definition, &users);
        self.connector(name)
    }

    pub fn delete_connector(&self, name: &str) -> Result<(), EngineError> {
        let mut store = self.changes();
        {
            let state = self.state();
            free("connector", name, &state.origins.connectors)?;
            if !state.kept.definitions.connectors.contains_key(name) {
                return Err(not_found("connector", name));
            }
            let users: Vec<String> = Users::of(&state, name).kinds().map(|(id, _)| id).collect();
            if !users.is_empty() {
                let users = users.join(", ");
                return Err(EngineError::Conflict(format!(
                    "connector {name} is used by {users}: delete them first"
                )));
            }
        }
        self.keep(&mut store, &Change::Connector(name.to_owned(), None))?;
        self.state().connectors.remove(name);
        Ok(())
    }

    /// Whether a connector's target can be reached and takes our credentials.
    pub fn test_connector(&self, name: &str) -> Result<ConnectorTest, EngineError> {
        let probe = {
            let state = self.state();
            let definition = state.definitions.connectors.get(name);
            let kind = &definition.ok_or_else(|| not_found("connector", name))?.kind;
            let connector = state.usable_connector(name).map_err(EngineError::Invalid)?;
            let _runtime = self.inner.runtime_handle.enter();
            kinds::probe(kind, connector).map_err(EngineError::Invalid)?
        };
        Ok(self.ask(&*probe))
    }

    /// The same for a connector that is not defined, or not yet with these values. Nothing is kept.
    pub fn try_connector(&self, mut definition: ConnectorDefinition) -> Result<ConnectorTest, EngineError> {
        let problems = {
            let state = self.state();
            let old = state.definitions.connectors.get(&definition.name);
            restore_secrets("config", &mut definition.config, old.map(|old| &old.config))
        };
        valid(problems)?;
        let connector = self.new_connector(&definition).map_err(EngineError::Invalid)?;
        let _runtime = self.inner.runtime_handle.enter();
        let probe = kinds::probe(&definition.kind, &connector).map_err(EngineError::Invalid)?;
        Ok(self.ask(&*probe))
    }

    fn ask(&self, probe: &dyn Sink) -> ConnectorTest {
        let begun = Instant::now();
        let late = || Err(format!("no answer within {} s", TEST_WITHIN.as_secs()));
        let runtime = &self.inner.runtime_handle;
        let result = runtime.block_on(async {
            let checked = tokio::time::timeout(TEST_WITHIN, probe.check()).await;
            probe.close().await;
            checked.unwrap_or_else(|_| late())
        });
        ConnectorTest {
            is_reachable: result.is_ok(),
            error: result.err(),
            took_ms: begun.elapsed().as_millis() as u64,
        }
    }

    fn replace_connector(&self, definition: &ConnectorDefinition, users: &Users) {
        for action in &users.actions {
            self.close_action(&action.id());
        }
        for source in &users.sources {
            self.stop_source(&source.id());
        }
        self.start_connector(definition);
        for source in &users.sources {
            self.make_source(source);
        }
        for action in &users.actions {
            self.start_action(action);
        }
        for source in &users.sources {
            self.run_source(source);
        }
        self.enforce_actions();
    }

    fn new_connector(&self, definition: &ConnectorDefinition) -> Result<Connector, Problems> {
        let _runtime = self.inner.runtime_handle.enter();
        kinds::connector(&definition.kind, &definition.config)
    }

    pub(super) fn start_connector(&self, definition: &ConnectorDefinition) {
        let connector = self.new_connector(definition);
        if let Err(problems) = &connector {
            tracing::error!(connector = %definition.name, problems = %problems.join("; "), "a connector cannot run");
        }
        self.state().connectors.insert(definition.name.clone(), connector);
    }
}

/// What uses a connector.
struct Users {
    actions: Vec<ActionDefinition>,
    sources: Vec<SourceDefinition>,
}

impl Users {
    fn of(state: &State, connector: &str) -> Users {
        Users {
            actions: state.actions_of(connector),
            sources: state.sources_of(connector),
        }
    }

    /// Ids and types.
    fn kinds(&self) -> impl Iterator<Item = (String, &str)> {
        let actions = self.actions.iter().map(|action| (action.id(), action.kind.as_str()));
        let sources = self.sources.iter().map(|source| (source.id(), source.kind.as_str()));
        actions.chain(sources)
    }
}
