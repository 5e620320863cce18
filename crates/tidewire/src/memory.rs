//! Gives memory back that the process does not need at present. Edge devices need it for other programs.

// For glibc's `mallopt` and `malloc_trim`, and for `madvise`.
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
            if resident_bytes("RssAnon:").is_some_and(|bytes| bytes > WORTH_BYTES) {
                // SAFETY: `malloc_trim` takes the locks of the allocator and returns pages without a used block.
                unsafe { libc::malloc_trim(0) };
            }
        }
    };
    std::thread::Builder::new().name("memory".into()).spawn(look).map(drop)
}

/// Returns a line of `/proc/self/status`: "RssAnon:" is the resident memory of this process without mapped files.
#[cfg(all(target_os = "linux", any(target_env = "gnu", test)))]
fn resident_bytes(line: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|text| text.strip_prefix(line))?;
    let kib: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

/// The start runs code of most parts of the program, and the kernel maps 64 KiB around each page that it needs, so two
/// thirds of the program count as resident. Most of this code never runs again. Its pages stay in the kernel's cache: a
/// page that is needed is mapped again without reading the file, unless the kernel has dropped it.
#[cfg(target_os = "linux")]
pub fn unmap_code_of_the_start() {
    // Breakpoints of a debugger are in private copies of pages, which would be lost.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    if tracer.is_none_or(|pid| pid.trim() != "0") {
        return;
    }
    advise_about_constant_segments(libc::MADV_DONTNEED);
}

/// Calls `madvise` for the code and constants of the program and of its shared libraries.
#[cfg(target_os = "linux")]
fn advise_about_constant_segments(mut advice: libc::c_int) {
    unsafe extern "C" fn advise(
        object: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        advice: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: the loader passes a valid object, whose program headers are mapped as long as it is; `advice` is the
        // last argument of `dl_iterate_phdr` below.
        let (base, segments, advice) = unsafe {
            let object = &*object;
            let segments = std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum));
            (object.dlpi_addr, segments, *advice.cast::<libc::c_int>())
        };
        let page = rustix::param::page_size();
        for segment in segments {
            if segment.p_type != libc::PT_LOAD || segment.p_flags & libc::PF_W != 0 {
                continue;
            }
            let start = base.wrapping_add(segment.p_vaddr) as usize;
            let aligned = start & !(page - 1);
            let bytes = start + segment.p_memsz as usize - aligned;
            // SAFETY: a private mapping of a file, to which nothing writes: no debugger is attached, and Linux
            // distributions have no libraries whose code is relocated (DT_TEXTREL). When its pages are used again, the
            // kernel maps them with the same content. A failure changes nothing.
            unsafe { libc::madvise(std::ptr::without_provenance_mut(aligned), bytes, advice) };
        }
        0
    }
    // SAFETY: `advise` does not unwind and keeps no pointer.
    unsafe { libc::dl_iterate_phdr(Some(advise), (&raw mut advice).cast()) };
}

#[cfg(not(target_os = "linux"))]
pub fn unmap_code_of_the_start() {}

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
    fn code_is_unmapped_and_runs_again() {
        advise_about_constant_segments(libc::MADV_POPULATE_READ);
        let mapped = resident_bytes("RssFile:").expect("Linux has it");
        unmap_code_of_the_start();
        let left = resident_bytes("RssFile:").expect("Linux has it");
        assert!(left < mapped / 2, "{left} of {mapped} bytes are still mapped");
    }
}
