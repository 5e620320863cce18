//! Arithmetic operators and mathematical functions. Integers remain integers. No result is infinite or NaN.

use rule_values::{FunctionError, StepBudget, Value};

use super::convert::to_text;
use super::{FunctionCall, FunctionGroup, function_table};
use crate::expr::Arithmetic;

function_table! { FunctionGroup::Arithmetic;
    "abs" (x: NUMBER) -> NUMBER, abs, "The absolute value.", "abs(-12) = 12";
    "acos" (x: NUMBER) -> FLOAT, |c| float(c, f64::acos), "The arc cosine, in radians.", "acos(0.5) = 1.0471975511965979";
    "acosh" (x: NUMBER) -> FLOAT, |c| float(c, f64::acosh), "The hyperbolic arc cosine.", "acosh(1) = 0.0";
    "asin" (x: NUMBER) -> FLOAT, |c| float(c, f64::asin), "The arc sine, in radians.", "asin(0.5) = 0.5235987755982989";
    "asinh" (x: NUMBER) -> FLOAT, |c| float(c, f64::asinh), "The hyperbolic arc sine.", "asinh(0) = 0.0";
    "atan" (x: NUMBER) -> FLOAT, |c| float(c, f64::atan), "The arc tangent, in radians.", "atan(0.5) = 0.4636476090008061";
    "atanh" (x: NUMBER) -> FLOAT, |c| float(c, f64::atanh), "The hyperbolic arc tangent.", "atanh(0) = 0.0";
    "ceil" (x: NUMBER) -> INT, |c| whole(c, f64::ceil), "The number rounded up to an integer.", "ceil(0.8) = 1";
    "cos" (x: NUMBER) -> FLOAT, |c| float(c, f64::cos), "The cosine of an angle in radians.", "cos(0) = 1.0";
    "cosh" (x: NUMBER) -> FLOAT, |c| float(c, f64::cosh), "The hyperbolic cosine.", "cosh(0) = 1.0";
    "div" (x: INT, y: INT) -> INT, |c| binary(c, Arithmetic::IntegerDivide), "The result of integer division; also an operator: `7 div 2`.", "div(-7, 2) = -3";
    "eq" (x: ANY, y: ANY) -> BOOL, |c| { c.run.budget.compare(c.value(0), c.value(1))?; Ok(c.value(0).loosely_equal(c.value(1)).into()) }, "Whether both values are equal; integers and floats are compared by value.", "eq(1, 1.0) = true";
    "exp" (x: NUMBER) -> FLOAT, |c| float(c, f64::exp), "e to the power of x.", "exp(0) = 1.0";
    "floor" (x: NUMBER) -> INT, |c| whole(c, f64::floor), "The number rounded down to an integer.", "floor(3.6) = 3";
    "fmod" (x: NUMBER, y: NUMBER) -> FLOAT, |c| { let y = c.float(1)?; float(c, |x| x % y) }, "The remainder of x divided by y.", "fmod(6.5, 2.5) = 1.5";
    "log" (x: NUMBER) -> FLOAT, |c| float(c, f64::ln), "The natural logarithm.", "log(1) = 0.0";
    "log10" (x: NUMBER) -> FLOAT, |c| float(c, f64::log10), "The logarithm to base 10.", "log10(100) = 2.0";
    "log2" (x: NUMBER) -> FLOAT, |c| float(c, f64::log2), "The logarithm to base 2.", "log2(8) = 3.0";
    "mod" (x: INT, y: INT) -> INT, |c| binary(c, Arithmetic::Modulo), "The remainder, with the sign of x; also an operator: `7 mod 2`.", "mod(-7, 2) = -1";
    "power" (x: NUMBER, y: NUMBER) -> FLOAT, |c| { let y = c.float(1)?; float(c, |x| x.powf(y)) }, "x to the power of y.", "power(2, 3) = 8.0";
    "round" (x: NUMBER) -> INT, |c| whole(c, f64::round), "The nearest integer; halves are rounded away from zero.", "round(4.5) = 5";
    "sin" (x: NUMBER) -> FLOAT, |c| float(c, f64::sin), "The sine of an angle in radians.", "sin(0) = 0.0";
    "sinh" (x: NUMBER) -> FLOAT, |c| float(c, f64::sinh), "The hyperbolic sine.", "sinh(0) = 0.0";
    "sqrt" (x: NUMBER) -> FLOAT, |c| float(c, f64::sqrt), "The square root.", "sqrt(9) = 3.0";
    "tan" (x: NUMBER) -> FLOAT, |c| float(c, f64::tan), "The tangent of an angle in radians.", "tan(0) = 0.0";
    "tanh" (x: NUMBER) -> FLOAT, |c| float(c, f64::tanh), "The hyperbolic tangent.", "tanh(0) = 0.0";
}

const OVERFLOW: &str = "the result does not fit into 128 bits";

