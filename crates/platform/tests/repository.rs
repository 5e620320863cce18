//! The contract of repositories, kept by the embedded one; and what only a file has: it is opened again.

#![allow(clippy::unwrap_used, reason = "tests")]

mod contract;
mod scratch;

use platform::SqliteRepository;
use platform::ids::{EntityType, Uuid};
use platform::repository::{Change, Repository, Selection, StateKind};
use scratch::Scratch;

#[test]
fn sqlite_keeps_the_contract() {
    let mut scratch = Vec::new();
    contract::run(|| {
        let directory = Scratch::new();
        let repository = SqliteRepository::open(directory.path()).unwrap();
        scratch.push(directory);
        repository
    });
}

#[test]
fn a_file_is_opened_again_with_what_it_had() {
    let directory = Scratch::new();
    let state = Change::PutState {
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
fn a_file_of_a_newer_version_is_refused() {
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
