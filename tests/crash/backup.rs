//! Tests backups of a server under load, while its journal grows, is compacted and is truncated.
//!
//! Each backup contains, in order, all messages that were acknowledged before it began.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{Config, Connect, Peer, Publish, Server, SetOnDrop, V4, V5, scaled};

/// With these limits the journal creates and removes several segments per second.
const CONFIG: &str = r#"
[node]
workers = 2
[mqtt]
max_queued_messages = 1000000
[durability]
max_bytes = "64MiB"
segment_bytes = "64KiB"
reserve_bytes = "0B"
"#;
const BACKUPS: usize = 5;
/// Messages that are acknowledged between two backups.
const MESSAGES: usize = 500;
const KILLS: u64 = 20;

#[test]
fn backups_under_load_contain_all_earlier_acknowledged_messages() {
    let mut server = Server::start(&Config::new(CONFIG));
    let away = Connect::new(V4, "away").persistent();
    let mut peer = server.session(&away);
    peer.subscribe("kept/#", 1);
    peer.disconnect();
    let mut busy = server.session(&Connect::new(V5, "busy").persistent());
    busy.subscribe("passing/#", 1);
    let acknowledged = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let had = thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        scope.spawn(|| {
            let mut publisher = Peer::session(server.mqtt(), &Connect::new(V5, "publisher"));
            while !is_over.load(Ordering::Relaxed) {
                let number = acknowledged.load(Ordering::Relaxed);
                let kept = Publish::new("kept/a", payload(number, 100)).qos(1);
                assert_eq!(publisher.publish(&kept), 0);
                acknowledged.store(number + 1, Ordering::Release);
                let passing = Publish::new("passing/a", payload(number, 1000)).qos(1);
                assert_eq!(publisher.publish(&passing), 0);
                busy.receive();
            }
        });
        let backups = (1..=BACKUPS).map(|number| {
            server.wait_until("enough messages are acknowledged", |_| {
                acknowledged.load(Ordering::Acquire) >= number * MESSAGES
            });
            let had = acknowledged.load(Ordering::Acquire);
            let copy = format!("copy-{number}");
            tidewire(&server, &["backup", "--data-dir", "data", "--to", &copy]);
            (copy, had)
        });
        backups.collect::<Vec<_>>()
    });
    for (copy, had) in had {
        server.kill();
        fs::remove_dir_all(server.dir().join("data")).expect("the data directory can be removed");
        tidewire(&server, &["restore", "--data-dir", "data", "--from", &copy]);
        server.spawn_again();
        server.wait_until_ready();
        let mut publisher = server.session(&Connect::new(V5, "publisher"));
        assert_eq!(publisher.publish(&Publish::new("kept/a", "end").qos(1)), 0);
        let mut away = Peer::session(server.mqtt(), &away);
        let received = away.receive_until("end");
        let expected: Vec<String> = (0..received.len()).map(|number| payload(number, 100)).collect();
        let is_whole = received
            .iter()
            .map(|delivery| delivery.payload_str())
            .eq(expected.iter().map(String::as_str));
        assert!(is_whole, "{copy}: messages are missing or out of order");
        assert!(
            received.len() >= had,
            "{copy}: {} messages, {had} had been acknowledged",
            received.len()
        );
        away.disconnect();
    }
}

