//! The `tidewire` binary; everything is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidewire::cli::run(std::env::args_os())
}
