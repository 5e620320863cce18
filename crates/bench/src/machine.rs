//! The description of the machine that a run was made on, for the report.

use std::fs;

use crate::result::Machine;

pub fn describe() -> Machine {
    let uname = rustix::system::uname();
    let words = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    Machine {
        host: words(uname.nodename()),
        cpu: cpu().unwrap_or_else(|| words(uname.machine())),
        cores: cores(),
        memory_bytes: memory_bytes().unwrap_or_default(),
        kernel: format!("{} {}", words(uname.sysname()), words(uname.release())),
        load_average: load_average().unwrap_or_default(),
    }
}

pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

fn cpu() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg")
        .ok()?
        .split(' ')
        .next()?
        .parse()
        .ok()
}
