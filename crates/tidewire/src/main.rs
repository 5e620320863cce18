//! The `tidewire` binary; everything is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidewire::memory::give_large_blocks_back();
    tidewire::cli::run(std::env::args_os())
}
