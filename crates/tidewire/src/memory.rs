//! Limits the memory that the process keeps without need. Edge devices need it for other programs.

// For `madvise`, and for glibc's `mallopt` and `malloc_trim`.
#![allow(unsafe_code)]

/// glibc keeps blocks of the size of the first large block that is freed. Here these would be the 19 MiB of a password
/// hash and the buffers of a burst. Called before any other thread runs.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_large_blocks_back() {
    const LARGE_BYTES: libc::c_int = 256 * 1024;
    // SAFETY: `mallopt` changes a setting of the allocator and touches no memory of ours; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

/// Small blocks return to the heap of the thread that allocated them, which returns only free memory at its end.
/// Twenty thousand deleted retained messages would stay resident until that thread needs the space again. So free
/// memory in between is returned twice a minute.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_small_blocks_back() -> std::io::Result<()> {
    const PERIOD: std::time::Duration = std::time::Duration::from_secs(30);
    /// Below this size, trimming gains nothing.
    const WORTH_BYTES: u64 = 8 << 20;
    let look = || {
        loop {
            std::thread::sleep(PERIOD);
            if resident_bytes().is_some_and(|bytes| bytes > WORTH_BYTES) {
                // SAFETY: `malloc_trim` takes the locks of the allocator and returns pages without a used block.
                unsafe { libc::malloc_trim(0) };
            }
        }
    };
    std::thread::Builder::new().name("memory".into()).spawn(look).map(drop)
}

/// Returns memory that only the start needed: free blocks, and the pages of the program and its libraries. A page that
/// is used again is mapped from the page cache or read from the file. Called when the server is ready.
#[cfg(target_os = "linux")]
pub fn give_start_memory_back() {
    if let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") {
        for pages in unchanged_file_mappings(&smaps) {
            // SAFETY: The mapping is not writable and no page of it was changed, so the next access finds the same
            // bytes.
            unsafe { libc::madvise(pages.start as *mut libc::c_void, pages.len(), libc::MADV_DONTNEED) };
        }
    }
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes the locks of the allocator and returns pages without a used block.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Returns the addresses of mappings of files that are not writable and have no changed page. Relocations change pages,
/// and the dynamic linker then makes the mapping read-only: those pages must stay.
#[cfg(target_os = "linux")]
fn unchanged_file_mappings(smaps: &str) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        // A mapping: addresses, permissions, offset, device, inode, path. Its properties follow, each with a colon.
        let mut fields = line.split_ascii_whitespace();
        let (first, second) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        if first == "Anonymous:" && second == "0" {
            found.extend(current.take());
        } else if let Some((start, end)) = first.split_once('-') {
            let is_private_file =
                second.starts_with("r-") && second.ends_with('p') && fields.nth(3).is_some_and(is_path);
            current = match (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)) {
                (Ok(start), Ok(end)) if is_private_file => Some(start..end),
                _ => None,
            };
        }
    }
    found
}

#[cfg(target_os = "linux")]
fn is_path(name: &str) -> bool {
    name.starts_with('/')
}

/// Resident memory of this process, without mapped files.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(not(target_os = "linux"))]
pub fn give_start_memory_back() {}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_large_blocks_back() {}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_small_blocks_back() -> std::io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_unchanged_read_only_file_mappings_are_returned() {
        let smaps = "\
5000-6000 r--p 00000000 fd:00 7    /usr/bin/tidewire
Size:                  4 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
6000-9000 r-xp 00001000 fd:00 7    /usr/bin/tidewire
Anonymous:             0 kB
9000-a000 r--p 00004000 fd:00 7    /usr/bin/tidewire
Anonymous:             4 kB
a000-b000 rw-p 00005000 fd:00 7    /usr/bin/tidewire
Anonymous:             0 kB
b000-c000 r--p 00000000 00:00 0
Anonymous:             0 kB
c000-d000 r--p 00000000 00:00 0    [vvar]
Anonymous:             0 kB
d000-e000 r--s 00000000 fd:00 9    /dev/zero
Anonymous:             0 kB
";
        assert_eq!(unchanged_file_mappings(smaps), [0x5000..0x6000, 0x6000..0x9000]);
    }

    #[test]
    fn program_runs_on_after_its_pages_were_returned() {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let own = only_unchanged_read_only_file_mappings_are_returned as fn() as usize;
        assert!(unchanged_file_mappings(&smaps).iter().any(|pages| pages.contains(&own)));
        give_start_memory_back();
        only_unchanged_read_only_file_mappings_are_returned();
    }
}
