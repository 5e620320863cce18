//! Fallback actions: what may be one, and how what an action gives up reaches it.

use super::*;
use crate::definition::{FallbackAction, FallbackKind};
use crate::fallback::{FallbackActions, Target};
use crate::set::{Fill, LiveFallback};

/// Each takes room in the buffer for each message.
const FALLBACKS_MAX: usize = 4;

/// Whether an action could be given something.
pub(crate) enum Reached<R> {
    Yes(R),
    /// It is being changed, does not run, or has no room.
    NotNow,
    /// It does not exist, or is not enabled.
    Never,
}

impl Inner {
    /// Runs `with` on the buffer of an action that takes records; none of it: there is no room.
    pub(crate) fn reach<R>(&self, id: &str, with: impl FnOnce(&Buffer) -> Option<R>) -> Reached<R> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let given = match state.actions.get(id) {
            Some(Ok(running)) if running.is_open => with(running.action.buffer()),
            _ => None,
        };
        match (given, state.definitions.actions.get(id)) {
            (Some(given), _) => Reached::Yes(given),
            (None, Some(definition)) if definition.enable => Reached::NotNow,
            (None, _) => Reached::Never,
        }
    }

    /// Once it runs.
    pub(crate) fn server(&self) -> Option<net::Handle> {
        let is_serving = self.is_serving.load(Ordering::Acquire);
        self.net.get().filter(|_| is_serving).cloned()
    }
}

impl Engine {
    /// What takes what an action with these fallbacks gives up.
    pub(super) fn fallback(&self, targets: &[Target]) -> Option<Arc<dyn Fallback>> {
        (!targets.is_empty()).then(|| {
            Arc::new(FallbackActions {
                engine: Arc::downgrade(&self.inner),
                targets: targets.to_vec(),
            }) as Arc<dyn Fallback>
        })
    }
}

impl State {
    pub(super) fn live_fallbacks(&self, running: &Running) -> Vec<LiveFallback> {
        let live = |target: &Target| {
            let fill = match target {
                Target::Republish { templates, .. } => Fill::Republish(Arc::clone(templates)),
                Target::Action(id) => {
                    let Running { templates, bridge, .. } = self.actions.get(id)?.as_ref().ok()?;
                    Fill::Action {
                        templates: templates.clone(),
                        bridge: bridge.clone(),
                    }
                }
            };
            let name = target.name().to_owned();
            Some(LiveFallback { name, fill })
        };
        running.fallbacks.iter().filter_map(live).collect()
    }

    /// Actions that have it as a fallback.
    pub(super) fn falling_back_to(&self, action: &str) -> Vec<String> {
        let actions = self.definitions.actions.values();
        let users = actions.filter(|it| it.fallback_ids().any(|id| id == action));
        users.map(ActionDefinition::id).collect()
    }

    /// Fallbacks that do not exist or do not run.
    pub(super) fn missing_fallbacks(&self, definition: &ActionDefinition) -> Vec<String> {
        let is_missing = |id: &String| !matches!(self.actions.get(id), Some(Ok(_)));
        definition.fallback_ids().filter(is_missing).collect()
    }

    /// What is wrong with an action's fallbacks in view of the other actions.
    pub(super) fn fallback_problems(&self, definition: &ActionDefinition) -> Problems {
        let actions = &self.definitions.actions;
        let unknown = definition
            .fallback_ids()
            .filter(|id| !actions.contains_key(id) && *id != definition.id());
        let mut problems: Problems = unknown
            .map(|id| format!("fallback_actions: there is no action {id:?}"))
            .collect();
        problems.extend(fallback_circle(definition, |id| actions.get(id)));
        problems
    }
}

/// What its fallbacks are; or what is wrong with them, as far as that can be told without other actions.
pub(super) fn targets(definition: &ActionDefinition) -> Result<Vec<Target>, Problems> {
    let fallbacks = &definition.fallback_actions;
    let (mut targets, mut problems) = (Vec::<Target>::new(), Problems::new());
    if fallbacks.len() > FALLBACKS_MAX {
        problems.push(format!("fallback_actions: there may be {FALLBACKS_MAX}"));
    }
    for (index, fallback) in fallbacks.iter().enumerate() {
        match target(definition, fallback, index) {
            Ok(target) if targets.iter().any(|it| it.name() == target.name()) => {
                problems.push(format!("fallback_actions[{index}]: {:?} is there twice", target.name()));
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

fn target(definition: &ActionDefinition, fallback: &FallbackAction, index: usize) -> Result<Target, String> {
    if let FallbackAction::Kind(FallbackKind::Republish { args }) = fallback {
        return Ok(Target::Republish {
            name: format!("republish:{index}"),
            templates: Arc::new(republish(args).map_err(|problem| format!(".args.{problem}"))?),
        });
    }
    let id = fallback.id().unwrap_or_default();
    let parts = id.split_once(':');
    let is_id = parts.is_some_and(|(kind, name)| kinds::is_known(kind) && name_problem("", name).is_none());
    match is_id {
        _ if id == definition.id() => Err(format!(": {id:?} is the action itself")),
        true => Ok(Target::Action(id)),
        false => Err(format!(": {id:?} is not the id of an action, which is type:name")),
    }
}

/// Actions that fall back to each other could wait for each other's room for ever.
pub(crate) fn fallback_circle<'a>(
    definition: &ActionDefinition,
    action: impl Fn(&str) -> Option<&'a ActionDefinition>,
) -> Option<String> {
    let own = definition.id();
    let mut seen = BTreeSet::new();
    let mut open: Vec<String> = definition.fallback_ids().filter(|id| *id != own).collect();
    while let Some(id) = open.pop() {
        if id == own {
            return Some("fallback_actions: one of them falls back to this action, by itself or by others".to_owned());
        }
        if seen.insert(id.clone()) {
            open.extend(action(&id).into_iter().flat_map(ActionDefinition::fallback_ids));
        }
    }
    None
}
