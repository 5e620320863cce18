//! `--set publishers.clients=10`: changes one value of a scenario, by the name of its group.
//!
//! The keys are those of a file after the group's name (or `*` for all groups). List items are named by number:
//! `a.subscribe.0.qos=1`. `none` removes an optional value, for example `publishers.publish.rate=none` for the closed
//! model.

use toml::{Table, Value};

use super::diagnostic::{ScenarioDiagnostic, did_you_mean};
use super::document::{Document, join};
use super::schema::{self, FieldType, ScenarioField};

pub fn set(document: &mut Document, assignment: &str) -> Result<(), ScenarioDiagnostic> {
    let fail = |key: &str, message: String| ScenarioDiagnostic {
        place: format!("--set {assignment}"),
        key: key.into(),
        message,
    };
    let Some((key, text)) = assignment.split_once('=') else {
        return Err(fail("", "expected key=value, for example publishers.clients=10".into()));
    };
    let (key, text) = (key.trim(), text.trim());
    let (fields, roots, rest) = root(document, key).map_err(|message| fail(key, message))?;
    let words: Vec<&str> = rest.split('.').collect();
    let target = find(fields, &words).map_err(|message| fail(key, message))?;
    let value = match text {
        "none" if target.is_optional => None,
        _ => Some(parse(&target.kind, text).map_err(|message| fail(key, message))?),
    };
    for root in roots {
        put(table_at(document, &root), &words, value.clone()).map_err(|message| fail(key, message))?;
        document.places.insert(join(&root, rest), format!("--set {assignment}"));
    }
    Ok(())
}

/// Returns the possible keys, the selected tables, and the key within them.
fn root<'k>(document: &Document, key: &'k str) -> Result<(&'static [ScenarioField], Vec<String>, &'k str), String> {
    let Some((name, rest)) = key.split_once('.') else {
        return Ok((schema::SCENARIO, vec![String::new()], key));
    };
    let names: Vec<&str> = document
        .groups()
        .map(|group| group.get("name").and_then(Value::as_str).unwrap_or_default())
        .collect();
    let roots: Vec<String> = names
        .iter()
        .enumerate()
        .filter(|(_, group)| name == "*" || **group == name)
        .map(|(index, _)| format!("group.{index}"))
        .collect();
    let is_table = |field: &&ScenarioField| field.name == name && matches!(field.kind, FieldType::Table(_));
    if roots.is_empty() && schema::SCENARIO.iter().any(|field| is_table(&field)) {
        return Ok((schema::SCENARIO, vec![String::new()], key));
    }
    if roots.is_empty() {
        let hint = match did_you_mean(name, names.iter().copied()) {
            none if none.is_empty() => format!("; known groups are `{}`", names.join("`, `")),
            hint => hint,
        };
        return Err(format!("unknown group `{name}`{hint}"));
    }
    Ok((schema::GROUP, roots, rest))
}

/// Returns the field that a key names.
fn find(fields: &'static [ScenarioField], words: &[&str]) -> Result<ScenarioField, String> {
    let (word, rest) = words.split_first().expect("a split text has a first part");
    let Some(field) = schema::find(fields, word) else {
        let known: Vec<&str> = schema::names(fields).collect();
        let hint = match did_you_mean(word, known.iter().copied()) {
            none if none.is_empty() => format!("; known keys are `{}`", known.join("`, `")),
            hint => hint,
        };
        return Err(format!("unknown key{hint}"));
    };
    match (&field.kind, rest) {
        (_, []) => Ok(*field),
        (FieldType::Table(fields) | FieldType::Choice(fields, _), rest) => find(fields, rest),
        (FieldType::Tables(_), [index]) if is_index(index) => Err("expected a key of the list item".into()),
        (FieldType::Tables(fields), [index, rest @ ..]) if is_index(index) => find(fields, rest),
        (FieldType::Tables(_), _) => Err(format!(
            "`{word}` is a list; expected the number of an item, as in `{word}.0`"
        )),
        _ => Err(format!("`{word}` has no keys")),
    }
}

fn is_index(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

fn parse(kind: &FieldType, text: &str) -> Result<Value, String> {
    let wrong = || format!("expected {}, not `{text}`", schema::expected(kind));
    let number = text.replace('_', "");
    match kind {
        FieldType::Text => Ok(Value::String(unquoted(text).into())),
        FieldType::Whole(max) => match number.parse() {
            Ok(number) if (0..=*max).contains(&number) => Ok(Value::Integer(number)),
            _ => Err(wrong()),
        },
        FieldType::Number => match number.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Value::Float(number)),
            _ => Err(wrong()),
        },
        FieldType::Switch => text.parse().map(Value::Boolean).map_err(|_| wrong()),
        FieldType::Word(words) | FieldType::Choice(_, words) if words.contains(&text) => Ok(text.into()),
        FieldType::Word(_) => Err(wrong()),
        // For example `cycle={stay_s=1}`.
        FieldType::Table(_) | FieldType::Tables(_) | FieldType::Choice(..) => {
            let mut table: Table = toml::from_str(&format!("value = {text}")).map_err(|_| wrong())?;
            table.remove("value").ok_or_else(wrong)
        }
    }
}

fn unquoted(text: &str) -> &str {
    let inner = |quote| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

/// Returns the table that `root` selected.
fn table_at<'d>(document: &'d mut Document, root: &str) -> &'d mut Table {
    let Some(index) = root.strip_prefix("group.") else {
        return &mut document.table;
    };
    let index: usize = index.parse().expect("it was counted");
    let groups = document.table.get_mut("group").and_then(Value::as_array_mut);
    let mut groups = groups.into_iter().flatten().filter_map(Value::as_table_mut);
    groups.nth(index).expect("it was found")
}

fn put(table: &mut Table, words: &[&str], value: Option<Value>) -> Result<(), String> {
    let (word, rest) = words.split_first().expect("a key has a word");
    if rest.is_empty() {
        match value {
            Some(value) => table.insert((*word).into(), value),
            None => table.remove(*word),
        };
        return Ok(());
    }
    // A payload is one of several alternatives, so a new one replaces the old one.
    if *word == "payload" {
        table.insert((*word).into(), Value::Table(Table::new()));
    }
    let inner = table
        .entry((*word).to_owned())
        .or_insert_with(|| Value::Table(Table::new()));
    match inner {
        Value::Table(inner) => put(inner, rest, value),
        Value::Array(items) => {
            let count = items.len();
            let index: usize = rest[0]
                .parse()
                .map_err(|_| format!("`{word}` is a list; expected the number of an item"))?;
            match items.get_mut(index) {
                Some(Value::Table(item)) => put(item, &rest[1..], value),
                _ => Err(format!("`{word}` has {count} items; the first is `{word}.0`")),
            }
        }
        _ => Err(format!("`{word}` has no keys")),
    }
}
