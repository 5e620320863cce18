//! Where scripts run: QuickJS, a realm for each tenant. A realm has memory of its own, and a script changes nothing in it that
//! outlives its call: whatever it can reach is frozen.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use rquickjs::{CatchResultExt, Context, Ctx, Function, Module, Persistent, Runtime};

use super::script::{Call, ScriptError, TIME_MAX};
use crate::ids::TenantId;

const MEMORY_BYTES_MAX: usize = 64 << 20;
const STACK_BYTES_MAX: usize = 256 << 10;
/// Realms that a thread keeps, and functions that a realm keeps compiled: with more of them the one not used for longest, or
/// all, are made anew.
const REALMS_MAX: usize = 64;
const FUNCTIONS_MAX: usize = 1000;

/// Parses the arguments, calls the script, and gives text: no object of ours is in reach of a script.
const WRAPPER: &str = "(function(script) { return function(data, metadata, kind) {
    const result = script(JSON.parse(data), JSON.parse(metadata), kind);
    const text = JSON.stringify(result);
    return text === undefined ? 'null' : text;
}; })";

/// All that a script can reach: what has a name, what that leads to, and what has none.
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

#[derive(Default)]
pub struct Realms {
    by_tenant: HashMap<TenantId, (Realm, u64)>,
    calls: u64,
}

impl Realms {
    pub fn call(&mut self, call: &Call) -> Result<String, ScriptError> {
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
                self.make_room();
                self.by_tenant.insert(call.tenant, (realm, calls));
                result
            }
        };
        // It may have left memory behind that nothing frees, or promises that nobody keeps.
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

    fn make_room(&mut self) {
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
    deadline: Rc<Cell<Instant>>,
    // Last: it must outlive the context.
    runtime: Runtime,
}

impl Realm {
    fn new() -> Result<Realm, String> {
        let (runtime, context) = engine()?;
        context.with(|context| {
            let done = context.eval::<(), _>(FREEZE);
            done.catch(&context).map_err(|error| error.to_string())
        })?;
        let deadline = Rc::new(Cell::new(Instant::now()));
        let seen = Rc::clone(&deadline);
        runtime.set_interrupt_handler(Some(Box::new(move || Instant::now() >= seen.get())));
        Ok(Realm {
            functions: HashMap::new(),
            context,
            deadline,
            runtime,
        })
    }

    fn call(&mut self, call: &Call) -> Result<String, ScriptError> {
        self.deadline.set(Instant::now() + TIME_MAX);
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
            .map_err(|error| self.judged(error))?;
        if self.functions.len() >= FUNCTIONS_MAX {
            self.functions.clear();
        }
        self.functions.entry(Arc::clone(&call.source)).or_insert(function);
        Ok(result)
    }

    fn judged(&self, error: String) -> ScriptError {
        if Instant::now() >= self.deadline.get() {
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

fn engine() -> Result<(Runtime, Context), String> {
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

/// Whether `body` is that of a function, and of one only: nothing of it is run here.
///
/// A body that closes the function early (`} ... {`) may be parsed as what follows a function in parentheses. It is then no method of
/// an object, or none of a class: after a method, an object has only `,` or `}`, a class no `,`, and in parentheses no `}` follows.
pub fn check(arguments: &str, body: &str) -> Result<(), String> {
    let (_runtime, context) = engine()?;
    context.with(|context| {
        for text in [
            super::script::function(arguments, body),
            format!("({{ script({arguments}) {{\n{body}\n}} }})"),
            format!("(class {{ script({arguments}) {{\n{body}\n}} }})"),
        ] {
            Module::declare(context.clone(), "script", text)
                .catch(&context)
                .map_err(|error| format!("its script is not JavaScript: {error}"))?;
        }
        Ok(())
    })
}
