//! Regular expressions whose cost is counted. Patterns match bytes, not characters. Look-around and back-references are
//! not supported.
//!
//! The time of a search is linear in the bytes that it reads, but the crate `regex` does not report this number: for
//! example, a search for `<[^>]*>|<` reads to the end of the text for each `<`, so that replacing all matches is
//! quadratic. This module uses one lazy DFA to find the end of a match and a second, reverse one to find its start. It
//! feeds them byte by byte, charges for bytes and for new states, and stops when the budget is exhausted. Groups are
//! found by backtracking within the match. Each state is visited at most once per position, and each visit is charged.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::{NFA, State, WhichCaptures};
use regex_automata::util::pool::Pool;
use regex_automata::util::primitives::StateID;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind, PatternID};

use crate::budget::StepBudget;
use crate::compiled_cache::CompiledCache;
use crate::error::FunctionError;

/// Shared by all threads. Each search takes its memory from a pool.
pub struct RegexPattern {
    forward: Automaton,
    reverse: Automaton,
    memory: Pool<Box<SearchMemory>, MakeMemory>,
    /// Cost of compiling the pattern in steps.
    compile_steps: u64,
}

type MakeMemory = Box<dyn Fn() -> Box<SearchMemory> + Send + Sync>;

#[derive(Clone)]
struct Automaton {
    dfa: DFA,
    /// Cost of computing a DFA state in steps: it can read every state of the NFA.
    state_steps: u64,
}

struct SearchMemory {
    forward: ComputedStates,
    reverse: ComputedStates,
    visited: Vec<u64>,
    frames: Vec<BacktrackStep>,
}

/// The states that have already been computed.
struct ComputedStates {
    cache: Cache,
    /// For each byte, the last match state whose transition was read. That transition exists. For other states, the
    /// automaton reports whether the transition exists.
    known: Box<[LazyStateID; 256]>,
    /// After the cache has been cleared, `known` is invalid.
    clear_count: usize,
}

impl fmt::Debug for RegexPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pattern").finish_non_exhaustive()
    }
}

impl RegexPattern {
    /// Compiles a constant pattern of a rule.
    pub fn compile(pattern: &[u8], bytes_max: usize) -> Result<RegexPattern, String> {
        let pattern = std::str::from_utf8(pattern).map_err(|_| "not UTF-8".to_owned())?;
        let config = syntax::Config::new().unicode(false).utf8(false).nest_limit(32);
        let hir = syntax::parse_with(pattern, &config).map_err(|error| last_line(&error.to_string()))?;
        let nfa = |is_reverse: bool| {
            let captures = if is_reverse {
                WhichCaptures::None
            } else {
                WhichCaptures::All
            };
            let config = NFA::config()
                .utf8(false)
                .reverse(is_reverse)
                .which_captures(captures)
                .nfa_size_limit(Some(bytes_max));
            let built = NFA::compiler().configure(config).build_from_hir(&hir);
            built.map_err(|error| match error.size_limit() {
                Some(limit) => format!("it needs more than {limit} bytes when compiled"),
                None => last_line(&error.to_string()),
            })
        };
        let (forward, reverse) = (nfa(false)?, nfa(true)?);
        let compile_steps = compile_steps(forward.memory_usage() + reverse.memory_usage());
        let forward = Automaton::new(forward, MatchKind::LeftmostFirst, bytes_max)?;
        let reverse = Automaton::new(reverse, MatchKind::All, bytes_max)?;
        let for_memory = (forward.clone(), reverse.clone());
        Ok(RegexPattern {
            memory: Pool::new(Box::new(move || {
                Box::new(SearchMemory::new(&for_memory.0, &for_memory.1))
            })),
            forward,
            reverse,
            compile_steps,
        })
    }

