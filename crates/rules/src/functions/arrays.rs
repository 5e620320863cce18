//! Functions of arrays. Positions begin with 1.

use super::{Call, Group, function_table};
use crate::error::Fault;
use crate::value::Value;

function_table! { Group::Array;
    "contains" (item: ANY, array: ARRAY) -> BOOL, contains, "Whether the item is in the array; 1 is not 1.0.", "contains(2, [1, 2, 3]) = true";
    "first" (array: ARRAY) -> ANY, |c| edge(c, <[Value]>::first), "The first element; the array must have one.", "first(['John', 'David']) = 'John'";
    "last" (array: ARRAY) -> ANY, |c| edge(c, <[Value]>::last), "The last element; the array must have one.", "last(['John', 'David']) = 'David'";
    "length" (array: ARRAY) -> INT, |c| Ok(Value::Int(c.array(0)?.len() as i128)), "How many elements it has.", "length([1, 2, 3, 4]) = 4";
    "nth" (position: INT, array: ARRAY) -> ANY, nth, "The element at the position, which must exist.", "nth(1, [1, 2, 3]) = 1";
    "sublist" (length_or_start: INT, array_or_length: ANY; array: ARRAY) -> ARRAY, sublist, "So many elements from the start, or `sublist(start, length, array)`.", "sublist(2, 10, [1, 2, 3, 4]) = [2, 3, 4]";
}

fn contains(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let array = call.array(1)?;
    call.run.budget.step(array.len() as u64)?;
    Ok(Value::Bool(array.contains(call.value(0))))
}

fn edge(call: &mut Call<'_, '_>, pick: impl Fn(&[Value]) -> Option<&Value>) -> Result<Value, Fault> {
    let picked = pick(call.array(0)?).cloned();
    picked.ok_or_else(|| call.fault(0, "empty", "an array with elements"))
}

fn nth(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let (position, array) = (call.int(0)?, call.array(1)?);
    let found = usize::try_from(position - 1).ok().and_then(|index| array.get(index));
    found
        .cloned()
        .ok_or_else(|| call.fault(0, &position.to_string(), &format!("1 to {}", array.len())))
}

fn sublist(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let (start, length, array) = if call.has(2) {
        (call.count(0)?, call.count(1)?, call.array(2)?)
    } else {
        (1, call.count(0)?, call.array(1)?)
    };
    if start == 0 {
        return Err(call.fault(0, "0", "1 or more"));
    }
    let rest = array.get(start - 1..).unwrap_or_default();
    let part = &rest[..length.min(rest.len())];
    call.run.budget.make(32 * part.len())?;
    Ok(Value::array(part.to_vec()))
}
