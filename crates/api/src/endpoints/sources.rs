//! Sources: inputs from external systems.

use integration::{Engine, SourceDefinition};

use super::integration::{add, command, definition_state, delete, list, one, put};
use crate::app::Endpoint;
use web::guard::RequiredAccess;

pub fn endpoints() -> Vec<Endpoint> {
    const ALL: &str = "/api/v1/sources";
    const ONE: &str = "/api/v1/sources/{id}";
    const ID: &str = "`type:name`";
    vec![
        list(ALL, "sources", Engine::sources).describe("All sources", "With their state."),
        add::<SourceDefinition>(ALL, "add_source").describe("Add a source", "It runs at once, and after a restart."),
        one::<SourceDefinition>(ONE, "source")
            .describe("One source", "With its state.")
            .path_parameter("id", ID),
        put::<SourceDefinition>(ONE, "put_source")
            .describe(
                "Add or change a source",
                "The external system redelivers messages that the source has not acknowledged.",
            )
            .path_parameter("id", "The same ID as in the body."),
        delete::<SourceDefinition>(ONE, "delete_source", Engine::delete_source)
            .describe(
                "Delete a source",
                "Messages that the source has not acknowledged stay in the external system. An MQTT source unsubscribes.",
            )
            .path_parameter("id", ID),
        command("/api/v1/sources/{id}/enable", "enable_source", RequiredAccess::Admin, |engine, id| {
            engine.enable_source(id, true)
        })
        .describe("Enable a source", "The source also runs after a restart.")
        .path_parameter("id", ID).changes(definition_state::<SourceDefinition>),
        command("/api/v1/sources/{id}/disable", "disable_source", RequiredAccess::Admin, |engine, id| {
            engine.enable_source(id, false)
        })
        .describe(
            "Disable a source",
            "The source fetches nothing; an MQTT source unsubscribes.",
        )
        .path_parameter("id", ID).changes(definition_state::<SourceDefinition>),
    ]
}
