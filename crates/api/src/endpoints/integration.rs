//! What the endpoints of connectors, actions, sources and rules share: one shape for each thing that can be asked of a definition, the
//! engine behind it, and its errors as problems.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use integration::{
    ActionDefinition, ActionView, ConnectorDefinition, ConnectorView, Engine, EngineError, RuleDefinition, RuleView,
    SourceDefinition, SourceView,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::if_match::{IfMatch, Tag, Tagged, changed};
use crate::problem::{FieldError, Problem};

const TAG: &str = "Integration";

/// Of a definition: SQL, templates, certificates.
pub const BODY_MAX: usize = 1024 * 1024;

impl App {
    /// Runs `work` on the engine, one change after the other: it may wait for a disk or for a client to stop.
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

    /// The same beside changes: for what changes nothing.
    pub async fn engine_beside<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine) -> Result<R, EngineError> + Send + 'static,
    ) -> Result<R, Problem> {
        let Some(engine) = self.config().engine.clone() else {
            return Err(Problem::unavailable("this node runs no rules"));
        };
        self.block(move || work(&engine)).await?.map_err(problem)
    }
}

/// What operators define.
pub trait Definition: DeserializeOwned + JsonSchema + Send + 'static {
    const WHAT: &'static str;
    /// The field that names it.
    const FIELD: &'static str;
    type View: Serialize + JsonSchema + Send + 'static;

    fn key(&self) -> String;
    fn find(engine: &Engine, key: &str) -> Result<Self::View, EngineError>;
    fn put(self, engine: &Engine) -> Result<Self::View, EngineError>;
    /// What operators have defined of what is shown.
    fn of(view: &Self::View) -> Tag;
}

macro_rules! definition {
    ($definition:ident $view:ident $what:literal $field:literal $key:expr, $find:ident $put:ident) => {
        impl Definition for $definition {
            const WHAT: &'static str = $what;
            const FIELD: &'static str = $field;
            type View = $view;

            fn key(&self) -> String {
                let key: fn(&$definition) -> String = $key;
                key(self)
            }

            fn find(engine: &Engine, key: &str) -> Result<$view, EngineError> {
                engine.$find(key)
            }

            fn put(self, engine: &Engine) -> Result<$view, EngineError> {
                engine.$put(self)
            }

            fn of(view: &$view) -> Tag {
                Tag::of(&view.definition)
            }
        }
    };
}

definition!(ConnectorDefinition ConnectorView "connector" "name" |it| it.name.clone(), connector put_connector);
definition!(ActionDefinition ActionView "action" "name" ActionDefinition::id, action put_action);
definition!(SourceDefinition SourceView "source" "name" SourceDefinition::id, source put_source);
definition!(RuleDefinition RuleView "rule" "id" |it| it.id.clone(), rule put_rule);

/// `GET …`
pub fn list<V: Serialize + JsonSchema + Send + 'static>(
    path: &'static str,
    id: &'static str,
    work: fn(&Engine) -> Vec<V>,
) -> Endpoint {
    let handler =
        move |State(app): State<App>| async move { app.engine_beside(move |engine| Ok(work(engine))).await.map(Json) };
    Endpoint::get(path, id, handler)
        .tag(TAG)
        .returns::<Vec<V>>("Sorted by id.")
}

/// `GET …/{id}`
pub fn one<D: Definition>(path: &'static str, id: &'static str) -> Endpoint {
    let handler = |State(app): State<App>, Path(key): Path<String>| async move {
        app.engine_beside(move |engine| D::find(engine, &key))
            .await
            .map(tagged::<D>)
    };
    Endpoint::get(path, id, handler)
        .tag(TAG)
        .returns::<D::View>("As it is.")
        .has_etag()
}

