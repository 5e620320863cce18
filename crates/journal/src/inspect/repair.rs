//! Makes a damaged journal one that opens, by giving up what cannot be relied on. Everything given up is copied beside the
//! journal first.
//!
//! What stays is one run of segments: that in which replay begins, or else the next, cut at the first place of damage that
//! replay would meet. Nothing behind such a place is kept: later records may build on those that are lost. What is lost may be a part
//! of what the checkpoint's owner wrote once more behind it, so replay then begins as far before the checkpoint as all is whole: there
//! the same stands for the last time. Damage before the checkpoint stays as it is, a file that is cut within a block included: it keeps nobody from opening, and readers of its
//! records are told. A segment that is missing there ends the run, and so does one that is cut where a block ends, which looks the same.
//!
//! The steps are in an order that leaves, wherever they are interrupted, a journal that can be repaired again.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::DIRECTORY_NAME;
use crate::catalog::Catalog;
use crate::checkpoint::{CHECKPOINT_NAME, Checkpoint};
use crate::inspect::copy::{copy_whole, sync_directory, write_synced};
use crate::inspect::survey::{Survey, Surveyed};
use crate::inspect::{InspectError, io_error};
use crate::layout::SEGMENT_HEADER_BYTES;
use crate::lsn::Lsn;
use crate::open_error::OpenError;
use crate::scan::{BlockScan, FileEnd, Scanned, examine_rest, file_end};
use storage::Directory;
use storage::Storage;

const SHORTENED_NAME: &str = "repair.new";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only says what would be done.
    Plan,
    Repair,
}

/// What was done, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Segments that are given up as a whole.
    pub removed: Vec<String>,
    /// A segment that is cut, and the offset in it.
    pub cut: Option<(String, u64)>,
    /// Where replay begins now, if that has changed.
    pub replay_from: Option<Lsn>,
    /// Nothing can be kept: the next start begins a new journal.
    pub is_emptied: bool,
    /// The directory with the files as they were.
    pub saved_to: Option<PathBuf>,
}

impl Repaired {
    /// There was nothing to repair.
    pub fn is_nothing(&self) -> bool {
        *self == Repaired::default()
    }
}

/// What is to be done.
struct Plan {
    /// The run that stays: indices of segments.
    kept: std::ops::Range<usize>,
    cut: Option<Cut>,
    /// What the checkpoint is to be, if not what it is.
    checkpoint: Option<Checkpoint>,
    has_damaged_checkpoint: bool,
}

/// In the last segment that stays.
struct Cut {
    offset: u64,
}

/// Fails when the journal is in use, and when something must not be decided by a program: files of another journal, or of
/// a later version.
pub fn repair(data_directory: &Path, mode: Mode) -> Result<Repaired, InspectError> {
    let open = match mode {
        Mode::Plan => Directory::open_read_only,
        Mode::Repair => Directory::open,
    };
    if !data_directory.join(DIRECTORY_NAME).is_dir() {
        let path = data_directory.to_owned();
        return Err(InspectError::NoJournal { path });
    }
    let storage = open(data_directory, DIRECTORY_NAME).map_err(InspectError::Directory)?;
    let mut survey = Survey::take(&storage).map_err(InspectError::Journal)?;
    if let Some(undecided) = survey.take_undecidable(&storage) {
        return Err(InspectError::Journal(undecided));
    }
    let plan = Plan::of(&survey).map_err(io_error("reading", storage.path()))?;
    let mut repaired = plan.describe(&survey);
    if mode == Mode::Repair && !repaired.is_nothing() {
        repaired.saved_to = Some(plan.save(&survey, data_directory, storage.path())?);
        plan.perform(&survey, &storage)?;
    }
    Ok(repaired)
}

/// Has the next start replay from the first segment, as a repair may do: the same has to come of it.
pub fn replay_all(storage: &dyn Storage) -> Result<(), InspectError> {
    let catalog = Catalog::read(storage).map_err(InspectError::Journal)?;
    let Some(mut catalog) = catalog else { return Ok(()) };
    catalog.checkpoint.replay_from = catalog.segments[0].base;
    catalog.checkpoint.replace(storage).map_err(|error| InspectError::Io {
        doing: "writing the checkpoint".to_owned(),
        source: error.error,
    })
}

