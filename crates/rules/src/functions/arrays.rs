//! Functions of arrays. Positions begin with 1.

use rule_values::{FunctionError, Value};

use super::{FunctionCall, FunctionGroup, function_table};
use crate::compare;

function_table! { FunctionGroup::Array;
    "contains" (item: ANY, array: ARRAY) -> BOOL, contains, "Whether the array contains the item; 1 and 1.0 are different.", "contains(2, [1, 2, 3]) = true";
    "first" (array: ARRAY) -> ANY, |c| pick_element(c, <[Value]>::first), "The first element; an error if the array is empty.", "first(['John', 'David']) = 'John'";
    "last" (array: ARRAY) -> ANY, |c| pick_element(c, <[Value]>::last), "The last element; an error if the array is empty.", "last(['John', 'David']) = 'David'";
    "length" (array: ARRAY) -> INT, |c| Ok(Value::Int(c.array(0)?.len() as i128)), "The number of elements.", "length([1, 2, 3, 4]) = 4";
    "nth" (position: INT, array: ARRAY) -> ANY, nth, "The element at the position; an error if it does not exist.", "nth(1, [1, 2, 3]) = 1";
    "sublist" (length_or_start: INT, array_or_length: ANY; array: ARRAY) -> ARRAY, sublist, "The given number of elements from the start, or from a position with `sublist(start, length, array)`.", "sublist(2, 10, [1, 2, 3, 4]) = [2, 3, 4]";
}

fn contains(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    for element in call.array(1)? {
        call.run.budget.charge_steps(1)?;
        if compare::is_same(element, call.value(0), &mut call.run.budget)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn pick_element(
    call: &mut FunctionCall<'_, '_>,
    pick: impl Fn(&[Value]) -> Option<&Value>,
) -> Result<Value, FunctionError> {
    let picked = pick(call.array(0)?).cloned();
    picked.ok_or_else(|| call.type_error(0, "empty", "an array with elements"))
}

fn nth(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let (position, array) = (call.int(0)?, call.array(1)?);
    let found = usize::try_from(position - 1).ok().and_then(|index| array.get(index));
    found
        .cloned()
        .ok_or_else(|| call.type_error(0, &position.to_string(), &format!("1 to {}", array.len())))
}

fn sublist(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let (start, length, array) = if call.has(2) {
        (call.count(0)?, call.count(1)?, call.array(2)?)
    } else {
        (1, call.count(0)?, call.array(1)?)
    };
    if start == 0 {
        return Err(call.type_error(0, "0", "1 or more"));
    }
    let rest = array.get(start - 1..).unwrap_or_default();
    let part = &rest[..length.min(rest.len())];
    call.run.budget.make(32 * part.len())?;
    Ok(Value::array(part.to_vec()))
}
