//! The `tidewire` binary; everything is in the library beside it.

// For `mallopt`, once, before anything else runs.
#![allow(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    give_large_blocks_back();
    tidewire::cli::run(std::env::args_os())
}

/// glibc learns from the first large block that is freed to keep such blocks for later. Here these are the 19 MiB of a password
/// hash and the buffers of a burst, which an edge device wants back.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_large_blocks_back() {
    const LARGE_BYTES: libc::c_int = 256 * 1024;
    // SAFETY: `mallopt` changes a setting of the allocator and touches no memory of ours; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_large_blocks_back() {}
