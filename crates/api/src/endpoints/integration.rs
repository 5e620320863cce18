//! What every endpoint of connectors, actions, sources and rules shares: the engine, and its errors as problems.

use integration::{Engine, EngineError};

use crate::app::App;
use crate::problem::{FieldError, Problem};

/// Of a definition: SQL, templates, certificates.
pub const BODY_MAX: usize = 1024 * 1024;

impl App {
    /// Runs `work` on the engine: it may wait for a disk or for a client to stop.
    pub async fn engine<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine) -> Result<R, EngineError> + Send + 'static,
    ) -> Result<R, Problem> {
        let Some(engine) = self.config().engine.clone() else {
            return Err(Problem::unavailable("this node runs no rules"));
        };
        let _turn = self.changes().lock().await;
        self.block(move || work(&engine)).await?.map_err(problem)
    }
}

pub fn problem(error: EngineError) -> Problem {
    match error {
        EngineError::NotFound(detail) => Problem::not_found(detail),
        EngineError::Conflict(detail) => Problem::conflict("in-use", "It is in use", detail),
        EngineError::Storage(detail) => Problem::internal(detail),
        EngineError::Invalid(problems) => invalid(problems),
    }
}

/// Each problem begins with its field and a colon.
fn invalid(problems: Vec<String>) -> Problem {
    let error = |problem: &String| {
        let (field, detail) = problem.split_once(": ").unwrap_or(("", problem));
        FieldError {
            field: field.to_owned(),
            detail: detail.to_owned(),
        }
    };
    let errors: Vec<FieldError> = problems.iter().map(error).collect();
    let (field, detail) = errors
        .first()
        .map(|first| (first.field.clone(), first.detail.clone()))
        .unwrap_or_default();
    let mut problem = Problem::invalid(field, detail);
    if errors.len() > 1 {
        problem.errors = errors;
    }
    problem
}

/// What is added must not be there yet.
pub fn is_new(what: &str, name: &str, is_there: bool) -> Result<(), EngineError> {
    match is_there {
        true => Err(EngineError::Conflict(format!(
            "there is a {what} {name:?} already: change it with PUT"
        ))),
        false => Ok(()),
    }
}

/// The name in the path is that in the body.
pub fn is_same(field: &str, path: &str, body: &str) -> Result<(), Problem> {
    match path == body {
        true => Ok(()),
        false => Err(Problem::invalid(field, format!("is {body:?}, but the path says {path:?}")).expected(path)),
    }
}
