//! `=`, `|=` and their kin.

use std::sync::Arc;

use super::machine::{Flow, Item, Machine, Out, Path, Scope, Stop};
use super::term::{Term, Updating};
use super::{paths, values};
use crate::value::Value;

impl Machine {
    /// All paths that a term gives.
    fn paths<'e>(&mut self, term: &'e Term, input: &Value, scope: Scope<'e>) -> Result<Vec<Arc<Vec<Value>>>, Stop> {
        let mut all = Vec::new();
        let item = Item {
            value: input.clone(),
            path: Path::At(Arc::default()),
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
        item: Item,
        scope: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
        self.each(right, &item.value, scope, &mut |machine, value| {
            let paths = machine.paths(left, &item.value, scope)?;
            let mut changed = item.value.clone();
            for path in paths {
                changed = paths::set(machine, changed, &path, value.clone())?;
            }
            out(machine, item.made(changed))
        })
    }

    /// `|=`: the first output takes the place of what was there; without one it goes.
    pub fn update<'e>(
        &mut self,
        left: &'e Term,
        right: &'e Term,
        item: Item,
        scope: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
        let (mut changed, mut gone) = (item.value.clone(), Vec::new());
        for path in self.paths(left, &item.value, scope)? {
            let before = paths::get(self, &changed, &path)?;
            let mut after = None;
            self.labels += 1;
            let label = self.labels;
            let flow = self.each(right, &before, scope, &mut |_, value| {
                after = Some(value);
                Err(Stop::Break(label))
            });
            match flow {
                Err(Stop::Break(broken)) if broken == label => {}
                flow => flow?,
            }
            match after {
                Some(after) => changed = paths::set(self, changed, &path, after)?,
                None => gone.push(path),
            }
        }
        let changed = paths::delete(self, changed, gone)?;
        out(self, item.made(changed))
    }

    pub fn update_by<'e>(
        &mut self,
        how: Updating,
        left: &'e Term,
        right: &'e Term,
        item: Item,
        scope: Scope<'e>,
        out: &mut Out<'_>,
    ) -> Flow {
        self.each(right, &item.value, scope, &mut |machine, value| {
            let mut changed = item.value.clone();
            for path in machine.paths(left, &item.value, scope)? {
                let before = paths::get(machine, &changed, &path)?;
                let after = match how {
                    Updating::By(operator) => values::operate(machine, operator, before, &value)?,
                    Updating::Alternative if values::is_true(&before) => before,
                    Updating::Alternative => value.clone(),
                };
                changed = paths::set(machine, changed, &path, after)?;
            }
            out(machine, item.made(changed))
        })
    }
}
