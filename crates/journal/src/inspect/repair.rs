//! Repairs a damaged journal so that it opens again. Data that cannot be relied on is removed, after a copy has been
//! saved in the data directory.
//!
//! [`DamagePolicy`] selects one of two ways. Both retain one run of consecutive segments: the run in which replay
//! begins, or else the next one.
//! - `Truncate` truncates the run at the first damage that replay would meet. Everything behind that is removed,
//!   because later records may depend on the lost ones.
//! - `Skip` replaces damaged records by lost ones (`skip.rs`). The run then continues behind missing segments, and
//!   nothing behind damage is removed.
//!
//! The lost part may contain records that the checkpoint's owner rewrote from before the checkpoint. Replay therefore
//! begins at the earliest segment from which on all data is intact: the original records are still there.
//!
//! Damage before the checkpoint remains, including a file that was truncated within a block: it does not prevent
//! opening, and readers of its records get an error. A missing segment ends the run. So does a file that was truncated
//! at the end of a block, which looks the same.
//!
//! The steps are ordered so that an interrupted repair leaves a journal that can be repaired again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::DIRECTORY_NAME;
use crate::catalog::SegmentCatalog;
use crate::checkpoint::{CHECKPOINT_NAME, Checkpoint};
use crate::inspect::copy::{copy_whole, sync_directory, write_synced};
use crate::inspect::skip::{LostRange, SegmentPatch};
use crate::inspect::survey::{Survey, SurveyedSegment};
use crate::inspect::{InspectError, io_error};
use crate::layout::SEGMENT_HEADER_BYTES;
use crate::lsn::Lsn;
use crate::open_error::OpenError;
use crate::scan::{BlockScan, FileEnd, ScannedBlock, examine_rest, file_end};
use crate::segments::base_of_newest_name;
use storage::Storage;
use storage::StorageDirectory;

/// Name of a segment while it is written again.
pub(super) const REWRITTEN_NAME: &str = "repair.new";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairMode {
    /// Reports the repair without doing it.
    Plan,
    Repair,
}

/// Treatment of the records behind damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DamagePolicy {
    /// They are removed.
    #[default]
    Truncate,
    /// They remain. Only damaged records are lost.
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairOptions {
    pub mode: RepairMode,
    pub damage: DamagePolicy,
}

/// Result of a repair, or its plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// File names of removed segments.
    pub removed: Vec<String>,
    /// The truncated segment and its new length.
    pub cut: Option<(String, u64)>,
    /// New start of replay, if changed.
    pub replay_from: Option<Lsn>,
    /// No segment is usable. The next start creates a new journal.
    pub is_emptied: bool,
    /// Base of the newest segment, if that is missing. Its records are lost.
    pub missing_newest: Option<Lsn>,
    /// End of the log, and the position up to which it had been synced, if the end is missing.
    pub missing_end: Option<(Lsn, Lsn)>,
    /// Segments that were written again, with lost records in the place of damage.
    pub rewritten: Vec<String>,
    /// Damage that was skipped.
    pub lost: Vec<LostRange>,
    /// Directory with copies of the original files.
    pub saved_to: Option<PathBuf>,
}

impl RepairReport {
    /// Returns whether there was nothing to repair.
    pub fn is_empty(&self) -> bool {
        *self == RepairReport::default()
    }
}

/// The planned changes.
struct RepairPlan {
    /// Indices of the segments that remain.
    retained: std::ops::Range<usize>,
    cut: Option<SegmentCut>,
    /// New contents of retained segments, by index.
    patches: BTreeMap<usize, SegmentPatch>,
    /// The end of the log, if it is before the position up to which the log was synced.
    missing_end: Option<Lsn>,
    /// The new checkpoint, if it differs from the current one.
    checkpoint: Option<Checkpoint>,
    has_damaged_checkpoint: bool,
}

/// Truncation of the last remaining segment.
struct SegmentCut {
    offset: u64,
}

/// Repairs the journal of a data directory by truncating it. Fails if the journal is in use, and in cases that an
/// operator must decide: files of another journal, or of a newer version.
pub fn repair(data_directory: &Path, mode: RepairMode) -> Result<RepairReport, InspectError> {
    let options = RepairOptions {
        mode,
        damage: DamagePolicy::Truncate,
    };
    repair_log(data_directory, DIRECTORY_NAME, options)
}

