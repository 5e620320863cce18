//! The result of an import: a configuration with its files and a data directory, in a new directory.
//!
//! Everything is built in a directory of its own, checked as a start of the server would check it, and renamed. So the
//! import is complete, or nothing has changed. A definition or option that the check refuses is left out and reported;
//! a refused option of `access` ends the import, because access without it could be wider.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use auth::{AccessAction, AccessRule, Acl, AclOptions, Ban, BanError, Bans, PasswordHash, Permission, Users};
use broker::durable::record::{JournalRecord, RECORD_VERSION};
use journal::{DIRECTORY_NAME, LogBatch, LogConfig, RecordLog, StorageDirectory};
use toml::{Table, Value};

use super::access::{ALL_TOPICS, LITERAL};
use super::report::{Outcome, Report};
use super::retained::RetainedMessage;
use crate::config::files::chain;
use crate::config::{self, ConfigSources};
use crate::serve::{BANS_FILE, check_access};

pub const CONFIG_NAME: &str = "tidewire.toml";
pub const REPORT_NAME: &str = "import-report.txt";
/// Options with secrets. The server reads the files of this directory after the main file.
const SECRETS_NAME: &str = "conf.d/secrets.toml";
const PASSWORDS_NAME: &str = "passwords";
const DATA_NAME: &str = "data";
/// A batch of the journal is flushed at this size.
const BATCH_BYTES: usize = 4 << 20;
const NO_MATCH: &str = "access.no_match";
const SOURCES: &str = "access.sources";
const NOT_VALID: &str = "the imported configuration is not valid, nothing has been imported:";
/// Maximum length of a connector, an action, a source or a listener.
const NAME_BYTES_MAX: usize = 64;

/// Writes records to a journal.
pub type PutRecord<'a> = dyn FnMut(&JournalRecord<'_>) + 'a;

pub struct Setup {
    /// Stands for the directory in options, until it is known.
    directory: String,
    options: Table,
    /// The item that an option or a definition comes from, by the key of the option.
    items: BTreeMap<String, String>,
    /// Key and item of each definition whose key was taken.
    conflicts: Vec<(String, String)>,
    /// Options with secrets, which get a file of their own.
    secret_options: Table,
    files: BTreeMap<String, Vec<u8>>,
    users: Users,
    rules: Vec<AccessRule>,
    /// Topics that rules of a file allow, which come behind all others.
    allowed_by_file: Vec<String>,
    bans: Vec<Ban>,
    pub retained: Vec<RetainedMessage>,
    pub mosquitto_database: Option<PersistenceFile>,
    /// A further file for the report.
    pub report_file: Option<PathBuf>,
}

/// A persistence file of Mosquitto.
pub struct PersistenceFile {
    /// In the report.
    pub name: String,
    pub bytes: Vec<u8>,
}

impl Setup {
    pub fn new() -> Result<Setup, String> {
        let mut random = [0u8; 16];
        getrandom::fill(&mut random).map_err(|_| "the operating system provides no random bytes")?;
        let mut setup = Setup {
            directory: format!("import-{:032x}", u128::from_le_bytes(random)),
            options: Table::new(),
            items: BTreeMap::new(),
            conflicts: Vec::new(),
            secret_options: Table::new(),
            files: BTreeMap::new(),
            users: Users::empty().map_err(|error| chain(&error))?,
            rules: Vec::new(),
            allowed_by_file: Vec::new(),
            bans: Vec::new(),
            retained: Vec::new(),
            mosquitto_database: None,
            report_file: None,
        };
        let data_dir = setup.path(DATA_NAME);
        setup.set("node.data_dir", "", data_dir);
        Ok(setup)
    }

    /// Sets an option. `item` is where it comes from.
    pub fn set(&mut self, key: &str, item: &str, value: impl Into<Value>) {
        insert(&mut self.options, key, value.into());
        self.items.insert(key.to_owned(), item.to_owned());
    }

    /// As `set`, for a password or a token. It is written to `SECRETS_NAME`, so that the main file contains none.
    pub fn set_secret(&mut self, key: &str, item: &str, value: impl Into<Value>) {
        insert(&mut self.secret_options, key, value.into());
        self.items.insert(key.to_owned(), item.to_owned());
    }

