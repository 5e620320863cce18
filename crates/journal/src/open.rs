//! Opening a log: replay from the checkpoint, and the decision at the first place that is not a valid block.
//!
//! A crash leaves any part of what had not been synced, so an invalid place at the end is a *torn tail*: nobody was told
//! that it is safe, and it is cut. But if something behind it says that it had been synced, it is *damage*: the log does
//! not open, because cutting would lose what somebody was told is safe. Three things say so: a later block's `synced`; a
//! later segment, which is begun only when the one before it is synced as a whole; and a file that ends within a block, which no
//! crash does: it was that long, on the disk, before the block was written.
//!
//! What is left of the tail is written once more and synced before the log goes on: it may be in the kernel's memory only,
//! and after a failed sync of an earlier process the kernel may hold for clean what the disk never got.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::catalog::{Catalog, missing};
use crate::checkpoint::{CHECKPOINT_NEW_NAME, Checkpoint};
use crate::config::LogConfig;
use crate::layout::{Invalid, SegmentHeader};
use crate::lsn::Lsn;
use crate::open_error::{Damage, OpenError, ReplayError, io_error};
use crate::scan::{BlockScan, Scanned, examine_rest};
use crate::segments::{Segment, segment_name};
use crate::space::SPARE_NAME;
use storage::{Storage, is_full, read_full, write_all};

/// What was found when a log was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// There was none before.
    pub is_new: bool,
    pub replayed_from: Lsn,
    pub next: Lsn,
    pub blocks: u64,
    pub records: u64,
    pub torn_bytes_cut: u64,
}

/// Receives position and payload of each record.
pub type Replay<'a> = dyn FnMut(Lsn, &[u8]) -> Result<(), ReplayError> + 'a;
/// Receives the bytes done and in total.
pub type Progress<'a> = dyn FnMut(u64, u64) + 'a;

/// Bytes between two calls of [`Progress`].
const PROGRESS_BYTES: u64 = 8 << 20;
/// Written at a time when the tail is written once more.
const REWRITE_BYTES: usize = 1 << 20;

pub(crate) struct Recovered {
    pub catalog: Catalog,
    pub opened: Opened,
}

pub(crate) fn recover(
    storage: &Arc<dyn Storage>,
    config: &LogConfig,
    replay: &mut Replay<'_>,
    progress: &mut Progress<'_>,
) -> Result<Recovered, OpenError> {
    config.check().map_err(OpenError::Config)?;
    let storage = &**storage;
    remove_if_there(storage, &[SPARE_NAME.to_owned(), CHECKPOINT_NEW_NAME.to_owned()])?;
    let Some(catalog) = Catalog::read(storage)? else {
        return create(storage, config);
    };
    remove_leftovers(storage, &catalog.leftovers)?;
    let mut run = Run::new(storage, &catalog, replay, progress);
    let tail = run.replay_all()?;
    let mut opened = run.opened;
    let last = catalog.segments.last().expect("a journal has a segment");
    tail.settle(last, config)
        .map_err(io_error("finishing the tail of", &last.name))?;
    storage
        .sync_directory()
        .map_err(io_error("syncing", "the journal directory"))?;
    opened.next = tail.end;
    opened.torn_bytes_cut = tail.torn_bytes;
    Ok(Recovered { catalog, opened })
}

/// The checkpoint that gave them up may be seen before it is durable, when the process before ended there.
fn remove_leftovers(storage: &dyn Storage, leftovers: &[String]) -> Result<(), OpenError> {
    if leftovers.is_empty() {
        return Ok(());
    }
    storage
        .sync_directory()
        .map_err(io_error("syncing", "the journal directory"))?;
    remove_if_there(storage, leftovers)
}

fn remove_if_there(storage: &dyn Storage, unwanted: &[String]) -> Result<(), OpenError> {
    let names = storage.names().map_err(io_error("listing", "the journal directory"))?;
    for name in unwanted.iter().filter(|name| names.contains(name)) {
        storage.remove(name).map_err(io_error("removing", name))?;
    }
    Ok(())
}

