//! Functions for the bits of integers and of byte strings.

use rule_values::{FunctionError, Value};

use super::arithmetic::finite;
use super::{FunctionCall, FunctionGroup, function_table};

function_table! { FunctionGroup::Bits;
    "bitand" (x: INT, y: INT) -> INT, |c| Ok(Value::Int(c.int(0)? & c.int(1)?)), "Bitwise AND.", "bitand(10, 8) = 8";
    "bitnot" (x: INT) -> INT, |c| Ok(Value::Int(!c.int(0)?)), "Bitwise NOT.", "bitnot(10) = -11";
    "bitor" (x: INT, y: INT) -> INT, |c| Ok(Value::Int(c.int(0)? | c.int(1)?)), "Bitwise OR.", "bitor(10, 8) = 10";
    "bitsize" (bytes: TEXT) -> INT, |c| Ok(Value::Int(c.text(0)?.len() as i128 * 8)), "The number of bits.", "bitsize('abc') = 24";
    "bitsl" (x: INT, bits: INT) -> INT, |c| shift(c, 1), "Bits shifted to the left.", "bitsl(8, 2) = 32";
    "bitsr" (x: INT, bits: INT) -> INT, |c| shift(c, -1), "Bits shifted to the right; the sign is preserved.", "bitsr(-8, 2) = -2";
    "bitxor" (x: INT, y: INT) -> INT, |c| Ok(Value::Int(c.int(0)? ^ c.int(1)?)), "Bitwise XOR.", "bitxor(10, 8) = 2";
    "bytesize" (bytes: TEXT) -> INT, |c| Ok(Value::Int(c.text(0)?.len() as i128)), "The number of bytes.", "bytesize('abc') = 3";
    "subbits" (bytes: TEXT, start_or_bits: INT; bits: INT, output: TEXT, sign: TEXT, order: TEXT) -> ANY, subbits, "The given number of bits, from the start or from a position that begins with 1, as `'integer'`, `'float'` or `'bits'`, `'unsigned'` or `'signed'`, `'big'` or `'little'`.", "subbits(hexstr2bin('9F4E58'), 1, 16, 'integer', 'signed', 'big') = -24754";
}

fn shift(call: &mut FunctionCall<'_, '_>, direction: i128) -> Result<Value, FunctionError> {
    let (int, bits) = (call.int(0)?, call.int(1)?.saturating_mul(direction));
    if bits <= 0 {
        let bits = u32::try_from(-bits).unwrap_or(127).min(127);
        return Ok(Value::Int(int >> bits));
    }
    let shifted = u32::try_from(bits)
        .ok()
        .filter(|bits| *bits < 127)
        .map(|bits| (int << bits, bits));
    match shifted {
        Some((shifted, bits)) if shifted >> bits == int => Ok(Value::Int(shifted)),
        _ if int == 0 => Ok(Value::Int(0)),
        _ => Err(FunctionError::from("the result does not fit into 128 bits")),
    }
}

fn subbits(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    let bytes = call.text(0)?;
    let (start, length) = if call.has(2) {
        (call.count(1)?, call.count(2)?)
    } else {
        (1, call.count(1)?)
    };
    let output = call.option(3, "integer")?;
    let is_signed = match call.option(4, "unsigned")? {
        "unsigned" => false,
        "signed" => true,
        other => return Err(call.type_error(4, &format!("'{other}'"), "'unsigned' or 'signed'")),
    };
    let is_little = match call.option(5, "big")? {
        "big" => false,
        "little" => true,
        other => return Err(call.type_error(5, &format!("'{other}'"), "'big' or 'little'")),
    };
    let Some(begin) = start.checked_sub(1) else {
        return Err(call.type_error(1, "0", "1 or more"));
    };
    if begin >= bytes.len() * 8 {
        return Ok(Value::Undefined);
    }
    // If fewer bits remain than requested, take all of them.
    let length = length.min(bytes.len() * 8 - begin);
    match output {
        "integer" => integer(bytes, begin, length, is_signed, is_little),
        "float" => float(bytes, begin, length, is_little),
        "bits" if length % 8 == 0 => call.make(collect(bytes, begin, length)),
        "bits" => Err(FunctionError::from(
            "subbits: a number of bits that is not a multiple of 8 requires the output 'integer'",
        )),
        other => Err(call.type_error(3, &format!("'{other}'"), "'integer', 'float' or 'bits'")),
    }
}

/// Returns bits from the middle of `bytes`. The last byte is padded with zeros.
fn collect(bytes: &[u8], begin: usize, length: usize) -> Vec<u8> {
    let shift = begin % 8;
    let first = begin / 8;
    let mut collected: Vec<u8> = (0..length.div_ceil(8))
        .map(|i| {
            let high = u16::from(bytes.get(first + i).copied().unwrap_or(0)) << 8;
            let low = u16::from(bytes.get(first + i + 1).copied().unwrap_or(0));
            (((high | low) << shift) >> 8) as u8
        })
        .collect();
    if let (Some(last), 1..) = (collected.last_mut(), length % 8) {
        *last &= 0xFF << (8 - length % 8);
    }
    collected
}

fn integer(
    bytes: &[u8],
    begin: usize,
    length: usize,
    is_signed: bool,
    is_little: bool,
) -> Result<Value, FunctionError> {
    if length > 120 {
        return Err(FunctionError::from("subbits: an integer has at most 120 bits"));
    }
    if length == 0 {
        return Ok(Value::Int(0));
    }
    let mut collected = collect(bytes, begin, length);
    // If the last byte has fewer than eight bits, they are in its low bits.
    let unused = (8 - length % 8) % 8;
    if let Some(last) = collected.last_mut() {
        *last >>= unused;
    }
    let mut int: i128 = 0;
    if is_little {
        for byte in collected.iter().rev() {
            int = int << 8 | i128::from(*byte);
        }
    } else {
        for (i, byte) in collected.iter().enumerate() {
            let width = if i + 1 == collected.len() { 8 - unused } else { 8 };
            int = int << width | i128::from(*byte);
        }
    }
    if is_signed && int >> (length - 1) & 1 == 1 {
        int -= 1 << length;
    }
    Ok(Value::Int(int))
}

fn float(bytes: &[u8], begin: usize, length: usize, is_little: bool) -> Result<Value, FunctionError> {
    let mut collected = collect(bytes, begin, length);
    if is_little {
        collected.reverse();
    }
    finite(match *collected.as_slice() {
        [a, b] => half(u16::from_be_bytes([a, b])),
        [a, b, c, d] => f32::from_be_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => f64::from_be_bytes([a, b, c, d, e, f, g, h]),
        _ => return Err(FunctionError::from("subbits: a float has 16, 32 or 64 bits")),
    })
}

/// Converts a 16-bit float.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 0x1F);
    let fraction = f64::from(bits & 0x3FF) / 1024.0;
    match exponent {
        0 => sign * fraction * 2_f64.powi(-14),
        0x1F => f64::NAN,
        _ => sign * (1.0 + fraction) * 2_f64.powi(exponent - 15),
    }
}
