//! The audit log of the API: user, operation, time, address, result and changed state of each change.
//!
//! `audit.jsonl` in the data directory has one JSON object per line, ordered by number. An entry is on disk before the
//! answer is sent. A full file is renamed to `audit.1.jsonl`, and so on; the oldest file is deleted. Request bodies are
//! logged without secrets and unknown fields (`audit_body.rs`), with the state before and after (`audit_state.rs`).
//! Reading starts with the newest file and runs on blocking threads.
//!
//! If an entry cannot be written, the change stays: an administrator must be able to repair a full disk. The entry goes
//! to the server log and waits in memory, an alarm begins, and the server retries every second.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tracing::error;

use crate::audit_body::KnownFields;
use crate::audit_state::BoundStateReader;

pub const FILE: &str = "audit.jsonl";
/// Whether a file name in the data directory belongs to the audit log.
pub fn is_audit_file(name: &str) -> bool {
    name.starts_with("audit.") && name.ends_with(".jsonl")
}

/// Limit of one file.
pub const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Limit of renamed files.
const OLD_FILES: usize = 4;
/// Limit of entries that wait until they can be written.
const UNWRITTEN_MAX: usize = 1000;
/// Limit of a logged request body, as JSON.
const BODY_BYTES_MAX: usize = 4096;
/// Operations that need an admin but change no setting. They would fill the log.
const NO_CHANGE: [&str; 7] = [
    "publish",
    "publish_bulk",
    "test_acl",
    "check_configuration",
    "test_rule",
    "test_connector",
    "try_connector",
];

/// An operation that a user performed or attempted.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AuditEntry {
    /// Sequence number.
    pub number: u64,
    pub at_unix_ms: u64,
    /// The console user, `oidc:` and a user of the identity provider, or `key:` and the name of an API key.
    pub user: String,
    /// The namespace to which the role of the user is limited. Absent: the whole server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Address of the client.
    pub address: String,
    /// Operation ID of the OpenAPI document.
    pub operation: String,
    pub method: String,
    pub path: String,
    /// Request body without secrets; long texts are shortened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// The changed fields of the entity before the change, without secrets. Absent: the entity did not exist, the
    /// change failed, or the operation changes no stored entity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// The changed fields after the change, without secrets. Absent: the entity was deleted, or as for `before`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
    /// HTTP status of the answer. 2xx: the operation succeeded.
    pub status: u16,
}

/// Conditions of a list; absent conditions match all entries.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    pub user: Option<String>,
    pub operation: Option<String>,
    /// Part of the entry's line, ignoring case.
    pub text: Option<String>,
    pub from_unix_ms: Option<u64>,
    pub until_unix_ms: Option<u64>,
}

impl AuditFilter {
    fn matches(&self, entry: &AuditEntry, line: &str) -> bool {
        self.user.as_ref().is_none_or(|user| *user == entry.user)
            && self.operation.as_ref().is_none_or(|one| *one == entry.operation)
            && self.from_unix_ms.is_none_or(|from| entry.at_unix_ms >= from)
            && self.until_unix_ms.is_none_or(|until| entry.at_unix_ms < until)
            && self
                .text
                .as_ref()
                .is_none_or(|text| line.to_lowercase().contains(&text.to_lowercase()))
    }
}

/// An operation that the audit log records, and the fields that its requests can have.
#[derive(Clone)]
pub struct AuditedOperation {
    pub id: &'static str,
    pub body: KnownFields,
    pub query: KnownFields,
    /// Reads the entity that the operation changes.
    pub reader: Option<BoundStateReader>,
}

/// Extension of a request in which the handler stores the body for the log.
#[derive(Clone, Default)]
pub struct SentBody {
    known: KnownFields,
    value: Arc<OnceLock<Value>>,
}

impl SentBody {
    pub fn new(known: KnownFields) -> SentBody {
        SentBody {
            known,
            value: Arc::default(),
        }
    }

    /// Stores a body, if it is JSON.
    pub fn store(&self, bytes: &[u8]) {
        if let Ok(mut value) = serde_json::from_slice::<Value>(bytes) {
            self.known.redact(&mut value);
            let is_long = value.to_string().len() > BODY_BYTES_MAX;
            let value = if is_long {
                format!("{} bytes", bytes.len()).into()
            } else {
                value
            };
            // The first value is the body of the request.
            let _ = self.value.set(value);
        }
    }

    pub fn take(&self) -> Option<Value> {
        self.value.get().cloned()
    }
}

/// Whether an operation is logged.
pub fn is_change(operation: &str) -> bool {
    !NO_CHANGE.contains(&operation)
}

/// Without a directory, entries are discarded.
#[derive(Default)]
pub struct Audit {
    directory: Option<PathBuf>,
    writer: Mutex<AuditWriter>,
}

#[derive(Default)]
struct AuditWriter {
    file: Option<File>,
    bytes: u64,
    /// Number of the last entry.
    number: u64,
    /// Entries that could not be written, oldest first.
    unwritten: VecDeque<AuditEntry>,
    /// Entries that are only in the server log.
    lost: u64,
    /// Why the last write failed. The file may end in the middle of a line.
    failure: Option<String>,
}

