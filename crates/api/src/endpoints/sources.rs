//! Sources: what comes in from other systems.

use integration::{Engine, SourceDefinition};

use super::integration::{add, command, delete, list, one, put};
use crate::endpoint::Endpoint;

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/sources";
    const ONE: &str = "/api/v1/sources/{id}";
    const ID: &str = "`type:name`";
    vec![
        list(ALL, "sources", Engine::sources).says("All sources", "With how they go."),
        add::<SourceDefinition>(ALL, "add_source").says("Add a source", "It is in force at once and after a restart."),
        one::<SourceDefinition>(ONE, "source")
            .says("One source", "With how it goes.")
            .path_parameter("id", ID),
        put::<SourceDefinition>(ONE, "put_source")
            .says(
                "Add or change a source",
                "What it has not confirmed to the outside comes again.",
            )
            .path_parameter("id", "That of the body."),
        delete(ONE, "delete_source", Engine::delete_source)
            .says(
                "Delete a source",
                "What it has not confirmed stays where it came from; a subscription of it is ended.",
            )
            .path_parameter("id", ID),
        command("/api/v1/sources/{id}/enable", "enable_source", |engine, id| {
            engine.enable_source(id, true)
        })
        .says("Enable a source", "It is kept: it runs after a restart, too.")
        .path_parameter("id", ID),
        command("/api/v1/sources/{id}/disable", "disable_source", |engine, id| {
            engine.enable_source(id, false)
        })
        .says(
            "Disable a source",
            "It fetches nothing; an MQTT source ends its subscription.",
        )
        .path_parameter("id", ID),
    ]
}
