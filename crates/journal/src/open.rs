//! Opens a log: replays from the checkpoint, and decides what to do at the first position without a valid block.
//!
//! A crash may leave any part of the data that was not synced. An invalid position at the end is therefore a *torn
//! tail*: it was never acknowledged, and it is truncated. If later data proves that the position had been synced, it is
//! *damage*, and the log does not open, because truncating would lose acknowledged records. There are four proofs:
//! - the `synced` field of a later block;
//! - a later segment, because a segment is started only after the previous one is synced completely;
//! - a file that ends within a block. A crash cannot cause that: the file length is durable before the block is
//!   written;
//! - the position that the checkpoint says was reached.
//!
//! The rest of the tail is rewritten and synced before the log continues. It may be only in the page cache, and after a
//! failed sync of an earlier process the kernel may treat pages as clean that never reached the disk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::catalog::{SegmentCatalog, missing, path_of};
use crate::checkpoint::{CHECKPOINT_NEW_NAME, Checkpoint};
use crate::config::LogConfig;
use crate::layout::{InvalidBlock, SegmentHeader};
use crate::lsn::Lsn;
use crate::open_error::{Damage, OpenError, ReplayError, VersionOf, io_error};
use crate::scan::{BlockScan, ScannedBlock, examine_rest};
use crate::segments::{LogSegment, base_of_newest_name, newest_name, segment_name};
use crate::space::SPARE_NAME;
use storage::{Storage, is_full, read_full, write_all};

/// Result of opening a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Whether the log was created by this call.
    pub is_new: bool,
    pub replayed_from: Lsn,
    pub next: Lsn,
    pub blocks: u64,
    pub records: u64,
    pub torn_bytes_cut: u64,
    /// Records that a repair replaced because they were damaged.
    pub lost_records: u64,
}

/// Receives the position and payload of each record.
pub type ReplayVisitor<'a> = dyn FnMut(Lsn, &[u8]) -> Result<(), ReplayError> + 'a;
/// Receives the number of bytes read and the total.
pub type OpenProgress<'a> = dyn FnMut(u64, u64) + 'a;

/// Bytes between two calls of [`OpenProgress`].
const PROGRESS_BYTES: u64 = 8 << 20;
/// Bytes per write when the tail is rewritten.
const REWRITE_BYTES: usize = 1 << 20;

pub(crate) struct RecoveredLog {
    pub catalog: SegmentCatalog,
    pub opened: OpenReport,
}

pub(crate) fn recover(
    storage: &Arc<dyn Storage>,
    config: &LogConfig,
    replay: &mut ReplayVisitor<'_>,
    progress: &mut OpenProgress<'_>,
) -> Result<RecoveredLog, OpenError> {
    config.check().map_err(OpenError::Config)?;
    let storage = &**storage;
    remove_existing(storage, &[SPARE_NAME.to_owned(), CHECKPOINT_NEW_NAME.to_owned()])?;
    let Some(catalog) = SegmentCatalog::read(storage)? else {
        return create(storage, config);
    };
    remove_leftovers(storage, &catalog.obsolete_names)?;
    let mut run = ReplayRun::new(storage, config.record_version, &catalog, replay, progress);
    let tail = run.replay_all()?;
    let mut opened = run.opened;
    let last = catalog.segments.last().expect("a journal has a segment");
    tail.truncate_and_sync(last, config)
        .map_err(io_error("finishing the tail of", &last.name))?;
    storage
        .sync_directory()
        .map_err(io_error("syncing", "the journal directory"))?;
    name_newest(storage, last.base)?;
    opened.next = tail.end;
    opened.torn_bytes_cut = tail.torn_bytes;
    Ok(RecoveredLog { catalog, opened })
}

/// Removes segments that the checkpoint no longer includes. The directory is synced first: if the previous process
/// stopped between renaming the checkpoint and syncing, the checkpoint is visible but not durable.
fn remove_leftovers(storage: &dyn Storage, leftovers: &[String]) -> Result<(), OpenError> {
    if leftovers.is_empty() {
        return Ok(());
    }
    storage
        .sync_directory()
        .map_err(io_error("syncing", "the journal directory"))?;
    remove_existing(storage, leftovers)
}

fn remove_existing(storage: &dyn Storage, unwanted: &[String]) -> Result<(), OpenError> {
    let names = storage.names().map_err(io_error("listing", "the journal directory"))?;
    for name in unwanted.iter().filter(|name| names.contains(name)) {
        storage.remove(name).map_err(io_error("removing", name))?;
    }
    Ok(())
}

