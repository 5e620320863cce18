//! The stores that a data directory has had: the file `stores.json`. A start with a missing store would begin with an
//! empty one, without a sign of the loss. It is refused instead, until an operator accepts the loss. The files with
//! access rules, users and bans count as stores: without them, the server would admit clients that it must reject.
//!
//! Each store detects missing parts of its own: the journal its segments, the time series their files, the entity
//! database its transactions. This file detects missing directories, and stores that an earlier copy has replaced: it
//! records how far each one has come. An older buffer of an action does not prevent the start, only the action.
//!
//! Its format number is also the version of the small files of the data directory that have none of their own:
//! definitions, users, bans, API keys, the audit log. It is checked before anything else is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::options::server::DurabilityPolicy;
use crate::config::raw::read_bounded;
use crate::config::{Config, ConfigDiagnostic, RUNTIME_FILE, RuntimeText, ValueOrigin};
use crate::device_platform;

const NAME: &str = "stores.json";
/// Raise it if an earlier program must not use the small files that this one writes.
const FORMAT: u32 = 1;

/// Interval at which new stores are recorded. Some are created while the server runs.
const RECORD_EVERY: Duration = Duration::from_secs(5);
/// Interval at which positions are recorded.
const RECORD_POSITIONS_EVERY: Duration = Duration::from_secs(60);

/// How far each store has come, by name. A position only grows.
type Positions = BTreeMap<String, u64>;

/// How far the buffers of actions have come, by directory within the data directory.
type BufferPositions = BTreeMap<String, BufferPosition>;

/// How far the journal of a buffer has come. If an action is deleted and created again, its buffer has another journal.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct BufferPosition {
    journal_id: u64,
    position: u64,
}

#[derive(Clone, PartialEq, Serialize, Deserialize)]
struct StoresFile {
    format: u32,
    stores: BTreeSet<String>,
    #[serde(default)]
    positions: Positions,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    buffers: BufferPositions,
}

impl Default for StoresFile {
    fn default() -> StoresFile {
        StoresFile {
            format: FORMAT,
            stores: BTreeSet::new(),
            positions: Positions::new(),
            buffers: BufferPositions::new(),
        }
    }
}

/// A store or a buffer that has come less far than was recorded.
pub struct OlderStore {
    pub name: String,
    unit: &'static str,
    present: u64,
    recorded: u64,
}

impl fmt::Display for OlderStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OlderStore {
            unit,
            present,
            recorded,
            ..
        } = self;
        write!(f, "{unit} {present} instead of {recorded}")
    }
}

/// The part of the file that all formats have.
#[derive(Deserialize)]
struct FileFormat {
    format: u32,
}

/// The proof that a store exists.
enum Proof {
    /// A log in the directory.
    Log,
    /// A file in the directory.
    File(&'static str),
    /// The store is a file.
    Itself,
    /// A directory that contains directories with a log.
    Logs,
}

/// A part of the server, which can be off.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Journal,
    Platform,
    /// The API and the console.
    Api,
    /// The users of the API and the console with their second factors, unless `api.users_file` names another file.
    ConsoleUsers,
    Integration,
    /// The access of MQTT clients, and the settings that were changed at run time.
    Access,
}

/// Files of [`Part::Access`], besides `runtime.toml`. No code removes them: without users or bans, they are empty.
const ACCESS_FILES: [&str; 2] = ["users", "banned.json"];
const API_KEYS_FILE: &str = "api-keys.json";

struct Store {
    /// Within the data directory.
    path: PathBuf,
    part: Part,
    proof: Proof,
}

