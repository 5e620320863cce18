//! Calls of native functions: functions of values, functions of numbers, and functions whose arguments are filters.

use std::ops::ControlFlow;

use rule_values::Value;

use super::machine::{JqFlow, JqMachine, JqOutput, JqStop, OutputReceiver, ValuePath};
use super::scope::BindingScope;
use super::term::{Native, Special, Term};
use super::{paths, values};

pub(super) fn call<'e>(
    machine: &mut JqMachine,
    (native, at): (Native, u32),
    arguments: &'e [Term],
    item: JqOutput,
    scope: BindingScope<'e>,
    out: &mut OutputReceiver<'_>,
) -> JqFlow {
    match native {
        Native::Values(function) => with_values(
            machine,
            arguments,
            &item.value,
            Vec::new(),
            scope,
            &mut |machine, given| {
                for value in given.iter().chain([&item.value]) {
                    if let Value::Text(text) = value {
                        machine.charge_steps(text.len() as u64 / 64)?;
                    }
                }
                let result = function(machine, item.value.clone(), given).map_err(|stop| stop.raised_at(at))?;
                let path = match item.path {
                    ValuePath::Untracked => ValuePath::Untracked,
                    _ => ValuePath::Computed,
                };
                out(machine, JqOutput { value: result, path })
            },
        ),
        Native::Number(function) => {
            let result = function(values::float(&item.value)?);
            out(machine, JqOutput::plain(values::number(result)))
        }
        Native::Numbers(function) => with_values(
            machine,
            arguments,
            &item.value,
            Vec::new(),
            scope,
            &mut |machine, given| {
                let (a, b) = (values::float(&given[0])?, values::float(&given[1])?);
                out(machine, JqOutput::plain(values::number(function(a, b))))
            },
        ),
        Native::Special(special) => self::special(machine, special, arguments, item, scope, out),
    }
}

/// Calls back with all combinations of the argument outputs. The first argument varies fastest.
fn with_values<'e>(
    machine: &mut JqMachine,
    arguments: &'e [Term],
    input: &Value,
    given: Vec<Value>,
    scope: BindingScope<'e>,
    then: &mut dyn FnMut(&mut JqMachine, &[Value]) -> JqFlow,
) -> JqFlow {
    let Some((last, before)) = arguments.split_last() else {
        let given: Vec<Value> = given.into_iter().rev().collect();
        return then(machine, &given);
    };
    machine.each(last, input, scope, &mut |machine, value| {
        let mut given = given.clone();
        given.push(value);
        with_values(machine, before, input, given, scope, then)
    })
}

#[inline(never)]
fn special<'e>(
    machine: &mut JqMachine,
    special: Special,
    arguments: &'e [Term],
    item: JqOutput,
    scope: BindingScope<'e>,
    out: &mut OutputReceiver<'_>,
) -> JqFlow {
    match (special, arguments) {
        (Special::Empty, _) => Ok(()),
        (Special::Path, [of]) => {
            let inner = JqOutput {
                value: item.value.clone(),
                path: ValuePath::At(Default::default()),
            };
            machine.eval(of, inner, scope, &mut |machine, found| {
                let path = values::path_of(found)?;
                let path = machine.array(path.to_vec())?;
                out(machine, JqOutput::plain(path))
            })
        }
        (Special::GetPath, [of]) => machine.each(of, &item.value, scope, &mut |machine, path| {
            get_path(machine, &item, &path, out)
        }),
        (Special::Range, [from, to, by]) => range(machine, [from, to, by], &item, scope, out),
        (Special::Limit, [count, of]) => machine.each(count, &item.value, scope, &mut |machine, count| {
            limit(machine, values::float(&count)?, of, item.clone(), scope, out)
        }),
        (Special::Until, [condition, update]) => machine.unfold(item, &mut |machine, item, next| {
            machine.each(
                condition,
                &item.value,
                scope,
                &mut |machine, is_done| match values::is_true(&is_done) {
                    true => out(machine, item.clone()),
                    false => machine.eval(update, item.clone(), scope, &mut |machine, item| {
                        machine.make(64)?;
                        next.push(item);
                        Ok(())
                    }),
                },
            )
        }),
        (Special::While, [condition, update]) => machine.unfold(item, &mut |machine, item, next| {
            machine.each(condition, &item.value, scope, &mut |machine, goes_on| {
                if !values::is_true(&goes_on) {
                    return Ok(());
                }
                out(machine, item.clone())?;
                machine.eval(update, item.clone(), scope, &mut |machine, item| {
                    machine.make(64)?;
                    next.push(item);
                    Ok(())
                })
            })
        }),
        (Special::Repeat | Special::Recurse, [step]) => machine.recurse(Some(step), item, scope, out),
        _ => Ok(()),
    }
}

fn get_path(machine: &mut JqMachine, item: &JqOutput, path: &Value, out: &mut OutputReceiver<'_>) -> JqFlow {
    let Value::Array(keys) = path else {
        return Err(JqStop::error(format!(
            "Path must be specified as an array, not {}",
            values::described(path)
        )));
    };
    let value = paths::get(machine, &item.value, keys)?;
    let mut at = item.path.clone();
    if !matches!(at, ValuePath::Untracked) {
        for key in keys.iter() {
            at = machine.step_into(&at, key.clone())?;
        }
    }
    out(machine, JqOutput { value, path: at })
}

fn range<'e>(
    machine: &mut JqMachine,
    [from, to, by]: [&'e Term; 3],
    item: &JqOutput,
    scope: BindingScope<'e>,
    out: &mut OutputReceiver<'_>,
) -> JqFlow {
    machine.each(from, &item.value, scope, &mut |machine, from| {
        machine.each(to, &item.value, scope, &mut |machine, to| {
            machine.each(by, &item.value, scope, &mut |machine, by| {
                let (mut at, to, by) = (values::float(&from)?, values::float(&to)?, values::float(&by)?);
                while (by > 0.0 && at < to) || (by < 0.0 && at > to) {
                    machine.charge_steps(1)?;
                    out(machine, JqOutput::plain(values::number(at)))?;
                    at += by;
                }
                Ok(())
            })
        })
    })
}

fn limit<'e>(
    machine: &mut JqMachine,
    count: f64,
    of: &'e Term,
    item: JqOutput,
    scope: BindingScope<'e>,
    out: &mut OutputReceiver<'_>,
) -> JqFlow {
    if count <= 0.0 {
        return Ok(());
    }
    let (mut left, mut end) = (count, ControlFlow::Continue(()));
    let flow = machine.eval(of, item, scope, &mut |machine, item| {
        left -= 1.0;
        if let Err(stop) = out(machine, item) {
            end = ControlFlow::Break(Err(stop));
        } else if left <= 0.0 {
            end = ControlFlow::Break(Ok(()));
        } else {
            return Ok(());
        }
        Err(JqStop::Receiver)
    });
    match end {
        ControlFlow::Break(flow) => flow,
        ControlFlow::Continue(()) => flow,
    }
}
