//! Binding of names to values at run time: patterns, `reduce`, `foreach`.

use rule_values::Value;

use super::machine::{JqFlow, JqMachine, JqOutput, JqStop, OutputReceiver};
use super::scope::{BindingLink, BindingScope, BoundName};
use super::term::{BindingPattern, Fold, PatternEntry, Term};
use super::values;

impl JqMachine {
    /// Binds the variables of the pattern to parts of the value and continues with them.
    pub fn bind(
        &mut self,
        pattern: &BindingPattern,
        value: Value,
        scope: BindingScope<'_>,
        then: &mut dyn for<'s> FnMut(&mut JqMachine, BindingScope<'s>) -> JqFlow,
    ) -> JqFlow {
        self.bind_all(&[(pattern, value)], scope, then)
    }

    /// Binds several patterns one after the other.
    pub fn bind_all(
        &mut self,
        patterns: &[(&BindingPattern, Value)],
        scope: BindingScope<'_>,
        then: &mut dyn for<'s> FnMut(&mut JqMachine, BindingScope<'s>) -> JqFlow,
    ) -> JqFlow {
        let Some(((pattern, value), rest)) = patterns.split_first() else {
            return then(self, scope);
        };
        self.charge_steps(1)?;
        match pattern {
            BindingPattern::Variable(id) => {
                let link = BindingLink {
                    name: BoundName::Variable(*id, value.clone()),
                    next: scope,
                };
                self.nested(|machine| machine.bind_all(rest, Some(&link), then))
            }
            BindingPattern::Array(elements) => {
                self.charge_steps((elements.len() + rest.len()) as u64)?;
                let mut all = Vec::with_capacity(elements.len() + rest.len());
                for (index, element) in elements.iter().enumerate() {
                    if !matches!(value, Value::Array(_) | Value::Null) {
                        return Err(JqStop::error(format!(
                            "Cannot index {} with number",
                            values::kind(value)
                        )));
                    }
                    all.push((element, values::index(self, value, &Value::Int(index as i128))?));
                }
                all.extend(rest.iter().map(|(pattern, value)| (*pattern, value.clone())));
                self.bind_all(&all, scope, then)
            }
            BindingPattern::Object(entries) => self.bind_entries(entries, value, rest, scope, then),
        }
    }

    pub fn bind_entries(
        &mut self,
        entries: &[(PatternEntry, Option<BindingPattern>)],
        value: &Value,
        rest: &[(&BindingPattern, Value)],
        scope: BindingScope<'_>,
        then: &mut dyn for<'s> FnMut(&mut JqMachine, BindingScope<'s>) -> JqFlow,
    ) -> JqFlow {
        let Some(((key, pattern), others)) = entries.split_first() else {
            return self.bind_all(rest, scope, then);
        };
        self.each(&key.name, value, scope, &mut |machine, name| {
            let found = values::index(machine, value, &name)?;
            let link = key.variable.map(|id| BindingLink {
                name: BoundName::Variable(id, found.clone()),
                next: scope,
            });
            let scope = match &link {
                Some(link) => Some(link),
                None => scope,
            };
            match pattern {
                None => machine.nested(|machine| machine.bind_entries(others, value, rest, scope, then)),
                Some(pattern) => machine.bind_all(&[(pattern, found)], scope, &mut |machine, scope| {
                    machine.nested(|machine| machine.bind_entries(others, value, rest, scope, then))
                }),
            }
        })
    }

    pub fn reduce<'e>(
        &mut self,
        fold: &'e Fold,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        self.eval(&fold.init, item.clone(), scope, &mut |machine, start| {
            let mut state = Some(start);
            machine.each(&fold.source, &item.value, scope, &mut |machine, element| {
                machine.bind(&fold.pattern, element, scope, &mut |machine, scope| {
                    let before = state.take().unwrap_or_else(|| JqOutput::plain(Value::Null));
                    machine.eval(&fold.update, before, scope, &mut |_, after| {
                        state = Some(after);
                        Ok(())
                    })
                })
            })?;
            let end = state.unwrap_or_else(|| item.computed(Value::Null));
            out(machine, end)
        })
    }

    pub fn foreach<'e>(
        &mut self,
        fold: &'e Fold,
        extract: Option<&'e Term>,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        self.eval(&fold.init, item.clone(), scope, &mut |machine, start| {
            let mut state = start;
            machine.each(&fold.source, &item.value, scope, &mut |machine, element| {
                machine.bind(&fold.pattern, element, scope, &mut |machine, scope| {
                    let before = state.clone();
                    machine.eval(&fold.update, before, scope, &mut |machine, after| {
                        state = after.clone();
                        match extract {
                            Some(extract) => machine.eval(extract, after, scope, out),
                            None => out(machine, after),
                        }
                    })
                })
            })
        })
    }
}
