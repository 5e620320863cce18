//! Actions: made, changed, deleted; their buffers and pumps.

use super::*;

impl Engine {
    pub fn actions(&self) -> Vec<ActionView> {
        let state = self.state();
        state
            .definitions
            .actions
            .values()
            .map(|definition| state.action_view(definition))
            .collect()
    }

    pub fn action(&self, id: &str) -> Result<ActionView, EngineError> {
        let state = self.state();
        let definition = state
            .definitions
            .actions
            .get(id)
            .ok_or_else(|| not_found("action", id))?;
        Ok(state.action_view(definition))
    }

    /// Makes or changes one. What waits in its buffer stays there.
    pub fn put_action(&self, mut definition: ActionDefinition) -> Result<ActionView, EngineError> {
        let mut store = self.changes();
        let id = definition.id();
        {
            let state = self.state();
            let kept = &state.kept.definitions.actions;
            free("action", &id, &state.origins.actions)?;
            let old = kept.get(&id).map(|old| &old.parameters);
            let mut problems: Problems = name_problem("name", &definition.name).into_iter().collect();
            problems.extend(restore_secrets("parameters", &mut definition.parameters, old));
            problems.extend(action_problems(&definition, Some(state.target(&definition))));
            problems.extend(state.fallback_problems(&definition));
            room("actions", kept, &id, &mut problems);
            valid(problems)?;
        }
        self.keep(&mut store, &Change::Action(id.clone(), Some(definition.clone())))?;
        self.change_action(&definition);
        self.action(&id)
    }

    /// Deletes it with all that waits in its buffer.
    pub fn delete_action(&self, id: &str) -> Result<(), EngineError> {
        let mut store = self.changes();
        {
            let state = self.state();
            free("action", id, &state.origins.actions)?;
            if !state.kept.definitions.actions.contains_key(id) {
                return Err(not_found("action", id));
            }
            for (what, users) in [("rules", state.rules_of(id)), ("actions", state.falling_back_to(id))] {
                if !users.is_empty() {
                    let users = users.join(", ");
                    let message = format!("action {id} is used by the {what} {users}: change them first");
                    return Err(EngineError::Conflict(message));
                }
            }
        }
        self.keep(&mut store, &Change::Action(id.to_owned(), None))?;
        self.stop_action(id);
        self.enforce_actions();
        let directory = self.buffer_directory(id);
        if let Err(error) = std::fs::remove_dir_all(&directory)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            let directory = directory.display();
            tracing::warn!(action = id, %directory, %error, "the buffer of a deleted action cannot be removed");
        }
        Ok(())
    }

    /// Starts or stops it. What waits in its buffer stays there.
    pub fn enable_action(&self, id: &str, enable: bool) -> Result<ActionView, EngineError> {
        let mut store = self.changes();
        let definition = {
            let state = self.state();
            free("action", id, &state.origins.actions)?;
            let definition = state.kept.definitions.actions.get(id);
            let definition = definition.cloned().ok_or_else(|| not_found("action", id))?;
            ActionDefinition { enable, ..definition }
        };
        self.keep(&mut store, &Change::Action(id.to_owned(), Some(definition.clone())))?;
        self.change_action(&definition);
        self.action(id)
    }

    /// Runs `with` on an action that runs.
    pub fn with_action<R>(&self, id: &str, with: impl FnOnce(&Action) -> R) -> Result<R, EngineError> {
        let action = match self.state().actions.get(id) {
            Some(Ok(running)) => running.action.clone(),
            _ => {
                return Err(EngineError::NotFound(format!(
                    "action {id} does not exist or does not run"
                )));
            }
        };
        Ok(with(&action))
    }

    /// Nothing is sent until it is resumed or disabled, also after a restart of the server.
    pub fn pause_action(&self, id: &str, is_paused: bool) -> Result<ActionView, EngineError> {
        let mut store = self.changes();
        self.with_action(id, |_| ())?;
        self.keep(&mut store, &Change::Paused(id.to_owned(), is_paused))?;
        self.with_action(id, |action| match is_paused {
            true => action.pause(),
            false => action.resume(),
        })?;
        self.action(id)
    }

    /// Stops and starts it: connections are made anew.
    pub fn restart_action(&self, id: &str) -> Result<(), EngineError> {
        let _changes = self.changes();
        let definition = self.state().definitions.actions.get(id).cloned();
        self.change_action(&definition.ok_or_else(|| not_found("action", id))?);
        Ok(())
    }

    fn change_action(&self, definition: &ActionDefinition) {
        self.close_action(&definition.id());
        self.start_action(definition);
        self.enforce_actions();
    }

    /// As it is defined now: running, or not if it is not enabled.
    pub(super) fn start_action(&self, definition: &ActionDefinition) {
        let id = definition.id();
        if !definition.enable {
            self.state().actions.remove(&id);
            return;
        }
        // What an operator has paused stays so, whatever is changed.
        let is_paused = self.state().kept.paused.contains(&id);
        let running = self.run_action(definition, is_paused);
        match &running {
            Ok(running) if running.problems.is_empty() => {}
            Ok(running) => {
                let problems = running.problems.join("; ");
                tracing::error!(action = %id, problems, "an action cannot send: what rules have for it is kept in its buffer");
            }
            Err(problems) => tracing::error!(action = %id, problems = %problems.join("; "), "an action cannot run"),
        }
        self.state().actions.insert(id, running);
    }

    fn run_action(&self, definition: &ActionDefinition, is_paused: bool) -> Result<Running, Problems> {
        let _runtime = self.inner.runtime_handle.enter();
        let id = definition.id();
        let (target, problems) = match self.state().target(definition) {
            Ok(target) => (target, Problems::new()),
            Err(problems) => (kinds::stand_in(definition, &problems)?, problems),
        };
        let templates = templates(&target)?;
        let delivery = &kinds::delivery(&definition.kind, &definition.delivery)?;
        let ordering_key = ordering_key(delivery).map_err(|problem| vec![problem])?;
        let fallbacks = fallback::targets(definition)?;
        let (net, progress) = (self.inner.net.clone(), self.inner.progress.clone());
        let on_progress = move || {
            if let Some(net) = net.get() {
                net.wake_waiting();
            }
            progress.notify_waiters();
        };
        let buffer = Buffer::open(
            &self.buffer_directory(&id),
            &delivery.buffer,
            delivery.query_mode,
            on_progress,
        )
        .map_err(|error| vec![format!("buffer: {error}")])?;
        let earlier = self.state().action_counts.get(&id).cloned().unwrap_or_default();
        let fallback = self.fallback(&fallbacks);
        let action = Arc::new(Action::with_fallback(&id, buffer, fallback, earlier));
        if is_paused {
            action.pause();
        }
        action.start(target.sink, delivery, &self.inner.runtime_handle);
        Ok(Running {
            action,
            problems,
            templates,
            ordering_key,
            is_kept: delivery.buffer.mode == BufferMode::Disk || delivery.query_mode == connectors::QueryMode::Sync,
            // What is dropped for others waits for these.
            headroom: (delivery.buffer.overflow == Overflow::BackPressure || !fallbacks.is_empty())
                .then(|| HEADROOM_MAX.min(delivery.buffer.quota_bytes() / 8)),
            fallbacks,
            is_open: true,
            bridge: target.bridge,
        })
    }

    /// Ends it for good, as far as rules are concerned.
    pub(super) fn stop_action(&self, id: &str) {
        self.close_action(id);
        let mut state = self.state();
        state.actions.remove(id);
        state.action_counts.remove(id);
    }

    /// Its buffer is closed when this returns. Taps keep what rules have for it until `start_action` or `stop_action` has been called
    /// and the result is in force.
    pub(super) fn close_action(&self, id: &str) {
        let action = match self.state().actions.get_mut(id) {
            Some(Ok(running)) => {
                running.is_open = false;
                running.action.clone()
            }
            _ => return,
        };
        self.enforce_actions();
        self.wait_for_shards();
        self.inner.runtime_handle.block_on(action.stop(STOP_WITHIN));
        close_buffer(id, &action);
        self.state().action_counts.insert(id.to_owned(), action.stats());
    }

    pub(super) fn buffer_directory(&self, id: &str) -> PathBuf {
        self.inner
            .directory
            .join(crate::BUFFERS_NAME)
            .join(id.replace(':', "-"))
    }
}

