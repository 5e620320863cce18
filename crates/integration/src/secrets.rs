//! References to secrets: `env:NAME` and `file:PATH` in place of a secret are replaced when the definition is started.
//! The schema of the type defines which fields are secrets; other fields are not replaced.
//!
//! Definitions of the API can only use references that a [`SecretPolicy`] allows. Otherwise an administrator of the API
//! could send any file that the server can read to any target.

use std::fs;
use std::path::{Path, PathBuf};

use schemars::Schema;
use serde_json::Value;

/// Maximum size of a secret file.
const SECRET_BYTES_MAX: u64 = 64 * 1024;

/// References to secrets that definitions of the API may contain.
#[derive(Clone, Debug, Default)]
pub struct SecretPolicy {
    /// Directory of files that `file:PATH` may name. `None`: no file.
    pub directory: Option<PathBuf>,
    /// Beginning of the variables that `env:NAME` may name. Empty: no variable.
    pub environment_prefix: String,
}

impl SecretPolicy {
    /// Returns a problem for each reference that is not allowed.
    pub fn problems(&self, field: &str, config: &Value, schema: Option<&Schema>) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(root) = schema.map(Schema::as_value) {
            let check = &|text: &str| self.check(text).map(|()| None);
            walk(&mut config.clone(), root, (root, check), field, &mut problems);
        }
        problems
    }

    fn check(&self, text: &str) -> Result<(), String> {
        if let Some(name) = text.strip_prefix("env:") {
            let prefix = &self.environment_prefix;
            return match !prefix.is_empty() && name.starts_with(prefix.as_str()) {
                true => Ok(()),
                false => Err(format!(
                    "the API cannot use the environment variable {name:?}: its name must begin with \
                     integration.secrets_env_prefix ({prefix:?})"
                )),
            };
        }
        let Some(path) = text.strip_prefix("file:").map(Path::new) else {
            return Ok(());
        };
        let directory = self
            .directory
            .as_deref()
            .and_then(|directory| fs::canonicalize(directory).ok());
        // Symbolic links and `..` cannot leave the directory.
        let found = fs::canonicalize(path).ok();
        match directory.zip(found) {
            Some((directory, found)) if found.starts_with(&directory) => Ok(()),
            _ => Err(format!(
                "the API cannot use the file {}: it must be a file in integration.secrets_dir",
                path.display()
            )),
        }
    }
}

/// Returns the secret of a text, or `None` if the text stays.
type Replacement<'a> = &'a dyn Fn(&str) -> Result<Option<String>, String>;

/// Replaces the references in a configuration. Errors name the field and never contain a secret.
pub fn resolve(field: &str, mut config: Value, schema: &Schema) -> Result<Value, Vec<String>> {
    let mut problems = Vec::new();
    let root = schema.as_value();
    walk(&mut config, root, (root, &find), field, &mut problems);
    if problems.is_empty() { Ok(config) } else { Err(problems) }
}

/// `root`: the whole schema, and what replaces a secret.
fn walk(value: &mut Value, schema: &Value, root: (&Value, Replacement<'_>), field: &str, problems: &mut Vec<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.0.pointer(reference.trim_start_matches('#'));
        return walk(value, target.unwrap_or(&Value::Null), root, field, problems);
    }
    for one_of in ["anyOf", "oneOf", "allOf"] {
        for schema in schema[one_of].as_array().into_iter().flatten() {
            walk(value, schema, root, field, problems);
        }
    }
    match value {
        Value::String(text) if schema["writeOnly"] == true => match (root.1)(text) {
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

    #[test]
    fn references_of_the_api_stay_in_the_allowed_directory_and_prefix() {
        let directory = std::env::temp_dir().join(format!("tidewire-secrets-{}", std::process::id()));
        let allowed = directory.join("allowed");
        fs::create_dir_all(&allowed).expect("a temporary directory");
        fs::write(directory.join("other"), "x").expect("a temporary file");
        fs::write(allowed.join("token"), "x").expect("a temporary file");
        std::os::unix::fs::symlink(directory.join("other"), allowed.join("link")).expect("a link");
        let policy = SecretPolicy {
            directory: Some(allowed.clone()),
            environment_prefix: "TIDEWIRE_SECRET_".to_owned(),
        };
        let schema = config_schema("http").expect("HTTP connectors exist");
        let is_allowed = |policy: &SecretPolicy, text: &str| {
            let config = json!({"url": text, "headers": {"a": text}});
            policy.problems("config", &config, Some(&schema)).is_empty()
        };
        let file = |name: &str| format!("file:{}", allowed.join(name).display());
        for (text, expected) in [
            (file("token"), true),
            (file("link"), false),
            (file("../other"), false),
            (file("missing"), false),
            (format!("file:{}", directory.join("other").display()), false),
            ("file:/etc/passwd".to_owned(), false),
            ("env:TIDEWIRE_SECRET_X".to_owned(), true),
            ("env:HOME".to_owned(), false),
            ("plain".to_owned(), true),
        ] {
            assert_eq!(is_allowed(&policy, &text), expected, "{text}");
        }
        assert!(!is_allowed(&SecretPolicy::default(), &file("token")));
        assert!(!is_allowed(&SecretPolicy::default(), "env:TIDEWIRE_SECRET_X"));
        fs::remove_dir_all(directory).expect("it was made above");
    }

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