/// `POST …`
pub fn add<D: Definition>(path: &'static str, id: &'static str) -> Endpoint {
    let handler = |State(app): State<App>, body::Json(new): body::Json<D>| async move {
        let added = app.engine(move |engine| {
            let key = new.key();
            is_new(D::WHAT, &key, D::find(engine, &key).is_ok())?;
            new.put(engine)
        });
        Ok::<_, Problem>((StatusCode::CREATED, tagged::<D>(added.await?)))
    };
    Endpoint::post(path, id, handler)
        .tag(TAG)
        .takes::<D>(BODY_MAX)
        .fails(StatusCode::UNPROCESSABLE_ENTITY)
        .fails(StatusCode::CONFLICT)
        .creates::<D::View>("Added.")
        .has_etag()
}

/// `PUT …/{id}`
pub fn put<D: Definition>(path: &'static str, id: &'static str) -> Endpoint {
    let handler = |State(app): State<App>,
                   Path(key): Path<String>,
                   expected: IfMatch,
                   body::Json(new): body::Json<D>| async move {
        is_same(D::FIELD, &key, &new.key())?;
        // One change after the other, so that nothing comes between the look and the change.
        let put = app.engine(move |engine| {
            let present = D::find(engine, &key).ok().map(|view| D::of(&view));
            match expected.holds(present.as_ref()) {
                true => new.put(engine).map(Ok),
                false => Ok(Err(changed(&format!("the {} {key:?}", D::WHAT)))),
            }
        });
        put.await?.map(tagged::<D>)
    };
    Endpoint::put(path, id, handler)
        .tag(TAG)
        .takes::<D>(BODY_MAX)
        .takes_if_match()
        .fails(StatusCode::UNPROCESSABLE_ENTITY)
        .fails(StatusCode::CONFLICT)
        .returns::<D::View>("As it is now.")
        .has_etag()
}

/// `DELETE …/{id}`
pub fn delete(path: &'static str, id: &'static str, work: fn(&Engine, &str) -> Result<(), EngineError>) -> Endpoint {
    let handler = move |State(app): State<App>, Path(key): Path<String>| async move {
        app.engine(move |engine| work(engine, &key)).await?;
        Ok::<_, Problem>(StatusCode::NO_CONTENT)
    };
    Endpoint::delete(path, id, handler)
        .tag(TAG)
        .fails(StatusCode::CONFLICT)
        .returns_nothing("Deleted.")
}

/// `POST …/{id}/word`: an order, after which it is shown as it is then.
pub fn command<V: Serialize + JsonSchema + Send + 'static>(
    path: &'static str,
    id: &'static str,
    work: fn(&Engine, &str) -> Result<V, EngineError>,
) -> Endpoint {
    let handler = move |State(app): State<App>, Path(key): Path<String>| async move {
        app.engine(move |engine| work(engine, &key)).await.map(Json)
    };
    Endpoint::post(path, id, handler)
        .tag(TAG)
        .fails(StatusCode::CONFLICT)
        .returns::<V>("As it is then.")
}

fn tagged<D: Definition>(view: D::View) -> Tagged<D::View> {
    Tagged(D::of(&view), view)
}

pub fn problem(error: EngineError) -> Problem {
    match error {
        EngineError::NotFound(detail) => Problem::not_found(detail),
        EngineError::Pinned { ref source, .. } => {
            let mut problem = Problem::conflict("pinned", "The configuration pins this", error.to_string());
            problem.source = Some(source.clone());
            problem
        }
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
fn is_new(what: &str, name: &str, is_there: bool) -> Result<(), EngineError> {
    match is_there {
        true => Err(EngineError::Conflict(format!(
            "there is a {what} {name:?} already: change it with PUT"
        ))),
        false => Ok(()),
    }
}

/// The name in the path is that in the body.
fn is_same(field: &str, path: &str, body: &str) -> Result<(), Problem> {
    match path == body {
        true => Ok(()),
        false => Err(Problem::invalid(field, format!("is {body:?}, but the path says {path:?}")).expected(path)),
    }
}
