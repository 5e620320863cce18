//! `tidewire import mosquitto mosquitto.conf`: imports the configuration of Mosquitto 2, and the files that it names:
//! passwords, access rules, dynamic security and persistence.
//!
//! Files of `include_dir` are read in place of their line. Each line is an option. As in Mosquitto, its key decides
//! where it belongs: an option of a bridge belongs to the last `connection`, also behind a later `listener`, and an
//! option of a listener to the last `listener`, also behind a later `connection`.

mod access;
mod bridge;
mod dynamic_security;
mod go_auth;
mod listener;
mod repeated;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::options::Form::{self, Flag, Limit, Number, Seconds};
use super::options::convert;
use super::report::{Outcome, Report};
use super::setup::{PersistenceFile, Setup};
use super::{CONFIG_BYTES_MAX, read_bounded};
use access::is_access;
use listener::Listeners;

/// Maximum number of lines of a file.
const LINES_MAX: usize = 100_000;
/// Maximum size of a persistence file.
const DATABASE_BYTES_MAX: u64 = 4 << 30;

/// Maximum number of files that one `include_dir` includes, and of these lines.
const INCLUDED_MAX: usize = 1_000;

/// A line with an option.
struct ConfLine<'a> {
    file: &'a str,
    line: usize,
    key: &'a str,
    value: &'a str,
    /// Its item in the report. Begins with the item of its listener or bridge.
    item: String,
}

/// The directory of the main file, and where outcomes go.
struct Conf<'r> {
    directory: PathBuf,
    report: &'r Report,
}

impl Conf<'_> {
    fn add(&self, line: &ConfLine<'_>, outcome: Outcome) {
        self.report.add(line.file, line.line, &line.item, outcome);
    }

    fn imported(&self, line: &ConfLine<'_>, to: &str) {
        self.add(line, Outcome::Imported(to.to_owned()));
    }

    fn changed(&self, line: &ConfLine<'_>, to: &str, because: &str) {
        let (to, because) = (to.to_owned(), because.to_owned());
        self.add(line, Outcome::Changed { to, because });
    }

    fn refuse(&self, line: &ConfLine<'_>, because: &str) {
        let because = because.to_owned();
        self.add(line, Outcome::NotSupported { because });
    }

    /// Returns an error that ends the import.
    fn failure(&self, line: &ConfLine<'_>, because: &str) -> String {
        format!("{}:{}: {because}", line.file, line.line)
    }

    /// Returns the path of a file that the configuration names.
    fn path(&self, value: &str) -> PathBuf {
        self.directory.join(value)
    }

    /// Returns the absolute path of a file of this machine.
    fn existing(&self, value: &str) -> Result<String, String> {
        let path = std::path::absolute(self.path(value)).map_err(|error| format!("{value}: {error}"))?;
        match path.is_file() {
            true => Ok(path.display().to_string()),
            false => Err(format!("this machine has no file {value}")),
        }
    }
}

/// The first lines, then listeners and bridges, each with the line that begins it.
#[derive(Default)]
struct Sections<'a> {
    global: Vec<ConfLine<'a>>,
    listeners: Vec<Vec<ConfLine<'a>>>,
    bridges: Vec<Vec<ConfLine<'a>>>,
    /// Why the files of an `include_dir` cannot be read, by its line.
    unread: BTreeMap<usize, &'a str>,
}

/// Options that are for the whole server wherever they stand, besides those of `OPTIONS` and `REFUSED`.
const GLOBAL_ANYWHERE: [&str; 8] = [
    "persistence",
    "retained_persistence",
    "persistence_location",
    "persistence_file",
    "include_dir",
    "max_inflight_messages",
    "allow_duplicate_messages",
    "persistent_client_expiration",
];

/// Options of `OPTIONS` that belong to the last listener.
const OF_LISTENER: [&str; 5] = [
    "max_connections",
    "max_qos",
    "maximum_qos",
    "max_topic_alias",
    "max_topic_alias_broker",
];