/// An incomplete backup is not accepted as a backup.
// fault: Process killed; Backup and restore
#[test]
fn interrupted_backups_are_not_restored() {
    let mut server = Server::start(&Config::new(CONFIG));
    let away = Connect::new(V4, "away").persistent();
    let mut peer = server.session(&away);
    peer.subscribe("kept/#", 1);
    peer.disconnect();
    let mut publisher = server.session(&Connect::new(V5, "publisher"));
    for number in 0..MESSAGES {
        let kept = Publish::new("kept/a", payload(number, 1000)).qos(1);
        assert_eq!(publisher.publish(&kept), 0);
    }
    server.kill();
    tidewire(&server, &["backup", "--data-dir", "data", "--to", "whole"]);
    let whole = files(&server.dir().join("whole"));
    let bytes = copied_bytes(&server.dir().join("whole")).expect("a backup");
    let (mut refused, mut restored) = (0, 0);
    let kills = scaled(KILLS);
    for round in 0..kills {
        let backup = Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .args(["backup", "--data-dir", "data", "--to", "part"])
            .current_dir(server.dir())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program runs");
        kill_after(backup, &server.dir().join("part"), bytes * round / kills);
        let output = Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .args(["restore", "--data-dir", "again", "--from", "part"])
            .current_dir(server.dir())
            .output()
            .expect("the program runs");
        let again = server.dir().join("again");
        match output.status.success() {
            true => {
                restored += 1;
                assert_eq!(files(&again), whole, "killed {round}/{kills} during the copy");
            }
            false => {
                refused += 1;
                assert!(
                    !again.exists() || files(&again).is_empty(),
                    "a rejected restore writes nothing"
                );
            }
        }
        let _ = fs::remove_dir_all(again);
        let _ = fs::remove_dir_all(server.dir().join("part"));
    }
    println!("{refused} refused, {restored} whole");
    assert!(refused > 0, "no process was killed during the copy");
    no_part_of_a_backup_is_served(&server, bytes, &whole);
}

/// A killed restore leaves no files, or a directory that the server does not accept as data directory, or all files.
fn no_part_of_a_backup_is_served(server: &Server, bytes: u64, whole: &[PathBuf]) {
    let again = server.dir().join("again");
    let (mut refused, mut complete) = (0, 0);
    let kills = scaled(KILLS);
    for round in 0..kills {
        let restore = Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .args(["restore", "--data-dir", "again", "--from", "whole"])
            .current_dir(server.dir())
            .stdout(Stdio::null())
            .spawn()
            .expect("the program runs");
        kill_after(restore, &again, bytes * round / kills);
        let found = if again.exists() { files(&again) } else { Vec::new() };
        match again.join("restore-unfinished").exists() {
            true => {
                refused += 1;
                let output = Command::new(env!("CARGO_BIN_EXE_tidewire"))
                    .args(["--set", "node.data_dir=again"])
                    .current_dir(server.dir())
                    .output()
                    .expect("the program runs");
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(
                    !output.status.success() && said.contains("restoring was interrupted"),
                    "{said}"
                );
            }
            false if found.is_empty() => {}
            false => {
                complete += 1;
                assert_eq!(found, whole, "killed {round}/{kills} during the copy");
            }
        }
        let _ = fs::remove_dir_all(&again);
    }
    println!("{refused} restores were killed on the way, {complete} were complete");
    assert!(refused > 0, "no process was killed during the copy");
}

/// Kills a process when it has copied this many bytes to a directory, or waits for its end.
fn kill_after(mut process: Child, directory: &Path, bytes: u64) {
    while copied_bytes(directory) < Some(bytes) && process.try_wait().expect("our child").is_none() {
        thread::sleep(Duration::from_micros(100));
    }
    process.kill().expect("the process is our child");
    let _ = process.wait();
}

/// Returns the size of the files in a directory. `None` before the first one.
fn copied_bytes(directory: &Path) -> Option<u64> {
    let (mut bytes, mut directories) = (None, vec![directory.to_owned()]);
    while let Some(next) = directories.pop() {
        // The process changes the directory at the same time.
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => directories.push(entry.path()),
                Ok(metadata) => bytes = Some(bytes.unwrap_or(0) + metadata.len()),
                Err(_) => {}
            }
        }
    }
    bytes
}

/// Returns the files of a backup or data directory without the marker file of the backup.
fn files(directory: &Path) -> Vec<PathBuf> {
    let (mut files, mut directories) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).expect("the directory is readable").flatten() {
            match entry.path().is_dir() {
                true => directories.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files.retain(|path| !path.ends_with("backup.json"));
    files.sort();
    let relative = |path: PathBuf| path.strip_prefix(directory).map(Path::to_owned);
    files
        .into_iter()
        .map(|path| relative(path).expect("the path is below the directory"))
        .collect()
}

fn payload(number: usize, bytes: usize) -> String {
    format!("{number:07}{}", ".".repeat(bytes))
}

fn tidewire(server: &Server, arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_tidewire"))
        .args(arguments)
        .current_dir(server.dir())
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
}