fn stores() -> Vec<Store> {
    let platform = Path::new(device_platform::DIRECTORY_NAME);
    let integration = Path::new(integration::DIRECTORY_NAME);
    let store = |path, part, proof| Store { path, part, proof };
    let mut stores = vec![
        store(journal::DIRECTORY_NAME.into(), Part::Journal, Proof::Log),
        store(
            platform.join(device_platform::ENTITIES_NAME),
            Part::Platform,
            Proof::Itself,
        ),
        store(platform.join(device_platform::LOG_NAME), Part::Platform, Proof::Log),
        store(
            platform.join(device_platform::TIMESERIES_NAME),
            Part::Platform,
            Proof::File(timeseries::MANIFEST_NAME),
        ),
        store(
            api::HISTORY_NAME.into(),
            Part::Api,
            Proof::File(timeseries::MANIFEST_NAME),
        ),
        store(
            integration.join(integration::DEFINITIONS_NAME),
            Part::Integration,
            Proof::Itself,
        ),
        store(
            integration.join(integration::BUFFERS_NAME),
            Part::Integration,
            Proof::Logs,
        ),
        store(RUNTIME_FILE.into(), Part::Access, Proof::Itself),
        store(web::admins::FILE.into(), Part::ConsoleUsers, Proof::Itself),
        // No code removes it: without second factors, it is empty.
        store(web::admins::TOTP_FILE.into(), Part::ConsoleUsers, Proof::Itself),
        store(API_KEYS_FILE.into(), Part::Api, Proof::Itself),
    ];
    stores.extend(ACCESS_FILES.map(|name| store(name.into(), Part::Access, Proof::Itself)));
    stores
}

impl Store {
    fn name(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    fn exists(&self, data_dir: &Path) -> bool {
        let path = data_dir.join(&self.path);
        match self.proof {
            Proof::Log => journal::has_log(&path),
            Proof::File(name) => path.join(name).is_file(),
            Proof::Itself => path.is_file(),
            Proof::Logs => {
                let logs = fs::read_dir(&path).into_iter().flatten().flatten();
                logs.into_iter()
                    .any(|entry| journal::has_log(&entry.path().join(journal::DIRECTORY_NAME)))
            }
        }
    }

    /// A store that has a part of its files reports the missing ones itself.
    fn is_missing(&self, data_dir: &Path) -> bool {
        let path = data_dir.join(&self.path);
        match self.proof {
            Proof::Log | Proof::File(_) | Proof::Itself => !self.exists(data_dir),
            Proof::Logs => !path.is_dir(),
        }
    }

    /// Returns how far the store has come. `None` if the store cannot say, or reports the reason itself.
    fn position(&self, data_dir: &Path) -> Option<u64> {
        let path = data_dir.join(&self.path);
        let (parent, name) = (path.parent()?, path.file_name()?.to_str()?);
        match (&self.proof, self.part) {
            (Proof::Log, _) => journal::reached_position(&path).map(|reached| reached.position.0),
            (Proof::File(_), _) => timeseries::next_file_of(parent, name),
            (Proof::Itself, Part::Platform) => device_platform::transactions(parent),
            (Proof::Itself | Proof::Logs, _) => None,
        }
    }

    /// Unit of its position.
    fn unit(&self) -> &'static str {
        match self.proof {
            Proof::Log | Proof::Logs => "position",
            Proof::File(_) => "file number",
            Proof::Itself => "transaction",
        }
    }
}

/// Rejects a data directory without a store that it has had and that the configuration uses.
pub fn check(config: &Config) -> Result<(), String> {
    let is_used = |part| match part {
        Part::Journal => config.durability.policy != DurabilityPolicy::Memory,
        Part::Platform => config.platform.enabled,
        Part::Api => config.api.enabled,
        Part::ConsoleUsers => config.api.enabled && config.api.users_file.0.is_none(),
        Part::Integration | Part::Access => true,
    };
    let data_dir = &config.data_dir;
    raise_format(data_dir)?;
    let used: Vec<Store> = stores().into_iter().filter(|store| is_used(store.part)).collect();
    let known = read(data_dir)?;
    let dir = data_dir.display();
    let missing: Vec<String> = missing(&used, &known, data_dir).map(Store::name).collect();
    if !missing.is_empty() {
        return Err(format!(
            "{} is missing in the data directory {dir}, although it was there before (see {NAME}). Restore the files or a \
             backup, or accept the loss: tidewire journal repair --accept-loss --data-dir {dir}",
            missing.join(", "),
        ));
    }
    match older(&used, &known, data_dir).next() {
        None => Ok(()),
        Some(older) => Err(format!(
            "{} in the data directory {dir} is older than before ({older}, see {NAME}): {}, or a backup of the whole data \
             directory, or accept the loss: tidewire journal repair --accept-loss --data-dir {dir}",
            older.name,
            cause(&data_dir.join(&older.name))
        )),
    }
}

