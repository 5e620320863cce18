//! Tests a store with damaged files and on a full disk.

#![allow(clippy::unwrap_used, reason = "tests")]

use storage::model::ModelDisk;
use timeseries::{
    ColumnStore, LogPosition, Point, PointDestination, PointOrder, Query, RejectReason, RejectedPoints, StoreConfig,
    StoreError, TelemetryEntityId, TimeseriesStore, ValueRef, WriteError,
};

const DEVICE: TelemetryEntityId = TelemetryEntityId([1; 16]);

fn config() -> StoreConfig {
    StoreConfig {
        head_bytes_max: 64 << 10,
        ..StoreConfig::default()
    }
}

fn write(store: &dyn TimeseriesStore, from: i64, count: i64, position: u64) -> Result<(), WriteError> {
    let points: Vec<Point<'_>> = (from..from + count)
        .map(|n| Point {
            entity: DEVICE,
            key: "k",
            ts_ms: n * 1000 + n * n % 7,
            value: ValueRef::Long(n * n % 1009),
            destination: PointDestination::HistoryAndLatest,
        })
        .collect();
    store.write(&points, LogPosition(position)).map(|_| ())
}

fn count(store: &dyn TimeseriesStore) -> Result<usize, StoreError> {
    let query = Query::Points {
        range: i64::MIN..i64::MAX,
        order: PointOrder::Ascending,
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

/// Opens the store and reads everything. The result is correct or an error, never wrong.
fn damage(disk: &ModelDisk, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = disk.read_file(name);
    change(&mut bytes);
    disk.write_file(name, &bytes);
}

// fault: Damaged bytes; Time series
#[test]
fn flipped_bit_is_an_error_and_never_a_wrong_result() {
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
                Ok(count) => panic!("{name} at {at}: the damage was not detected, {count} points"),
                Err(StoreError::Corrupt { file, .. }) => {
                    assert_eq!(file, format!("{}/{name}", disk.storage().directory()));
                    errors += 1;
                }
                Err(StoreError::Io { .. }) => errors += 1,
                Err(error) => panic!("{name} at {at}: {error}"),
            }
        }
    }
    assert_eq!(errors, tries);
}

/// Every bit of every header, the version included: a damaged version is not a later version.
// fault: Damaged bytes; Time series
#[test]
fn flipped_bit_of_a_header_is_damage() {
    let whole = filled();
    for name in whole.file_names() {
        for bit in 0..whole.read_file(&name).len().min(32) * 8 {
            let disk = whole.copy();
            damage(&disk, &name, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
            let result = ColumnStore::open(disk.storage(), config()).and_then(|store| count(&store));
            assert!(
                matches!(result, Err(StoreError::Corrupt { .. })),
                "{name} bit {bit}: {result:?}"
            );
        }
    }
}

#[test]
fn manifest_of_a_later_version_is_rejected_and_is_not_damage() {
    let disk = filled();
    damage(&disk, "manifest", |bytes| {
        bytes[8..12].copy_from_slice(&7_u32.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[8..16]), &bytes[20..]);
        bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    });
    let error = ColumnStore::open(disk.storage(), config()).err().unwrap();
    assert!(matches!(error, StoreError::Version { version: 7, .. }), "{error}");
}

/// The checksum of early manifests did not cover the version.
#[test]
fn early_manifest_is_read() {
    let disk = filled();
    damage(&disk, "manifest", |bytes| {
        let crc = crc32c::crc32c(&bytes[20..]);
        bytes[16..20].copy_from_slice(&crc.to_le_bytes());
    });
    let store = ColumnStore::open(disk.storage(), config()).unwrap();
    assert_eq!(count(&store).unwrap(), 9000);
}

// fault: Damaged bytes; Time series
// fault: Missing files; Time series
#[test]
fn truncated_or_missing_file_is_an_error() {
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

// fault: Disk full; Time series
#[test]
fn full_disk_delays_writers_until_space_returns() {
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
    // The half that cannot be flushed is full first, then the other half.
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
    // All accepted points can be read.
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
    assert_eq!(store.durable_position(), LogPosition(written as u64 + 1));
}

#[test]
fn unreferenced_files_are_removed() {
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
    let config = StoreConfig {
        series_max: 2,
        ..config()
    };
    let store = ColumnStore::open(ModelDisk::from_seed(5).storage(), config).unwrap();
    let point = |key| Point {
        entity: DEVICE,
        key,
        ts_ms: 1,
        value: ValueRef::Bool(true),
        destination: PointDestination::HistoryAndLatest,
    };
    let written = store
        .write(&[point("a"), point("b"), point("c")], LogPosition(1))
        .unwrap();
    assert_eq!((written.points, written.rejected_points), (2, 1));
    assert_eq!(store.stats().rejected_points_total, 1);
    let rejected = RejectedPoints {
        entity: DEVICE,
        key: "c".into(),
        reason: RejectReason::TooManySeries,
        points: 1,
    };
    assert_eq!(written.rejected, [rejected]);
}

#[test]
fn known_keys_of_an_entity_with_too_many_are_written() {
    let config = StoreConfig {
        keys_max: 1,
        ..config()
    };
    let store = ColumnStore::open(ModelDisk::from_seed(5).storage(), config).unwrap();
    let point = |key, ts_ms| Point {
        entity: DEVICE,
        key,
        ts_ms,
        value: ValueRef::Bool(true),
        destination: PointDestination::HistoryAndLatest,
    };
    let points = [point("a", 1), point("b", 1), point("c", 1), point("a", 2)];
    let written = store.write(&points, LogPosition(1)).unwrap();
    assert_eq!((written.points, written.rejected_points), (2, 2));
    let rejected = RejectedPoints {
        entity: DEVICE,
        key: "b".into(),
        reason: RejectReason::TooManyKeys,
        points: 2,
    };
    assert_eq!(written.rejected, [rejected]);
}
