//! The data directory: owner and rights, kind of file system, space, and the time of fdatasync.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access, statfs, statvfs};
use rustix::process::geteuid;

use super::Finding;

/// Kinds of file systems that need a warning [statfs(2)].
const KINDS: [(u64, &str, &str); 6] = [
    (0x0102_1994, "tmpfs", LOST_AT_RESTART),
    (0x8584_58f6, "ramfs", LOST_AT_RESTART),
    (0x794c_7630, "overlay", "the data ends with the container"),
    (0x6969, "NFS", NETWORK),
    (0xff53_4d42, "CIFS", NETWORK),
    (0xfe53_4d42, "SMB", NETWORK),
];
const LOST_AT_RESTART: &str = "the data is in memory and ends with the machine";
const NETWORK: &str = "fdatasync waits for the network, and may return before the data is on a disk";

const SPACE_MIN: u64 = 256 << 20;
const SPACE_WARNING: u64 = 1 << 30;
const FILES_MIN: u64 = 1_000;

/// Writes for the time of fdatasync, as a group commit of few messages makes them.
const SYNCS: usize = 32;
const SYNC_BYTES: usize = 4096;
/// The measurement ends early on a slow disk.
const SYNC_TIME_MAX: Duration = Duration::from_secs(5);
const SLOW_SYNC: Duration = Duration::from_millis(20);

pub fn findings(data_dir: &Path) -> Vec<Finding> {
    let Some(existing) = existing_part(data_dir) else {
        let text = format!("{} and its parents do not exist", data_dir.display());
        return vec![Finding::error(
            "data",
            text,
            format!("sudo mkdir -p {}", data_dir.display()),
        )];
    };
    let mut findings = rights(data_dir, &existing);
    findings.extend(kind(&existing));
    findings.extend(space(&existing));
    if findings.iter().all(|finding| finding.level < super::Level::Error) {
        findings.push(sync_time(&existing));
    }
    findings
}

/// Returns the directory, or the nearest of its parents that exists: the server creates the rest.
fn existing_part(data_dir: &Path) -> Option<PathBuf> {
    let named = data_dir.ancestors().map(|path| match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    });
    named.into_iter().find(|path| path.exists()).map(Path::to_owned)
}

fn rights(data_dir: &Path, existing: &Path) -> Vec<Finding> {
    let shown = existing.display();
    let Ok(about) = fs::metadata(existing) else {
        return vec![Finding::error(
            "data",
            format!("cannot read {shown}"),
            format!("ls -ld {shown}"),
        )];
    };
    if !about.is_dir() {
        let repair = "set node.data_dir to another path";
        return vec![Finding::error("data", format!("{shown} is not a directory"), repair)];
    }
    let user = geteuid().as_raw();
    if access(existing, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK).is_err() {
        let text = format!(
            "user {user} may not write to {shown}, which belongs to user {}",
            about.uid()
        );
        let repair = format!(
            "sudo chown -R {user} {shown}    # or check as its owner: sudo -u '#{}' tidewire doctor",
            about.uid()
        );
        return vec![Finding::error("data", text, repair)];
    }
    if existing != data_dir {
        let text = format!(
            "{} does not exist yet; the server creates it in {shown}",
            data_dir.display()
        );
        return vec![Finding::ok("data", text)];
    }
    let mode = about.permissions().mode() & 0o777;
    match mode & 0o077 {
        0 => vec![Finding::ok(
            "data",
            format!("{shown} belongs to user {} (mode {mode:o})", about.uid()),
        )],
        _ => vec![Finding::warning(
            "data",
            format!("other users may read {shown} (mode {mode:o})"),
            format!("chmod 700 {shown}"),
        )],
    }
}

fn kind(existing: &Path) -> Option<Finding> {
    // The type of the field differs between architectures.
    let found = statfs(existing).ok()?.f_type as u64 & 0xffff_ffff;
    let (_, name, problem) = KINDS.into_iter().find(|(kind, ..)| *kind == found)?;
    let text = format!("{} is on {name}: {problem}", existing.display());
    Some(Finding::warning(
        "file system",
        text,
        "set node.data_dir to a directory on a local disk, or mount a volume",
    ))
}

