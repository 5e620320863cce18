//! What a store does when its files are not what it wrote, and when the disk is full.

#![allow(clippy::unwrap_used, reason = "tests")]

use storage::model::ModelDisk;
use timeseries::{
    ColumnStore, Config, EntityId, Kept, Order, Point, Position, Query, Store, StoreError, ValueRef, WriteError,
};

const DEVICE: EntityId = EntityId([1; 16]);

fn config() -> Config {
    Config {
        head_bytes_max: 64 << 10,
        ..Config::default()
    }
}

fn write(store: &dyn Store, from: i64, count: i64, position: u64) -> Result<(), WriteError> {
    let points: Vec<Point<'_>> = (from..from + count)
        .map(|n| Point {
            entity: DEVICE,
            key: "k",
            ts_ms: n * 1000 + n * n % 7,
            value: ValueRef::Long(n * n % 1009),
            kept: Kept::Everywhere,
        })
        .collect();
    store.write(&points, Position(position)).map(|_| ())
}

fn count(store: &dyn Store) -> Result<usize, StoreError> {
    let query = Query::Points {
        range: i64::MIN..i64::MAX,
        order: Order::Ascending,
        limit: usize::MAX,
    };
    Ok(store.query(DEVICE, &["k"], &query)?[0].len())
}

fn filled() -> ModelDisk {
    let disk = ModelDisk::from_seed(3);
    let store = ColumnStore::open(disk.storage(), config()).unwrap();
    for batch in 0..3 {
        write(&store, batch * 3000, 3000, batch as u64 + 1).unwrap();
        store.flush().unwrap();
    }
    disk
}

/// Open and read everything: the right answer or an error, never a wrong answer.
fn damage(disk: &ModelDisk, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = disk.read_file(name);
    change(&mut bytes);
    disk.write_file(name, &bytes);
}

#[test]
fn a_flipped_bit_is_an_error_and_never_a_wrong_answer() {
    let whole = filled();
    let mut errors = 0;
    let mut tries = 0;
    for name in whole.file_names() {
        let length = whole.read_file(&name).len();
        for at in (0..length).step_by(length / 60 + 1) {
            let disk = whole.copy();
            damage(&disk, &name, |bytes| bytes[at] ^= 0x10);
            tries += 1;
            let result = ColumnStore::open(disk.storage(), config()).and_then(|store| count(&store));
            match result {
                Ok(count) => panic!("{name} at {at}: nobody noticed, {count} points"),
                Err(StoreError::Corrupt { file, .. }) => {
                    assert!(file.ends_with(&name), "{file} instead of {name}");
                    errors += 1;
                }
                Err(StoreError::Version { .. } | StoreError::Io { .. }) => errors += 1,
                Err(error) => panic!("{name} at {at}: {error}"),
            }
        }
    }
    assert_eq!(errors, tries);
}

#[test]
fn a_file_that_is_cut_or_gone_is_an_error() {
    let whole = filled();
    for name in whole.file_names() {
        let cut = whole.copy();
        damage(&cut, &name, |bytes| bytes.truncate(bytes.len() - 1));
        assert!(ColumnStore::open(cut.storage(), config()).is_err(), "{name} cut");
        let gone = whole.copy();
        gone.remove_file(&name);
        let error = ColumnStore::open(gone.storage(), config()).err().unwrap();
        assert!(error.to_string().contains(&name), "{error}");
    }
}

#[test]
fn a_full_disk_holds_writers_back_and_passes() {
    let disk = ModelDisk::from_seed(4);
    let store = ColumnStore::open(disk.storage(), config()).unwrap();
    disk.set_free_bytes(40_000);
    let mut written = 0;
    let mut fill = || loop {
        match write(&store, written * 500, 500, written as u64 + 1) {
            Ok(()) => written += 1,
            Err(error) => return (written, error),
        }
        assert!(written < 10_000);
    };
    // The half that cannot be flushed is full; then the other half is.
    fill();
    let (written, error) = fill();
    let WriteError::Busy { source, .. } = error;
    assert!(source.is_full_disk() && source.is_retryable(), "{source}");
    let stats = store.stats();
    assert!(stats.last_error.is_some() && stats.flush_errors_total > 0);
    assert!(
        stats.head_bytes <= stats.head_bytes_max + (16 << 10),
        "{}",
        stats.head_bytes
    );
    // What was taken is there, and readable.
    assert_eq!(count(&store).unwrap() as i64, written * 500);
    assert!(write(&store, written * 500, 500, written as u64 + 1).is_err());
    disk.set_free_bytes(u64::MAX);
    write(&store, written * 500, 500, written as u64 + 1).unwrap();
    store.flush().unwrap();
    assert_eq!(store.stats().last_error, None);
    drop(store);
    disk.power_cut();
    let store = ColumnStore::open(disk.storage(), config()).unwrap();
    assert_eq!(count(&store).unwrap() as i64, (written + 1) * 500);
    assert_eq!(store.durable_position(), Position(written as u64 + 1));
}

#[test]
fn files_that_nobody_refers_to_are_removed() {
    let disk = filled();
    let before = disk.file_names();
    drop(disk.storage().create("00000000000000ff.segment", 0).unwrap());
    drop(disk.storage().create("00000000000000ff.series", 0).unwrap());
    drop(disk.storage().create("manifest.new", 0).unwrap());
    drop(disk.storage().create("notes.txt", 0).unwrap());
    drop(ColumnStore::open(disk.storage(), config()).unwrap());
    let after: Vec<String> = disk
        .file_names()
        .into_iter()
        .filter(|name| name != "notes.txt")
        .collect();
    assert_eq!(after, before);
}

#[test]
fn series_beyond_the_limit_are_refused_and_counted() {
    let config = Config {
        series_max: 2,
        ..config()
    };
    let store = ColumnStore::open(ModelDisk::from_seed(5).storage(), config).unwrap();
    let point = |key| Point {
        entity: DEVICE,
        key,
        ts_ms: 1,
        value: ValueRef::Bool(true),
        kept: Kept::Everywhere,
    };
    let written = store.write(&[point("a"), point("b"), point("c")], Position(1)).unwrap();
    assert_eq!((written.points, written.refused_points), (2, 1));
    assert_eq!(store.stats().refused_points_total, 1);
}