    /// Compiles a pattern that comes from a message. The remaining steps limit its size, and its cost is charged.
    pub fn compile_within(
        pattern: &[u8],
        bytes_max: usize,
        budget: &mut StepBudget,
    ) -> Result<Result<RegexPattern, String>, FunctionError> {
        budget.charge_steps(100 + pattern.len() as u64 * 16)?;
        let affordable = usize::try_from(budget.steps().saturating_mul(BYTES_PER_STEP)).unwrap_or(usize::MAX);
        let bytes_max = bytes_max.min(affordable);
        let compiled = RegexPattern::compile(pattern, bytes_max);
        budget.charge_steps(match &compiled {
            Ok(pattern) => pattern.compile_steps,
            // The pattern may have reached this size before it failed. Syntax errors are found earlier.
            Err(error) if error.starts_with("it needs") => compile_steps(bytes_max),
            Err(_) => 0,
        })?;
        Ok(compiled)
    }

    pub fn is_match(&self, text: &[u8], budget: &mut StepBudget) -> Result<bool, FunctionError> {
        let memory = &mut *self.memory.get();
        let end = self.forward.find_end(&mut memory.forward, text, 0, true, budget)?;
        Ok(end.is_some())
    }

    /// Returns an iterator over the matches in `text`.
    pub fn matches<'p, 't>(&'p self, text: &'t [u8]) -> Matches<'p, 't> {
        Matches {
            pattern: self,
            text,
            at: 0,
            last_end: None,
        }
    }

    /// Returns the number of groups, including the complete match.
    pub fn group_count(&self) -> usize {
        self.nfa().group_info().group_len(PatternID::ZERO)
    }

    /// Returns the names of the groups, including the complete match, which has no name.
    pub fn group_names(&self) -> impl Iterator<Item = Option<&str>> {
        self.nfa().group_info().pattern_names(PatternID::ZERO)
    }

    fn nfa(&self) -> &NFA {
        self.forward.dfa.get_nfa()
    }

    fn find(&self, text: &[u8], from: usize, budget: &mut StepBudget) -> Result<Option<Range<usize>>, FunctionError> {
        let memory = &mut *self.memory.get();
        let Some(end) = self.forward.find_end(&mut memory.forward, text, from, false, budget)? else {
            return Ok(None);
        };
        let start = self.reverse.find_start(&mut memory.reverse, text, from, end, budget)?;
        Ok(Some(start..end))
    }

    /// Returns the positions of the groups of a match. Group 0 is the match.
    pub fn groups(
        &self,
        text: &[u8],
        found: &Range<usize>,
        budget: &mut StepBudget,
    ) -> Result<Vec<Option<Range<usize>>>, FunctionError> {
        let group_count = self.group_count();
        if group_count == 1 {
            return Ok(vec![Some(found.clone())]);
        }
        budget.charge_steps(2 + group_count as u64)?;
        let memory = &mut *self.memory.get();
        let mut search = Backtracking {
            nfa: self.nfa(),
            text: &text[..found.end],
            whole: text,
            start: found.start,
            slots: vec![NO_OFFSET; self.nfa().group_info().slot_len()],
            visited: &mut memory.visited,
            frames: &mut memory.frames,
            frames_charged: Backtracking::FRAMES_CHUNK,
            visits: 0,
        };
        search.run(budget)?;
        let groups = search.slots.chunks_exact(2).map(|slots| match slots {
            [start, end] if *start != NO_OFFSET && *end != NO_OFFSET => Some(*start as usize..*end as usize),
            _ => None,
        });
        Ok(groups.collect())
    }
}

/// Bytes of a compiled pattern per charged step.
const BYTES_PER_STEP: u64 = 8;

fn compile_steps(bytes: usize) -> u64 {
    bytes as u64 / BYTES_PER_STEP
}

fn last_line(error: &str) -> String {
    error.lines().last().unwrap_or("it is not valid").trim().to_owned()
}

/// This error cannot occur: caches are cleared as often as necessary, and no byte ends a search.
fn stopped<E>(_: E) -> FunctionError {
    FunctionError::from("the regular expression cannot be searched for")
}

impl SearchMemory {
    fn new(forward: &Automaton, reverse: &Automaton) -> SearchMemory {
        SearchMemory {
            forward: ComputedStates::new(&forward.dfa),
            reverse: ComputedStates::new(&reverse.dfa),
            visited: Vec::new(),
            frames: Vec::new(),
        }
    }
}

