//! Writing to standard output and error as a Unix tool does: a reader that went away is no failure.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Exit code of a failure that is not an error of the command line.
pub const EXIT_FAILURE: u8 = 1;
/// The command line or the configuration is wrong.
pub const EXIT_USAGE: u8 = 2;

/// Prints `text` as it is.
pub fn print(text: &str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(EXIT_FAILURE, &format!("cannot write to standard output: {error}")),
    }
}

/// Prints one line to standard error and ignores failures.
const COMPLAINT: &str = "tidewire: ";

pub fn print_error(message: &dyn Display) {
    let _ = writeln!(io::stderr().lock(), "{COMPLAINT}{message}");
}

/// Returns the error output of another process of this program.
pub fn error_output_of(printed: &str) -> &str {
    let printed = printed.trim();
    printed.strip_prefix(COMPLAINT).unwrap_or(printed)
}

pub fn fail(code: u8, message: &dyn Display) -> ExitCode {
    print_error(message);
    ExitCode::from(code)
}
