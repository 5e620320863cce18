//! The OpenAPI 3.1 document, generated from the list of endpoints and the types that serde reads and writes.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::endpoint::{Operation, ResponseContent, SchemaOf};
use crate::guard::RequiredAccess;

/// Properties of a document.
pub struct About {
    pub title: &'static str,
    pub description: &'static str,
    /// Schema and content type of an error.
    pub problem: SchemaOf,
    pub problem_type: &'static str,
    pub security_schemes: fn() -> Value,
}

/// Operations without a tag are not part of the document.
pub fn document(about: &About, operations: impl IntoIterator<Item = Operation>, version: &str) -> Value {
    let mut schemas = SchemaGenerators::new();
    let mut paths: Map<String, Value> = Map::new();
    for doc in operations.into_iter().filter(|doc| !doc.tag.is_empty()) {
        let path = paths.entry(doc.path.replace("{*", "{")).or_insert_with(|| json!({}));
        path[doc.method.as_str().to_ascii_lowercase()] = operation(&doc, &mut schemas);
    }
    let problem = schemas.response_schema(about.problem);
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
                "description": "The error.",
                "content": { about.problem_type: { "schema": problem } },
            } },
            "securitySchemes": (about.security_schemes)(),
        },
    })
}

/// Schemas of requests and answers may differ: a default value makes a field optional only in requests.
struct SchemaGenerators {
    request: SchemaGenerator,
    response: SchemaGenerator,
}

impl SchemaGenerators {
    fn new() -> SchemaGenerators {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        SchemaGenerators {
            request: settings.clone().into_generator(),
            response: settings.for_serialize().into_generator(),
        }
    }

    fn request_schema(&mut self, schema: fn(&mut SchemaGenerator) -> Schema) -> Value {
        schema(&mut self.request).to_value()
    }

    fn response_schema(&mut self, schema: fn(&mut SchemaGenerator) -> Schema) -> Value {
        schema(&mut self.response).to_value()
    }

    /// If a type is used in requests and answers, the document contains its request schema, which allows more.
    fn into_definitions(mut self) -> Map<String, Value> {
        let mut definitions = self.response.take_definitions(true);
        definitions.extend(self.request.take_definitions(true));
        definitions.values_mut().for_each(with_limits);
        definitions
    }
}

fn operation(doc: &Operation, schemas: &mut SchemaGenerators) -> Value {
    let mut operation = json!({
        "operationId": doc.id,
        "tags": [doc.tag],
        "summary": doc.summary,
        "description": description(doc),
        "responses": responses(doc, schemas),
        "security": security(doc.need),
    });
    operation["x-required-role"] = required_role(doc.need).into();
    if let Some(scope) = doc.scope {
        operation["x-scope"] = scope.name().into();
    }
    if doc.is_in_namespace {
        operation["x-in-namespace"] = true.into();
    }
    let parameters = parameters(doc, schemas);
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = doc.body {
        let schema = schemas.request_schema(body);
        operation["requestBody"] = json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    operation
}

fn description(doc: &Operation) -> String {
    let role = match doc.need {
        RequiredAccess::Admin => " Needs the role `admin`.",
        RequiredAccess::Operator => " Needs the role `operator` or `admin`.",
        RequiredAccess::OtherUser(who) => return format!("{} {who}", doc.description),
        RequiredAccess::Nothing
        | RequiredAccess::Metrics
        | RequiredAccess::OneTime
        | RequiredAccess::SetUp
        | RequiredAccess::Viewer => "",
    };
    let namespace = match doc.is_in_namespace {
        true => " A role in a namespace is sufficient for what belongs to it.",
        false => "",
    };
    format!("{}{namespace}{role}", doc.description)
}

/// The lowest role with access, or why no role is needed.
fn required_role(need: RequiredAccess) -> &'static str {
    match need {
        RequiredAccess::Nothing => "none",
        RequiredAccess::Metrics => "metrics",
        RequiredAccess::OneTime | RequiredAccess::SetUp => "any",
        RequiredAccess::Viewer => "viewer",
        RequiredAccess::Operator => "operator",
        RequiredAccess::Admin => "admin",
        RequiredAccess::OtherUser(_) => "other",
    }
}

