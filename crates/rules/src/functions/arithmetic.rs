//! Operators on numbers, and mathematical functions. Integers stay integers; no result is infinite or not a number.

use super::convert::to_text;
use super::{Call, Group, function_table};
use crate::error::Fault;
use crate::eval::Budget;
use crate::expr::Arithmetic;
use crate::value::Value;

function_table! { Group::Arithmetic;
    "abs" (x: NUMBER) -> NUMBER, abs, "The absolute value.", "abs(-12) = 12";
    "acos" (x: NUMBER) -> FLOAT, |c| float(c, f64::acos), "The arc cosine, in radians.", "acos(0.5) = 1.0471975511965979";
    "acosh" (x: NUMBER) -> FLOAT, |c| float(c, f64::acosh), "The hyperbolic arc cosine.", "acosh(1) = 0.0";
    "asin" (x: NUMBER) -> FLOAT, |c| float(c, f64::asin), "The arc sine, in radians.", "asin(0.5) = 0.5235987755982989";
    "asinh" (x: NUMBER) -> FLOAT, |c| float(c, f64::asinh), "The hyperbolic arc sine.", "asinh(0) = 0.0";
    "atan" (x: NUMBER) -> FLOAT, |c| float(c, f64::atan), "The arc tangent, in radians.", "atan(0.5) = 0.4636476090008061";
    "atanh" (x: NUMBER) -> FLOAT, |c| float(c, f64::atanh), "The hyperbolic arc tangent.", "atanh(0) = 0.0";
    "ceil" (x: NUMBER) -> INT, |c| whole(c, f64::ceil), "The smallest integer that is not less.", "ceil(0.8) = 1";
    "cos" (x: NUMBER) -> FLOAT, |c| float(c, f64::cos), "The cosine of an angle in radians.", "cos(0) = 1.0";
    "cosh" (x: NUMBER) -> FLOAT, |c| float(c, f64::cosh), "The hyperbolic cosine.", "cosh(0) = 1.0";
    "div" (x: INT, y: INT) -> INT, |c| binary(c, Arithmetic::IntegerDivide), "The quotient without its fraction; also an operator, `7 div 2`.", "div(-7, 2) = -3";
    "eq" (x: ANY, y: ANY) -> BOOL, |c| Ok(c.value(0).loosely_equal(c.value(1)).into()), "Whether both are equal; integers and floats compare by value.", "eq(1, 1.0) = true";
    "exp" (x: NUMBER) -> FLOAT, |c| float(c, f64::exp), "e to the power of x.", "exp(0) = 1.0";
    "floor" (x: NUMBER) -> INT, |c| whole(c, f64::floor), "The largest integer that is not greater.", "floor(3.6) = 3";
    "fmod" (x: NUMBER, y: NUMBER) -> FLOAT, |c| { let y = c.float(1)?; float(c, |x| x % y) }, "The remainder of x divided by y.", "fmod(6.5, 2.5) = 1.5";
    "log" (x: NUMBER) -> FLOAT, |c| float(c, f64::ln), "The natural logarithm.", "log(1) = 0.0";
    "log10" (x: NUMBER) -> FLOAT, |c| float(c, f64::log10), "The logarithm to base 10.", "log10(100) = 2.0";
    "log2" (x: NUMBER) -> FLOAT, |c| float(c, f64::log2), "The logarithm to base 2.", "log2(8) = 3.0";
    "mod" (x: INT, y: INT) -> INT, |c| binary(c, Arithmetic::Modulo), "The remainder, with the sign of x; also an operator, `7 mod 2`.", "mod(-7, 2) = -1";
    "power" (x: NUMBER, y: NUMBER) -> FLOAT, |c| { let y = c.float(1)?; float(c, |x| x.powf(y)) }, "x to the power of y.", "power(2, 3) = 8.0";
    "round" (x: NUMBER) -> INT, |c| whole(c, f64::round), "The nearest integer; halves away from zero.", "round(4.5) = 5";
    "sin" (x: NUMBER) -> FLOAT, |c| float(c, f64::sin), "The sine of an angle in radians.", "sin(0) = 0.0";
    "sinh" (x: NUMBER) -> FLOAT, |c| float(c, f64::sinh), "The hyperbolic sine.", "sinh(0) = 0.0";
    "sqrt" (x: NUMBER) -> FLOAT, |c| float(c, f64::sqrt), "The square root.", "sqrt(9) = 3.0";
    "tan" (x: NUMBER) -> FLOAT, |c| float(c, f64::tan), "The tangent of an angle in radians.", "tan(0) = 0.0";
    "tanh" (x: NUMBER) -> FLOAT, |c| float(c, f64::tanh), "The hyperbolic tangent.", "tanh(0) = 0.0";
}

