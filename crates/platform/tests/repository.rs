//! Runs the repository contract on the embedded repository, and tests reopening its file.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::contract;
use crate::scratch::Scratch;
use platform::ids::{EntityType, Uuid};
use platform::repository::{Repository, RepositoryChange, Selection, StateKind};
use platform::{SqliteOpenError, SqliteRepository};

#[test]
fn sqlite_fulfils_the_contract() {
    let mut scratch = Vec::new();
    contract::run(|| {
        let directory = Scratch::new();
        let repository = SqliteRepository::open(directory.path()).unwrap();
        scratch.push(directory);
        repository
    });
}

// fault: Process killed; Entity database
#[test]
fn reopened_file_has_its_data() {
    let directory = Scratch::new();
    let state = RepositoryChange::PutState {
        state: StateKind::Position,
        id: Uuid::NULL,
        bytes: Some(vec![1]),
    };
    SqliteRepository::open(directory.path())
        .unwrap()
        .apply(&[state])
        .unwrap();
    let again = SqliteRepository::open(directory.path()).unwrap();
    assert_eq!(again.state(StateKind::Position, Uuid::NULL).unwrap(), Some(vec![1]));
    assert_eq!(again.count(EntityType::Device, &Selection::default()).unwrap(), 0);
}

#[test]
fn file_of_a_newer_version_is_rejected() {
    let directory = Scratch::new();
    SqliteRepository::open(directory.path()).unwrap();
    let path = directory.path().join(platform::FILE_NAME);
    rusqlite::Connection::open(path)
        .unwrap()
        .execute_batch("PRAGMA user_version = 99")
        .unwrap();
    let error = SqliteRepository::open(directory.path()).unwrap_err();
    assert!(error.to_string().contains("version 99"), "{error}");
}

const TRANSACTIONS: u8 = 40;

/// Changes the files of a repository that is not open.
type Damage = dyn Fn(&Path);

fn put(repository: &SqliteRepository, number: u8) {
    let state = RepositoryChange::PutState {
        state: StateKind::Usage,
        id: Uuid([number; 16]),
        bytes: Some(vec![number; 3000]),
    };
    repository.apply(&[state]).unwrap();
}

fn count(repository: &SqliteRepository) -> usize {
    let mut count = 0;
    repository
        .for_each_state(StateKind::Usage, &mut |_, _| count += 1)
        .unwrap();
    count
}

fn file(directory: &Path, suffix: &str) -> PathBuf {
    directory.join(format!("{}{suffix}", platform::FILE_NAME))
}

/// Copies the files of a repository in use, as a killed process leaves them.
fn killed(from: &Path) -> Scratch {
    let copy = Scratch::new();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_owned();
        // The index of the write-ahead log is in use.
        if name != *"entities.sqlite-shm" {
            fs::copy(&path, copy.path().join(name)).unwrap();
        }
    }
    copy
}

#[track_caller]
fn missing(directory: &Path) -> u64 {
    match SqliteRepository::open(directory) {
        Ok(_) => panic!("the repository was opened"),
        Err(SqliteOpenError::Behind {
            generation, expected, ..
        }) => expected - generation,
        Err(SqliteOpenError::Missing { expected, .. }) => expected,
        Err(error) => panic!("{error}"),
    }
}

