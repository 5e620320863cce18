//! Limits, memory, kernel settings and the clock.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

use super::Finding;
use crate::process_limits;

/// Below this number of open files, a warning says how many clients fit.
const OPEN_FILES_MIN: u64 = 10_000;
const MEMORY_MIN: u64 = 128 << 20;
/// A file of the server may be newer than the clock by this time: file systems round times.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(60);
/// A clock before this time was never set. Certificates and sessions need a right one.
const OLDEST_TIME: &str = "2026-01-01T00:00:00Z";

/// Settings of the kernel, their least values and their meaning. A setting that does not exist here is no problem.
const KERNEL: [(&str, u64, &str); 2] = [
    ("net.core.somaxconn", 1024, "connections that wait to be accepted"),
    (
        "net.netfilter.nf_conntrack_max",
        65_536,
        "connections that the firewall tracks",
    ),
];

/// `server` is the process of the running server; without one, the limits of this process count.
pub fn open_files(server: Option<u32>) -> Finding {
    let limits = match server {
        Some(pid) => format!("/proc/{pid}/limits"),
        None => "/proc/self/limits".to_owned(),
    };
    match fs::read_to_string(&limits).ok().and_then(|text| hard_limit(&text)) {
        Some(limit) => judge_open_files(limit, server.is_some()),
        None => Finding::warning(
            "open files",
            format!("cannot read {limits}, for the limit of open files"),
            format!("sudo cat {limits}"),
        ),
    }
}

/// Reads the hard limit from `/proc/PID/limits`: the server raises its limit up to it.
fn hard_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_ascii_whitespace().nth(1)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

fn judge_open_files(limit: u64, is_server: bool) -> Finding {
    let whose = if is_server {
        "the server"
    } else {
        "a program of this user"
    };
    if limit >= OPEN_FILES_MIN {
        return Finding::ok("open files", format!("{whose} may open {limit} files, one per client"));
    }
    Finding::warning(
        "open files",
        format!("{whose} may open only {limit} files, and each client needs one"),
        "ulimit -Hn 1048576    # as root; as a service: LimitNOFILE=1048576 in `systemctl edit tidewire`",
    )
}

pub fn memory() -> Finding {
    match process_limits::memory_bytes() {
        None => Finding::ok("memory", "unknown"),
        Some(bytes) if bytes < MEMORY_MIN => Finding::warning(
            "memory",
            format!("{} MiB; limits that follow from memory will be small", bytes >> 20),
            "cat /proc/self/cgroup    # does a control group limit it (MemoryMax=, docker run --memory)?",
        ),
        Some(bytes) => Finding::ok("memory", format!("{} MiB", bytes >> 20)),
    }
}

pub fn kernel() -> Vec<Finding> {
    let present = KERNEL.into_iter().filter_map(|setting| {
        let path = format!("/proc/sys/{}", setting.0.replace('.', "/"));
        let value: u64 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
        Some((setting, value))
    });
    present
        .map(|((name, least, meaning), value)| match value < least {
            true => Finding::warning(
                "kernel",
                format!("{name} is {value}: the number of {meaning}"),
                format!("sudo sysctl -w {name}={}", least * 4),
            ),
            false => Finding::ok("kernel", format!("{name} is {value}")),
        })
        .collect()
}

pub fn clock(data_dir: &Path) -> Vec<Finding> {
    let now = SystemTime::now();
    let oldest: Timestamp = OLDEST_TIME.parse().expect("a valid date");
    if let Some(finding) = judge_clock(now, SystemTime::from(oldest), newest_file(data_dir)) {
        return vec![finding];
    }
    let shown = Timestamp::try_from(now).map_or_else(|_| "unknown".to_owned(), |now| format!("{now:.0}"));
    vec![match is_synchronised() {
        Some(false) => Finding::warning(
            "clock",
            format!("{shown}; it is not synchronised"),
            "sudo timedatectl set-ntp true",
        ),
        Some(true) => Finding::ok("clock", format!("{shown}, synchronised")),
        None => Finding::ok("clock", shown),
    }]
}

fn judge_clock(now: SystemTime, oldest: SystemTime, newest_file: Option<SystemTime>) -> Option<Finding> {
    const SET: &str = "sudo timedatectl set-ntp true    # or set it: sudo date -s 'YYYY-MM-DD HH:MM'";
    let shown =
        |time| Timestamp::try_from(time).map_or_else(|_| "?".to_owned(), |time: Timestamp| format!("{time:.0}"));
    if now < oldest {
        return Some(Finding::error(
            "clock",
            format!("{}: it was never set", shown(now)),
            SET,
        ));
    }
    let newest = newest_file.filter(|newest| *newest > now + CLOCK_TOLERANCE)?;
    let text = format!(
        "{}, but a file of the server was written at {}",
        shown(now),
        shown(newest)
    );
    Some(Finding::error("clock", text, SET))
}

/// Returns the time of the newest file in the data directory and its folders.
fn newest_file(data_dir: &Path) -> Option<SystemTime> {
    let times_in = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let times = entries.filter_map(|entry| entry.metadata().ok()?.modified().ok());
        times.max()
    };
    let folders = fs::read_dir(data_dir).ok()?.flatten();
    let inside = folders.filter_map(|entry| times_in(&entry.path()));
    inside.chain(times_in(data_dir)).max()
}

/// `None` if the system does not say it.
fn is_synchronised() -> Option<bool> {
    let output = Command::new("timedatectl")
        .args(["show", "--property=NTPSynchronized", "--value"])
        .output()
        .ok()?;
    match String::from_utf8_lossy(&output.stdout).trim() {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::Level;
    use super::*;

    #[test]
    fn hard_limit_of_open_files_is_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 20000                files\n";
        assert_eq!(hard_limit(limits), Some(20_000));
        assert_eq!(hard_limit("Max open files  1024  unlimited  files"), Some(u64::MAX));
        assert_eq!(hard_limit(""), None);
        assert_eq!(judge_open_files(9_999, true).level, Level::Warning);
        assert_eq!(judge_open_files(10_000, true).level, Level::Ok);
    }

    #[test]
    fn clock_that_went_back_or_was_never_set_is_an_error() {
        let oldest = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        let now = oldest + Duration::from_secs(1_000);
        let judge = |now, newest| judge_clock(now, oldest, newest).map(|finding| finding.level);
        assert_eq!(judge(now, None), None);
        assert_eq!(judge(now, Some(now + Duration::from_secs(60))), None);
        assert_eq!(judge(now, Some(now + Duration::from_secs(61))), Some(Level::Error));
        assert_eq!(judge(oldest - Duration::from_secs(1), None), Some(Level::Error));
    }
}
