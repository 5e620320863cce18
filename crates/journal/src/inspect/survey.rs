//! Reads everything that is readable of a journal, however damaged.
//!
//! The journal may be in use: its end advances while it is read. A position that looks damaged is therefore read a
//! second time before it is reported.

use std::io;
use std::sync::atomic::Ordering::Relaxed;

use crate::catalog::{SegmentNames, missing, open_segment, read_checkpoint};
use crate::checkpoint::Checkpoint;
use crate::inspect::{InspectionReport, RecordVisitor, SegmentReport};
use crate::layout::{InvalidBlock, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::lsn::Lsn;
use crate::open_error::{Damage, OpenError, io_error};
use crate::scan::{BlockScan, ScannedBlock, examine_rest, find_block};
use crate::segments::{LogSegment, segment_name};
use storage::Storage;

/// Maximum number of attempts.
const ATTEMPTS: u32 = 10;

pub(crate) struct Survey {
    pub checkpoint: Option<Checkpoint>,
    /// Sorted. Without segments that the checkpoint no longer includes.
    pub segments: Vec<SurveyedSegment>,
    /// Base of the newest segment that existed, if its name is known.
    pub newest: Option<Lsn>,
    /// Problems that concern whole files.
    pub problems: Vec<OpenError>,
}

pub(crate) struct SurveyedSegment {
    pub base: Lsn,
    pub name: String,
    /// `None` if the header is damaged or does not match the file name.
    pub opened: Option<(LogSegment, SegmentHeader)>,
    /// `opened` has a header that was made from the file name.
    pub is_header_damaged: bool,
}

/// Totals of the blocks of one segment.
#[derive(Default)]
struct SegmentContents {
    blocks: u64,
    records: u64,
    lost_records: u64,
    end: Lsn,
    torn_bytes: u64,
}

impl Survey {
    /// Opens checkpoint and segments. Segments are removed only after the checkpoint has advanced, so the result is
    /// consistent if the checkpoint is unchanged afterwards.
    pub fn take(storage: &dyn Storage) -> Result<Survey, OpenError> {
        for _ in 1..ATTEMPTS {
            let survey = Survey::survey_once(storage)?;
            if read_checkpoint(storage).ok().flatten() == survey.checkpoint {
                return Ok(survey);
            }
        }
        Survey::survey_once(storage)
    }

    fn survey_once(storage: &dyn Storage) -> Result<Survey, OpenError> {
        let mut problems = Vec::new();
        let checkpoint = read_checkpoint(storage).unwrap_or_else(|error| {
            problems.push(error);
            None
        });
        let first = checkpoint.map_or(Lsn(0), |checkpoint| checkpoint.first);
        let SegmentNames { mut bases, newest } = SegmentNames::read(storage)?;
        // The listing of a directory in use may have the new name and not the segment.
        if let Some(newest) =
            newest.filter(|newest| bases.last() < Some(newest) && open_segment(storage, *newest).is_ok())
        {
            bases.push(newest);
        }
        let segments = bases
            .into_iter()
            .filter(|base| *base >= first)
            .map(|base| SurveyedSegment {
                base,
                name: segment_name(base),
                opened: open_segment(storage, base).map_err(|error| problems.push(error)).ok(),
                is_header_damaged: false,
            })
            .collect();
        Ok(Survey {
            checkpoint,
            segments,
            newest,
            problems,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.checkpoint.is_none() && self.newest.is_none() && self.problems.is_empty()
    }

    /// Opens segments with a damaged header as segments of this journal that begin where their file name says.
    pub fn restore_headers(&mut self, storage: &dyn Storage) -> io::Result<()> {
        let Some(journal_id) = self.journal_id() else {
            return Ok(());
        };
        for segment in self.segments.iter_mut().filter(|segment| segment.opened.is_none()) {
            let file = storage.open(&segment.name)?;
            let file_bytes = file.len()?;
            if file_bytes < SEGMENT_HEADER_BYTES as u64 {
                continue;
            }
            let header = SegmentHeader {
                base: segment.base,
                journal_id,
                created_unix_ms: storage.unix_ms(),
            };
            segment.opened = Some((LogSegment::new(segment.base, file, file_bytes), header));
            segment.is_header_damaged = true;
        }
        Ok(())
    }

    /// Returns the base of the newest segment if that is missing.
    pub fn missing_newest(&self) -> Option<Lsn> {
        let last = self.segments.last().map(|segment| segment.base);
        self.newest.filter(|newest| last < Some(*newest))
    }

    /// Returns the position up to which the log was synced, at least.
    pub fn reached(&self) -> Lsn {
        self.checkpoint.map_or(Lsn(0), |checkpoint| checkpoint.reached)
    }

    pub fn journal_id(&self) -> Option<u64> {
        let of_segments = || self.segments.iter().find_map(|segment| segment.opened.as_ref());
        self.checkpoint
            .map(|checkpoint| checkpoint.journal_id)
            .or_else(|| of_segments().map(|(_, header)| header.journal_id))
    }

    /// Returns the base of the first segment. Without a readable checkpoint, missing segments at the beginning are not
    /// detected.
    pub fn first(&self) -> Lsn {
        let lowest = self.segments.first().map_or(Lsn(0), |segment| segment.base);
        self.checkpoint.map_or(lowest, |checkpoint| checkpoint.first)
    }

    /// Reads every block and passes its records to `visit`.
    pub fn report(
        mut self,
        storage: &dyn Storage,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<InspectionReport, OpenError> {
        let mut problems = std::mem::take(&mut self.problems);
        let mut report = InspectionReport {
            journal_id: self.journal_id(),
            replay_from: self.checkpoint.map(|checkpoint| checkpoint.replay_from),
            first: self.first(),
            next: self.first(),
            segments: Vec::new(),
            blocks: 0,
            records: 0,
            lost_records: 0,
            file_bytes: 0,
            torn_bytes: 0,
            problems: Vec::new(),
        };
        for (at, surveyed) in self.segments.iter().enumerate() {
            if report.next < surveyed.base {
                problems.push(missing(storage, report.next));
            }
            let next_base = self.segments.get(at + 1).map(|next| next.base);
            let contents = self.read(surveyed, next_base, storage, &mut problems, visit)?;
            report.add(surveyed, &contents);
        }
        let is_reported =
            |problem: &OpenError| matches!(problem, OpenError::Damaged { lsn, .. } if *lsn == report.next);
        if self
            .checkpoint
            .is_some_and(|checkpoint| checkpoint.replay_from > report.next)
            && !problems.last().is_some_and(is_reported)
        {
            problems.push(missing(storage, report.next));
        }
        self.check_end(storage, report.next, &mut problems);
        report.problems = problems;
        Ok(report)
    }

    /// Reports a missing end of the log, unless that is reported already.
    fn check_end(&self, storage: &dyn Storage, end: Lsn, problems: &mut Vec<OpenError>) {
        let is_reported = problems.iter().any(|problem| match problem {
            OpenError::Damaged { lsn, .. } | OpenError::SegmentMissing { lsn, .. } => *lsn >= end,
            _ => false,
        });
        match (self.missing_newest(), self.segments.last()) {
            _ if is_reported => {}
            (Some(newest), _) => problems.push(missing(storage, newest)),
            (None, None) => problems.push(missing(storage, end)),
            (None, Some(last)) if end < self.reached() => problems.push(OpenError::EndMissing {
                location: storage.location(),
                file: last.name.clone(),
                lsn: end,
                reached: self.reached(),
            }),
            (None, Some(_)) => {}
        }
    }

    fn read(
        &self,
        surveyed: &SurveyedSegment,
        next_base: Option<Lsn>,
        storage: &dyn Storage,
        problems: &mut Vec<OpenError>,
        visit: &mut RecordVisitor<'_>,
    ) -> Result<SegmentContents, OpenError> {
        let journal_id = self.journal_id();
        let Some(((segment, header), journal_id)) = surveyed.opened.as_ref().zip(journal_id) else {
            // Already reported. Without a header the positions of its blocks are unknown.
            let end = next_base.unwrap_or(surveyed.base);
            return Ok(SegmentContents {
                end,
                ..SegmentContents::default()
            });
        };
        if header.journal_id != journal_id {
            problems.push(OpenError::WrongJournal {
                location: storage.location(),
                file: surveyed.name.clone(),
                journal_id: header.journal_id,
                expected: journal_id,
            });
        }
        let mut reading = SegmentSurvey {
            segment,
            journal_id: header.journal_id,
            next_base,
            reached: self.reached(),
            contents: SegmentContents::default(),
            visit,
        };
        let found = reading.run().map_err(io_error("reading", &surveyed.name))?;
        let is_short = self.ends_before_replay(segment, next_base);
        problems.extend(found.into_iter().map(|problem| match problem {
            SegmentProblem::Damaged(lsn, InvalidBlock::Cut) if is_short => {
                damaged(storage, segment, lsn, Damage::CutShort)
            }
            problem => problem.error(storage, segment),
        }));
        Ok(reading.contents)
    }
}

impl Survey {
    /// Returns whether the file of the segment in which replay begins ends before that position.
    fn ends_before_replay(&self, segment: &LogSegment, next_base: Option<Lsn>) -> bool {
        self.checkpoint.is_some_and(|checkpoint| {
            let replay_from = checkpoint.replay_from;
            segment.base <= replay_from
                && segment.file_end() < replay_from
                && next_base.is_none_or(|next| next > replay_from)
        })
    }
}

impl InspectionReport {
    fn add(&mut self, surveyed: &SurveyedSegment, contents: &SegmentContents) {
        let opened = surveyed.opened.as_ref();
        let file_bytes = opened.map_or(0, |(segment, _)| segment.file_bytes.load(Relaxed));
        self.segments.push(SegmentReport {
            name: surveyed.name.clone(),
            base: surveyed.base,
            end: contents.end,
            file_bytes,
            created_unix_ms: opened.map(|(_, header)| header.created_unix_ms),
            blocks: contents.blocks,
            records: contents.records,
        });
        self.next = contents.end;
        self.blocks += contents.blocks;
        self.records += contents.records;
        self.lost_records += contents.lost_records;
        self.file_bytes += file_bytes;
        self.torn_bytes += contents.torn_bytes;
    }
}

/// A problem at a position of a segment.
enum SegmentProblem {
    Damaged(Lsn, InvalidBlock),
    /// The file ends before the next segment begins.
    Missing(Lsn),
}

impl SegmentProblem {
    fn error(self, storage: &dyn Storage, segment: &LogSegment) -> OpenError {
        match self {
            SegmentProblem::Missing(lsn) => missing(storage, lsn),
            SegmentProblem::Damaged(lsn, invalid) => damaged(storage, segment, lsn, Damage::Block(invalid)),
        }
    }
}

fn damaged(storage: &dyn Storage, segment: &LogSegment, lsn: Lsn, what: Damage) -> OpenError {
    OpenError::Damaged {
        location: storage.location(),
        file: segment.name.clone(),
        offset: segment.offset(lsn),
        lsn,
        damage: what,
    }
}

/// State of reading the blocks of one segment.
struct SegmentSurvey<'a, 'v> {
    segment: &'a LogSegment,
    journal_id: u64,
    next_base: Option<Lsn>,
    /// The log was synced up to this position.
    reached: Lsn,
    contents: SegmentContents,
    visit: &'a mut RecordVisitor<'v>,
}

impl SegmentSurvey<'_, '_> {
    fn run(&mut self) -> io::Result<Vec<SegmentProblem>> {
        let mut problems = Vec::new();
        let mut position = self.segment.base;
        // The position that was invalid at the first read.
        let mut doubtful = None;
        loop {
            let (end, invalid) = self.read_blocks(position)?;
            self.contents.end = end;
            if self.next_base == Some(end) {
                return Ok(problems);
            }
            let Some(invalid) = invalid.or(self.next_base.map(|_| InvalidBlock::Cut)) else {
                return Ok(problems);
            };
            if !self.is_damage(end)? {
                return Ok(problems);
            }
            if doubtful != Some(end) {
                (doubtful, position) = (Some(end), end);
                continue;
            }
            let behind = find_block(self.segment, self.journal_id, end)?;
            problems.push(match end == self.segment.file_end() {
                true => SegmentProblem::Missing(end),
                false => SegmentProblem::Damaged(end, invalid),
            });
            match behind {
                Some(behind) => position = behind,
                None => {
                    self.contents.end = self.next_base.unwrap_or(end);
                    return Ok(problems);
                }
            }
        }
    }

    /// Returns the end of the valid blocks, and why the bytes there are invalid, unless the file ends.
    fn read_blocks(&mut self, from: Lsn) -> io::Result<(Lsn, Option<InvalidBlock>)> {
        let mut scan = BlockScan::new(self.segment, self.journal_id, from, self.next_base);
        loop {
            match scan.next()? {
                ScannedBlock::Block(block) => {
                    self.contents.blocks += 1;
                    self.contents.lost_records += block.lost_records;
                    for (position, payload) in block.records() {
                        self.contents.records += 1;
                        (self.visit)(position, payload);
                    }
                }
                ScannedBlock::End => return Ok((scan.position(), None)),
                ScannedBlock::Invalid(invalid) => return Ok((scan.position(), Some(invalid))),
            }
        }
    }

    /// Returns whether the bytes at `lsn` cannot be the rest of a write that a crash interrupted.
    fn is_damage(&mut self, lsn: Lsn) -> io::Result<bool> {
        if self.next_base.is_some() || lsn < self.reached {
            return Ok(true);
        }
        let rest = examine_rest(self.segment, self.journal_id, lsn)?;
        if !rest.is_damage() {
            self.contents.torn_bytes = rest.used_bytes;
        }
        Ok(rest.is_damage())
    }
}
