//! What the broker costs while it is measured: CPU time and resident memory of a process, from /proc.

use std::fs;
use std::time::Duration;

/// The kernel's USER_HZ, fixed at 100 on Linux for what /proc shows.
const TICKS_PER_SECOND: u64 = 100;

#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub cpu: Duration,
    pub resident_bytes: u64,
}

pub fn of(pid: u32) -> Result<Cost, String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|e| format!("process {pid}: {e}"))?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(|e| format!("process {pid}: {e}"))?;
    // The command in parentheses may contain spaces; fields are counted from behind it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = resident
        .and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .unwrap_or(0);
    Ok(Cost {
        cpu: Duration::from_millis((ticks(11) + ticks(12)) * 1000 / TICKS_PER_SECOND),
        resident_bytes: kilobytes * 1024,
    })
}