/// Creates the file that states the base of the newest segment, whose name is durable. Removes earlier ones.
fn name_newest(storage: &dyn Storage, base: Lsn) -> Result<(), OpenError> {
    let names = storage.names().map_err(io_error("listing", "the journal directory"))?;
    let name = newest_name(base);
    if !names.contains(&name) {
        storage.create(&name, 0).map_err(io_error("creating", &name))?;
    }
    let is_earlier = |other: &String| base_of_newest_name(other).is_some() && *other != name;
    let earlier: Vec<String> = names.into_iter().filter(is_earlier).collect();
    remove_existing(storage, &earlier)
}

fn create(storage: &dyn Storage, config: &LogConfig) -> Result<RecoveredLog, OpenError> {
    let base = Lsn(0);
    let name = segment_name(base);
    let failed = || io_error("creating", &name);
    let header = SegmentHeader {
        base,
        journal_id: storage.random().map_err(failed())?,
        created_unix_ms: storage.unix_ms(),
    };
    let file = storage.create(SPARE_NAME, config.segment_bytes).map_err(failed())?;
    write_all(&*file, 0, &header.encode()).map_err(failed())?;
    file.sync().map_err(failed())?;
    storage.rename(SPARE_NAME, &name).map_err(failed())?;
    storage.sync_directory().map_err(failed())?;
    name_newest(storage, base)?;
    let checkpoint = Checkpoint {
        journal_id: header.journal_id,
        replay_from: base,
        first: base,
        reached: base,
    };
    Ok(RecoveredLog {
        catalog: SegmentCatalog {
            checkpoint,
            segments: vec![Arc::new(LogSegment::new(base, file, config.segment_bytes))],
            obsolete_names: Vec::new(),
        },
        opened: OpenReport {
            is_new: true,
            ..OpenReport::default()
        },
    })
}

struct ReplayRun<'a, 'r> {
    storage: &'a dyn Storage,
    record_version: u32,
    catalog: &'a SegmentCatalog,
    replay: &'a mut ReplayVisitor<'r>,
    progress: &'a mut OpenProgress<'r>,
    opened: OpenReport,
    /// Highest `synced` position of the blocks so far.
    synced: Lsn,
    reported: u64,
}

impl<'a, 'r> ReplayRun<'a, 'r> {
    fn new(
        storage: &'a dyn Storage,
        record_version: u32,
        catalog: &'a SegmentCatalog,
        replay: &'a mut ReplayVisitor<'r>,
        progress: &'a mut OpenProgress<'r>,
    ) -> ReplayRun<'a, 'r> {
        let replayed_from = catalog.checkpoint.replay_from;
        ReplayRun {
            storage,
            record_version,
            catalog,
            replay,
            progress,
            opened: OpenReport {
                replayed_from,
                ..OpenReport::default()
            },
            synced: replayed_from,
            reported: 0,
        }
    }

    fn replay_all(&mut self) -> Result<DiskTail, OpenError> {
        let replay_from = self.catalog.checkpoint.replay_from;
        let segments = &self.catalog.segments;
        let begin = segments.partition_point(|segment| segment.base <= replay_from) - 1;
        for at in begin..segments.len() {
            let next_base = segments.get(at + 1).map(|next| next.base);
            let from = replay_from.max(segments[at].base);
            let (end, stop) = self.replay_segment(&segments[at], from, next_base)?;
            match next_base {
                None => return self.check_tail(&segments[at], end, stop),
                Some(next) if end == next => self.synced = next,
                Some(_) if stop.is_none() => return Err(missing(self.storage, end)),
                Some(_) => return Err(self.damaged(&segments[at], end, stop)),
            }
        }
        unreachable!("the loop ends with the last segment")
    }

