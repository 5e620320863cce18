//! Runs scripts in QuickJS, with one realm per tenant. Each realm has its own memory. A script cannot change anything
//! that outlives its call, because everything that it can reach is frozen.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rquickjs::{CatchResultExt, Context, Ctx, Function, Module, Persistent, Runtime};

use super::script::{ScriptAnswer, ScriptCall, ScriptError, TIME_MAX};
use crate::cpu_time::cpu_time;
use crate::ids::TenantId;

const MEMORY_BYTES_MAX: usize = 64 << 20;
const STACK_BYTES_MAX: usize = 256 << 10;
/// Realms per thread, and compiled functions per realm. Beyond that the least recently used realm, or all functions,
/// are dropped and created again when needed.
pub(super) const REALMS_MAX: usize = 64;
const FUNCTIONS_MAX: usize = 1000;

/// Parses the arguments, calls the script, and returns text. Scripts cannot reach objects of the host.
const WRAPPER: &str = "(function(script) { return function(data, metadata, kind) {
    const result = script(JSON.parse(data), JSON.parse(metadata), kind);
    const text = JSON.stringify(result);
    return text === undefined ? 'null' : text;
}; })";

/// Freezes everything that a script can reach: globals, the objects they refer to, and unnamed prototypes.
const FREEZE: &str = "(() => {
    const frozen = new Set();
    const freeze = (value) => {
        if ((typeof value !== 'function' && (typeof value !== 'object' || value === null)) || frozen.has(value)) return;
        frozen.add(value);
        Object.freeze(value);
        freeze(Object.getPrototypeOf(value));
        for (const key of Reflect.ownKeys(value)) {
            const property = Object.getOwnPropertyDescriptor(value, key);
            freeze(property.value);
            freeze(property.get);
            freeze(property.set);
        }
    };
    const functions = [function* () {}, async function () {}, async function* () {}];
    const iterators = [[].values(), new Map().values(), new Set().values(), ''[Symbol.iterator](), ''.matchAll(/x/g),
        [].values().map((value) => value), Iterator.from({ next() {} }), functions[0](), functions[2]()];
    for (const iterator of iterators) freeze(Object.getPrototypeOf(iterator));
    for (const each of functions) freeze(Object.getPrototypeOf(each));
    freeze(globalThis);
})()";

thread_local! {
    static REALMS: RefCell<Realms> = RefCell::default();
}

/// Runs a script in this thread, with the realms of this thread.
pub fn run_in_thread(call: &ScriptCall) -> ScriptAnswer {
    let before = cpu_time();
    let result = REALMS.with_borrow_mut(|realms| realms.call(call));
    ScriptAnswer {
        result,
        cpu: cpu_time().saturating_sub(before),
    }
}

#[derive(Default)]
struct Realms {
    by_tenant: HashMap<TenantId, (Realm, u64)>,
    calls: u64,
}

impl Realms {
    fn call(&mut self, call: &ScriptCall) -> Result<String, ScriptError> {
        self.calls += 1;
        let calls = self.calls;
        let result = match self.by_tenant.get_mut(&call.tenant) {
            Some((realm, used)) => {
                *used = calls;
                realm.call(call)
            }
            None => {
                let mut realm = Realm::new().map_err(ScriptError::Failed)?;
                let result = realm.call(call);
                self.evict_oldest();
                self.by_tenant.insert(call.tenant, (realm, calls));
                result
            }
        };
        // The call may have leaked memory, or left pending promises.
        let is_spent = |realm: &Realm| matches!(result, Err(ScriptError::Limit(_))) || realm.runtime.is_job_pending();
        if self
            .by_tenant
            .get(&call.tenant)
            .is_some_and(|(realm, _)| is_spent(realm))
        {
            self.by_tenant.remove(&call.tenant);
        }
        result
    }

