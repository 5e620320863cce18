//! Evaluates terms. Each output of a term is passed to a callback immediately, so that no output is computed that is
//! not used.

use rule_values::{Map, Value};

use super::machine::{JqFlow, JqMachine, JqOutput, JqStop, OutputReceiver};
use super::scope::{BindingLink, BindingScope, BoundName};
use super::term::{
    BinaryOperation, CallTarget, Conditional, Def, FunctionCall, LogicalOperation, SliceTerm, StringPart, Term,
    TermKind, TextFormat,
};
use super::{formats, natives, prelude, values};

/// A call of a function that a program or the prelude defines.
#[derive(Clone, Copy)]
struct Invocation<'e> {
    def: &'e Def,
    arguments: &'e [Term],
    /// Scope of the caller, in which the arguments are evaluated.
    scope: BindingScope<'e>,
}

impl JqMachine {
    pub fn run(&mut self, term: &Term, input: Value, out: &mut dyn FnMut(&mut JqMachine, Value) -> JqFlow) -> JqFlow {
        self.eval(term, JqOutput::plain(input), None, &mut |machine, item| {
            out(machine, item.value)
        })
    }

    pub fn eval<'e>(
        &mut self,
        term: &'e Term,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        self.charge_steps(1)?;
        let flow = self.nested(|machine| machine.evaluate_term(term, item, scope, out));
        flow.map_err(|stop| stop.raised_at(term.at))
    }

    fn evaluate_term<'e>(
        &mut self,
        term: &'e Term,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        match &term.kind {
            TermKind::Identity => out(self, item),
            TermKind::Literal(value) => out(self, item.computed(value.clone())),
            TermKind::Variable(id) => {
                let value = self.value(scope, *id)?;
                out(self, item.computed(value))
            }
            TermKind::Pipe(first, second) => self.eval(first, item, scope, &mut |machine, item| {
                machine.eval(second, item, scope, out)
            }),
            TermKind::Comma(first, second) => {
                self.eval(first, item.clone(), scope, out)?;
                self.eval(second, item, scope, out)
            }
            TermKind::Index(of, key) => self.index(of, key, item, scope, out),
            TermKind::Iterate(of) => self.eval(of, item, scope, &mut |machine, item| {
                machine.iterate(item, out).map_err(|stop| stop.raised_at(term.at))
            }),
            TermKind::Call(call) => self.call(call, term.at, item, scope, out),
            TermKind::Binary(operation) => self.binary(operation, term.at, item, scope, out),
            TermKind::If(choice) => self.conditional(choice, item, scope, out),
            _ => self.evaluate_rare_term(term, item, scope, out),
        }
    }

    /// A separate function, so that the stack frames of the other terms stay small.
    #[inline(never)]
    fn evaluate_rare_term<'e>(
        &mut self,
        term: &'e Term,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        match &term.kind {
            TermKind::Descend => self.recurse(None, item, scope, out),
            TermKind::Text(format, parts) => self.interpolate(*format, parts, item, scope, out),
            TermKind::Format(format) => {
                let text = formats::format(self, *format, &item.value)?;
                out(self, item.computed(text))
            }
            TermKind::Slice(slice) => self.slice(slice, item, scope, out),
            TermKind::Try(body, handler) => self.attempt(body, handler.as_deref(), item, scope, out),
            TermKind::Array(of) => {
                let elements = match of {
                    Some(of) => self.collect(of, &item.value, scope)?,
                    None => Vec::new(),
                };
                let array = self.array(elements)?;
                out(self, item.computed(array))
            }
            TermKind::Object(entries) => self.object(entries, &item, Vec::new(), scope, out),
            TermKind::Negate(of) => self.each(of, &item.value, scope, &mut |machine, value| {
                let negated = values::negate(&value)?;
                out(machine, item.computed(negated))
            }),
            TermKind::Bind(source, pattern, body) => self.each(source, &item.value, scope, &mut |machine, value| {
                machine.bind(pattern, value, scope, &mut |machine, scope| {
                    machine.eval(body, item.clone(), scope, out)
                })
            }),
            TermKind::Logical(operation) => self.logical_operation(operation, item, scope, out),
            TermKind::Alternative(left, right) => self.alternative(left, right, item, scope, out),
            TermKind::Assign(left, right) => self.assign(left, right, item, scope, out),
            TermKind::Update(left, right) => self.update(left, right, item, scope, out),
            TermKind::UpdateBy(operation) => self.update_by(operation, item, scope, out),
            TermKind::Reduce(fold) => self.reduce(fold, item, scope, out),
            TermKind::Foreach(fold, extract) => self.foreach(fold, extract.as_deref(), item, scope, out),
            TermKind::Def(def, body) => {
                let link = BindingLink {
                    name: BoundName::Def(def),
                    next: scope,
                };
                self.eval(body, item, Some(&link), out)
            }
            TermKind::Label(id, body) => {
                self.labels += 1;
                let label = self.labels;
                let link = BindingLink {
                    name: BoundName::Label(*id, label),
                    next: scope,
                };
                match self.eval(body, item, Some(&link), out) {
                    Err(JqStop::Break(broken)) if broken == label => Ok(()),
                    flow => flow,
                }
            }
            TermKind::Break(id) => {
                let label = self.find(scope, |link| match link.name {
                    BoundName::Label(known, label) if known == *id => Some(label),
                    _ => None,
                })?;
                Err(JqStop::Break(label.unwrap_or_default()))
            }
            _ => Ok(()),
        }
    }

    /// Calls back with each output as a value, without its path.
    pub fn each<'e>(
        &mut self,
        term: &'e Term,
        input: &Value,
        scope: BindingScope<'e>,
        take: &mut dyn FnMut(&mut JqMachine, Value) -> JqFlow,
    ) -> JqFlow {
        match &term.kind {
            TermKind::Literal(value) => {
                self.charge_steps(1)?;
                take(self, value.clone())
            }
            _ => self.eval(term, JqOutput::plain(input.clone()), scope, &mut |machine, item| {
                take(machine, item.value)
            }),
        }
    }

    fn collect<'e>(&mut self, term: &'e Term, input: &Value, scope: BindingScope<'e>) -> Result<Vec<Value>, JqStop> {
        let mut all = Vec::new();
        self.each(term, input, scope, &mut |machine, value| {
            machine.make(32)?;
            all.push(value);
            Ok(())
        })?;
        Ok(all)
    }

    fn index<'e>(
        &mut self,
        of: &'e Term,
        key: &'e Term,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        // The key is evaluated on the input of the term, not on the value that is indexed.
        let input = match key.kind {
            TermKind::Literal(_) => Value::Null,
            _ => item.value.clone(),
        };
        self.eval(of, item, scope, &mut |machine, item| {
            machine.each(key, &input, scope, &mut |machine, key| {
                let value = values::index(machine, &item.value, &key)?;
                let path = machine.step_into(&item.path, key)?;
                out(machine, JqOutput { value, path })
            })
        })
    }

    fn slice<'e>(
        &mut self,
        slice: &'e SliceTerm,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        let input = item.value.clone();
        let bounds = |machine: &mut JqMachine, term: &'e Option<Box<Term>>| match term {
            Some(term) => machine.collect(term, &input, scope),
            None => Ok(vec![Value::Null]),
        };
        let (from, to) = (bounds(self, &slice.from)?, bounds(self, &slice.to)?);
        self.eval(&slice.of, item, scope, &mut |machine, item| {
            for to in &to {
                for from in &from {
                    let key = values::slice_key(from, to);
                    let value = values::index(machine, &item.value, &key)?;
                    let path = machine.step_into(&item.path, key)?;
                    out(machine, JqOutput { value, path })?;
                }
            }
            Ok(())
        })
    }

    fn iterate(&mut self, item: JqOutput, out: &mut OutputReceiver<'_>) -> JqFlow {
        match &item.value {
            Value::Array(elements) => {
                for (index, element) in elements.iter().enumerate() {
                    let path = self.step_into_at(&item.path, || Value::Int(index as i128))?;
                    self.charge_steps(1)?;
                    let value = element.clone();
                    out(self, JqOutput { value, path })?;
                }
                Ok(())
            }
            Value::Map(map) => {
                for (key, value) in map.iter() {
                    let path = self.step_into_at(&item.path, || Value::Text(key.clone()))?;
                    self.charge_steps(1)?;
                    let value = value.clone();
                    out(self, JqOutput { value, path })?;
                }
                Ok(())
            }
            other => Err(JqStop::error(format!(
                "Cannot iterate over {}",
                values::described(other)
            ))),
        }
    }

    fn conditional<'e>(
        &mut self,
        choice: &'e Conditional,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        self.each(&choice.condition, &item.value, scope, &mut |machine, holds| match (
            values::is_true(&holds),
            &choice.otherwise,
        ) {
            (true, _) => machine.eval(&choice.then, item.clone(), scope, out),
            (false, Some(otherwise)) => machine.eval(otherwise, item.clone(), scope, out),
            (false, None) => out(machine, item.clone()),
        })
    }

    fn binary<'e>(
        &mut self,
        operation: &'e BinaryOperation,
        at: u32,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        self.each(&operation.right, &item.value, scope, &mut |machine, right| {
            machine.each(&operation.left, &item.value, scope, &mut |machine, left| {
                let result = values::operate(machine, operation.operator, left, &right);
                out(machine, item.computed(result.map_err(|stop| stop.raised_at(at))?))
            })
        })
    }

    fn logical_operation<'e>(
        &mut self,
        operation: &'e LogicalOperation,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        self.each(&operation.left, &item.value, scope, &mut |machine, left| {
            if values::is_true(&left) == operation.deciding {
                return out(machine, item.computed(Value::Bool(operation.deciding)));
            }
            machine.each(&operation.right, &item.value, scope, &mut |machine, right| {
                out(machine, item.computed(Value::Bool(values::is_true(&right))))
            })
        })
    }

    /// Evaluates `term` and returns errors of the output callback separately, in the second value.
    fn split_errors<'e>(
        &mut self,
        term: &'e Term,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> (JqFlow, Option<JqStop>) {
        let mut below = None;
        let flow = self.eval(term, item, scope, &mut |machine, item| {
            out(machine, item).map_err(|stop| {
                below = Some(stop);
                JqStop::Receiver
            })
        });
        (flow, below)
    }

    fn attempt<'e>(
        &mut self,
        body: &'e Term,
        handler: Option<&'e Term>,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        match self.split_errors(body, item.clone(), scope, out) {
            (_, Some(stop)) => Err(stop),
            (Err(JqStop::Error { value, .. }), None) => match handler {
                Some(handler) => {
                    let caught = item.computed(value);
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
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        let mut is_any = false;
        let result = self.split_errors(left, item.clone(), scope, &mut |machine, item| match values::is_true(
            &item.value,
        ) {
            true => {
                is_any = true;
                out(machine, item)
            }
            false => Ok(()),
        });
        match result {
            (_, Some(stop)) => Err(stop),
            (Ok(()) | Err(JqStop::Error { .. }), None) if is_any => Ok(()),
            (Ok(()) | Err(JqStop::Error { .. }), None) => self.eval(right, item, scope, out),
            (flow, None) => flow,
        }
    }

    /// Goes from the last entry to the first, so that the first entry varies fastest.
    fn object<'e>(
        &mut self,
        entries: &'e [(Term, Term)],
        item: &JqOutput,
        made: Vec<(Value, Value)>,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        let Some(((key, value), before)) = entries.split_last() else {
            self.make(64 * made.len())?;
            let mut map = Vec::with_capacity(made.len());
            for (key, value) in made.into_iter().rev() {
                let Value::Text(key) = key else {
                    return Err(JqStop::error(format!(
                        "Object keys must be strings, not {}",
                        values::described(&key)
                    )));
                };
                self.check_nesting(&value, 1)?;
                map.push((key, value));
            }
            return out(self, item.computed(Value::Map(Map::from_entries(map))));
        };
        self.each(value, &item.value, scope, &mut |machine, value| {
            machine.each(key, &item.value, scope, &mut |machine, key| {
                machine.charge_steps(made.len() as u64 / 2)?;
                let mut made = made.clone();
                made.push((key, value.clone()));
                machine.nested(|machine| machine.object(before, item, made, scope, out))
            })
        })
    }

    fn interpolate<'e>(
        &mut self,
        format: Option<TextFormat>,
        parts: &'e [StringPart],
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        let mut texts: Vec<Vec<u8>> = vec![Vec::new()];
        for part in parts {
            let added: Vec<Vec<u8>> = match part {
                StringPart::Text(text) => vec![text.clone().into_bytes()],
                StringPart::Term(term) => {
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
            out(self, item.computed(Value::Text(text.into())))?;
        }
        Ok(())
    }

    fn call<'e>(
        &mut self,
        call: &'e FunctionCall,
        at: u32,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        let arguments = &call.arguments;
        match &call.target {
            CallTarget::Param(id) => {
                let found = self.find(scope, |link| match link.name {
                    BoundName::Param(known, term, scope) if known == *id => Some((term, scope)),
                    _ => None,
                })?;
                match found {
                    Some((term, scope)) => self.eval(term, item, scope, out),
                    None => Ok(()),
                }
            }
            CallTarget::Def(id) => {
                let found = self.find(scope, |link| match link.name {
                    BoundName::Def(def) if def.id == *id => Some((def, Some(link))),
                    _ => None,
                })?;
                match found {
                    Some((def, inside)) => self.enter(Invocation { def, arguments, scope }, 0, item, inside, out),
                    None => Ok(()),
                }
            }
            CallTarget::Prelude(index) => match prelude::defs().get(*index) {
                Some(def) => {
                    let link = BindingLink {
                        name: BoundName::Def(def),
                        next: None,
                    };
                    self.enter(Invocation { def, arguments, scope }, 0, item, Some(&link), out)
                }
                None => Ok(()),
            },
            CallTarget::Native(native) => natives::call(self, (*native, at), arguments, item, scope, out),
        }
    }

    /// Binds the arguments to the parameters, beginning with number `first`, then runs the body. `inside` is the scope
    /// of the body.
    fn enter<'e>(
        &mut self,
        call: Invocation<'e>,
        first: usize,
        item: JqOutput,
        inside: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        let (Some(param), Some(argument)) = (call.def.params.get(first), call.arguments.get(first)) else {
            return self.eval(&call.def.body, item, inside, out);
        };
        let link = BindingLink {
            name: BoundName::Param(param.id, argument, call.scope),
            next: inside,
        };
        let Some(id) = param.variable else {
            return self.nested(|machine| machine.enter(call, first + 1, item, Some(&link), out));
        };
        self.each(argument, &item.value, call.scope, &mut |machine, value| {
            let link = BindingLink {
                name: BoundName::Variable(id, value),
                next: Some(&link),
            };
            machine.nested(|machine| machine.enter(call, first + 1, item.clone(), Some(&link), out))
        })
    }

    /// `..` or `recurse(f)`: yields a value before its descendants.
    pub fn recurse<'e>(
        &mut self,
        step: Option<&'e Term>,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        self.unfold(item, &mut |machine, item, next| {
            out(machine, item.clone())?;
            let take: &mut OutputReceiver<'_> = &mut |machine, item| {
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

    /// Depth first, without recursion.
    pub fn unfold(
        &mut self,
        item: JqOutput,
        visit: &mut dyn FnMut(&mut JqMachine, JqOutput, &mut Vec<JqOutput>) -> JqFlow,
    ) -> JqFlow {
        let mut open = vec![item];
        let mut next = Vec::new();
        while let Some(item) = open.pop() {
            self.charge_steps(1)?;
            visit(self, item, &mut next)?;
            open.extend(next.drain(..).rev());
        }
        Ok(())
    }
}