impl Survey {
    fn take_undecidable(&mut self, storage: &dyn Storage) -> Option<OpenError> {
        let is_undecidable = |problem: &OpenError| matches!(problem, OpenError::TooNew { .. } | OpenError::Io { .. });
        if let Some(at) = self.problems.iter().position(is_undecidable) {
            return Some(self.problems.swap_remove(at));
        }
        let expected = self.journal_id()?;
        let of_another = |surveyed: &&Surveyed| {
            let opened = surveyed.opened.as_ref();
            opened.is_some_and(|(_, header)| header.journal_id != expected)
        };
        self.segments
            .iter()
            .find(of_another)
            .map(|surveyed| OpenError::WrongJournal {
                location: storage.location(),
                file: surveyed.name.clone(),
                journal_id: surveyed.opened.as_ref().map_or(0, |(_, header)| header.journal_id),
                expected,
            })
    }

    /// Runs of segments that are readable and follow each other, but for what opening passes over.
    fn runs(&self) -> std::io::Result<Vec<std::ops::Range<usize>>> {
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for at in 0..self.segments.len() {
            if self.segments[at].opened.is_none() {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end == at && self.is_followed(at - 1)? => run.end = at + 1,
                _ => runs.push(at..at + 1),
            }
        }
        Ok(runs)
    }

    /// Whether no segment is missing behind this one, as far as it matters: one that was cut is whole enough before the checkpoint.
    fn is_followed(&self, at: usize) -> std::io::Result<bool> {
        let next_base = self.segments[at + 1].base;
        if self.end(at) >= next_base {
            return Ok(true);
        }
        let is_old = self
            .checkpoint
            .is_some_and(|checkpoint| next_base <= checkpoint.replay_from);
        match &self.segments[at].opened {
            Some((segment, header)) if is_old => Ok(file_end(segment, header.journal_id)? != FileEnd::AtBlock),
            _ => Ok(false),
        }
    }

    /// Where the file of a segment ends.
    fn end(&self, at: usize) -> Lsn {
        let surveyed = &self.segments[at];
        let opened = surveyed.opened.as_ref();
        opened.map_or(surveyed.base, |(segment, _)| segment.file_end())
    }
}

impl Plan {
    fn of(survey: &Survey) -> std::io::Result<Plan> {
        let wanted = survey.checkpoint.map_or(Lsn(0), |checkpoint| checkpoint.replay_from);
        let runs = survey.runs()?;
        let run = runs
            .iter()
            .find(|run| survey.end(run.end - 1) >= wanted)
            .or(runs.last());
        let has_damaged_checkpoint = survey.problems.iter().any(|problem| {
            let OpenError::Damaged { file, .. } = problem else {
                return false;
            };
            file == CHECKPOINT_NAME
        });
        let Some(run) = run.cloned() else {
            return Ok(Plan {
                kept: 0..0,
                cut: None,
                checkpoint: None,
                has_damaged_checkpoint,
            });
        };
        let base = survey.segments[run.start].base;
        let is_within = wanted >= base && wanted <= survey.end(run.end - 1);
        let replay_from = if is_within { wanted } else { base };
        let (kept, cut) = find_cut(survey, run, replay_from)?;
        let is_shortened = cut.is_some() || kept.end < survey.segments.len();
        let replay_from = match is_shortened {
            true => first_whole(survey, kept.clone(), replay_from)?,
            false => replay_from,
        };
        let checkpoint = survey.journal_id().map(|journal_id| Checkpoint {
            journal_id,
            replay_from,
            first: base,
        });
        let implied = checkpoint.filter(|checkpoint| checkpoint.first == Lsn(0) && checkpoint.replay_from == Lsn(0));
        let is_said = checkpoint == survey.checkpoint || (survey.checkpoint.is_none() && checkpoint == implied);
        Ok(Plan {
            kept,
            cut,
            checkpoint: checkpoint.filter(|_| !is_said || has_damaged_checkpoint),
            has_damaged_checkpoint,
        })
    }

    fn describe(&self, survey: &Survey) -> Repaired {
        let given_up = |(at, _): &(usize, &Surveyed)| !self.kept.contains(at);
        let removed = survey.segments.iter().enumerate().filter(given_up);
        Repaired {
            removed: removed.map(|(_, surveyed)| surveyed.name.clone()).collect(),
            cut: self
                .cut
                .as_ref()
                .map(|cut| (survey.segments[self.kept.end - 1].name.clone(), cut.offset)),
            replay_from: self.checkpoint.map(|checkpoint| checkpoint.replay_from),
            is_emptied: self.kept.is_empty(),
            saved_to: None,
        }
    }

