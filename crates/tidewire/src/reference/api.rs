//! The pages of the HTTP interfaces, made from their OpenAPI documents.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use crate::cli::VERSION;

const INTRODUCTION: &str = "\
The API listens at [`api.bind`](configuration.md#apibind), by default <http://127.0.0.1:18083>. [How to use the API](api-use.md)
describes login, errors, pages of lists and concurrent changes. The server has the same description with all fields as an
OpenAPI 3.1 document at `GET /api/openapi.json`.

*Role*: `–` needs no login, `viewer` any login or API key, `admin` an administrator.";

const THINGSBOARD_INTRODUCTION: &str = "\
The device platform serves these endpoints of ThingsBoard's REST API. [ThingsBoard API](thingsboard-api.md) describes login,
ports and differences. The server has the same description with all fields as an OpenAPI 3.1 document at `GET /v3/api-docs`.";

pub fn page() -> String {
    let head = super::head("HTTP API", "the OpenAPI document", INTRODUCTION);
    head + &tables(&api::own_document(VERSION), split_role)
}

pub fn thingsboard_page() -> String {
    let head = super::head(
        "ThingsBoard endpoints",
        "the OpenAPI document of the device platform",
        THINGSBOARD_INTRODUCTION,
    );
    head + &tables(&thingsboard::platform_document(VERSION), platform_role)
}

/// One operation: call (`GET /path`), summary, required role and details.
struct OperationRow {
    call: String,
    summary: String,
    role: String,
    details: String,
}

fn tables(document: &Value, role: fn(&Value) -> (String, String)) -> String {
    let mut text = String::new();
    for (tag, rows) in by_tag(document, role) {
        let _ = write!(text, "\n## {tag}\n\n| endpoint | purpose | role |\n|---|---|---|\n");
        for row in &rows {
            let _ = writeln!(text, "| `{}` | {} | {} |", row.call, row.summary, row.role);
        }
        if rows.iter().any(|row| !row.details.is_empty()) {
            text.push('\n');
        }
        for row in rows.iter().filter(|row| !row.details.is_empty()) {
            let _ = writeln!(text, "- `{}`: {}", row.call, row.details);
        }
    }
    text
}

fn by_tag(document: &Value, role: fn(&Value) -> (String, String)) -> BTreeMap<&str, Vec<OperationRow>> {
    let mut tags: BTreeMap<&str, Vec<OperationRow>> = BTreeMap::new();
    for (path, operations) in document["paths"].as_object().into_iter().flatten() {
        for method in ["get", "post", "put", "delete"] {
            if let Some(operation) = operations.get(method) {
                let tag = operation["tags"][0].as_str().unwrap_or_default();
                let (role, details) = role(operation);
                tags.entry(tag).or_default().push(OperationRow {
                    call: format!("{} {path}", method.to_ascii_uppercase()),
                    summary: super::cell(text_of(operation, "summary")),
                    role,
                    details: super::sentence(&details),
                });
            }
        }
    }
    tags
}

/// The document adds this sentence to the description of an operation that needs an administrator.
const ADMIN_NOTE: &str = "Needs the role `admin`.";

/// Returns the role that an operation needs, and its description without it.
fn split_role(operation: &Value) -> (String, String) {
    let description = text_of(operation, "description");
    let details = description.replace(ADMIN_NOTE, "");
    let has_login = operation["security"].as_array().is_some_and(|all| !all.is_empty());
    let role = match has_login {
        _ if description.contains(ADMIN_NOTE) => "admin",
        true => "viewer",
        false => "–",
    };
    (role.to_owned(), details)
}

/// The last sentence of a description says whom the operation is for: "For tenant administrators."
fn platform_role(operation: &Value) -> (String, String) {
    let description = text_of(operation, "description").trim();
    let found = description
        .rfind("For ")
        .filter(|at| *at == 0 || description[..*at].ends_with(". "));
    match found {
        Some(at) => {
            let role = description[at + "For ".len()..].trim_end_matches('.');
            (super::cell(role), description[..at].trim().to_owned())
        }
        None => ("–".to_owned(), description.to_owned()),
    }
}

fn text_of<'a>(operation: &'a Value, field: &str) -> &'a str {
    operation[field].as_str().unwrap_or_default()
}