/// Reads `runtime.toml`. Returns an empty text if there never was a file. Fails if it is missing and has existed.
/// Otherwise a reload would discard the access rules and the other settings in it, and a change would write a new file
/// without them.
pub fn read_runtime_file(data_dir: &Path) -> Result<RuntimeText, ConfigDiagnostic> {
    let path = data_dir.join(RUNTIME_FILE);
    let message = match read_bounded(&path) {
        Ok(text) => return Ok(RuntimeText { path, text }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match read(data_dir) {
            Ok(known) if !known.stores.contains(RUNTIME_FILE) => {
                let text = String::new();
                return Ok(RuntimeText { path, text });
            }
            Ok(_) => format!(
                "the file is missing, although it was there before (see {NAME}). Restore it, or create an empty file to \
                 accept the loss of its access rules and other settings"
            ),
            Err(error) => error,
        },
        Err(error) => format!("cannot read the file: {error}"),
    };
    Err(ConfigDiagnostic {
        origin: ValueOrigin::Runtime { path, line: 0 },
        key: None,
        message,
    })
}

/// Writes this program's format to the file of an earlier one, before another file is written in this format.
fn raise_format(data_dir: &Path) -> Result<(), String> {
    match read_file(data_dir)? {
        Some(file) if file.format < FORMAT => write(data_dir, file),
        _ => Ok(()),
    }
}

/// Returns the names of the missing stores. With `is_accepted`, the next start creates them.
pub fn missing_stores(data_dir: &Path, is_accepted: bool) -> Result<Vec<String>, String> {
    let mut known = read(data_dir)?;
    let missing: Vec<String> = missing(&stores(), &known, data_dir).map(Store::name).collect();
    if is_accepted && !missing.is_empty() {
        known.stores.retain(|name| !missing.contains(name));
        known.positions.retain(|name, _| !missing.contains(name));
        write(data_dir, known)?;
    }
    Ok(missing)
}

/// Returns the stores and buffers that an earlier copy has replaced. With `is_accepted`, the next start uses them as
/// they are.
pub fn older_stores(data_dir: &Path, is_accepted: bool) -> Result<Vec<OlderStore>, String> {
    let known = read(data_dir)?;
    let mut older: Vec<OlderStore> = older(&stores(), &known, data_dir).collect();
    let recorded = known.buffers.iter();
    older.extend(recorded.filter_map(|(name, recorded)| older_buffer(data_dir, name, *recorded)));
    if is_accepted {
        forget_positions(data_dir, older.iter().map(|older| &*older.name))?;
    }
    Ok(older)
}

/// Forgets how far the store or the journal of a buffer in a directory has come. For a log that was repaired.
pub fn forget_position(directory: &Path) -> Result<(), String> {
    let Some(data_dir) = data_dir_of(directory) else {
        return Ok(());
    };
    let Ok(repaired) = fs::canonicalize(directory) else {
        return Ok(());
    };
    let stores = stores().into_iter().map(|store| (store.name(), store.path));
    let buffers = read(&data_dir)?.buffers.into_keys();
    let buffers = buffers.map(|name| (name.clone(), Path::new(&name).join(journal::DIRECTORY_NAME)));
    let is_repaired = |path: &Path| fs::canonicalize(data_dir.join(path)).is_ok_and(|path| path == repaired);
    let found = stores.chain(buffers).find(|(_, path)| is_repaired(path));
    forget_positions(&data_dir, found.iter().map(|(name, _)| &**name))
}

fn forget_positions<'a>(data_dir: &Path, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut known = read(data_dir)?;
    let before = known.clone();
    for name in names {
        known.positions.remove(name);
        known.buffers.remove(name);
    }
    match known == before {
        true => Ok(()),
        false => write(data_dir, known),
    }
}

/// Returns the names of the recorded stores.
pub fn recorded_stores(data_dir: &Path) -> Result<BTreeSet<String>, String> {
    read(data_dir).map(|known| known.stores)
}

/// Completes the file of a copy. `recorded` are the stores that were recorded before the copy began: the copy may lack
/// stores that were created later. Positions are forgotten, because the stores were copied at different times.
pub fn complete_copy(copy: &Path, recorded: &BTreeSet<String>) -> Result<(), String> {
    let mut known = read(copy)?;
    let has_positions = !known.positions.is_empty() || !known.buffers.is_empty();
    let is_complete = !has_positions && known.stores.is_subset(recorded);
    known.positions.clear();
    known.buffers.clear();
    known.stores.retain(|name| recorded.contains(name));
    match is_complete {
        true => Ok(()),
        false => write(copy, known),
    }
}

