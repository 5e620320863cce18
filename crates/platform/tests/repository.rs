//! Runs the repository contract on the embedded repository, and tests reopening its file.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::contract;
use crate::scratch::Scratch;
use platform::SqliteRepository;
use platform::ids::{EntityType, Uuid};
use platform::repository::{Repository, RepositoryChange, Selection, StateKind};

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