fn space(existing: &Path) -> Option<Finding> {
    let about = statvfs(existing).ok()?;
    let (free, total) = (about.f_bavail * about.f_frsize, about.f_blocks * about.f_frsize);
    // Some file systems have no fixed number of files.
    let is_out_of_files = about.f_files > 0 && about.f_favail < FILES_MIN;
    Some(judge_space(existing, free, total, is_out_of_files))
}

fn judge_space(existing: &Path, free: u64, total: u64, is_out_of_files: bool) -> Finding {
    let shown = existing.display();
    let repair = format!("sudo du -xh --max-depth=2 {shown} | sort -h | tail");
    let text = format!("{} MiB of {} MiB are free", free >> 20, total >> 20);
    match free {
        _ if is_out_of_files => Finding::error(
            "disk",
            "the file system can hold no more files",
            format!("df -i {shown}"),
        ),
        _ if free < SPACE_MIN => Finding::error("disk", text, repair),
        _ if free < SPACE_WARNING || free < total / 10 => Finding::warning("disk", text, repair),
        _ => Finding::ok("disk", text),
    }
}

fn sync_time(existing: &Path) -> Finding {
    match measure_syncs(existing) {
        Ok(times) => judge_sync_time(times),
        Err(error) => Finding::error(
            "fdatasync",
            format!("cannot write a file to {}: {error}", existing.display()),
            "dmesg | tail    # does the disk report errors?",
        ),
    }
}

/// Returns the times of fdatasync after each write to a new file, which is deleted again.
fn measure_syncs(existing: &Path) -> io::Result<Vec<Duration>> {
    let path = existing.join(format!("doctor-{}.tmp", std::process::id()));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    let times = measure_syncs_of(file);
    fs::remove_file(&path)?;
    times
}

fn measure_syncs_of(mut file: File) -> io::Result<Vec<Duration>> {
    let began = Instant::now();
    let mut times = Vec::with_capacity(SYNCS);
    while times.len() < SYNCS && began.elapsed() < SYNC_TIME_MAX {
        file.write_all(&[0x55; SYNC_BYTES])?;
        let before = Instant::now();
        file.sync_data()?;
        times.push(before.elapsed());
    }
    Ok(times)
}

fn judge_sync_time(mut times: Vec<Duration>) -> Finding {
    times.sort_unstable();
    let (Some(longest), Some(median)) = (times.last(), times.get(times.len() / 2)) else {
        return Finding::ok("fdatasync", "not measured");
    };
    let text = format!("takes {median:.1?} (median of {}), at most {longest:.1?}", times.len());
    match *median > SLOW_SYNC {
        true => Finding::warning(
            "fdatasync",
            format!("{text}: each acknowledgement at QoS 1 and 2 waits for it"),
            "use an SSD with power-loss protection, or accept losses at a power cut: durability.policy = \"os\"",
        ),
        false => Finding::ok("fdatasync", text),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn space_is_judged_by_bytes_share_and_files() {
        let judge = |free_mib: u64, total_mib: u64, is_out| {
            judge_space(Path::new("/"), free_mib << 20, total_mib << 20, is_out).level
        };
        assert_eq!(judge(255, 1_000, false), Level::Error);
        assert_eq!(judge(256, 1_000, false), Level::Warning);
        assert_eq!(judge(1_024, 2_000, false), Level::Ok);
        assert_eq!(judge(9_999, 100_000, false), Level::Warning);
        assert_eq!(judge(10_000, 100_000, false), Level::Ok);
        assert_eq!(judge(10_000, 100_000, true), Level::Error);
    }

    #[test]
    fn slow_fdatasync_is_a_warning() {
        let times = |ms| [1, ms, 200].map(Duration::from_millis).to_vec();
        assert_eq!(judge_sync_time(times(20)).level, Level::Ok);
        assert_eq!(judge_sync_time(times(21)).level, Level::Warning);
    }
}
