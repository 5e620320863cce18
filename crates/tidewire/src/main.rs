//! The `tidewire` binary. The library contains all of its code.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidewire::memory::give_large_blocks_back();
    tidewire::cli::run(std::env::args_os())
}
