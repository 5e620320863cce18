//! A scenario as written: a file, a preset or another scenario, with `--set` applied, and with the origin of every
//! value.
//!
//! [`Document::resolve`] converts it into a [`Scenario`] or returns all errors: first those of keys and types, then
//! those of values.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::diagnostic::{ScenarioDiagnostic, did_you_mean};
use super::schema::{self, FieldType, ScenarioField};
use super::{Scenario, overrides, validate};

/// Largest scenario file.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

#[derive(Clone, Debug)]
pub struct Document {
    /// The name of the file or scenario, for messages.
    name: String,
    pub(super) table: Table,
    /// From "group.0.publish.rate" to "storm.toml:12" or "--set a.publish.rate=x".
    pub(super) places: HashMap<String, String>,
}

impl Document {
    pub fn of_file(path: &Path) -> Result<Document, Vec<ScenarioDiagnostic>> {
        let name = path.display().to_string();
        let fail = |message: String| {
            vec![ScenarioDiagnostic {
                place: name.clone(),
                key: String::new(),
                message,
            }]
        };
        let about = fs::metadata(path).map_err(|error| fail(error.to_string()))?;
        if about.len() > FILE_BYTES_MAX {
            return Err(fail(format!(
                "the scenario has {} bytes; at most {FILE_BYTES_MAX} are possible",
                about.len()
            )));
        }
        let text = fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        Document::of_text(&name, &text)
    }

    pub fn of_text(name: &str, text: &str) -> Result<Document, Vec<ScenarioDiagnostic>> {
        let lines = LineIndex { name, text };
        let parsed = DeTable::parse(text).map_err(|error| vec![lines.diagnostic(&error)])?;
        let table: Table = toml::from_str(text).map_err(|error| vec![lines.diagnostic(&error)])?;
        let mut places = HashMap::new();
        lines.walk(parsed.get_ref(), "", &mut places);
        Ok(Document {
            name: name.into(),
            table,
            places,
        })
    }

    pub fn of_scenario(scenario: &Scenario) -> Document {
        let table = Table::try_from(scenario).expect("a scenario can be written as TOML");
        Document {
            name: scenario.name.clone(),
            table,
            places: HashMap::new(),
        }
    }

    /// Applies `group.key=value` or `key=value`.
    pub fn set(&mut self, assignment: &str) -> Result<(), ScenarioDiagnostic> {
        overrides::set(self, assignment)
    }

    pub fn resolve(&self) -> Result<Scenario, Vec<ScenarioDiagnostic>> {
        let mut wrong = Vec::new();
        self.check_table(&self.table, schema::SCENARIO, "", &mut wrong);
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let scenario: Scenario = Value::Table(self.table.clone())
            .try_into()
            .map_err(|error: toml::de::Error| vec![self.diagnostic("", input_errors::plain(error.message()))])?;
        let wrong = validate::check(&scenario);
        match wrong.is_empty() {
            true => Ok(scenario),
            false => Err(wrong
                .into_iter()
                .map(|(path, message)| self.diagnostic(&path, message))
                .collect()),
        }
    }

    fn check_table(
        &self,
        table: &Table,
        fields: &'static [ScenarioField],
        path: &str,
        wrong: &mut Vec<ScenarioDiagnostic>,
    ) {
        for (key, value) in table {
            let path = join(path, key);
            match schema::find(fields, key) {
                Some(field) => self.check_value(value, &field.kind, &path, wrong),
                None => {
                    let known: Vec<&str> = schema::names(fields).collect();
                    let hint = match did_you_mean(key, known.iter().copied()) {
                        none if none.is_empty() => format!("; known keys are `{}`", known.join("`, `")),
                        hint => hint,
                    };
                    wrong.push(self.diagnostic(&path, format!("unknown key{hint}")));
                }
            }
        }
    }

    fn check_value(&self, value: &Value, kind: &FieldType, path: &str, wrong: &mut Vec<ScenarioDiagnostic>) {
        let fits = match (kind, value) {
            (FieldType::Text, Value::String(_)) | (FieldType::Switch, Value::Boolean(_)) => true,
            (FieldType::Number, Value::Integer(_)) => true,
            (FieldType::Number, Value::Float(number)) => number.is_finite(),
            (FieldType::Whole(max), Value::Integer(number)) => (0..=*max).contains(number),
            (FieldType::Word(words) | FieldType::Choice(_, words), Value::String(word)) => {
                words.contains(&word.as_str())
            }
            (FieldType::Table(fields), Value::Table(table)) => return self.check_table(table, fields, path, wrong),
            (FieldType::Choice(fields, _), Value::Table(table)) if table.len() == 1 => {
                return self.check_table(table, fields, path, wrong);
            }
            (FieldType::Tables(fields), Value::Array(values)) => {
                for (index, value) in values.iter().enumerate() {
                    self.check_value(value, &FieldType::Table(fields), &join(path, &index.to_string()), wrong);
                }
                return;
            }
            _ => false,
        };
        if !fits {
            let message = format!("expected {}, {}", schema::expected(kind), schema::describe(value));
            wrong.push(self.diagnostic(path, message));
        }
    }

    pub(super) fn diagnostic(&self, path: &str, message: String) -> ScenarioDiagnostic {
        ScenarioDiagnostic {
            place: self.place(path),
            key: self.displayed(path),
            message,
        }
    }

