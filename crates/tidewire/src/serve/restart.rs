//! Restarts the server: the process stops in order and executes the same program with the same arguments, with the
//! same process ID, so that a supervisor sees no exit. Also carries out a restore that waits for a start.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::SIGTERM;

use super::StartFailure;
use crate::backup::switch::{self, RestoreResult};
use crate::config::{self, ConfigSources, RUNTIME_FILE, RuntimeText, listed};
use crate::output::{EXIT_FAILURE, fail, print_error};

/// Pause before another start with restored data.
const TRIAL_PAUSE: Duration = Duration::from_secs(2);

/// Asks the server to restart.
#[derive(Clone, Debug, Default)]
pub struct RestartRequest(Arc<AtomicBool>);

impl RestartRequest {
    pub fn request(&self) -> Result<(), String> {
        if self.0.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        signal_hook::low_level::raise(SIGTERM).map_err(|error| {
            self.0.store(false, Ordering::SeqCst);
            format!("cannot signal the server to stop: {error}")
        })
    }

    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Returns only on failure.
pub fn restart_process() -> ExitCode {
    let mut arguments = std::env::args_os();
    let typed = arguments.next().unwrap_or_default();
    // The program file may have been replaced: then the path of the running program ends with a marker of the kernel.
    let program = std::env::current_exe().ok().filter(|path| path.exists());
    let program = program.unwrap_or_else(|| typed.clone().into());
    let error = Command::new(&program).arg0(&typed).args(arguments).exec();
    fail(EXIT_FAILURE, &format!("cannot restart {}: {error}", program.display()))
}

pub fn run_restore(sources: &ConfigSources) -> Result<RestoreResult, String> {
    let data_dir = config::data_dir(sources);
    let is_valid = |runtime: &str| {
        let mut would_be = sources.clone();
        would_be.runtime = Some(RuntimeText {
            path: data_dir.join(RUNTIME_FILE),
            text: runtime.to_owned(),
        });
        config::load(&would_be)
            .map(|_| ())
            .map_err(|diagnostics| listed(&diagnostics))
    };
    switch::run_pending_restore(&data_dir, is_valid)
}

/// Called if the server cannot start. If it uses restored data on trial, it restarts with the previous data. If a port
/// is in use, which does not depend on the data, it first tries the restored data again.
pub fn reject_restore(data_dir: &Path, failure: &StartFailure) -> Option<ExitCode> {
    let reason = failure.message();
    if matches!(failure, StartFailure::PortInUse(_)) && switch::has_trials_left(data_dir) {
        print_error(&format!("{reason}\ntrying again to start with the restored backup"));
        std::thread::sleep(TRIAL_PAUSE);
        return Some(restart_process());
    }
    match switch::reject(data_dir, reason) {
        Ok(false) => None,
        Ok(true) => {
            print_error(&format!("{reason}\nthe restored backup is undone"));
            Some(restart_process())
        }
        Err(message) => Some(fail(EXIT_FAILURE, &format!("{reason}; and {message}"))),
    }
}

/// Called once the log is open.
pub fn log_restore(carried_out: &RestoreResult) {
    match carried_out {
        RestoreResult::Nothing => {}
        RestoreResult::Restored { backup } => tracing::info!(backup, "starting with the restored data"),
        RestoreResult::Failed { backup, reason } => {
            tracing::error!(
                backup,
                reason,
                "the backup was not restored; the previous data is in use"
            );
        }
    }
}

/// Called when the server is ready: the restored data is final.
pub fn finish_restore_trial(data_dir: &Path) {
    match switch::finish_trial(data_dir) {
        Ok(None) => {}
        Ok(Some(backup)) => tracing::info!(backup, "the backup was restored; the previous data was moved aside"),
        Err(error) => tracing::error!(error, "the restored data is in use, but that could not be recorded"),
    }
}