impl ComputedStates {
    fn new(dfa: &DFA) -> ComputedStates {
        ComputedStates {
            cache: dfa.create_cache(),
            known: Box::new([LazyStateID::default(); 256]),
            clear_count: 0,
        }
    }
}

impl Automaton {
    fn new(nfa: NFA, kind: MatchKind, bytes_max: usize) -> Result<Automaton, String> {
        let state_steps = 16 + nfa.memory_usage() as u64 / 64;
        let config = DFA::config()
            .match_kind(kind)
            .cache_capacity(bytes_max)
            .skip_cache_capacity_check(true);
        let dfa = DFA::builder().configure(config).build_from_nfa(nfa);
        Ok(Automaton {
            dfa: dfa.map_err(|error| last_line(&error.to_string()))?,
            state_steps,
        })
    }

    /// Returns the end of the leftmost match that begins at or after `from`. With `is_earliest`, returns any end of it.
    fn find_end(
        &self,
        computed: &mut ComputedStates,
        text: &[u8],
        from: usize,
        is_earliest: bool,
        budget: &mut StepBudget,
    ) -> Result<Option<usize>, FunctionError> {
        let input = Input::new(text).range(from..);
        let start = self.dfa.start_state_forward(&mut computed.cache, &input);
        let mut walk = AutomatonRun::new(self, computed, budget);
        let (mut state, mut end) = (start.map_err(stopped)?, None);
        for (at, byte) in text.iter().enumerate().skip(from) {
            state = walk.next(state, *byte)?;
            if state.is_tagged() {
                // The automaton reports a match one byte after its end.
                if state.is_match() {
                    end = Some(at);
                    if is_earliest {
                        break;
                    }
                } else if state.is_dead() {
                    break;
                }
            }
        }
        walk.end()?;
        let is_done = state.is_dead() || is_earliest && end.is_some();
        if !is_done {
            state = self.dfa.next_eoi_state(&mut computed.cache, state).map_err(stopped)?;
            if state.is_match() {
                end = Some(text.len());
            }
        }
        Ok(end)
    }

    /// Returns the start of the match that ends at `end`, not before `from`.
    fn find_start(
        &self,
        computed: &mut ComputedStates,
        text: &[u8],
        from: usize,
        end: usize,
        budget: &mut StepBudget,
    ) -> Result<usize, FunctionError> {
        let input = Input::new(text).range(from..end).anchored(Anchored::Yes);
        let start = self.dfa.start_state_reverse(&mut computed.cache, &input);
        let mut walk = AutomatonRun::new(self, computed, budget);
        let (mut state, mut found) = (start.map_err(stopped)?, end);
        for at in (from..end).rev() {
            state = walk.next(state, text[at])?;
            if state.is_match() {
                found = at + 1;
            } else if state.is_dead() {
                break;
            }
        }
        if !state.is_dead() {
            state = match from.checked_sub(1) {
                Some(before) => walk.next(state, text[before])?,
                None => self
                    .dfa
                    .next_eoi_state(&mut walk.computed.cache, state)
                    .map_err(stopped)?,
            };
            if state.is_match() {
                found = from;
            }
        }
        walk.end()?;
        Ok(found)
    }
}

/// A run of one automaton.
struct AutomatonRun<'w> {
    automaton: &'w Automaton,
    computed: &'w mut ComputedStates,
    budget: &'w mut StepBudget,
    /// Bytes that are not yet charged.
    uncharged: u64,
}

impl<'w> AutomatonRun<'w> {
    const BYTES_PER_STEP: u64 = 8;