/// Returns the data directory to which a directory belongs.
pub fn data_dir_of(directory: &Path) -> Option<PathBuf> {
    // A store may be a symbolic link to another disk.
    let paths = [std::path::absolute(directory), fs::canonicalize(directory)];
    paths.into_iter().flatten().find_map(|path| {
        let data_dir = path.ancestors().find(|parent| parent.join(NAME).is_file());
        data_dir.map(Path::to_owned)
    })
}

/// Forgets all stores. For a data directory that was restored in part.
pub fn forget(data_dir: &Path) -> Result<(), String> {
    match fs::remove_file(data_dir.join(NAME)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", data_dir, &error)),
        _ => Ok(()),
    }
}

fn missing<'a>(
    stores: &'a [Store],
    known: &'a StoresFile,
    data_dir: &'a Path,
) -> impl Iterator<Item = &'a Store> + use<'a> {
    let is_missing = |store: &&Store| known.stores.contains(&store.name()) && store.is_missing(data_dir);
    stores.iter().filter(is_missing)
}

fn older<'a>(
    stores: &'a [Store],
    known: &'a StoresFile,
    data_dir: &'a Path,
) -> impl Iterator<Item = OlderStore> + use<'a> {
    stores.iter().filter_map(|store| {
        let name = store.name();
        let recorded = *known.positions.get(&name)?;
        let present = store.position(data_dir).filter(|present| *present < recorded)?;
        let unit = store.unit();
        Some(OlderStore {
            name,
            unit,
            present,
            recorded,
        })
    })
}

/// Returns why a store is older than before, and what to restore. Without its checkpoint, a log has come as far as its
/// last segment begins.
fn cause(store: &Path) -> String {
    let checkpoint = store.join(journal::CHECKPOINT_NAME);
    match journal::has_log(store) && !checkpoint.exists() {
        true => format!(
            "the file {} is missing, or an earlier copy has replaced the store. Restore the file or the newer files",
            checkpoint.display()
        ),
        false => "an earlier copy has replaced it. Restore the newer files".to_owned(),
    }
}

/// Returns how far a buffer has come. `None` if it cannot say, or is missing.
fn buffer_position(data_dir: &Path, name: &str) -> Option<BufferPosition> {
    let reached = journal::reached_position(&data_dir.join(name).join(journal::DIRECTORY_NAME))?;
    Some(BufferPosition {
        journal_id: reached.journal_id,
        position: reached.position.0,
    })
}

fn older_buffer(data_dir: &Path, name: &str, recorded: BufferPosition) -> Option<OlderStore> {
    let present = buffer_position(data_dir, name)?;
    let is_older = present.journal_id == recorded.journal_id && present.position < recorded.position;
    is_older.then(|| OlderStore {
        name: name.to_owned(),
        unit: "position",
        present: present.position,
        recorded: recorded.position,
    })
}

/// Finds action buffers that an earlier copy has replaced.
pub struct OlderBuffers {
    data_dir: PathBuf,
    /// Read again only if a buffer is older, because there may be many buffers.
    recorded: Mutex<BufferPositions>,
}

impl OlderBuffers {
    pub fn read(data_dir: &Path) -> Result<OlderBuffers, String> {
        Ok(OlderBuffers {
            data_dir: data_dir.to_owned(),
            recorded: Mutex::new(read(data_dir)?.buffers),
        })
    }

    /// Returns why the buffer in a directory must not be opened. `None` if it is not older.
    pub fn problem(&self, directory: &Path) -> Option<String> {
        let name = directory.strip_prefix(&self.data_dir).ok()?.to_string_lossy();
        let find = |recorded: &BufferPositions| older_buffer(&self.data_dir, &name, *recorded.get(&*name)?);
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        find(&recorded)?;
        // A repair may have accepted the loss in the meantime.
        match read(&self.data_dir) {
            Ok(known) => *recorded = known.buffers,
            Err(error) => return Some(error),
        }
        let older = find(&recorded)?;
        Some(format!(
            "the buffer {} is older than before ({older}, see {NAME}): {}, or accept the loss of the newer messages: \
             tidewire journal repair --accept-loss --data-dir {}",
            directory.display(),
            cause(&directory.join(journal::DIRECTORY_NAME)),
            self.data_dir.display()
        ))
    }
}

