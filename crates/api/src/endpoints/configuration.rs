//! The configuration in force, and where each value comes from.

use axum::Json;
use axum::extract::State;

use crate::app::App;
use crate::config::ConfigValue;
use crate::endpoint::Endpoint;

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::get("/api/v1/configuration", "configuration", configuration)
            .tag("Node")
            .says(
                "The configuration in force",
                "Every value with its origin. Secrets are `***`. What was reloaded and waits for a restart is shown as it will be.",
            )
            .returns::<Vec<ConfigValue>>("In the order of the reference."),
    ]
}

async fn configuration(State(app): State<App>) -> Json<Vec<ConfigValue>> {
    Json(app.configuration().as_ref().clone())
}
