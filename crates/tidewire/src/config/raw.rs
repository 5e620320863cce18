//! The configuration as typed: every value that someone gave, from the strongest layer that has it, with its origin.
//!
//! Layers, weakest first: file and `conf.d`, changes made at run time, environment, `--set`. Whether a value makes
//! sense is for `resolve`; here only the keys are checked, because unknown keys have nowhere to go.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::key::OptionKey;
use super::origin::{ConfigDiagnostic, ValueOrigin};
use super::schema::{SchemaLookup, explain_unknown, lookup};
use super::value::{RawOptionValue, describe};

pub const RUNTIME_FILE: &str = "runtime.toml";

const DATA_DIR: [&str; 2] = ["node", "data_dir"];
const ENV_PREFIX: &str = "TIDEWIRE__";
/// A configuration file beyond this size is a mistake.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Where to look for values. Everything from outside is passed in, so that tests need no process of their own.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// `--config`. It must exist.
    pub file: Option<PathBuf>,
    /// Tried in order when there is no `--config`. None has to exist.
    pub search: Vec<PathBuf>,
    pub environment: Vec<(String, String)>,
    /// `--set`, as typed.
    pub set: Vec<String>,
    /// Used instead of `runtime.toml` in the configured data directory.
    pub runtime: Option<RuntimeText>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ConfigEntry {
    pub raw: RawOptionValue,
    pub origin: ValueOrigin,
}

#[derive(Clone, Debug, Default)]
pub struct RawConfig {
    pub entries: BTreeMap<OptionKey, ConfigEntry>,
    /// The files that were read.
    pub files: Vec<PathBuf>,
    pub diagnostics: Vec<ConfigDiagnostic>,
}

/// The contents of a `runtime.toml`: of a file that was read already, or of one that will be written.
#[derive(Clone, Debug)]
pub struct RuntimeText {
    pub path: PathBuf,
    pub text: String,
}

impl ConfigSources {
    /// Arguments and environment at the start of the process.
    pub fn of_process(file: Option<PathBuf>, set: Vec<String>) -> ConfigSources {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        ConfigSources {
            file,
            search: vec!["tidewire.toml".into(), "/etc/tidewire/tidewire.toml".into()],
            environment,
            set,
            runtime: None,
        }
    }

    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment
            .iter()
            .find(|(variable, _)| variable == name)
            .map(|(_, value)| value.as_str())
    }
}

/// Variables are split into this many words at most; no option has more.
const VARIABLE_WORDS_MAX: usize = 10;

impl ConfigSources {
    /// Returns the variables that would set an option if the levels of its key were separated by two underscores: the
    /// variable, and the right name.
    pub fn misspelt_variables(&self) -> Vec<(&str, String)> {
        let names = self.environment.iter().map(|(name, _)| name.as_str());
        names
            .filter(|name| !name.starts_with(ENV_PREFIX))
            .filter_map(|name| Some((name, option_variable(name.strip_prefix("TIDEWIRE_")?)?)))
            .collect()
    }
}

/// Tries every way to divide the words of a variable into the levels of a key.
fn option_variable(rest: &str) -> Option<String> {
    let lower = rest.to_lowercase();
    let words: Vec<&str> = lower.split('_').collect();
    if words.len() > VARIABLE_WORDS_MAX || words.contains(&"") {
        return None;
    }
    let gaps = words.len() - 1;
    let divided = |division: u32| {
        let mut levels = vec![words[0].to_owned()];
        for (gap, word) in words[1..].iter().enumerate() {
            match (division >> gap & 1, levels.last_mut()) {
                (0, Some(level)) => *level = format!("{level}_{word}"),
                _ => levels.push((*word).to_owned()),
            }
        }
        levels
    };
    (1..1u32 << gaps).map(divided).find_map(|levels| {
        let key: Vec<&str> = levels.iter().map(String::as_str).collect();
        let is_option = matches!(lookup(&key), SchemaLookup::Option(_));
        is_option.then(|| format!("{ENV_PREFIX}{}", levels.join("__").to_uppercase()))
    })
}

