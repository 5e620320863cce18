//! Writes the files: appends whole lines, starts new files, deletes the oldest. Blocking.
//!
//! - A file contains whole lines. A partial line after a crash or a full disk is truncated.
//! - The current file is locked against other processes and actions.
//! - Completed files are named by their completion time, so that their names sort by age.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use super::config::{FileActionConfig, FileSync};

const EXTENSION: &str = "jsonl";
/// Size of the blocks that are read backwards to find the end of the last whole line.
const TAIL_BYTES: u64 = 4096;

pub(super) struct RotatingWriter {
    directory: PathBuf,
    name: String,
    bytes_max: u64,
    age_max: Option<Duration>,
    files_max: usize,
    sync: FileSync,
    open: Option<OpenFile>,
}

struct OpenFile {
    file: File,
    /// Size of the whole lines in the file.
    bytes: u64,
    since: SystemTime,
}

impl RotatingWriter {
    pub fn new(config: &FileActionConfig) -> RotatingWriter {
        RotatingWriter {
            directory: config.directory.clone(),
            name: config.name.clone(),
            bytes_max: config.file_bytes_max,
            age_max: config.file_age_max_s.map(Duration::from_secs),
            files_max: config.files_max as usize,
            sync: config.sync,
            open: None,
        }
    }

    /// Appends whole lines. After an error none of them counts as written, and the file is opened again.
    pub fn append(&mut self, lines: &[u8], now: SystemTime) -> Result<(), String> {
        self.rotate_if_due(now)?;
        let sync = self.sync;
        let path = self.path();
        let open = self.open(now)?;
        let written = open.append(lines, sync);
        if let Err(error) = written {
            self.open = None;
            return Err(failure("write to", &path, &error));
        }
        Ok(())
    }

    /// Checks that the file can be opened for writing.
    pub fn check(&mut self, now: SystemTime) -> Result<(), String> {
        self.open(now).map(drop)
    }

    pub fn close(&mut self) {
        self.open = None;
    }

    fn path(&self) -> PathBuf {
        self.directory.join(format!("{}.{EXTENSION}", self.name))
    }

    fn open(&mut self, now: SystemTime) -> Result<&mut OpenFile, String> {
        if self.open.is_none() {
            fs::create_dir_all(&self.directory).map_err(|error| failure("create", &self.directory, &error))?;
            let path = self.path();
            self.open = Some(OpenFile::existing_or_new(&path, now).map_err(|error| failure("open", &path, &error))?);
        }
        Ok(self.open.as_mut().expect("it was opened above"))
    }

    fn rotate_if_due(&mut self, now: SystemTime) -> Result<(), String> {
        let (bytes_max, age_max) = (self.bytes_max, self.age_max);
        let open = self.open(now)?;
        let age = now.duration_since(open.since).unwrap_or_default();
        let is_old = age_max.is_some_and(|age_max| age >= age_max);
        if open.bytes == 0 || !(open.bytes >= bytes_max || is_old) {
            return Ok(());
        }
        let (from, to) = (self.path(), self.completed_path(now));
        self.open = None;
        fs::rename(&from, &to).map_err(|error| failure("rename", &from, &error))?;
        self.sync_directory()?;
        self.remove_oldest()
    }

    /// Returns a name that sorts behind those of all completed files.
    fn completed_path(&self, now: SystemTime) -> PathBuf {
        let time = Timestamp::try_from(now)
            .unwrap_or_default()
            .strftime("%Y%m%dT%H%M%S%.6fZ");
        let mut path = self.directory.join(format!("{}-{time}.{EXTENSION}", self.name));
        let mut number = 1;
        while path.exists() {
            path = self
                .directory
                .join(format!("{}-{time}-{number:04}.{EXTENSION}", self.name));
            number += 1;
        }
        path
    }

    fn sync_directory(&self) -> Result<(), String> {
        match self.sync {
            FileSync::Os => Ok(()),
            FileSync::Fsync => File::open(&self.directory)
                .and_then(|directory| directory.sync_all())
                .map_err(|error| failure("sync", &self.directory, &error)),
        }
    }

