//! Definitions of connectors, actions, sources and rules in the configuration, and rules in files: read, checked all at
//! once, each mistake with the place where it stands.

use std::collections::BTreeMap;
use std::fs;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use integration::{
    ActionDefinition, ConnectorDefinition, Declaration, DeclaredDefinitions, RuleDefinition, RuleTime,
    SourceDefinition, read_rule,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::origin::{ConfigDiagnostic, ValueOrigin};
use super::resolve::{Config, EffectiveOption};
use super::value::{OptionValue, Reject};

const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// A definition as a table, whose name is its key.
#[derive(Clone, Debug, PartialEq)]
pub struct Table<T> {
    fields: toml::Table,
    of: PhantomData<T>,
}

pub trait Definition: DeserializeOwned + Serialize {
    /// The field that is the table's key.
    const NAME: &'static str;
    /// The definition as it is shown, without secrets.
    fn shown(&self) -> Self;
    /// In the example of a configuration file.
    const EXAMPLE: &'static str;
}

macro_rules! definition {
    ($type:ident $name:literal $shown:expr, $example:literal) => {
        impl Definition for $type {
            const NAME: &'static str = $name;
            const EXAMPLE: &'static str = $example;

            fn shown(&self) -> Self {
                let shown: fn(&Self) -> Self = $shown;
                shown(self)
            }
        }
    };
}

definition!(ConnectorDefinition "name" ConnectorDefinition::shown,
    r#"{ type = "http", config = { url = "http://localhost:8080" } }"#);
definition!(ActionDefinition "name" ActionDefinition::shown,
    r#"{ type = "http", connector = "connector", parameters = { path = "/telemetry" } }"#);
definition!(SourceDefinition "name" SourceDefinition::shown,
    r#"{ type = "kafka", connector = "kafka", parameters = { kafka_topics = ["commands"], group_id = "tidewire" } }"#);
definition!(RuleDefinition "id" RuleDefinition::clone,
    r#"{ sql = "SELECT * FROM 't/#'", actions = ["http:action"] }"#);

impl<T: Definition> Table<T> {
    pub fn definition(&self, name: &str) -> Result<T, String> {
        let mut fields = self.fields.clone();
        if fields.contains_key(T::NAME) {
            return Err(format!("{}: the name of the table defines it; remove the key", T::NAME));
        }
        fields.insert(T::NAME.into(), name.into());
        // By way of JSON, because that is what a definition holds.
        let json = serde_json::to_value(fields).map_err(|error| error.to_string())?;
        serde_json::from_value(json).map_err(|error| input_errors::plain(&error))
    }
}

impl<T: Definition> OptionValue for Table<T> {
    fn type_name() -> String {
        "table".into()
    }

    fn expected() -> String {
        format!("a table such as {}", T::EXAMPLE)
    }

    fn example() -> Option<toml::Value> {
        let text = format!("x = {}", T::EXAMPLE);
        text.parse::<toml::Table>().ok()?.remove("x")
    }

    fn from_text(_: &str) -> Result<Self, Reject> {
        Err(Reject::Mismatch)
    }

    fn from_toml(value: &toml::Value) -> Result<Self, Reject> {
        let table = Table {
            fields: value.as_table().ok_or(Reject::Mismatch)?.clone(),
            of: PhantomData,
        };
        table.definition("name").map_err(Reject::WithReason)?;
        Ok(table)
    }

    fn to_toml(&self) -> toml::Value {
        let shown = self.definition("name").map(|definition| definition.shown());
        let json = shown.map(|shown| serde_json::to_value(shown).unwrap_or_default());
        let mut json = json.unwrap_or_default();
        if let Some(fields) = json.as_object_mut() {
            fields.remove(T::NAME);
        }
        to_toml(&json).unwrap_or_else(|| toml::Value::Table(toml::Table::new()))
    }
}

/// TOML has no null: such fields are left out.
fn to_toml(json: &Json) -> Option<toml::Value> {
    Some(match json {
        Json::Null => return None,
        Json::Bool(value) => toml::Value::Boolean(*value),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => toml::Value::Integer(integer),
            None => toml::Value::Float(number.as_f64()?),
        },
        Json::String(text) => toml::Value::String(text.clone()),
        Json::Array(items) => toml::Value::Array(items.iter().filter_map(to_toml).collect()),
        Json::Object(fields) => {
            let fields = fields
                .iter()
                .filter_map(|(name, value)| Some((name.clone(), to_toml(value)?)));
            toml::Value::Table(fields.collect())
        }
    })
}

/// Where a declaration stands, by what the integration calls it.
type DeclarationPlaces = BTreeMap<String, (ValueOrigin, Option<String>)>;

/// All that is declared, and everything that is wrong with it.
pub fn read(config: &Config, effective: &[EffectiveOption]) -> (DeclaredDefinitions, Vec<ConfigDiagnostic>) {
    let mut places = DeclarationPlaces::new();
    let mut declared = DeclaredDefinitions {
        connectors: tables("connectors", &config.connectors, effective, &mut places),
        actions: tables("actions", &config.actions, effective, &mut places),
        sources: tables("sources", &config.sources, effective, &mut places),
        rules: tables("rules", &config.rules, effective, &mut places),
        rule_time: RuleTime(config.integration.rule_time_max),
    };
    let mut diagnostics = Vec::new();
    if let Some(directory) = &config.integration.rules_dir.0 {
        match rule_files(directory) {
            Ok(files) => files.iter().for_each(|file| match rule_file(file) {
                Ok(rule) => {
                    places.insert(
                        rule.origin.clone(),
                        (
                            ValueOrigin::File {
                                path: file.clone(),
                                line: 1,
                            },
                            None,
                        ),
                    );
                    declared.rules.push(rule);
                }
                Err(found) => diagnostics.extend(found),
            }),
            Err(message) => diagnostics.push(ConfigDiagnostic {
                origin: origin_of("integration", "rules_dir", effective),
                key: Some("integration.rules_dir".into()),
                message,
            }),
        }
    }
    diagnostics.extend(declared.problems().into_iter().map(|problem| {
        let (origin, key) = places
            .get(&problem.origin)
            .cloned()
            .unwrap_or((ValueOrigin::Default, None));
        ConfigDiagnostic {
            origin,
            key,
            message: problem.message,
        }
    }));
    (declared, diagnostics)
}

fn tables<T: Definition>(
    section: &str,
    tables: &BTreeMap<String, Table<T>>,
    effective: &[EffectiveOption],
    places: &mut DeclarationPlaces,
) -> Vec<Declaration<T>> {
    let declaration = |(name, table): (&String, &Table<T>)| {
        let origin = origin_of(section, name, effective);
        let key = format!("{section}.{name}");
        let origin_text = format!("{key} ({origin})");
        places.insert(origin_text.clone(), (origin, Some(key)));
        // Unreadable definitions were reported with their tables.
        let definition = table.definition(name).ok()?;
        Some(Declaration {
            definition,
            origin: origin_text,
        })
    };
    tables.iter().filter_map(declaration).collect()
}

fn origin_of(section: &str, name: &str, effective: &[EffectiveOption]) -> ValueOrigin {
    let mut found = effective.iter().filter(|value| value.key.words() == [section, name]);
    found.next().map_or(ValueOrigin::Default, |value| value.origin.clone())
}

/// The rule files, in order of their names.
fn rule_files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(directory).map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sql"))
        .collect();
    files.sort();
    Ok(files)
}

fn rule_file(path: &Path) -> Result<Declaration<RuleDefinition>, Vec<ConfigDiagnostic>> {
    let at = |line, message| ConfigDiagnostic {
        origin: ValueOrigin::File {
            path: path.into(),
            line,
        },
        key: None,
        message,
    };
    let text = read_bounded(path).map_err(|error| vec![at(1, format!("cannot read the file: {error}"))])?;
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let rule = read_rule(&text, name).map_err(|problems| {
        let problems = problems.into_iter().map(|problem| match problem.column {
            Some(column) => at(problem.line, format!("column {column}: {}", problem.message)),
            None => at(problem.line, problem.message),
        });
        problems.collect::<Vec<_>>()
    })?;
    Ok(Declaration {
        definition: rule,
        origin: path.display().to_string(),
    })
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    if fs::metadata(path)?.len() > FILE_BYTES_MAX {
        return Err(std::io::Error::other(format!(
            "it is larger than {FILE_BYTES_MAX} bytes"
        )));
    }
    fs::read_to_string(path)
}
