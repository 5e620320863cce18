//! Actions: the outputs of rules, and their buffers.

use integration::{ActionDefinition, ActionView, Engine, EngineError, RunningAction};

use super::integration::{add, command, definition_state, delete, list, one, put};
use crate::app::{App, Endpoint};
use serde_json::{Value, json};
use web::audit_state::ChangeTarget;
use web::guard::RequiredAccess;

const ALL: &str = "/api/v1/actions";
const ONE: &str = "/api/v1/actions/{id}";
const ID: &str = "`type:name`";

pub fn endpoints() -> Vec<Endpoint> {
    [definitions(), commands()].into_iter().flatten().collect()
}

fn definitions() -> Vec<Endpoint> {
    vec![
        list(ALL, "actions", Engine::actions).describe("All actions", "With their state and metrics."),
        add::<ActionDefinition>(ALL, "add_action").describe("Add an action", "It runs at once, and after a restart."),
        one::<ActionDefinition>(ONE, "action")
            .describe("One action", "With its state and metrics.")
            .path_parameter("id", ID),
        put::<ActionDefinition>(ONE, "put_action")
            .describe("Add or change an action", "Messages in its buffer stay there.")
            .path_parameter("id", "The same ID as in the body."),
        delete::<ActionDefinition>(ONE, "delete_action", Engine::delete_action)
            .describe(
                "Delete an action",
                "Also deletes all messages in its buffer. Fails if a rule uses the action.",
            )
            .path_parameter("id", ID),
    ]
}

fn commands() -> Vec<Endpoint> {
    vec![
        command("/api/v1/actions/{id}/enable", "enable_action", RequiredAccess::Admin, |engine, id| {
            engine.enable_action(id, true)
        })
        .describe("Enable an action", "The action also runs after a restart.")
        .path_parameter("id", ID).changes(definition_state::<ActionDefinition>),
        command("/api/v1/actions/{id}/disable", "disable_action", RequiredAccess::Admin, |engine, id| {
            engine.enable_action(id, false)
        })
        .describe(
            "Disable an action",
            "The action accepts and sends no messages; messages in its buffer stay there. Rules that use it run without it.",
        )
        .path_parameter("id", ID).changes(definition_state::<ActionDefinition>),
        command("/api/v1/actions/{id}/pause", "pause_action", RequiredAccess::Operator, |engine, id| {
            engine.pause_action(id, true)
        })
        .describe(
            "Pause an action",
            "The action sends nothing; messages wait in its buffer. It stays paused until it is resumed or disabled, also if the action is changed or the server restarts.",
        )
        .path_parameter("id", ID).changes(pause_state),
        command("/api/v1/actions/{id}/resume", "resume_action", RequiredAccess::Operator, |engine, id| {
            engine.pause_action(id, false)
        })
        .describe("Resume an action", "The action sends the messages in its buffer.")
        .path_parameter("id", ID).changes(pause_state),
        command("/api/v1/actions/{id}/restart", "restart_action", RequiredAccess::Operator, |engine, id| {
            engine.restart_action(id)?;
            engine.action(id)
        })
        .describe(
            "Restart an action",
            "Requests in flight finish or are sent again; messages in the buffer stay there.",
        )
        .path_parameter("id", ID),
        command("/api/v1/actions/{id}/purge", "purge_action", RequiredAccess::Admin, |engine, id| {
            order(engine, id, RunningAction::purge)
        })
        .describe(
            "Empty an action's buffer",
            "Deletes the messages in the buffer and counts them as purged.",
        )
        .path_parameter("id", ID),
    ]
}

/// For the audit log: the definition does not contain the pause.
fn pause_state(app: &App, target: &ChangeTarget) -> Option<Value> {
    let engine: Option<Engine> = app.part();
    let view = engine?.action(target.parameter("id")).ok()?;
    Some(json!({ "is_paused": view.is_paused }))
}

fn order(engine: &Engine, id: &str, order: fn(&RunningAction)) -> Result<ActionView, EngineError> {
    engine.with_action(id, order)?;
    engine.action(id)
}
