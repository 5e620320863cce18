//! Runs the examples of the function reference of EMQX (`rule-sql-builtin-functions`, 5.8) in
//! `tests/emqx/functions.txt`: `expression = result`; `! expression` for an expected error; `~ expression = result |
//! ours | why` for a difference.

use crate::support::evaluate;
use rules::Value;

const EXAMPLES: &str = include_str!("emqx/functions.txt");

#[test]
fn documented_examples_of_functions_have_their_results() {
    let lines = EXAMPLES
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let failures: Vec<String> = lines.filter_map(|line| check(line).err()).collect();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

fn check(line: &str) -> Result<(), String> {
    if let Some(expression) = line.strip_prefix("! ") {
        return match evaluate(expression, "{}") {
            Ok(value) => Err(format!("{expression} is {value:?} and no error")),
            Err(_) => Ok(()),
        };
    }
    if let Some(deviation) = line.strip_prefix("~ ") {
        let (equation, rest) = deviation.split_once(" | ").expect("a deviation has three parts");
        let (ours, _why) = rest.split_once(" | ").expect("a deviation has three parts");
        let (left, _documented) = equation.rsplit_once(" = ").expect("an example is an equation");
        return equal(left, ours);
    }
    let (left, right) = line.rsplit_once(" = ").ok_or_else(|| format!("no equation: {line}"))?;
    equal(left, right)
}

fn equal(left: &str, right: &str) -> Result<(), String> {
    match (evaluate(left, "{}"), evaluate(right, "{}"), right) {
        (Err(_), _, "error") => Ok(()),
        (Ok(a), Ok(b), _) if is_same(&a, &b) => Ok(()),
        (a, b, _) => Err(format!("{left} = {right}\n    {a:?}\n    {b:?}")),
    }
}

/// Compares like `=`. The last digit of a trigonometric function depends on the library.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Float(a), Value::Float(b)) => (a - b).abs() <= 4.0 * f64::EPSILON * a.abs(),
        _ => a.loosely_equal(b),
    }
}