const OVERFLOW: &str = "the result does not fit into 128 bits";

/// `+` joins texts when one of the two is one.
pub(crate) fn apply(operator: Arithmetic, left: &Value, right: &Value, budget: &mut Budget) -> Result<Value, Fault> {
    match (left, right) {
        (Value::Int(a), Value::Int(b)) => ints(operator, *a, *b),
        (Value::Text(_), _) | (_, Value::Text(_)) if operator == Arithmetic::Add => {
            let mut joined = Vec::new();
            to_text(&mut joined, left);
            to_text(&mut joined, right);
            budget.make(joined.len())?;
            Ok(Value::Text(joined.into()))
        }
        (Value::Int(a), Value::Float(b)) => floats(operator, *a as f64, *b),
        (Value::Float(a), Value::Int(b)) => floats(operator, *a, *b as f64),
        (Value::Float(a), Value::Float(b)) => floats(operator, *a, *b),
        _ => Err(no_numbers(operator, left, right)),
    }
}

fn no_numbers(operator: Arithmetic, left: &Value, right: &Value) -> Fault {
    let (left, right) = (left.type_name(), right.type_name());
    Fault::from(format!(
        "{} takes two numbers, not {left} and {right}",
        operator.symbol()
    ))
}

fn ints(operator: Arithmetic, a: i128, b: i128) -> Result<Value, Fault> {
    if b == 0 && !matches!(operator, Arithmetic::Add | Arithmetic::Subtract | Arithmetic::Multiply) {
        return Err(Fault::from("division by zero"));
    }
    let result = match operator {
        Arithmetic::Add => a.checked_add(b),
        Arithmetic::Subtract => a.checked_sub(b),
        Arithmetic::Multiply => a.checked_mul(b),
        Arithmetic::IntegerDivide => a.checked_div(b),
        Arithmetic::Modulo => a.checked_rem(b),
        Arithmetic::Divide => return finite(a as f64 / b as f64),
    };
    result.map(Value::Int).ok_or(Fault::from(OVERFLOW))
}

fn floats(operator: Arithmetic, a: f64, b: f64) -> Result<Value, Fault> {
    match operator {
        Arithmetic::Add => finite(a + b),
        Arithmetic::Subtract => finite(a - b),
        Arithmetic::Multiply => finite(a * b),
        Arithmetic::Divide if b == 0.0 => Err(Fault::from("division by zero")),
        Arithmetic::Divide => finite(a / b),
        Arithmetic::IntegerDivide | Arithmetic::Modulo => {
            Err(Fault::from(format!("{} takes integers, not floats", operator.symbol())))
        }
    }
}

pub(crate) fn negate(value: &Value) -> Result<Value, Fault> {
    match value {
        Value::Int(int) => int.checked_neg().map(Value::Int).ok_or(Fault::from(OVERFLOW)),
        Value::Float(float) => Ok(Value::Float(-float)),
        other => Err(Fault::from(format!("- takes a number, not {}", other.type_name()))),
    }
}

pub(super) fn finite(float: f64) -> Result<Value, Fault> {
    if float.is_finite() {
        Ok(Value::Float(float))
    } else {
        Err(Fault::from("the result is no finite number"))
    }
}

fn binary(call: &mut Call<'_, '_>, operator: Arithmetic) -> Result<Value, Fault> {
    ints(operator, call.int(0)?, call.int(1)?)
}

fn abs(call: &mut Call<'_, '_>) -> Result<Value, Fault> {
    match call.value(0) {
        Value::Int(int) => int.checked_abs().map(Value::Int).ok_or(Fault::from(OVERFLOW)),
        _ => Ok(Value::Float(call.float(0)?.abs())),
    }
}

fn float(call: &mut Call<'_, '_>, apply: impl Fn(f64) -> f64) -> Result<Value, Fault> {
    let x = call.float(0)?;
    let result = apply(x);
    if result.is_finite() {
        return Ok(Value::Float(result));
    }
    Err(Fault::from(format!(
        "{} of {x} is no finite number",
        call.function.name
    )))
}

fn whole(call: &mut Call<'_, '_>, apply: impl Fn(f64) -> f64) -> Result<Value, Fault> {
    match call.value(0) {
        Value::Int(int) => Ok(Value::Int(*int)),
        _ => to_int(apply(call.float(0)?)),
    }
}

/// A float without a fraction.
pub(super) fn to_int(whole: f64) -> Result<Value, Fault> {
    const TWO_POW_127: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;
    if whole.abs() < TWO_POW_127 {
        Ok(Value::Int(whole as i128))
    } else {
        Err(Fault::from(OVERFLOW))
    }
}
