//! What gives names to values while a program runs: patterns, `reduce`, `foreach`.

use super::machine::{Flow, Item, Link, Machine, Named, Out, Scope, Stop};
use super::term::{Fold, Key, Pattern, Term};
use super::values;
use crate::value::Value;

impl Machine {
    /// Gives names to the parts of a value and goes on with them.
    pub fn bind(
        &mut self,
        pattern: &Pattern,
        value: Value,
        scope: Scope<'_>,
        then: &mut dyn for<'s> FnMut(&mut Machine, Scope<'s>) -> Flow,
    ) -> Flow {
        self.bind_all(&[(pattern, value)], scope, then)
    }

    /// One pattern after the other.
    pub fn bind_all(
        &mut self,
        patterns: &[(&Pattern, Value)],
        scope: Scope<'_>,
        then: &mut dyn for<'s> FnMut(&mut Machine, Scope<'s>) -> Flow,
    ) -> Flow {
        let Some(((pattern, value), rest)) = patterns.split_first() else {
            return then(self, scope);
        };
        self.step(1)?;
        match pattern {
            Pattern::Variable(id) => {
                let link = Link {
                    what: Named::Variable(*id, value.clone()),
                    next: scope,
                };
                self.bind_all(rest, Some(&link), then)
            }
            Pattern::Array(elements) => {
                let mut all = Vec::with_capacity(elements.len() + rest.len());
                for (index, element) in elements.iter().enumerate() {
                    if !matches!(value, Value::Array(_) | Value::Null) {
                        return Err(Stop::error(format!("Cannot index {} with number", values::kind(value))));
                    }
                    all.push((element, values::index(self, value, &Value::Int(index as i128))?));
                }
                all.extend(rest.iter().map(|(pattern, value)| (*pattern, value.clone())));
                self.bind_all(&all, scope, then)
            }
            Pattern::Object(entries) => self.bind_entries(entries, value, rest, scope, then),
        }
    }

    pub fn bind_entries(
        &mut self,
        entries: &[(Key, Option<Pattern>)],
        value: &Value,
        rest: &[(&Pattern, Value)],
        scope: Scope<'_>,
        then: &mut dyn for<'s> FnMut(&mut Machine, Scope<'s>) -> Flow,
    ) -> Flow {
        let Some(((key, pattern), others)) = entries.split_first() else {
            return self.bind_all(rest, scope, then);
        };
        self.each(&key.name, value, scope, &mut |machine, name| {
            let found = values::index(machine, value, &name)?;
            let link = key.variable.map(|id| Link {
                what: Named::Variable(id, found.clone()),
                next: scope,
            });
            let scope = match &link {
                Some(link) => Some(link),
                None => scope,
            };
            match pattern {
                None => machine.bind_entries(others, value, rest, scope, then),
                Some(pattern) => machine.bind_all(&[(pattern, found)], scope, &mut |machine, scope| {
                    machine.bind_entries(others, value, rest, scope, then)
                }),
            }
        })
    }

    pub fn reduce<'e>(&mut self, fold: &'e Fold, item: Item, scope: Scope<'e>, out: &mut Out<'_>) -> Flow {
        self.eval(&fold.init, item.clone(), scope, &mut |machine, start| {
            let mut state = Some(start);
            machine.each(&fold.source, &item.value, scope, &mut |machine, element| {
                machine.bind(&fold.pattern, element, scope, &mut |machine, scope| {
                    let before = state.take().unwrap_or_else(|| Item::plain(Value::Null));
                    machine.eval(&fold.update, before, scope, &mut |_, after| {
                        state = Some(after);
                        Ok(())
                    })
                })
            })?;
            let end = state.unwrap_or_else(|| item.made(Value::Null));
            out(machine, end)
        })
    }

    pub fn foreach<'e>(
        &mut self,
        fold: &'e Fold,
        extract: Option<&'e Term>,
        item: Item,
        scope: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
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