/// As [`repair`], for a log in any directory.
pub fn repair_log(data_directory: &Path, name: &str, options: RepairOptions) -> Result<RepairReport, InspectError> {
    let mode = options.mode;
    let open = match mode {
        RepairMode::Plan => StorageDirectory::open_read_only,
        RepairMode::Repair => StorageDirectory::open,
    };
    if !data_directory.join(name).is_dir() {
        let path = data_directory.to_owned();
        return Err(InspectError::NoJournal { path });
    }
    let storage = open(data_directory, name).map_err(InspectError::Directory)?;
    let mut survey = Survey::take(&storage).map_err(InspectError::Journal)?;
    if survey.is_empty() {
        let path = storage.path().to_owned();
        return Err(InspectError::NoJournal { path });
    }
    if let Some(undecided) = survey.take_undecidable(&storage) {
        return Err(InspectError::Journal(undecided));
    }
    if options.damage == DamagePolicy::Skip {
        survey
            .restore_headers(&storage)
            .map_err(io_error("reading", storage.path()))?;
    }
    let plan = RepairPlan::of(&survey, options.damage).map_err(io_error("reading", storage.path()))?;
    let mut repaired = plan.describe(&survey);
    if mode == RepairMode::Repair && !repaired.is_empty() {
        repaired.saved_to = Some(plan.save(&survey, &new_directory(data_directory, name)?, storage.path())?);
        sync_directory(data_directory)?;
        plan.perform(&survey, &storage)?;
    }
    Ok(repaired)
}

