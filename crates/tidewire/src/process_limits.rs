//! Limits that the operating system sets for this process: memory and threads.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, RwLock};
use std::thread;

/// Returns the memory that the process may use: the smallest of its address space limit, the limit of its control
/// group, and the machine's memory. `None`: unknown.
pub fn memory_bytes() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    let address_space = getrlimit(Resource::As).current;
    let control_group = fs::read_to_string("/proc/self/cgroup")
        .ok()
        .and_then(|groups| control_group_bytes(Path::new("/sys/fs/cgroup"), &groups));
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| total_bytes(&text));
    [address_space, control_group, machine].into_iter().flatten().min()
}

/// Returns the smallest limit of the process's control group and its parents. `groups` is `/proc/self/cgroup`.
fn control_group_bytes(root: &Path, groups: &str) -> Option<u64> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let unified = path.into_iter().flat_map(|path| {
        Path::new(path)
            .ancestors()
            .map(|group| root.join(group).join("memory.max"))
    });
    // Version 1. Inside a container, the own group is the root.
    let limits = unified.chain([root.join("memory.max"), root.join("memory/memory.limit_in_bytes")]);
    limits
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
        .min()
}

/// `meminfo` is `/proc/meminfo`.
fn total_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

/// Starts as many threads at the same time, and ends them again. Without this check, a start with too few threads would
/// end in the middle, because libraries panic if they cannot start a thread.
pub fn check_threads(needed: usize) -> Result<(), String> {
    let gate = Arc::new(RwLock::new(()));
    let closed = gate.write();
    let mut waiting = Vec::with_capacity(needed);
    let started: io::Result<()> = (0..needed).try_for_each(|_| {
        let gate = gate.clone();
        waiting.push(thread::Builder::new().spawn(move || drop(gate.read()))?);
        Ok(())
    });
    drop(closed);
    let count = waiting.len();
    for thread in waiting {
        // The threads do nothing that panics.
        let _ = thread.join();
    }
    started.map_err(|error| {
        format!(
            "the server needs about {needed} threads, and only {count} can be started: {error}; raise the limit of \
             threads (ulimit -u, LimitNPROC and TasksMax of systemd, pids.max of a container) or of memory (ulimit -v)"
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn smallest_limit_of_the_control_groups_counts() {
        let root = std::env::temp_dir().join(format!("tidewire-cgroup-{}", std::process::id()));
        let service = root.join("system.slice/tidewire.service");
        fs::create_dir_all(&service).unwrap();
        let groups = "1:name=systemd:/x\n0::/system.slice/tidewire.service\n";
        assert_eq!(control_group_bytes(&root, groups), None);
        fs::write(service.join("memory.max"), "max\n").unwrap();
        assert_eq!(control_group_bytes(&root, groups), None);
        fs::write(root.join("system.slice/memory.max"), "2000000000\n").unwrap();
        assert_eq!(control_group_bytes(&root, groups), Some(2_000_000_000));
        fs::write(service.join("memory.max"), "1000000000\n").unwrap();
        assert_eq!(control_group_bytes(&root, groups), Some(1_000_000_000));
        fs::create_dir_all(root.join("memory")).unwrap();
        fs::write(root.join("memory/memory.limit_in_bytes"), "500000000\n").unwrap();
        assert_eq!(control_group_bytes(&root, ""), Some(500_000_000));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn memory_of_the_machine_is_read() {
        assert_eq!(
            total_bytes("MemTotal:       24611932 kB\nMemFree: 1 kB\n"),
            Some(24_611_932 * 1024)
        );
        assert!(memory_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn threads_are_counted() {
        assert_eq!(check_threads(20), Ok(()));
    }
}
