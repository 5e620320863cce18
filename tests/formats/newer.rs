//! The data directory of a newer build is refused with one sentence: the file, the version, the supported version, and
//! the way out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{CONFIG, fixtures, tar, unpack};
use crate::support::*;

const JOURNAL: &str = "journal";
const DEVICE_LOG: &str = "platform/log";
const BUFFER: &str = "integration/buffers/http-hook";

/// A file whose version is raised, relative to the data directory.
type Raise = fn(&Path) -> PathBuf;

/// Files as the killed server left them.
const KILLED: &[(&str, Raise)] = &[
    ("journal record version", |data| raise_record_version(data, JOURNAL)),
    ("device log record version", |data| {
        raise_record_version(data, DEVICE_LOG)
    }),
    ("buffer record version", |data| {
        raise_record_version(data, &format!("{BUFFER}/journal"))
    }),
    ("journal record kind", |data| change_record_kind(data, JOURNAL)),
    ("device log record kind", |data| change_record_kind(data, DEVICE_LOG)),
    ("buffer record kind", |data| {
        change_record_kind(data, &format!("{BUFFER}/journal"))
    }),
    ("side file", |data| {
        let path = PathBuf::from(BUFFER).join("aside");
        fs::write(data.join(&path), "tidewire aside 2 and more").expect("the directory exists");
        path
    }),
];

/// Files after a complete shutdown.
const CLOSED: &[(&str, Raise)] = &[
    ("journal segment", |data| raise_segment(data, JOURNAL)),
    ("device log segment", |data| raise_segment(data, DEVICE_LOG)),
    ("buffer segment", |data| {
        raise_segment(data, &format!("{BUFFER}/journal"))
    }),
    ("journal checkpoint", |data| raise_checkpoint(data, JOURNAL)),
    ("device log checkpoint", |data| raise_checkpoint(data, DEVICE_LOG)),
    ("buffer checkpoint", |data| {
        raise_checkpoint(data, &format!("{BUFFER}/journal"))
    }),
    ("time series", |data| {
        // magic 8 | version | bytes of the body | crc32c of version, bytes and body | body
        patch(data, PathBuf::from("platform/timeseries/manifest"), |bytes| {
            bytes[8] = 2;
            let checksum = crc32c(&[&bytes[8..16], &bytes[20..]]);
            bytes[16..20].copy_from_slice(&checksum);
        })
    }),
    ("entities", |data| {
        patch(data, PathBuf::from("platform/entities.sqlite"), |bytes| {
            // PRAGMA user_version, big-endian.
            bytes[63] = 200;
        })
    }),
    ("stores", |data| {
        patch(data, PathBuf::from("stores.json"), |bytes| {
            let text = String::from_utf8_lossy(bytes);
            *bytes = text.replace("\"format\": 1", "\"format\": 2").into_bytes();
        })
    }),
];

#[test]
fn newer_versions_of_files_and_records_are_refused() {
    let mut server = Server::start(&Config::new(CONFIG));
    server.kill();
    let killed = fixtures().join("data-0.1.0.tar.gz");
    for (what, raise) in KILLED {
        refuses(&mut server, &killed, what, *raise);
    }
    unpack(&server, &killed);
    server.spawn_again();
    server.wait_until_ready();
    server.terminate(PATIENCE);
    server.kill();
    tar(server.dir(), &["-czf", "closed.tar.gz", "data"]);
    let closed = server.dir().join("closed.tar.gz");
    for (what, raise) in CLOSED {
        refuses(&mut server, &closed, what, *raise);
    }
    backup_is_refused(&server);
}

/// Starts the server on the changed data. Without one of its buffers it continues, and refuses only that.
fn refuses(server: &mut Server, archive: &Path, what: &str, raise: Raise) {
    unpack(server, archive);
    let data = server.dir().join("data");
    let file = data.join(raise(&data));
    let logged = server.log().len();
    server.spawn_again();
    let is_refused = |log: &str| {
        let version = log.contains("version 2, but this program supports versions up to 1. ")
            || log.contains("record version 200, but this program supports versions up to ")
            || log.contains("format version 200, but this program supports versions up to 3. ")
            || log.contains(": expected a known record kind. ");
        log.contains(&file.display().to_string())
            && version
            && log.contains("Use the newer tidewire that wrote it, or restore a backup")
    };
    let is_buffer = file.starts_with(data.join(BUFFER));
    let mut log = String::new();
    server.wait_until(&format!("{what} is refused"), |server| {
        let has_ended = !server.is_running();
        log = server.log().split_off(logged);
        has_ended || (is_buffer && is_refused(&log))
    });
    assert!(is_refused(&log), "{what}: {log}");
    server.kill();
}

