//! Tests flipped bits and missing files: errors name the file and the offset, and damage never counts as the end of the
//! log.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use storage::model::ModelDisk;
use tidewire_journal::{
    Damage, InvalidBlock, LogBatch, LogConfig, Lsn, OpenError, OpenReport, RecordLog, ReplayError, VersionOf,
};

const SEGMENT_BYTES: u64 = 1024;

fn config() -> LogConfig {
    LogConfig {
        segment_bytes: SEGMENT_BYTES,
        max_bytes: 1 << 20,
        reserve_bytes: 0,
        ..LogConfig::default()
    }
}

type Replayed = Vec<(Lsn, Vec<u8>)>;

fn try_open(disk: &ModelDisk) -> Result<(RecordLog, OpenReport, Replayed), OpenError> {
    let mut replayed = Vec::new();
    let mut replay = |position, payload: &[u8]| {
        replayed.push((position, payload.to_vec()));
        Ok(())
    };
    let (log, opened) = RecordLog::open(disk.storage(), config(), &mut replay, &mut |_, _| {})?;
    Ok((log, opened, replayed))
}

fn error_of(disk: &ModelDisk) -> OpenError {
    match try_open(disk) {
        Ok(_) => panic!("the journal was opened"),
        Err(error) => error,
    }
}

/// Returns a journal with twenty batches in several segments. No later block proves that the last batch was synced.
fn journal() -> ModelDisk {
    let disk = ModelDisk::from_seed(1);
    let mut log = try_open(&disk).unwrap().0;
    let mut batch = LogBatch::new();
    for number in 0..20_u8 {
        batch.record(|bytes| bytes.extend(vec![number; 30 + 7 * usize::from(number)]));
        batch.record(|bytes| bytes.push(number));
        log.append(&mut batch);
        log.flush().unwrap();
    }
    disk
}

/// Returns such a journal with a checkpoint in its third segment and without the first segment.
fn journal_with_checkpoint() -> ModelDisk {
    let disk = journal();
    let (mut log, _, _) = try_open(&disk).unwrap();
    let base_of = |number: usize| u64::from_str_radix(&segments(&disk)[number][..16], 16).unwrap();
    log.set_checkpoint(Lsn(base_of(2))).unwrap();
    log.truncate_before(Lsn(base_of(1))).unwrap();
    disk
}

fn segments(disk: &ModelDisk) -> Vec<String> {
    let mut names = disk.file_names();
    names.retain(|name| name.ends_with(".log"));
    names
}

fn flip(disk: &ModelDisk, name: &str, bit: usize) {
    let mut bytes = disk.read_file(name);
    bytes[bit / 8] ^= 1 << (bit % 8);
    disk.write_file(name, &bytes);
}

// fault: Damaged bytes; Journal
#[test]
fn flipped_bit_is_damage_or_cuts_only_unsynced_data() {
    for disk in [journal(), journal_with_checkpoint()] {
        let (_, opened, whole) = try_open(&disk).unwrap();
        let names = segments(&disk);
        let last = names.last().unwrap();
        // Only the last block is behind the last position that another block proves to be synced.
        let proven = whole[whole.len() - 2].0.0 - 32;
        let mut cuts = 0;
        for name in names.iter().map(String::as_str).chain(
            disk.file_names()
                .iter()
                .map(String::as_str)
                .filter(|name| *name == "checkpoint"),
        ) {
            for bit in 0..disk.read_file(name).len() * 8 {
                let disk = disk.copy();
                flip(&disk, name, bit);
                match try_open(&disk) {
                    Err(error) => assert!(is_about(&error, name), "{name} bit {bit}: {error}"),
                    Ok((_, opened, replayed)) if replayed != whole || opened.torn_bytes_cut > 0 => {
                        assert_eq!(name, last, "bit {bit}");
                        assert!(
                            whole.starts_with(&replayed) && opened.next.0 >= proven,
                            "{name} bit {bit}"
                        );
                        cuts += 1;
                    }
                    // Replay does not read data before the checkpoint.
                    Ok(_) => assert!(
                        bit / 8 >= 64 && opened.replayed_from > Lsn(0) && *name == names[0],
                        "{name} bit {bit}"
                    ),
                }
            }
        }
        assert!(cuts > 0);
    }
}

fn is_about(error: &OpenError, name: &str) -> bool {
    match error {
        OpenError::Damaged { file, .. } => file == name,
        _ => false,
    }
}

