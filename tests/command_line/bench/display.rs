//! Tests the progress display of a run, and that Ctrl-C still prints a report.

use std::fs;
use std::io::{BufReader, Read};
use std::process::Stdio;

use super::{Broker, interrupt, wait_for};

#[test]
fn ctrl_c_ends_a_run_with_its_report() {
    let broker = Broker::start();
    let mut run = broker
        .command(&[
            "run",
            "p2p",
            "--scale",
            "0.02",
            "--duration",
            "600",
            "--warm-up",
            "0",
            "--set",
            "publishers.publish.rate=10",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap());
    wait_for(&mut lines, "measuring");
    while wait_for(&mut lines, " delivered/s").contains(" 0 delivered/s") {}
    interrupt(&run);
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(130), "{rest}");
    let result = broker.result();
    assert_eq!(result["is_interrupted"], true);
    assert_eq!(result["truth"]["lost"], 0, "{rest}");
    assert_eq!(result["truth"]["expected"], result["totals"]["published"]);
}

/// Opens a pseudo-terminal and returns both ends.
fn terminal() -> (fs::File, fs::File) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&own).unwrap();
    unlockpt(&own).unwrap();
    let name = ptsname(&own, Vec::new()).unwrap().into_string().unwrap();
    let other = fs::File::options().read(true).write(true).open(name).unwrap();
    (own.into(), other)
}

/// Reads the program's output. Reading fails once no process holds the other end of the terminal.
fn read_terminal(terminal: &mut fs::File, seen: &mut String) -> bool {
    let mut buffer = [0; 4096];
    let size = terminal.read(&mut buffer).unwrap_or(0);
    seen.push_str(&String::from_utf8_lossy(&buffer[..size]));
    size > 0
}

#[test]
fn a_terminal_shows_a_bar_and_ctrl_c_still_reports() {
    let broker = Broker::start();
    let (mut own, other) = terminal();
    let mut command = broker.command(&["run", "p2p", "--scale", "0.02", "--duration", "600", "--warm-up", "0"]);
    command
        .args(["--set", "publishers.publish.rate=10"])
        .env("TERM", "xterm");
    command.stdout(other.try_clone().unwrap()).stderr(other);
    let mut run = command.spawn().unwrap();
    // The command also holds the other end of the terminal.
    drop(command);
    let mut seen = String::new();
    while !(seen.contains("measuring · ") && seen.contains(" delivered/s · p50 ")) {
        assert!(read_terminal(&mut own, &mut seen), "{seen}");
    }
    assert!(seen.contains("─") && seen.contains("s to go · 0 errors"), "{seen}");
    interrupt(&run);
    seen.clear();
    while read_terminal(&mut own, &mut seen) {}
    assert_eq!(run.wait().unwrap().code(), Some(130), "{seen}");
    let report = seen.rsplit("p2p: ").next().unwrap();
    assert!(
        report.contains("interrupted") && report.contains("nothing lost"),
        "{seen}"
    );
    assert!(!report.contains('─'), "the bar is drawn over the report: {seen}");
}
