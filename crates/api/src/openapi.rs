//! The OpenAPI 3.1 document, made from the list of endpoints and from the types that serde reads and writes.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::endpoint::{Content, Endpoint, Operation, SchemaOf};
use crate::guard::Need;
use crate::problem::{CONTENT_TYPE, Problem};

/// What is documented.
pub struct About {
    pub title: &'static str,
    pub description: &'static str,
    /// What a refusal is, and its content type.
    pub problem: SchemaOf,
    pub problem_type: &'static str,
    pub security_schemes: fn() -> Value,
}

/// The project's own interface.
pub const OWN: About = About {
    title: "tidewire",
    description: DESCRIPTION,
    problem: |generator| generator.subschema_for::<Problem>(),
    problem_type: CONTENT_TYPE,
    security_schemes: || json!({ "token": { "type": "http", "scheme": "bearer" } }),
};

const DESCRIPTION: &str = "Everything an operator can see of a tidewire node and do to it. Log in with `POST /api/v1/login` and \
    send the token as `Authorization: Bearer <token>`. Errors are problem details (RFC 9457).";

pub fn document(about: &About, endpoints: &[Endpoint], version: &str) -> Value {
    let mut schemas = Schemas::new();
    let mut paths: Map<String, Value> = Map::new();
    // Without a tag it is no part of the API.
    for endpoint in endpoints.iter().filter(|endpoint| !endpoint.operation.tag.is_empty()) {
        let path = paths
            .entry(endpoint.path.replace("{*", "{"))
            .or_insert_with(|| json!({}));
        path[endpoint.method.as_str().to_ascii_lowercase()] = operation(endpoint, &mut schemas);
    }
    let problem = schemas.answered(about.problem);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": about.title,
            "version": version,
            "description": about.description,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas.into_definitions(),
            "responses": { "Problem": {
                "description": "Why not.",
                "content": { about.problem_type: { "schema": problem } },
            } },
            "securitySchemes": (about.security_schemes)(),
        },
    })
}

/// What is read and what is written may differ: a default makes a field optional for the reader only.
struct Schemas {
    read: SchemaGenerator,
    written: SchemaGenerator,
}

impl Schemas {
    fn new() -> Schemas {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Schemas {
            read: settings.clone().into_generator(),
            written: settings.for_serialize().into_generator(),
        }
    }

    fn taken(&mut self, schema: fn(&mut SchemaGenerator) -> Schema) -> Value {
        schema(&mut self.read).to_value()
    }

    fn answered(&mut self, schema: fn(&mut SchemaGenerator) -> Schema) -> Value {
        schema(&mut self.written).to_value()
    }

    /// A type that is both read and written stands there as it is read, which allows more.
    fn into_definitions(mut self) -> Map<String, Value> {
        let mut definitions = self.written.take_definitions(true);
        definitions.extend(self.read.take_definitions(true));
        definitions.values_mut().for_each(with_limits);
        definitions
    }
}