/// Why entries are not on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditFailure {
    pub reason: String,
    /// Entries in memory.
    pub waiting: usize,
    /// Entries that are only in the server log.
    pub lost: u64,
}

impl fmt::Display for AuditFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({} entries wait, {} are only in the server log)",
            self.reason, self.waiting, self.lost
        )
    }
}

impl Audit {
    pub fn open(directory: Option<&Path>) -> io::Result<Audit> {
        let Some(directory) = directory else {
            return Ok(Audit::default());
        };
        let file = append(directory)?;
        let bytes = file.metadata()?.len();
        let mut audit = Audit {
            directory: Some(directory.to_owned()),
            writer: Mutex::default(),
        };
        let number = (0..=OLD_FILES).find_map(|age| audit.last_number(age)).unwrap_or(0);
        audit.writer = Mutex::new(AuditWriter {
            file: Some(file),
            bytes,
            number,
            ..AuditWriter::default()
        });
        Ok(audit)
    }

    /// Writes an entry and assigns its number. If writing fails, the entry goes to the server log, and waits.
    pub fn write(&self, mut entry: AuditEntry) {
        if self.directory.is_none() {
            return;
        }
        let mut writer = self.lock();
        writer.number += 1;
        entry.number = writer.number;
        let logged = entry.clone();
        if writer.unwritten.len() >= UNWRITTEN_MAX {
            writer.lost += 1;
        } else {
            writer.unwritten.push_back(entry);
        }
        self.write_waiting(&mut writer);
        if let Some(error) = &writer.failure {
            error!(%error, user = logged.user, operation = logged.operation, path = logged.path, status = logged.status,
                "writing the audit log failed; retrying every second");
        }
    }

    /// Writes the entries that wait. Returns why some are not on disk.
    pub fn retry(&self) -> Option<AuditFailure> {
        let mut writer = self.lock();
        self.write_waiting(&mut writer);
        let reason = writer.failure.clone()?;
        Some(AuditFailure {
            reason,
            waiting: writer.unwritten.len(),
            lost: writer.lost,
        })
    }

    /// Writes the entries that wait, in order.
    fn write_waiting(&self, writer: &mut AuditWriter) {
        while let Some(entry) = writer.unwritten.pop_front() {
            if let Err(error) = self.reopen(writer).and_then(|()| self.try_write(writer, &entry)) {
                writer.unwritten.push_front(entry);
                writer.failure = Some(error.to_string());
                return;
            }
            writer.failure = None;
        }
    }

    /// After a failure, opens the file again and terminates a line that was written in part.
    fn reopen(&self, writer: &mut AuditWriter) -> io::Result<()> {
        let (Some(_), Some(directory)) = (&writer.failure, &self.directory) else {
            return Ok(());
        };
        let file = append(directory)?;
        writer.bytes = file.metadata()?.len();
        writer.file = Some(file);
        Ok(())
    }

    fn try_write(&self, writer: &mut AuditWriter, entry: &AuditEntry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        if writer.bytes > 0 && writer.bytes + line.len() as u64 > FILE_BYTES_MAX {
            self.rotate(writer)?;
        }
        if let Some(file) = &mut writer.file {
            file.write_all(&line)?;
            file.sync_data()?;
            writer.bytes += line.len() as u64;
        }
        Ok(())
    }