    fn remove_oldest(&self) -> Result<(), String> {
        let mut completed = self
            .completed_files()
            .map_err(|error| failure("read", &self.directory, &error))?;
        completed.sort();
        // The current file counts as well.
        let excess = (completed.len() + 1).saturating_sub(self.files_max);
        for path in &completed[..excess] {
            fs::remove_file(path).map_err(|error| failure("delete", path, &error))?;
        }
        Ok(())
    }

    fn completed_files(&self) -> io::Result<Vec<PathBuf>> {
        let (prefix, suffix) = (format!("{}-", self.name), format!("Z.{EXTENSION}"));
        // Matches `name-20260102T030405.000000Z.jsonl`, or with `-0001` behind the Z, and no files of other programs.
        let is_completed = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(time) = name.strip_prefix(&prefix) else {
                return false;
            };
            let digits = time.bytes().take_while(|byte| byte.is_ascii_digit()).count();
            digits == 8 && (time.ends_with(&suffix) || time.contains("Z-")) && time.ends_with(EXTENSION)
        };
        let entries = fs::read_dir(&self.directory)?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        Ok(paths
            .collect::<io::Result<Vec<_>>>()?
            .into_iter()
            .filter(is_completed)
            .collect())
    }
}

impl OpenFile {
    fn existing_or_new(path: &Path, now: SystemTime) -> io::Result<OpenFile> {
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)?;
        file.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                io::Error::other("another action or process writes to it; change the option `name`")
            }
            TryLockError::Error(error) => error,
        })?;
        let metadata = file.metadata()?;
        let bytes = end_of_last_line(&mut file, metadata.len())?;
        if bytes < metadata.len() {
            file.set_len(bytes)?;
        }
        file.seek(SeekFrom::Start(bytes))?;
        let since = match bytes {
            0 => now,
            _ => metadata.created().unwrap_or(now),
        };
        Ok(OpenFile { file, bytes, since })
    }

    fn append(&mut self, lines: &[u8], sync: FileSync) -> io::Result<()> {
        let result = self.file.write_all(lines).and_then(|()| match sync {
            FileSync::Fsync => self.file.sync_data(),
            FileSync::Os => Ok(()),
        });
        if result.is_err() {
            // Removes the failed lines, which are sent again. Opening the file would truncate only a partial line.
            let _ = self.file.set_len(self.bytes);
        } else {
            self.bytes += lines.len() as u64;
        }
        result
    }
}

fn end_of_last_line(file: &mut File, length: u64) -> io::Result<u64> {
    let mut end = length;
    let mut part = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(TAIL_BYTES);
        part.clear();
        file.seek(SeekFrom::Start(start))?;
        file.take(end - start).read_to_end(&mut part)?;
        if let Some(at) = part.iter().rposition(|&byte| byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

fn failure(operation: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {operation} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_completed_at_its_age_limit() {
        let directory = std::env::temp_dir().join(format!("tidewire-file-age-{}", std::process::id()));
        let config = serde_json::json!({"directory": directory, "file_age_max_s": 60});
        let config = serde_json::from_value(config).expect("valid options");
        let mut writer = RotatingWriter::new(&config);
        let begin = SystemTime::now();
        let mut write = |text: &str, after_s| {
            writer
                .append(text.as_bytes(), begin + Duration::from_secs(after_s))
                .expect("it is writable")
        };
        write("1\n", 0);
        write("2\n", 59);
        write("3\n", 60);
        write("4\n", 119);
        let current = directory.join("messages.jsonl");
        let completed = writer.completed_files().expect("it is readable");
        let read = |path: &Path| fs::read_to_string(path).expect("it is there");
        assert_eq!(completed.iter().map(|path| read(path)).collect::<Vec<_>>(), ["1\n2\n"]);
        assert_eq!(read(&current), "3\n4\n");
        fs::remove_dir_all(directory).expect("it was made above");
    }
}
