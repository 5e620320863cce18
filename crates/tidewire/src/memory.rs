//! What the allocator may keep of the memory that is free: little, for an edge device wants it back.

// For glibc's `mallopt` and `malloc_trim`.
#![allow(unsafe_code)]

/// glibc learns from the first large block that is freed to keep such blocks for later. Here these are the 19 MiB of a password
/// hash and the buffers of a burst. Before any other thread runs.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_large_blocks_back() {
    const LARGE_BYTES: libc::c_int = 256 * 1024;
    // SAFETY: `mallopt` changes a setting of the allocator and touches no memory of ours; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

/// Small blocks are freed into the heap of the thread that made them, which gives back only what is free at its end: twenty
/// thousand deleted retained messages would stay resident until that thread needs their room again. So what is free in
/// between goes back, too, twice a minute.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn give_small_blocks_back() -> std::io::Result<()> {
    const PERIOD: std::time::Duration = std::time::Duration::from_secs(30);
    /// Nothing to gain below.
    const WORTH_BYTES: u64 = 8 << 20;
    let look = || {
        loop {
            std::thread::sleep(PERIOD);
            if resident_bytes().is_some_and(|bytes| bytes > WORTH_BYTES) {
                // SAFETY: `malloc_trim` takes the allocator's own locks and gives back pages that hold no block in use.
                unsafe { libc::malloc_trim(0) };
            }
        }
    };
    std::thread::Builder::new().name("memory".into()).spawn(look).map(drop)
}

/// Of this process, files mapped into it not counted.
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
