//! Names that are bound at a place of a program while it runs.

use rule_values::Value;

use super::machine::{JqMachine, JqStop};
use super::term::{Def, Term};

/// Names and their bindings, the innermost first.
pub(super) type BindingScope<'e> = Option<&'e BindingLink<'e>>;

pub(super) struct BindingLink<'e> {
    pub name: BoundName<'e>,
    pub next: BindingScope<'e>,
}

pub(super) enum BoundName<'e> {
    Variable(u32, Value),
    Def(&'e Def),
    Param(u32, &'e Term, BindingScope<'e>),
    Label(u32, u64),
}

impl JqMachine {
    /// Returns the value of a variable.
    pub fn value<'e>(&mut self, scope: BindingScope<'e>, wanted: u32) -> Result<Value, JqStop> {
        let found = self.find(scope, |link| match &link.name {
            BoundName::Variable(id, value) if *id == wanted => Some(value.clone()),
            _ => None,
        });
        Ok(found?.unwrap_or_default())
    }

    /// Returns the innermost binding for which `of` returns a value. The search can be long, so it is charged.
    pub fn find<'e, T>(
        &mut self,
        mut scope: BindingScope<'e>,
        of: impl Fn(&'e BindingLink<'e>) -> Option<T>,
    ) -> Result<Option<T>, JqStop> {
        let mut passed = 0;
        while let Some(link) = scope {
            if let Some(found) = of(link) {
                self.charge_steps(passed / 8)?;
                return Ok(Some(found));
            }
            scope = link.next;
            passed += 1;
        }
        Ok(None)
    }
}