fn create(storage: &dyn Storage, config: &LogConfig) -> Result<Recovered, OpenError> {
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
    let checkpoint = Checkpoint {
        journal_id: header.journal_id,
        replay_from: base,
        first: base,
    };
    Ok(Recovered {
        catalog: Catalog {
            checkpoint,
            segments: vec![Arc::new(Segment::new(base, file, config.segment_bytes))],
            leftovers: Vec::new(),
        },
        opened: Opened {
            is_new: true,
            ..Opened::default()
        },
    })
}

struct Run<'a, 'r> {
    storage: &'a dyn Storage,
    catalog: &'a Catalog,
    replay: &'a mut Replay<'r>,
    progress: &'a mut Progress<'r>,
    opened: Opened,
    /// The highest that a block says.
    synced: Lsn,
    reported: u64,
}

impl<'a, 'r> Run<'a, 'r> {
    fn new(
        storage: &'a dyn Storage,
        catalog: &'a Catalog,
        replay: &'a mut Replay<'r>,
        progress: &'a mut Progress<'r>,
    ) -> Run<'a, 'r> {
        let replayed_from = catalog.checkpoint.replay_from;
        Run {
            storage,
            catalog,
            replay,
            progress,
            opened: Opened {
                replayed_from,
                ..Opened::default()
            },
            synced: replayed_from,
            reported: 0,
        }
    }

    fn replay_all(&mut self) -> Result<Tail, OpenError> {
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

    /// Returns where the valid blocks end, and what is wrong there, if the file goes on.
    fn replay_segment(
        &mut self,
        segment: &Segment,
        from: Lsn,
        end: Option<Lsn>,
    ) -> Result<(Lsn, Option<Invalid>), OpenError> {
        let mut scan = BlockScan::new(segment, self.catalog.checkpoint.journal_id, from, end);
        loop {
            self.report(scan.position());
            let block = match scan.next().map_err(io_error("reading", &segment.name))? {
                Scanned::Block(block) => block,
                Scanned::End => return Ok((scan.position(), None)),
                Scanned::Invalid(invalid) => return Ok((scan.position(), Some(invalid))),
            };
            self.opened.blocks += 1;
            self.synced = self.synced.max(block.header.synced);
            for (position, payload) in block.records() {
                self.opened.records += 1;
                (self.replay)(position, payload).map_err(|error| OpenError::Replay {
                    position,
                    because: error.because,
                })?;
            }
        }
    }

    /// Of the last segment: whether its end is an end.
    fn check_tail(&self, segment: &Segment, end: Lsn, stop: Option<Invalid>) -> Result<Tail, OpenError> {
        let rest = examine_rest(segment, self.catalog.checkpoint.journal_id, end)
            .map_err(io_error("reading", &segment.name))?;
        match rest.is_damage() {
            false => Ok(Tail {
                synced: self.synced.max(segment.base),
                end,
                torn_bytes: rest.used_bytes,
            }),
            true => Err(self.damaged(segment, end, stop)),
        }
    }

    fn damaged(&self, segment: &Segment, lsn: Lsn, stop: Option<Invalid>) -> OpenError {
        OpenError::Damaged {
            location: self.storage.location(),
            file: segment.name.clone(),
            offset: segment.offset(lsn),
            lsn,
            what: Damage::Block(stop.unwrap_or(Invalid::Cut)),
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

/// The end of the last segment, as it was found.
struct Tail {
    /// All before it is known to be on the disk.
    synced: Lsn,
    /// Where the valid blocks end.
    end: Lsn,
    torn_bytes: u64,
}

impl Tail {
    /// Cuts what is not valid, and makes durable what is.
    fn settle(&self, segment: &Segment, config: &LogConfig) -> io::Result<()> {
        let file = &*segment.file;
        match rewrite(segment, self.synced, self.end) {
            // Where writing in place takes new space. What is there is synced all the same.
            Err(error) if is_full(&error) => {}
            result => result?,
        }
        let end = segment.offset(self.end);
        if self.torn_bytes > 0 {
            // A block in it that is whole must not come back to life behind a new one.
            file.set_len(end)?;
        } else if file.len()? > end.max(config.segment_bytes) {
            // Preallocated when segments were larger. It counts against the quota, and could fill it without being used.
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

fn rewrite(segment: &Segment, from: Lsn, end: Lsn) -> io::Result<()> {
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
