//! Creates, changes and deletes actions, with their buffers and pumps.

use super::*;
use crate::buffer_marks;

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

    /// Creates or changes an action. Its buffer is preserved.
    pub fn put_action(&self, mut definition: ActionDefinition) -> Result<ActionView, EngineError> {
        let mut store = self.changes();
        let id = definition.id();
        {
            let state = self.state();
            let stored = &state.stored.definitions.actions;
            check_not_pinned("action", &id, &state.origins.actions)?;
            // Secrets for one target are not sent to another.
            let old = stored.get(&id).filter(|old| old.connector == definition.connector);
            let old = old.map(|old| &old.parameters);
            let mut problems: Problems = name_problem("name", &definition.name).into_iter().collect();
            problems.extend(restore_secrets("parameters", &mut definition.parameters, old));
            let schema = kinds::parameters_schema(&definition.kind);
            let refused = self.secret_problems("parameters", &definition.parameters, schema);
            // Secrets that are not allowed are not read.
            let target = refused.is_empty().then(|| state.target(&definition));
            problems.extend(refused);
            problems.extend(action_problems(&definition, target));
            problems.extend(state.fallback_problems(&definition));
            check_limit("actions", stored, &id, &mut problems);
            check_valid(problems)?;
        }
        self.store_change(
            &mut store,
            &DefinitionChange::Action(id.clone(), Some(definition.clone())),
        )?;
        self.change_action(&definition);
        self.action(&id)
    }

    /// Deletes an action and all messages in its buffer.
    pub fn delete_action(&self, id: &str) -> Result<(), EngineError> {
        let mut store = self.changes();
        {
            let state = self.state();
            check_not_pinned("action", id, &state.origins.actions)?;
            if !state.stored.definitions.actions.contains_key(id) {
                return Err(not_found("action", id));
            }
            for (kind, users) in [
                ("rules", state.rules_of(id)),
                ("actions", state.actions_with_fallback(id)),
            ] {
                if !users.is_empty() {
                    let users = users.join(", ");
                    let message = format!("action {id} is used by the {kind} {users}; change them first");
                    return Err(EngineError::Conflict(message));
                }
            }
        }
        self.store_change(&mut store, &DefinitionChange::Action(id.to_owned(), None))?;
        self.stop_action(id);
        self.apply_actions();
        let directory = self.buffer_directory(id);
        let removed = buffer_marks::remove(&directory).and_then(|()| std::fs::remove_dir_all(&directory));
        if let Err(error) = removed
            && error.kind() != std::io::ErrorKind::NotFound
        {
            let directory = directory.display();
            tracing::warn!(action = id, %directory, %error, "deleting the buffer of a deleted action failed");
        }
        Ok(())
    }

    /// Enables or disables an action. Its buffer is preserved.
    pub fn enable_action(&self, id: &str, enable: bool) -> Result<ActionView, EngineError> {
        let mut store = self.changes();
        let definition = {
            let state = self.state();
            check_not_pinned("action", id, &state.origins.actions)?;
            let definition = state.stored.definitions.actions.get(id);
            let definition = definition.cloned().ok_or_else(|| not_found("action", id))?;
            ActionDefinition { enable, ..definition }
        };
        self.store_change(
            &mut store,
            &DefinitionChange::Action(id.to_owned(), Some(definition.clone())),
        )?;
        self.change_action(&definition);
        self.action(id)
    }

    /// Calls `with` on a running action.
    pub fn with_action<R>(&self, id: &str, with: impl FnOnce(&Action) -> R) -> Result<R, EngineError> {
        let action = match self.state().actions.get(id) {
            Some(Ok(running)) => running.action.clone(),
            _ => {
                return Err(EngineError::NotFound(format!(
                    "action {id} does not exist or is not running"
                )));
            }
        };
        Ok(with(&action))
    }

    /// Pauses or resumes sending. A paused action stays paused over restarts of the server.
    pub fn pause_action(&self, id: &str, is_paused: bool) -> Result<ActionView, EngineError> {
        let mut store = self.changes();
        self.with_action(id, |_| ())?;
        self.store_change(&mut store, &DefinitionChange::Paused(id.to_owned(), is_paused))?;
        self.with_action(id, |action| match is_paused {
            true => action.pause(),
            false => action.resume(),
        })?;
        self.action(id)
    }

    /// Restarts an action with new connections.
    pub fn restart_action(&self, id: &str) -> Result<(), EngineError> {
        let _changes = self.changes();
        let definition = self.state().definitions.actions.get(id).cloned();
        self.change_action(&definition.ok_or_else(|| not_found("action", id))?);
        Ok(())
    }

    pub(super) fn change_action(&self, definition: &ActionDefinition) {
        self.close_action(&definition.id());
        self.start_action(definition);
        self.apply_actions();
    }

    /// Starts an action as it is currently defined, if it is enabled.
    pub(super) fn start_action(&self, definition: &ActionDefinition) {
        let id = definition.id();
        if !definition.enable {
            self.state().actions.remove(&id);
            return;
        }
        // A paused action stays paused over all changes.
        let is_paused = self.state().stored.paused.contains(&id);
        let running = self.run_action(definition, is_paused);
        match &running {
            // `reopen` logs it.
            Ok(running) if running.action.buffer().failure().is_some() => {}
            Ok(running) if running.problems.is_empty() => {}
            Ok(running) => {
                let problems = running.problems.join("; ");
                tracing::error!(action = %id, problems, "an action cannot send; its messages wait in its buffer");
            }
            Err(problems) => tracing::error!(action = %id, problems = %problems.join("; "), "an action cannot start"),
        }
        self.state().actions.insert(id, running);
    }

    fn run_action(&self, definition: &ActionDefinition, is_paused: bool) -> Result<ActionEntry, Problems> {
        let _runtime = self.inner.runtime_handle.enter();
        let id = definition.id();
        let (target, problems) = match self.state().target(definition) {
            Ok(target) => (target, Problems::new()),
            Err(problems) => (kinds::unavailable_target(definition, &problems)?, problems),
        };
        let templates = templates(&target)?;
        let delivery = &kinds::delivery(&definition.kind, &definition.delivery)?;
        let ordering_key = ordering_key(delivery).map_err(|problem| vec![problem])?;
        let fallbacks = fallback_targets(definition)?;
        let (net, progress) = (self.inner.net.clone(), self.inner.progress.clone());
        let on_progress = move || {
            if let Some(net) = net.get() {
                net.wake_tap_waiters();
            }
            progress.notify_waiters();
        };
        let (directory, config, mode) = (&self.buffer_directory(&id), &delivery.buffer, delivery.query_mode);
        let is_disk = config.mode == BufferMode::Disk;
        let running = |it: &Result<ActionEntry, Problems>| it.as_ref().ok().map(|running| running.action.clone());
        let previous = self.state().actions.get(&id).and_then(running);
        let previous = previous.as_ref().map(|action| action.buffer());
        let loss = match is_disk && buffer_marks::is_missing(directory) {
            true => Some(self.missing_buffer(directory)),
            false if is_disk => (self.inner.older_buffer)(directory),
            false => None,
        };
        let opened = match loss {
            Some(loss) => Err(loss),
            None => {
                let interval = self.inner.commit_interval;
                ActionBuffer::open_after(previous, directory, config, mode, interval, on_progress.clone())
                    .map_err(|error| with_causes(&error))
            }
        };
        if is_disk
            && opened.is_ok()
            && let Err(error) = buffer_marks::set(directory)
        {
            tracing::warn!(action = %id, %error, "cannot mark the buffer of the action as existing");
        }
        let buffer =
            opened.unwrap_or_else(|error| ActionBuffer::unavailable(directory, config, mode, error, on_progress));
        if let Some(previous) = previous {
            buffer.restore(previous);
        }
        let earlier = self.state().action_counts.get(&id).cloned().unwrap_or_default();
        let fallback = self.fallback(&fallbacks);
        let action = Arc::new(Action::with_fallback(&id, buffer, fallback, earlier));
        if is_paused {
            action.pause();
        }
        action.start(target.sink, delivery, &self.inner.runtime_handle);
        Ok(ActionEntry {
            action,
            problems,
            templates,
            ordering_key,
            is_awaited: delivery.buffer.mode == BufferMode::Disk || delivery.query_mode == connectors::QueryMode::Sync,
            // With fallbacks, dropped messages wait as well until the fallback has them.
            free_bytes_min: (delivery.buffer.overflow == Overflow::BackPressure || !fallbacks.is_empty())
                .then(|| HEADROOM_MAX.min(delivery.buffer.quota_bytes() / 8)),
            fallbacks,
            is_open: true,
            bridge: target.bridge,
        })
    }

    /// Stops an action and removes its state.
    pub(super) fn stop_action(&self, id: &str) {
        self.close_action(id);
        let mut state = self.state();
        state.actions.remove(id);
        state.action_counts.remove(id);
    }

    /// Closes the buffer of an action. Taps keep records for it until `start_action` or `stop_action` has been called
    /// and the result has taken effect.
    pub(super) fn close_action(&self, id: &str) {
        let action = match self.state().actions.get_mut(id) {
            Some(Ok(running)) => {
                running.is_open = false;
                running.action.clone()
            }
            _ => return,
        };
        self.apply_actions();
        self.wait_for_shards();
        self.inner.runtime_handle.block_on(action.stop(STOP_WITHIN));
        close_buffer(id, &action);
        self.state().action_counts.insert(id.to_owned(), action.stats());
    }

    fn missing_buffer(&self, directory: &Path) -> String {
        let data_dir = self.inner.directory.parent().unwrap_or(Path::new("."));
        format!(
            "the buffer {} existed and is missing, with its messages. Restore it, or accept the loss: tidewire journal \
             repair --accept-loss --data-dir {}",
            directory.display(),
            data_dir.display()
        )
    }

    pub(super) fn buffer_directory(&self, id: &str) -> PathBuf {
        self.inner
            .directory
            .join(crate::BUFFERS_NAME)
            .join(id.replace(':', "-"))
    }
}

impl ActionEntry {
    /// Returns why the action cannot send or accept messages.
    pub(super) fn problems(&self) -> Problems {
        let failure = self.action.buffer().failure();
        let failure = failure.map(|failure| format!("buffer: {failure}"));
        self.problems.iter().cloned().chain(failure).collect()
    }

    pub(super) fn live(&self, id: &str, fallbacks: Vec<LiveFallback>) -> LiveAction {
        LiveAction {
            id: id.to_owned(),
            action: self.action.clone(),
            templates: self.templates.clone(),
            ordering_key: self.ordering_key.clone(),
            fallbacks,
            is_awaited: self.is_awaited,
            free_bytes_min: self.free_bytes_min,
            is_open: self.is_open,
            bridge: self.bridge.clone(),
        }
    }
}

/// The text of an error with those of its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}
