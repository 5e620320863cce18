//! Reads records from Kafka's log files. Supports uncompressed record batches of version 2.
//!
//! A batch has these fields: base offset (8 bytes), length of the rest (4), leader epoch (4), version (1), CRC (4),
//! attributes (2), last offset delta (4), two timestamps (16), producer (8, 2, 4), count (4), then the records. A
//! record has length, attributes (1), deltas of timestamp and offset, key, value and headers. Numbers in a record are
//! zigzag varints. A null key or value has length -1.

use std::path::Path;

use super::kafka::Found;

const BATCH_HEAD: usize = 61;

/// Returns the records in the files of a partition, in order.
pub fn records(directory: &Path, partition: i32) -> Vec<Found> {
    let entries = std::fs::read_dir(directory).expect("a directory of Kafka");
    let mut files: Vec<_> = entries.map_while(Result::ok).map(|entry| entry.path()).collect();
    files.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "log" || extension == "deleted")
    });
    files.retain(|path| path.to_string_lossy().contains(".log"));
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let bytes = std::fs::read(file).expect("a file of Kafka");
        let mut rest = &bytes[..];
        while rest.len() >= BATCH_HEAD {
            let end = 12 + number(&rest[8..12]) as usize;
            assert_eq!(
                (rest[16], rest[22] & 7),
                (2, 0),
                "expected an uncompressed batch of version 2"
            );
            batch(&rest[BATCH_HEAD..end], number(&rest[57..61]), partition, &mut found);
            rest = &rest[end..];
        }
    }
    found
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four bytes"))
}

fn batch(mut bytes: &[u8], count: u32, partition: i32, found: &mut Vec<Found>) {
    for _ in 0..count {
        let length = varint(&mut bytes) as usize;
        let (mut record, rest) = bytes.split_at(length);
        bytes = rest;
        record = &record[1..];
        varint(&mut record);
        varint(&mut record);
        let key = text(&mut record);
        let value = text(&mut record);
        found.push(Found { partition, key, value });
    }
}

fn text(bytes: &mut &[u8]) -> String {
    let length = usize::try_from(varint(bytes)).unwrap_or(0);
    let (text, rest) = bytes.split_at(length);
    *bytes = rest;
    String::from_utf8_lossy(text).into_owned()
}

fn varint(bytes: &mut &[u8]) -> i64 {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let (byte, rest) = bytes.split_first().expect("a whole record");
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return (value >> 1) as i64 ^ -((value & 1) as i64);
        }
    }
}