impl RawConfig {
    pub fn read(sources: &ConfigSources) -> RawConfig {
        let mut config = RawConfig::default();
        let files = config.layer(|layer| layer.read_files(sources));
        let environment = config.layer(|layer| layer.read_environment(&sources.environment));
        let flags = config.layer(|layer| layer.read_flags(&sources.set));

        let data_dir = [&flags, &environment, &files].into_iter().find_map(data_dir_in);
        let data_dir = data_dir.unwrap_or_else(|| default_data_dir(sources));
        let mut runtime = config.layer(|layer| layer.read_runtime(&data_dir, sources.runtime.as_ref()));
        let key = OptionKey::of(&DATA_DIR);
        if let Some(entry) = runtime.remove(&key) {
            let message =
                format!("remove this option: {RUNTIME_FILE} is in the data directory and cannot name another");
            config.add_diagnostic(entry.origin, Some(&key), message);
        }

        for layer in [files, runtime, environment, flags] {
            config.entries.extend(layer);
        }
        config
    }

    /// Runs `read` and takes out the entries it added.
    fn layer(&mut self, read: impl FnOnce(&mut RawConfig)) -> BTreeMap<OptionKey, ConfigEntry> {
        read(self);
        std::mem::take(&mut self.entries)
    }

    fn read_files(&mut self, sources: &ConfigSources) {
        let main = match &sources.file {
            Some(file) => Some(file.clone()),
            None => sources.search.iter().find(|file| file.exists()).cloned(),
        };
        let Some(main) = main else { return };
        self.read_file(&main, |path, line| ValueOrigin::File { path, line });
        let fragments = main.parent().unwrap_or(Path::new("")).join("conf.d");
        for fragment in toml_files(&fragments) {
            self.read_file(&fragment, |path, line| ValueOrigin::File { path, line });
        }
    }

    fn read_runtime(&mut self, data_dir: &Path, instead: Option<&RuntimeText>) {
        if let Some(RuntimeText { path, text }) = instead {
            let origin_at = |line| ValueOrigin::Runtime {
                path: path.clone(),
                line,
            };
            return self.read_document(text, &origin_at);
        }
        let path = data_dir.join(RUNTIME_FILE);
        if path.exists() {
            self.read_file(&path, |path, line| ValueOrigin::Runtime { path, line });
        }
    }

    fn read_file(&mut self, path: &Path, origin: fn(PathBuf, usize) -> ValueOrigin) {
        self.files.push(path.into());
        let origin_at = |line| origin(path.into(), line);
        match read_bounded(path) {
            Ok(text) => self.read_document(&text, &origin_at),
            Err(error) => self.add_diagnostic(origin_at(0), None, format!("cannot read the file: {error}")),
        }
    }

    fn read_document(&mut self, text: &str, origin_at: &dyn Fn(usize) -> ValueOrigin) {
        let (table, errors) = DeTable::parse_recoverable(text);
        let line_at = |offset: usize| text[..offset.min(text.len())].matches('\n').count() + 1;
        for error in &errors {
            let line = line_at(error.span().map_or(0, |span| span.start));
            self.add_diagnostic(origin_at(line), None, error.message().replace('\n', ", "));
        }
        // After a syntax error, the rest of the document is a guess, and its unknown keys are not reported.
        if errors.is_empty() {
            self.walk(&OptionKey::default(), table.get_ref(), &|offset| {
                origin_at(line_at(offset))
            });
        }
    }

    fn walk(&mut self, parent: &OptionKey, table: &DeTable<'_>, origin_at: &dyn Fn(usize) -> ValueOrigin) {
        for (word, value) in table {
            let key = parent.child(word.get_ref());
            let origin = origin_at(word.span().start);
            match (lookup(&key.words()), value.get_ref()) {
                (SchemaLookup::Option(_), _) => match to_value(value) {
                    Ok(value) => drop(self.entries.insert(
                        key,
                        ConfigEntry {
                            raw: RawOptionValue::Toml(value),
                            origin,
                        },
                    )),
                    Err(message) => self.add_diagnostic(origin, Some(&key), message),
                },
                (SchemaLookup::Table, DeValue::Table(inner)) => self.walk(&key, inner, origin_at),
                (SchemaLookup::Table, _) => {
                    let found =
                        to_value(value).map_or_else(|message| message, |value| describe(&RawOptionValue::Toml(value)));
                    self.add_diagnostic(origin, Some(&key), format!("found {found}, expected a table `[{key}]`"));
                }
                (SchemaLookup::Unknown, _) => {
                    let message = explain_unknown(&key);
                    self.add_diagnostic(origin, Some(&key), message);
                }
            }
        }
    }