    pub fn has(&self, key: &str) -> bool {
        self.items.contains_key(key)
    }

    /// Whether an option has this value.
    pub fn is(&self, key: &str, value: &Value) -> bool {
        self.value(key) == Some(value)
    }

    /// Returns an option that is a number, and the item that it comes from.
    pub fn integer(&self, key: &str) -> Option<(i64, &str)> {
        Some((self.value(key)?.as_integer()?, self.items.get(key)?.as_str()))
    }

    /// Names another item that an option comes from. If the option is refused, the item is refused too.
    pub fn add_item(&mut self, key: &str, item: &str) {
        self.items.insert(format!("{key}.{item}"), item.to_owned());
    }

    /// Adds a connector, an action, a source or a rule: `key` is `connectors.NAME` and so on, with a name from
    /// `free_name`. A second definition of a key ends the import: other definitions could refer to the wrong one.
    pub fn define(&mut self, key: &str, item: &str, fields: &serde_json::Value) {
        if self.is_taken(key) {
            self.conflicts.push((key.to_owned(), item.to_owned()));
            return;
        }
        self.set(key, item, toml_of(fields).unwrap_or_else(|| Value::Table(Table::new())));
    }

    /// Returns a name for a definition or a listener that nothing in the sections has, such as `connectors` or
    /// `listeners.tcp`. A long `name` is cut, `end` is not.
    pub fn free_name(&self, sections: &[&str], name: &str, end: &str) -> String {
        let is_free = |name: &String| {
            !sections
                .iter()
                .any(|section| self.is_taken(&format!("{section}.{name}")))
        };
        let first = name_with_end(name, end);
        if is_free(&first) {
            return first;
        }
        let numbered = |number: usize| name_with_end(name, &format!("{end}_{number}"));
        // Numbers are taken in order. A search for the first free one avoids quadratic time for many equal names.
        let (mut taken, mut free) = (1, 2);
        while !is_free(&numbered(free)) {
            taken = free;
            free *= 2;
        }
        while free - taken > 1 {
            let middle = taken + (free - taken) / 2;
            match is_free(&numbered(middle)) {
                true => free = middle,
                false => taken = middle,
            }
        }
        numbered(free)
    }

    fn is_taken(&self, key: &str) -> bool {
        let below = format!("{key}.");
        let mut options_below = self.items.range(below.clone()..);
        self.items.contains_key(key) || options_below.next().is_some_and(|(other, _)| other.starts_with(&below))
    }

    /// Adds a file and returns its path, for options. If the name is taken, it gets a number.
    pub fn file(&mut self, name: &str, bytes: impl Into<Vec<u8>>) -> String {
        let (stem, extension) = match name.rsplit_once('.') {
            Some((stem, extension)) if !extension.contains('/') => (stem, format!(".{extension}")),
            _ => (name, String::new()),
        };
        let mut free = name.to_owned();
        let mut number = 1;
        while self.files.contains_key(&free) {
            number += 1;
            free = format!("{stem}-{number}{extension}");
        }
        let path = self.path(&free);
        self.files.insert(free, bytes.into());
        path
    }

    /// Stores a secret in a file of its own and returns the reference, for definitions.
    pub fn secret(&mut self, name: &str, text: &str) -> String {
        let path = self.file(&format!("secrets/{}", simple_name(name)), text);
        format!("file:{path}")
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }

    pub fn add_user(&mut self, name: &str, hash: PasswordHash, is_superuser: bool) -> Result<(), String> {
        self.users
            .add(name, hash, is_superuser)
            .map_err(|error| error.to_string())
    }

    pub fn users(&self) -> &Users {
        &self.users
    }

    /// Adds all users of a password file.
    pub fn add_users(&mut self, users: &Users) -> Result<(), String> {
        users.copy_into(&self.users).map_err(|error| error.to_string())
    }

    /// Adds a user with access rules, or nothing of both.
    pub fn add_user_with_rules(
        &mut self,
        name: &str,
        hash: PasswordHash,
        rules: Vec<AccessRule>,
    ) -> Result<(), String> {
        check_rules(&rules)?;
        self.add_user(name, hash, false)?;
        self.rules.extend(rules);
        Ok(())
    }

