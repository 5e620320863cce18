//! Trace of a run: a hash of all events, and optionally the last events as text.
//!
//! The hash covers every exchanged byte and every random choice. Lines are stored only on request: a failed run is
//! repeated with them.

use std::collections::VecDeque;
use std::hash::Hasher;

/// Maximum number of stored lines.
pub const LINES_KEPT: usize = 40;

#[derive(Debug, Default)]
pub struct Trace {
    hash: Fnv,
    lines: Option<VecDeque<String>>,
    is_printed: bool,
}

/// FNV-1a, eight bytes at a time.
#[derive(Debug)]
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xCBF2_9CE4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word) ^ chunk.len() as u64);
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0100_0000_01B3).rotate_left(23);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Trace {
    /// Stores the last lines. With `is_printed` also prints each one.
    pub fn with_lines(is_printed: bool) -> Trace {
        Trace {
            lines: Some(VecDeque::new()),
            is_printed,
            ..Trace::default()
        }
    }

    pub fn number(&mut self, number: u64) {
        self.hash.write_u64(number);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.hash.write(bytes);
    }

    /// Calls `line` only if lines are stored.
    pub fn line(&mut self, line: impl FnOnce() -> String) {
        let Some(lines) = &mut self.lines else { return };
        let line = line();
        if self.is_printed {
            print(&line);
        }
        if lines.len() == LINES_KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    pub fn lines(&self) -> Vec<String> {
        self.lines.iter().flatten().cloned().collect()
    }
}

#[allow(clippy::print_stdout, reason = "asked for with --trace")]
fn print(line: &str) {
    println!("{line}");
}
