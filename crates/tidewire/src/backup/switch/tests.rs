//! Restores that are killed at any step, rejected, or blocked.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

const OLD: [(&str, &str); 9] = [
    ("acme/certificate.pem", "old"),
    ("admins", "old"),
    ("audit.jsonl", "goes on"),
    ("banned.json", "old"),
    ("journal/1.log", "old"),
    (SPARE, "zeros"),
    ("platform/log/1.log", "old"),
    ("backups/one/admins", "kept"),
    ("lost+found/x", "not ours"),
];
const BACKUP: [(&str, &str); 4] = [
    ("admins", "new"),
    ("audit.jsonl", "of then"),
    ("journal/0.log", "new"),
    ("runtime.toml", "new"),
];

fn fill(directory: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

#[test]
fn error_of_an_unusable_data_directory_names_it() {
    let path = std::env::temp_dir().join(format!("tidewire-switch-file-{}", std::process::id()));
    fs::write(&path, "a file").unwrap();
    let error = intent(&path).err().unwrap();
    let expected = format!("node.data_dir: cannot use {}: Not a directory", path.display());
    assert!(error.starts_with(&expected), "{error}");
    fs::remove_file(&path).unwrap();
}

/// Creates a data directory with a prepared restore.
fn data_dir(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tidewire-switch-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fill(&path, &OLD);
    make_directory(&path).unwrap();
    fill(&staged(&path), &BACKUP);
    prepare(&path, "one").unwrap();
    path
}

fn files(directory: &Path) -> Vec<(String, String)> {
    let (mut found, mut directories) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).unwrap().flatten() {
            let path = entry.path();
            match path.is_dir() {
                true => directories.push(path),
                false => {
                    let name = path.strip_prefix(directory).unwrap().display().to_string();
                    found.push((name, fs::read_to_string(&path).unwrap()));
                }
            }
        }
    }
    found.retain(|(name, _)| !name.starts_with(DIRECTORY) && !name.starts_with(REPLACED_DATA));
    found.sort();
    found
}

fn listed(files: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut all: Vec<_> = files
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    all.sort();
    all
}

fn old() -> Vec<(String, String)> {
    listed(&OLD)
}

fn new() -> Vec<(String, String)> {
    listed(&[
        // The backup has none.
        ("acme/certificate.pem", "old"),
        ("admins", "new"),
        ("audit.jsonl", "goes on"),
        ("journal/0.log", "new"),
        ("runtime.toml", "new"),
        ("backups/one/admins", "kept"),
        ("lost+found/x", "not ours"),
    ])
}

fn restored() -> RestoreResult {
    RestoreResult::Restored { backup: "one".into() }
}

/// Kills the restore before the step with this number. Returns whether it got that far.
fn killed_at(path: &Path, number: usize, is_valid: &dyn Fn(&str) -> Result<(), String>) -> bool {
    let mut steps = 0;
    let mut step = || {
        if steps == number {
            // The panic is not handled in between, so that the disk stays as after a kill.
            std::panic::resume_unwind(Box::new("killed"));
        }
        steps += 1;
    };
    catch_unwind(AssertUnwindSafe(|| run_with_steps(path, is_valid, &mut step))).is_err()
}

#[test]
fn a_kill_at_any_step_leaves_a_start_that_ends_with_all_of_the_new() {
    for number in 0.. {
        let path = data_dir("new");
        let was_killed = killed_at(&path, number, &|_| Ok(()));
        assert_eq!(
            run_pending_restore(&path, |_| Ok(())),
            Ok(restored()),
            "killed at {number}"
        );
        assert_eq!(files(&path), new(), "killed at {number}");
        assert_eq!(finish_trial(&path), Ok(Some("one".into())));
        assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(RestoreResult::Nothing));
        let outcome = outcome(&path).unwrap().unwrap();
        assert_eq!((outcome.backup.as_str(), outcome.failure), ("one", None));
        let aside = path.join(REPLACED_DATA).join(outcome.previous_data.unwrap());
        assert_eq!(fs::read_to_string(aside.join("journal/1.log")).unwrap(), "old");
        assert!(!aside.join(SPARE).exists(), "it has nothing in it");
        assert!(aside.join("banned.json").exists() && aside.join("platform/log").exists());
        assert!(!staged(&path).exists());
        fs::remove_dir_all(&path).unwrap();
        if !was_killed {
            assert!(number > 8, "{number}");
            return;
        }
    }
}