/// The owner of an option: the server, a listener or a bridge.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    Server,
    /// The server if no line `listener` comes before it.
    Listener,
    Bridge,
}

impl Owner {
    fn of(key: &str) -> Owner {
        let is_option = OPTIONS.iter().any(|(option, ..)| *option == key) && !OF_LISTENER.contains(&key);
        let is_refused = REFUSED.iter().any(|(option, _)| *option == key);
        match key {
            "connection" => Owner::Bridge,
            "listener" => Owner::Listener,
            _ if bridge::has_option(key) => Owner::Bridge,
            _ if is_option || is_refused || GLOBAL_ANYWHERE.contains(&key) => Owner::Server,
            _ => Owner::Listener,
        }
    }
}

/// A listener or bridge that began in a file.
struct Section {
    /// Its index in `Sections`.
    index: usize,
    /// Its item in the report.
    item: String,
    topics: usize,
}

impl Sections<'_> {
    /// Returns whether each listener has its own options of access. A value that is not a boolean counts as such.
    fn is_per_listener(&self) -> bool {
        let own = last(&self.global, "per_listener_settings");
        own.is_some_and(|line| flag(line.value) != Some(false)) && !self.listeners.is_empty()
    }
}

fn last<'l, 'a>(lines: &'l [ConfLine<'a>], key: &str) -> Option<&'l ConfLine<'a>> {
    lines.iter().rev().find(|line| line.key == key)
}

/// Returns a boolean. Without a value, Mosquitto does not start.
fn flag(value: &str) -> Option<bool> {
    match value {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}

const NO_FLAG: &str = "its value is neither true nor false";

impl<'a> Sections<'a> {
    /// Adds the lines of a file. Each file begins with options of the whole server.
    fn read(&mut self, source: &'a Source, place: Place<'a>) -> Result<(), String> {
        let (mut listener, mut bridge): (Option<Section>, Option<Section>) = (None, None);
        for (at, line) in source.text.lines().enumerate() {
            let failure = |problem: &str| Err(format!("{}:{}: {problem}", source.name, at + 1));
            if at >= LINES_MAX {
                return failure(&format!("the file has more than {LINES_MAX} lines"));
            }
            let Some((key, value)) = key_and_value(line) else {
                continue;
            };
            let owner = Owner::of(key);
            let begin = |index| Section {
                index,
                item: format!("{key}[{value}]"),
                topics: 0,
            };
            match key {
                "listener" => {
                    listener = Some(begin(self.listeners.len()));
                    self.listeners.push(Vec::new());
                }
                "connection" => {
                    bridge = Some(begin(self.bridges.len()));
                    self.bridges.push(Vec::new());
                }
                _ => {}
            }
            let section = match owner {
                Owner::Server => None,
                Owner::Listener => listener.as_mut(),
                Owner::Bridge => bridge.as_mut(),
            };
            let item = match &section {
                Some(section) if matches!(key, "listener" | "connection") => section.item.clone(),
                Some(section) if key == "topic" => format!("{}.topic[{}]", section.item, section.topics + 1),
                Some(section) if !is_access(key) => format!("{}.{key}", section.item),
                _ => key.to_owned(),
            };
            let entry = ConfLine {
                file: &source.name,
                line: at + 1,
                key,
                value,
                item,
            };
            let lines = match (owner, section) {
                (Owner::Bridge, None) => {
                    return failure(
                        "it does not say which bridge it belongs to: write it behind its line `connection`",
                    );
                }
                (_, None) if matches!(place, Place::BehindListener) && listener::is_of_default(&entry) => {
                    return failure(
                        "it does not say which listener it belongs to: write it behind its line `listener`",
                    );
                }
                (_, None) => &mut self.global,
                (Owner::Bridge, Some(section)) => {
                    section.topics += usize::from(key == "topic");
                    &mut self.bridges[section.index]
                }
                (_, Some(section)) => &mut self.listeners[section.index],
            };
            lines.push(entry);
            if let (Place::Main(included), "include_dir") = (place, key) {
                let inner = match &listener {
                    None => Place::Global,
                    Some(_) => Place::BehindListener,
                };
                match included.get(&(at + 1)) {
                    Some(Ok(sources)) => sources.iter().try_for_each(|source| self.read(source, inner))?,
                    Some(Err(problem)) => {
                        self.unread.insert(at + 1, problem);
                    }
                    None => {}
                }
            }
        }
        Ok(())
    }
}

/// Returns the option of a line, unless it is empty or a comment.
fn key_and_value(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    Some((key, value.trim()))
}

/// A file of the configuration.
struct Source {
    name: String,
    text: String,
}

/// Where a file is read.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// The main file, which alone can include others.
    Main(&'a Included),
    /// Included before the first listener.
    Global,
    BehindListener,
}

/// The files of each `include_dir`, by its line in the main file, or why they cannot be read.
type Included = BTreeMap<usize, Result<Vec<Source>, String>>;

fn included(directory: &Path, main: &Source) -> Included {
    let lines = main.text.lines().enumerate();
    let directories = lines.filter_map(|(at, line)| match key_and_value(line) {
        Some(("include_dir", value)) => Some((at + 1, value)),
        _ => None,
    });
    directories
        .take(INCLUDED_MAX)
        .map(|(line, value)| (line, read_directory(&directory.join(value))))
        .collect()
}

/// Reads the files that end with `.conf`, in the order of their names.
fn read_directory(directory: &Path) -> Result<Vec<Source>, String> {
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", directory.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "conf") {
            paths.push(path);
        }
        if paths.len() > INCLUDED_MAX {
            return Err(format!("{} has more than {INCLUDED_MAX} files", directory.display()));
        }
    }
    paths.sort();
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    paths
        .iter()
        .map(|path| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            Ok(Source {
                name: format!("{name}/{file}"),
                text: read_text(path)?,
            })
        })
        .collect()
}