    fn read_environment(&mut self, environment: &[(String, String)]) {
        for (variable, value) in environment {
            if let Some(name) = variable.strip_prefix(ENV_PREFIX) {
                let origin = ValueOrigin::Environment {
                    variable: variable.clone(),
                };
                let key = OptionKey(name.to_lowercase().split("__").map(Into::into).collect());
                match secret_file_key(&key) {
                    Some(key) => self.insert_from_file(key, Path::new(value), origin),
                    None => self.insert_text(key, value, origin),
                }
            }
        }
    }

    fn read_flags(&mut self, set: &[String]) {
        for assignment in set {
            let parsed = assignment
                .split_once('=')
                .and_then(|(key, value)| Some((OptionKey::parse(key)?, value)));
            match parsed {
                Some((key, value)) => self.insert_text(key, value, ValueOrigin::Flag),
                None => self.add_diagnostic(
                    ValueOrigin::Flag,
                    None,
                    format!("found `{assignment}`, expected section.key=value"),
                ),
            }
        }
    }

    /// `NAME_FILE`, the way in which containers pass secrets: the value is the content of the file.
    fn insert_from_file(&mut self, key: OptionKey, path: &Path, origin: ValueOrigin) {
        match read_bounded(path) {
            Ok(text) => self.insert_text(key, text.trim_end_matches(['\r', '\n']), origin),
            Err(error) => self.add_diagnostic(origin, Some(&key), format!("cannot read {}: {error}", path.display())),
        }
    }

    fn insert_text(&mut self, key: OptionKey, text: &str, origin: ValueOrigin) {
        match lookup(&key.words()) {
            SchemaLookup::Option(_) => drop(self.entries.insert(
                key,
                ConfigEntry {
                    raw: text_to_raw(text),
                    origin,
                },
            )),
            SchemaLookup::Table => {
                self.add_diagnostic(origin, Some(&key), "is a table, expected one of its keys".into())
            }
            SchemaLookup::Unknown => {
                let message = explain_unknown(&key);
                self.add_diagnostic(origin, Some(&key), message);
            }
        }
    }

    fn add_diagnostic(&mut self, origin: ValueOrigin, key: Option<&OptionKey>, message: String) {
        self.diagnostics.push(ConfigDiagnostic {
            origin,
            key: key.map(OptionKey::to_string),
            message,
        });
    }
}

/// Returns the data directory. A change at run time cannot set it, because these changes are stored in it.
pub fn data_dir(sources: &ConfigSources) -> PathBuf {
    let mut config = RawConfig::default();
    let files = config.layer(|layer| layer.read_files(sources));
    let environment = config.layer(|layer| layer.read_environment(&sources.environment));
    let flags = config.layer(|layer| layer.read_flags(&sources.set));
    let said = [&flags, &environment, &files].into_iter().find_map(data_dir_in);
    said.unwrap_or_else(|| default_data_dir(sources))
}

/// Default of the data directory: the state directory of systemd, otherwise `./data`.
pub fn default_data_dir(sources: &ConfigSources) -> PathBuf {
    let first = sources
        .variable("STATE_DIRECTORY")
        .and_then(|dirs| dirs.split(':').next());
    first.filter(|dir| !dir.is_empty()).unwrap_or("./data").into()
}

fn data_dir_in(layer: &BTreeMap<OptionKey, ConfigEntry>) -> Option<PathBuf> {
    match &layer.get(&OptionKey::of(&DATA_DIR))?.raw {
        RawOptionValue::Text(text) | RawOptionValue::Toml(toml::Value::String(text)) if !text.is_empty() => {
            Some(text.into())
        }
        _ => None,
    }
}

/// A TOML value where it can only be one, otherwise a bare string.
pub fn text_to_raw(text: &str) -> RawOptionValue {
    if text.starts_with(['"', '\'', '[', '{'])
        && let Ok(value) = DeValue::parse(text)
        && let Ok(value) = to_value(&value)
    {
        return RawOptionValue::Toml(value);
    }
    RawOptionValue::Text(text.into())
}

/// `access.users.bob_file` to `access.users.bob`, if that is a secret.
fn secret_file_key(key: &OptionKey) -> Option<OptionKey> {
    let mut words = key.0.clone();
    let last = words.last_mut()?;
    *last = last.strip_suffix("_file")?.into();
    let key = OptionKey(words);
    matches!(lookup(&key.words()), SchemaLookup::Option(def) if def.kind.is_secret).then_some(key)
}