impl Running {
    pub(super) fn live(&self, id: &str, fallbacks: Vec<LiveFallback>) -> LiveAction {
        LiveAction {
            id: id.to_owned(),
            action: self.action.clone(),
            templates: self.templates.clone(),
            ordering_key: self.ordering_key.clone(),
            fallbacks,
            is_kept: self.is_kept,
            headroom: self.headroom,
            is_open: self.is_open,
            bridge: self.bridge.clone(),
        }
    }
}

/// What is wrong with a definition; `target`: what it sends to, if that can be told.
pub fn action_problems(definition: &ActionDefinition, target: Option<Result<Target, Problems>>) -> Problems {
    let mut problems = fallback::targets(definition).err().unwrap_or_default();
    match kinds::delivery(&definition.kind, &definition.delivery) {
        Ok(delivery) => problems.extend(ordering_key(&delivery).err()),
        Err(wrong) => problems.extend(wrong),
    }
    match target {
        Some(Ok(target)) => problems.extend(templates(&target).err().into_iter().flatten()),
        Some(Err(wrong)) => problems.extend(wrong),
        None => {}
    }
    problems
}

pub(super) fn templates(target: &Target) -> Result<Vec<Template>, Problems> {
    let (mut templates, mut problems) = (Vec::new(), Vec::new());
    for wanted in &target.templates {
        match template(&wanted.field, &wanted.text) {
            Ok(template) => templates.push(template),
            Err(problem) => problems.push(format!("parameters.{problem}")),
        }
    }
    if problems.is_empty() {
        Ok(templates)
    } else {
        Err(problems)
    }
}

pub(super) fn ordering_key(delivery: &DeliveryConfig) -> Result<Option<Template>, String> {
    match delivery.ordering_key.as_str() {
        "" | BY_CLIENT => Ok(None),
        text => template("delivery.ordering_key", text).map(Some),
    }
}
