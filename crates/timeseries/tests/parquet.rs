//! Tests exports as Parquet by reading them with a Parquet reader.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{self, Write};

use bytes::Bytes;
use parquet::basic::{Compression, LogicalType, TimeUnit};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, RowAccessor};
use timeseries::{
    ColumnStore, EXPORT_GROUP_ROWS, EXPORT_GROUP_TEXT_BYTES, ExportError, LogPosition, Point, PointDestination,
    StoreConfig, TelemetryEntityId, TimeseriesStore, ValueRef, export_parquet,
};

const DEVICE: TelemetryEntityId = TelemetryEntityId([7; 16]);
const ALL: std::ops::Range<i64> = i64::MIN..i64::MAX;

fn store() -> ColumnStore {
    ColumnStore::open(
        storage::model::ModelDisk::from_seed(1).storage(),
        StoreConfig::default(),
    )
    .unwrap()
}

fn write(store: &ColumnStore, position: u64, key: &str, values: &[(i64, ValueRef<'_>)]) {
    let points: Vec<Point<'_>> = values
        .iter()
        .map(|&(ts_ms, value)| Point {
            entity: DEVICE,
            key,
            ts_ms,
            value,
            destination: PointDestination::HistoryAndLatest,
        })
        .collect();
    store.write(&points, LogPosition(position)).unwrap();
}

fn exported(store: &ColumnStore, keys: &[&str], range: std::ops::Range<i64>) -> (u64, SerializedFileReader<Bytes>) {
    let mut out = Vec::new();
    let points = export_parquet(store, DEVICE, keys, range, &mut out).unwrap();
    (points, SerializedFileReader::new(Bytes::from(out)).unwrap())
}

#[test]
fn every_type_is_a_column_and_reads_back() {
    let store = store();
    write(
        &store,
        1,
        "a",
        &[
            (-5, ValueRef::Long(i64::MIN)),
            (1, ValueRef::Double(0.1)),
            (2, ValueRef::Bool(false)),
        ],
    );
    write(
        &store,
        2,
        "ü,\"b",
        &[
            (1, ValueRef::Json("{\"x\":[1]}")),
            (2, ValueRef::String("")),
            (9, ValueRef::String("late")),
        ],
    );
    let (points, file) = exported(&store, &["a", "unknown", "ü,\"b"], -5..9);
    assert_eq!(points, 5);
    let null = || Field::Null;
    let row = |key: &str, ts, values: [Field; 5]| {
        let mut fields = vec![Field::Str(key.to_owned()), Field::TimestampMillis(ts)];
        fields.extend(values);
        fields
    };
    let expected = [
        row("a", -5, [null(), Field::Long(i64::MIN), null(), null(), null()]),
        row("a", 1, [null(), null(), Field::Double(0.1), null(), null()]),
        row("a", 2, [Field::Bool(false), null(), null(), null(), null()]),
        row(
            "ü,\"b",
            1,
            [null(), null(), null(), null(), Field::Str("{\"x\":[1]}".to_owned())],
        ),
        row("ü,\"b", 2, [null(), null(), null(), Field::Str(String::new()), null()]),
    ];
    let rows: Vec<Vec<Field>> = file
        .get_row_iter(None)
        .unwrap()
        .map(|row| row.unwrap().get_column_iter().map(|(_, field)| field.clone()).collect())
        .collect();
    assert_eq!(rows, expected);
    let schema = file.metadata().file_metadata().schema_descr();
    let names: Vec<&str> = schema.columns().iter().map(|column| column.name()).collect();
    assert_eq!(names, ["key", "ts", "bool_v", "long_v", "dbl_v", "str_v", "json_v"]);
    let time = LogicalType::timestamp(true, TimeUnit::MILLIS);
    assert_eq!(schema.column(1).logical_type_ref(), Some(&time));
    let group = file.metadata().row_group(0);
    assert!(
        group
            .columns()
            .iter()
            .all(|column| column.compression() == Compression::LZ4_RAW)
    );
}

#[test]
fn nothing_is_a_file_without_rows() {
    let (points, file) = exported(&store(), &["a"], ALL);
    assert_eq!((points, file.metadata().num_row_groups()), (0, 0));
    assert!(file.get_row_iter(None).unwrap().next().is_none());
}

/// A row group is in memory as a whole. Its size stays bounded with many points and with long texts.
#[test]
fn row_groups_are_bounded_by_points_and_by_text() {
    let store = store();
    let rows = EXPORT_GROUP_ROWS as i64 * 2 + 10;
    let longs: Vec<(i64, ValueRef<'_>)> = (0..rows).map(|at| (at * 1000, ValueRef::Long(at * 7))).collect();
    write(&store, 1, "long", &longs);
    let text = "x".repeat(EXPORT_GROUP_TEXT_BYTES / 4);
    let texts: Vec<(i64, ValueRef<'_>)> = (0..9).map(|at| (at, ValueRef::String(&text))).collect();
    write(&store, 2, "text", &texts);

    let (points, file) = exported(&store, &["long", "text"], ALL);
    assert_eq!(points, rows as u64 + 9);
    let groups: Vec<i64> = file
        .metadata()
        .row_groups()
        .iter()
        .map(|group| group.num_rows())
        .collect();
    let full = EXPORT_GROUP_ROWS as i64;
    assert_eq!(groups, [full, full, 10 + 4, 4, 1]);
    let mut at = 0;
    for row in file.get_row_iter(None).unwrap().take(rows as usize) {
        let row = row.unwrap();
        assert_eq!(
            (row.get_string(0).unwrap().as_str(), row.get_long(3).unwrap()),
            ("long", at * 7)
        );
        assert_eq!(row.get_timestamp_millis(1).unwrap(), at * 1000);
        at += 1;
    }
    assert_eq!(at, rows);
    // Regular timestamps and counters are delta-encoded, which takes a thousandth of the plain size.
    let sizes = file.metadata().row_group(0).columns();
    assert!(
        sizes[..4].iter().map(|column| column.compressed_size()).sum::<i64>() < full,
        "{sizes:?}"
    );
}

/// A writer that fails after this many bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn closed_output_ends_the_export() {
    let store = store();
    let text = "x".repeat(EXPORT_GROUP_TEXT_BYTES);
    let texts: Vec<(i64, ValueRef<'_>)> = (0..4).map(|at| (at, ValueRef::String(&text))).collect();
    write(&store, 1, "text", &texts);
    for room in [0, 100] {
        let ended = export_parquet(&store, DEVICE, &["text"], ALL, &mut Full(room));
        assert!(matches!(ended, Err(ExportError::Output(_))), "{ended:?}");
    }
}
