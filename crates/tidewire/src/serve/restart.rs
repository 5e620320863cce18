//! Starting anew: the process ends in an orderly way and becomes the same program with the same arguments, as the same process, so that
//! whoever supervises it sees no end. And what a start does with a backup that waits to be restored.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::SIGTERM;

use crate::backup::switch::{self, CarriedOut};
use crate::cli::listed;
use crate::config::{self, Sources};
use crate::output::{EXIT_FAILURE, complain, fail};

/// Asks the server to start anew.
#[derive(Clone, Debug, Default)]
pub struct Restart(Arc<AtomicBool>);

impl Restart {
    pub fn ask(&self) -> Result<(), String> {
        if self.0.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        signal_hook::low_level::raise(SIGTERM).map_err(|error| {
            self.0.store(false, Ordering::SeqCst);
            format!("the server cannot be told to end: {error}")
        })
    }

    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Does not return, unless that fails.
pub fn start_anew() -> ExitCode {
    let mut arguments = std::env::args_os();
    let typed = arguments.next().unwrap_or_default();
    // Another one may have taken the place of the program: its path says so by not being there.
    let program = std::env::current_exe().ok().filter(|path| path.exists());
    let program = program.unwrap_or_else(|| typed.clone().into());
    let error = Command::new(&program).arg0(&typed).args(arguments).exec();
    fail(
        EXIT_FAILURE,
        &format!("{} cannot be started anew: {error}", program.display()),
    )
}

pub fn carry_out_restore(sources: &Sources) -> Result<CarriedOut, String> {
    let is_valid = |runtime: &str| {
        let mut would_be = sources.clone();
        would_be.runtime = Some(runtime.to_owned());
        config::load(&would_be)
            .map(|_| ())
            .map_err(|diagnostics| listed(&diagnostics))
    };
    switch::carry_out(&config::data_dir(sources), is_valid)
}

/// The server cannot be started. If that is with data that has just been restored, it is started with that of before.
pub fn reject_restore(data_dir: &Path, because: &str) -> Option<ExitCode> {
    match switch::reject(data_dir, because) {
        Ok(false) => None,
        Ok(true) => {
            complain(&format!("{because}\nthe backup that was restored is taken back"));
            Some(start_anew())
        }
        Err(message) => Some(fail(EXIT_FAILURE, &format!("{because}; and {message}"))),
    }
}

/// Once there is a log.
pub fn tell(carried_out: &CarriedOut) {
    match carried_out {
        CarriedOut::Nothing => {}
        CarriedOut::Restored { backup } => tracing::info!(backup, "starting with what was restored"),
        CarriedOut::Failed { backup, because } => {
            tracing::error!(
                backup,
                because,
                "the backup was not restored; the data of before is in force"
            );
        }
    }
}

/// The server is ready: what was restored stays.
pub fn settle_restore(data_dir: &Path) {
    match switch::settle(data_dir) {
        Ok(None) => {}
        Ok(Some(backup)) => tracing::info!(backup, "the backup has been restored; the data of before is set aside"),
        Err(error) => tracing::error!(error, "what was restored is in force, and cannot be noted as such"),
    }
}
