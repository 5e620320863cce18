//! Runs a compiled program: each output of a term is handed to a function as soon as it is there, so that nothing is made that
//! nobody takes.
//!
//! Everything is counted: steps, bytes that are made, and how deep terms wait for each other, which is the stack. When one of these is
//! used up the program ends with an error that `try` does not catch. Values nest no deeper than `VALUE_NESTING_MAX`.

use std::sync::Arc;

use regex::bytes::Regex;

use super::term::{Def, Form, Operator, Part, Target, Term, TextFormat};
use super::{formats, natives, prelude, values};
use crate::error::Fault;
use crate::json::JsonLimits;
use crate::value::{Map, Value};

/// Of terms that wait for each other: each takes about 1 KiB of the stack, which has 2 MiB.
const DEPTH_MAX: u32 = 800;

/// Of arrays and objects in values, and of paths.
pub(super) const VALUE_NESTING_MAX: usize = 128;

/// Why a term ends before its last output.
#[derive(Debug)]
pub(super) enum Stop {
    /// What `error` and everything that goes wrong raises; and where, when that is known.
    Error { value: Value, at: Option<u32> },
    /// `break`, to the label with this number.
    Break(u64),
    /// Something is used up: nobody catches it.
    Limit(Fault),
    /// Who takes the outputs has stopped, and keeps the reason.
    Below,
}

impl Stop {
    pub fn error(message: impl Into<String>) -> Stop {
        Stop::Error {
            value: Value::from(message.into()),
            at: None,
        }
    }

    pub fn raised_at(self, here: u32) -> Stop {
        match self {
            Stop::Error { value, at: None } => Stop::Error { value, at: Some(here) },
            other => other,
        }
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Limit(fault)
    }
}

pub(super) type Flow = Result<(), Stop>;

/// Where a value stands in the input of `path(…)`.
#[derive(Clone, Debug)]
pub(super) enum Path {
    /// Nobody asks.
    Off,
    At(Arc<Vec<Value>>),
    /// Nowhere: it was made.
    Lost,
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub value: Value,
    pub path: Path,
}

impl Item {
    pub fn plain(value: Value) -> Item {
        Item { value, path: Path::Off }
    }

    /// Something that was made of it.
    pub fn made(&self, value: Value) -> Item {
        let path = match self.path {
            Path::Off => Path::Off,
            Path::At(_) | Path::Lost => Path::Lost,
        };
        Item { value, path }
    }
}

/// Takes outputs.
pub(super) type Out<'o> = dyn FnMut(&mut Machine, Item) -> Flow + 'o;

/// Names and what they stand for, the innermost first.
pub(super) type Scope<'e> = Option<&'e Link<'e>>;

pub(super) struct Link<'e> {
    pub what: Named<'e>,
    pub next: Scope<'e>,
}

pub(super) enum Named<'e> {
    Variable(u32, Value),
    Def(&'e Def),
    Param(u32, &'e Term, Scope<'e>),
    Label(u32, u64),
}

impl<'e> Link<'e> {
    fn value(scope: Scope<'e>, wanted: u32) -> Value {
        let found = Link::find(scope, |link| match &link.what {
            Named::Variable(id, value) if *id == wanted => Some(value.clone()),
            _ => None,
        });
        found.unwrap_or_default()
    }

    fn find<T>(mut scope: Scope<'e>, of: impl Fn(&'e Link<'e>) -> Option<T>) -> Option<T> {
        while let Some(link) = scope {
            if let Some(found) = of(link) {
                return Some(found);
            }
            scope = link.next;
        }
        None
    }
}

/// What is left of the limits, and what outlives a term.
pub(super) struct Machine {
    pub steps: u64,
    pub bytes: usize,
    depth: u32,
    pub labels: u64,
    pub json: JsonLimits,
    pub regex_bytes_max: usize,
    pub regexes: Vec<(Vec<u8>, Regex)>,
    pub unix_nanoseconds: i128,
}