    /// Adds an access rule behind the others.
    pub fn add_rule(&mut self, rule: AccessRule) -> Result<(), String> {
        self.add_rules(vec![rule])
    }

    /// Adds access rules behind the others, all or none.
    pub fn add_rules(&mut self, rules: Vec<AccessRule>) -> Result<(), String> {
        check_rules(&rules)?;
        self.rules.extend(rules);
        Ok(())
    }

    /// Returns whether a user exists and has the password.
    #[cfg(test)]
    pub fn verifies(&self, name: &str, password: &auth::Password) -> bool {
        let text = self.users.to_file_text();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        let hash = line.map(|line| line.trim_end_matches(":superuser"));
        hash.is_some_and(|hash| PasswordHash::parse(hash).expect("it is written by us").verify(password))
    }

    /// Returns the text of an option.
    #[cfg(test)]
    pub fn option(&self, key: &str) -> Option<&str> {
        self.value(key)?.as_str()
    }

    /// Returns the texts of an option that is a list.
    #[cfg(test)]
    pub fn list(&self, key: &str) -> Vec<&str> {
        let items = self.value(key).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(Value::as_str).collect()
    }

    /// Returns the table of an option as TOML, with its secrets.
    #[cfg(test)]
    pub fn table_text(&self, key: &str) -> String {
        let mut words = key.split('.');
        let first = words.next().and_then(|word| self.secret_options.get(word));
        let secrets = first.and_then(|first| words.try_fold(first, |value, word| value.get(word)));
        let of = |value: Option<&Value>| value.map(Value::to_string).unwrap_or_default();
        format!("{} {}", of(self.value(key)), of(secrets))
    }

    #[cfg(test)]
    pub fn has_table(&self, key: &str) -> bool {
        self.value(key).is_some_and(Value::is_table)
    }

    #[cfg(test)]
    pub fn is_false(&self, key: &str) -> bool {
        self.value(key) == Some(&Value::Boolean(false))
    }

    fn value(&self, key: &str) -> Option<&Value> {
        let mut words = key.split('.');
        let first = self.options.get(words.next()?)?;
        words.try_fold(first, |value, word| value.get(word))
    }

    /// Returns the access rules in a short form, one per line.
    #[cfg(test)]
    pub fn rules_text(&self) -> String {
        let mut text = String::new();
        for rule in &self.rules {
            let mut words = vec![format!("{:?}", rule.permission).to_lowercase()];
            let lists = [
                ("users", &rule.users),
                ("clients", &rule.clients),
                ("addresses", &rule.addresses),
            ];
            for (name, list) in lists {
                words.extend(list.as_ref().map(|list| format!("{name}={}", list.join(","))));
            }
            words.push(format!("{:?}", rule.action));
            words.extend(rule.qos.as_ref().map(|qos| format!("qos={qos:?}")));
            words.extend(rule.retain.map(|retain| format!("retain={retain}")));
            words.extend(rule.topics.iter().cloned());
            text.push_str(&words.join(" "));
            text.push('\n');
        }
        text
    }

    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Notes rules of an access file that becomes `access.acl_file`.
    pub fn note_acl_file(&mut self, rules: &[AccessRule]) {
        let allowed = rules.iter().filter(|rule| rule.permission == Permission::Allow);
        self.allowed_by_file
            .extend(allowed.flat_map(|rule| rule.topics.clone()));
    }