fn backup_is_refused(server: &Server) {
    let tidewire = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidewire"));
        let output = command.current_dir(server.dir()).args(args).output();
        output.expect("the program starts")
    };
    unpack(server, &server.dir().join("closed.tar.gz"));
    let made = tidewire(&["backup", "--data-dir", "data", "--to", "copy"]);
    assert!(made.status.success(), "{made:?}");
    patch(server.dir(), PathBuf::from("copy/backup.json"), |bytes| {
        let text = String::from_utf8_lossy(bytes);
        *bytes = text.replace("\"format\": 1", "\"format\": 2").into_bytes();
    });
    let refused = tidewire(&["restore", "--data-dir", "again", "--from", "copy"]);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(
        error.contains("copy/backup.json has format version 2, but this program supports versions up to 1. "),
        "{error}"
    );
}

/// Changes a file and returns its path.
fn patch(directory: &Path, path: PathBuf, change: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = fs::read(directory.join(&path)).expect("the file exists");
    let before = bytes.clone();
    change(&mut bytes);
    assert!(bytes != before, "{} is unchanged", path.display());
    fs::write(directory.join(&path), bytes).expect("the file is writable");
    path
}

/// Returns the segment in which replay starts, and the offset of the first block that is replayed.
fn start_of_replay(data: &Path, log: &str) -> (PathBuf, usize) {
    let from = fs::read(data.join(log).join("checkpoint")).map_or(0, |checkpoint| u64_at(&checkpoint, 24));
    let mut bases: Vec<u64> = fs::read_dir(data.join(log))
        .expect("the log exists")
        .filter_map(|entry| {
            let name = entry.expect("the directory is readable").file_name();
            u64::from_str_radix(name.to_str()?.strip_suffix(".log")?, 16).ok()
        })
        .filter(|base| *base <= from)
        .collect();
    bases.sort_unstable();
    let base = bases.last().expect("the log has a segment");
    let segment = Path::new(log).join(format!("{base:016x}.log"));
    (segment, 64 + (from - base) as usize)
}

fn raise_segment(data: &Path, log: &str) -> PathBuf {
    let (segment, _) = start_of_replay(data, log);
    patch(data, segment, |bytes| raise_header(bytes))
}

fn raise_checkpoint(data: &Path, log: &str) -> PathBuf {
    patch(data, Path::new(log).join("checkpoint"), |bytes| raise_header(bytes))
}

/// Segments and checkpoints begin with the same fields.
fn raise_header(bytes: &mut [u8]) {
    bytes[8] = 2;
    let checksum = crc32c(&[&bytes[..12], &bytes[16..64]]);
    bytes[12..16].copy_from_slice(&checksum);
}

fn raise_record_version(data: &Path, log: &str) -> PathBuf {
    let (segment, at) = start_of_replay(data, log);
    patch(data, segment, |bytes| {
        bytes[at + 28] = 200;
        let checksum = crc32c(&[&bytes[24..32], &bytes[at..at + 24], &bytes[at + 28..at + 32]]);
        bytes[at + 24..at + 28].copy_from_slice(&checksum);
    })
}

/// Changes the kind of the first record that is replayed.
fn change_record_kind(data: &Path, log: &str) -> PathBuf {
    let (segment, at) = start_of_replay(data, log);
    patch(data, segment, |bytes| {
        let record = at + 32;
        let end = record + 8 + u64_at(bytes, record) as u32 as usize;
        bytes[record + 8] = 200;
        let checksum = crc32c(&[&bytes[record..record + 4], &bytes[record + 8..end]]);
        bytes[record + 4..record + 8].copy_from_slice(&checksum);
    })
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the file is long enough"))
}

fn crc32c(parts: &[&[u8]]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for byte in parts.concat() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82F6_3B78 & 0_u32.wrapping_sub(crc & 1));
        }
    }
    (!crc).to_le_bytes()
}
