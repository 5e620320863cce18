//! Every example of the reference holds.

mod support;

use rules::functions;
use support::evaluate;

#[test]
fn examples_of_functions_hold() {
    let mut failures = Vec::new();
    for function in functions().filter(|function| !function.example.is_empty()) {
        let (left, right) = function.example.rsplit_once(" = ").expect("an example is an equation");
        match (evaluate(left, "{}"), evaluate(right, "{}")) {
            (Ok(left), Ok(right)) if left == right => {}
            (left, right) => failures.push(format!("{}: {left:?} and {right:?}", function.example)),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