    /// Completes rules that deny all topics with those that begin with `$` and are not below `$SYS`. No filter matches
    /// all of them. So each rule gets a filter for each that a later rule allows, and `access.no_match` is `deny`.
    /// A last rule allows the topics that `no_match` has allowed, unless it would decide before another source.
    fn deny_other_topics(&mut self, report: &Report) {
        let is_denial = |rule: &AccessRule| rule.permission == Permission::Deny && rule.topics == ALL_TOPICS;
        let Some(first) = self.rules.iter().position(is_denial) else {
            return;
        };
        let is_of_all = |rule: &AccessRule| *rule == AccessRule::deny(AccessAction::All, &ALL_TOPICS);
        let ends_rules = self.rules.iter().any(is_of_all);
        let mut behind: Vec<String> = self
            .allowed_by_file
            .iter()
            .filter_map(|topic| other_topics(topic))
            .collect();
        for rule in self.rules[first..].iter_mut().rev() {
            let others = rule.topics.iter().filter_map(|topic| other_topics(topic));
            match rule.permission {
                Permission::Allow => behind.extend(others),
                Permission::Deny if is_denial(rule) => {
                    behind.sort();
                    behind.dedup();
                    rule.topics.extend(behind.iter().cloned());
                }
                Permission::Deny => {}
            }
        }
        if self.value(NO_MATCH).and_then(Value::as_str) != Some("allow") {
            return;
        }
        let item = self.items.get(NO_MATCH).cloned().unwrap_or_default();
        self.set(NO_MATCH, &item, "deny");
        if self.has(SOURCES) {
            let because = "deny, because no rule can deny all topics that begin with $; to open topics that no source \
                           decides about, add rules to access.rules";
            let (to, because) = (NO_MATCH.to_owned(), because.to_owned());
            report.add(
                SOURCES,
                0,
                "topics that no source decides about",
                Outcome::Changed { to, because },
            );
        } else if !ends_rules {
            self.rules.push(AccessRule::allow(AccessAction::All, &ALL_TOPICS));
            let because = "deny, because no rule can deny all topics that begin with $; the last rule allows the \
                           topics without $ and below $SYS; to open others, add them to access.rules";
            let (to, because) = (NO_MATCH.to_owned(), because.to_owned());
            report.add(
                "access.rules",
                0,
                "topics that begin with $",
                Outcome::Changed { to, because },
            );
        }
    }

    pub fn add_ban(&mut self, ban: Ban) {
        self.bans.push(ban);
    }

    /// Builds everything, checks it and moves it to `target`, which must be missing or empty. Without a target, nothing
    /// is left behind. Returns the report.
    pub fn install(mut self, target: Option<&Path>, title: &str, report: &Report) -> Result<String, String> {
        if let Some(target) = target {
            check_target(target)?;
        }
        if let Some((key, item)) = self.conflicts.first() {
            return Err(format!(
                "{item}: another definition has the name {key} already: rename one of them; nothing has been imported"
            ));
        }
        self.deny_other_topics(report);
        let staging = Staging::create(target)?;
        self.write_files(&staging.path)?;
        self.write_data(&staging.path, report)?;
        self.check(&staging.path, report)?;
        let text = report.text(title);
        if let Some(file) = &self.report_file {
            let replaced = storage::copy::replace(file, text.as_bytes());
            replaced.map_err(|error| format!("{}; nothing has been imported", failed("write", file, &error)))?;
        }
        if let Some(target) = target {
            let target = std::path::absolute(target).map_err(|error| failed("use", target, &error))?;
            self.write_config(&staging.path, &target, title)?;
            write(&staging.path.join(REPORT_NAME), text.as_bytes())?;
            staging.put_in_place(&target)?;
        }
        Ok(text)
    }

    fn write_files(&mut self, directory: &Path) -> Result<(), String> {
        if !self.users.is_empty() {
            let path = self.file(PASSWORDS_NAME, self.users.to_file_text());
            self.set("access.password_file", "", path);
        }
        if !self.rules.is_empty() {
            let rules = self
                .rules
                .iter()
                .map(|rule| Value::try_from(rule).expect("a rule is plain data"));
            self.options
                .entry("access")
                .or_insert_with(|| Value::Table(Table::new()))
                .as_table_mut()
                .expect("`access` is a table")
                .insert("rules".to_owned(), Value::Array(rules.collect()));
        }
        if !self.secret_options.is_empty() {
            let text = toml::to_string(&self.secret_options);
            let text = text.map_err(|error| format!("cannot write the secrets: {error}"))?;
            self.files.insert(SECRETS_NAME.to_owned(), text.into_bytes());
        }
        for (name, bytes) in &self.files {
            write(&directory.join(name), bytes)?;
        }
        Ok(())
    }

