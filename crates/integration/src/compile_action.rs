//! Compiles the definition of an action: its templates, its ordering key and its fallbacks.

use std::collections::BTreeSet;
use std::sync::Arc;

use connectors::DeliveryConfig;
use rules::Template;

use crate::compile::{document, republish, template};
use crate::definition::{ActionDefinition, FallbackAction, FallbackKind, name_problem};
use crate::kinds::{self, ActionTarget, Problems};
use crate::set::Republish;

/// The default ordering key. It stands for the publishing client, even if the rule does not select `clientid`.
const BY_CLIENT: &str = "${clientid}";

/// Limit of fallback actions, because each takes space in the buffer for every message.
const FALLBACKS_MAX: usize = 4;

/// A fallback of an action.
#[derive(Clone)]
pub enum FallbackTarget {
    /// The id of an action.
    Action(String),
    Republish {
        name: String,
        templates: Arc<Republish>,
    },
}

impl FallbackTarget {
    /// Returns the name under which records carry data for it.
    pub fn name(&self) -> &str {
        match self {
            FallbackTarget::Action(name) | FallbackTarget::Republish { name, .. } => name,
        }
    }
}

/// Returns the problems of a definition. `target` is its target, if it can be determined.
pub fn action_problems(definition: &ActionDefinition, target: Option<Result<ActionTarget, Problems>>) -> Problems {
    let mut problems = fallback_targets(definition).err().unwrap_or_default();
    match kinds::delivery(&definition.kind, &definition.delivery) {
        Ok(delivery) => problems.extend(ordering_key(&delivery).err()),
        Err(invalid) => problems.extend(invalid),
    }
    match target {
        Some(Ok(target)) => problems.extend(templates(&target).err().into_iter().flatten()),
        Some(Err(invalid)) => problems.extend(invalid),
        None => {}
    }
    problems
}

/// Compiles the templates of a target.
pub fn templates(target: &ActionTarget) -> Result<Vec<Template>, Problems> {
    let (mut templates, mut problems) = (Vec::new(), Vec::new());
    for wanted in &target.templates {
        let compiled = match wanted.is_document {
            true => document(&wanted.field, &wanted.text),
            false => template(&wanted.field, &wanted.text),
        };
        match compiled {
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

/// Compiles the ordering key. `None`: the client id of the publisher.
pub fn ordering_key(delivery: &DeliveryConfig) -> Result<Option<Template>, String> {
    match delivery.ordering_key.as_str() {
        "" | BY_CLIENT => Ok(None),
        text => template("delivery.ordering_key", text).map(Some),
    }
}

/// Returns the fallbacks of an action, or the problems that can be found without other actions.
pub fn fallback_targets(definition: &ActionDefinition) -> Result<Vec<FallbackTarget>, Problems> {
    let fallbacks = &definition.fallback_actions;
    let (mut targets, mut problems) = (Vec::<FallbackTarget>::new(), Problems::new());
    if fallbacks.len() > FALLBACKS_MAX {
        problems.push(format!("fallback_actions: must have at most {FALLBACKS_MAX} entries"));
    }
    for (index, fallback) in fallbacks.iter().enumerate() {
        match fallback_target(definition, fallback, index) {
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

fn fallback_target(
    definition: &ActionDefinition,
    fallback: &FallbackAction,
    index: usize,
) -> Result<FallbackTarget, String> {
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
pub fn fallback_cycle<'a>(
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