/// How far all stores and buffers have come.
struct ReachedPositions {
    stores: Positions,
    buffers: BufferPositions,
}

impl ReachedPositions {
    fn read(data_dir: &Path) -> ReachedPositions {
        let with_position = |store: Store| Some((store.name(), store.position(data_dir)?));
        // Only buffers on disk have a mark.
        let buffers = integration::marked_buffers(data_dir).unwrap_or_default();
        let buffers = buffers.into_iter().filter_map(|name| {
            let position = buffer_position(data_dir, &name)?;
            Some((name, position))
        });
        ReachedPositions {
            stores: stores().into_iter().filter_map(with_position).collect(),
            buffers: buffers.collect(),
        }
    }

    /// Removes the buffers that have a lower position now, or none: a failed buffer can be repaired while the server
    /// runs. The repair has forgotten the position.
    fn remove_repaired_buffers(&mut self, now: &ReachedPositions) {
        self.buffers.retain(|name, earlier| {
            let now = now.buffers.get(name);
            now.is_some_and(|now| now.journal_id == earlier.journal_id && now.position >= earlier.position)
        });
    }
}

/// Adds the stores that exist, and raises the positions. Only a repair or an accepted loss lowers them.
fn record(data_dir: &Path, reached: Option<ReachedPositions>) -> Result<(), String> {
    let mut known = read(data_dir)?;
    let before = known.clone();
    let found = stores().into_iter().filter(|store| store.exists(data_dir));
    known.stores.extend(found.map(|store| store.name()));
    if let Some(reached) = reached {
        for (name, position) in reached.stores {
            let recorded = known.positions.entry(name).or_default();
            *recorded = position.max(*recorded);
        }
        known.record_buffers(reached.buffers);
        // The mark of a buffer is removed with its action. A copy of a buffer may lack it.
        if let Ok(marked) = integration::marked_buffers(data_dir) {
            let is_same = |name: &str, recorded: &BufferPosition| {
                buffer_position(data_dir, name).is_some_and(|present| present.journal_id == recorded.journal_id)
            };
            known
                .buffers
                .retain(|name, recorded| marked.binary_search(name).is_ok() || is_same(name, recorded));
        }
    }
    match known == before {
        true => Ok(()),
        false => write(data_dir, known),
    }
}

impl StoresFile {
    fn record_buffers(&mut self, reached: BufferPositions) {
        for (name, reached) in reached {
            let recorded = self.buffers.entry(name).or_insert(reached);
            if recorded.journal_id != reached.journal_id || recorded.position < reached.position {
                *recorded = reached;
            }
        }
    }
}

/// Records the stores of a running server.
pub struct StoresRecorder {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl StoresRecorder {
    /// Records the stores that exist already, and new ones while the server runs.
    pub fn start(data_dir: &Path) -> io::Result<StoresRecorder> {
        let data_dir = data_dir.to_owned();
        let (stop, is_stopped) = mpsc::channel();
        record_or_warn(&data_dir, None);
        let run = move || {
            // A position that was just read may not be durable. One of a minute ago is.
            let (mut seen, mut seen_at) = (ReachedPositions::read(&data_dir), Instant::now());
            while is_stopped.recv_timeout(RECORD_EVERY) == Err(RecvTimeoutError::Timeout) {
                let is_due = seen_at.elapsed() >= RECORD_POSITIONS_EVERY;
                let durable = is_due.then(|| {
                    let mut durable = std::mem::replace(&mut seen, ReachedPositions::read(&data_dir));
                    durable.remove_repaired_buffers(&seen);
                    durable
                });
                if is_due {
                    seen_at = Instant::now();
                }
                record_or_warn(&data_dir, durable);
            }
            // All stores are closed.
            record_or_warn(&data_dir, Some(ReachedPositions::read(&data_dir)));
        };
        let thread = thread::Builder::new().name("stores".to_owned()).spawn(run)?;
        Ok(StoresRecorder { stop, thread })
    }