/// SQLite alone opens each of these without a word.
// fault: Missing files; Entity database
#[test]
fn lost_transactions_prevent_opening_until_they_are_accepted() {
    let original = Scratch::new();
    let repository = SqliteRepository::open(original.path()).unwrap();
    for number in 0..TRANSACTIONS / 2 {
        put(&repository, number);
    }
    repository.checkpoint().unwrap();
    assert_eq!(fs::metadata(file(original.path(), "-wal")).unwrap().len(), 0);
    for number in TRANSACTIONS / 2..TRANSACTIONS {
        put(&repository, number);
    }
    let whole = killed(original.path());
    assert_eq!(
        count(&SqliteRepository::open(whole.path()).unwrap()),
        usize::from(TRANSACTIONS)
    );

    let flip = |directory: &Path| {
        let wal = file(directory, "-wal");
        let mut bytes = fs::read(&wal).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(wal, bytes).unwrap();
    };
    let remove_wal = |directory: &Path| fs::remove_file(file(directory, "-wal")).unwrap();
    let remove_all = |directory: &Path| {
        fs::remove_file(file(directory, "-wal")).unwrap();
        fs::remove_file(file(directory, "")).unwrap();
    };
    let half = usize::from(TRANSACTIONS) / 2;
    let cases: [(&Damage, std::ops::Range<usize>); 3] = [
        (&flip, half..usize::from(TRANSACTIONS)),
        (&remove_wal, half..half + 1),
        (&remove_all, 0..1),
    ];
    for (damage, left) in cases {
        let copy = killed(original.path());
        damage(copy.path());
        // SQLite creates an empty write-ahead log even for reading.
        let files = || {
            (
                fs::read(file(copy.path(), "")).ok(),
                fs::read(file(copy.path(), "-wal")).unwrap_or_default(),
            )
        };
        let before = files();
        let lost = missing(copy.path());
        assert!(lost > 0);
        assert_eq!(missing(copy.path()), lost, "the second attempt is refused as well");
        assert!(files() == before, "a refused opening changes nothing");
        let accept = |is_accepted| SqliteRepository::missing_transactions(copy.path(), is_accepted).unwrap();
        assert_eq!(
            (accept(false), accept(true), accept(true)),
            (Some(lost), Some(lost), None)
        );
        let repository = SqliteRepository::open(copy.path()).unwrap();
        assert!(left.contains(&count(&repository)), "{} are left", count(&repository));
        put(&repository, 99);
        drop(repository);
        SqliteRepository::open(copy.path()).unwrap();
    }
}

/// A copy has no number of transactions, and neither has a file of an earlier version.
#[test]
fn repository_without_a_number_of_transactions_opens() {
    let (original, copy) = (Scratch::new(), Scratch::new());
    let repository = SqliteRepository::open(original.path()).unwrap();
    put(&repository, 1);
    SqliteRepository::copy_to(original.path(), copy.path()).unwrap();
    let again = SqliteRepository::open(copy.path()).unwrap();
    assert_eq!(count(&again), 1);
    put(&again, 2);
    let lost = killed(copy.path());
    fs::remove_file(file(lost.path(), "-wal")).unwrap();
    assert_eq!(missing(lost.path()), 1);
}

// fault: Damaged bytes; Entity database
#[test]
fn damaged_structure_prevents_opening() {
    let original = Scratch::new();
    let repository = SqliteRepository::open(original.path()).unwrap();
    assert!(repository.integrity_check().is_complete);
    for number in 0..TRANSACTIONS {
        put(&repository, number);
    }
    repository.checkpoint().unwrap();
    let copy = killed(original.path());
    let path = file(copy.path(), "");
    let mut bytes = fs::read(&path).unwrap();
    // The header of each page but the first.
    bytes.chunks_mut(4096).skip(1).for_each(|page| page[..8].fill(0xFF));
    fs::write(&path, bytes).unwrap();
    let error = SqliteRepository::open(copy.path()).unwrap_err();
    assert!(
        matches!(&error, SqliteOpenError::Damaged { .. } | SqliteOpenError::Sqlite { .. }),
        "{error}"
    );
}

/// A kill during the first start after a restore interrupts the change of the database to a write-ahead log.
#[test]
fn interrupted_transaction_without_write_ahead_log_is_undone() {
    let original = Scratch::new();
    let repository = SqliteRepository::open(original.path()).unwrap();
    for number in 0..TRANSACTIONS {
        put(&repository, number);
    }
    repository.checkpoint().unwrap();
    drop(repository);
    let connection = rusqlite::Connection::open(file(original.path(), "")).unwrap();
    connection
        .execute_batch(
            "PRAGMA journal_mode = DELETE; PRAGMA cache_size = 1; BEGIN IMMEDIATE;
             CREATE TABLE large AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000)
             SELECT i, hex(zeroblob(100)) FROM n;",
        )
        .unwrap();
    assert!(file(original.path(), "-journal").exists());
    let copy = killed(original.path());
    let repository = SqliteRepository::open(copy.path()).unwrap();
    assert_eq!(count(&repository), usize::from(TRANSACTIONS));
}