/// Makes the next start replay from the first segment, as a repair may do. The recovered state must be the same.
pub fn replay_all(storage: &dyn Storage) -> Result<(), InspectError> {
    let catalog = SegmentCatalog::read(storage).map_err(InspectError::Journal)?;
    let Some(mut catalog) = catalog else { return Ok(()) };
    catalog.checkpoint.replay_from = catalog.segments[0].base;
    catalog.checkpoint.replace(storage).map_err(|error| InspectError::Io {
        operation: "writing the checkpoint".to_owned(),
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
        let of_another = |surveyed: &&SurveyedSegment| {
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

    /// Returns the runs of readable, consecutive segments. Gaps that opening tolerates do not end a run. If damage is
    /// skipped, no gap does.
    fn runs(&self, policy: DamagePolicy) -> std::io::Result<Vec<std::ops::Range<usize>>> {
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for at in 0..self.segments.len() {
            if self.segments[at].opened.is_none() {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end == at && (policy == DamagePolicy::Skip || self.is_followed(at - 1)?) => {
                    run.end = at + 1;
                }
                _ => runs.push(at..at + 1),
            }
        }
        Ok(runs)
    }

    /// Returns whether no segment is missing after this one. Before the checkpoint, truncation within a block is
    /// tolerated.
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

    /// Returns the position at which the file of a segment ends.
    fn end(&self, at: usize) -> Lsn {
        let surveyed = &self.segments[at];
        let opened = surveyed.opened.as_ref();
        opened.map_or(surveyed.base, |(segment, _)| segment.file_end())
    }
}

impl RepairPlan {
    fn of(survey: &Survey, policy: DamagePolicy) -> std::io::Result<RepairPlan> {
        let wanted = survey.checkpoint.map_or(Lsn(0), |checkpoint| checkpoint.replay_from);
        let runs = survey.runs(policy)?;
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
            return Ok(RepairPlan {
                retained: 0..0,
                cut: None,
                patches: BTreeMap::new(),
                missing_end: None,
                checkpoint: None,
                has_damaged_checkpoint,
            });
        };
        let base = survey.segments[run.start].base;
        let is_within = wanted >= base && wanted <= survey.end(run.end - 1);
        let replay_from = if is_within { wanted } else { base };
        let (retained, cut, patches, end) = match policy {
            DamagePolicy::Truncate => {
                let (retained, cut, end) = find_cut(survey, run, replay_from)?;
                (retained, cut, BTreeMap::new(), end)
            }
            DamagePolicy::Skip => {
                let (patches, end) = find_patches(survey, run.clone(), replay_from)?;
                (run, None, patches, end)
            }
        };
        let has_lost = patches.values().any(|patch| !patch.lost.is_empty());
        let is_shortened = has_lost || end < survey.reached() || cut.is_some() || retained.end < survey.segments.len();
        let replay_from = match is_shortened {
            true => first_intact(survey, retained.clone(), replay_from)?,
            false => replay_from,
        };
        let checkpoint = survey.journal_id().map(|journal_id| Checkpoint {
            journal_id,
            replay_from,
            first: base,
            reached: survey.reached().min(end),
        });
        let implied = checkpoint.filter(|checkpoint| checkpoint.first == Lsn(0) && checkpoint.replay_from == Lsn(0));
        let is_unchanged = checkpoint == survey.checkpoint || (survey.checkpoint.is_none() && checkpoint == implied);
        let is_end_missing = end < survey.reached() && cut.is_none() && retained.end == survey.segments.len();
        Ok(RepairPlan {
            retained,
            cut,
            patches,
            missing_end: is_end_missing.then_some(end),
            checkpoint: checkpoint.filter(|_| !is_unchanged || has_damaged_checkpoint),
            has_damaged_checkpoint,
        })
    }

    fn describe(&self, survey: &Survey) -> RepairReport {
        let is_removed = |(at, _): &(usize, &SurveyedSegment)| !self.retained.contains(at);
        let removed = survey.segments.iter().enumerate().filter(is_removed);
        RepairReport {
            removed: removed.map(|(_, surveyed)| surveyed.name.clone()).collect(),
            cut: self
                .cut
                .as_ref()
                .map(|cut| (survey.segments[self.retained.end - 1].name.clone(), cut.offset)),
            replay_from: self
                .checkpoint
                .filter(|new| {
                    let is_same = |old: Checkpoint| (old.first, old.replay_from) == (new.first, new.replay_from);
                    !survey.checkpoint.is_some_and(is_same)
                })
                .map(|checkpoint| checkpoint.replay_from),
            is_emptied: self.retained.is_empty(),
            missing_newest: survey.missing_newest(),
            missing_end: self.missing_end.map(|end| (end, survey.reached())),
            rewritten: self
                .patches
                .keys()
                .map(|at| survey.segments[*at].name.clone())
                .collect(),
            lost: self
                .patches
                .values()
                .flat_map(|patch| patch.lost.iter().cloned())
                .collect(),
            saved_to: None,
        }
    }

    /// Copies every file that will be changed or removed.
    fn save(&self, survey: &Survey, to: &Path, journal: &Path) -> Result<PathBuf, InspectError> {
        let repaired = self.describe(survey);
        let cut = repaired.cut.map(|(name, _)| name);
        let checkpoint = journal
            .join(CHECKPOINT_NAME)
            .exists()
            .then(|| CHECKPOINT_NAME.to_owned());
        let changed = repaired.removed.into_iter().chain(repaired.rewritten);
        for name in changed.chain(cut).chain(checkpoint) {
            copy_whole(&journal.join(&name), &to.join(&name))?;
        }
        sync_directory(to)?;
        Ok(to.to_owned())
    }

    fn perform(&self, survey: &Survey, storage: &StorageDirectory) -> Result<(), InspectError> {
        let journal = storage.path();
        // Later steps may remove the segment that the name states. The next start creates the name again.
        for name in storage.names().map_err(io_error("listing", journal))? {
            if base_of_newest_name(&name).is_some() {
                remove(&journal.join(name))?;
            }
        }
        for (at, patch) in &self.patches {
            patch.perform(journal, &survey.segments[*at].name)?;
        }
        // In reverse order, so that an interruption leaves no new gap.
        for surveyed in survey.segments[self.retained.end..].iter().rev() {
            remove(&journal.join(&surveyed.name))?;
            sync_directory(journal)?;
        }
        if let Some(last) = survey.segments[self.retained.clone()].last() {
            // Also replaced if it is not truncated: the journal will write to it, and a backup may be a hard link to
            // the same file.
            let bytes = self.cut.as_ref().map_or(u64::MAX, |cut| cut.offset);
            replace_with_prefix(journal, &last.name, bytes)?;
        }
        match self.checkpoint {
            Some(checkpoint) => checkpoint.replace(storage).map_err(|error| InspectError::Io {
                operation: "writing the checkpoint".to_owned(),
                source: error.error,
            })?,
            None if self.retained.is_empty() && journal.join(CHECKPOINT_NAME).exists() => {
                remove(&journal.join(CHECKPOINT_NAME))?;
            }
            None => debug_assert!(!self.has_damaged_checkpoint),
        }
        for surveyed in &survey.segments[..self.retained.start] {
            remove(&journal.join(&surveyed.name))?;
        }
        sync_directory(journal)
    }
}

/// Finds the first damage that replay would meet. Returns the segments that remain, where the last one is truncated,
/// and the end of the log.
fn find_cut(
    survey: &Survey,
    run: std::ops::Range<usize>,
    replay_from: Lsn,
) -> std::io::Result<(std::ops::Range<usize>, Option<SegmentCut>, Lsn)> {
    let mut log_end = replay_from;
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
        while let ScannedBlock::Block(_) = scan.next()? {}
        let end = scan.position();
        let is_damaged = match next_base {
            Some(next) => end != next,
            None => examine_rest(segment, header.journal_id, end)?.is_damage(),
        };
        if is_damaged {
            let offset = segment.offset(end);
            return Ok(match offset == SEGMENT_HEADER_BYTES as u64 && at > run.start {
                true => (run.start..at, None, end),
                false => (run.start..at + 1, Some(SegmentCut { offset }), end),
            });
        }
        log_end = end;
    }
    Ok((run, None, log_end))
}

/// Finds the damage that replay would meet, and what replaces it. Returns the end of the log, too.
fn find_patches(
    survey: &Survey,
    run: std::ops::Range<usize>,
    replay_from: Lsn,
) -> std::io::Result<(BTreeMap<usize, SegmentPatch>, Lsn)> {
    let (mut patches, mut log_end) = (BTreeMap::new(), replay_from);
    for at in run.clone() {
        let Some((segment, header)) = &survey.segments[at].opened else {
            continue;
        };
        let next_base = (at + 1 < run.end).then(|| survey.segments[at + 1].base);
        if next_base.is_some_and(|next| next <= replay_from) {
            continue;
        }
        let from = replay_from.max(segment.base);
        let (mut patch, end) = SegmentPatch::of(segment, header.journal_id, (from, next_base), survey.reached())?;
        if survey.segments[at].is_header_damaged {
            patch.restore_header(header);
        }
        if !patch.is_empty() {
            patches.insert(at, patch);
        }
        log_end = end;
    }
    Ok((patches, log_end))
}

/// Returns the base of the earliest segment from which on all data up to `position` is intact. `position` if there is
/// none.
fn first_intact(survey: &Survey, retained: std::ops::Range<usize>, position: Lsn) -> std::io::Result<Lsn> {
    let mut first = position;
    for surveyed in survey.segments[retained]
        .iter()
        .rev()
        .filter(|surveyed| surveyed.base < position)
    {
        let Some((segment, header)) = &surveyed.opened else {
            break;
        };
        let mut scan = BlockScan::new(segment, header.journal_id, segment.base, Some(first));
        while let ScannedBlock::Block(_) = scan.next()? {}
        if scan.position() != first {
            break;
        }
        first = segment.base;
    }
    Ok(first)
}

/// Creates the first `journal-damaged-{n}` directory that does not exist.
pub(super) fn new_directory(data_directory: &Path, name: &str) -> Result<PathBuf, InspectError> {
    for number in 1.. {
        let path = data_directory.join(format!("{name}-damaged-{number}"));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io_error("creating", &path)(error)),
        }
    }
    unreachable!("there are more numbers than directories")
}

fn replace_with_prefix(journal: &Path, name: &str, bytes: u64) -> Result<(), InspectError> {
    let (path, shortened) = (journal.join(name), journal.join(REWRITTEN_NAME));
    let file = File::open(&path).map_err(io_error("opening", &path))?;
    write_synced(&shortened, &mut file.take(bytes))?;
    fs::rename(&shortened, &path).map_err(io_error("renaming", &shortened))?;
    sync_directory(journal)
}

fn remove(path: &Path) -> Result<(), InspectError> {
    fs::remove_file(path).map_err(io_error("removing", path))
}
