//! Rules as files: SQL with the other fields in comments at the top.
//!
//! ```sql
//! -- description: high temperatures to Kafka
//! -- actions: kafka:out, console
//! SELECT clientid, payload.temp AS t
//! FROM "m/#"
//! WHERE payload.temp > 30
//! ```
//!
//! Comments of the form `key: value` at the top are the head: `id` (default: the name of the file), `name`,
//! `description`, `enable` and `actions`. Actions are ids and `console`, separated by commas, or JSON as in the API, on
//! one line.

use rules::{Rule, RuleError, TextPosition};

use crate::compile::limits;
use crate::definition::{RuleActionDefinition, RuleDefinition, RuleFunction};

const KEYS: &[&str] = &["id", "name", "description", "enable", "actions"];

/// An error in a rule file, with its line from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    pub line: usize,
    /// Column from 1, if it is known.
    pub column: Option<usize>,
    pub message: String,
}

/// Reads a rule and compiles its SQL. `default_id` is its id if the head has none.
pub fn read_rule(text: &str, default_id: &str) -> Result<RuleDefinition, Vec<FileProblem>> {
    let mut rule = RuleDefinition {
        id: default_id.to_owned(),
        name: String::new(),
        sql: String::new(),
        actions: Vec::new(),
        enable: true,
        description: String::new(),
    };
    let mut problems = Vec::new();
    let mut head_lines = 0;
    for (index, line) in text.lines().enumerate() {
        let Some(comment) = line.trim().strip_prefix("--") else {
            if line.trim().is_empty() {
                continue;
            }
            break;
        };
        if let Some((key, value)) = entry(comment) {
            head_lines = index + 1;
            if let Err(message) = set(&mut rule, key, value) {
                problems.push(FileProblem {
                    line: index + 1,
                    column: None,
                    message,
                });
            }
        }
    }
    let sql: Vec<&str> = text.lines().skip(head_lines).collect();
    let above = head_lines + sql.iter().take_while(|line| line.trim().is_empty()).count();
    rule.sql = sql.join("\n").trim().to_owned();
    if let Err(error) = compile_sql(&rule.sql) {
        problems.push(FileProblem {
            line: above + error.position.line as usize,
            column: Some(error.position.column as usize),
            message: without_position(&error),
        });
    }
    if problems.is_empty() { Ok(rule) } else { Err(problems) }
}

/// Writes a rule as a file.
pub fn write_rule(rule: &RuleDefinition) -> String {
    let mut text = String::new();
    let mut put = |key: &str, value: &str| {
        let value = value.replace(['\n', '\r'], " ");
        text.push_str(&format!("-- {key}: {value}\n"));
    };
    put("id", &rule.id);
    for (key, value) in [("name", &rule.name), ("description", &rule.description)] {
        if !value.is_empty() {
            put(key, value);
        }
    }
    if !rule.enable {
        put("enable", "false");
    }
    if !rule.actions.is_empty() {
        put("actions", &actions_text(&rule.actions));
    }
    text.push_str(&rule.sql);
    text.push('\n');
    text
}

/// Checks the SQL of a rule. The error has the position.
pub fn compile_sql(sql: &str) -> Result<(), RuleError> {
    Rule::compile(sql, &limits()).map(drop)
}

/// Returns the message of an error without its position.
pub fn without_position(error: &RuleError) -> String {
    let at = RuleError {
        position: TextPosition::default(),
        ..error.clone()
    };
    let prefix = format!("{}: ", TextPosition::default());
    let text = at.to_string();
    text.strip_prefix(&prefix).unwrap_or(&text).to_owned()
}

/// Parses `key: value`, where the key is one word.
fn entry(comment: &str) -> Option<(&str, &str)> {
    let (key, value) = comment.split_once(':')?;
    let key = key.trim();
    let is_word = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    is_word.then(|| (key, value.trim()))
}

fn set(rule: &mut RuleDefinition, key: &str, value: &str) -> Result<(), String> {
    match key {
        "id" => rule.id = value.to_owned(),
        "name" => rule.name = value.to_owned(),
        "description" => rule.description = value.to_owned(),
        "enable" => rule.enable = value.parse().map_err(|_| unexpected(key, value, "true or false"))?,
        "actions" => rule.actions = actions(value)?,
        _ => {
            let keys = KEYS.join(", ");
            return Err(format!(
                "unknown key {key:?}, expected one of {keys}; other comments must not begin with `word:`"
            ));
        }
    }
    Ok(())
}

fn actions(value: &str) -> Result<Vec<RuleActionDefinition>, String> {
    if value.starts_with('[') {
        return serde_json::from_str(value).map_err(|error| format!("actions: {}", input_errors::plain(&error)));
    }
    let ids = value.split(',').map(str::trim).filter(|id| !id.is_empty());
    ids.map(|id| match id {
        "console" => Ok(RuleActionDefinition::Function(RuleFunction::Console)),
        id if id.contains(':') => Ok(RuleActionDefinition::Action(id.to_owned())),
        id => Err(unexpected("actions", id, "type:name, console, or a JSON array")),
    })
    .collect()
}

fn actions_text(actions: &[RuleActionDefinition]) -> String {
    let word = |action: &RuleActionDefinition| match action {
        RuleActionDefinition::Action(id) => Some(id.clone()),
        RuleActionDefinition::Function(RuleFunction::Console) => Some("console".to_owned()),
        RuleActionDefinition::Function(RuleFunction::Republish(_)) => None,
    };
    let words: Option<Vec<String>> = actions.iter().map(word).collect();
    match words {
        Some(words) => words.join(", "),
        None => serde_json::to_string(actions).expect("a definition is plain data"),
    }
}

fn unexpected(key: &str, found: &str, expected: &str) -> String {
    format!("{key}: found {found:?}, expected {expected}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "-- High temperatures.\n-- description: a: b\n-- actions: kafka:out, console\n\nSELECT topic\nFROM \"m/#\"\n";

    #[test]
    fn the_head_is_not_part_of_the_sql() {
        let rule = read_rule(FILE, "hot").expect("a rule");
        assert_eq!(
            (rule.id.as_str(), rule.description.as_str(), rule.enable),
            ("hot", "a: b", true)
        );
        assert_eq!(rule.actions.len(), 2);
        assert_eq!(rule.sql, "SELECT topic\nFROM \"m/#\"");
    }

    #[test]
    fn a_written_rule_is_read_back() {
        let mut rule = read_rule(FILE, "hot").expect("a rule");
        rule.enable = false;
        assert_eq!(read_rule(&write_rule(&rule), "other"), Ok(rule.clone()));
        rule.actions =
            serde_json::from_str(r#"[{"function": "republish", "args": {"topic": "a, b"}}]"#).expect("actions");
        assert_eq!(read_rule(&write_rule(&rule), "other"), Ok(rule));
    }

    #[test]
    fn errors_have_line_and_column() {
        for (text, line, column, part) in [
            ("-- descripton: x\nSELECT * FROM \"t\"", 1, None, "unknown key"),
            ("\n-- enable: maybe\nSELECT * FROM \"t\"", 2, None, "true or false"),
            ("-- actions: kafka\nSELECT * FROM \"t\"", 1, None, "type:name"),
            ("-- name: x\n\n\nSELECT *\nFORM \"t\"", 5, Some(1), "FROM"),
            ("-- name: x\n", 2, Some(1), "SELECT"),
        ] {
            let problems = read_rule(text, "r").expect_err(text);
            let first = &problems[0];
            assert_eq!((first.line, first.column), (line, column), "{text}: {first:?}");
            assert!(first.message.contains(part), "{text}: {first:?}");
        }
    }
}
