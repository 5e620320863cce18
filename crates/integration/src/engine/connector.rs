//! Connectors: made, changed, deleted.

use super::*;

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

    /// Makes or changes one. Actions that use it are started anew.
    pub fn put_connector(&self, mut definition: ConnectorDefinition) -> Result<ConnectorView, EngineError> {
        let mut state = self.state();
        let mut changed = state.definitions.clone();
        if let Some(old) = changed.connectors.get(&definition.name) {
            restore_secrets(&mut definition.config, &old.config);
        }
        let mut problems: Problems = name_problem("name", &definition.name).into_iter().collect();
        problems.extend(
            kinds::connector(&definition.kind, &definition.config)
                .err()
                .into_iter()
                .flatten(),
        );
        room("connectors", changed.connectors.len(), &mut problems);
        let users = state.actions_of(&definition.name);
        if let Some(user) = users.iter().find(|user| user.kind != definition.kind) {
            problems.push(format!("type: action {} needs it to be {:?}", user.id(), user.kind));
        }
        valid(problems)?;
        changed.connectors.insert(definition.name.clone(), definition.clone());
        self.save(&mut state, changed)?;
        for user in &users {
            self.stop_action(&mut state, &user.id());
        }
        self.start_connector(&mut state, &definition);
        for user in &users {
            self.start_action(&mut state, user);
        }
        self.enforce(&state);
        Ok(state.connector_view(&definition))
    }

    pub fn delete_connector(&self, name: &str) -> Result<(), EngineError> {
        let mut state = self.state();
        let mut changed = state.definitions.clone();
        if changed.connectors.remove(name).is_none() {
            return Err(not_found("connector", name));
        }
        let users: Vec<String> = state.actions_of(name).iter().map(ActionDefinition::id).collect();
        if !users.is_empty() {
            let users = users.join(", ");
            return Err(EngineError::Conflict(format!(
                "connector {name} is used by {users}: delete them first"
            )));
        }
        self.save(&mut state, changed)?;
        state.connectors.remove(name);
        Ok(())
    }

    pub(super) fn start_connector(&self, state: &mut State, definition: &ConnectorDefinition) {
        let _runtime = self.inner.runtime_handle.enter();
        let connector = kinds::connector(&definition.kind, &definition.config);
        if let Err(problems) = &connector {
            tracing::error!(connector = %definition.name, problems = %problems.join("; "), "a connector cannot run");
        }
        state.connectors.insert(definition.name.clone(), connector);
    }
}
