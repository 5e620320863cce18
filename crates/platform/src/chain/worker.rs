//! Runs the scripts of a thread in a second thread. QuickJS can stop a script that takes too long, except within some
//! built-in functions, for example a reverse of an endless iterable or a search in a long text. A thread that cannot
//! be stopped is abandoned, and the caller continues.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, setpriority_process};
use rustix::thread::gettid;

use super::realm::Realms;
use super::script::{ScriptCall, ScriptError};
use crate::ids::TenantId;

/// Number of checks after which a script is abandoned. Far more than its time limit, because the machine may be busy.
/// A suspended process misses only one check.
const CHECKS: u32 = 60;
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Abandoned scripts per tenant that still run. With that many, no script of the tenant runs.
const ABANDONED_MAX: usize = 2;
const ABANDONED_NICE: i32 = 19;
const STACK_BYTES: usize = 2 << 20;

type ScriptAnswer = Result<String, ScriptError>;

struct ScriptWorker {
    calls: SyncSender<ScriptCall>,
    answers: Receiver<ScriptAnswer>,
    thread: Arc<OnceLock<Pid>>,
    is_abandoned: Arc<Mutex<bool>>,
}

thread_local! {
    static WORKER: RefCell<Option<ScriptWorker>> = const { RefCell::new(None) };
}

/// Number of abandoned scripts that still run, by tenant.
static ABANDONED: Mutex<Option<HashMap<TenantId, usize>>> = Mutex::new(None);

pub fn call(call: ScriptCall) -> ScriptAnswer {
    let tenant = call.tenant;
    if with_abandoned_count(tenant, |count| *count) >= ABANDONED_MAX {
        return Err(ScriptError::Failed(format!(
            "{ABANDONED_MAX} scripts of this tenant could not be stopped: its scripts run again after a restart of the server"
        )));
    }
    WORKER.with_borrow_mut(|worker| {
        let running = match worker.take() {
            Some(running) => running,
            None => {
                start().map_err(|error| ScriptError::Failed(format!("cannot start a thread for scripts: {error}")))?
            }
        };
        let stopped = || ScriptError::Failed("the script thread has stopped".to_owned());
        running.calls.send(call).map_err(|_| stopped())?;
        for _ in 0..CHECKS {
            match running.answers.recv_timeout(CHECK_INTERVAL) {
                Ok(answer) => {
                    *worker = Some(running);
                    return answer;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(stopped()),
            }
        }
        let mut is_abandoned = running.is_abandoned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(answer) = running.answers.try_recv() {
            drop(is_abandoned);
            *worker = Some(running);
            return answer;
        }
        *is_abandoned = true;
        with_abandoned_count(tenant, |count| *count += 1);
        if let Some(thread) = running.thread.get() {
            // The lowest priority. If setting it fails, the thread keeps its priority.
            let _ = setpriority_process(Some(*thread), ABANDONED_NICE);
        }
        Err(ScriptError::Endless)
    })
}

fn start() -> std::io::Result<ScriptWorker> {
    let (calls, todo) = sync_channel::<ScriptCall>(1);
    let (done, answers) = sync_channel(1);
    let thread = Arc::new(OnceLock::new());
    let known = Arc::clone(&thread);
    let is_abandoned = Arc::new(Mutex::new(false));
    let was_abandoned = Arc::clone(&is_abandoned);
    let work = move || {
        known.get_or_init(gettid);
        let mut realms = Realms::default();
        for call in todo {
            let answer = realms.call(&call);
            let was_abandoned = was_abandoned.lock().unwrap_or_else(PoisonError::into_inner);
            if *was_abandoned {
                return with_abandoned_count(call.tenant, |count| *count -= 1);
            }
            // The channel has capacity for one answer, so this does not wait. The caller may be gone.
            if done.send(answer).is_err() {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("scripts".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(work)?;
    Ok(ScriptWorker {
        calls,
        answers,
        thread,
        is_abandoned,
    })
}

fn with_abandoned_count<T>(tenant: TenantId, act: impl FnOnce(&mut usize) -> T) -> T {
    let mut all = ABANDONED.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_default();
    let result = act(all.entry(tenant).or_default());
    all.retain(|_, count| *count > 0);
    result
}
