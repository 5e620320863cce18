//! Scripts of nodes: JavaScript in QuickJS, with limits of memory, stack and time. An engine per thread; what a script leaves
//! behind in the global object is gone with the next engine only, so scripts are functions in strict mode and the global
//! object is frozen.
//!
//! TBEL looks like JavaScript but is not: a node in TBEL runs if its JavaScript has the same text, and else is disabled.

use std::fmt;
use std::sync::Arc;

use serde_json::Value as Json;

use super::host::NodeError;
use super::message::Message;
use super::nodes::made_of;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptKind {
    Filter,
    Switch,
    Transform,
    Text,
    Details,
    Generator,
}

impl ScriptKind {
    /// As ThingsBoard's editor calls it.
    pub fn parse(name: &str) -> Option<ScriptKind> {
        Some(match name {
            "filter" => ScriptKind::Filter,
            "switch" => ScriptKind::Switch,
            "update" => ScriptKind::Transform,
            "string" => ScriptKind::Text,
            "json" => ScriptKind::Details,
            "generate" => ScriptKind::Generator,
            _ => return None,
        })
    }

    /// Names of the function's arguments.
    fn arguments(self) -> &'static str {
        match self {
            ScriptKind::Generator => "prevMsg, prevMetadata, prevMsgType",
            _ => "msg, metadata, msgType",
        }
    }
}

/// Bytes of a script, of what goes into it, and of what it gives.
pub const SOURCE_BYTES_MAX: usize = 50_000;
pub const ARGUMENT_BYTES_MAX: usize = 1 << 20;
pub const RESULT_BYTES_MAX: usize = 300_000;

#[derive(Clone)]
pub struct Script {
    kind: ScriptKind,
    /// A JavaScript function.
    source: Arc<str>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({:?}, {} bytes)", self.kind, self.source.len())
    }
}

impl Script {
    /// From a node's configuration, by the names of its members.
    pub fn parse(json: &Json, js: &str, tbel: &str, kind: ScriptKind) -> Result<Script, String> {
        let source = json[js].as_str().unwrap_or_default();
        if json["scriptLang"].as_str() == Some("TBEL")
            && json[tbel].as_str().unwrap_or_default().trim() != source.trim()
        {
            return Err("its script is in TBEL, which is not supported: write it in JavaScript".to_owned());
        }
        Script::new(source, kind)
    }

    /// `source` is the body of a function.
    pub fn new(source: &str, kind: ScriptKind) -> Result<Script, String> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(format!("its script has more than {SOURCE_BYTES_MAX} bytes"));
        }
        let source: Arc<str> = format!("(function({}) {{ \"use strict\";\n{source}\n}})", kind.arguments()).into();
        engine::check(&source)?;
        Ok(Script { kind, source })
    }

    /// What the function returns.
    pub fn run(&self, message: &Message<'_>) -> Result<Json, NodeError> {
        let data = message.json().to_string();
        let metadata = message.metadata.to_json().to_string();
        if data.len() + metadata.len() > ARGUMENT_BYTES_MAX {
            return Err(NodeError::new(format!(
                "the message has more than {ARGUMENT_BYTES_MAX} bytes: no script gets it"
            )));
        }
        let result = engine::call(&self.source, &data, &metadata, &message.kind).map_err(NodeError)?;
        if result.len() > RESULT_BYTES_MAX {
            return Err(NodeError::new(format!(
                "the script gave more than {RESULT_BYTES_MAX} bytes"
            )));
        }
        serde_json::from_str(&result).map_err(|error| NodeError::new(format!("the script gave no JSON: {error}")))
    }

    pub fn filter(&self, message: &Message<'_>) -> Result<bool, NodeError> {
        self.run(message)?
            .as_bool()
            .ok_or_else(|| NodeError::new("Wrong result type: a filter has to return a boolean"))
    }

    pub fn labels(&self, message: &Message<'_>) -> Result<Vec<String>, NodeError> {
        let wrong = || NodeError::new("Wrong result type: a switch has to return a string or an array of strings");
        match self.run(message)? {
            Json::String(label) => Ok(vec![label]),
            Json::Array(labels) => labels
                .iter()
                .map(|label| label.as_str().map(str::to_owned).ok_or_else(wrong))
                .collect(),
            _ => Err(wrong()),
        }
    }

    pub fn text(&self, message: &Message<'_>) -> Result<String, NodeError> {
        Ok(super::message::plain(&self.run(message)?))
    }

    pub fn transform<'a>(&self, message: &Message<'a>) -> Result<Vec<Message<'a>>, NodeError> {
        made_of(self.run(message)?, message)
    }
}

#[cfg(feature = "script")]
mod engine {
    use std::cell::Cell;
    use std::cell::RefCell;
    use std::collections::HashMap;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use rquickjs::{CatchResultExt, Context, Function, Persistent, Runtime};

    const MEMORY_BYTES_MAX: usize = 64 << 20;
    const STACK_BYTES_MAX: usize = 256 << 10;
    const TIME_MAX: Duration = Duration::from_millis(500);
    /// Functions that are kept compiled; with more of them all are compiled anew.
    const FUNCTIONS_MAX: usize = 1000;