    fn new(automaton: &'w Automaton, computed: &'w mut ComputedStates, budget: &'w mut StepBudget) -> AutomatonRun<'w> {
        AutomatonRun {
            automaton,
            computed,
            budget,
            // The constant cost of a search.
            uncharged: 2 * AutomatonRun::BYTES_PER_STEP,
        }
    }

    #[inline(always)]
    fn next(&mut self, state: LazyStateID, byte: u8) -> Result<LazyStateID, FunctionError> {
        self.uncharged += 1;
        if self.uncharged == 1024 {
            self.end()?;
        }
        if state.is_tagged() {
            return self.next_of_match(state, byte);
        }
        let next = self
            .automaton
            .dfa
            .next_state_untagged(&self.computed.cache, state, byte);
        if next.is_unknown() {
            return self.compute(state, byte);
        }
        Ok(next)
    }

    /// It is not possible to see whether the transition of a match state exists. It is charged as new unless it was the
    /// last one with this byte.
    #[inline]
    fn next_of_match(&mut self, state: LazyStateID, byte: u8) -> Result<LazyStateID, FunctionError> {
        let computed = &mut *self.computed;
        if computed.clear_count != computed.cache.clear_count() {
            computed.clear_count = computed.cache.clear_count();
            computed.known.fill(LazyStateID::default());
        }
        let known = &mut computed.known[usize::from(byte)];
        if *known != state {
            *known = state;
            return self.compute(state, byte);
        }
        let next = self.automaton.dfa.next_state(&mut computed.cache, state, byte);
        next.map_err(stopped)
    }

    #[cold]
    fn compute(&mut self, state: LazyStateID, byte: u8) -> Result<LazyStateID, FunctionError> {
        self.budget.charge_steps(self.automaton.state_steps)?;
        let next = self.automaton.dfa.next_state(&mut self.computed.cache, state, byte);
        next.map_err(stopped)
    }

    fn end(&mut self) -> Result<(), FunctionError> {
        let uncharged = std::mem::take(&mut self.uncharged);
        self.budget.charge_steps(uncharged / AutomatonRun::BYTES_PER_STEP)
    }
}

/// Patterns that came from messages or from jq programs.
pub type PatternCache = CompiledCache<Arc<RegexPattern>>;

impl PatternCache {
    /// Compiles the pattern if it is not cached, and charges for it. The inner error describes the pattern.
    pub fn get(
        &mut self,
        pattern: &[u8],
        bytes_max: usize,
        budget: &mut StepBudget,
    ) -> Result<Result<Arc<RegexPattern>, String>, FunctionError> {
        if let Some(known) = self.find(pattern) {
            return Ok(Ok(known));
        }
        let compiled = match RegexPattern::compile_within(pattern, bytes_max, budget)? {
            Ok(compiled) => Arc::new(compiled),
            Err(error) => return Ok(Err(error)),
        };
        self.insert(pattern, compiled.clone());
        Ok(Ok(compiled))
    }
}

/// The position where the search continues after a match.
pub struct Matches<'p, 't> {
    pattern: &'p RegexPattern,
    text: &'t [u8],
    at: usize,
    last_end: Option<usize>,
}

impl Matches<'_, '_> {
    pub fn next(&mut self, budget: &mut StepBudget) -> Result<Option<Range<usize>>, FunctionError> {
        while self.at <= self.text.len() {
            let Some(found) = self.pattern.find(self.text, self.at, budget)? else {
                break;
            };
            // An empty match at the end of the previous match does not count.
            if found.is_empty() && self.last_end == Some(found.end) {
                self.at += 1;
                continue;
            }
            (self.at, self.last_end) = (found.end, Some(found.end));
            return Ok(Some(found));
        }
        self.at = self.text.len() + 1;
        Ok(None)
    }
}

const NO_OFFSET: u32 = u32::MAX;

/// A step that backtracking takes when the current path fails.
#[derive(Clone, Copy)]
enum BacktrackStep {
    Visit(StateID, u32),
    RestoreSlot(u32, u32),
}

/// Finds the groups of a known match.
struct Backtracking<'s> {
    nfa: &'s NFA,
    /// The text up to the end of the match.
    text: &'s [u8],
    /// The complete text, for `$` and `\b` at the end.
    whole: &'s [u8],
    start: usize,
    slots: Vec<u32>,
    /// One bit per position and state.
    visited: &'s mut Vec<u64>,
    frames: &'s mut Vec<BacktrackStep>,
    frames_charged: usize,
    visits: u64,
}