    /// Returns the end of the valid blocks, and why the bytes there are invalid, unless the file ends.
    fn replay_segment(
        &mut self,
        segment: &LogSegment,
        from: Lsn,
        end: Option<Lsn>,
    ) -> Result<(Lsn, Option<InvalidBlock>), OpenError> {
        let mut scan = BlockScan::new(segment, self.catalog.checkpoint.journal_id, from, end);
        loop {
            self.report(scan.position());
            let block = match scan.next().map_err(io_error("reading", &segment.name))? {
                ScannedBlock::Block(block) => block,
                ScannedBlock::End => return Ok((scan.position(), None)),
                ScannedBlock::Invalid(invalid) => return Ok((scan.position(), Some(invalid))),
            };
            let version = block.header.record_version;
            if version > self.record_version {
                return Err(OpenError::TooNew {
                    file: path_of(self.storage, &segment.name),
                    of: VersionOf::Records,
                    version,
                    supported: self.record_version,
                });
            }
            self.opened.blocks += 1;
            self.opened.lost_records += block.lost_records;
            self.synced = self.synced.max(block.header.synced);
            for (position, payload) in block.records() {
                self.opened.records += 1;
                (self.replay)(position, payload).map_err(|error| OpenError::Replay {
                    file: path_of(self.storage, &segment.name),
                    position,
                    reason: error.reason,
                })?;
            }
        }
    }

    /// Decides whether the last segment ends in a torn tail or in damage.
    fn check_tail(&self, segment: &LogSegment, end: Lsn, stop: Option<InvalidBlock>) -> Result<DiskTail, OpenError> {
        let rest = examine_rest(segment, self.catalog.checkpoint.journal_id, end)
            .map_err(io_error("reading", &segment.name))?;
        let reached = self.catalog.checkpoint.reached;
        match rest.is_damage() || end < reached {
            false => Ok(DiskTail {
                synced: self.synced.max(segment.base),
                end,
                torn_bytes: rest.used_bytes,
            }),
            true if rest.is_damage() || stop.is_some() => Err(self.damaged(segment, end, stop)),
            true => Err(OpenError::EndMissing {
                location: self.storage.location(),
                file: segment.name.clone(),
                lsn: end,
                reached,
            }),
        }
    }

    fn damaged(&self, segment: &LogSegment, lsn: Lsn, stop: Option<InvalidBlock>) -> OpenError {
        OpenError::Damaged {
            location: self.storage.location(),
            file: segment.name.clone(),
            offset: segment.offset(lsn),
            lsn,
            damage: Damage::Block(stop.unwrap_or(InvalidBlock::Cut)),
        }
    }

    fn report(&mut self, position: Lsn) {
        let done = position.0 - self.opened.replayed_from.0;
        if done < self.reported + PROGRESS_BYTES {
            return;
        }
        self.reported = done;
        let end = self
            .catalog
            .segments
            .last()
            .expect("a journal has a segment")
            .file_end();
        (self.progress)(done, end.0 - self.opened.replayed_from.0);
    }
}

/// The end of the last segment as found on disk.
struct DiskTail {
    /// Everything before this position is known to be on disk.
    synced: Lsn,
    /// End of the valid blocks.
    end: Lsn,
    torn_bytes: u64,
}

impl DiskTail {
    /// Truncates the invalid part and makes the valid part durable.
    fn truncate_and_sync(&self, segment: &LogSegment, config: &LogConfig) -> io::Result<()> {
        let file = &*segment.file;
        match rewrite(segment, self.synced, self.end) {
            // On some file systems an overwrite needs new space. The existing data is synced below anyway.
            Err(error) if is_full(&error) => {}
            result => result?,
        }
        let end = segment.offset(self.end);
        if self.torn_bytes > 0 {
            // A complete block in the torn tail must not become valid again behind a new one.
            file.set_len(end)?;
        } else if file.len()? > end.max(config.segment_bytes) {
            // Preallocated with a larger segment size. The unused space would count against the quota.
            file.set_len(end.max(config.segment_bytes))?;
        }
        file.sync()?;
        match file.allocate(config.segment_bytes) {
            Ok(()) => {}
            Err(error) if is_full(&error) => {}
            Err(error) => return Err(error),
        }
        segment.file_bytes.store(file.len()?, Relaxed);
        Ok(())
    }
}

fn rewrite(segment: &LogSegment, from: Lsn, end: Lsn) -> io::Result<()> {
    let (mut offset, end) = (segment.offset(from), segment.offset(end));
    let mut bytes = vec![0; REWRITE_BYTES.min((end - offset) as usize)];
    while offset < end {
        let wanted = bytes.len().min((end - offset) as usize);
        let count = read_full(&*segment.file, offset, &mut bytes[..wanted])?;
        write_all(&*segment.file, offset, &bytes[..count])?;
        offset += count as u64;
    }
    Ok(())
}
