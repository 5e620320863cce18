//! Checks every example of the reference.

use crate::support::{compile, publish, run};
use rules::{Column, Value, functions};

#[test]
fn every_function_has_an_example() {
    let without: Vec<&str> = functions()
        .filter(|function| function.example.is_empty())
        .map(|function| function.name)
        .collect();
    assert_eq!(without, Vec::<&str>::new());
}

#[test]
fn examples_of_functions_are_true() {
    let mut failures = Vec::new();
    for function in functions() {
        let (left, right) = function.example.rsplit_once(" = ").expect("an example is an equation");
        match (evaluate(left), evaluate(right)) {
            (Ok(left), Ok(right)) if left == right => {}
            (left, right) => failures.push(format!("{}: {left:?} and {right:?}", function.example)),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The value of an expression over the message that the reference describes.
fn evaluate(expression: &str) -> Result<Value, String> {
    let rule = compile(&format!("SELECT {expression} AS result FROM \"t/#\""));
    let mut message = publish("t/a", br#"{"msg": "hello"}"#);
    message.set(Column::Flags, flags());
    let outputs = run(&rule, &message).map_err(|error| error.to_string())?;
    Ok(outputs[0].get(b"result").cloned().expect("the field is there"))
}

fn flags() -> Value {
    let rule = compile("SELECT json_decode('{\"retain\": false}') AS flags FROM \"t/#\"");
    let outputs = run(&rule, &publish("t/a", b"")).expect("the rule is evaluated");
    outputs[0].get(b"flags").cloned().expect("the field is there")
}