    fn evict_oldest(&mut self) {
        if self.by_tenant.len() < REALMS_MAX {
            return;
        }
        let oldest = self.by_tenant.iter().min_by_key(|(_, (_, used))| *used);
        if let Some(tenant) = oldest.map(|(tenant, _)| *tenant) {
            self.by_tenant.remove(&tenant);
        }
    }
}

struct Realm {
    // Dropped before the context they belong to.
    functions: HashMap<Arc<str>, Persistent<Function<'static>>>,
    context: Context,
    /// CPU time of the thread at which the call is interrupted.
    deadline: Rc<Cell<Duration>>,
    // Declared last, because it must outlive the context.
    runtime: Runtime,
}

impl Realm {
    fn new() -> Result<Realm, String> {
        let (runtime, context) = new_runtime()?;
        context.with(|context| {
            let done = context.eval::<(), _>(FREEZE);
            done.catch(&context).map_err(|error| error.to_string())
        })?;
        let deadline = Rc::new(Cell::new(Duration::ZERO));
        let seen = Rc::clone(&deadline);
        runtime.set_interrupt_handler(Some(Box::new(move || cpu_time() >= seen.get())));
        Ok(Realm {
            functions: HashMap::new(),
            context,
            deadline,
            runtime,
        })
    }

    fn call(&mut self, call: &ScriptCall) -> Result<String, ScriptError> {
        self.deadline.set(cpu_time() + TIME_MAX);
        let known = self.functions.get(&call.source).cloned();
        let (result, function) = self
            .context
            .with(|context| {
                let run = || {
                    let function = match known {
                        Some(function) => function.restore(&context)?,
                        None => compile(&context, &call.source)?,
                    };
                    let result: String = function.call((&*call.data, &*call.metadata, &*call.kind))?;
                    Ok((result, Persistent::save(&context, function)))
                };
                run().catch(&context).map_err(|error| error.to_string())
            })
            .map_err(|error| self.classify(error))?;
        if self.functions.len() >= FUNCTIONS_MAX {
            self.functions.clear();
        }
        self.functions.entry(Arc::clone(&call.source)).or_insert(function);
        Ok(result)
    }

    fn classify(&self, error: String) -> ScriptError {
        if cpu_time() >= self.deadline.get() {
            ScriptError::Limit(format!("the script took longer than {} ms", TIME_MAX.as_millis()))
        } else if error.contains("out of memory") {
            ScriptError::Limit(format!(
                "the script took more memory than {} MiB",
                MEMORY_BYTES_MAX >> 20
            ))
        } else {
            ScriptError::Failed(error)
        }
    }
}

fn new_runtime() -> Result<(Runtime, Context), String> {
    let runtime = Runtime::new().map_err(|error| error.to_string())?;
    runtime.set_memory_limit(MEMORY_BYTES_MAX);
    runtime.set_max_stack_size(STACK_BYTES_MAX);
    let context = Context::full(&runtime).map_err(|error| error.to_string())?;
    Ok((runtime, context))
}

fn compile<'js>(context: &Ctx<'js>, source: &str) -> rquickjs::Result<Function<'js>> {
    let script: Function<'js> = context.eval(source)?;
    let wrapper: Function<'js> = context.eval(WRAPPER)?;
    wrapper.call((script,))
}

/// Checks that `body` is the body of one function, without running it.
///
/// A body that closes the function early (`} ... {`) can be parsed as code after a function in parentheses. It cannot
/// also be parsed as a method of an object and as one of a class. After a method, an object allows only `,` or `}`, a
/// class allows no `,`, and parentheses allow no `}`.
pub fn check(arguments: &str, body: &str) -> Result<(), String> {
    let (_runtime, context) = new_runtime()?;
    context.with(|context| {
        for text in [
            super::script::function(arguments, body),
            format!("({{ script({arguments}) {{\n{body}\n}} }})"),
            format!("(class {{ script({arguments}) {{\n{body}\n}} }})"),
        ] {
            Module::declare(context.clone(), "script", text)
                .catch(&context)
                .map_err(|error| format!("the script is not valid JavaScript: {error}"))?;
        }
        Ok(())
    })
}
