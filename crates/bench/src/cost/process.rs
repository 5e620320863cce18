//! The resource use of a broker on this machine, from `/proc/<pid>`: CPU time and context switches of all its threads,
//! resident memory.

use std::fs;

use crate::observe::{BrokerUsage, UsageSource};

/// The kernel's USER_HZ, which is fixed at 100 for the values in /proc on Linux.
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

    /// Returns voluntary and involuntary context switches. Those of threads that have ended are missing.
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

impl UsageSource for Process {
    fn pid(&self) -> Option<u32> {
        Some(self.pid)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&mut self) -> Result<BrokerUsage, String> {
        let stat = self.file("stat")?;
        let status = self.file("status")?;
        // The command in parentheses may contain spaces, so the fields are counted from the parenthesis that closes it.
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
        Ok(BrokerUsage {
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

/// Returns the number after a name in a file of lines like "VmRSS:    1234 kB"; 0 if the name is missing.
fn number(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauge_of_this_process_has_values() {
        let mut process = Process::new(std::process::id()).unwrap();
        let usage = process.read().unwrap();
        assert!(usage.resident_bytes.unwrap() > 100_000, "{usage:?}");
        assert!(usage.resident_peak_bytes >= usage.resident_bytes, "{usage:?}");
        assert!(usage.voluntary_switches.unwrap() + usage.involuntary_switches.unwrap() > 0);
        assert!(Process::new(u32::MAX - 1).is_err());
    }
}
