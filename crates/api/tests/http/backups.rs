//! Backups over the API: permissions, answers and the archive. The binary's tests check the contents of a backup.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use api::{
    Backup, BackupAdmin, BackupAdminError, Backups, FailedBackup, ReplacedData, Restore, RestoreOutcome, RestoreState,
    RunningBackup,
};
use serde_json::json;

use super::node::Node;

struct TestBackend {
    directory: PathBuf,
    names: Mutex<Vec<String>>,
    prepared: Mutex<Option<String>>,
}

impl BackupAdmin for TestBackend {
    fn state(&self) -> Result<Backups, BackupAdminError> {
        let at_unix_ms = 1000;
        let view = |name: &String| Backup {
            name: name.clone(),
            created_at_unix_ms: at_unix_ms,
            bytes: 3,
            contents: "2 sessions".into(),
        };
        let prepared = self.prepared.lock().unwrap().clone();
        Ok(Backups {
            directory: self.directory.display().to_string(),
            running: Some(RunningBackup {
                name: "now".into(),
                started_at_unix_ms: at_unix_ms,
                copied_bytes: 1,
                total_bytes: 2,
            }),
            failure: Some(FailedBackup {
                name: "before".into(),
                at_unix_ms,
                reason: "disk full".into(),
            }),
            items: self.names.lock().unwrap().iter().map(view).collect(),
            restore: prepared.map(|name| Restore {
                name,
                state: RestoreState::Prepared,
                since_unix_ms: at_unix_ms,
                copied_bytes: 0,
                total_bytes: 0,
            }),
            restored: Some(RestoreOutcome {
                name: "before".into(),
                at_unix_ms,
                failure: Some("its journal is damaged".into()),
                previous_data: None,
            }),
            replaced_data: vec![ReplacedData {
                name: "aside".into(),
                at_unix_ms,
                bytes: 9,
            }],
        })
    }

    fn start(&self) -> Result<String, BackupAdminError> {
        Ok("now".into())
    }

    fn path(&self, name: &str) -> Result<PathBuf, BackupAdminError> {
        let is_known = self.names.lock().unwrap().iter().any(|known| known == name);
        is_known
            .then(|| self.directory.join(name))
            .ok_or(BackupAdminError::Unknown)
    }

    fn remove(&self, name: &str) -> Result<(), BackupAdminError> {
        self.path(name)?;
        self.names.lock().unwrap().clear();
        Ok(())
    }

    fn restore(&self, name: &str) -> Result<(), BackupAdminError> {
        self.path(name)?;
        match self.prepared.lock().unwrap().replace(name.into()) {
            Some(_) => Err(BackupAdminError::Restoring),
            None => Ok(()),
        }
    }

    fn cancel_restore(&self) -> Result<(), BackupAdminError> {
        let was = self.prepared.lock().unwrap().take();
        was.map(|_| ()).ok_or(BackupAdminError::NotPrepared)
    }

    fn restore_now(&self) -> Result<(), BackupAdminError> {
        Ok(())
    }

    fn remove_replaced_data(&self, name: &str) -> Result<(), BackupAdminError> {
        match name {
            "aside" => Ok(()),
            _ => Err(BackupAdminError::Unknown),
        }
    }
}

fn kept(name: &str) -> Arc<TestBackend> {
    let directory = std::env::temp_dir().join(format!("tidewire-backups-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(directory.join("one/journal")).unwrap();
    fs::write(directory.join("one/journal/0.log"), "x".repeat(100_000)).unwrap();
    Arc::new(TestBackend {
        directory,
        names: Mutex::new(vec!["one".into()]),
        prepared: Mutex::default(),
    })
}

#[test]
fn backups_are_created_listed_downloaded_and_deleted() {
    let kept = kept("all");
    let held = kept.clone();
    let node = Node::start_with(1, |config| config.backups = Some(held)).with_login();
    let started = node.send("POST", "/api/v1/backups", &json!({}));
    assert_eq!((started.status, &started.json()["name"]), (202, &json!("now")));
    let listed = node.get("/api/v1/backups").ok().json();
    assert_eq!(
        listed["items"][0],
        json!({ "name": "one", "created_at_unix_ms": 1000, "bytes": 3, "contents": "2 sessions" })
    );
    assert_eq!(
        (&listed["running"]["copied_bytes"], &listed["failure"]["reason"]),
        (&json!(1), &json!("disk full"))
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
    node.delete("/api/v1/backups/missing").problem(404);
    assert_eq!(node.delete("/api/v1/backups/one").status, 204);
    let log = node.all_pages("/api/v1/audit?operation=download_backup", 10);
    assert_eq!(log.len(), 2);
    fs::remove_dir_all(&kept.directory).unwrap();
}

#[test]
fn restore_is_prepared_started_and_cancelled() {
    let kept = kept("restored");
    let held = kept.clone();
    let node = Node::start_with(1, |config| config.backups = Some(held)).with_login();
    let listed = node.get("/api/v1/backups").ok().json();
    assert_eq!(
        (
            &listed["restore"],
            &listed["restored"]["failure"],
            &listed["replaced_data"][0]["bytes"]
        ),
        (&json!(null), &json!("its journal is damaged"), &json!(9))
    );
    node.send("POST", "/api/v1/restore/restart", &json!({})).problem(409);
    node.send("POST", "/api/v1/backups/missing/restore", &json!({}))
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
    assert_eq!(node.delete("/api/v1/replaced-data/aside").status, 204);
    node.delete("/api/v1/replaced-data/other").problem(404);
    for operation in [
        "restore_backup",
        "restore_now",
        "cancel_restore",
        "remove_replaced_data",
    ] {
        let log = node.all_pages(&format!("/api/v1/audit?operation={operation}"), 10);
        assert!(!log.is_empty(), "{operation}");
    }
    fs::remove_dir_all(&kept.directory).unwrap();
}

#[test]
fn viewer_cannot_access_backups() {
    let node = Node::start(1).with_viewer("eve", "only looking");
    node.get("/api/v1/backups").problem(403);
    node.get("/api/v1/backups/one/download").problem(403);
    node.send("POST", "/api/v1/backups", &json!({})).problem(403);
    node.delete("/api/v1/backups/one").problem(403);
    node.send("POST", "/api/v1/backups/one/restore", &json!({}))
        .problem(403);
    node.send("POST", "/api/v1/restore/restart", &json!({})).problem(403);
    node.delete("/api/v1/restore").problem(403);
    node.delete("/api/v1/replaced-data/aside").problem(403);
}
