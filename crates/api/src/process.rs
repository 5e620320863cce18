//! Memory, processor time and file descriptors of this process. Linux only, from `/proc`; on other systems the values
//! are unknown.

use std::fs;

use schemars::JsonSchema;
use serde::Serialize;

/// Resources of this process; `null`: unknown.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub struct ProcessView {
    /// Resident memory.
    pub resident_bytes: Option<u64>,
    /// Processor time of all threads, user and system.
    pub cpu_seconds: Option<f64>,
    /// Bytes written to disks, in whole pages.
    pub written_bytes: Option<u64>,
    pub threads: Option<u64>,
    pub open_files: Option<u64>,
    /// Soft limit of open files.
    pub open_files_max: Option<u64>,
}

/// Clock ticks of `/proc/<pid>/stat`. User space sees 100 on all Linux architectures.
const TICKS_PER_SECOND: f64 = 100.0;

impl ProcessView {
    /// Counting the open files takes milliseconds with ten thousand connections: too slow for every second.
    pub fn now() -> ProcessView {
        let open_files = match fs::read_dir("/proc/self/fd") {
            Ok(entries) => Some(entries.count() as u64),
            // Counting needs a descriptor, and there is none left.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => open_files_max(),
            Err(_) => None,
        };
        ProcessView {
            open_files,
            ..ProcessView::without_files()
        }
    }

    /// Like `now`, without the number of open files.
    pub fn without_files() -> ProcessView {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
        ProcessView {
            resident_bytes: field(&status, "VmRSS:").map(|kib| kib * 1024),
            cpu_seconds: cpu_seconds(&stat),
            written_bytes: field(&io, "write_bytes:"),
            threads: field(&status, "Threads:"),
            open_files: None,
            open_files_max: open_files_max(),
        }
    }
}

/// Returns the number after a name in `/proc/self/status` or `/proc/self/io`.
fn field(file: &str, name: &str) -> Option<u64> {
    let line = file.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// The second field, the name of the program, may contain spaces and parentheses. So this skips to its last
/// parenthesis.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

/// Needs no descriptor, unlike `/proc/self/limits`.
fn open_files_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 7 0 1 2 3";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        assert_eq!(field("Name:\tx\nVmRSS:\t    1234 kB\n", "VmRSS:"), Some(1234));
        let io = "wchar: 9\nwrite_bytes: 4096\ncancelled_write_bytes: 7\n";
        assert_eq!(field(io, "write_bytes:"), Some(4096));
        assert_eq!(cpu_seconds(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_memory_and_open_files() {
        let view = ProcessView::now();
        assert!(view.resident_bytes.unwrap() > 100_000);
        assert!(view.open_files.unwrap() >= 3);
        assert!(view.threads.unwrap() >= 1);
    }
}
