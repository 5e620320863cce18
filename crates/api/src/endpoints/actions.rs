//! Actions: what rules send, with their buffers.

use integration::{ActionDefinition, ActionView, Engine, EngineError, RunningAction};

use super::integration::{add, command, delete, list, one, put};
use crate::endpoint::Endpoint;

const ALL: &str = "/api/v1/actions";
const ONE: &str = "/api/v1/actions/{id}";
const ID: &str = "`type:name`";

pub fn endpoints() -> Vec<Endpoint> {
    [definitions(), commands()].into_iter().flatten().collect()
}

fn definitions() -> Vec<Endpoint> {
    vec![
        list(ALL, "actions", Engine::actions).says("All actions", "With health and metrics."),
        add::<ActionDefinition>(ALL, "add_action").says("Add an action", "It is in force at once and after a restart."),
        one::<ActionDefinition>(ONE, "action")
            .says("One action", "With health and metrics.")
            .path_parameter("id", ID),
        put::<ActionDefinition>(ONE, "put_action")
            .says("Add or change an action", "What waits in its buffer stays there.")
            .path_parameter("id", "That of the body."),
        delete(ONE, "delete_action", Engine::delete_action)
            .says(
                "Delete an action",
                "With all that waits in its buffer; only if no rule uses it.",
            )
            .path_parameter("id", ID),
    ]
}

fn commands() -> Vec<Endpoint> {
    vec![
        command("/api/v1/actions/{id}/enable", "enable_action", |engine, id| {
            engine.enable_action(id, true)
        })
        .says("Enable an action", "It is kept: it runs after a restart, too.")
        .path_parameter("id", ID),
        command("/api/v1/actions/{id}/disable", "disable_action", |engine, id| {
            engine.enable_action(id, false)
        })
        .says(
            "Disable an action",
            "It takes and sends nothing; what waits in its buffer stays there. Rules that use it go on without it.",
        )
        .path_parameter("id", ID),
        command("/api/v1/actions/{id}/pause", "pause_action", |engine, id| {
            engine.pause_action(id, true)
        })
        .says(
            "Pause an action",
            "Nothing is sent; messages wait in its buffer. Until it is resumed or disabled: neither a change of the action nor a restart of the server ends it.",
        )
        .path_parameter("id", ID),
        command("/api/v1/actions/{id}/resume", "resume_action", |engine, id| {
            engine.pause_action(id, false)
        })
        .says("Resume an action", "What has waited is sent.")
        .path_parameter("id", ID),
        command("/api/v1/actions/{id}/restart", "restart_action", |engine, id| {
            engine.restart_action(id)?;
            engine.action(id)
        })
        .says(
            "Restart an action",
            "What is on its way is finished or sent again; what waits stays.",
        )
        .path_parameter("id", ID),
        command("/api/v1/actions/{id}/purge", "purge_action", |engine, id| {
            order(engine, id, RunningAction::purge)
        })
        .says(
            "Empty an action's buffer",
            "What waits is thrown away, and counted as purged.",
        )
        .path_parameter("id", ID),
    ]
}

fn order(engine: &Engine, id: &str, order: fn(&RunningAction)) -> Result<ActionView, EngineError> {
    engine.with_action(id, order)?;
    engine.action(id)
}