fn read_text(file: &Path) -> Result<String, String> {
    let bytes = read_bounded(file, CONFIG_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|_| format!("{}: the file is not UTF-8", file.display()))
}

pub fn import(file: &Path, report: &Report) -> Result<Setup, String> {
    let name = file
        .file_name()
        .map_or_else(|| "mosquitto.conf".into(), |name| name.to_string_lossy());
    let main = Source {
        name: name.into(),
        text: read_text(file)?,
    };
    let directory = file.parent().unwrap_or(Path::new("")).to_owned();
    let included = included(&directory, &main);
    let mut found = Sections::default();
    found.read(&main, Place::Main(&included))?;
    let conf = Conf { directory, report };
    repeated::remove(&mut found, report);
    include_lines(&conf, &found, &main);
    let mut setup = Setup::new()?;
    let mut listeners = Listeners::default();
    for lines in &found.listeners {
        listeners.add(&conf, lines, &mut setup);
    }
    let of_default: Vec<&ConfLine<'_>> = found
        .global
        .iter()
        .filter(|line| listener::is_of_default(line))
        .collect();
    for line in &of_default {
        conf.refuse(line, OF_DEFAULT_LISTENER);
    }
    listeners.finish(found.listeners.is_empty() && of_default.is_empty(), &mut setup);
    access::import(&conf, &found, &mut setup)?;
    persistence(&conf, &found.global, &mut setup)?;
    for line in &found.global {
        global(&conf, line, &mut setup);
    }
    for lines in &found.bridges {
        bridge::import(&conf, lines, &mut setup);
    }
    for line in found.listeners.iter().flatten() {
        conf.refuse(line, "tidewire has no such option of a listener");
    }
    Ok(setup)
}

