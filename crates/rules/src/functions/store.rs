//! What comes from outside of a message: randomness, environment variables, values kept from message to message.

use super::codec::hex;
use super::{Call, Function, Group, function_table};
use crate::error::Fault;
use crate::event::Store;
use crate::value::Value;

mod random_values {
    use super::*;

    function_table! { Group::Random;
        "random" () -> FLOAT, random, "A float from 0 and below 1.", "";
        "uuid_v4" () -> TEXT, uuid_v4, "A random UUID.", "strlen(uuid_v4()) = 36";
        "uuid_v4_no_hyphen" () -> TEXT, uuid_v4_no_hyphen, "A random UUID without hyphens.", "strlen(uuid_v4_no_hyphen()) = 32";
    }
}

pub(super) const RANDOM: &[Function] = random_values::TABLE;

function_table! { Group::System;
    "getenv" (name: TEXT) -> ANY, getenv, "An environment variable that the operator opened to rules; undefined if there is none.", "";
    "kv_store_del" (key: TEXT) state -> BOOL, |c| delete(c, b"kv:"), "Forgets the value of the key.", "";
    "kv_store_get" (key: TEXT; default: ANY) state -> ANY, |c| get(c, b"kv:"), "The value that was put under the key, or the default.", "";
    "kv_store_put" (key: TEXT, value: ANY) state -> BOOL, |c| { put(c, b"kv:")?; Ok(Value::Bool(true)) }, "Keeps the value for later messages.", "";
    "proc_dict_del" (key: TEXT) state -> ANY, |c| { let old = get(c, b"pd:")?; delete(c, b"pd:")?; Ok(old) }, "Forgets the value of the key, and gives it.", "";
    "proc_dict_get" (key: TEXT) state -> ANY, |c| get(c, b"pd:"), "The value that was put under the key.", "";
    "proc_dict_put" (key: TEXT, value: ANY) state -> ANY, |c| put(c, b"pd:"), "Keeps the value for later messages, and gives the one before.", "";
}

fn random(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let bits = call.run.environment.random() >> 11;
    Ok(Value::Float(bits as f64 / (1_u64 << 53) as f64))
}

/// Random bits around the fixed ones of version 4.
fn uuid(call: &mut Call<'_, '_>) -> String {
    let high = call.run.environment.random() & !0xF000 | 0x4000;
    let low = call.run.environment.random() & !(3 << 62) | 2 << 62;
    let bytes = [high.to_be_bytes(), low.to_be_bytes()].concat();
    hex(&bytes, b"0123456789abcdef")
}

fn uuid_v4(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
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

fn uuid_v4_no_hyphen(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let digits = uuid(call);
    call.make(digits)
}

fn getenv(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    let name = call.str(0)?;
    match call.run.environment.variable(name) {
        Some(value) => call.make(value),
        None => Ok(Value::Undefined),
    }
}

fn key(call: &Call<'_, '_>, prefix: &[u8]) -> Result<Vec<u8>, Fault> {
    Ok([prefix, call.text(0)?].concat())
}

fn store<'s>(call: &'s mut Call<'_, '_>) -> Result<&'s mut dyn Store, Fault> {
    let missing = format!("{}: values are not kept between messages here", call.function.name);
    call.run.environment.store().ok_or(Fault::from(missing))
}

fn get(call: &mut Call<'_, '_>, prefix: &[u8]) -> Result<Value, Fault> {
    let key = key(call, prefix)?;
    let found = store(call)?.get(&key);
    let value = found.unwrap_or_else(|| call.value(1).clone());
    call.run.budget.make(value.size())?;
    Ok(value)
}

fn put(call: &mut Call<'_, '_>, prefix: &[u8]) -> Result<Value, Fault> {
    let (key, value) = (key(call, prefix)?, call.value(1).clone());
    let store = store(call)?;
    let before = store.get(&key).unwrap_or_default();
    store.put(&key, value)?;
    Ok(before)
}

fn delete(call: &mut Call<'_, '_>, prefix: &[u8]) -> Result<Value, Fault> {
    let key = key(call, prefix)?;
    store(call)?.delete(&key);
    Ok(Value::Bool(true))
}
