//! `--set publishers.clients=10`: one value of a scenario by the name of its group.
//!
//! Keys are those of a file, with the group's name (or `*` for all groups) in front. Items of lists go by number: `a.subscribe.0.qos=1`.
//! `none` removes what is optional, for example `publishers.publish.rate=none` for the closed model.

use toml::{Table, Value};

use super::diagnostic::{Diagnostic, did_you_mean};
use super::document::{Document, join};
use super::schema::{self, Field, Kind};

pub fn set(document: &mut Document, assignment: &str) -> Result<(), Diagnostic> {
    let fail = |key: &str, message: String| Diagnostic {
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

/// The keys that are possible, the tables that are meant, and the key within them.
fn root<'k>(document: &Document, key: &'k str) -> Result<(&'static [Field], Vec<String>, &'k str), String> {
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
    let is_table = |field: &&Field| field.name == name && matches!(field.kind, Kind::Table(_));
    if roots.is_empty() && schema::SCENARIO.iter().any(|field| is_table(&field)) {
        return Ok((schema::SCENARIO, vec![String::new()], key));
    }
    if roots.is_empty() {
        let hint = match did_you_mean(name, names.iter().copied()) {
            none if none.is_empty() => format!("; there are `{}`", names.join("`, `")),
            hint => hint,
        };
        return Err(format!("no group is called `{name}`{hint}"));
    }
    Ok((schema::GROUP, roots, rest))
}

/// What the key stands for.
fn find(fields: &'static [Field], words: &[&str]) -> Result<Field, String> {
    let (word, rest) = words.split_first().expect("a split text has a first part");
    let Some(field) = schema::find(fields, word) else {
        let known: Vec<&str> = schema::names(fields).collect();
        let hint = match did_you_mean(word, known.iter().copied()) {
            none if none.is_empty() => format!("; there are `{}`", known.join("`, `")),
            hint => hint,
        };
        return Err(format!("no such key{hint}"));
    };
    match (&field.kind, rest) {
        (_, []) => Ok(*field),
        (Kind::Table(fields) | Kind::Choice(fields, _), rest) => find(fields, rest),
        (Kind::Tables(_), [index]) if is_index(index) => Err("say which of its keys".into()),
        (Kind::Tables(fields), [index, rest @ ..]) if is_index(index) => find(fields, rest),
        (Kind::Tables(_), _) => Err(format!("`{word}` is a list; say which item, as in `{word}.0`")),
        _ => Err(format!("`{word}` has no keys below it")),
    }
}

fn is_index(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

fn parse(kind: &Kind, text: &str) -> Result<Value, String> {
    let wrong = || format!("expected {}, not `{text}`", schema::expected(kind));
    let number = text.replace('_', "");
    match kind {
        Kind::Text => Ok(Value::String(unquoted(text).into())),
        Kind::Whole(max) => match number.parse() {
            Ok(number) if (0..=*max).contains(&number) => Ok(Value::Integer(number)),
            _ => Err(wrong()),
        },
        Kind::Number => match number.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Value::Float(number)),
            _ => Err(wrong()),
        },
        Kind::Switch => text.parse().map(Value::Boolean).map_err(|_| wrong()),
        Kind::Word(words) | Kind::Choice(_, words) if words.contains(&text) => Ok(text.into()),
        Kind::Word(_) => Err(wrong()),
        // `cycle={stay_s=1}`
        Kind::Table(_) | Kind::Tables(_) | Kind::Choice(..) => {
            let mut table: Table = toml::from_str(&format!("value = {text}")).map_err(|_| wrong())?;
            table.remove("value").ok_or_else(wrong)
        }
    }
}

fn unquoted(text: &str) -> &str {
    let inner = |quote| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

/// The table that `root` returned.
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
    // A payload is one of several things: another one takes its place.
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
            let index: usize = rest[0].parse().map_err(|_| format!("`{word}` is a list"))?;
            match items.get_mut(index) {
                Some(Value::Table(item)) => put(item, &rest[1..], value),
                _ => Err(format!("`{word}` has {count} items; the first is `{word}.0`")),
            }
        }
        _ => Err(format!("`{word}` has no keys below it")),
    }
}
