//! `=`, `|=` and the other assignment operators.

use std::sync::Arc;

use rule_values::Value;

use super::machine::{JqFlow, JqMachine, JqOutput, JqStop, OutputReceiver, ValuePath};
use super::scope::BindingScope;
use super::term::{Term, UpdateOperation, Updating};
use super::{paths, values};

impl JqMachine {
    /// Returns all paths that the term yields.
    fn paths<'e>(
        &mut self,
        term: &'e Term,
        input: &Value,
        scope: BindingScope<'e>,
    ) -> Result<Vec<Arc<Vec<Value>>>, JqStop> {
        let mut all = Vec::new();
        let item = JqOutput {
            value: input.clone(),
            path: ValuePath::At(Arc::default()),
        };
        self.eval(term, item, scope, &mut |machine, item| {
            machine.make(16)?;
            all.push(values::path_of(item)?);
            Ok(())
        })?;
        Ok(all)
    }

    pub fn assign<'e>(
        &mut self,
        left: &'e Term,
        right: &'e Term,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        self.each(right, &item.value, scope, &mut |machine, value| {
            let paths = machine.paths(left, &item.value, scope)?;
            let mut changed = item.value.clone();
            for path in paths {
                changed = paths::set(machine, changed, &path, value.clone())?;
            }
            out(machine, item.computed(changed))
        })
    }

    /// `|=`: replaces the value at each path with the first output of the filter, or deletes the path if there is no
    /// output.
    pub fn update<'e>(
        &mut self,
        left: &'e Term,
        right: &'e Term,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        let (mut changed, mut gone) = (item.value.clone(), Vec::new());
        for path in self.paths(left, &item.value, scope)? {
            let before = paths::get(self, &changed, &path)?;
            let mut after = None;
            self.labels += 1;
            let label = self.labels;
            let flow = self.each(right, &before, scope, &mut |_, value| {
                after = Some(value);
                Err(JqStop::Break(label))
            });
            match flow {
                Err(JqStop::Break(broken)) if broken == label => {}
                flow => flow?,
            }
            match after {
                Some(after) => changed = paths::set(self, changed, &path, after)?,
                None => gone.push(path),
            }
        }
        let changed = paths::delete(self, changed, gone)?;
        out(self, item.computed(changed))
    }

    pub fn update_by<'e>(
        &mut self,
        operation: &'e UpdateOperation,
        item: JqOutput,
        scope: BindingScope<'e>,
        out: &mut OutputReceiver<'_>,
    ) -> JqFlow {
        self.each(&operation.right, &item.value, scope, &mut |machine, value| {
            let mut changed = item.value.clone();
            for path in machine.paths(&operation.left, &item.value, scope)? {
                let before = paths::get(machine, &changed, &path)?;
                let after = match operation.how {
                    Updating::By(operator) => values::operate(machine, operator, before, &value)?,
                    Updating::Alternative if values::is_true(&before) => before,
                    Updating::Alternative => value.clone(),
                };
                changed = paths::set(machine, changed, &path, after)?;
            }
            out(machine, item.computed(changed))
        })
    }
}
