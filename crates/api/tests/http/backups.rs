//! Backups over the API: who may make them, what is said, and the archive. What is in a backup is the binary's.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use api::{Backup, BackupAdmin, BackupError, BackupState, FailedBackup, RunningBackup};
use serde_json::json;

use crate::node::Node;

struct Kept {
    directory: PathBuf,
    names: Mutex<Vec<String>>,
}

impl BackupAdmin for Kept {
    fn state(&self) -> Result<BackupState, BackupError> {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        let view = |name: &String| Backup {
            name: name.clone(),
            made_at: at,
            bytes: 3,
            holds: "2 sessions".into(),
        };
        Ok(BackupState {
            directory: self.directory.clone(),
            running: Some(RunningBackup {
                name: "now".into(),
                started_at: at,
                copied_bytes: 1,
                total_bytes: 2,
            }),
            failure: Some(FailedBackup {
                name: "before".into(),
                at,
                because: "no room".into(),
            }),
            finished: self.names.lock().unwrap().iter().map(view).collect(),
        })
    }

    fn start(&self) -> Result<String, BackupError> {
        Ok("now".into())
    }

    fn path(&self, name: &str) -> Result<PathBuf, BackupError> {
        let is_known = self.names.lock().unwrap().iter().any(|known| known == name);
        is_known.then(|| self.directory.join(name)).ok_or(BackupError::Unknown)
    }

    fn remove(&self, name: &str) -> Result<(), BackupError> {
        self.path(name)?;
        self.names.lock().unwrap().clear();
        Ok(())
    }
}

fn kept(name: &str) -> Arc<Kept> {
    let directory = std::env::temp_dir().join(format!("tidewire-backups-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(directory.join("one/journal")).unwrap();
    fs::write(directory.join("one/journal/0.log"), "x".repeat(100_000)).unwrap();
    Arc::new(Kept {
        directory,
        names: Mutex::new(vec!["one".into()]),
    })
}

#[test]
fn backups_are_made_listed_downloaded_and_deleted() {
    let kept = kept("all");
    let held = kept.clone();
    let node = Node::start_with(1, |config| config.backups = Some(held)).with_login();
    let started = node.send("POST", "/api/v1/backups", &json!({}));
    assert_eq!((started.status, &started.json()["name"]), (202, &json!("now")));
    let listed = node.get("/api/v1/backups").ok().json();
    assert_eq!(
        listed["items"][0],
        json!({ "name": "one", "made_at_unix_ms": 1000, "bytes": 3, "holds": "2 sessions" })
    );
    assert_eq!(
        (&listed["running"]["copied_bytes"], &listed["failure"]["because"]),
        (&json!(1), &json!("no room"))
    );

    let archive = node.get("/api/v1/backups/one/download").ok();
    assert_eq!(archive.header("content-type"), "application/x-tar");
    assert_eq!(
        archive.header("content-disposition"),
        "attachment; filename=\"one.tar\""
    );
    fs::write(kept.directory.join("one.tar"), &archive.body).unwrap();
    let list = Command::new("tar")
        .arg("-tf")
        .arg(kept.directory.join("one.tar"))
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(list.stdout).unwrap(),
        "one/\none/journal/\none/journal/0.log\n"
    );

    node.get("/api/v1/backups/..%2F..%2Fetc/download").problem(404);
    node.delete("/api/v1/backups/nobody").problem(404);
    assert_eq!(node.delete("/api/v1/backups/one").status, 204);
    let log = node.all_pages("/api/v1/audit?operation=download_backup", 10);
    assert_eq!(log.len(), 2);
    fs::remove_dir_all(&kept.directory).unwrap();
}

#[test]
fn a_viewer_has_nothing_of_backups() {
    let node = Node::start(1).with_viewer("eve", "only looking");
    node.get("/api/v1/backups").problem(403);
    node.get("/api/v1/backups/one/download").problem(403);
    node.send("POST", "/api/v1/backups", &json!({})).problem(403);
    node.delete("/api/v1/backups/one").problem(403);
}