/// `+` concatenates if one operand is a text.
pub(crate) fn apply(
    operator: Arithmetic,
    left: &Value,
    right: &Value,
    budget: &mut StepBudget,
) -> Result<Value, FunctionError> {
    match (left, right) {
        (Value::Int(a), Value::Int(b)) => ints(operator, *a, *b),
        (Value::Text(_), _) | (_, Value::Text(_)) if operator == Arithmetic::Add => {
            budget.charge_value(left)?;
            budget.charge_value(right)?;
            let mut joined = Vec::new();
            to_text(&mut joined, left);
            to_text(&mut joined, right);
            budget.make(joined.len())?;
            Ok(Value::Text(joined.into()))
        }
        (Value::Int(a), Value::Float(b)) => floats(operator, *a as f64, *b),
        (Value::Float(a), Value::Int(b)) => floats(operator, *a, *b as f64),
        (Value::Float(a), Value::Float(b)) => floats(operator, *a, *b),
        _ => Err(not_numbers_error(operator, left, right)),
    }
}

fn not_numbers_error(operator: Arithmetic, left: &Value, right: &Value) -> FunctionError {
    let (left, right) = (left.type_name(), right.type_name());
    FunctionError::from(format!(
        "{} requires two numbers, not {left} and {right}",
        operator.symbol()
    ))
}

fn ints(operator: Arithmetic, a: i128, b: i128) -> Result<Value, FunctionError> {
    if b == 0 && !matches!(operator, Arithmetic::Add | Arithmetic::Subtract | Arithmetic::Multiply) {
        return Err(FunctionError::from("division by zero"));
    }
    let result = match operator {
        Arithmetic::Add => a.checked_add(b),
        Arithmetic::Subtract => a.checked_sub(b),
        Arithmetic::Multiply => a.checked_mul(b),
        Arithmetic::IntegerDivide => a.checked_div(b),
        Arithmetic::Modulo => a.checked_rem(b),
        Arithmetic::Divide => return finite(a as f64 / b as f64),
    };
    result.map(Value::Int).ok_or(FunctionError::from(OVERFLOW))
}

fn floats(operator: Arithmetic, a: f64, b: f64) -> Result<Value, FunctionError> {
    match operator {
        Arithmetic::Add => finite(a + b),
        Arithmetic::Subtract => finite(a - b),
        Arithmetic::Multiply => finite(a * b),
        Arithmetic::Divide if b == 0.0 => Err(FunctionError::from("division by zero")),
        Arithmetic::Divide => finite(a / b),
        Arithmetic::IntegerDivide | Arithmetic::Modulo => Err(FunctionError::from(format!(
            "{} requires integers, not floats",
            operator.symbol()
        ))),
    }
}

pub(crate) fn negate(value: &Value) -> Result<Value, FunctionError> {
    match value {
        Value::Int(int) => int.checked_neg().map(Value::Int).ok_or(FunctionError::from(OVERFLOW)),
        Value::Float(float) => Ok(Value::Float(-float)),
        other => Err(FunctionError::from(format!(
            "- requires a number, not {}",
            other.type_name()
        ))),
    }
}

pub(super) fn finite(float: f64) -> Result<Value, FunctionError> {
    if float.is_finite() {
        Ok(Value::Float(float))
    } else {
        Err(FunctionError::from("the result is not a finite number"))
    }
}

fn binary(call: &mut FunctionCall<'_, '_>, operator: Arithmetic) -> Result<Value, FunctionError> {
    ints(operator, call.int(0)?, call.int(1)?)
}

fn abs(call: &mut FunctionCall<'_, '_>) -> Result<Value, FunctionError> {
    match call.value(0) {
        Value::Int(int) => int.checked_abs().map(Value::Int).ok_or(FunctionError::from(OVERFLOW)),
        _ => Ok(Value::Float(call.float(0)?.abs())),
    }
}

fn float(call: &mut FunctionCall<'_, '_>, apply: impl Fn(f64) -> f64) -> Result<Value, FunctionError> {
    let x = call.float(0)?;
    let result = apply(x);
    if result.is_finite() {
        return Ok(Value::Float(result));
    }
    Err(FunctionError::from(format!(
        "{} of {x} is not a finite number",
        call.function.name
    )))
}

fn whole(call: &mut FunctionCall<'_, '_>, apply: impl Fn(f64) -> f64) -> Result<Value, FunctionError> {
    match call.value(0) {
        Value::Int(int) => Ok(Value::Int(*int)),
        _ => to_int(apply(call.float(0)?)),
    }
}

/// Converts a float without a fraction.
pub(super) fn to_int(whole: f64) -> Result<Value, FunctionError> {
    const TWO_POW_127: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;
    if whole.abs() < TWO_POW_127 {
        Ok(Value::Int(whole as i128))
    } else {
        Err(FunctionError::from(OVERFLOW))
    }
}
