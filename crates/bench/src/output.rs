//! Writing to standard output and error as a Unix tool does: a reader that went away is no failure. Nothing else in this crate prints.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints `text` as it is, at once.
pub fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// One line on standard output.
pub fn line(text: impl Display) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// One line on standard error.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

pub fn complain(message: impl Display) {
    note(format_args!("tidewire bench: {message}"));
}