    pub fn stop(self) {
        drop(self.stop);
        // The panicking thread has already reported its panic.
        let _ = self.thread.join();
    }
}

fn record_or_warn(data_dir: &Path, reached: Option<ReachedPositions>) {
    if let Err(error) = record(data_dir, reached) {
        tracing::warn!(error, "cannot record the stores of the data directory");
    }
}

fn read(data_dir: &Path) -> Result<StoresFile, String> {
    read_file(data_dir).map(Option::unwrap_or_default)
}

fn read_file(data_dir: &Path) -> Result<Option<StoresFile>, String> {
    let text = match fs::read(data_dir.join(NAME)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", data_dir, &error)),
    };
    let path = data_dir.join(NAME);
    let damaged = |error: serde_json::Error| {
        format!(
            "{} is damaged: {}. Restore it from a backup, or remove it if no store is missing",
            path.display(),
            input_errors::plain(&error)
        )
    };
    let FileFormat { format } = serde_json::from_slice(&text).map_err(damaged)?;
    match format > FORMAT {
        false => serde_json::from_slice(&text).map(Some).map_err(damaged),
        true => Err(format!(
            "{} has format version {format}, but this program supports versions up to {FORMAT}. Use the newer tidewire that \
             wrote it, or restore a backup",
            path.display()
        )),
    }
}

fn write(data_dir: &Path, file: StoresFile) -> Result<(), String> {
    let file = StoresFile { format: FORMAT, ..file };
    let mut text = serde_json::to_vec_pretty(&file).map_err(|error| failed("write", data_dir, &error.into()))?;
    text.push(b'\n');
    storage::copy::replace(&data_dir.join(NAME), &text).map_err(|error| failed("write", data_dir, &error))
}

fn failed(doing: &str, data_dir: &Path, error: &io::Error) -> String {
    format!("cannot {doing} {}: {error}", data_dir.join(NAME).display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers(journal_id: u64, position: u64) -> BufferPositions {
        BTreeMap::from([("buffer".to_owned(), BufferPosition { journal_id, position })])
    }

    #[test]
    fn buffer_position_grows_and_restarts_with_a_new_journal() {
        let mut known = StoresFile::default();
        for ((journal_id, reached), expected) in [((1, 50), 50), ((1, 40), 50), ((1, 60), 60), ((2, 10), 10)] {
            known.record_buffers(buffers(journal_id, reached));
            assert!(
                known.buffers == buffers(journal_id, expected),
                "{journal_id}, {reached}"
            );
        }
    }

    #[test]
    fn runtime_file_that_has_existed_is_not_an_empty_one() {
        let data_dir = std::env::temp_dir().join(format!("tidewire-stores-{}", std::process::id()));
        fs::create_dir_all(&data_dir).expect("a writable directory");
        let file = data_dir.join(RUNTIME_FILE);
        let text = || read_runtime_file(&data_dir).map(|read| read.text);
        assert_eq!(text().ok().as_deref(), Some(""));
        fs::write(&file, "[mqtt]\n").expect("a writable file");
        assert_eq!(text().ok().as_deref(), Some("[mqtt]\n"));
        record(&data_dir, None).expect("the file is recorded");
        fs::remove_file(&file).expect("the file exists");
        let error = text().expect_err("the file is missing").to_string();
        assert!(error.contains("although it was there before"), "{error}");
        fs::create_dir(&file).expect("a writable directory");
        let error = text().expect_err("a directory is no file").to_string();
        assert!(error.contains("cannot read the file"), "{error}");
        fs::remove_dir_all(&data_dir).expect("the directory can be removed");
    }

    #[test]
    fn positions_that_a_repair_has_lowered_are_not_recorded() {
        let reached = |buffers| ReachedPositions {
            stores: Positions::new(),
            buffers,
        };
        for (now, is_recorded) in [
            (buffers(1, 50), true),
            (buffers(1, 60), true),
            (buffers(1, 40), false),
            (buffers(2, 60), false),
            (BufferPositions::new(), false),
        ] {
            let mut earlier = reached(buffers(1, 50));
            earlier.remove_repaired_buffers(&reached(now));
            assert_eq!(!earlier.buffers.is_empty(), is_recorded);
        }
    }
}