fn include_lines(conf: &Conf<'_>, found: &Sections<'_>, main: &Source) {
    for line in found.global.iter().filter(|line| line.key == "include_dir") {
        match found.unread.get(&line.line) {
            _ if line.file != main.name => conf.refuse(line, "Mosquitto includes files in its main file only"),
            None => conf.imported(line, "tidewire.toml"),
            Some(problem) => conf.refuse(
                line,
                &format!(
                    "{problem}. As its files could deny access, the first rule denies all topics: replace it in \
                     access.rules"
                ),
            ),
        }
    }
}

const OF_DEFAULT_LISTENER: &str =
    "the default listener is left out. To import it, write its options behind a line `listener PORT ADDRESS`";

const ZERO_IS_NONE: Form = Limit { zero_is_none: true };

const OPTIONS: [(&str, &str, Form); 15] = [
    ("max_queued_messages", "mqtt.max_queued_messages", ZERO_IS_NONE),
    ("max_queued_bytes", "mqtt.max_queued_bytes", ZERO_IS_NONE),
    ("queue_qos0_messages", "mqtt.queue_qos0", Flag),
    ("max_packet_size", "mqtt.max_packet_size", Number),
    ("message_size_limit", "mqtt.max_packet_size", Number),
    ("max_keepalive", "mqtt.max_keep_alive", Seconds),
    ("max_qos", "mqtt.max_qos", Number),
    ("maximum_qos", "mqtt.max_qos", Number),
    ("retain_available", "mqtt.retain_available", Flag),
    ("max_topic_alias", "mqtt.max_topic_alias_in", Number),
    ("max_topic_alias_broker", "mqtt.max_topic_alias_out", Number),
    ("sys_interval", "sys.interval", Seconds),
    ("max_connections", "limits.max_connections", Number),
    ("global_max_connections", "limits.max_connections", Number),
    ("global_max_clients", "limits.max_sessions", Number),
];

const REFUSED: [(&str, &str); 22] = [
    ("autosave_interval", "each acknowledged message is in the journal"),
    ("autosave_on_changes", "each acknowledged message is in the journal"),
    ("pid_file", "tidewire writes no such file"),
    ("user", "start tidewire as this user"),
    (
        "log_dest",
        "set log.file, or log.syslog; without them, the log goes to standard error",
    ),
    ("log_type", "log.level chooses the messages"),
    ("connection_messages", "the log contains connections at the level info"),
    ("log_timestamp", "each line of the log has a time"),
    ("log_timestamp_format", "times have the format of ISO 8601"),
    ("per_listener_settings", "users and rules are the same on all listeners"),
    ("set_tcp_nodelay", "tidewire sets the options of sockets itself"),
    (
        "upgrade_outgoing_qos",
        "messages have the lower QoS of publisher and subscription",
    ),
    ("check_retain_source", "rules are checked when a message is published"),
    (
        "enable_control_api",
        "the console and the API have the state of the server",
    ),
    ("packet_buffer_size", "tidewire chooses the sizes of its buffers itself"),
    (
        "websockets_headers_size",
        "tidewire chooses the sizes of its buffers itself",
    ),
    ("websockets_log_level", "log.level chooses the messages"),
    ("log_facility", "log.syslog has the facility daemon"),
    (
        "retain_expiry_interval",
        "tidewire removes retained messages when they expire",
    ),
    (
        "max_inflight_bytes",
        "mqtt.max_inflight limits the number of messages in flight",
    ),
    ("memory_limit", "each queue and cache has a limit of its own"),
    ("retry_interval", "it has no effect in Mosquitto 2"),
];