    /// Returns where the value was written, or the table that contains it.
    fn place(&self, path: &str) -> String {
        let mut path = path;
        loop {
            if let Some(place) = self.places.get(path) {
                return place.clone();
            }
            match path.rsplit_once('.') {
                Some((outer, _)) => path = outer,
                None => return self.name.clone(),
            }
        }
    }

    /// Converts "group.0.publish.rate" to "publishers.publish.rate".
    fn displayed(&self, path: &str) -> String {
        let Some(rest) = path.strip_prefix("group.") else {
            return path.into();
        };
        let (index, rest) = rest.split_once('.').unwrap_or((rest, ""));
        let group = index.parse().ok().and_then(|index: usize| self.groups().nth(index));
        let name = group.and_then(|group| group.get("name")).and_then(Value::as_str);
        match name.filter(|name| !name.is_empty()) {
            Some(name) if rest.is_empty() => name.into(),
            Some(name) => format!("{name}.{rest}"),
            None => path.into(),
        }
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = &Table> {
        let groups = self.table.get("group").and_then(Value::as_array);
        groups.into_iter().flatten().filter_map(Value::as_table)
    }

    /// Multiplies the clients of every group that scales by `factor`; a group keeps at least one.
    pub fn scale(&mut self, factor: f64) {
        let groups = self.table.get_mut("group").and_then(Value::as_array_mut);
        for group in groups.into_iter().flatten().filter_map(Value::as_table_mut) {
            let scales = group.get("scales").and_then(Value::as_bool).unwrap_or(true);
            if let Some(Value::Integer(clients)) = group.get_mut("clients").filter(|_| scales) {
                *clients = ((*clients as f64 * factor).round() as i64).max(1);
            }
        }
    }
}

pub(super) fn join(path: &str, key: &str) -> String {
    match path.is_empty() {
        true => key.into(),
        false => format!("{path}.{key}"),
    }
}

/// Converts byte offsets of a text to "name:line".
struct LineIndex<'a> {
    name: &'a str,
    text: &'a str,
}

impl LineIndex<'_> {
    fn place(&self, offset: usize) -> String {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        format!("{}:{line}", self.name)
    }

    fn diagnostic(&self, error: &toml::de::Error) -> ScenarioDiagnostic {
        ScenarioDiagnostic {
            place: self.place(error.span().map_or(0, |span| span.start)),
            key: String::new(),
            message: input_errors::plain(error.message()).replace('\n', "; "),
        }
    }

    fn walk(&self, table: &DeTable<'_>, path: &str, places: &mut HashMap<String, String>) {
        for (key, value) in table.iter() {
            let path = join(path, key.get_ref());
            places.insert(path.clone(), self.place(key.span().start));
            self.walk_value(value, &path, places);
        }
    }

    fn walk_value(&self, value: &Spanned<DeValue<'_>>, path: &str, places: &mut HashMap<String, String>) {
        match value.get_ref() {
            DeValue::Table(table) => self.walk(table, path, places),
            DeValue::Array(values) => {
                for (index, value) in values.iter().enumerate() {
                    let path = join(path, &index.to_string());
                    places.insert(path.clone(), self.place(value.span().start));
                    self.walk_value(value, &path, places);
                }
            }
            _ => {}
        }
    }
}

/// Returns the text of a file that defines the scenario, without values that equal the defaults.
pub fn to_toml(scenario: &Scenario) -> String {
    let mut table = Document::of_scenario(scenario).table;
    remove_defaults(&mut table, &default_of(Scenario::default()));
    let groups = table.get_mut("group").and_then(Value::as_array_mut);
    for group in groups.into_iter().flatten().filter_map(Value::as_table_mut) {
        remove_defaults(group, &default_of(super::ClientGroup::default()));
        if let Some(publish) = group.get_mut("publish").and_then(Value::as_table_mut) {
            remove_defaults(publish, &default_of(super::PublishSpec::default()));
        }
    }
    let mut text = String::new();
    print(&table, schema::SCENARIO, "", &mut text);
    text
}

/// Writes the keys in the order of the schema; tables come last, as TOML requires.
fn print(table: &Table, fields: &'static [ScenarioField], path: &str, text: &mut String) {
    let present = || fields.iter().filter_map(|field| Some((field, table.get(field.name)?)));
    for (field, value) in present().filter(|(_, value)| !value.is_table() && !value.is_array()) {
        text.push_str(&format!("{} = {value}\n", field.name));
    }
    for (field, value) in present() {
        let path = join(path, field.name);
        match (&field.kind, value) {
            (FieldType::Table(fields) | FieldType::Choice(fields, _), Value::Table(inner)) => {
                text.push_str(&format!("\n[{path}]\n"));
                print(inner, fields, &path, text);
            }
            (FieldType::Tables(fields), Value::Array(items)) => {
                for item in items.iter().filter_map(Value::as_table) {
                    text.push_str(&format!("\n[[{path}]]\n"));
                    print(item, fields, &path, text);
                }
            }
            _ => {}
        }
    }
}

fn default_of(value: impl serde::Serialize) -> Table {
    Table::try_from(value).expect("defaults can be written as TOML")
}

fn remove_defaults(table: &mut Table, default: &Table) {
    table.retain(|key, value| default.get(key) != Some(value));
}