    /// Copies every file that will change or go.
    fn save(&self, survey: &Survey, data_directory: &Path, journal: &Path) -> Result<PathBuf, InspectError> {
        let to = new_directory(data_directory)?;
        let repaired = self.describe(survey);
        let cut = repaired.cut.map(|(name, _)| name);
        let checkpoint = journal
            .join(CHECKPOINT_NAME)
            .exists()
            .then(|| CHECKPOINT_NAME.to_owned());
        for name in repaired.removed.into_iter().chain(cut).chain(checkpoint) {
            copy_whole(&journal.join(&name), &to.join(&name))?;
        }
        sync_directory(&to)?;
        sync_directory(data_directory)?;
        Ok(to)
    }

    fn perform(&self, survey: &Survey, storage: &Directory) -> Result<(), InspectError> {
        let journal = storage.path();
        // From the end, so that what is left has no gap that was not there before.
        for surveyed in survey.segments[self.kept.end..].iter().rev() {
            remove(&journal.join(&surveyed.name))?;
            sync_directory(journal)?;
        }
        if let Some(last) = survey.segments[self.kept.clone()].last() {
            // Also one that is not cut but is the last one now: it will be written to, and a backup may be a link to it.
            let bytes = self.cut.as_ref().map_or(u64::MAX, |cut| cut.offset);
            replace_by_beginning(journal, &last.name, bytes)?;
        }
        match self.checkpoint {
            Some(checkpoint) => checkpoint.replace(storage).map_err(|error| InspectError::Io {
                doing: "writing the checkpoint".to_owned(),
                source: error.error,
            })?,
            None if self.kept.is_empty() && journal.join(CHECKPOINT_NAME).exists() => {
                remove(&journal.join(CHECKPOINT_NAME))?;
            }
            None => debug_assert!(!self.has_damaged_checkpoint),
        }
        for surveyed in &survey.segments[..self.kept.start] {
            remove(&journal.join(&surveyed.name))?;
        }
        sync_directory(journal)
    }
}

/// The first place of damage that replay would meet: what of the run stays, and where its last segment is cut.
fn find_cut(
    survey: &Survey,
    run: std::ops::Range<usize>,
    replay_from: Lsn,
) -> std::io::Result<(std::ops::Range<usize>, Option<Cut>)> {
    for at in run.clone() {
        let Some((segment, header)) = &survey.segments[at].opened else {
            continue;
        };
        let next_base = (at + 1 < run.end).then(|| survey.segments[at + 1].base);
        if next_base.is_some_and(|next| next <= replay_from) {
            continue;
        }
        let from = replay_from.max(segment.base);
        let mut scan = BlockScan::new(segment, header.journal_id, from, next_base);
        while let Scanned::Block(_) = scan.next()? {}
        let end = scan.position();
        let is_damaged = match next_base {
            Some(next) => end != next,
            None => examine_rest(segment, header.journal_id, end)?.is_damage(),
        };
        if is_damaged {
            let offset = segment.offset(end);
            return Ok(match offset == SEGMENT_HEADER_BYTES as u64 && at > run.start {
                true => (run.start..at, None),
                false => (run.start..at + 1, Some(Cut { offset })),
            });
        }
    }
    Ok((run, None))
}

/// The beginning of the first segment from which on all is whole up to a position; that position if there is none.
fn first_whole(survey: &Survey, kept: std::ops::Range<usize>, position: Lsn) -> std::io::Result<Lsn> {
    let mut first = position;
    for surveyed in survey.segments[kept]
        .iter()
        .rev()
        .filter(|surveyed| surveyed.base < position)
    {
        let Some((segment, header)) = &surveyed.opened else {
            break;
        };
        let mut scan = BlockScan::new(segment, header.journal_id, segment.base, Some(first));
        while let Scanned::Block(_) = scan.next()? {}
        if scan.position() != first {
            break;
        }
        first = segment.base;
    }
    Ok(first)
}

/// The first `journal-damaged-{n}` that is not there yet.
fn new_directory(data_directory: &Path) -> Result<PathBuf, InspectError> {
    for number in 1.. {
        let path = data_directory.join(format!("{DIRECTORY_NAME}-damaged-{number}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io_error("creating", &path)(error)),
        }
    }
    unreachable!("there are more numbers than directories")
}

fn replace_by_beginning(journal: &Path, name: &str, bytes: u64) -> Result<(), InspectError> {
    let (path, shortened) = (journal.join(name), journal.join(SHORTENED_NAME));
    let file = File::open(&path).map_err(io_error("opening", &path))?;
    write_synced(&shortened, &mut file.take(bytes))?;
    fs::rename(&shortened, &path).map_err(io_error("renaming", &shortened))?;
    sync_directory(journal)
}

fn remove(path: &Path) -> Result<(), InspectError> {
    fs::remove_file(path).map_err(io_error("removing", path))
}