// fault: Damaged bytes; Journal
#[test]
fn flipped_bit_after_a_clean_shutdown_is_damage() {
    let disk = journal();
    let (log, _, whole) = try_open(&disk).unwrap();
    log.close().unwrap();
    let name = segments(&disk).pop().unwrap();
    let end = disk.read_file(&name).iter().rposition(|byte| *byte != 0).unwrap();
    for bit in 0..(end + 1) * 8 {
        let disk = disk.copy();
        flip(&disk, &name, bit);
        match try_open(&disk) {
            Err(error) => assert!(is_about(&error, &name), "bit {bit}: {error}"),
            // This is the end mark of a clean shutdown, which has no records.
            Ok((_, opened, replayed)) => assert!(replayed == whole && opened.torn_bytes_cut <= 32, "bit {bit}"),
        }
    }
}

// fault: Damaged bytes; Journal
#[test]
fn damage_error_has_position_and_remedy() {
    let disk = journal();
    let name = &segments(&disk)[1];
    let base = u64::from_str_radix(&name[..16], 16).unwrap();
    flip(&disk, name, (64 + 32 + 8) * 8);
    let error = error_of(&disk);
    let OpenError::Damaged {
        file,
        offset,
        lsn,
        damage: what,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert_eq!((file, *offset, *lsn), (name, 64, Lsn(base)));
    assert_eq!(*what, Damage::Block(InvalidBlock::RecordChecksum));
    assert_eq!(
        error.to_string(),
        format!(
            "the journal is damaged: {name}, offset 64 (position {base}): bad checksum of a record. Restore a backup, or repair \
             the journal. A repair removes all later records; with --skip-damaged, only damaged ones: tidewire journal \
             repair --data-dir /data"
        )
    );
    // The failed opening has changed nothing.
    assert_eq!(error_of(&disk).to_string(), error.to_string());
}

// fault: Process killed; Journal
#[test]
fn torn_tail_is_cut_and_the_log_continues() {
    let whole = journal();
    let name = segments(&whole).pop().unwrap();
    let bytes = whole.read_file(&name);
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let records = try_open(&whole.copy()).unwrap().2;
    for keep in end - 100..end {
        let disk = whole.copy();
        let torn: Vec<u8> = bytes[..keep]
            .iter()
            .copied()
            .chain(vec![0; bytes.len() - keep])
            .collect();
        disk.write_file(&name, &torn);
        let (mut log, opened, replayed) = try_open(&disk).unwrap();
        assert!(replayed == records[..records.len() - 2] && opened.torn_bytes_cut > 0);
        assert_eq!(log.stats().torn_bytes_cut, opened.torn_bytes_cut);
        let mut batch = LogBatch::new();
        batch.record(|bytes| bytes.push(99));
        log.append(&mut batch);
        log.flush().unwrap();
        drop(log);
        let (_, opened, replayed) = try_open(&disk).unwrap();
        assert_eq!(
            (replayed.last().unwrap().1.as_slice(), opened.torn_bytes_cut),
            (&[99_u8][..], 0)
        );
    }
}

/// Returns the ends of valid blocks, as offsets in a segment's file.
fn block_ends(name: &str, bytes: &[u8]) -> Vec<usize> {
    let base = u64::from_str_radix(&name[..16], 16).unwrap();
    let mut ends = vec![64];
    loop {
        let at = *ends.last().unwrap();
        let lsn = (base + at as u64 - 64).to_le_bytes();
        match bytes.get(at..at + 32) {
            Some(header) if header[8..16] == lsn && header[..4] == [0xB1, 0x0C, 0xF5, 0x9A] => {
                let records = u32::from_le_bytes(*header[4..].first_chunk().unwrap());
                ends.push(at + 32 + records as usize);
            }
            _ => return ends,
        }
    }
}

/// A file that was cut between two blocks is indistinguishable from one that was only filled so far.
// fault: Damaged bytes; Journal
#[test]
fn active_segment_cut_within_a_block_is_damaged() {
    for disk in [journal(), journal_with_checkpoint()] {
        let (mut log, _, _) = try_open(&disk).unwrap();
        let mut batch = LogBatch::new();
        for number in 0..12 {
            batch.record(|bytes| bytes.extend([number; 50]));
            log.append(&mut batch);
            log.flush().unwrap();
        }
        drop(log);
        let (_, _, whole) = try_open(&disk).unwrap();
        let name = segments(&disk).pop().unwrap();
        let bytes = disk.read_file(&name);
        let ends = block_ends(&name, &bytes);
        let used = *ends.last().unwrap();
        assert!(ends.len() > 2 && used < bytes.len());
        for keep in 0..bytes.len() {
            let disk = disk.copy();
            disk.write_file(&name, &bytes[..keep]);
            let block = ends.iter().rfind(|end| **end <= keep).copied();
            match try_open(&disk) {
                Err(OpenError::Damaged {
                    file,
                    offset,
                    damage: what,
                    ..
                }) => {
                    assert_eq!(
                        (file, offset),
                        (name.clone(), block.unwrap_or(0) as u64),
                        "cut to {keep}"
                    );
                    let expected = match block {
                        None => Damage::SegmentHeader,
                        Some(_) => Damage::Block(InvalidBlock::Cut),
                    };
                    assert!(
                        what == expected && keep < used && block != Some(keep),
                        "cut to {keep}: {what}"
                    );
                }
                Err(error) => panic!("cut to {keep}: {error}"),
                Ok((_, opened, replayed)) => {
                    assert!(keep >= used || block == Some(keep), "cut to {keep}: not reported");
                    assert!(keep < used || replayed == whole, "cut to {keep}");
                    assert_eq!(opened.torn_bytes_cut, 0, "cut to {keep}");
                }
            }
        }
    }
}

// fault: Missing files; Journal
#[test]
fn missing_segment_is_named() {
    for disk in [journal(), journal_with_checkpoint()] {
        let names = segments(&disk);
        for name in &names[..names.len() - 1] {
            let disk = disk.copy();
            disk.remove_file(name);
            let error = error_of(&disk);
            assert!(
                matches!(&error, OpenError::SegmentMissing { file, .. } if file == name),
                "{name}: {error}"
            );
            assert!(
                error.to_string().ends_with("tidewire journal repair --data-dir /data"),
                "{error}"
            );
        }
    }
}

// fault: Missing files; Journal
#[test]
fn log_without_its_checkpoint_segment_does_not_start_empty() {
    let disk = journal_with_checkpoint();
    for name in segments(&disk) {
        disk.remove_file(&name);
    }
    assert!(matches!(error_of(&disk), OpenError::SegmentMissing { .. }));
}

// fault: Damaged bytes; Journal
#[test]
fn file_of_another_journal_is_rejected() {
    let (disk, other) = (journal(), ModelDisk::from_seed(2));
    let mut log = try_open(&other).unwrap().0;
    log.flush().unwrap();
    let name = segments(&disk)[0].clone();
    disk.write_file(&name, &other.read_file(&name));
    let error = error_of(&disk);
    assert!(matches!(error, OpenError::WrongJournal { .. }), "{error}");
}

#[test]
fn later_format_is_rejected_and_is_not_damage() {
    for name in ["0000000000000000.log", "checkpoint"] {
        let disk = journal_with_checkpoint().copy();
        let name = if name == "checkpoint" {
            name.to_owned()
        } else {
            segments(&disk)[0].clone()
        };
        let mut bytes = disk.read_file(&name);
        bytes[8] = 2;
        let mut checksum = crc32c::crc32c(&bytes[..12]);
        checksum = crc32c::crc32c_append(checksum, &bytes[16..64]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        disk.write_file(&name, &bytes);
        let error = error_of(&disk);
        assert!(
            matches!(&error, OpenError::TooNew { file, of: VersionOf::Format, version: 2, .. } if file.ends_with(&name)),
            "{error}"
        );
    }
}

#[test]
fn block_of_a_later_record_version_is_rejected() {
    let disk = journal();
    let later = LogConfig {
        record_version: 2,
        ..config()
    };
    let open_later = || RecordLog::open(disk.storage(), later.clone(), &mut |_, _| Ok(()), &mut |_, _| {}).unwrap();
    // The later program opens records of the earlier one. Until it writes a record, so does the earlier program.
    drop(open_later());
    drop(try_open(&disk).unwrap());
    let (mut log, _) = open_later();
    let mut batch = LogBatch::new();
    batch.record(|bytes| bytes.push(20));
    log.append(&mut batch);
    log.flush().unwrap();
    drop(log);
    let last = segments(&disk).pop().unwrap();
    let error = error_of(&disk);
    assert!(
        matches!(
            &error,
            OpenError::TooNew { file, of: VersionOf::Records, version: 2, supported: 1 } if file.ends_with(&last)
        ),
        "{error}"
    );
    assert!(
        error.to_string().ends_with(
            "has record version 2, but this program supports versions up to 1. Use the newer tidewire that wrote it, or \
             restore a backup"
        ),
        "{error}"
    );
    let (_, opened) = open_later();
    assert_eq!(opened.records, 41);
}

#[test]
fn record_rejected_by_its_receiver_fails_the_opening() {
    let disk = journal();
    let mut count = 0;
    let mut replay = |_, _: &[u8]| {
        count += 1;
        match count {
            3 => Err(ReplayError {
                reason: "of a kind that is not known".to_owned(),
            }),
            _ => Ok(()),
        }
    };
    let Err(error) = RecordLog::open(disk.storage(), config(), &mut replay, &mut |_, _| {}) else {
        panic!("the journal was opened");
    };
    let text = error.to_string();
    assert!(
        text.contains(" has an invalid record at position ") && text.contains(": of a kind that is not known. Use"),
        "{text}"
    );
}

#[test]
fn unusable_configuration_is_rejected() {
    for (segment_bytes, max_bytes) in [(10, 1 << 20), (1024, 2048)] {
        let config = LogConfig {
            segment_bytes,
            max_bytes,
            ..config()
        };
        let result = RecordLog::open(
            ModelDisk::from_seed(1).storage(),
            config,
            &mut |_, _| Ok(()),
            &mut |_, _| {},
        );
        assert!(matches!(result, Err(OpenError::Config(_))));
    }
}

/// A payload cannot make the end of the log look synced, because the checksum includes the journal's ID.
#[test]
fn payload_that_imitates_a_block_does_not_prove_a_sync() {
    let disk = ModelDisk::from_seed(1);
    let mut log = try_open(&disk).unwrap().0;
    let mut batch = LogBatch::new();
    batch.record(|bytes| bytes.extend([1; 10]));
    log.append(&mut batch);
    // The payload has two headers and a frame in front of it.
    let lsn = (32 + 8 + 10) + 32 + 8_u64;
    batch.record(|bytes| bytes.extend(forged_header(lsn, lsn)));
    log.append(&mut batch);
    log.flush().unwrap();
    drop(log);
    let name = segments(&disk)[0].clone();
    let at = disk
        .read_file(&name)
        .windows(32)
        .position(|bytes| bytes == forged_header(lsn, lsn));
    assert_eq!(at, Some(64 + lsn as usize), "the imitated block has the right position");
    flip(&disk, &name, 70 * 8);
    let (_, opened, replayed) = try_open(&disk).unwrap();
    assert!(replayed.is_empty() && opened.torn_bytes_cut > 0);
}

/// Imitates a block with everything that is known from outside, which is all but the journal's id.
fn forged_header(lsn: u64, synced: u64) -> Vec<u8> {
    let mut bytes = vec![0xB1, 0x0C, 0xF5, 0x9A, 0, 0, 0, 0];
    bytes.extend(lsn.to_le_bytes());
    bytes.extend(synced.to_le_bytes());
    bytes.extend(crc32c::crc32c_append(crc32c::crc32c(&bytes), &[0; 4]).to_le_bytes());
    bytes.extend([0; 4]);
    bytes
}

#[test]
fn block_at_another_position_is_invalid() {
    let disk = ModelDisk::from_seed(1);
    let mut log = try_open(&disk).unwrap().0;
    let mut batch = LogBatch::new();
    for number in 0..4 {
        batch.record(|bytes| bytes.extend([number; 60]));
        log.append(&mut batch);
        log.flush().unwrap();
    }
    drop(log);
    let name = segments(&disk)[0].clone();
    let mut bytes = disk.read_file(&name);
    bytes.copy_within(64..164, 164);
    disk.write_file(&name, &bytes);
    let OpenError::Damaged {
        offset, damage: what, ..
    } = error_of(&disk)
    else {
        panic!("unexpected error");
    };
    assert_eq!((offset, what), (164, Damage::Block(InvalidBlock::Position)));
}

// fault: Missing files; Journal
#[test]
fn missing_segment_around_the_checkpoint_is_named() {
    let disk = journal();
    let names = segments(&disk);
    let last = names.last().unwrap();
    let mut log = try_open(&disk).unwrap().0;
    let next = log.stats().next;
    log.set_checkpoint(next).unwrap();
    drop(log);
    for (removed, named) in [(&names[1], &names[1]), (last, last)] {
        let disk = disk.copy();
        disk.remove_file(removed);
        let error = error_of(&disk);
        assert!(
            matches!(&error, OpenError::SegmentMissing { file, .. } if file == named),
            "{removed}: {error}"
        );
    }
}
