//! Limits the free memory that the allocator keeps. Edge devices need it for other programs.

// For glibc's `mallopt` and `malloc_trim`.
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

/// Resident memory of this process, without mapped files.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_large_blocks_back() {}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_small_blocks_back() -> std::io::Result<()> {
    Ok(())
}