    fn write_data(&self, directory: &Path, report: &Report) -> Result<(), String> {
        let data_dir = directory.join(DATA_NAME);
        create_directory(&data_dir).map_err(|error| failed("create", &data_dir, &error))?;
        let bans = Bans::open(&data_dir.join(BANS_FILE)).map_err(|error| chain(&error))?;
        for ban in &self.bans {
            add_ban(&bans, ban, &data_dir).map_err(|error| format!("{}: {}", ban_item(ban), chain(&error)))?;
        }
        if let Some(file) = &self.mosquitto_database {
            let left =
                super::write_mosquitto(&file.bytes, &data_dir).map_err(|error| format!("{}: {error}", file.name))?;
            for (item, outcome) in left.rows() {
                report.add(&file.name, 0, &item, outcome);
            }
        } else if !self.retained.is_empty() {
            write_journal(&data_dir, |put| {
                super::retained::put_all(&self.retained, super::now_unix_ms(), put)
            })?;
        }
        Ok(())
    }

    /// Removes what the configuration check refuses, until it refuses nothing.
    fn check(&mut self, directory: &Path, report: &Report) -> Result<(), String> {
        loop {
            self.write_config(directory, directory, "check")?;
            let sources = ConfigSources {
                file: Some(directory.join(CONFIG_NAME)),
                ..ConfigSources::default()
            };
            let diagnostics = match config::load(&sources) {
                Err(diagnostics) => diagnostics,
                Ok(loaded) => {
                    // A start would fail as well.
                    return check_access(&loaded.config).map_err(|problem| format!("{NOT_VALID}\n{problem}"));
                }
            };
            let mut is_changed = false;
            let mut fatal = Vec::new();
            // The directory is a temporary one.
            let directory = format!("{}/", directory.display());
            for diagnostic in &diagnostics {
                let message = diagnostic.message.replace(&directory, "");
                match self.remove_refused(diagnostic.key.as_deref(), &message, report) {
                    true => is_changed = true,
                    false => fatal.push(diagnostic.to_string().replace(&directory, "")),
                }
            }
            // An option can be refused only because of another one that is left out now.
            if !is_changed {
                return Err(format!("{NOT_VALID}\n{}", fatal.join("\n")));
            }
        }
    }

    /// Removes the option or definition with a key. Returns `false` if the import cannot continue without it.
    fn remove_refused(&mut self, key: Option<&str>, message: &str, report: &Report) -> bool {
        let Some(key) = key else { return false };
        let words: Vec<&str> = key.split('.').collect();
        let unit = match words.as_slice() {
            ["access" | "node", ..] => return false,
            ["connectors" | "actions" | "sources" | "rules", name, ..] => format!("{}.{name}", words[0]),
            ["listeners", kind, name, ..] => format!("listeners.{kind}.{name}"),
            _ => key.to_owned(),
        };
        let below = format!("{unit}.");
        let whole = self.items.get_key_value(&unit).map(|(key, _)| key.clone());
        let keys_below = self.items.range(below.clone()..).map(|(key, _)| key);
        let keys_below = keys_below.take_while(|key| key.starts_with(&below)).cloned();
        let parts: Vec<String> = whole.into_iter().chain(keys_below).collect();
        if parts.is_empty() {
            return false;
        }
        for part in parts {
            let item = self.items.remove(&part).filter(|item| !item.is_empty());
            let item = item.unwrap_or_else(|| unit.clone());
            report.refuse(&item, &format!("{key}: {message}"));
        }
        let mut words: Vec<&str> = unit.split('.').collect();
        let last = words.pop().unwrap_or_default();
        let mut table = &mut self.options;
        for word in &words {
            let Some(Value::Table(inner)) = table.get_mut(*word) else {
                return true;
            };
            table = inner;
        }
        table.remove(last);
        // The listeners named `default` exist without an entry.
        if words.first() == Some(&"listeners") && last == "default" {
            let off = Table::from_iter([("enabled".to_owned(), Value::Boolean(false))]);
            table.insert(last.to_owned(), Value::Table(off));
        }
        true
    }