pub fn read_bounded(path: &Path) -> std::io::Result<String> {
    if fs::metadata(path)?.len() > FILE_BYTES_MAX {
        return Err(std::io::Error::other(format!(
            "it is larger than {FILE_BYTES_MAX} bytes"
        )));
    }
    fs::read_to_string(path)
}

/// The fragments in order of their names.
fn toml_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "toml"))
        .collect();
    files.sort();
    files
}

fn to_value(value: &Spanned<DeValue<'_>>) -> Result<toml::Value, String> {
    Ok(match value.get_ref() {
        DeValue::String(text) => toml::Value::String(text.to_string()),
        DeValue::Integer(integer) => {
            let parsed = i64::from_str_radix(integer.as_str(), integer.radix());
            toml::Value::Integer(parsed.map_err(|_| format!("the integer {integer} is too large"))?)
        }
        DeValue::Float(float) => {
            toml::Value::Float(float.as_str().parse().map_err(|_| format!("{float} is not a number"))?)
        }
        DeValue::Boolean(boolean) => toml::Value::Boolean(*boolean),
        DeValue::Datetime(datetime) => toml::Value::Datetime(*datetime),
        DeValue::Array(items) => toml::Value::Array(items.iter().map(to_value).collect::<Result<_, _>>()?),
        DeValue::Table(table) => {
            let pairs = table
                .iter()
                .map(|(word, value)| Ok((word.get_ref().to_string(), to_value(value)?)));
            toml::Value::Table(pairs.collect::<Result<_, String>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_with_single_underscores_are_recognised() {
        for (name, expected) in [
            ("TIDEWIRE_MQTT_MAX_QOS", Some("TIDEWIRE__MQTT__MAX_QOS")),
            (
                "TIDEWIRE_LISTENERS_TCP_DEFAULT_BIND",
                Some("TIDEWIRE__LISTENERS__TCP__DEFAULT__BIND"),
            ),
            ("TIDEWIRE__MQTT__MAX_QOS", None),
            ("TIDEWIRE_API_TOKEN", None),
            ("TIDEWIRE_TEST_TARGET", None),
            ("TIDEWIRE_", None),
            ("PATH", None),
        ] {
            let sources = ConfigSources {
                environment: vec![(name.into(), "1".into())],
                ..ConfigSources::default()
            };
            let found = sources.misspelt_variables();
            assert_eq!(found.first().map(|(_, right)| right.as_str()), expected, "{name}");
        }
    }

    #[test]
    fn runtime_file_cannot_name_another_data_directory() {
        let runtime = RuntimeText {
            path: PathBuf::from("in-use").join(RUNTIME_FILE),
            text: "[node]\ndata_dir = \"other\"\n".to_owned(),
        };
        let config = RawConfig::read(&ConfigSources {
            runtime: Some(runtime),
            ..ConfigSources::default()
        });
        let found: Vec<String> = config.diagnostics.iter().map(ToString::to_string).collect();
        assert!(found.len() == 1 && found[0].contains("node.data_dir"), "{found:?}");
        assert!(!config.entries.contains_key(&OptionKey::of(&DATA_DIR)));
    }

    /// A reload uses the file of the data directory in use.
    #[test]
    fn text_of_another_data_directory_replaces_the_runtime_file() {
        let data_dir = std::env::temp_dir().join(format!("tidewire-raw-{}", std::process::id()));
        fs::create_dir_all(&data_dir).expect("a writable directory");
        fs::write(data_dir.join(RUNTIME_FILE), "[mqtt]\nmax_qos = 0\n").expect("a writable file");
        let in_use = PathBuf::from("in-use").join(RUNTIME_FILE);
        for (runtime, expected) in [
            (None, data_dir.join(RUNTIME_FILE)),
            (
                Some(RuntimeText {
                    path: in_use.clone(),
                    text: "[mqtt]\nmax_qos = 1\n".to_owned(),
                }),
                in_use,
            ),
        ] {
            let config = RawConfig::read(&ConfigSources {
                set: vec![format!("node.data_dir={}", data_dir.display())],
                runtime,
                ..ConfigSources::default()
            });
            let origin = &config.entries[&OptionKey::of(&["mqtt", "max_qos"])].origin;
            assert!(
                matches!(origin, ValueOrigin::Runtime { path, .. } if *path == expected),
                "{origin}"
            );
        }
        fs::remove_dir_all(&data_dir).expect("the directory can be removed");
    }
}
