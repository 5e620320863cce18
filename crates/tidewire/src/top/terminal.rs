//! The terminal of `tidewire top`: keys as they are pressed, a screen of its own, and everything as it was when it is dropped.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::termios::{OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGTERM};

/// Another screen, no cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// How long a read waits for a key, in tenths of a second.
const READ_TENTHS: u8 = 2;

/// How a piece of a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    Bold,
    Reversed,
    Green,
    Cyan,
    Red,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Style::Plain => "\x1b[0m",
            Style::Bold => "\x1b[0;1m",
            Style::Reversed => "\x1b[0;7m",
            Style::Green => "\x1b[0;32m",
            Style::Cyan => "\x1b[0;36m",
            Style::Red => "\x1b[0;31m",
        }
    }
}

/// A line of the screen.
pub type Line = Vec<(Style, String)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Character(char),
    /// F1, F10.
    Function(u8),
    Escape,
    /// Ctrl-C, or the process was told to end.
    End,
}

pub struct Terminal {
    before: Termios,
    is_ended: Arc<AtomicBool>,
    /// Keys that came along with the one before.
    typed: RefCell<VecDeque<Key>>,
}

impl Terminal {
    pub fn open() -> io::Result<Terminal> {
        let is_ended = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, is_ended.clone())?;
        }
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = READ_TENTHS;
        tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        let terminal = Terminal {
            before,
            is_ended,
            typed: RefCell::default(),
        };
        write(ENTER)?;
        Ok(terminal)
    }

    /// Columns and rows.
    pub fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// Shows lines in place of what was there, as far as they fit.
    pub fn show(&self, lines: &[Line]) -> io::Result<()> {
        let (columns, rows) = self.size();
        write(&rendered(lines, columns, rows))
    }

    /// The next key, if there is one in time.
    pub fn key(&self, until: Instant) -> io::Result<Option<Key>> {
        let mut bytes = [0; 64];
        loop {
            if self.is_ended.load(Ordering::Relaxed) {
                return Ok(Some(Key::End));
            }
            if let Some(key) = self.typed.borrow_mut().pop_front() {
                return Ok(Some(key));
            }
            let count = match io::stdin().read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                read => read?,
            };
            let mut typed = self.typed.borrow_mut();
            typed.extend(parse(&bytes[..count]));
            if let Some(key) = typed.pop_front() {
                return Ok(Some(key));
            }
            if until.saturating_duration_since(Instant::now()) == Duration::ZERO {
                return Ok(None);
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = write(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn rendered(lines: &[Line], columns: usize, rows: usize) -> String {
    let mut text = String::from(HOME);
    for (index, line) in lines.iter().take(rows).enumerate() {
        if index > 0 {
            text.push_str("\r\n");
        }
        let mut room = columns;
        for (style, piece) in line {
            let shown: String = piece.chars().filter(|c| !c.is_control()).take(room).collect();
            room -= shown.chars().count();
            text.push_str(style.code());
            text.push_str(&shown);
        }
        text.push_str(Style::Plain.code());
        text.push_str(CLEAR_LINE);
    }
    text.push_str(CLEAR_BELOW);
    text
}

/// What a terminal has sent: several keys may come at once. What is none of ours is left out.
fn parse(bytes: &[u8]) -> Vec<Key> {
    let (mut keys, mut rest) = (Vec::new(), bytes);
    while let Some((key, length)) = first(rest) {
        keys.extend(key);
        rest = rest.get(length..).unwrap_or_default();
    }
    keys
}

/// The first key and how many bytes it has.
fn first(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    Some(match bytes {
        [] => return None,
        [3, ..] => (Some(Key::End), 1),
        [0x1b, b'O', b'P', ..] => (Some(Key::Function(1)), 3),
        [0x1b, b'O', _, ..] => (None, 3),
        [0x1b, b'[', b'[', name, ..] => ((*name == b'A').then_some(Key::Function(1)), 4),
        [0x1b, b'[', sequence @ ..] => {
            // Parameters, and a letter or a tilde that ends it.
            let end = sequence.iter().position(|byte| (0x40..=0x7e).contains(byte));
            let key = match sequence {
                [b'1', b'1', b'~', ..] => Some(Key::Function(1)),
                [b'2', b'1', b'~', ..] => Some(Key::Function(10)),
                _ => None,
            };
            (key, end.map_or(bytes.len(), |end| end + 3))
        }
        [0x1b, 0x1b, ..] | [0x1b] => (Some(Key::Escape), 1),
        // With Alt.
        [0x1b, ..] => (None, 2),
        [first, ..] => (Some(Key::Character(char::from(*first))), 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_terminals_send() {
        assert_eq!(parse(b"q"), [Key::Character('q')]);
        assert_eq!(parse(b"\x1bOP"), [Key::Function(1)]);
        assert_eq!(parse(b"\x1b[21~"), [Key::Function(10)]);
        assert_eq!(parse(b"\x1b"), [Key::Escape]);
        assert_eq!(parse(b"\x03"), [Key::End]);
        assert_eq!((parse(b"\x1b[A"), parse(b"")), (vec![], vec![]));
    }

    #[test]
    fn several_keys_at_once_are_all_read_and_none_is_made_of_what_is_unknown() {
        let plus = Key::Character('+');
        assert_eq!(parse(b"++q"), [plus, plus, Key::Character('q')]);
        assert_eq!(
            parse(b"\x1b[A\x1b[1;5C+\x1bx\x1bOP\x1b[21~\x1b"),
            [plus, Key::Function(1), Key::Function(10), Key::Escape]
        );
        assert_eq!(parse(b"\x1b[12"), []);
    }

    #[test]
    fn lines_are_cut_to_the_screen_and_carry_no_controls() {
        let line = |text: &str| vec![(Style::Bold, text.to_owned()), (Style::Red, "end".to_owned())];
        let text = rendered(&[line("a\x1b[2Jb"), line("second"), line("third")], 6, 2);
        assert_eq!(
            text,
            "\x1b[H\x1b[0;1ma[2Jb\x1b[0;31me\x1b[0m\x1b[K\r\n\x1b[0;1msecond\x1b[0;31m\x1b[0m\x1b[K\x1b[J"
        );
    }
}