    /// Parses the arguments, calls the script, and gives text: no object of ours is in reach of a script.
    const WRAPPER: &str = "(function(script) { return function(data, metadata, kind) {
        const result = script(JSON.parse(data), JSON.parse(metadata), kind);
        const text = JSON.stringify(result);
        return text === undefined ? 'null' : text;
    }; })";

    const FREEZE: &str = "for (const name of Object.getOwnPropertyNames(globalThis)) {
        const value = globalThis[name];
        if (value && (typeof value === 'function' || typeof value === 'object') && value !== globalThis) {
            if (value.prototype) Object.freeze(value.prototype);
            Object.freeze(value);
        }
    }
    Object.freeze(globalThis);";

    struct Engine {
        // Dropped before the context they belong to.
        functions: HashMap<Arc<str>, Persistent<Function<'static>>>,
        context: Context,
        deadline: Rc<Cell<Option<Instant>>>,
        // Last: it must outlive the context.
        _runtime: Runtime,
    }

    thread_local! {
        static ENGINE: RefCell<Option<Engine>> = const { RefCell::new(None) };
    }

    impl Engine {
        fn new() -> Result<Engine, String> {
            let runtime = Runtime::new().map_err(|error| error.to_string())?;
            runtime.set_memory_limit(MEMORY_BYTES_MAX);
            runtime.set_max_stack_size(STACK_BYTES_MAX);
            let deadline = Rc::new(Cell::new(None::<Instant>));
            let seen = Rc::clone(&deadline);
            runtime.set_interrupt_handler(Some(Box::new(move || {
                seen.get().is_some_and(|deadline| Instant::now() >= deadline)
            })));
            let context = Context::full(&runtime).map_err(|error| error.to_string())?;
            context.with(|context| {
                context
                    .eval::<(), _>(FREEZE)
                    .catch(&context)
                    .map_err(|error| error.to_string())
            })?;
            Ok(Engine {
                functions: HashMap::new(),
                context,
                deadline,
                _runtime: runtime,
            })
        }

        fn call(&mut self, source: &Arc<str>, arguments: [&str; 3]) -> Result<String, String> {
            self.deadline.set(Some(Instant::now() + TIME_MAX));
            let result = self.call_in_time(source, arguments);
            self.deadline.set(None);
            result
        }

        fn call_in_time(&mut self, source: &Arc<str>, [data, metadata, kind]: [&str; 3]) -> Result<String, String> {
            let known = self.functions.get(source).cloned();
            let (result, function) = self.context.with(|context| {
                let run = || {
                    let function = match known {
                        Some(function) => function.restore(&context)?,
                        None => compile(&context, source)?,
                    };
                    let result: String = function.call((data, metadata, kind))?;
                    Ok((result, Persistent::save(&context, function)))
                };
                run().catch(&context).map_err(|error| error.to_string())
            })?;
            if self.functions.len() >= FUNCTIONS_MAX {
                self.functions.clear();
            }
            self.functions.entry(Arc::clone(source)).or_insert(function);
            Ok(result)
        }
    }

    fn compile<'js>(context: &rquickjs::Ctx<'js>, source: &str) -> rquickjs::Result<Function<'js>> {
        let script: Function<'js> = context.eval(source)?;
        let wrapper: Function<'js> = context.eval(WRAPPER)?;
        wrapper.call((script,))
    }

    fn with_engine<T>(act: impl FnOnce(&mut Engine) -> Result<T, String>) -> Result<T, String> {
        ENGINE.with(|engine| {
            let mut engine = engine
                .try_borrow_mut()
                .map_err(|_| "a script cannot call another".to_owned())?;
            if engine.is_none() {
                *engine = Some(Engine::new()?);
            }
            match engine.as_mut() {
                Some(engine) => act(engine),
                None => Err("there is no engine for scripts".to_owned()),
            }
        })
    }

    /// A script that fails may leave memory behind that it cannot free: the next one gets a new engine.
    pub fn call(source: &Arc<str>, data: &str, metadata: &str, kind: &str) -> Result<String, String> {
        let result = with_engine(|engine| engine.call(source, [data, metadata, kind]));
        if let Err(error) = &result
            && (error.contains("out of memory") || error.contains("interrupted"))
        {
            ENGINE.with(|engine| *engine.borrow_mut() = None);
        }
        result
    }

    /// Whether it is JavaScript at all.
    pub fn check(source: &str) -> Result<(), String> {
        with_engine(|engine| {
            engine.context.with(|context| {
                let parsed: rquickjs::Result<Function<'_>> = context.eval(source);
                parsed
                    .catch(&context)
                    .map(|_| ())
                    .map_err(|error| format!("its script is not JavaScript: {error}"))
            })
        })
    }
}

#[cfg(not(feature = "script"))]
mod engine {
    use std::sync::Arc;

    pub fn call(_source: &Arc<str>, _data: &str, _metadata: &str, _kind: &str) -> Result<String, String> {
        Err("this program was built without scripts".to_owned())
    }

    pub fn check(_source: &str) -> Result<(), String> {
        Err("this program was built without scripts (feature `script`)".to_owned())
    }
}