/// Creates a data directory with a prepared restore of a backup that contains the directory [`OPTIONAL`].
fn data_dir_with_certificate(name: &str) -> PathBuf {
    let path = data_dir(name);
    fill(
        &staged(&path),
        &[("acme/certificate.pem", "new"), ("acme/account.json", "new")],
    );
    path
}

#[test]
fn certificate_of_a_backup_replaces_the_present_one() {
    let mut expected = new();
    expected.retain(|(name, _)| !name.starts_with("acme/"));
    expected.extend(listed(&[("acme/certificate.pem", "new"), ("acme/account.json", "new")]));
    expected.sort();
    for number in 0.. {
        let path = data_dir_with_certificate("certificate");
        let was_killed = killed_at(&path, number, &|_| Ok(()));
        assert_eq!(
            run_pending_restore(&path, |_| Ok(())),
            Ok(restored()),
            "killed at {number}"
        );
        assert_eq!(files(&path), expected, "killed at {number}");
        assert_eq!(finish_trial(&path), Ok(Some("one".into())));
        let aside = path
            .join(REPLACED_DATA)
            .join(outcome(&path).unwrap().unwrap().previous_data.unwrap());
        assert_eq!(fs::read_to_string(aside.join("acme/certificate.pem")).unwrap(), "old");
        fs::remove_dir_all(&path).unwrap();
        if !was_killed {
            break;
        }
    }
}

#[test]
fn rejected_restore_puts_the_certificate_back() {
    for number in 0.. {
        let path = data_dir_with_certificate("certificate-back");
        assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(restored()));
        assert_eq!(reject(&path, "the journal is damaged"), Ok(true));
        let was_killed = killed_at(&path, number, &|_| Ok(()));
        run_pending_restore(&path, |_| Ok(())).unwrap();
        assert_eq!(files(&path), old(), "killed at {number}");
        fs::remove_dir_all(&path).unwrap();
        if !was_killed {
            break;
        }
    }
}

#[test]
fn a_kill_at_any_step_of_the_way_back_leaves_all_of_the_old() {
    for number in 0.. {
        let path = data_dir("back");
        assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(restored()));
        // A file that a server with the new data has created.
        fill(
            &path,
            &[
                ("journal/2.log", "newer"),
                ("platform/x", "newer"),
                ("banned.json", "newer"),
            ],
        );
        assert_eq!(reject(&path, "the journal is damaged"), Ok(true));
        let was_killed = killed_at(&path, number, &|_| Ok(()));
        let after = run_pending_restore(&path, |_| Ok(()));
        let failed = RestoreResult::Failed {
            backup: "one".into(),
            reason: "the journal is damaged".into(),
        };
        // The kill may come after the last step.
        assert!(after == Ok(failed) || after == Ok(RestoreResult::Nothing), "{after:?}");
        assert_eq!(files(&path), old(), "killed at {number}");
        let outcome = outcome(&path).unwrap().unwrap();
        assert_eq!(outcome.failure.as_deref(), Some("the journal is damaged"));
        assert!(!staged(&path).exists());
        fs::remove_dir_all(&path).unwrap();
        if !was_killed {
            assert!(number > 8, "{number}");
            return;
        }
    }
}

