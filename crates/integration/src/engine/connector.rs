//! Creates, changes and deletes connectors.

use std::time::Instant;

use connectors::Sink;

use super::*;

/// Maximum time for a test. It is shorter than the limit of an API request.
const TEST_WITHIN: Duration = Duration::from_secs(15);

/// Result of a connection test.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct ConnectorTest {
    /// Whether the target is reachable and accepts the credentials.
    pub is_reachable: bool,
    /// Why the test failed.
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

    /// Creates or changes a connector. Actions and sources that use it are restarted.
    pub fn put_connector(&self, mut definition: ConnectorDefinition) -> Result<ConnectorView, EngineError> {
        let mut store = self.changes();
        let name = definition.name.clone();
        let mut problems: Problems = name_problem("name", &name).into_iter().collect();
        let unreadable = self.unreadable_config(&definition);
        let users = {
            let state = self.state();
            let stored = &state.stored.definitions.connectors;
            check_not_pinned("connector", &name, &state.origins.connectors)?;
            if unreadable.is_empty() {
                let old = stored.get(&name).filter(|old| definition.has_target_of(old));
                let old = old.map(|old| &old.config);
                problems.extend(restore_secrets("config", &mut definition.config, old));
            }
            check_limit("connectors", stored, &name, &mut problems);
            ConnectorUsers::of(&state, &name)
        };
        if unreadable.is_empty() {
            problems.extend(self.connector_secret_problems(&definition));
        }
        problems.extend(unreadable);
        // Secrets that are not allowed are not read.
        if problems.is_empty() {
            problems.extend(self.new_connector(&definition).err().into_iter().flatten());
        }
        if let Some((id, kind)) = users.kinds().find(|(_, kind)| *kind != definition.kind) {
            problems.push(format!("type: must be {kind:?}, because {id} uses the connector"));
        }
        check_valid(problems)?;
        self.store_change(
            &mut store,
            &DefinitionChange::Connector(name.clone(), Some(definition.clone())),
        )?;
        self.replace_connector(&definition, &users);
        self.connector(&name)
    }

    /// Enables or disables a connector. While it is disabled, its actions buffer their messages, and its sources do not
    /// run.
    pub fn enable_connector(&self, name: &str, enable: bool) -> Result<ConnectorView, EngineError> {
        let mut store = self.changes();
        let (definition, users) = {
            let state = self.state();
            check_not_pinned("connector", name, &state.origins.connectors)?;
            let definition = state.stored.definitions.connectors.get(name);
            let definition = definition.cloned().ok_or_else(|| not_found("connector", name))?;
            (
                ConnectorDefinition { enable, ..definition },
                ConnectorUsers::of(&state, name),
            )
        };
        self.store_change(
            &mut store,
            &DefinitionChange::Connector(name.to_owned(), Some(definition.clone())),
        )?;
        self.replace_connector(&definition, &users);
        self.connector(name)
    }

    pub fn delete_connector(&self, name: &str) -> Result<(), EngineError> {
        let mut store = self.changes();
        {
            let state = self.state();
            check_not_pinned("connector", name, &state.origins.connectors)?;
            if !state.stored.definitions.connectors.contains_key(name) {
                return Err(not_found("connector", name));
            }
            let users: Vec<String> = ConnectorUsers::of(&state, name).kinds().map(|(id, _)| id).collect();
            if !users.is_empty() {
                let users = users.join(", ");
                return Err(EngineError::Conflict(format!(
                    "connector {name} is used by {users}; delete them first"
                )));
            }
        }
        self.store_change(&mut store, &DefinitionChange::Connector(name.to_owned(), None))?;
        self.state().connectors.remove(name);
        Ok(())
    }

    /// Tests whether the target of a connector is reachable and accepts the credentials.
    pub fn test_connector(&self, name: &str) -> Result<ConnectorTest, EngineError> {
        let probe = {
            let state = self.state();
            let definition = state.definitions.connectors.get(name);
            let kind = &definition.ok_or_else(|| not_found("connector", name))?.kind;
            let connector = state.usable_connector(name).map_err(EngineError::Invalid)?;
            let _runtime = self.inner.runtime_handle.enter();
            kinds::probe(kind, connector).map_err(EngineError::Invalid)?
        };
        Ok(self.probe(&*probe))
    }

    /// Tests a connector that is not defined, or with changed options. Stores nothing.
    pub fn try_connector(&self, mut definition: ConnectorDefinition) -> Result<ConnectorTest, EngineError> {
        check_valid(self.unreadable_config(&definition))?;
        let problems = {
            let state = self.state();
            let old = state.definitions.connectors.get(&definition.name);
            let old = old.filter(|old| definition.has_target_of(old));
            restore_secrets("config", &mut definition.config, old.map(|old| &old.config))
        };
        check_valid(problems)?;
        check_valid(self.connector_secret_problems(&definition))?;
        let connector = self.new_connector(&definition).map_err(EngineError::Invalid)?;
        let _runtime = self.inner.runtime_handle.enter();
        let probe = kinds::probe(&definition.kind, &connector).map_err(EngineError::Invalid)?;
        Ok(self.probe(&*probe))
    }

    fn probe(&self, probe: &dyn Sink) -> ConnectorTest {
        let started = Instant::now();
        let late = || Err(format!("no response within {} s", TEST_WITHIN.as_secs()));
        let runtime = &self.inner.runtime_handle;
        let result = runtime.block_on(async {
            let checked = tokio::time::timeout(TEST_WITHIN, probe.check()).await;
            probe.close().await;
            checked.unwrap_or_else(|_| late())
        });
        ConnectorTest {
            is_reachable: result.is_ok(),
            error: result.err(),
            took_ms: started.elapsed().as_millis() as u64,
        }
    }

    fn replace_connector(&self, definition: &ConnectorDefinition, users: &ConnectorUsers) {
        for action in &users.actions {
            self.close_action(&action.id());
        }
        for source in &users.sources {
            self.stop_source(&source.id());
        }
        self.start_connector(definition);
        for source in &users.sources {
            self.create_source(source);
        }
        for action in &users.actions {
            self.start_action(action);
        }
        for source in &users.sources {
            self.run_source(source);
        }
        self.apply_actions();
    }

    fn connector_secret_problems(&self, definition: &ConnectorDefinition) -> Problems {
        self.secret_problems("config", &definition.config, kinds::config_schema(&definition.kind))
    }

    /// Returns why a configuration cannot be read. Its target is unknown then, so its stored secrets cannot be found.
    fn unreadable_config(&self, definition: &ConnectorDefinition) -> Problems {
        if !kinds::shown_config(&definition.kind, &definition.config).is_null() {
            return Problems::new();
        }
        let problems = self.connector_secret_problems(definition);
        match problems.is_empty() {
            true => self.new_connector(definition).err().unwrap_or_default(),
            false => problems,
        }
    }

    fn new_connector(&self, definition: &ConnectorDefinition) -> Result<Connector, Problems> {
        let _runtime = self.inner.runtime_handle.enter();
        kinds::connector(&definition.kind, &definition.config)
    }

    pub(super) fn start_connector(&self, definition: &ConnectorDefinition) {
        let connector = self.new_connector(definition);
        if let Err(problems) = &connector {
            tracing::error!(connector = %definition.name, problems = %problems.join("; "), "a connector cannot start");
        }
        self.state().connectors.insert(definition.name.clone(), connector);
    }
}

/// The actions and sources that use a connector.
struct ConnectorUsers {
    actions: Vec<ActionDefinition>,
    sources: Vec<SourceDefinition>,
}

impl ConnectorUsers {
    fn of(state: &EngineState, connector: &str) -> ConnectorUsers {
        ConnectorUsers {
            actions: state.actions_of(connector),
            sources: state.sources_of(connector),
        }
    }

    /// Returns ids and types.
    fn kinds(&self) -> impl Iterator<Item = (String, &str)> {
        let actions = self.actions.iter().map(|action| (action.id(), action.kind.as_str()));
        let sources = self.sources.iter().map(|source| (source.id(), source.kind.as_str()));
        actions.chain(sources)
    }
}
