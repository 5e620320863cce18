//! Fallback actions: their state, and the buffers that they write to.

use super::fallback_delivery::FallbackActions;
use super::*;
use crate::compile_action::{FallbackTarget, fallback_cycle};
use crate::set::{FallbackTemplates, LiveFallback};

/// Result of accessing the buffer of an action.
pub(super) enum BufferAccess<R> {
    Done(R),
    /// The action is being changed, does not run, or its buffer is full.
    Unavailable,
    /// The action does not exist or is disabled.
    NoSuchAction,
}

impl EngineShared {
    /// Calls `with` on the buffer of an action. `with` returns `None` if the buffer is full.
    pub(super) fn with_buffer<R>(&self, id: &str, with: impl FnOnce(&ActionBuffer) -> Option<R>) -> BufferAccess<R> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let given = match state.actions.get(id) {
            Some(Ok(running)) if running.is_open => with(running.action.buffer()),
            _ => None,
        };
        match (given, state.definitions.actions.get(id)) {
            (Some(given), _) => BufferAccess::Done(given),
            (None, Some(definition)) if definition.enable => BufferAccess::Unavailable,
            (None, _) => BufferAccess::NoSuchAction,
        }
    }

    /// Returns the server after it has started.
    pub(super) fn server(&self) -> Option<net::ServerHandle> {
        let is_serving = self.is_serving.load(Ordering::Acquire);
        self.net.get().filter(|_| is_serving).cloned()
    }
}

impl Engine {
    /// Creates the receiver of messages that an action with these fallbacks gives up.
    pub(super) fn fallback(&self, targets: &[FallbackTarget]) -> Option<Arc<dyn Fallback>> {
        (!targets.is_empty()).then(|| {
            Arc::new(FallbackActions {
                engine: Arc::downgrade(&self.inner),
                targets: targets.to_vec(),
            }) as Arc<dyn Fallback>
        })
    }
}

impl EngineState {
    pub(super) fn live_fallbacks(&self, running: &ActionEntry) -> Vec<LiveFallback> {
        let live = |target: &FallbackTarget| {
            let fill = match target {
                FallbackTarget::Republish { templates, .. } => FallbackTemplates::Republish(Arc::clone(templates)),
                FallbackTarget::Action(id) => {
                    let ActionEntry { templates, bridge, .. } = self.actions.get(id)?.as_ref().ok()?;
                    FallbackTemplates::Action {
                        templates: templates.clone(),
                        bridge: bridge.clone(),
                    }
                }
            };
            let name = target.name().to_owned();
            Some(LiveFallback { name, templates: fill })
        };
        running.fallbacks.iter().filter_map(live).collect()
    }

    /// Returns the actions that have this action as a fallback.
    pub(super) fn actions_with_fallback(&self, action: &str) -> Vec<String> {
        let actions = self.definitions.actions.values();
        let users = actions.filter(|it| it.fallback_ids().any(|id| id == action));
        users.map(ActionDefinition::id).collect()
    }

    /// Returns fallbacks that do not exist or do not run.
    pub(super) fn missing_fallbacks(&self, definition: &ActionDefinition) -> Vec<String> {
        let is_missing = |id: &String| !matches!(self.actions.get(id), Some(Ok(_)));
        definition.fallback_ids().filter(is_missing).collect()
    }

    /// Checks an action's fallbacks against the other actions.
    pub(super) fn fallback_problems(&self, definition: &ActionDefinition) -> Problems {
        let actions = &self.definitions.actions;
        let unknown = definition
            .fallback_ids()
            .filter(|id| !actions.contains_key(id) && *id != definition.id());
        let mut problems: Problems = unknown
            .map(|id| format!("fallback_actions: there is no action {id:?}"))
            .collect();
        problems.extend(fallback_cycle(definition, |id| actions.get(id)));
        problems
    }
}