impl Machine {
    pub fn new(steps: u64, bytes: usize, json: JsonLimits, regex_bytes_max: usize, unix_nanoseconds: i128) -> Machine {
        Machine {
            steps,
            bytes,
            depth: 0,
            labels: 0,
            json,
            regex_bytes_max,
            regexes: Vec::new(),
            unix_nanoseconds,
        }
    }

    pub fn step(&mut self, steps: u64) -> Flow {
        match self.steps.checked_sub(steps) {
            Some(left) => self.steps = left,
            None => {
                self.steps = 0;
                return Err(Stop::Limit(Fault::from("the program takes more steps than it may")));
            }
        }
        Ok(())
    }

    /// Before so many bytes are made.
    pub fn make(&mut self, bytes: usize) -> Flow {
        match self.bytes.checked_sub(bytes) {
            Some(left) => self.bytes = left,
            None => return Err(Stop::Limit(Fault::from("the program makes more bytes than it may"))),
        }
        self.step(bytes as u64 / 64)
    }

    /// An array or object that is to have this in it must not nest too deep.
    pub fn check_nesting(&mut self, value: &Value, around: usize) -> Flow {
        match value.count_within(VALUE_NESTING_MAX - around.min(VALUE_NESTING_MAX)) {
            Some(count) => self.step(count / 8),
            None => {
                let message = format!("values nest deeper than {VALUE_NESTING_MAX} levels");
                Err(Stop::Limit(Fault::from(message)))
            }
        }
    }

    pub fn array(&mut self, elements: Vec<Value>) -> Result<Value, Stop> {
        self.make(32 + 32 * elements.len())?;
        for element in &elements {
            self.check_nesting(element, 1)?;
        }
        Ok(Value::array(elements))
    }

    pub fn text(&mut self, bytes: impl Into<Vec<u8>>) -> Result<Value, Stop> {
        let bytes = bytes.into();
        self.make(bytes.len())?;
        Ok(Value::Text(bytes.into()))
    }

    pub fn run(&mut self, term: &Term, input: Value, out: &mut dyn FnMut(&mut Machine, Value) -> Flow) -> Flow {
        self.eval(term, Item::plain(input), None, &mut |machine, item| {
            out(machine, item.value)
        })
    }

