//! Shared parts of the endpoints of connectors, actions, sources and rules: one constructor per request type, access to
//! the engine, and its errors as problems.

use axum::Json;
use axum::extract::{FromRef, Path, State};
use axum::http::StatusCode;
use integration::{
    ActionDefinition, ActionView, ConnectorDefinition, ConnectorView, Engine, EngineError, RuleDefinition, RuleView,
    SourceDefinition, SourceView,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use web::audit_state::ChangeTarget;
use web::body;
use web::guard::RequiredAccess;
use web::if_match::{EntityTag, IfMatch, Tagged, changed};
use web::problem::{FieldError, HttpProblem};

use crate::app::{App, Endpoint};
use crate::concurrency::ChangeLock;

const TAG: &str = "Integration";

/// Limit of a definition, which may contain SQL, templates and certificates.
pub const BODY_MAX: usize = 1024 * 1024;

/// The rule engine, if it is enabled.
#[derive(Clone)]
pub struct RuleEngine {
    engine: Option<Engine>,
    changes: ChangeLock,
}

impl FromRef<App> for RuleEngine {
    fn from_ref(app: &App) -> RuleEngine {
        RuleEngine {
            engine: app.part(),
            changes: app.part(),
        }
    }
}

impl RuleEngine {
    /// Runs `work` on the engine, serialized with other changes. `work` may block on a disk, or until a client has
    /// stopped.
    pub async fn change<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine) -> Result<R, EngineError> + Send + 'static,
    ) -> Result<R, HttpProblem> {
        let engine = self.engine()?;
        let _turn = self.changes.lock().await;
        web::block(move || work(&engine)).await?.map_err(problem)
    }

    /// Runs `work` on the engine, concurrently with changes. For work that changes nothing.
    pub async fn read<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine) -> Result<R, EngineError> + Send + 'static,
    ) -> Result<R, HttpProblem> {
        let engine = self.engine()?;
        web::block(move || work(&engine)).await?.map_err(problem)
    }

    fn engine(&self) -> Result<Engine, HttpProblem> {
        let engine = self.engine.clone();
        engine.ok_or_else(|| HttpProblem::unavailable("the rule engine is not enabled on this node"))
    }
}

/// A definition of an operator: an action, connector, source or rule.
pub trait DefinitionResource: DeserializeOwned + JsonSchema + Send + 'static {
    const WHAT: &'static str;
    /// Field that identifies the definition.
    const FIELD: &'static str;
    /// Parameter of the path that identifies the definition.
    const PARAMETER: &'static str;
    type View: Serialize + JsonSchema + Send + 'static;

    fn key(&self) -> String;
    fn find(engine: &Engine, key: &str) -> Result<Self::View, EngineError>;
    fn put(self, engine: &Engine) -> Result<Self::View, EngineError>;
    /// Tag of the operator's definition within the view.
    fn of(view: &Self::View) -> EntityTag;
    /// The definition, for the audit log. Secrets are hidden.
    fn state(view: &Self::View) -> Option<Value>;
}

macro_rules! definition {
    ($definition:ident $view:ident $what:literal $field:literal $parameter:literal $key:expr, $find:ident $put:ident) => {
        impl DefinitionResource for $definition {
            const WHAT: &'static str = $what;
            const FIELD: &'static str = $field;
            const PARAMETER: &'static str = $parameter;
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

            fn of(view: &$view) -> EntityTag {
                EntityTag::of(&view.definition)
            }

            fn state(view: &$view) -> Option<Value> {
                serde_json::to_value(&view.definition).ok()
            }
        }
    };
}

definition!(ConnectorDefinition ConnectorView "connector" "name" "name" |it| it.name.clone(), connector put_connector);
definition!(ActionDefinition ActionView "action" "name" "id" ActionDefinition::id, action put_action);
definition!(SourceDefinition SourceView "source" "name" "id" SourceDefinition::id, source put_source);
definition!(RuleDefinition RuleView "rule" "id" "id" |it| it.id.clone(), rule put_rule);

/// Returns the definition that a path names, for the audit log.
pub fn definition_state<D: DefinitionResource>(app: &App, target: &ChangeTarget) -> Option<Value> {
    let engine: Option<Engine> = app.part();
    let view = D::find(&engine?, target.parameter(D::PARAMETER)).ok()?;
    D::state(&view)
}

/// `GET …`
pub fn list<V: Serialize + JsonSchema + Send + 'static>(
    path: &'static str,
    id: &'static str,
    work: fn(&Engine) -> Vec<V>,
) -> Endpoint {
    let handler = move |State(engine): State<RuleEngine>| async move {
        engine.read(move |engine| Ok(work(engine))).await.map(Json)
    };
    Endpoint::get(path, id, RequiredAccess::Viewer, handler)
        .tag(TAG)
        .returns::<Vec<V>>("Sorted by ID.")
}

/// `GET …/{id}`
pub fn one<D: DefinitionResource>(path: &'static str, id: &'static str) -> Endpoint {
    let handler = |State(engine): State<RuleEngine>, Path(key): Path<String>| async move {
        engine.read(move |engine| D::find(engine, &key)).await.map(tagged::<D>)
    };
    Endpoint::get(path, id, RequiredAccess::Viewer, handler)
        .tag(TAG)
        .returns::<D::View>("The definition and its state.")
        .has_etag()
}

