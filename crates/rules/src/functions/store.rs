//! Functions with inputs from outside the message: random numbers, environment variables, and values stored between
//! messages.

use rule_values::{FunctionError, Value};

use super::codec::hex;
use super::{Function, FunctionCall, FunctionGroup, function_table};
use crate::event::ValueStore;

mod random_values {
    use super::*;

    function_table! { FunctionGroup::Random;
        "random" () -> FLOAT, random, "A random float from 0 to below 1.", "is_float(random()) = true";
        "uuid_v4" () -> TEXT, uuid_v4, "A random UUID.", "strlen(uuid_v4()) = 36";
        "uuid_v4_no_hyphen" () -> TEXT, uuid_v4_no_hyphen, "A random UUID without hyphens.", "strlen(uuid_v4_no_hyphen()) = 32";
    }
}

pub(super) const RANDOM: &[Function] = random_values::TABLE;

function_table! { FunctionGroup::System;
    "getenv" (name: TEXT) -> ANY, getenv, "An environment variable that the operator has made available to rules; undefined if it does not exist.", "getenv('HOME') = '/root'";
    "kv_store_del" (key: TEXT) state -> BOOL, |c| delete(c, b"kv:"), "Deletes the value of the key.", "kv_store_del('a') = true";
    "kv_store_get" (key: TEXT; default: ANY) state -> ANY, |c| get(c, b"kv:"), "The stored value of the key, or the default.", "kv_store_get('a', 5) = 5";
    "kv_store_put" (key: TEXT, value: ANY) state -> BOOL, |c| { put(c, b"kv:")?; Ok(Value::Bool(true)) }, "Stores the value for later messages.", "kv_store_put('a', 5) = true";
    "proc_dict_del" (key: TEXT) state -> ANY, |c| { let old = get(c, b"pd:")?; delete(c, b"pd:")?; Ok(old) }, "Deletes the value of the key and returns it.", "proc_dict_del('a') = null()";
    "proc_dict_get" (key: TEXT) state -> ANY, |c| get(c, b"pd:"), "The stored value of the key.", "proc_dict_get('a') = null()";
    "proc_dict_put" (key: TEXT, value: ANY) state -> ANY, |c| put(c, b"pd:"), "Stores the value for later messages and returns the previous value.", "proc_dict_put('a', 5) = null()";
}

fn random(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let bits = call.run.environment.random() >> 11;
    Ok(Value::Float(bits as f64 / (1_u64 << 53) as f64))
}

/// Returns a UUID of version 4: random bits and the fixed version and variant bits.
fn uuid(call: &mut FunctionCall<'_, '_>) -> String {
    let high = call.run.environment.random() & !0xF000 | 0x4000;
    let low = call.run.environment.random() & !(3 << 62) | 2 << 62;
    let bytes = [high.to_be_bytes(), low.to_be_bytes()].concat();
    hex(&bytes, b"0123456789abcdef")
}

fn uuid_v4(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let digits = uuid(call);
    let parts = [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ];
    call.make(parts.join("-"))
}

fn uuid_v4_no_hyphen(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let digits = uuid(call);
    call.make(digits)
}

fn getenv(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let name = call.str(0)?;
    match call.run.environment.variable(name) {
        Some(value) => call.make(value),
        None => Ok(Value::Undefined),
    }
}

fn key(call: &FunctionCall<'_, '_>, prefix: &[u8]) -> Result<Vec<u8>, FunctionError> {
    Ok([prefix, call.text(0)?].concat())
}

fn store<'s>(call: &'s mut FunctionCall<'_, '_>) -> Result<&'s mut dyn ValueStore, FunctionError> {
    let missing = format!("{}: values cannot be stored between messages here", call.function.name);
    call.run.environment.store().ok_or(FunctionError::from(missing))
}

fn get(call: &mut FunctionCall<'_, '_>, prefix: &[u8]) -> Result<Value, FunctionError> {
    let key = key(call, prefix)?;
    let found = store(call)?.get(&key);
    let value = found.unwrap_or_else(|| call.value(1).clone());
    call.run.budget.make_value(&value)?;
    Ok(value)
}

fn put(call: &mut FunctionCall<'_, '_>, prefix: &[u8]) -> Result<Value, FunctionError> {
    let (key, value) = (key(call, prefix)?, call.value(1).clone());
    // The store counts its own bytes.
    call.run.budget.make(key.len())?;
    call.run.budget.check_nesting(&value, 0)?;
    let store = store(call)?;
    let before = store.get(&key).unwrap_or_default();
    store.put(&key, value)?;
    Ok(before)
}

fn delete(call: &mut FunctionCall<'_, '_>, prefix: &[u8]) -> Result<Value, FunctionError> {
    let key = key(call, prefix)?;
    store(call)?.delete(&key);
    Ok(Value::Bool(true))
}