    /// Writes the configuration to a directory, with paths in another one.
    fn write_config(&self, directory: &Path, paths: &Path, title: &str) -> Result<(), String> {
        let mut options = Value::Table(self.options.clone());
        let place = paths.to_str().ok_or("the path of the directory is not UTF-8")?;
        replace_text(&mut options, &self.directory, place);
        let text = toml::to_string(&options).map_err(|error| format!("cannot write the configuration: {error}"))?;
        let title = title.replace('\n', " ");
        write(&directory.join(CONFIG_NAME), format!("# {title}\n\n{text}").as_bytes())
    }
}

/// Sets the value of a dotted key.
fn insert(table: &mut Table, key: &str, value: Value) {
    let mut words: Vec<&str> = key.split('.').collect();
    let last = words.pop().unwrap_or_default();
    let mut table = table;
    for word in words {
        let inner = table.entry(word).or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(inner) = inner else { return };
        table = inner;
    }
    table.insert(last.to_owned(), value);
}

fn replace_text(value: &mut Value, from: &str, to: &str) {
    match value {
        Value::String(text) => *text = text.replace(from, to),
        Value::Array(items) => items.iter_mut().for_each(|item| replace_text(item, from, to)),
        Value::Table(table) => table.iter_mut().for_each(|(_, value)| replace_text(value, from, to)),
        _ => {}
    }
}

/// TOML has no null: such fields are left out.
fn toml_of(json: &serde_json::Value) -> Option<Value> {
    use serde_json::Value as Json;
    Some(match json {
        Json::Null => return None,
        Json::Bool(value) => Value::Boolean(*value),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => Value::Integer(integer),
            None => Value::Float(number.as_f64()?),
        },
        Json::String(text) => Value::String(text.clone()),
        Json::Array(items) => Value::Array(items.iter().filter_map(toml_of).collect()),
        Json::Object(fields) => {
            let fields = fields
                .iter()
                .filter_map(|(name, value)| Some((name.clone(), toml_of(value)?)));
            Value::Table(fields.collect())
        }
    })
}

fn check_rules(rules: &[AccessRule]) -> Result<(), String> {
    let checked = Acl::compile(rules, AclOptions::default());
    checked.map(|_| ()).map_err(|errors| {
        let kinds = errors.0.iter().map(|error| error.kind.to_string());
        kinds.collect::<Vec<_>>().join("; ")
    })
}

/// As `simple_name`, with an end that is not cut.
fn name_with_end(name: &str, end: &str) -> String {
    let mut simple = simple_name(name);
    // Both have ASCII characters only.
    simple.truncate(NAME_BYTES_MAX.saturating_sub(end.len()));
    simple + end
}

/// Returns a name that tidewire accepts for a definition, a listener or a file.
pub fn simple_name(name: &str) -> String {
    let is_good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let mut simple: String = name.chars().map(|c| if is_good(c) { c } else { '_' }).collect();
    simple.truncate(NAME_BYTES_MAX);
    match simple.starts_with('-') || simple.is_empty() {
        true => format!("n{simple}").chars().take(NAME_BYTES_MAX).collect(),
        false => simple,
    }
}

/// Writes a journal to a data directory.
pub fn write_journal<T>(data_dir: &Path, fill: impl FnOnce(&mut PutRecord<'_>) -> T) -> Result<T, String> {
    let storage = StorageDirectory::open(data_dir, DIRECTORY_NAME).map_err(|error| chain(&error))?;
    let config = LogConfig {
        max_bytes: u64::MAX,
        reserve_bytes: 0,
        record_version: RECORD_VERSION,
        ..LogConfig::default()
    };
    let opened = RecordLog::open(Arc::new(storage), config, &mut |_, _| Ok(()), &mut |_, _| {});
    let (mut log, _) = opened.map_err(|error| chain(&error))?;
    let mut batch = LogBatch::new();
    let mut failure = None;
    let result = fill(&mut |record: &JournalRecord<'_>| {
        batch.record(|out| record.put(out));
        if batch.len() >= BATCH_BYTES && failure.is_none() {
            log.append(&mut batch);
            failure = log.flush().err();
        }
    });
    log.append(&mut batch);
    match failure {
        Some(error) => Err(chain(&error)),
        None => log.close().map(|()| result).map_err(|error| chain(&error)),
    }
}

