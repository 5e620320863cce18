//! Backups over the API: who may make them, what is said, and the archive. What is in a backup is the binary's.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use api::{
    Backup, BackupAdmin, BackupError, BackupState, FailedBackup, RestoreOutcome, Restoring, RunningBackup, SetAside,
};
use serde_json::json;

use crate::node::Node;

struct Kept {
    directory: PathBuf,
    names: Mutex<Vec<String>>,
    prepared: Mutex<Option<String>>,
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
            restoring: self
                .prepared
                .lock()
                .unwrap()
                .clone()
                .map(|name| Restoring::Prepared { name, at }),
            restored: Some(RestoreOutcome {
                name: "before".into(),
                at,
                failure: Some("its journal is damaged".into()),
                set_aside: None,
            }),
            set_aside: vec![SetAside {
                name: "aside".into(),
                at,
                bytes: 9,
            }],
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

    fn restore(&self, name: &str) -> Result<(), BackupError> {
        self.path(name)?;
        match self.prepared.lock().unwrap().replace(name.into()) {
            Some(_) => Err(BackupError::Restoring),
            None => Ok(()),
        }
    }

    fn cancel_restore(&self) -> Result<(), BackupError> {
        let was = self.prepared.lock().unwrap().take();
        was.map(|_| ()).ok_or(BackupError::NotPrepared)
    }

    fn restore_now(&self) -> Result<(), BackupError> {
        Ok(())
    }

    fn remove_set_aside(&self, name: &str) -> Result<(), BackupError> {
        match name {
            "aside" => Ok(()),
            _ => Err(BackupError::Unknown),
        }
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
        prepared: Mutex::default(),
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
fn a_backup_is_prepared_restored_and_cancelled() {
    let kept = kept("restored");
    let held = kept.clone();
    let node = Node::start_with(1, |config| config.backups = Some(held)).with_login();
    let listed = node.get("/api/v1/backups").ok().json();
    assert_eq!(
        (
            &listed["restore"],
            &listed["restored"]["failure"],
            &listed["set_aside"][0]["bytes"]
        ),
        (&json!(null), &json!("its journal is damaged"), &json!(9))
    );
    node.send("POST", "/api/v1/restore/restart", &json!({})).problem(409);
    node.send("POST", "/api/v1/backups/nobody/restore", &json!({}))
        .problem(404);
    let begun = node.send("POST", "/api/v1/backups/one/restore", &json!({}));
    assert_eq!((begun.status, &begun.json()["name"]), (202, &json!("one")));
    node.send("POST", "/api/v1/backups/one/restore", &json!({}))
        .problem(409);
    let listed = node.get("/api/v1/backups").ok().json();
    assert_eq!(
        (&listed["restore"]["name"], &listed["restore"]["state"]),
        (&json!("one"), &json!("prepared"))
    );
    assert_eq!(node.send("POST", "/api/v1/restore/restart", &json!({})).status, 202);
    assert_eq!(node.delete("/api/v1/restore").status, 204);
    node.delete("/api/v1/restore").problem(409);
    assert_eq!(node.delete("/api/v1/set-aside/aside").status, 204);
    node.delete("/api/v1/set-aside/other").problem(404);
    for operation in ["restore_backup", "restore_now", "cancel_restore", "remove_set_aside"] {
        let log = node.all_pages(&format!("/api/v1/audit?operation={operation}"), 10);
        assert!(!log.is_empty(), "{operation}");
    }
    fs::remove_dir_all(&kept.directory).unwrap();
}

#[test]
fn a_viewer_has_nothing_of_backups() {
    let node = Node::start(1).with_viewer("eve", "only looking");
    node.get("/api/v1/backups").problem(403);
    node.get("/api/v1/backups/one/download").problem(403);
    node.send("POST", "/api/v1/backups", &json!({})).problem(403);
    node.delete("/api/v1/backups/one").problem(403);
    node.send("POST", "/api/v1/backups/one/restore", &json!({}))
        .problem(403);
    node.send("POST", "/api/v1/restore/restart", &json!({})).problem(403);
    node.delete("/api/v1/restore").problem(403);
    node.delete("/api/v1/set-aside/aside").problem(403);
}