    pub fn eval<'e>(&mut self, term: &'e Term, item: Item, scope: Scope<'e>, out: &mut Out<'_>) -> Flow {
        self.step(1)?;
        if self.depth >= DEPTH_MAX {
            let message = format!("the program nests deeper than {DEPTH_MAX} levels when it runs");
            return Err(Stop::Limit(Fault::from(message)));
        }
        self.depth += 1;
        let flow = self.form(term, item, scope, out);
        self.depth -= 1;
        flow.map_err(|stop| stop.raised_at(term.at))
    }

    fn form<'e>(&mut self, term: &'e Term, item: Item, scope: Scope<'e>, out: &mut Out<'_>) -> Flow {
        match &term.form {
            Form::Identity => out(self, item),
            Form::Literal(value) => out(self, item.made(value.clone())),
            Form::Variable(id) => out(self, item.made(Link::value(scope, *id))),
            Form::Pipe(first, second) => self.eval(first, item, scope, &mut |machine, item| {
                machine.eval(second, item, scope, out)
            }),
            Form::Comma(first, second) => {
                self.eval(first, item.clone(), scope, out)?;
                self.eval(second, item, scope, out)
            }
            Form::Index(of, key) => self.index(of, key, item, scope, out),
            Form::Iterate(of) => self.eval(of, item, scope, &mut |machine, item| {
                machine.iterate(item, out).map_err(|stop| stop.raised_at(term.at))
            }),
            Form::Call(target, arguments) => self.call(target, arguments, term.at, item, scope, out),
            Form::Binary(operator, left, right) => self.binary((*operator, term.at), left, right, item, scope, out),
            Form::If(condition, then, otherwise) => {
                self.conditional(condition, then, otherwise.as_deref(), item, scope, out)
            }
            _ => self.rare_form(term, item, scope, out),
        }
    }

    /// Apart, so that the stack of the others is short.
    #[inline(never)]
    fn rare_form<'e>(&mut self, term: &'e Term, item: Item, scope: Scope<'e>, out: &mut Out<'_>) -> Flow {
        match &term.form {
            Form::Descend => self.recurse(None, item, scope, out),
            Form::Text(format, parts) => self.interpolate(*format, parts, item, scope, out),
            Form::Format(format) => {
                let text = formats::format(self, *format, &item.value)?;
                out(self, item.made(text))
            }
            Form::Slice(of, from, to) => self.slice(of, from.as_deref(), to.as_deref(), item, scope, out),
            Form::Try(body, handler) => self.attempt(body, handler.as_deref(), item, scope, out),
            Form::Array(of) => {
                let elements = match of {
                    Some(of) => self.collect(of, &item.value, scope)?,
                    None => Vec::new(),
                };
                let array = self.array(elements)?;
                out(self, item.made(array))
            }
            Form::Object(entries) => self.object(entries, &item, Vec::new(), scope, out),
            Form::Negate(of) => self.each(of, &item.value, scope, &mut |machine, value| {
                let negated = values::negate(&value)?;
                out(machine, item.made(negated))
            }),
            Form::Bind(source, pattern, body) => self.each(source, &item.value, scope, &mut |machine, value| {
                machine.bind(pattern, value, scope, &mut |machine, scope| {
                    machine.eval(body, item.clone(), scope, out)
                })
            }),
            Form::Both(left, right) => self.both(left, right, false, item, scope, out),
            Form::Either(left, right) => self.both(left, right, true, item, scope, out),
            Form::Alternative(left, right) => self.alternative(left, right, item, scope, out),
            Form::Assign(left, right) => self.assign(left, right, item, scope, out),
            Form::Update(left, right) => self.update(left, right, item, scope, out),
            Form::UpdateBy(how, left, right) => self.update_by(*how, left, right, item, scope, out),
            Form::Reduce(fold) => self.reduce(fold, item, scope, out),
            Form::Foreach(fold, extract) => self.foreach(fold, extract.as_deref(), item, scope, out),
            Form::Def(def, body) => {
                let link = Link {
                    what: Named::Def(def),
                    next: scope,
                };
                self.eval(body, item, Some(&link), out)
            }
            Form::Label(id, body) => {
                self.labels += 1;
                let label = self.labels;
                let link = Link {
                    what: Named::Label(*id, label),
                    next: scope,
                };
                match self.eval(body, item, Some(&link), out) {
                    Err(Stop::Break(broken)) if broken == label => Ok(()),
                    flow => flow,
                }
            }
            Form::Break(id) => {
                let label = Link::find(scope, |link| match link.what {
                    Named::Label(known, label) if known == *id => Some(label),
                    _ => None,
                });
                Err(Stop::Break(label.unwrap_or_default()))
            }
            _ => Ok(()),
        }
    }

    /// Each output as a value, of which nobody asks where it stands.
    pub fn each<'e>(
        &mut self,
        term: &'e Term,
        input: &Value,
        scope: Scope<'e>,
        take: &mut dyn FnMut(&mut Machine, Value) -> Flow,
    ) -> Flow {
        match &term.form {
            Form::Literal(value) => {
                self.step(1)?;
                take(self, value.clone())
            }
            _ => self.eval(term, Item::plain(input.clone()), scope, &mut |machine, item| {
                take(machine, item.value)
            }),
        }
    }

    fn collect<'e>(&mut self, term: &'e Term, input: &Value, scope: Scope<'e>) -> Result<Vec<Value>, Stop> {
        let mut all = Vec::new();
        self.each(term, input, scope, &mut |machine, value| {
            machine.make(32)?;
            all.push(value);
            Ok(())
        })?;
        Ok(all)
    }

    fn index<'e>(&mut self, of: &'e Term, key: &'e Term, item: Item, scope: Scope<'e>, out: &mut Out<'_>) -> Flow {
        // The key is one of the input, not of what is indexed.
        let input = match key.form {
            Form::Literal(_) => Value::Null,
            _ => item.value.clone(),
        };
        self.eval(of, item, scope, &mut |machine, item| {
            machine.each(key, &input, scope, &mut |machine, key| {
                let value = values::index(machine, &item.value, &key)?;
                let path = machine.step_into(&item.path, key)?;
                out(machine, Item { value, path })
            })
        })
    }

    /// Where the value stands that has this key in the one that stands there.
    pub fn step_into(&mut self, path: &Path, key: Value) -> Result<Path, Stop> {
        match path {
            Path::Off => Ok(Path::Off),
            Path::Lost => Err(Stop::error(
                "Invalid path expression: what is accessed is not a part of the input",
            )),
            Path::At(before) => {
                if before.len() >= VALUE_NESTING_MAX {
                    let message = format!("a path has more than {VALUE_NESTING_MAX} steps");
                    return Err(Stop::Limit(Fault::from(message)));
                }
                self.make(32 * (before.len() + 1))?;
                let mut keys = Vec::with_capacity(before.len() + 1);
                keys.extend_from_slice(before);
                keys.push(key);
                Ok(Path::At(Arc::new(keys)))
            }
        }
    }

    fn slice<'e>(
        &mut self,
        of: &'e Term,
        from: Option<&'e Term>,
        to: Option<&'e Term>,
        item: Item,
        scope: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
        let input = item.value.clone();
        let bounds = |machine: &mut Machine, term: Option<&'e Term>| match term {
            Some(term) => machine.collect(term, &input, scope),
            None => Ok(vec![Value::Null]),
        };
        let (from, to) = (bounds(self, from)?, bounds(self, to)?);
        self.eval(of, item, scope, &mut |machine, item| {
            for to in &to {
                for from in &from {
                    let key = values::slice_key(from, to);
                    let value = values::index(machine, &item.value, &key)?;
                    let path = machine.step_into(&item.path, key)?;
                    out(machine, Item { value, path })?;
                }
            }
            Ok(())
        })
    }

    fn iterate(&mut self, item: Item, out: &mut Out<'_>) -> Flow {
        match &item.value {
            Value::Array(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    let path = self.step_into_at(&item.path, || Value::Int(index as i128))?;
                    self.step(1)?;
                    let value = element.clone();
                    out(self, Item { value, path })?;
                }
                Ok(())
            }
            Value::Map(map) => {
                for (key, value) in map.iter() {
                    let path = self.step_into_at(&item.path, || Value::Text(key.clone()))?;
                    self.step(1)?;
                    let value = value.clone();
                    out(self, Item { value, path })?;
                }
                Ok(())
            }
            other => Err(Stop::error(format!("Cannot iterate over {}", values::told(other)))),
        }
    }

    fn step_into_at(&mut self, path: &Path, key: impl FnOnce() -> Value) -> Result<Path, Stop> {
        match path {
            Path::Off => Ok(Path::Off),
            path => self.step_into(path, key()),
        }
    }

    fn conditional<'e>(
        &mut self,
        condition: &'e Term,
        then: &'e Term,
        otherwise: Option<&'e Term>,
        item: Item,
        scope: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
        self.each(
            condition,
            &item.value,
            scope,
            &mut |machine, holds| match (values::is_true(&holds), otherwise) {
                (true, _) => machine.eval(then, item.clone(), scope, out),
                (false, Some(otherwise)) => machine.eval(otherwise, item.clone(), scope, out),
                (false, None) => out(machine, item.clone()),
            },
        )
    }

    fn binary<'e>(
        &mut self,
        (operator, at): (Operator, u32),
        left: &'e Term,
        right: &'e Term,
        item: Item,
        scope: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
        self.each(right, &item.value, scope, &mut |machine, right| {
            machine.each(left, &item.value, scope, &mut |machine, left| {
                let result = values::operate(machine, operator, left, &right);
                out(machine, item.made(result.map_err(|stop| stop.raised_at(at))?))
            })
        })
    }

    /// `and`, or `or` if what decides is true.
    fn both<'e>(
        &mut self,
        left: &'e Term,
        right: &'e Term,
        deciding: bool,
        item: Item,
        scope: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
        self.each(left, &item.value, scope, &mut |machine, left| {
            if values::is_true(&left) == deciding {
                return out(machine, item.made(Value::Bool(deciding)));
            }
            machine.each(right, &item.value, scope, &mut |machine, right| {
                out(machine, item.made(Value::Bool(values::is_true(&right))))
            })
        })
    }

    /// What `term` gives, without the errors of who takes it: those are in the second place.
    fn apart<'e>(&mut self, term: &'e Term, item: Item, scope: Scope<'e>, out: &mut Out<'_>) -> (Flow, Option<Stop>) {
        let mut below = None;
        let flow = self.eval(term, item, scope, &mut |machine, item| {
            out(machine, item).map_err(|stop| {
                below = Some(stop);
                Stop::Below
            })
        });
        (flow, below)
    }

    fn attempt<'e>(
        &mut self,
        body: &'e Term,
        handler: Option<&'e Term>,
        item: Item,
        scope: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
        match self.apart(body, item.clone(), scope, out) {
            (_, Some(stop)) => Err(stop),
            (Err(Stop::Error { value, .. }), None) => match handler {
                Some(handler) => {
                    let caught = item.made(value);
                    self.eval(handler, caught, scope, out)
                }
                None => Ok(()),
            },
            (flow, None) => flow,
        }
    }

    fn alternative<'e>(
        &mut self,
        left: &'e Term,
        right: &'e Term,
        item: Item,
        scope: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
        let mut is_any = false;
        let result = self.apart(
            left,
            item.clone(),
            scope,
            &mut |machine, item| match values::is_true(&item.value) {
                true => {
                    is_any = true;
                    out(machine, item)
                }
                false => Ok(()),
            },
        );
        match result {
            (_, Some(stop)) => Err(stop),
            (Ok(()) | Err(Stop::Error { .. }), None) if is_any => Ok(()),
            (Ok(()) | Err(Stop::Error { .. }), None) => self.eval(right, item, scope, out),
            (flow, None) => flow,
        }
    }

    /// From the last entry to the first: the first one changes fastest.
    fn object<'e>(
        &mut self,
        entries: &'e [(Term, Term)],
        item: &Item,
        made: Vec<(Value, Value)>,
        scope: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
        let Some(((key, value), before)) = entries.split_last() else {
            self.make(64 * made.len())?;
            let mut map = Map::with_capacity(made.len());
            for (key, value) in made.into_iter().rev() {
                let Value::Text(key) = key else {
                    return Err(Stop::error(format!(
                        "Object keys must be strings, not {}",
                        values::told(&key)
                    )));
                };
                self.check_nesting(&value, 1)?;
                map.insert(key, value);
            }
            return out(self, item.made(Value::Map(map)));
        };
        self.each(value, &item.value, scope, &mut |machine, value| {
            machine.each(key, &item.value, scope, &mut |machine, key| {
                let mut made = made.clone();
                made.push((key, value.clone()));
                machine.object(before, item, made, scope, out)
            })
        })
    }

    fn interpolate<'e>(
        &mut self,
        format: Option<TextFormat>,
        parts: &'e [Part],
        item: Item,
        scope: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
        let mut texts: Vec<Vec<u8>> = vec![Vec::new()];
        for part in parts {
            let added: Vec<Vec<u8>> = match part {
                Part::Text(text) => vec![text.clone().into_bytes()],
                Part::Term(term) => {
                    let found = self.collect(term, &item.value, scope)?;
                    let format = format.unwrap_or(TextFormat::Text);
                    let mut added = Vec::with_capacity(found.len());
                    for value in &found {
                        let text = formats::format(self, format, value)?;
                        added.push(text.as_bytes().unwrap_or_default().to_vec());
                    }
                    added
                }
            };
            let mut longer = Vec::new();
            for after in &added {
                for before in &texts {
                    self.make(32 + before.len() + after.len())?;
                    longer.push([&before[..], &after[..]].concat());
                }
            }
            texts = longer;
        }
        for text in texts {
            out(self, item.made(Value::Text(text.into())))?;
        }
        Ok(())
    }

    fn call<'e>(
        &mut self,
        target: &'e Target,
        arguments: &'e [Term],
        at: u32,
        item: Item,
        scope: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
        match target {
            Target::Param(id) => {
                let found = Link::find(scope, |link| match link.what {
                    Named::Param(known, term, scope) if known == *id => Some((term, scope)),
                    _ => None,
                });
                match found {
                    Some((term, scope)) => self.eval(term, item, scope, out),
                    None => Ok(()),
                }
            }
            Target::Def(id) => {
                let found = Link::find(scope, |link| match link.what {
                    Named::Def(def) if def.id == *id => Some((def, Some(link))),
                    _ => None,
                });
                match found {
                    Some((def, inside)) => self.enter(def, arguments, 0, item, scope, inside, out),
                    None => Ok(()),
                }
            }
            Target::Prelude(index) => match prelude::def(*index) {
                Some(def) => {
                    let link = Link {
                        what: Named::Def(def),
                        next: None,
                    };
                    self.enter(def, arguments, 0, item, scope, Some(&link), out)
                }
                None => Ok(()),
            },
            Target::Native(native) => natives::call(self, (*native, at), arguments, item, scope, out),
        }
    }

    /// Gives parameters their arguments, from the first one on, then runs the body.
    #[allow(clippy::too_many_arguments, reason = "two scopes: of the call and of the body")]
    fn enter<'e>(
        &mut self,
        def: &'e Def,
        arguments: &'e [Term],
        first: usize,
        item: Item,
        scope: Scope<'e>,
        inside: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
        let (Some(param), Some(argument)) = (def.params.get(first), arguments.get(first)) else {
            return self.eval(&def.body, item, inside, out);
        };
        let link = Link {
            what: Named::Param(param.id, argument, scope),
            next: inside,
        };
        let Some(id) = param.variable else {
            return self.enter(def, arguments, first + 1, item, scope, Some(&link), out);
        };
        self.each(argument, &item.value, scope, &mut |machine, value| {
            let link = Link {
                what: Named::Variable(id, value),
                next: Some(&link),
            };
            machine.enter(def, arguments, first + 1, item.clone(), scope, Some(&link), out)
        })
    }

    /// `..`, or `recurse(f)`: a value before what comes of it.
    pub fn recurse<'e>(&mut self, step: Option<&'e Term>, item: Item, scope: Scope<'e>, out: &mut Out<'_>) -> Flow {
        self.unfold(item, &mut |machine, item, next| {
            out(machine, item.clone())?;
            let take: &mut Out<'_> = &mut |machine, item| {
                machine.make(64)?;
                next.push(item);
                Ok(())
            };
            match step {
                Some(step) => machine.eval(step, item, scope, take),
                None if matches!(item.value, Value::Array(_) | Value::Map(_)) => machine.iterate(item, take),
                None => Ok(()),
            }
        })
    }

    /// Depth first, without the stack.
    pub fn unfold(&mut self, item: Item, visit: &mut dyn FnMut(&mut Machine, Item, &mut Vec<Item>) -> Flow) -> Flow {
        let mut open = vec![item];
        let mut next = Vec::new();
        while let Some(item) = open.pop() {
            self.step(1)?;
            visit(self, item, &mut next)?;
            open.extend(next.drain(..).rev());
        }
        Ok(())
    }
}