fn global(conf: &Conf<'_>, line: &ConfLine<'_>, setup: &mut Setup) {
    let value = line.value;
    if let Some((_, to, form)) = OPTIONS.iter().find(|(key, ..)| *key == line.key) {
        let is_unlimited = value == "-1" || value == "0" && to.ends_with("max_packet_size");
        match convert(value, *form) {
            _ if is_unlimited => conf.changed(line, to, "the default of tidewire, because it has a limit always"),
            Some(value) => limit(conf, line, to, value, setup),
            None => conf.refuse(line, &format!("its value has no counterpart in {to}")),
        }
        return;
    }
    if let Some((_, because)) = REFUSED.iter().find(|(key, _)| *key == line.key) {
        conf.refuse(line, because);
        return;
    }
    match line.key {
        "max_inflight_messages" => {
            let value = if value == "0" { "65535" } else { value };
            match convert(value, Number) {
                Some(value) => {
                    setup.set("mqtt.max_inflight", &line.item, value);
                    conf.imported(line, "mqtt.max_inflight");
                }
                None => conf.refuse(line, "its value is not a number"),
            }
        }
        "allow_duplicate_messages" => match flag(value) {
            Some(is_each) => {
                let each = if is_each { "each" } else { "once" };
                setup.set("mqtt.overlapping_subscriptions", &line.item, each);
                conf.imported(line, "mqtt.overlapping_subscriptions");
            }
            None => conf.refuse(line, NO_FLAG),
        },
        "persistent_client_expiration" => match expiration(value) {
            Some(duration) => {
                setup.set("mqtt.default_session_expiry", &line.item, duration);
                conf.imported(line, "mqtt.default_session_expiry");
            }
            None => conf.refuse(line, "its value is not a duration"),
        },
        key => conf.refuse(line, listener::refused(key).unwrap_or("tidewire has no such option")),
    }
}

/// Sets an option. Two limits of Mosquitto can be one option: the lower one counts.
fn limit(conf: &Conf<'_>, line: &ConfLine<'_>, to: &str, value: toml::Value, setup: &mut Setup) {
    if let (Some(limit), Some((other, item))) = (value.as_integer(), setup.integer(to)) {
        if other <= limit {
            conf.changed(line, to, &format!("the lower limit {item} counts"));
            return;
        }
        conf.report
            .replace(item, &format!("the lower limit {} counts", line.key));
    }
    setup.set(to, &line.item, value);
    conf.imported(line, to);
}

/// `2m` is two months in Mosquitto.
fn expiration(value: &str) -> Option<String> {
    let unit = value.chars().last()?;
    let number: u64 = value.strip_suffix(unit)?.parse().ok()?;
    Some(match unit {
        'h' => format!("{number}h"),
        'd' => format!("{number}d"),
        'w' => format!("{}d", number.checked_mul(7)?),
        'm' => format!("{}d", number.checked_mul(30)?),
        'y' => format!("{}d", number.checked_mul(365)?),
        _ => return None,
    })
}

fn persistence(conf: &Conf<'_>, lines: &[ConfLine<'_>], setup: &mut Setup) -> Result<(), String> {
    let find = |key: &str| last(lines, key);
    let line = find("persistence").or_else(|| find("retained_persistence"));
    let Some(line) = line else { return Ok(()) };
    match flag(line.value) {
        Some(true) => conf.imported(line, "durability.policy"),
        Some(false) => {
            setup.set("durability.policy", &line.item, "memory");
            conf.imported(line, "durability.policy");
            return Ok(());
        }
        None => {
            conf.refuse(line, NO_FLAG);
            return Ok(());
        }
    }
    let directory = find("persistence_location").map_or("", |line| line.value);
    let name = find("persistence_file").map_or("mosquitto.db", |line| line.value);
    for key in ["persistence_location", "persistence_file"] {
        if let Some(line) = find(key) {
            conf.changed(line, "node.data_dir", "the data directory is that of the import");
        }
    }
    let path = conf.path(directory).join(name);
    let outcome = match path.is_file() {
        true => {
            setup.mosquitto_database = Some(PersistenceFile {
                name: name.to_owned(),
                bytes: read_bounded(&path, DATABASE_BYTES_MAX)?,
            });
            Outcome::Imported("data/journal".to_owned())
        }
        false => Outcome::NotSupported {
            because: "the file is missing: stop Mosquitto first, because it writes the file when it ends".to_owned(),
        },
    };
    conf.report.add(name, 0, "sessions and messages", outcome);
    Ok(())
}