fn check_target(target: &Path) -> Result<(), String> {
    let is_free = match fs::read_dir(target) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    match is_free {
        true => Ok(()),
        false => Err(format!(
            "{} exists and is not an empty directory: nothing has been imported",
            target.display()
        )),
    }
}

/// The directory in which an import is built. It is deleted unless it is put in place.
struct Staging {
    path: PathBuf,
}

impl Staging {
    /// Creates it in the folder of the target, so that it can be renamed. Readable for the own user only.
    fn create(target: Option<&Path>) -> Result<Staging, String> {
        let mut random = [0u8; 8];
        getrandom::fill(&mut random).map_err(|_| "the operating system provides no random bytes")?;
        let name = format!(".tidewire-import-{:016x}", u64::from_le_bytes(random));
        let parent = match target {
            Some(target) => parent(target),
            None => std::env::temp_dir(),
        };
        let path = std::path::absolute(parent.join(name)).map_err(|error| failed("use", &parent, &error))?;
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(|error| failed("create", &path, &error))?;
        Ok(Staging { path })
    }

    fn put_in_place(self, target: &Path) -> Result<(), String> {
        let place = || {
            sync_all(&self.path)?;
            fs::rename(&self.path, target)?;
            File::open(parent(target))?.sync_all()
        };
        place().map_err(|error| failed("create", target, &error))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // It does not exist any more if it was put in place.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Makes the names in all directories durable. The files are durable since they were written.
fn sync_all(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_all(&entry.path())?;
        }
    }
    File::open(directory)?.sync_all()
}

fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let write = || {
        create_directory(&parent(path))?;
        storage::copy::write_synced(path, &mut &*bytes)
    };
    write().map_err(|error| failed("write", path, &error))
}

fn failed(doing: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {doing} {}: {error}", path.display())
}

/// Returns a topic for a rule that denies what this topic allows. `None` if it does not begin with `$`, or is below
/// `$SYS`.
fn other_topics(topic: &str) -> Option<String> {
    let is_other = |first: &str| first.starts_with('$') && first != "$SYS";
    let first_level = |topic: &str| topic.split('/').next().unwrap_or_default().to_owned();
    if let Some(literal) = topic.strip_prefix(LITERAL) {
        return is_other(&first_level(literal)).then(|| topic.to_owned());
    }
    let first = first_level(topic);
    // The value of a placeholder never begins with `$`.
    let is_placeholder = ["${clientid}", "${username}"]
        .iter()
        .any(|name| first.starts_with(name));
    (is_other(&first) && !is_placeholder).then(|| format!("{first}/#"))
}

/// Adds a ban. Of two bans of the same clients, the one that ends later remains.
fn add_ban(bans: &Bans, ban: &Ban, data_dir: &Path) -> Result<(), BanError> {
    let now = super::now_unix_ms();
    match bans.add(ban.clone(), now) {
        Err(BanError::Exists) => {}
        result => return result.map(|_| ()),
    }
    // Another list shows how the value of the ban is written in the file.
    let path = data_dir.join("banned.unfinished");
    let unusable = |source| BanError::Storage {
        path: path.clone(),
        source,
    };
    let scratch = Bans::open(&path).map_err(|error| unusable(io::Error::other(chain(&error))))?;
    let ban = scratch.add(ban.clone(), now)?;
    fs::remove_file(&path).map_err(unusable)?;
    let end = |ban: &Ban| ban.until_unix_ms.unwrap_or(u64::MAX);
    let is_same = |other: &Ban| other.kind == ban.kind && other.who == ban.who;
    let others = bans.list(now);
    if others.iter().any(|other| is_same(other) && end(other) >= end(&ban)) {
        return Ok(());
    }
    bans.remove(ban.kind, &ban.who)?;
    bans.add(ban, now).map(|_| ())
}

/// The row of a ban in the report.
pub fn ban_item(ban: &Ban) -> String {
    format!("ban of {} {}", ban.kind.name(), ban.who)
}

#[cfg(test)]
mod tests;
