//! A thread for the scripts of a thread. QuickJS ends a script that takes too long, except in some functions of the language (the
//! reverse of something endless, a long text sought in another): what cannot be ended is left behind, and its caller goes on.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, setpriority_process};
use rustix::thread::gettid;

use super::realm::Realms;
use super::script::{Call, ScriptError};
use crate::ids::TenantId;

/// A script that has not ended after so many looks cannot be ended: much more than it may take, for the machine may be busy. One that
/// stands still for a while misses one look.
const LOOKS: u32 = 60;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Scripts of a tenant that could not be ended and still run: with so many none of the tenant's is run.
const LEFT_MAX: usize = 2;
const LEFT_NICE: i32 = 19;
const STACK_BYTES: usize = 2 << 20;

type Answer = Result<String, ScriptError>;

struct Worker {
    calls: SyncSender<Call>,
    answers: Receiver<Answer>,
    thread: Arc<OnceLock<Pid>>,
    is_left: Arc<Mutex<bool>>,
}

thread_local! {
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

/// Scripts that were left behind, by tenant.
static LEFT: Mutex<Option<HashMap<TenantId, usize>>> = Mutex::new(None);

pub fn call(call: Call) -> Answer {
    let tenant = call.tenant;
    if left(tenant, |left| *left) >= LEFT_MAX {
        return Err(ScriptError::Failed(format!(
            "{LEFT_MAX} scripts of this tenant run on and cannot be ended: none is run until the server was started again"
        )));
    }
    WORKER.with_borrow_mut(|worker| {
        let running = match worker.take() {
            Some(running) => running,
            None => start().map_err(|error| ScriptError::Failed(format!("no thread for scripts: {error}")))?,
        };
        let gone = || ScriptError::Failed("the thread of scripts has ended".to_owned());
        running.calls.send(call).map_err(|_| gone())?;
        for _ in 0..LOOKS {
            match running.answers.recv_timeout(LOOK_EVERY) {
                Ok(answer) => {
                    *worker = Some(running);
                    return answer;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            }
        }
        let mut is_left = running.is_left.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(answer) = running.answers.try_recv() {
            drop(is_left);
            *worker = Some(running);
            return answer;
        }
        *is_left = true;
        left(tenant, |left| *left += 1);
        if let Some(thread) = running.thread.get() {
            // It gets what time nobody else wants. If it cannot be told, it gets more.
            let _ = setpriority_process(Some(*thread), LEFT_NICE);
        }
        Err(ScriptError::Endless)
    })
}

fn start() -> std::io::Result<Worker> {
    let (calls, todo) = sync_channel::<Call>(1);
    let (done, answers) = sync_channel(1);
    let thread = Arc::new(OnceLock::new());
    let known = Arc::clone(&thread);
    let is_left = Arc::new(Mutex::new(false));
    let was_left = Arc::clone(&is_left);
    let work = move || {
        known.get_or_init(gettid);
        let mut realms = Realms::default();
        for call in todo {
            let answer = realms.call(&call);
            let was_left = was_left.lock().unwrap_or_else(PoisonError::into_inner);
            if *was_left {
                return left(call.tenant, |left| *left -= 1);
            }
            // There is room for one: nobody waits here. A caller that is gone needs none.
            if done.send(answer).is_err() {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("scripts".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(work)?;
    Ok(Worker {
        calls,
        answers,
        thread,
        is_left,
    })
}

fn left<T>(tenant: TenantId, act: impl FnOnce(&mut usize) -> T) -> T {
    let mut all = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_default();
    let result = act(all.entry(tenant).or_default());
    all.retain(|_, left| *left > 0);
    result
}
