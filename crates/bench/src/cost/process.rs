//! What a broker on this machine uses, read from `/proc/<pid>`: CPU time and context switches of all its threads, resident memory.

use std::fs;

use crate::observe::{Gauge, Usage};

/// The kernel's USER_HZ, fixed at 100 on Linux for what /proc shows.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug)]
pub struct Process {
    pid: u32,
    name: String,
}

impl Process {
    pub fn new(pid: u32) -> Result<Process, String> {
        let name =
            fs::read_to_string(format!("/proc/{pid}/comm")).map_err(|error| format!("process {pid}: {error}"))?;
        let name = name.trim().to_owned();
        let mut process = Process { pid, name };
        process.read()?;
        Ok(process)
    }

    fn file(&self, name: &str) -> Result<String, String> {
        fs::read_to_string(format!("/proc/{}/{name}", self.pid))
            .map_err(|error| format!("process {}: {error}", self.pid))
    }

    /// Voluntary and involuntary; a thread that ends takes its own along.
    fn switches(&self) -> (u64, u64) {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid))
            .into_iter()
            .flatten()
            .flatten();
        let statuses = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
        statuses.fold((0, 0), |(voluntary, involuntary), status| {
            (
                voluntary + number(&status, "voluntary_ctxt_switches:"),
                involuntary + number(&status, "nonvoluntary_ctxt_switches:"),
            )
        })
    }
}

impl Gauge for Process {
    fn pid(&self) -> Option<u32> {
        Some(self.pid)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self) -> Result<Usage, String> {
        let stat = self.file("stat")?;
        let status = self.file("status")?;
        // The command in parentheses may contain spaces; fields are counted from behind it.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let seconds = |at: usize| {
            fields
                .get(at)
                .and_then(|field| field.parse::<f64>().ok())
                .unwrap_or(0.0)
                / TICKS_PER_SECOND
        };
        let (voluntary_switches, involuntary_switches) = self.switches();
        let (user_s, system_s) = (seconds(11), seconds(12));
        Ok(Usage {
            cpu_s: user_s + system_s,
            user_s: Some(user_s),
            system_s: Some(system_s),
            resident_bytes: Some(number(&status, "VmRSS:") * 1024),
            resident_peak_bytes: Some(number(&status, "VmHWM:") * 1024),
            voluntary_switches: Some(voluntary_switches),
            involuntary_switches: Some(involuntary_switches),
        })
    }
}

/// The number behind a name in a file of lines like "VmRSS:    1234 kB"; 0 when it is not there.
fn number(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_process() {
        let mut process = Process::new(std::process::id()).unwrap();
        let usage = process.read().unwrap();
        assert!(usage.resident_bytes.unwrap() > 100_000, "{usage:?}");
        assert!(usage.resident_peak_bytes >= usage.resident_bytes, "{usage:?}");
        assert!(usage.voluntary_switches.unwrap() + usage.involuntary_switches.unwrap() > 0);
        assert!(Process::new(u32::MAX - 1).is_err());
    }
}
