//! Writing to standard output and standard error as a Unix tool does: a closed pipe is not an error. No other module of
//! this crate prints.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints `text` without a line break at its end and flushes.
pub fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// Prints one line to standard output and flushes.
pub fn line(text: impl Display) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}

/// Prints one line to standard error.
pub fn note(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

pub fn error(message: impl Display) {
    note(format_args!("tidewire bench: {message}"));
}