impl Backtracking<'_> {
    const VISITS_PER_STEP: u64 = 4;
    const FRAMES_CHUNK: usize = 1024;

    fn run(&mut self, budget: &mut StepBudget) -> Result<(), FunctionError> {
        if u32::try_from(self.whole.len()).is_err() {
            return Err(FunctionError::from("a text of 4 GiB has no groups"));
        }
        let bits = self.nfa.states().len() * (self.text.len() - self.start + 1);
        budget.make(bits / 8)?;
        self.visited.clear();
        self.visited.resize(bits.div_ceil(64), 0);
        self.frames.clear();
        self.frames
            .push(BacktrackStep::Visit(self.nfa.start_anchored(), self.start as u32));
        while let Some(frame) = self.frames.pop() {
            match frame {
                BacktrackStep::Visit(state, at) => {
                    if self.backtrack(state, at as usize, budget)? {
                        break;
                    }
                }
                BacktrackStep::RestoreSlot(slot, offset) => self.slots[slot as usize] = offset,
            }
        }
        // Release the memory of a long match.
        self.visited.shrink_to(4096);
        self.frames.shrink_to(Self::FRAMES_CHUNK);
        budget.charge_steps(std::mem::take(&mut self.visits) / Self::VISITS_PER_STEP)
    }

    /// Returns true if the path reaches the end of the match.
    fn backtrack(&mut self, mut state: StateID, mut at: usize, budget: &mut StepBudget) -> Result<bool, FunctionError> {
        while self.is_new(state, at, budget)? {
            match self.nfa.state(state) {
                State::ByteRange { trans } if trans.matches(self.text, at) => {
                    state = trans.next;
                    at += 1;
                }
                State::Sparse(sparse) => {
                    self.visits += sparse.transitions.len() as u64 / 16;
                    let Some(next) = sparse.matches(self.text, at) else {
                        return Ok(false);
                    };
                    state = next;
                    at += 1;
                }
                State::Dense(dense) => {
                    let Some(next) = dense.matches(self.text, at) else {
                        return Ok(false);
                    };
                    state = next;
                    at += 1;
                }
                State::Look { look, next } if self.nfa.look_matcher().matches(*look, self.whole, at) => state = *next,
                State::Union { alternates } => {
                    self.visits += alternates.len() as u64;
                    let [first, others @ ..] = &alternates[..] else {
                        return Ok(false);
                    };
                    state = *first;
                    let others = others.iter().rev();
                    self.frames
                        .extend(others.map(|other| BacktrackStep::Visit(*other, at as u32)));
                }
                State::BinaryUnion { alt1, alt2 } => {
                    state = *alt1;
                    self.frames.push(BacktrackStep::Visit(*alt2, at as u32));
                }
                State::Capture { next, slot, .. } => {
                    let (slot, next) = (slot.as_usize(), *next);
                    self.frames
                        .push(BacktrackStep::RestoreSlot(slot as u32, self.slots[slot]));
                    self.slots[slot] = at as u32;
                    state = next;
                }
                State::Match { .. } => return Ok(true),
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Records and charges a visit.
    fn is_new(&mut self, state: StateID, at: usize, budget: &mut StepBudget) -> Result<bool, FunctionError> {
        self.visits += 1;
        if self.visits >= 256 {
            budget.charge_steps(std::mem::take(&mut self.visits) / Self::VISITS_PER_STEP)?;
        }
        if self.frames.len() > self.frames_charged {
            budget.make(Self::FRAMES_CHUNK * size_of::<BacktrackStep>())?;
            self.frames_charged += Self::FRAMES_CHUNK;
        }
        let bit = (at - self.start) * self.nfa.states().len() + state.as_usize();
        let word = &mut self.visited[bit / 64];
        let is_new = *word & 1 << (bit % 64) == 0;
        *word |= 1 << (bit % 64);
        Ok(is_new)
    }
}
