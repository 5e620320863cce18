//! Fallback actions: validation, and delivery of the messages that an action gives up.

use super::*;
use crate::definition::{FallbackAction, FallbackKind};
use crate::fallback::{FallbackActions, FallbackTarget};
use crate::set::{FallbackTemplates, LiveFallback};

/// Limit of fallback actions, because each takes space in the buffer for every message.
const FALLBACKS_MAX: usize = 4;

/// Result of accessing the buffer of an action.
pub(crate) enum BufferAccess<R> {
    Done(R),
    /// The action is being changed, does not run, or its buffer is full.
    Unavailable,
    /// The action does not exist or is disabled.
    NoSuchAction,
}

impl EngineShared {
    /// Calls `with` on the buffer of an action. `with` returns `None` if the buffer is full.
    pub(crate) fn with_buffer<R>(&self, id: &str, with: impl FnOnce(&ActionBuffer) -> Option<R>) -> BufferAccess<R> {
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
    pub(crate) fn server(&self) -> Option<net::ServerHandle> {
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

/// Returns the fallbacks of an action, or the problems that can be found without other actions.
pub(super) fn targets(definition: &ActionDefinition) -> Result<Vec<FallbackTarget>, Problems> {
    let fallbacks = &definition.fallback_actions;
    let (mut targets, mut problems) = (Vec::<FallbackTarget>::new(), Problems::new());
    if fallbacks.len() > FALLBACKS_MAX {
        problems.push(format!("fallback_actions: must have at most {FALLBACKS_MAX} entries"));
    }
    for (index, fallback) in fallbacks.iter().enumerate() {
        match target(definition, fallback, index) {
            Ok(target) if targets.iter().any(|it| it.name() == target.name()) => {
                problems.push(format!("fallback_actions[{index}]: {:?} occurs twice", target.name()));
            }
            Ok(target) => targets.push(target),
            Err(problem) => problems.push(format!("fallback_actions[{index}]{problem}")),
        }
    }
    if problems.is_empty() {
        Ok(targets)
    } else {
        Err(problems)
    }
}

fn target(definition: &ActionDefinition, fallback: &FallbackAction, index: usize) -> Result<FallbackTarget, String> {
    if let FallbackAction::Kind(FallbackKind::Republish { args }) = fallback {
        return Ok(FallbackTarget::Republish {
            name: format!("republish:{index}"),
            templates: Arc::new(republish(args).map_err(|problem| format!(".args.{problem}"))?),
        });
    }
    let id = fallback.id().unwrap_or_default();
    let parts = id.split_once(':');
    let is_id = parts.is_some_and(|(kind, name)| kinds::is_known(kind) && name_problem("", name).is_none());
    match is_id {
        _ if id == definition.id() => Err(format!(": {id:?} is the action itself")),
        true => Ok(FallbackTarget::Action(id)),
        false => Err(format!(": {id:?} is not an action id, expected type:name")),
    }
}

/// Checks for cycles: actions that fall back to each other could wait for each other's buffer space forever.
pub(crate) fn fallback_cycle<'a>(
    definition: &ActionDefinition,
    action: impl Fn(&str) -> Option<&'a ActionDefinition>,
) -> Option<String> {
    let own = definition.id();
    let mut seen = BTreeSet::new();
    let mut open: Vec<String> = definition.fallback_ids().filter(|id| *id != own).collect();
    while let Some(id) = open.pop() {
        if id == own {
            return Some("fallback_actions: one of them falls back to this action, directly or indirectly".to_owned());
        }
        if seen.insert(id.clone()) {
            open.extend(action(&id).into_iter().flat_map(ActionDefinition::fallback_ids));
        }
    }
    None
}