/// `POST …`
pub fn add<D: DefinitionResource>(path: &'static str, id: &'static str) -> Endpoint {
    let handler = |State(engine): State<RuleEngine>, body::Json(new): body::Json<D>| async move {
        let added = engine.change(move |engine| {
            let key = new.key();
            is_new(D::WHAT, &key, D::find(engine, &key).is_ok())?;
            new.put(engine)
        });
        Ok::<_, HttpProblem>((StatusCode::CREATED, tagged::<D>(added.await?)))
    };
    Endpoint::post(path, id, RequiredAccess::Admin, handler)
        .tag(TAG)
        .takes::<D>(BODY_MAX)
        .fails(StatusCode::UNPROCESSABLE_ENTITY)
        .fails(StatusCode::CONFLICT)
        .creates::<D::View>("Added.")
        .has_etag()
}

/// `PUT …/{id}`
pub fn put<D: DefinitionResource>(path: &'static str, id: &'static str) -> Endpoint {
    let handler = |State(engine): State<RuleEngine>,
                   Path(key): Path<String>,
                   expected: IfMatch,
                   body::Json(new): body::Json<D>| async move {
        is_same(D::FIELD, &key, &new.key())?;
        // Changes are serialized, so no other change happens between the check and this change.
        let put = engine.change(move |engine| {
            let present = D::find(engine, &key).ok().map(|view| D::of(&view));
            match expected.matches(present.as_ref()) {
                true => new.put(engine).map(Ok),
                false => Ok(Err(changed(&format!("the {} {key:?}", D::WHAT)))),
            }
        });
        put.await?.map(tagged::<D>)
    };
    Endpoint::put(path, id, RequiredAccess::Admin, handler)
        .tag(TAG)
        .takes::<D>(BODY_MAX)
        .takes_if_match()
        .fails(StatusCode::UNPROCESSABLE_ENTITY)
        .fails(StatusCode::CONFLICT)
        .returns::<D::View>("The changed definition and its state.")
        .has_etag()
        .changes(definition_state::<D>)
}

/// `DELETE …/{id}`
pub fn delete<D: DefinitionResource>(
    path: &'static str,
    id: &'static str,
    work: fn(&Engine, &str) -> Result<(), EngineError>,
) -> Endpoint {
    let handler = move |State(engine): State<RuleEngine>, Path(key): Path<String>| async move {
        engine.change(move |engine| work(engine, &key)).await?;
        Ok::<_, HttpProblem>(StatusCode::NO_CONTENT)
    };
    Endpoint::delete(path, id, RequiredAccess::Admin, handler)
        .tag(TAG)
        .fails(StatusCode::CONFLICT)
        .returns_nothing("Deleted.")
        .changes(definition_state::<D>)
}

/// `POST …/{id}/word`: a command; the answer is the resulting state.
pub fn command<V: Serialize + JsonSchema + Send + 'static>(
    path: &'static str,
    id: &'static str,
    need: RequiredAccess,
    work: fn(&Engine, &str) -> Result<V, EngineError>,
) -> Endpoint {
    let handler = move |State(engine): State<RuleEngine>, Path(key): Path<String>| async move {
        engine.change(move |engine| work(engine, &key)).await.map(Json)
    };
    Endpoint::post(path, id, need, handler)
        .tag(TAG)
        .fails(StatusCode::CONFLICT)
        .returns::<V>("The definition and its new state.")
}

fn tagged<D: DefinitionResource>(view: D::View) -> Tagged<D::View> {
    Tagged(D::of(&view), view)
}

pub fn problem(error: EngineError) -> HttpProblem {
    match error {
        EngineError::NotFound(detail) => HttpProblem::not_found(detail),
        EngineError::Pinned { ref source, .. } => {
            let mut problem = HttpProblem::conflict("pinned", "Set by the configuration", error.to_string());
            problem.source = Some(source.clone());
            problem
        }
        EngineError::Conflict(detail) => HttpProblem::conflict("in-use", "In use", detail),
        EngineError::Storage(detail) => HttpProblem::internal(detail),
        EngineError::Invalid(problems) => invalid(problems),
    }
}

/// Each problem starts with its field and a colon.
fn invalid(problems: Vec<String>) -> HttpProblem {
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
    let mut problem = HttpProblem::invalid(field, detail);
    if errors.len() > 1 {
        problem.errors = errors;
    }
    problem
}

/// Checks that a new definition does not exist yet.
fn is_new(what: &str, name: &str, is_there: bool) -> Result<(), EngineError> {
    match is_there {
        true => Err(EngineError::Conflict(format!(
            "the {what} {name:?} already exists: change it with PUT"
        ))),
        false => Ok(()),
    }
}

/// Checks that the name in the path is the name in the body.
fn is_same(field: &str, path: &str, body: &str) -> Result<(), HttpProblem> {
    match path == body {
        true => Ok(()),
        false => {
            Err(HttpProblem::invalid(field, format!("the body has {body:?}, but the path has {path:?}")).expected(path))
        }
    }
}