#[test]
fn what_cannot_be_restored_leaves_the_old_and_says_why() {
    let path = data_dir("invalid");
    let carried = run_pending_restore(&path, |runtime| Err(format!("it says {runtime}")));
    let Ok(RestoreResult::Failed { reason, .. }) = carried else {
        panic!("{carried:?}");
    };
    assert!(
        reason.contains("runtime.toml") && reason.ends_with("it says new"),
        "{reason}"
    );
    assert_eq!(files(&path), old());

    let path = data_dir("gone");
    fs::remove_dir_all(staged(&path)).unwrap();
    assert!(matches!(
        run_pending_restore(&path, |_| Ok(())),
        Ok(RestoreResult::Failed { .. })
    ));
    assert_eq!(files(&path), old());

    // A file at the target of a move.
    let path = data_dir("blocked");
    fill(&path, &[(&format!("{REPLACED_DATA}/x/y"), "z")]);
    let is_blocked = |_: &str| {
        let aside = path.join(REPLACED_DATA);
        fs::remove_dir_all(&aside).unwrap();
        fs::write(aside, "a file").unwrap();
        Ok(())
    };
    assert!(matches!(
        run_pending_restore(&path, is_blocked),
        Ok(RestoreResult::Failed { .. })
    ));
    fs::remove_file(path.join(REPLACED_DATA)).unwrap();
    assert_eq!(files(&path), old());
    fs::remove_dir_all(&path).unwrap();
}

#[test]
fn data_that_no_server_gets_ready_with_goes_after_some_starts() {
    let path = data_dir("trials");
    for _ in 0..TRIALS_MAX {
        assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(restored()));
    }
    assert_eq!(
        intent(&path).unwrap().map(|intent| intent.phase),
        Some(RestorePhase::OnTrial)
    );
    assert!(matches!(
        run_pending_restore(&path, |_| Ok(())),
        Ok(RestoreResult::Failed { .. })
    ));
    assert_eq!(files(&path), old());
    fs::remove_dir_all(&path).unwrap();
}

#[test]
fn what_was_restored_stays_when_there_is_nothing_to_go_back_to() {
    let path = data_dir("no-way-back");
    assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(restored()));
    let aside = intent(&path).unwrap().unwrap().aside;
    fs::remove_dir_all(path.join(REPLACED_DATA).join(&aside)).unwrap();
    assert_eq!(reject(&path, "the journal is damaged"), Ok(true));
    for _ in 0..2 {
        let refused = run_pending_restore(&path, |_| Ok(())).unwrap_err();
        assert!(refused.contains(&aside) && refused.contains("intent.json"), "{refused}");
        assert_eq!(fs::read_to_string(staged(&path).join("journal/0.log")).unwrap(), "new");
    }
    fs::remove_dir_all(&path).unwrap();
}

#[test]
fn what_the_way_back_needs_is_known_from_the_first_move_on() {
    let path = data_dir("needs");
    let prepared = intent(&path).unwrap().unwrap();
    assert!(prepared.is_prepared() && !prepared.needs_old_data(""));
    assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(restored()));
    let tried = intent(&path).unwrap().unwrap();
    assert!(!tried.is_prepared() && tried.needs_old_data(&tried.aside) && !tried.needs_old_data("another"));
    fs::remove_dir_all(&path).unwrap();
}

#[test]
fn what_is_cancelled_is_never_restored() {
    let path = data_dir("cancelled");
    cancel(&path).unwrap();
    assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(RestoreResult::Nothing));
    assert_eq!(files(&path), old());
    fs::remove_dir_all(&path).unwrap();
}

#[test]
fn data_that_another_process_has_open_is_not_moved() {
    let path = data_dir("open");
    let held = journal::StorageDirectory::open(&path, journal::DIRECTORY_NAME).unwrap();
    let refused = run_pending_restore(&path, |_| Ok(())).unwrap_err();
    assert!(refused.contains("another process uses"), "{refused}");
    drop(held);
    assert_eq!(run_pending_restore(&path, |_| Ok(())), Ok(restored()));
    fs::remove_dir_all(&path).unwrap();
}