    fn rotate(&self, writer: &mut AuditWriter) -> io::Result<()> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        for age in (0..OLD_FILES).rev() {
            match fs::rename(path(directory, age), path(directory, age + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        writer.file = Some(append(directory)?);
        writer.bytes = 0;
        Ok(())
    }

    /// Returns up to `limit` entries with numbers below `before`, newest first, and whether there may be more.
    pub fn read(&self, filter: &AuditFilter, before: u64, limit: usize) -> (Vec<AuditEntry>, bool) {
        let mut found = Vec::new();
        for entry in self.lock().unwritten.iter().rev() {
            let line = serde_json::to_string(entry).unwrap_or_default();
            if entry.number < before && filter.matches(entry, &line) {
                if found.len() == limit {
                    return (found, true);
                }
                found.push(entry.clone());
            }
        }
        for age in 0..=OLD_FILES {
            for line in self.text(age).lines().rev() {
                let Ok(entry) = serde_json::from_str::<AuditEntry>(line) else {
                    continue;
                };
                if entry.number < before && filter.matches(&entry, line) {
                    if found.len() == limit {
                        return (found, true);
                    }
                    found.push(entry);
                }
            }
        }
        (found, false)
    }

    fn last_number(&self, age: usize) -> Option<u64> {
        let text = self.text(age);
        let mut entries = text.lines().rev().map(serde_json::from_str::<AuditEntry>);
        entries.find_map(|entry| Some(entry.ok()?.number))
    }

    /// Readers skip a line that a crash has truncated.
    fn text(&self, age: usize) -> String {
        let bytes = self
            .directory
            .as_ref()
            .and_then(|directory| fs::read(path(directory, age)).ok());
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    }

    fn lock(&self) -> MutexGuard<'_, AuditWriter> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn path(directory: &Path, age: usize) -> PathBuf {
    match age {
        0 => directory.join(FILE),
        age => directory.join(format!("audit.{age}.jsonl")),
    }
}

/// Opens the current file, and terminates a line that a crash has truncated.
fn append(directory: &Path) -> io::Result<File> {
    let path = path(directory, 0);
    let is_cut = last_byte(&path).is_ok_and(|last| last.is_some_and(|last| last != b'\n'));
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    if is_cut {
        file.write_all(b"\n")?;
    }
    Ok(file)
}

/// Returns the last byte of a file; `None` if it is empty.
fn last_byte(path: &Path) -> io::Result<Option<u8>> {
    let mut file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(None);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(Some(last[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(user: &str, path: String) -> AuditEntry {
        AuditEntry {
            number: 0,
            at_unix_ms: 1,
            user: user.into(),
            namespace: None,
            address: "127.0.0.1".into(),
            operation: "add_user".into(),
            method: "POST".into(),
            path,
            body: None,
            before: None,
            after: None,
            status: 201,
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn entries_wait_while_the_disk_is_full() {
        let directory = std::env::temp_dir().join(format!("tidewire-audit-full-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let audit = Audit::open(Some(&directory)).unwrap();
        audit.write(entry("ada", "1".into()));
        assert_eq!(audit.retry(), None);
        // A directory in place of the file: opening it fails, as does writing to the full device.
        let (file, aside) = (directory.join(FILE), directory.join("aside"));
        fs::rename(&file, &aside).unwrap();
        fs::create_dir(&file).unwrap();
        audit.lock().file = Some(OpenOptions::new().write(true).open("/dev/full").unwrap());
        for n in 2..UNWRITTEN_MAX + 4 {
            audit.write(entry("ada", n.to_string()));
        }
        let failure = audit.retry().unwrap();
        assert_eq!((failure.waiting, failure.lost), (UNWRITTEN_MAX, 2));
        let (newest, _) = audit.read(&AuditFilter::default(), u64::MAX, 1);
        assert_eq!(
            newest[0].number,
            UNWRITTEN_MAX as u64 + 1,
            "entries that wait can be read"
        );
        // The disk has space again; an entry was written in part.
        fs::remove_dir(&file).unwrap();
        fs::rename(&aside, &file).unwrap();
        let mut cut = OpenOptions::new().append(true).open(&file).unwrap();
        cut.write_all(b"{\"number\":2,\"at").unwrap();
        assert_eq!(audit.retry(), None);
        audit.write(entry("eve", "after".into()));
        let (all, _) = audit.read(&AuditFilter::default(), u64::MAX, 10_000);
        assert_eq!(all.len(), UNWRITTEN_MAX + 2);
        assert!(all.windows(2).all(|pair| pair[0].number > pair[1].number));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn entries_of_earlier_versions_are_read() {
        let old = r#"{"number":7,"at_unix_ms":1,"user":"ada","address":"::1","operation":"login","method":"POST","path":"/api/v1/login","status":200}"#;
        let entry: AuditEntry = serde_json::from_str(old).unwrap();
        assert_eq!((entry.number, entry.before, entry.after), (7, None, None));
    }

    #[test]
    fn rotation_and_numbers_survive_restart_and_truncation() {
        let directory = std::env::temp_dir().join(format!("tidewire-audit-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let audit = Audit::open(Some(&directory)).unwrap();
        let long = "x".repeat(1024 * 1024);
        for n in 0..30 {
            audit.write(entry("ada", format!("{n}{long}")));
        }
        let (newest, is_more) = audit.read(&AuditFilter::default(), u64::MAX, 2);
        assert_eq!((newest[0].number, newest[1].number, is_more), (30, 29, true));
        let (all, _) = audit.read(&AuditFilter::default(), u64::MAX, 1000);
        assert_eq!(all.len(), 3 * OLD_FILES + 3, "three per file, without the oldest files");
        let bytes: u64 = fs::read_dir(&directory)
            .unwrap()
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum();
        assert!(bytes <= FILE_BYTES_MAX * (OLD_FILES as u64 + 1));
        drop(audit);
        let mut file = OpenOptions::new().append(true).open(directory.join(FILE)).unwrap();
        file.write_all(b"{\"number\":31,\"at_un").unwrap();
        let audit = Audit::open(Some(&directory)).unwrap();
        audit.write(entry("eve", "short".into()));
        let filter = AuditFilter {
            user: Some("eve".into()),
            text: Some("SHORT".into()),
            ..AuditFilter::default()
        };
        let (found, is_more) = audit.read(&filter, u64::MAX, 10);
        assert_eq!((found.len(), found[0].number, is_more), (1, 31, false));
        fs::remove_dir_all(&directory).unwrap();
    }
}
