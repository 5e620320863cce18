//! References to secrets: `env:NAME` and `file:PATH` in place of a secret are replaced when the definition is started.
//! The schema of the type defines which fields are secrets; other fields are not replaced.

use std::fs;
use std::path::Path;

use schemars::Schema;
use serde_json::Value;

/// Maximum size of a secret file.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// Replaces the references in a configuration. Errors name the field and never contain a secret.
pub fn resolve(field: &str, mut config: Value, schema: &Schema) -> Result<Value, Vec<String>> {
    let mut problems = Vec::new();
    let root = schema.as_value();
    walk(&mut config, root, root, field, &mut problems);
    if problems.is_empty() { Ok(config) } else { Err(problems) }
}

fn walk(value: &mut Value, schema: &Value, root: &Value, field: &str, problems: &mut Vec<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#'));
        return walk(value, target.unwrap_or(&Value::Null), root, field, problems);
    }
    for one_of in ["anyOf", "oneOf", "allOf"] {
        for schema in schema[one_of].as_array().into_iter().flatten() {
            walk(value, schema, root, field, problems);
        }
    }
    match value {
        Value::String(text) if schema["writeOnly"] == true => match find(text) {
            Ok(Some(secret)) => *text = secret,
            Ok(None) => {}
            Err(problem) => problems.push(format!("{field}: {problem}")),
        },
        Value::Object(fields) => {
            for (name, value) in fields {
                let schema = schema["properties"]
                    .get(name)
                    .unwrap_or(&schema["additionalProperties"]);
                walk(value, schema, root, &format!("{field}.{name}"), problems);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter_mut().enumerate() {
                walk(value, &schema["items"], root, &format!("{field}[{index}]"), problems);
            }
        }
        _ => {}
    }
}

/// Returns the secret of a reference, or `None` if the text is the secret itself.
fn find(text: &str) -> Result<Option<String>, String> {
    if let Some(name) = text.strip_prefix("env:") {
        return match std::env::var(name) {
            Ok(secret) => Ok(Some(secret)),
            Err(_) => Err(format!("the server has no environment variable {name:?}")),
        };
    }
    let Some(path) = text.strip_prefix("file:").map(Path::new) else {
        return Ok(None);
    };
    let read = fs::metadata(path).and_then(|found| match found.len() > SECRET_BYTES_MAX {
        true => Err(std::io::Error::other(format!(
            "the file is larger than {SECRET_BYTES_MAX} bytes"
        ))),
        false => fs::read_to_string(path),
    });
    match read {
        Ok(secret) => Ok(Some(secret.trim_end_matches(['\r', '\n']).to_owned())),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::config_schema;
    use serde_json::json;

    fn resolved(config: Value) -> Result<Value, Vec<String>> {
        resolve("config", config, &config_schema("http").expect("HTTP connectors exist"))
    }

    #[test]
    fn only_references_in_secret_fields_are_replaced() {
        let path = std::env::temp_dir().join(format!("tidewire-secret-{}", std::process::id()));
        fs::write(&path, "hunter2\n").expect("a temporary file");
        let file = format!("file:{}", path.display());
        let config = json!({"url": "env:HOME", "headers": {"authorization": file, "x": "plain"}});
        let expected = json!({"url": "env:HOME", "headers": {"authorization": "hunter2", "x": "plain"}});
        assert_eq!(resolved(config), Ok(expected));
        fs::remove_file(path).expect("it was made above");
    }

    #[test]
    fn a_missing_secret_is_reported_with_its_field() {
        let config = json!({"headers": {"a": "env:TIDEWIRE_TEST_NO_SUCH_VARIABLE", "b": "file:/nowhere/at/all"}});
        let problems = resolved(config).expect_err("both are missing");
        assert!(
            problems[0].starts_with("config.headers.a: the server has no environment"),
            "{problems:?}"
        );
        assert!(
            problems[1].starts_with("config.headers.b: cannot read /nowhere/at/all"),
            "{problems:?}"
        );
    }
}