fn security(need: RequiredAccess) -> Value {
    match need {
        RequiredAccess::Nothing => json!([]),
        RequiredAccess::OtherUser(_) => json!([{ "token": [] }, { "key": [] }]),
        RequiredAccess::Metrics => json!([{}, { "token": [] }]),
        RequiredAccess::OneTime
        | RequiredAccess::SetUp
        | RequiredAccess::Viewer
        | RequiredAccess::Operator
        | RequiredAccess::Admin => json!([{ "token": [] }]),
    }
}

fn parameters(doc: &Operation, schemas: &mut SchemaGenerators) -> Vec<Value> {
    let in_path = doc.path_parameters.iter().map(|(name, description)| {
        json!({ "name": name, "in": "path", "required": true, "description": description, "schema": { "type": "string", "minLength": 1 } })
    });
    let mut parameters: Vec<Value> = in_path.collect();
    if doc.takes_if_match {
        parameters.push(json!({
            "name": "If-Match",
            "in": "header",
            "required": false,
            "description": "ETag of the version that the change is based on. 412 if the current version differs. Without the header, the change always applies.",
            "schema": { "type": "string" },
        }));
    }
    let Some(query) = doc.query else { return parameters };
    let query = schemas.request_schema(query);
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

/// `format: uint32` is not a standard format, so the document also states the limit.
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

/// An optional parameter is omitted; a query has no null.
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
    // An optional type with a schema of its own.
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

fn responses(doc: &Operation, schemas: &mut SchemaGenerators) -> Value {
    let mut responses = Map::new();
    for status in failures(doc) {
        responses.insert(status.to_string(), json!({ "$ref": "#/components/responses/Problem" }));
    }
    let mut answers = Map::new();
    for answer in &doc.answers {
        // A status may have answers of several types.
        let response = answers
            .entry(answer.status.as_u16().to_string())
            .or_insert_with(|| json!({ "description": answer.description }));
        match &answer.content {
            Some(ResponseContent::Json(schema)) => {
                response["content"]["application/json"] = json!({ "schema": schemas.response_schema(*schema) });
            }
            Some(ResponseContent::Text(content_type)) => {
                response["content"][*content_type] = json!({ "schema": { "type": "string" } });
            }
            None => {}
        }
        if doc.has_etag {
            let tag =
                json!({ "description": "ETag of the definition, for `If-Match`.", "schema": { "type": "string" } });
            response["headers"]["ETag"] = tag;
        }
    }
    responses.extend(answers);
    responses.into()
}

/// Returns the declared errors and those that follow from the login and the body of the endpoint.
fn failures(doc: &Operation) -> Vec<u16> {
    let mut failures: Vec<u16> = doc.failures.iter().map(|status| status.as_u16()).collect();
    failures.extend([421, 500, 503]);
    match doc.need {
        RequiredAccess::Nothing => {}
        RequiredAccess::Metrics | RequiredAccess::OneTime => failures.push(401),
        RequiredAccess::OtherUser(_)
        | RequiredAccess::SetUp
        | RequiredAccess::Viewer
        | RequiredAccess::Operator
        | RequiredAccess::Admin => failures.extend([401, 403]),
    }
    if doc.query.is_some() || doc.body.is_some() || !doc.path_parameters.is_empty() {
        failures.push(400);
    }
    if doc.body.is_some() {
        failures.extend([408, 413, 415]);
    }
    // The query or the body may also name an entity that does not exist.
    if !doc.path_parameters.is_empty() || matches!(doc.need, RequiredAccess::OtherUser(_)) {
        failures.push(404);
    }
    failures
}
