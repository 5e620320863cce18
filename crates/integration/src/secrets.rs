//! Secrets that are elsewhere: `env:NAME` and `file:PATH` in the place of a secret stand for what is there when the thing that needs it
//! is started. Nothing else is looked at: which fields are secrets the schema of the type says.

use std::fs;
use std::path::Path;

use schemars::Schema;
use serde_json::Value;

/// A password, a token, a key.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// The configuration with its secrets in it. What cannot be found is told with its field, never with its value.
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

/// What a reference stands for; none if the text is the secret itself.
fn find(text: &str) -> Result<Option<String>, String> {
    if let Some(name) = text.strip_prefix("env:") {
        return match std::env::var(name) {
            Ok(secret) => Ok(Some(secret)),
            Err(_) => Err(format!("the environment of the server has no variable {name:?}")),
        };
    }
    let Some(path) = text.strip_prefix("file:").map(Path::new) else {
        return Ok(None);
    };
    let read = fs::metadata(path).and_then(|found| match found.len() > SECRET_BYTES_MAX {
        true => Err(std::io::Error::other(format!(
            "it is larger than {SECRET_BYTES_MAX} bytes"
        ))),
        false => fs::read_to_string(path),
    });
    match read {
        Ok(secret) => Ok(Some(secret.trim_end_matches(['\r', '\n']).to_owned())),
        Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::config_schema;
    use serde_json::json;

    fn resolved(config: Value) -> Result<Value, Vec<String>> {
        resolve(
            "config",
            config,
            &config_schema("http").expect("there are HTTP connectors"),
        )
    }

    #[test]
    fn only_secrets_are_looked_up() {
        let path = std::env::temp_dir().join(format!("tidewire-secret-{}", std::process::id()));
        fs::write(&path, "hunter2\n").expect("a temporary file");
        let file = format!("file:{}", path.display());
        let config = json!({"url": "env:HOME", "headers": {"authorization": file, "x": "plain"}});
        let expected = json!({"url": "env:HOME", "headers": {"authorization": "hunter2", "x": "plain"}});
        assert_eq!(resolved(config), Ok(expected));
        fs::remove_file(path).expect("it was made above");
    }

    #[test]
    fn what_is_not_there_is_told_with_its_field() {
        let config = json!({"headers": {"a": "env:TIDEWIRE_TEST_NO_SUCH_VARIABLE", "b": "file:/nowhere/at/all"}});
        let problems = resolved(config).expect_err("neither is there");
        assert!(
            problems[0].starts_with("config.headers.a: the environment"),
            "{problems:?}"
        );
        assert!(
            problems[1].starts_with("config.headers.b: /nowhere/at/all"),
            "{problems:?}"
        );
    }
}