fn operation(endpoint: &Endpoint, schemas: &mut Schemas) -> Value {
    let doc = &endpoint.operation;
    let mut operation = json!({
        "operationId": doc.id,
        "tags": [doc.tag],
        "summary": doc.summary,
        "description": description(endpoint),
        "responses": responses(endpoint, schemas),
        "security": security(endpoint.need),
    });
    let parameters = parameters(doc, schemas);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = doc.body {
        let schema = schemas.taken(body);
        operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    operation
}

fn description(endpoint: &Endpoint) -> String {
    let role = match endpoint.need {
        Need::Admin => " Needs the role `admin`.",
        Need::Person(who) => return format!("{} {}", endpoint.operation.description, who.describe()),
        Need::Nothing | Need::NoPerson | Need::Metrics | Need::OneTime | Need::Viewer => "",
    };
    format!("{}{role}", endpoint.operation.description)
}

fn security(need: Need) -> Value {
    match need {
        Need::Nothing | Need::NoPerson => json!([]),
        Need::Person(_) => json!([{ "token": [] }, { "key": [] }]),
        Need::Metrics => json!([{}, { "token": [] }]),
        Need::OneTime | Need::Viewer | Need::Admin => json!([{ "token": [] }]),
    }
}

fn parameters(doc: &Operation, schemas: &mut Schemas) -> Vec<Value> {
    let in_path = doc.path_parameters.iter().map(|(name, description)| {
        json!({ "name": name, "in": "path", "required": true, "description": description, "schema": { "type": "string", "minLength": 1 } })
    });
    let mut parameters: Vec<Value> = in_path.collect();
    if doc.takes_if_match {
        parameters.push(json!({
            "name": "If-Match",
            "in": "header",
            "required": false,
            "description": "The ETag of what is to be changed, as it was read: refused with 412 if it is something else by now. Without it the change holds for whatever is there.",
            "schema": { "type": "string" },
        }));
    }
    let Some(query) = doc.query else { return parameters };
    let query = schemas.taken(query);
    let required = query["required"].as_array().cloned().unwrap_or_default();
    for (name, schema) in query["properties"].as_object().into_iter().flatten() {
        let mut schema = schema.clone();
        without_null(&mut schema);
        let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
        parameters.push(json!({
            "name": name,
            "in": "query",
            "required": required.contains(&Value::from(name.as_str())),
            "description": description.unwrap_or_else(|| json!("")),
            "schema": schema,
        }));
    }
    parameters
}

/// `format: uint32` is a word of ours; the limit it means is everybody's.
fn with_limits(schema: &mut Value) {
    let maximum = match schema["format"].as_str() {
        Some("uint8") => Some(u64::from(u8::MAX)),
        Some("uint16") => Some(u64::from(u16::MAX)),
        Some("uint32") => Some(u64::from(u32::MAX)),
        _ => None,
    };
    if let (Some(maximum), Some(object)) = (maximum, schema.as_object_mut()) {
        object.entry("maximum").or_insert(maximum.into());
    }
    match schema {
        Value::Object(object) => object.values_mut().for_each(with_limits),
        Value::Array(list) => list.iter_mut().for_each(with_limits),
        _ => {}
    }
}

/// An absent parameter is absent; there is no null in a query.
fn without_null(schema: &mut Value) {
    if schema["default"].is_null()
        && let Some(members) = schema.as_object_mut()
    {
        members.remove("default");
    }
    if let Some(types) = schema["type"].as_array() {
        let mut types: Vec<Value> = types.iter().filter(|name| *name != "null").cloned().collect();
        schema["type"] = if types.len() == 1 {
            types.remove(0)
        } else {
            types.into()
        };
    }
    // Of a type that has a name.
    if let Some(choices) = schema["anyOf"].as_array() {
        let real: Vec<&Value> = choices.iter().filter(|choice| choice["type"] != "null").collect();
        if let [only] = real[..]
            && let (Some(only), Some(own)) = (only.as_object().cloned(), schema.as_object_mut())
        {
            own.remove("anyOf");
            own.extend(only);
        }
    }
}

fn responses(endpoint: &Endpoint, schemas: &mut Schemas) -> Value {
    let doc = &endpoint.operation;
    let mut responses = Map::new();
    for status in failures(endpoint) {
        responses.insert(status.to_string(), json!({ "$ref": "#/components/responses/Problem" }));
    }
    let mut answers = Map::new();
    for answer in &doc.answers {
        // One status may have its answer in several types.
        let response = answers
            .entry(answer.status.as_u16().to_string())
            .or_insert_with(|| json!({ "description": answer.description }));
        match &answer.content {
            Some(Content::Json(schema)) => {
                response["content"]["application/json"] = json!({ "schema": schemas.answered(*schema) });
            }
            Some(Content::Text(content_type)) => {
                response["content"][*content_type] = json!({ "schema": { "type": "string" } });
            }
            None => {}
        }
        if doc.has_etag {
            let tag = json!({ "description": "Of what is defined, for `If-Match`.", "schema": { "type": "string" } });
            response["headers"]["ETag"] = tag;
        }
    }
    responses.extend(answers);
    responses.into()
}

/// Declared ones, and those that follow from what the endpoint needs and takes.
fn failures(endpoint: &Endpoint) -> Vec<u16> {
    let doc = &endpoint.operation;
    let mut failures: Vec<u16> = doc.failures.iter().map(|status| status.as_u16()).collect();
    failures.extend([421, 500, 503]);
    match endpoint.need {
        Need::Nothing | Need::NoPerson => {}
        Need::Metrics | Need::OneTime => failures.push(401),
        Need::Person(_) | Need::Viewer | Need::Admin => failures.extend([401, 403]),
    }
    if doc.query.is_some() || doc.body.is_some() || !doc.path_parameters.is_empty() {
        failures.push(400);
    }
    if doc.body.is_some() {
        failures.extend([408, 413, 415]);
    }
    // What a person asks for may be named in the query or the body, too.
    if !doc.path_parameters.is_empty() || matches!(endpoint.need, Need::Person(_)) {
        failures.push(404);
    }
    failures
}
